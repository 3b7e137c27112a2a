/* test_textbuf.c - a text that grows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/textbuf.h"

static void bytes_are_appended_in_order(void **state)
{
    (void)state;
    struct textbuf b = {0};
    textbuf_add(&b, "", 0);
    assert_int_equal(b.n, 0);
    assert_string_equal(b.p, ""); /* even an empty text is a string after the first call */
    textbuf_add(&b, "ab", 2);
    textbuf_add(&b, "\0c", 2);
    assert_int_equal(b.n, 4);
    assert_memory_equal(b.p, "ab\0c", 5); /* also compares the NUL byte after the text */
    textbuf_free(&b);
    assert_null(b.p);
    assert_int_equal(b.n, 0);
    assert_int_equal(b.cap, 0);
}

static void formatted_text_is_appended(void **state)
{
    (void)state;
    struct textbuf b = {0};
    textbuf_addf(&b, "%s", "");
    assert_int_equal(b.n, 0);
    textbuf_addf(&b, "%d-%s", 42, "x");
    textbuf_addf(&b, "%c", '!');
    assert_string_equal(b.p, "42-x!");
    assert_int_equal(b.n, 5);
    textbuf_free(&b);
}

/* For every length there is room for the bytes and the NUL, and the room grows by doubling. */
static void it_grows_with_its_text(void **state)
{
    (void)state;
    struct textbuf b = {0};
    size_t grown = 0;
    for (size_t i = 0; i < 5000; i++) {
        size_t cap = b.cap;
        char c = (char)('a' + i % 26);
        if (i % 2 == 0)
            textbuf_add(&b, &c, 1);
        else
            textbuf_addf(&b, "%c", c);
        grown += b.cap != cap;
        assert_int_equal(b.n, i + 1);
        assert_true(b.cap >= b.n + 1);
        assert_int_equal(b.p[b.n], 0);
    }
    assert_in_range(grown, 5, 13);
    for (size_t i = 0; i < 5000; i++)
        assert_int_equal(b.p[i], 'a' + i % 26);
    textbuf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_appended_in_order),
        cmocka_unit_test(formatted_text_is_appended),
        cmocka_unit_test(it_grows_with_its_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
