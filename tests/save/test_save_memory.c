/* test_save_memory.c - memory for chunks to be saved: the first gap that is large enough is taken,
 * and nothing beyond the bound. */
#include <string.h>

#include "tests/unit.h"
#include "save/save_memory.h"

enum { A = SAVE_MEMORY_ALIGN };

static struct save_memory memory_of(size_t n_bytes, size_t min_bytes)
{
    struct save_memory m;
    assert_int_equal(save_memory_init(&m, n_bytes, min_bytes), 0);
    return m;
}

TEST(memory_is_taken_up_to_its_end)
{
    struct save_memory m = memory_of(10 * A, A);
    assert_int_equal(m.n_bytes, 10 * A);
    assert_int_equal(m.n_runs, 0);
    uint8_t *a = save_memory_take(&m, 4 * A), *b = save_memory_take(&m, 5 * A);
    assert_ptr_equal(a, m.base);
    assert_ptr_equal(b, m.base + 4 * A);
    assert_null(save_memory_take(&m, A + 1));
    assert_int_equal(m.n_runs, 2);
    uint8_t *c = save_memory_take(&m, A);
    assert_ptr_equal(c, m.base + 9 * A);
    assert_null(save_memory_take(&m, 1));
    memset(m.base, 7, m.n_bytes);
    save_memory_give(&m, a);
    save_memory_give(&m, c);
    save_memory_give(&m, b);
    assert_int_equal(m.n_runs, 0);
    assert_ptr_equal(save_memory_take(&m, 10 * A), m.base);
    assert_null(save_memory_take(&m, 1));
    save_memory_deinit(&m);
    assert_null(m.base);
    save_memory_deinit(&m);
}

/* Sizes are rounded up, so every run is aligned. */
TEST(runs_are_aligned)
{
    struct save_memory m = memory_of(3 * A - 1, 1);
    assert_int_equal(m.n_bytes, 3 * A);
    assert_ptr_equal(save_memory_take(&m, 1), m.base);
    assert_ptr_equal(save_memory_take(&m, A + 1), m.base + A);
    assert_null(save_memory_take(&m, 1));
    assert_int_equal(m.runs[0].n_bytes, A);
    assert_int_equal(m.runs[1].n_bytes, 2 * A);
    save_memory_deinit(&m);
}

/* A gap is used by the next run that fits it. */
TEST(gaps_are_filled)
{
    struct save_memory m = memory_of(12 * A, A);
    uint8_t *at[6];
    for (int i = 0; i < 6; i++)
        at[i] = save_memory_take(&m, 2 * A);
    save_memory_give(&m, at[1]);
    save_memory_give(&m, at[3]);
    save_memory_give(&m, at[4]);
    assert_null(save_memory_take(&m, 5 * A));
    assert_ptr_equal(save_memory_take(&m, 3 * A), at[3]); /* the first gap is too small */
    assert_ptr_equal(save_memory_take(&m, A), at[1]);
    assert_ptr_equal(save_memory_take(&m, A), at[1] + A);
    assert_ptr_equal(save_memory_take(&m, A), at[3] + 3 * A);
    assert_null(save_memory_take(&m, A));
    static const size_t want[][2] = {{0, 2}, {2, 1}, {3, 1}, {4, 2},
                                     {6, 3}, {9, 1}, {10, 2}};
    assert_int_equal(m.n_runs, 7);
    for (int i = 0; i < 7; i++) { /* in the order of their addresses */
        assert_int_equal(m.runs[i].at, want[i][0] * A);
        assert_int_equal(m.runs[i].n_bytes, want[i][1] * A);
    }
    save_memory_give(&m, at[0]);
    assert_ptr_equal(save_memory_take(&m, 2 * A), at[0]);
    save_memory_deinit(&m);
}

/* There may be as many runs as the smallest ones that fit. */
TEST(the_smallest_runs_fill_the_memory)
{
    struct save_memory m = memory_of(50 * A, A);
    assert_in_range(m.max_runs, 50, 51);
    for (int i = 0; i < 50; i++)
        assert_ptr_equal(save_memory_take(&m, A), m.base + i * A);
    assert_null(save_memory_take(&m, A));
    for (int i = 49; i >= 0; i--)
        save_memory_give(&m, m.base + i * A);
    save_memory_deinit(&m);
}
