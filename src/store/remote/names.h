/* names.h - the names of keys in the remote. Pure.
 *
 *     hcache:1:chunk:KEY    a parcel (store/parcel.h); KEY: the chunk's key, hexadecimal
 *     hcache:1:erased       a stream of erasures, oldest first (erasure.h), in a field "e"
 *     hcache:1:servers      a hash: each server's position in that stream, and when it wrote it
 *
 * 1 is the version of these names. */
#ifndef STORE_REMOTE_NAMES_H
#define STORE_REMOTE_NAMES_H

#include "base/hash.h"

#define NAME_CHUNKS  "hcache:1:chunk:"
#define NAME_ERASED  "hcache:1:erased"
#define NAME_SERVERS "hcache:1:servers"
/* Approximate number of entries that the stream of erasures keeps. */
#define ERASED_ENTRIES "16384"

enum { NAME_BYTES = 96 };

void name_chunk(const struct sha256 *key, char out[NAME_BYTES]);

#endif
