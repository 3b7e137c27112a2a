/* test_replan.c - which layers change their kind of record during a restore. */

#include "tests/unit.h"
#include "base/rng.h"
#include "restore/replan.h"

/* Ten layers are left, all planned from hidden states. Hidden states have half the bytes of K and
 * V, and ten times the compute. */
static struct replan_view view(double comp_slow, double io_slow)
{
    return (struct replan_view){.n_left = 10,
                                .n_hidden = 10,
                                .io_h_s = 1 * io_slow,
                                .io_kv_s = 2 * io_slow,
                                .comp_h_s = 1 * comp_slow,
                                .comp_kv_s = 0.1 * comp_slow};
}

TEST(a_plan_that_holds_is_kept)
{
    struct replan_view v = view(1, 1);
    assert_int_equal(replan_hidden(&v), 10);
    v = view(3, 3); /* both lanes are slow, so their balance is unchanged */
    assert_int_equal(replan_hidden(&v), 10);
    v = view(1.1, 1); /* a difference within noise */
    assert_int_equal(replan_hidden(&v), 10);
    v.n_left = v.n_hidden = 0;
    assert_int_equal(replan_hidden(&v), 0);
}

/* Compute takes twice as long as planned. With 6 layers from hidden states the lanes take 14 and
 * 12.8, with 7 layers 13 and 14.6. */
TEST(slow_compute_gets_more_keys_and_values)
{
    struct replan_view v = view(2, 1);
    assert_int_equal(replan_hidden(&v), 6);
    v.comp_rest_s = 100; /* compute is far behind, so no layer is projected */
    assert_int_equal(replan_hidden(&v), 0);
    /* compute is so far behind that the kind of record does not matter: no layer changes */
    v.comp_rest_s = 1000;
    assert_int_equal(replan_hidden(&v), 10);
}

TEST(a_slow_disk_gets_more_hidden_states)
{
    struct replan_view v = view(1, 3);
    v.n_hidden = 2;
    assert_int_equal(replan_hidden(&v), 10);
    v.n_hidden = 10;
    assert_int_equal(replan_hidden(&v), 10);
    v.io_h_s = 8; /* with grouped heads hidden states are larger than K and V */
    assert_int_equal(replan_hidden(&v), 0);
}

/* A change never lengthens the longer lane, and is made only if it saves at least a tenth of the
 * remaining time. */
TEST(a_change_gains)
{
    struct rng r = {.s = 1};
    int n_changed = 0;
    for (int i = 0; i < 20000; i++) {
        struct replan_view v = {.n_left = (int)rng_below(&r, 30)};
        v.n_hidden = (int)rng_below(&r, (uint64_t)v.n_left + 1);
        v.io_h_s = rng_unit(&r);
        v.io_kv_s = rng_unit(&r);
        v.comp_h_s = rng_unit(&r);
        v.comp_kv_s = rng_unit(&r);
        v.io_rest_s = 5 * rng_unit(&r);
        v.comp_rest_s = 5 * rng_unit(&r);
        double s[31];
        for (int n = 0; n <= v.n_left; n++) {
            double io = v.io_rest_s + n * v.io_h_s + (v.n_left - n) * v.io_kv_s;
            double comp = v.comp_rest_s + n * v.comp_h_s + (v.n_left - n) * v.comp_kv_s;
            s[n] = io > comp ? io : comp;
        }
        int best = replan_hidden(&v);
        assert_in_range(best, 0, v.n_left);
        n_changed += best != v.n_hidden;
        assert_true(best == v.n_hidden || s[best] < 0.9 * s[v.n_hidden]);
        for (int n = 0; n <= v.n_left; n++)
            assert_true(s[n] >= (best == v.n_hidden ? 0.9 * s[best] : s[best]));
    }
    assert_true(n_changed > 1000);
}
