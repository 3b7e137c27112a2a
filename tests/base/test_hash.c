/* test_hash.c - published test vectors: hashes on disk must be the same on every machine. */
#include "tests/unit.h"

#include <string.h>

#include "base/hash.h"
#include "base/rng.h"

static void assert_digest(struct sha256_ctx *c, const char *want)
{
    struct sha256 h = sha256_end(c);
    char hex[65];
    sha256_hex(&h, hex);
    assert_string_equal(hex, want);
}

/* FIPS 180-2 */
TEST(sha256_vectors)
{
    assert_digest(sha256_begin(),
                  "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    struct sha256_ctx *c = sha256_begin();
    sha256_add(c, "a", 1);
    sha256_add(c, "bc", 2);
    assert_digest(c, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

/* The digest was computed with Python's hashlib. Tag and bytes are hashed in this order, each after
 * its length as 8 little-endian bytes. */
TEST(sha256_fields)
{
    struct sha256_ctx *c = sha256_begin();
    sha256_field(c, "a", "bc", 2);
    sha256_field(c, "", "", 0);
    assert_digest(c, "61c3399e8b9dab288df6bd67101099433d8498df9ca47d1291368d8742cdb252");
}

static struct sha256 two_fields(const char *a, const char *b)
{
    struct sha256_ctx *c = sha256_begin();
    sha256_field(c, "t", a, strlen(a));
    sha256_field(c, "t", b, strlen(b));
    return sha256_end(c);
}

TEST(fields_do_not_run_together)
{
    struct sha256 x = two_fields("ab", "c"), y = two_fields("a", "bc");
    assert_memory_not_equal(x.b, y.b, 32);
}

/* The vectors of the xxHash reference, seed 0. */
TEST(checksum_vectors)
{
    assert_true(checksum64("", 0) == 0x2d06800538d394c2u);
    assert_true(checksum64("abc", 3) == 0x78af5f94892f3950u);
}

TEST(checksum_sees_every_bit)
{
    uint8_t bytes[300];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7);
    uint64_t was = checksum64(bytes, sizeof bytes);
    for (size_t bit = 0; bit < 8 * sizeof bytes; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_true(checksum64(bytes, sizeof bytes) != was);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_true(checksum64(bytes, sizeof bytes - 1) != was);
}

/* splitmix64's published sequence for seed 0. */
TEST(rng_vectors)
{
    struct rng r = {0};
    assert_true(rng_u64(&r) == 0xe220a8397b1dcdafu);
    assert_true(rng_u64(&r) == 0x6e789e6aa1b965f4u);
    assert_true(rng_u64(&r) == 0x06c45d188009454fu);
}

TEST(rng_stays_in_range_and_is_even)
{
    struct rng r = {.s = 42};
    int seen[7] = {0};
    double sum = 0;
    for (int i = 0; i < 70000; i++) {
        seen[rng_below(&r, 7)]++;
        double u = rng_unit(&r);
        assert_true(u >= 0 && u < 1);
        sum += u;
    }
    for (int i = 0; i < 7; i++)
        /* 10000 +- 400: over 4 standard deviations (93) */
        assert_in_range(seen[i], 9600, 10400);
    assert_true(sum / 70000 > 0.495 && sum / 70000 < 0.505);
    for (int i = 0; i < 100; i++)
        assert_int_equal(rng_below(&r, 1), 0);
}

/* checksum64 must leave the upper halves of the vector registers zero: otherwise later SSE code is
 * slow (see checksum64). */
TEST(checksum_leaves_no_vector_state)
{
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx")) {
        print_message("skipped: this CPU has no AVX\n");
        skip();
    }
    static uint8_t bytes[65536];
    float upper[8][4];
    struct rng r = {4};
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)rng_u64(&r);
    uint64_t sum = checksum64(bytes, sizeof bytes);
    __asm__ volatile("vextractf128 $1, %%ymm0, %0\n\tvextractf128 $1, %%ymm1, %1\n\t"
                     "vextractf128 $1, %%ymm2, %2\n\tvextractf128 $1, %%ymm3, %3\n\t"
                     "vextractf128 $1, %%ymm4, %4\n\tvextractf128 $1, %%ymm5, %5\n\t"
                     "vextractf128 $1, %%ymm6, %6\n\tvextractf128 $1, %%ymm7, %7"
                     : "=m"(upper[0]), "=m"(upper[1]), "=m"(upper[2]), "=m"(upper[3]),
                       "=m"(upper[4]), "=m"(upper[5]), "=m"(upper[6]), "=m"(upper[7])
                     : "r"(sum));
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 4; k++)
            assert_true(upper[i][k] == 0);
#else
    print_message("skipped: not x86-64\n");
    skip();
#endif
}
