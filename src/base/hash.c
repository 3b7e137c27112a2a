/* hash.c - see hash.h: XXH3 from libxxhash, SHA-256 from libcrypto. */
#include "base/hash.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>
#if defined(__x86_64__)
/* This header's functions use AVX2 or AVX-512 if the processor has them; the value is the same. */
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include "base/bytes.h"
#include "base/check.h"

#if defined(__x86_64__)
__attribute__((target("avx"))) static void clear_upper_halves(void)
{
    __asm__ volatile("vzeroupper" : : : "memory");
}
#endif

/* Debian's libxxhash 0.8.1 returns from its vector code without vzeroupper.  Until the upper halves
 * of the registers are cleared, the thread then pays for every change between SSE code (most of
 * this program) and VEX code (libm): fmaf took 130 ns instead of 1 (docs/perf/2026-11-21.md). */
uint64_t checksum64(const void *bytes, size_t n)
{
    uint64_t sum = XXH3_64bits(bytes, n);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx"))
        clear_upper_halves();
#endif
    return sum;
}

struct sha256_ctx *sha256_begin(void)
{
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    CHECK(c != NULL && EVP_DigestInit_ex(c, EVP_sha256(), NULL) == 1);
    return (struct sha256_ctx *)c;
}

void sha256_add(struct sha256_ctx *c, const void *bytes, size_t n)
{
    CHECK(EVP_DigestUpdate((EVP_MD_CTX *)c, bytes, n) == 1);
}

void sha256_field_begin(struct sha256_ctx *c, const char *tag, size_t n)
{
    uint8_t len[8];
    put_u64(len, strlen(tag));
    sha256_add(c, len, sizeof len);
    sha256_add(c, tag, strlen(tag));
    put_u64(len, n);
    sha256_add(c, len, sizeof len);
}

void sha256_field(struct sha256_ctx *c, const char *tag, const void *bytes, size_t n)
{
    sha256_field_begin(c, tag, n);
    sha256_add(c, bytes, n);
}

struct sha256 sha256_end(struct sha256_ctx *c)
{
    struct sha256 h;
    CHECK(EVP_DigestFinal_ex((EVP_MD_CTX *)c, h.b, NULL) == 1);
    EVP_MD_CTX_free((EVP_MD_CTX *)c);
    return h;
}

struct sha256 sha256_of(const void *bytes, size_t n)
{
    struct sha256_ctx *c = sha256_begin();
    sha256_add(c, bytes, n);
    return sha256_end(c);
}

struct sha256 sha256_hmac(const char *key, const char *text)
{
    struct sha256 h;
    CHECK(HMAC(EVP_sha256(), key, (int)strlen(key), (const unsigned char *)text,
               strlen(text), h.b, NULL) != NULL);
    return h;
}

void sha256_hex(const struct sha256 *h, char out[65])
{
    static const char digit[] = "0123456789abcdef";
    for (int i = 0; i < 32; i++) {
        out[2 * i] = digit[h->b[i] >> 4];
        out[2 * i + 1] = digit[h->b[i] & 15];
    }
    out[64] = 0;
}

bool sha256_parse(const char *text, struct sha256 *out)
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < SHA256_HEX; i++) {
        const char *d = text[i] != 0 ? strchr(digits, text[i]) : NULL;
        if (d == NULL)
            return false;
        int low = (int)(d - digits);
        out->b[i / 2] = (uint8_t)(i % 2 == 0 ? low << 4 : out->b[i / 2] | low);
    }
    return true;
}
