/* owner_keys.h - the keys of an encrypted store's owners, wrapped in one small file.
 *
 * An owner's records, and the tokens in its headers, are encrypted with a random key of the owner.
 * The file `owners.keys` in the first directory has these keys, sealed by the store's own seal.
 * Erasing an owner overwrites its key. After that no copy of the owner's chunks can be decrypted,
 * wherever a medium still keeps one.
 *
 *     file:  block A of slots 0 to 31 | block B of the same | A of slots 32 to 63 | B ...
 *     slot:  | owner u64, key [32], sealed as a run named "owner" | zeros |
 *
 * A block has 4096 bytes, a slot 128.
 *
 * A slot is written to A and synced, then to B and synced, so one copy is whole after every crash,
 * and the next open mends the other. A slot of zeros is free.
 *
 * Any thread may call any function but owner_keys_open and owner_keys_close. */
#ifndef STORE_OWNER_KEYS_H
#define STORE_OWNER_KEYS_H

#include "base/err.h"
#include "seal/seal.h"

struct io;
struct owner_keys;

/* Loads the keys of a store with this seal and UUID. A missing file has no keys, and the first new
 * key creates it. The io and the seal must outlive the result. */
int owner_keys_open(struct io *io, const char *dir, const struct seal *seal,
                    const uint8_t *uuid, size_t n_uuid, bool read_only,
                    struct owner_keys **out, struct err *err);
void owner_keys_close(struct owner_keys *k); /* NULL is allowed */

/* Returns the seal of an owner's records; NULL if the owner has no key, or if k is NULL. It is
 * valid until the keys are closed, even if the owner is erased meanwhile. */
const struct seal *owner_keys_find(struct owner_keys *k, uint64_t owner);
/* Like owner_keys_find, but makes a missing key, durably. Returns 0 with *out, or the error. */
int owner_keys_get(struct owner_keys *k, uint64_t owner, const struct seal **out,
                   struct err *err);
/* Overwrites an owner's key, durably. Does nothing if the owner has no key, or if k is NULL. */
int owner_keys_erase(struct owner_keys *k, uint64_t owner, struct err *err);

#endif
