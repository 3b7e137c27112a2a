/* test_bytes.c - encodings on disk are little-endian, sizes never wrap, text is checked. */
#include "tests/unit.h"

#include <string.h>

#include "base/bytes.h"

TEST(encoding_is_little_endian)
{
    uint8_t b[8];
    put_u64(b, 0x0123456789abcdefu);
    static const uint8_t want[8] = {0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01};
    assert_memory_equal(b, want, 8);
    assert_true(get_u64(b) == 0x0123456789abcdefu);
    assert_int_equal(get_u32(b), 0x89abcdefu);
    assert_int_equal(get_u16(b), 0xcdef);
}

TEST(encoding_works_at_odd_addresses)
{
    uint8_t b[16];
    for (int i = 0; i < 8; i++) {
        memset(b, 0xaa, sizeof b);
        put_u32(b + i, UINT32_MAX - 1);
        assert_true(get_u32(b + i) == UINT32_MAX - 1);
        assert_int_equal(b[i + 4], 0xaa);
        put_u64(b + i, UINT64_MAX - 1);
        assert_true(get_u64(b + i) == UINT64_MAX - 1);
    }
}

TEST(rounding)
{
    assert_int_equal(round_up(0, 4096), 0);
    assert_int_equal(round_up(1, 4096), 4096);
    assert_int_equal(round_up(4096, 4096), 4096);
    assert_int_equal(round_up(4097, 4096), 8192);
}

TEST(arithmetic_tells_when_it_overflows)
{
    uint64_t out = 7;
    assert_true(mul_fits(1u << 31, 1u << 31, &out));
    assert_true(out == (uint64_t)1 << 62);
    assert_false(mul_fits((uint64_t)1 << 32, (uint64_t)1 << 32, &(uint64_t){0}));
    assert_true(add_fits(UINT64_MAX - 1, 1, &out));
    assert_true(out == UINT64_MAX);
    assert_false(add_fits(UINT64_MAX, 1, &(uint64_t){0}));
}
