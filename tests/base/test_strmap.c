/* test_strmap.c - a map from byte strings to ids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/strmap.h"

static void a_key_has_its_first_id(void **state)
{
    (void)state;
    struct strmap m;
    strmap_init(&m, 4);
    assert_int_equal(strmap_find(&m, "a", 1), -1);
    assert_int_equal(strmap_add(&m, "a", 1, 7), 7);
    assert_int_equal(strmap_add(&m, "a", 1, 9), 7);
    assert_int_equal(m.count, 1);
    assert_int_equal(strmap_find(&m, "a", 1), 7);
    strmap_deinit(&m);
    strmap_deinit(&m); /* also accepts a zeroed map */
}

/* Keys are bytes with a length: prefixes, the empty key, and keys with NUL bytes are distinct. */
static void keys_differ_by_length_and_bytes(void **state)
{
    (void)state;
    static const char bytes[] = "ab\0c";
    struct strmap m;
    strmap_init(&m, 5);
    for (int n = 0; n <= 4; n++)
        assert_int_equal(strmap_add(&m, bytes, (size_t)n, n), n);
    for (int n = 0; n <= 4; n++)
        assert_int_equal(strmap_find(&m, bytes, (size_t)n), n);
    assert_int_equal(strmap_find(&m, "b", 1), -1);
    strmap_deinit(&m);
}

/* At most half of the slots are used, for any number of keys. */
static void a_full_map_is_half_full(void **state)
{
    (void)state;
    static char text[1000][8];
    for (int i = 0; i < 1000; i++)
        snprintf(text[i], sizeof text[i], "k%d", i);
    for (size_t max = 0; max <= 1000; max += max < 70 ? 1 : 93) {
        struct strmap m;
        strmap_init(&m, max);
        size_t slots = m.mask + 1;
        assert_int_equal(slots & m.mask, 0); /* a power of two */
        assert_true(slots >= 16 && slots >= 2 * max && (slots == 16 || slots < 4 * max));
        for (size_t i = 0; i < max; i++)
            strmap_add(&m, text[i], 1 + (i > 9) + (i > 99) + 1, (int32_t)i);
        for (size_t i = 0; i < 1000; i++)
            assert_int_equal(strmap_find(&m, text[i], 1 + (i > 9) + (i > 99) + 1),
                             i < max ? (int)i : -1);
        assert_int_equal(m.count, max);
        strmap_deinit(&m);
    }
}

/* A reserved map keeps its keys, at least doubles its room, and never loses room. */
static void a_map_grows(void **state)
{
    (void)state;
    static char text[1000][8];
    static const struct {
        size_t reserve, room;
    } steps[] = {{0, 0},   {3, 3},   {3, 3},     {4, 6},     {6, 6},    {7, 12},
                 {30, 30}, {31, 60}, {121, 121}, {122, 242}, {50, 242}, {1000, 1000}};
    struct strmap m = {0};
    size_t n = 0;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        strmap_reserve(&m, steps[i].reserve);
        assert_int_equal(m.max, steps[i].room);
        assert_true(m.slots == NULL || m.mask + 1 >= 2 * m.max);
        for (; n < m.max; n++) {
            int k = snprintf(text[n], sizeof text[n], "k%zu", n);
            assert_int_equal(strmap_add(&m, text[n], (size_t)k, (int32_t)n), n);
        }
        assert_int_equal(m.count, n);
        for (size_t j = 0; j < n; j++)
            assert_int_equal(strmap_find(&m, text[j], strlen(text[j])), j);
    }
    strmap_deinit(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_has_its_first_id),
        cmocka_unit_test(keys_differ_by_length_and_bytes),
        cmocka_unit_test(a_full_map_is_half_full),
        cmocka_unit_test(a_map_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
