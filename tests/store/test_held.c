/* test_held.c - the set of held names, compared with an array of counts. The table is small, so
 * that names collide. */

#include "tests/unit.h"
#include "base/rng.h"
#include "store/held.h"

enum { NAMES = 300, STEPS = 40000 };

/* Returns the i-th name. All names hash to one of 17 entries of the table, so they collide. */
static uint64_t name_of(int i)
{
    return ((uint64_t)i << 33) | ((uint64_t)(i % 17) << 1) | 1;
}

TEST(it_holds_what_a_list_of_counts_holds)
{
    struct held h = {0};
    struct rng r = {.s = 1};
    int count[NAMES] = {0};
    for (int step = 0; step < STEPS; step++) {
        int i = (int)rng_below(&r, NAMES);
        bool adds = rng_below(&r, 2) == 0;
        if (adds)
            held_add(&h, name_of(i));
        else
            held_remove(&h, name_of(i));
        if (adds || count[i] > 0)
            count[i] += adds ? 1 : -1;
        for (int j = 0; step % 50 == 0 && j < NAMES; j++)
            assert_int_equal(held_has(&h, name_of(j)), count[j] > 0);
    }
    for (int i = 0; i < NAMES; i++)
        while (count[i]-- > 0)
            held_remove(&h, name_of(i));
    assert_int_equal(h.n_used, 0);
    held_deinit(&h);
}
