/* test_expiry.c - the heap of expiry times, compared with a list that is searched. */
#include "tests/unit.h"
#include "base/rng.h"
#include "store/catalog.h"
#include "store/expiry.h"

enum { N = 300 };

static struct chunk_node node[N];
static uint32_t time_of[N]; /* 0: the node has no entry */

/* Checks that each entry points to its node, and that the first entry is the earliest. */
static void expect_heap(const struct expiry *x)
{
    uint32_t n = 0, least = UINT32_MAX;
    for (int i = 0; i < N; i++) {
        uint32_t at = node[i].expiry_at;
        assert_int_equal(at != 0, time_of[i] != 0);
        if (at == 0)
            continue;
        n++;
        least = time_of[i] < least ? time_of[i] : least;
        assert_in_range(at, 1, x->n);
        assert_ptr_equal(x->entry[at - 1].node, &node[i]);
        assert_int_equal(x->entry[at - 1].at_s, time_of[i]);
    }
    assert_int_equal(x->n, n);
    if (n == 0)
        assert_null(expiry_first(x));
    else
        assert_int_equal(expiry_first(x)->at_s, least);
}

/* Empties the heap. Checks that entries come in the order of their times. */
static void drain(struct expiry *x)
{
    uint32_t before = 0;
    for (const struct expiry_entry *e; (e = expiry_first(x)) != NULL;) {
        assert_true(e->at_s >= before);
        before = e->at_s;
        time_of[e->node - node] = 0;
        expiry_clear(x, e->node);
    }
    expect_heap(x);
}

TEST(entries_come_in_the_order_of_their_times)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct expiry x = {0};
        struct rng r = {seed};
        uint32_t most = seed % 2 ? 20 : 1000000; /* many equal times, or hardly any */
        for (int k = 0; k < 1000; k++) {
            int i = (int)rng_below(&r, seed % 3 ? N : 8);
            if (rng_below(&r, 5) < (seed % 4)) {
                expiry_clear(&x, &node[i]);
                time_of[i] = 0;
            } else {
                time_of[i] = 1 + (uint32_t)rng_below(&r, most);
                expiry_set(&x, &node[i], time_of[i]);
            }
            expect_heap(&x);
        }
        drain(&x);
        expiry_deinit(&x);
        assert_null(expiry_first(&x));
    }
}
