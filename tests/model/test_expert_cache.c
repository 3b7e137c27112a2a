/* test_expert_cache.c - which expert leaves: decisions, and hits beside the rule that drops what
 * was used longest ago. */
#include "tests/unit.h"

#include <string.h>

#include "base/rng.h"
#include "model/expert_cache.h"

enum { LAYERS = 6, EXPERTS = 16, ALL = LAYERS * EXPERTS };

static struct expert_cache c;

/* Fills the slots with experts 0, 1, ... of a layer, each used `uses` times. */
static void fill(int layer, int n, int uses)
{
    for (int i = 0; i < n; i++) {
        int32_t expert = layer * EXPERTS + i;
        expert_cache_put(&c, expert_cache_victim(&c), expert);
        assert_true(expert_cache_has(&c, expert));
        for (int k = 0; k < uses; k++)
            expert_cache_use(&c, expert);
    }
}

static int32_t next_to_leave(void)
{
    return expert_cache_victim(&c) < 0 ? -1 : c.held[expert_cache_victim(&c)];
}

TEST(the_least_used_leaves_then_the_farthest)
{
    expert_cache_init(&c, LAYERS, EXPERTS, 6);
    fill(1, 2, 2);
    fill(2, 2, 1);
    fill(4, 2, 1);
    /* The pass is at layer 4: layer 2 comes after 5, 0 and 1, and layer 4 after a whole pass. */
    assert_int_equal(next_to_leave(), 4 * EXPERTS);
    c.pinned[c.slot_of[4 * EXPERTS]] = true;
    assert_int_equal(next_to_leave(), 4 * EXPERTS + 1);
    c.reading[c.slot_of[4 * EXPERTS + 1]] = true;
    assert_false(expert_cache_has(&c, 4 * EXPERTS + 1));
    assert_int_equal(next_to_leave(), 2 * EXPERTS);
    expert_cache_use(&c, 2 * EXPERTS);
    expert_cache_use(&c, 2 * EXPERTS + 1);
    /* Those that are not kept have equal uses now, and the pass is at layer 2: layer 1 is five
     * layers away, layer 2 a whole pass. */
    assert_int_equal(next_to_leave(), 2 * EXPERTS);
    for (int i = 0; i < c.n_slots; i++)
        c.pinned[i] = true;
    assert_int_equal(next_to_leave(), -1);
    expert_cache_unpin(&c);
    assert_int_equal(next_to_leave(), 4 * EXPERTS);
    expert_cache_put(&c, 3, -1); /* an empty slot comes before all others */
    assert_int_equal(expert_cache_victim(&c), 3);
    expert_cache_deinit(&c);
}

/* What an earlier text used often leaves in the end, though it was used more. */
TEST(old_uses_are_forgotten)
{
    expert_cache_init(&c, LAYERS, EXPERTS, 2);
    fill(0, 1, 60);
    fill(3, 1, 1);
    assert_int_equal(next_to_leave(), 3 * EXPERTS);
    int n_passes = 0;
    for (; next_to_leave() == 3 * EXPERTS && n_passes < 1000; n_passes++) {
        expert_cache_use(&c, 3 * EXPERTS);
        expert_cache_use(&c, 2 * EXPERTS + 5); /* of a lower layer: the next pass */
    }
    assert_in_range(n_passes, 20, 2 * EXPERT_CACHE_AGE);
    expert_cache_deinit(&c);
}

/* Passes of single tokens over experts of which few are common, or of prompts that use all: counts
 * the uses that find their expert, by this rule and by that of the longest unused. */
TEST(more_is_found_than_where_the_longest_unused_leaves)
{
    for (int whole = 0; whole < 2; whole++) {
        int32_t last[ALL] = {0}, lru[ALL / 2];
        int n_found = 0, n_lru = 0, now = 0;
        struct rng r = {7};

        memset(lru, -1, sizeof lru);
        expert_cache_init(&c, LAYERS, EXPERTS, ALL / 2);
        for (int pass = 0; pass < 400; pass++)
            for (int l = 0; l < LAYERS; l++)
                for (int i = 0; i < (whole ? EXPERTS : 4); i++) {
                    uint64_t u = rng_below(&r, EXPERTS), v = rng_below(&r, EXPERTS);
                    int32_t e = l * EXPERTS + (whole ? i : (int32_t)(u * v / EXPERTS));
                    int at = 0, oldest = 0;
                    for (; at < ALL / 2 && lru[at] != e; at++)
                        if (lru[at] < 0 ||
                            (lru[oldest] >= 0 && last[lru[at]] < last[lru[oldest]]))
                            oldest = at;
                    n_lru += at < ALL / 2;
                    lru[at < ALL / 2 ? at : oldest] = e;
                    last[e] = ++now;
                    n_found += expert_cache_has(&c, e);
                    expert_cache_use(&c, e);
                    if (!expert_cache_has(&c, e))
                        expert_cache_put(&c, expert_cache_victim(&c), e);
                }
        if (whole) { /* half of all stay, where the other rule finds none */
            assert_int_equal(n_lru, 0);
            assert_true(n_found > now * 45 / 100);
        } else {
            assert_true(n_found > n_lru && n_found > now * 3 / 4);
        }
        expert_cache_deinit(&c);
    }
}
