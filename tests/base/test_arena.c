/* test_arena.c - allocations are aligned, do not overlap, and are bounded. */
#include "tests/unit.h"

#include <string.h>

#include "base/arena.h"
#include "base/mem.h"

TEST(allocations_are_aligned_and_apart)
{
    struct arena a;
    assert_int_equal(arena_init(&a, 1 << 20), 0);
    char *last_end = NULL;
    for (size_t n = 0; n < 200; n++) {
        char *p = arena_alloc(&a, n);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        assert_true(last_end == NULL || p >= last_end);
        memset(p, (int)n, n);
        last_end = p + n;
    }
    arena_deinit(&a);
    assert_null(a.base);
}

TEST(the_bound_holds)
{
    struct arena a;
    assert_int_equal(arena_init(&a, 100), 0);
    assert_null(arena_alloc(&a, 101));
    assert_null(arena_alloc(&a, SIZE_MAX));
    assert_null(arena_strndup(&a, "", SIZE_MAX));
    assert_non_null(arena_alloc(&a, 100));
    assert_null(arena_alloc(&a, 1));
    /* aligning the next free position leads beyond the arena's end */
    assert_null(arena_alloc(&a, 0));
    arena_deinit(&a);
}

TEST(copies_end_with_a_zero)
{
    struct arena a;
    assert_int_equal(arena_init(&a, 4096), 0);
    assert_string_equal(arena_strndup(&a, "hello world", 5), "hello");
    arena_deinit(&a);
}

TEST(mapped_memory_is_aligned_and_zero)
{
    char *p = mem_map(10000);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 4096, 0);
    for (int i = 0; i < 10000; i++)
        assert_int_equal(p[i], 0);
    mem_unmap(p, 10000);
    mem_unmap(NULL, 0);
}
