/* Entries of the list of erasures are decoded as they were encoded. All other bytes are refused. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/bytes.h"
#include "store/remote/erasure.h"

static struct sha256 room[ERASURE_MAX_KEYS];

TEST(come_back)
{
    static const int sizes[] = {0, 1, 7, ERASURE_MAX_KEYS};
    struct sha256 *keys = calloc(ERASURE_MAX_KEYS, sizeof *keys);
    for (int i = 0; i < ERASURE_MAX_KEYS; i++)
        put_u32(keys[i].b, (uint32_t)i + 1);
    for (int i = 0; i < 12; i++) {
        struct erasure in = {.server = 77,
                             .is_owner = i / 4 == 1,
                             .is_text = i / 4 == 2,
                             .owner = 5,
                             .n = sizes[i % 4]};
        struct erasure out = {.keys = room};
        in.keys = keys;
        size_t n = erasure_bytes(in.n);
        uint8_t *bytes = malloc(n);
        erasure_encode(&in, bytes);
        assert_int_equal(erasure_decode(bytes, n, &out, NULL), 0);
        assert_true(out.server == 77 && out.is_owner == in.is_owner &&
                    out.is_text == in.is_text && out.owner == 5);
        assert_int_equal(out.n, in.n);
        assert_memory_equal(out.keys, keys, (size_t)in.n * sizeof keys[0]);
        free(bytes);
    }
    free(keys);
}

TEST(nothing_else_does)
{
    struct sha256 keys[3] = {{.b = {1}}, {.b = {2}}, {.b = {3}}};
    struct erasure in = {.server = 1, .n = 3, .keys = keys}, out = {.keys = room};
    struct err err = {0};
    size_t n = erasure_bytes(3);
    uint8_t *bytes = malloc(n);
    erasure_encode(&in, bytes);
    for (size_t i = 0; i < 8 * n; i++) {
        bytes[i / 8] ^= (uint8_t)(1u << i % 8);
        int rc = erasure_decode(bytes, n, &out, &err);
        assert_true(rc == ERR_CORRUPT || rc == ERR_FORMAT);
        bytes[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    for (size_t k = 0; k < n; k++) {
        /* exact size, so that a sanitizer sees reads beyond it */
        uint8_t *cut = malloc(k > 0 ? k : 1);
        memcpy(cut, bytes, k);
        assert_int_not_equal(erasure_decode(cut, k, &out, &err), 0);
        free(cut);
    }
    free(bytes);
}

/* An entry whose checksum is right, but which claims more keys than it has room for, is refused. */
TEST(counts_are_bounded)
{
    static const uint64_t counts[] = {ERASURE_MAX_KEYS + 1, 1, UINT64_MAX, 1ull << 59};
    struct erasure in = {.server = 1}, out = {.keys = room};
    struct err err = {0};
    uint8_t bytes[64];
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        size_t n = erasure_bytes(0);
        erasure_encode(&in, bytes);
        put_u64(bytes + 32, counts[i]);
        put_u64(bytes + n - 8, checksum64(bytes, n - 8));
        assert_int_equal(erasure_decode(bytes, n, &out, &err), ERR_CORRUPT);
        assert_string_equal(err.msg, "an erasure has a field out of range");
    }
}

/* An entry of an unknown kind is refused: there are three kinds of erasures. */
TEST(kinds_are_bounded)
{
    struct erasure in = {.server = 1}, out = {.keys = room};
    uint8_t bytes[64];
    size_t n = erasure_bytes(0);
    assert_int_equal(n, 48);
    for (uint64_t kind = 0; kind < 5; kind++) {
        struct err err = {0};
        erasure_encode(&in, bytes);
        put_u64(bytes + 16, kind);
        put_u64(bytes + n - 8, checksum64(bytes, n - 8));
        assert_int_equal(erasure_decode(bytes, n, &out, &err), kind < 3 ? 0 : ERR_CORRUPT);
        if (kind > 2)
            continue;
        assert_int_equal(out.is_owner, kind == 1);
        assert_int_equal(out.is_text, kind == 2);
    }
    struct err err = {0};
    assert_int_equal(erasure_decode(bytes, n - 1, &out, &err), ERR_FORMAT);
    assert_string_equal(err.msg, "no erasure");
    bytes[40] ^= 1;
    assert_int_equal(erasure_decode(bytes, n, &out, &err), ERR_CORRUPT);
    assert_string_equal(err.msg, "an erasure's checksum does not hold");
}
