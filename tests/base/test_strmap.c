/* test_strmap.c - a map from byte strings to ids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_has_its_first_id),
        cmocka_unit_test(keys_differ_by_length_and_bytes),
        cmocka_unit_test(a_full_map_is_half_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
