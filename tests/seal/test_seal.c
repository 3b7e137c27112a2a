/* test_seal.c - sealed bytes equal an independent program's, and only their own seal opens them. */
#include "seal/seal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 100, SEALED = N + SEAL_BYTES };

static struct seal *seal_of(uint8_t first, const char *id)
{
    uint8_t secret[SEAL_KEY_BYTES];
    for (int i = 0; i < SEAL_KEY_BYTES; i++)
        secret[i] = (uint8_t)(first + i);
    return seal_new(secret, id, 16);
}

static void some(uint8_t *out, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = (uint8_t)(i % 251);
}

static void sealed(const struct seal *s, uint8_t out[SEALED])
{
    uint8_t run[N], salt[SEAL_SALT_BYTES];
    some(run, N);
    for (int i = 0; i < SEAL_SALT_BYTES; i++)
        salt[i] = (uint8_t)(100 + i);
    seal_run(s, "name", 4, salt, run, N, out);
}

/* The expected bytes are those of Python's cryptography 50: HKDF, HKDFExpand, AESGCM, and XTS. */
static void bytes_are_those_of_another_program(void **state)
{
    (void)state;
    static const uint8_t head[8] = {0x6f, 0x18, 0x6a, 0xd1, 0xd6, 0x39, 0x47, 0xdc},
                         tag[16] = {0xc6, 0x32, 0x6f, 0xd9, 0x51, 0xef, 0x54, 0xf1,
                                    0xb4, 0xf9, 0x11, 0xff, 0xd9, 0xc7, 0xd3, 0x26};
    static const uint8_t page[40] = {
        0xe7, 0x0e, 0x97, 0xe2, 0xb2, 0x97, 0xce, 0x4a, 0x31, 0xe6, 0xeb, 0x9b, 0x2c, 0xb5,
        0x76, 0x6f, 0x7d, 0xca, 0x4c, 0x4f, 0xb2, 0x20, 0x48, 0x0a, 0xf6, 0xee, 0x8b, 0x15,
        0xd7, 0xde, 0xf7, 0x5b, 0xfd, 0x39, 0xd0, 0x17, 0x40, 0xbf, 0x26, 0xd7};
    struct seal *s = seal_of(0, "sixteen byte id.");
    uint8_t out[SEALED], p[40];
    sealed(s, out);
    assert_memory_equal(out, head, sizeof head);
    assert_memory_equal(out + SEALED - 16, tag, sizeof tag);
    some(p, sizeof p);
    seal_page(s, 3, 7, p, sizeof p);
    assert_memory_equal(p, page, sizeof page);
    seal_free(s);
}

/* Any other bit, name, length, secret or id is refused. In place is as good as elsewhere. */
static void opens_only_what_was_sealed(void **state)
{
    (void)state;
    struct seal *s = seal_of(0, "sixteen byte id."), *key = seal_of(1, "sixteen byte id."),
                *id = seal_of(0, "another store id");
    uint8_t out[SEALED], good[SEALED], run[N], back[SEALED];
    sealed(s, good);
    some(run, N);
    memcpy(out, good, SEALED);
    assert_true(seal_run_open(s, "name", 4, out, SEALED, out));
    assert_memory_equal(out, run, N);
    for (int bit = 0; bit < 8 * SEALED; bit++) {
        memcpy(out, good, SEALED);
        out[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_false(seal_run_open(s, "name", 4, out, SEALED, back));
    }
    assert_false(seal_run_open(s, "nama", 4, good, SEALED, back));
    assert_false(seal_run_open(s, "name", 4, good + 1, SEALED - 1, back));
    assert_false(seal_run_open(s, "name", 4, good, SEAL_BYTES - 1, back));
    assert_false(seal_run_open(key, "name", 4, good, SEALED, back));
    assert_false(seal_run_open(id, "name", 4, good, SEALED, back));
    assert_true(seal_mark(s) != seal_mark(key) && seal_mark(s) != seal_mark(id));
    seal_free(s);
    seal_free(key);
    seal_free(id);
}

/* A page opens at its own place only. */
static void pages_have_places(void **state)
{
    (void)state;
    struct seal *s = seal_of(0, "sixteen byte id.");
    uint8_t plain[40], p[40];
    some(plain, sizeof plain);
    for (int i = 0; i < 3; i++) {
        some(p, sizeof p);
        seal_page(s, 3, 7, p, sizeof p);
        seal_page_open(s, i == 1 ? 4 : 3, i == 2 ? 8 : 7, p, sizeof p);
        assert_int_equal(memcmp(p, plain, sizeof p) == 0, i == 0);
    }
    seal_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_those_of_another_program),
        cmocka_unit_test(opens_only_what_was_sealed),
        cmocka_unit_test(pages_have_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
