/* names.h - the names of keys in the remote, and how their values are sealed.
 *
 *     hcache:1:chunk:KEY    a parcel (store/parcel.h); KEY: the chunk's key, hexadecimal
 *     hcache:1:erased       a stream of erasures, oldest first (erasure.h), in a field "e"
 *     hcache:1:servers      a hash of all servers: the position in the stream, the time, and the mark
 *                           of the secret, 0 without one
 *
 * 1 is the version of these names. Servers with a secret (--store-key) use hcache:2:MARK: in place
 * of hcache:1: for the first two, so servers of different secrets share nothing; KEY is then a
 * keyed hash of the chunk's key, and a value is
 *
 *     | a parcel or an erasure, sealed as a run (seal.h) | of a parcel: tag of its owner, 8 bytes |
 */
#ifndef STORE_REMOTE_NAMES_H
#define STORE_REMOTE_NAMES_H

#include "base/hash.h"
#include "seal/seal.h"

/* Approximate number of entries that the stream of erasures keeps. */
#define ERASED_ENTRIES "16384"
#define NAME_SERVERS   "hcache:1:servers"

enum { NAME_BYTES = 112, VALUE_TAIL = SEAL_BYTES + 8 };

struct names {
    struct seal *seal; /* NULL: values are plain */
    char chunks[48];   /* what the names of all chunks begin with */
    char erased[48];
};

/* Makes the names under a secret [SEAL_KEY_BYTES], or without one if it is NULL. */
void names_init(struct names *n, const uint8_t *secret);
void names_deinit(struct names *n);

void name_chunk(const struct names *n, const struct sha256 *key, char out[NAME_BYTES]);
/* Returns the number by which a value names its owner. */
uint64_t name_owner(const struct names *n, uint64_t owner);

/* Both need names->seal. value_seal seals n bytes under a name into out [n + SEAL_BYTES]; the salt
 * comes from the system. value_open opens n bytes in place; it returns false if they were not
 * sealed under this secret and name. */
void value_seal(const struct names *names, const void *name, size_t n_name,
                const void *bytes, size_t n, uint8_t *out);
bool value_open(const struct names *names, const void *name, size_t n_name, uint8_t *bytes,
                size_t n);

#endif
