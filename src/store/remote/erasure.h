/* erasure.h - one server's erasure, as all other servers read it: an entry of a stream in the
 * remote. Pure.
 *
 *     "HCERASE1" | server u64 | is_owner u64 | owner u64 | n u64 | n keys of 32 bytes
 *                | checksum64 of all bytes before
 *
 * Numbers are little-endian. With is_owner 1 all chunks of an owner are erased; with 0 the keys,
 * parents before the chunks that continue them; with 2 the chunks that hold a whole text, and the
 * keys are those of that text (store_erase_continuing). */
#ifndef STORE_REMOTE_ERASURE_H
#define STORE_REMOTE_ERASURE_H

#include <stdbool.h>

#include "base/err.h"
#include "base/hash.h"

enum { ERASURE_MAX_KEYS = 1024 };

struct erasure {
    uint64_t server; /* random number of the process that has erased */
    bool is_owner, is_text;
    uint64_t owner;
    int n; /* number of keys */
    struct sha256 *keys;
};

/* Returns the size of an entry with n_keys keys, in bytes. */
size_t erasure_bytes(int n_keys);
void erasure_encode(const struct erasure *e, uint8_t *out);
/* Decodes an entry. The caller provides out->keys [ERASURE_MAX_KEYS]. Returns 0, ERR_FORMAT or
 * ERR_CORRUPT. */
int erasure_decode(const uint8_t *in, size_t n_bytes, struct erasure *out, struct err *err);

#endif
