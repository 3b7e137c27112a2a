/* seal.h - authenticated encryption of runs of bytes, and encryption of small pages in place.
 *
 * A *run* is sealed by AES-256-GCM under a key of its own, which HKDF-SHA256 makes from the seal's
 * key and 16 random bytes, the salt. So two runs never share a key and a nonce, not even in copies
 * of one file that went different ways. The sealed bytes are
 *
 *   | encrypted run, n bytes | salt, 16 bytes | tag, 16 bytes |
 *
 * The tag also covers the run's name: a sealed run under another name is refused.
 *
 * A *page* keeps its length: it is encrypted by AES-256-XTS, with its place as the tweak. Pages
 * have no tag. A reader of two copies sees which of their 16-byte pieces at the same place are
 * equal, and nothing else.
 *
 * A seal is immutable once it is made, and any thread may use it. */
#ifndef SEAL_SEAL_H
#define SEAL_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SEAL_KEY_BYTES  32
#define SEAL_SALT_BYTES 16
#define SEAL_BYTES      (SEAL_SALT_BYTES + 16) /* by which a sealed run is longer */

struct seal;

/* Makes a seal from a secret and from the id of the files that it is for: two ids give two seals
 * that open nothing of each other. The caller frees it. */
struct seal *seal_new(const uint8_t secret[SEAL_KEY_BYTES], const void *id, size_t n_id);
/* Overwrites and frees a seal. NULL is allowed. */
void seal_free(struct seal *s);
/* Returns a number that tells seals apart and nothing about the secret. Only NULL has the number
 * 0. */
uint64_t seal_mark(const struct seal *s);

/* Seals n bytes under a name into out [n + SEAL_BYTES], which does not overlap them. The salt must
 * come from the system's random numbers. */
void seal_run(const struct seal *s, const void *name, size_t n_name,
              const uint8_t salt[SEAL_SALT_BYTES], const void *run, size_t n, uint8_t *out);
/* Opens n_sealed bytes into out [n_sealed - SEAL_BYTES], which is `sealed` itself or does not
 * overlap it. Returns false if they are not a run that was sealed under this name; then out has
 * undefined bytes. */
bool seal_run_open(const struct seal *s, const void *name, size_t n_name,
                   const void *sealed, size_t n_sealed, void *out);

/* Write the key of a seal's runs, and make a seal of it that opens only runs: in another process,
 * which gets no other key. */
void seal_runs_key(const struct seal *s, uint8_t out[SEAL_KEY_BYTES]);
struct seal *seal_of_runs(const uint8_t key[SEAL_KEY_BYTES]);

/* Writes a keyed hash of n bytes. Nobody can find the bytes from it without the seal. */
void seal_hash(const struct seal *s, const void *bytes, size_t n, uint8_t out[32]);

/* Measures, in less than a millisecond, how many bytes of runs per second a thread opens. */
double seal_open_bytes_per_s(const struct seal *s);

void seal_page_crypt(const struct seal *s, uint64_t kind, uint64_t place, void *bytes,
                     size_t n, bool encrypts);
/* Encrypt and decrypt n >= 16 bytes in place. kind and place are the tweak. They do nothing if s is
 * NULL. */
static inline void seal_page(const struct seal *s, uint64_t kind, uint64_t place,
                             void *bytes, size_t n)
{
    if (s != NULL)
        seal_page_crypt(s, kind, place, bytes, n, true);
}
static inline void seal_page_open(const struct seal *s, uint64_t kind, uint64_t place,
                                  void *bytes, size_t n)
{
    if (s != NULL)
        seal_page_crypt(s, kind, place, bytes, n, false);
}

#endif
