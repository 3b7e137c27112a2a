/* test_memory.c - answers are found by their text, within bounds, and never across salts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/memory.h"

static void put(struct memory *m, const char *salt, const char *text, int32_t id)
{
    const int32_t ids[] = {id, id + 1};
    memory_put(m, salt, text, strlen(text), ids, 2);
}

/* The first id of what is found, with its length; 0: nothing. */
static int32_t find(struct memory *m, const char *salt, const char *text, size_t *n)
{
    int32_t *ids, first;
    int n_ids;
    if (!memory_find(m, salt, text, strlen(text), n, &ids, &n_ids))
        return 0;
    assert_int_equal(n_ids, 2);
    first = ids[0];
    free(ids);
    return first;
}

static void the_longest_beginning_is_found(void **state)
{
    (void)state;
    struct memory *m;
    size_t n;
    memory_create(8, 1 << 20, &m);
    assert_int_equal(find(m, NULL, "anything", &n), 0);
    put(m, NULL, "one", 10);
    put(m, NULL, "one two", 20);
    put(m, NULL, "one two and", 30);
    assert_int_equal(find(m, NULL, "one two three", &n), 20);
    assert_int_equal(n, strlen("one two"));
    assert_int_equal(find(m, NULL, "one two", &n), 20);
    assert_int_equal(find(m, NULL, "one tw", &n), 10);
    assert_int_equal(find(m, NULL, "on", &n), 0);
    put(m, NULL, "one two", 40); /* the newer one counts */
    assert_int_equal(find(m, NULL, "one two three", &n), 40);
    memory_destroy(m);
}

static void salts_do_not_meet(void **state)
{
    (void)state;
    struct memory *m;
    size_t n;
    memory_create(8, 1 << 20, &m);
    put(m, "a", "text", 1);
    put(m, NULL, "text", 5);
    assert_int_equal(find(m, "a", "text!", &n), 1);
    assert_int_equal(n, 4);
    assert_int_equal(find(m, "b", "text!", &n), 0);
    assert_int_equal(find(m, NULL, "text!", &n), 5);
    memory_destroy(m);
}

static void the_least_used_goes_first(void **state)
{
    (void)state;
    struct memory *m;
    size_t n;
    char text[16];
    memory_create(4, 1 << 20, &m);
    for (int i = 0; i < 4; i++) {
        snprintf(text, sizeof text, "%d", i);
        put(m, NULL, text, 10 + i);
    }
    assert_int_equal(find(m, NULL, "0", &n), 10);
    put(m, NULL, "new", 50);
    assert_int_equal(find(m, NULL, "1", &n), 0);
    assert_int_equal(find(m, NULL, "0", &n), 10);
    assert_int_equal(find(m, NULL, "new", &n), 50);
    memory_destroy(m);
}

static void bytes_are_bounded(void **state)
{
    (void)state;
    struct memory *m;
    size_t n;
    memory_create(100, 40, &m); /* an entry here takes 1 + 10 + 8 bytes */
    put(m, NULL, "aaaaaaaaaa", 1);
    put(m, NULL, "bbbbbbbbbb", 2);
    put(m, NULL, "cccccccccc", 3);
    assert_int_equal(find(m, NULL, "aaaaaaaaaa", &n), 0);
    assert_int_equal(find(m, NULL, "cccccccccc", &n), 3);
    put(m, NULL, "far too long to be remembered by so small a memory", 4);
    assert_int_equal(find(m, NULL, "cccccccccc", &n), 3);
    memory_destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_beginning_is_found),
        cmocka_unit_test(salts_do_not_meet),
        cmocka_unit_test(the_least_used_goes_first),
        cmocka_unit_test(bytes_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
