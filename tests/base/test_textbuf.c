/* test_textbuf.c - a text that grows. */

#include "tests/unit.h"

#include <string.h>

#include "base/textbuf.h"
#include "tests/base/memtest.h"

TEST(bytes_are_appended_in_order)
{
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

TEST(formatted_text_is_appended)
{
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
TEST(it_grows_with_its_text)
{
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

/* The room is twice what is needed when it grows, and stays while it suffices. */
TEST(the_room_doubles)
{
    struct textbuf b[3] = {{0}};
    static const struct {
        size_t add, room;
    } steps[] = {{0, 2}, {1, 2}, {1, 6}, {3, 6}, {1, 14}, {7, 14}, {0, 14}, {100, 228}};
    char bytes[100];
    memset(bytes, 'b', sizeof bytes);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        textbuf_add(&b[0], bytes, steps[i].add);
        assert_true(textbuf_try_add(&b[1], bytes, steps[i].add));
        if (steps[i].add > 0)
            textbuf_addf(&b[2], "%.*s", (int)steps[i].add, bytes);
        else
            textbuf_add(&b[2], "", 0);
        for (int k = 0; k < 3; k++)
            assert_int_equal(b[k].cap, steps[i].room);
    }
    for (int k = 0; k < 3; k++) {
        assert_int_equal(b[k].n, 113);
        assert_int_equal(strspn(b[k].p, "b"), 113);
        assert_int_equal(b[k].p[113], 0);
        textbuf_free(&b[k]);
    }
}

/* Without memory the text stays as it is, and what fits into its room still comes in. */
TEST(a_text_survives_a_lack_of_memory)
{
    struct textbuf b = {0};
    memtest_start(MEMTEST_MAY_FAIL, 1, false);
    assert_false(textbuf_try_add(&b, "ab", 2));
    memtest_stop();
    assert_null(b.p);
    assert_int_equal(b.n + b.cap, 0);
    assert_true(textbuf_try_add(&b, "ab", 2)); /* has room for five bytes and NUL */
    memtest_start(MEMTEST_MAY_FAIL, 1, false);
    assert_true(textbuf_try_add(&b, "cde", 3));
    assert_false(textbuf_try_add(&b, "f", 1));
    memtest_stop();
    assert_string_equal(b.p, "abcde");
    assert_int_equal(b.n, 5);
    assert_int_equal(b.cap, 6);
    textbuf_free(&b);
}

int main(void)
{
    memtest_init();
    return unit_run(NULL, NULL);
}
