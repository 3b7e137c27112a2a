/* test_plan_splits.c - contexts that have lost some of their records: the cost of short runs of
 * chunks (splits), plans that avoid it, and restores that teach it. */
#include <string.h>

#include "tests/unit.h"
#include <math.h>

#include "base/rng.h"
#include "restore/correction.h"
#include "restore/plan.h"
#include "restore/surprise.h"

enum { L = 8, MOST = 64, H = PLAN_HAS_H, K = PLAN_HAS_KV, BOTH = H | K };

/* The platform of these tests. */
static struct platform p;
static struct plan_layer layer[L];
static double prefill_s[L];
static struct plan_request req;
static struct plan plan;
static struct err e;
static uint8_t masks[MOST][L];
static struct plan_range range[MOST];

/* Makes a platform whose store is in DRAM, so that reading takes no time. */
static void begin(void)
{
    platform_init(&p);
    p.n_layers = L;
    p.h_bytes = 1024;
    p.kv_bytes = 2048;
    p.c_tok.b_s = 1e-5;
    p.c_h.b_s = 2e-7;
    p.c_kv.b_s = 1e-7;
    p.n_tiers = 1;
    p.tier[0].bytes_per_s = 1e12;
}

/* Makes n ranges of one chunk. Range g has the records kinds[g % n_kinds] in every layer. */
static void context(int n, const uint8_t *kinds, int n_kinds)
{
    for (int g = 0; g < n; g++) {
        memset(masks[g], kinds[g % n_kinds], L);
        range[g] = (struct plan_range){.n_tokens = 64, .mask = masks[g]};
    }
}

/* Plans the context of n ranges by a method. Returns the number of ranges that the plan uses. */
static int make(const char *method, int n, struct plan_window w)
{
    int n_used = 0;
    req = (struct plan_request){.n_layers = L, .window = w};
    assert_int_equal(plan_mode_parse(method, &req, &e), 0);
    assert_int_equal(
        plan_best_prefix(&p, range, n, 0, true, layer, prefill_s, &req, &plan, &n_used, &e),
        0);
    return n_used;
}

static const struct plan_window no_window;

/* The same records of the same number of tokens cost more in 32 runs than in two. */
TEST(short_runs_cost_more)
{
    begin();
    context(32, (uint8_t[]){H, K}, 2);
    assert_int_equal(make("kv", 32, no_window), 32);
    double in_turns_s = plan.restore_s;
    for (int g = 0; g < 32; g++)
        memset(masks[g], g < 16 ? H : K, L);
    assert_int_equal(make("kv", 32, no_window), 32);
    assert_int_equal(layer[3].kv_splits, 1);
    assert_true(fabs(in_turns_s - plan.restore_s - L * 30 * p.split_s) < 1e-9);
}

/* A layer's letter decides where it is split: a chunk with both kinds continues a run of either
 * kind. */
TEST(both_kinds_split_no_run_of_the_letter)
{
    begin();
    context(32, (uint8_t[]){H, BOTH}, 2);
    assert_int_equal(make("kv", 32, no_window), 32);
    assert_int_equal(layer[3].kv_splits, 31);
    assert_int_equal(layer[3].h_splits, 0);
    context(32, (uint8_t[]){K, BOTH, BOTH, BOTH}, 4);
    assert_int_equal(make("kv", 32, no_window), 32);
    assert_int_equal(layer[3].kv_splits, 0);
    assert_int_equal(layer[3].h_splits, 15);
}

/* Every other chunk has lost its K and V. Counting rows alone, loading K and V where they are left
 * is faster than projecting all chunks. With the cost of splits it is slower. */
TEST(whole_runs_are_preferred)
{
    begin();
    context(32, (uint8_t[]){H, BOTH}, 2);
    p.split_s = 0;
    assert_int_equal(make("auto", 32, no_window), 32);
    assert_int_equal(plan.n_k, L);
    p.split_s = PLATFORM_SPLIT_S;
    assert_int_equal(make("auto", 32, no_window), 32);
    assert_int_equal(plan.n_h, L - 1);
    assert_int_equal(plan.n_r, 1); /* layer 0 is recomputed from token ids */
}

/* Every letter that reads has splits here, so recomputing this small model is the fastest. */
TEST(recomputing_avoids_splits)
{
    begin();
    p.c_tok.b_s = 3e-7;
    context(32, (uint8_t[]){H, K}, 2);
    p.split_s = 0;
    assert_int_equal(make("auto", 32, no_window), 32);
    assert_int_equal(plan.n_r, 0);
    p.split_s = PLATFORM_SPLIT_S;
    (void)make("auto", 32, no_window);
    assert_int_equal(plan.n_k + plan.n_h, 0);
}

/* A layer with a window is split only inside the window. */
TEST(splits_before_a_window_are_free)
{
    begin();
    context(32, (uint8_t[]){H, K}, 2);
    assert_int_equal(
        make("kv", 32, (struct plan_window){layer_set_run(4, PLAN_MAX_LAYERS), 640}), 32);
    assert_int_equal(layer[3].kv_splits, 31);
    assert_int_equal(layer[4].kv_splits, 9); /* ten chunks in the window */
}

/* ---- learning ---- */

/* Restores the context of n ranges by KV, on a machine where a split takes split_s. Loaded rows
 * take kv times, and projected rows gemm times, their predicted time. */
static void restore(int n, double split_s, double kv, double gemm)
{
    assert_int_equal(make("kv", n, no_window), n);
    struct correction_expected x = correction_expect(&p, 0, &req, &plan);
    double compute_s = x.kv_s * kv + x.gemm_s * gemm + x.n_splits * x.slowed * split_s;
    correction_learn(&p, &x,
                     &(struct correction_observed){.compute_s = compute_s,
                                                   .total_s = compute_s + plan.restore_s -
                                                              plan.comp_busy_s});
}

/* Short runs that take longer than predicted teach the cost of a split. They teach nothing about
 * loading and projecting. */
TEST(short_runs_teach_splits)
{
    begin();
    context(32, (uint8_t[]){H, K}, 2);
    for (int i = 0; i < 40; i++)
        restore(32, 40e-6, 1, 1);
    assert_true(fabs(p.split_s / 40e-6 - 1) < 0.01);
    assert_int_equal(p.kv_correction.n_observed + p.gemm_correction.n_observed, 0);
    double with_splits_s = plan.restore_s;
    /* a context without splits is predicted no slower than before */
    context(32, (uint8_t[]){BOTH}, 1);
    make("kv", 32, no_window);
    assert_true(plan.restore_s < with_splits_s / 4);
    for (int i = 0; i < 40; i++) {
        context(32, (uint8_t[]){H, K}, 2);
        restore(32, 5e-6, 1, 1);
    }
    assert_true(fabs(p.split_s / 5e-6 - 1) < 0.01);
}

/* A small model's rows take less time than the clock can tell, but their splits do not. A wrong
 * price does not stay wrong. */
TEST(few_rows_teach_splits)
{
    begin();
    p.c_h.b_s = p.c_kv.b_s = 1e-9;
    context(32, (uint8_t[]){H, K}, 2);
    p.split_s = CORRECTION_SPLIT_MAX_S;
    for (int i = 0; i < 60; i++)
        restore(32, 5e-6, 1, 1);
    assert_true(fabs(p.split_s / 5e-6 - 1) < 0.01);
    p.split_s = 0;
    for (int i = 0; i < 60; i++)
        restore(32, 5e-6, 1, 1);
    assert_true(fabs(p.split_s / 5e-6 - 1) < 0.01);
    assert_int_equal(p.kv_correction.n_observed + p.gemm_correction.n_observed, 0);
}

/* In long runs the rows take most of the time. So a slow restore teaches the time of rows, not of
 * splits. */
TEST(long_runs_teach_their_kind)
{
    begin();
    p.c_kv.b_s = 2e-6;
    context(32, (uint8_t[]){K}, 1);
    memset(masks[16], H, L);
    for (int i = 0; i < 30; i++)
        restore(32, PLATFORM_SPLIT_S, 2, 1);
    assert_true(fabs(platform_correction_factor(&p.kv_correction) - 2) < 0.02);
    assert_true(p.split_s == PLATFORM_SPLIT_S);
}

/* A restore whose thread lost its core for a second moves the cost of a split by one small step.
 * Even many of them do not move the cost out of its bounds. */
TEST(a_stall_moves_the_cost_by_a_step)
{
    begin();
    context(32, (uint8_t[]){H, K}, 2);
    restore(32, 1, 1, 1);
    assert_true(p.split_s <= 1.21 * PLATFORM_SPLIT_S);
    for (int i = 0; i < 200; i++)
        restore(32, 1, 1, 1);
    assert_true(p.split_s == CORRECTION_SPLIT_MAX_S);
    for (int i = 0; i < 200; i++)
        restore(32, 0, 0.01, 0.01);
    assert_true(p.split_s >= 0);
}

/* Judges the prediction of a restore of n ranges by KV on a machine where a split takes split_s. */
static enum surprise judged(int n, double split_s)
{
    struct platform believed = p;
    make("kv", n, no_window);
    struct surprise_times predicted = {plan.restore_s, plan.io_busy_s, plan.comp_busy_s};
    p.split_s = split_s;
    make("kv", n, no_window);
    p = believed;
    return surprise_of(
        &predicted,
        &(struct surprise_times){plan.restore_s, plan.io_busy_s, plan.comp_busy_s}, true);
}

/* A price of splits that is far too low, or too high, misses. Compute is named as the cause of the
 * slower restore. The restores teach the price, and the misses end. */
TEST(a_wrong_price_is_a_miss_until_it_is_learned)
{
    begin();
    context(64, (uint8_t[]){H, K}, 2);
    p.split_s = 2e-6;
    assert_int_equal(judged(64, 60e-6), SURPRISE_COMPUTE);
    for (int i = 0; i < 40; i++)
        restore(64, 60e-6, 1, 1);
    assert_int_equal(judged(64, 60e-6), SURPRISE_NONE);
    assert_int_equal(judged(64, 2e-6), SURPRISE_FASTER);
    for (int i = 0; i < 40; i++)
        restore(64, 2e-6, 1, 1);
    assert_int_equal(judged(64, 2e-6), SURPRISE_NONE);
}
