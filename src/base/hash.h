/* hash.h - the two hashes of the program.
 *
 * checksum64 (XXH3) detects damage: it guards every record and every header.  sha256 names things
 * (chunk keys and fingerprints), where two different inputs must never share a name. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

uint64_t checksum64(const void *bytes, size_t n);

enum { SHA256_HEX = 64 };
struct sha256 {
    uint8_t b[32];
};
static inline bool sha256_equal(const struct sha256 *x, const struct sha256 *y)
{
    return memcmp(x, y, sizeof *x) == 0;
}

struct sha256_ctx; /* state of one running digest; one thread at a time */

struct sha256_ctx *sha256_begin(void);
void sha256_add(struct sha256_ctx *c, const void *bytes, size_t n);
/* Adds a field with its tag and its length, so that two different sequences of fields never hash
 * the same bytes. */
void sha256_field(struct sha256_ctx *c, const char *tag, const void *bytes, size_t n);
/* Begins a field of n bytes; the caller adds the bytes with sha256_add. */
void sha256_field_begin(struct sha256_ctx *c, const char *tag, size_t n);
/* returns the digest and frees the context */
struct sha256 sha256_end(struct sha256_ctx *c);
/* returns the digest of n bytes */
struct sha256 sha256_of(const void *bytes, size_t n);
/* returns the HMAC of RFC 2104 of a text */
struct sha256 sha256_hmac(const char *key, const char *text);

/* Writes lower-case hexadecimal and a final zero; out has room for 65 bytes. */
void sha256_hex(const struct sha256 *h, char out[65]);
/* Reads 64 lower-case hexadecimal digits. Returns false if the text does not begin with them. */
bool sha256_parse(const char *text, struct sha256 *out);

#endif
