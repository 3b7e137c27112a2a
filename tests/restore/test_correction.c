/* test_correction.c - a correction converges, is bounded, and does not trust a single outlier. */
#include <string.h>

#include "tests/unit.h"
#include <math.h>

#include "base/rng.h"
#include "restore/correction.h"

static double uniform(struct rng *r, double lo, double hi)
{
    return lo + (hi - lo) * (double)rng_below(r, 1 << 30) / (1 << 30);
}

static double factor(const struct platform_correction *c)
{
    return platform_correction_factor(c);
}

TEST(converges)
{
    struct rng r = {.s = 1};
    for (int t = 0; t < 1000; t++) {
        double truth = exp2(uniform(&r, -2.9, 2.9));
        struct platform_correction c = {0};
        for (int i = 0; i < 25; i++)
            correction_observe(&c, 0.1, 0.1 * truth);
        assert_true(fabs(factor(&c) / truth - 1) < 0.05);
        /* When the machine's speed changes, the platform follows, however many restores it has
         * learned from. */
        for (int i = 0; i < 1000; i++)
            correction_observe(&c, 0.1, 0.1 * truth);
        truth = exp2(uniform(&r, -2.9, 2.9));
        for (int i = 0; i < 40; i++)
            correction_observe(&c, 0.1, 0.1 * truth);
        assert_true(fabs(factor(&c) / truth - 1) < 0.05);
    }
}

/* A check moves a belief halfway to one large miss, and doubts the other half. Other samples are
 * noise. */
TEST(a_check_counts_large_misses_by_half)
{
    const struct {
        double sample_s, log2, spread_log2;
    } cases[] = {
        {0.1, 0, 0.1},        {0.14, 0, 0.1},     {0.068, 0, 0.1}, {0.2, 0.5, 0.5},
        {0.05, -0.5, 0.5},    {0.4, 1, 0.5},      {0.8, 1, 0.5},   {1e-9, -1, 0.5},
        {0, 0, 0.1},          {INFINITY, 0, 0.1}, {NAN, 0, 0.1},   {-1, 0, 0.1},
        {0.16, 0.339, 0.339},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct platform_correction c = {.spread_log2 = 0.1, .n_observed = 7};
        correction_check(&c, 0.1, cases[i].sample_s);
        assert_true(fabs(c.log2 - cases[i].log2) < 1e-3);
        assert_true(fabs(c.spread_log2 - cases[i].spread_log2) < 1e-3);
        assert_int_equal(c.n_observed, 7);
    }
    struct platform_correction c = {.log2 = 2.8, .spread_log2 = 0.7};
    correction_check(&c, 1, 4);
    assert_true(c.log2 == CORRECTION_LOG2_MAX && c.spread_log2 == 0.7);
    correction_check(&c, 0, 4);
    assert_true(c.log2 == CORRECTION_LOG2_MAX);
}

TEST(is_bounded)
{
    struct rng r = {.s = 2};
    struct platform_correction c = {0};
    for (int i = 0; i < 100000; i++) {
        correction_observe(&c, exp2(uniform(&r, -40, 40)), exp2(uniform(&r, -40, 40)));
        assert_true(fabs(c.log2) <= CORRECTION_LOG2_MAX);
    }
    for (int i = 0; i < 100; i++)
        correction_observe(&c, 1e-3, 1e9);
    assert_true(c.log2 > CORRECTION_LOG2_MAX - 0.01 && c.log2 <= CORRECTION_LOG2_MAX);
}

/* The platform predicts one second for a prefill that really takes truths[i]. Restores that load
 * only K and V do not show this error; later prompts correct it. */
TEST(prefill_ends_a_wrong_belief_about_compute)
{
    static const double truths[] = {1.0 / 6, 1.0 / 3, 3, 6};
    for (int i = 0; i < 4; i++) {
        struct platform p;
        platform_init(&p);
        /* predicted: one second times the correction so far; measured: truths[i] */
        for (int k = 0; k < 12; k++)
            correction_learn_prefill(&p, factor(&p.gemm_correction), truths[i]);
        double off = factor(&p.gemm_correction) / truths[i];
        assert_true(off <= CORRECTION_LARGE_MISS && off >= 1 / CORRECTION_LARGE_MISS);
        assert_true(p.kv_correction.n_observed == 0);
    }
}

/* Restores measure projections better than prefill does. So prefill corrects only large errors. */
TEST(prefill_teaches_large_misses_only)
{
    struct platform p;
    platform_init(&p);
    correction_learn_prefill(&p, 1, 1.49);
    correction_learn_prefill(&p, 1, 1 / 1.49);
    /* elapsed time above the time of compute is waiting, and teaches nothing */
    correction_learn_prefill(&p, 0.4e-4, 1.6e-4);
    p.weights_s = 1;
    correction_learn_prefill(&p, 1, 4);
    assert_int_equal(p.gemm_correction.n_observed, 0);
    p.weights_s = 0;
    correction_learn_prefill(&p, 1, 1.51);
    assert_int_equal(p.gemm_correction.n_observed, 1);
}

/* With 10 % noise, every tenth restore takes a hundred times or a hundredth as long. */
TEST(outliers_do_not_count)
{
    struct rng r = {.s = 3};
    int n_off = 0;
    enum { N = 100000 };
    struct platform_correction c = {0};
    for (int i = 0; i < N; i++) {
        double ratio = uniform(&r, 0.9, 1.1);
        if (rng_below(&r, 10) == 0)
            ratio *= rng_below(&r, 2) == 0 ? 100 : 0.01;
        correction_observe(&c, 0.1, 0.1 * ratio);
        n_off += fabs(c.log2) > log2(1.15);
    }
    assert_true(n_off < N / 100);
    /* An outlier after a long calm moves the correction by less than 4 %. */
    memset(&c, 0, sizeof c);
    for (int i = 0; i < 50; i++)
        correction_observe(&c, 0.1, 0.1);
    correction_observe(&c, 0.1, 100);
    assert_true(factor(&c) < 1.04);
}

/* Two surprises in a row change the correction little. The third one changes it at once, however
 * many observations the correction has seen before. */
TEST(three_surprises_are_a_change)
{
    struct platform_correction c = {0};
    for (int i = 0; i < 1000; i++)
        correction_observe(&c, 0.1, 0.1);
    correction_observe(&c, 0.1, 0.6);
    correction_observe(&c, 0.1, 0.3);
    assert_true(factor(&c) < 1.1);
    correction_observe(&c, 0.1, 0.7);
    assert_true(fabs(factor(&c) - 3) < 1e-9); /* the smallest of the three surprises */
    correction_observe(&c, 0.1, 0.1); /* two normal observations end a run of surprises */
    correction_observe(&c, 0.1, 0.1);
    correction_observe(&c, 0.1, 0.3);
    assert_true(factor(&c) > 2.5);
    for (int i = 0; i < 3; i++)
        correction_observe(&c, 0.1, 0.02);
    assert_true(fabs(factor(&c) - 0.2) < 1e-9);
}

TEST(nonsense_is_ignored)
{
    static const double bad[] = {0, -1, NAN, INFINITY, -INFINITY};
    struct platform_correction c = {.log2 = 0.5, .n_observed = 7}, before = c;
    for (int i = 0; i < 5; i++) {
        correction_observe(&c, bad[i], 1);
        correction_observe(&c, 1, bad[i]);
    }
    assert_memory_equal(&c, &before, sizeof c);
}

/* ---- whole restores ---- */

static void begin(struct platform *p, struct plan_layer *layer, struct plan_request *req,
                  int64_t n_tokens)
{
    if (p->n_layers == 0) {
        platform_init(p);
        p->n_layers = 12;
        p->h_bytes = 2048;
        p->kv_bytes = 4096;
        p->c_tok.b_s = 1e-4;
        p->c_h.b_s = 1.5e-5;
        p->c_kv.b_s = 5e-7;
        p->io_overlap = 1.2;
        p->comp_overlap = 1.1;
        p->n_tiers = 1;
        p->tier[0].bytes_per_s = 2e8;
    }
    plan_request_from_platform(p, 0, n_tokens, 0, layer, NULL, req);
}

/* Begins, and plans a restore from K and V alone. */
static void plan_kv(struct platform *p, struct plan_layer *layer, struct plan_request *req,
                    int64_t n_tokens, struct plan *out)
{
    begin(p, layer, req, n_tokens);
    assert_int_equal(plan_mode_parse("kv", req, NULL), 0);
    assert_int_equal(plan_make(req, out, NULL), 0);
}

/* If the bus is slower than the store, the time of reads tells nothing about the store. Reads from
 * DRAM take no time, so they tell nothing either. */
TEST(a_bus_teaches_nothing)
{
    struct platform p = {0};
    struct plan_layer layer[12];
    struct plan_request req;
    struct plan plan;
    begin(&p, layer, &req, 4096);
    p.tier[0].up_bytes_per_s = 1e8;
    plan_kv(&p, layer, &req, 4096, &plan);
    struct correction_expected e = correction_expect(&p, 0, &req, &plan);
    assert_true(e.io_s == 0);
    const struct correction_observed o = {.io_s = 1e-4, .compute_s = 0.02, .total_s = 2};
    correction_learn(&p, &e, &o);
    assert_int_equal(p.tier[0].correction.n_observed, 0);
    p.tier[0].up_bytes_per_s = 1e9;
    assert_true(correction_expect(&p, 0, &req, &plan).io_s > 0);
}

/* What a restore should take is that of the restore alone, without new tokens and without the
 * corrections and the start that were learned. */
TEST(a_prediction_is_of_the_restore_alone)
{
    struct platform p = {0};
    struct plan_layer layer[12];
    struct plan_request req;
    struct plan plan;
    double prefill_s[12];
    begin(&p, layer, &req, 4096);
    p.io_overlap = p.comp_overlap = 1;
    p.tier[0].latency_s = 0.01;
    p.tier[0].correction.log2 = 1;
    p.kv_correction.log2 = 0.5;
    p.gemm_correction.log2 = -0.5;
    p.start_s = 0.002;
    plan_kv(&p, layer, &req, 4096, &plan);
    struct correction_expected e = correction_expect(&p, 0, &req, &plan);
    double io_s = 12 * platform_io_s(&p, 0, 4096, RECORD_KV) + 0.01;
    assert_true(fabs(e.io_s - io_s / 2) < 1e-9);
    assert_true(fabs(e.kv_s - 12 * platform_kv_s(&p, 4096) / sqrt(2)) < 1e-9);
    assert_true(e.gemm_s == 0 && fabs(e.slowed - 1) < 1e-9);
    assert_true(fabs(e.restore_s - (plan.restore_s - 0.002)) < 1e-9);
    /* New tokens change nothing. */
    for (int i = 0; i < 12; i++)
        prefill_s[i] = 0.5;
    req.prefill_s = prefill_s;
    req.head_s = 0.7;
    req.fused = true;
    struct correction_expected with = correction_expect(&p, 0, &req, &plan);
    assert_memory_equal(&with, &e, sizeof e);
    req.comp_slow = 1.5; /* beside decodes it says nothing */
    assert_true(correction_expect(&p, 0, &req, &plan).restore_s == 0);
}

/* The lesser kind of compute counts as predicted. The rest is the time of the other kind. */
TEST(the_lesser_kind_is_taken_as_believed)
{
    for (int i = 0; i < 2; i++) {
        struct platform p = {0};
        p.kv_correction.log2 = i == 0 ? 0 : 1;
        p.gemm_correction.log2 = i == 0 ? 1 : 0;
        struct correction_expected e = {.kv_s = i == 0 ? 0.9 : 0.1,
                                        .gemm_s = i == 0 ? 0.1 : 0.9,
                                        .restore_s = 1.1,
                                        .slowed = 1};
        correction_learn(&p, &e,
                         &(struct correction_observed){.compute_s = 1.1, .total_s = 1.1});
        assert_int_equal(p.kv_correction.n_observed, i == 0);
        assert_int_equal(p.gemm_correction.n_observed, i == 1);
        assert_true(fabs(p.kv_correction.log2 - (i == 0 ? 0 : 1)) < 1e-9);
        assert_true(fabs(p.gemm_correction.log2 - (i == 0 ? 1 : 0)) < 1e-9);
    }
}

/* Every bandwidth of a store is learned. Once a rounding error prevented it: 1 / (1 / x) was
 * smaller than x for an x like 4e9, so the reads were taken for those of a slower bus. */
TEST(any_bandwidth_is_taught)
{
    struct rng r = {.s = 5};
    for (int i = 0; i < 1000; i++) {
        struct platform p = {0};
        struct plan_layer layer[12];
        struct plan_request req;
        struct plan plan;
        begin(&p, layer, &req, 4096);
        p.tier[0].bytes_per_s = exp2(uniform(&r, 24, 34));
        plan_kv(&p, layer, &req, 4096, &plan);
        assert_true(correction_expect(&p, 0, &req, &plan).io_s > 0);
    }
}

/* Threads that wake up late lengthen short restores. Later predictions include this delay. */
TEST(short_restores_teach_the_start)
{
    struct platform p = {0};
    struct plan_layer layer[12];
    struct plan_request req;
    struct plan plan;
    begin(&p, layer, &req, 64);
    p.tier[0].bytes_per_s = 1e10;
    for (int i = 0; i < 40; i++) {
        plan_kv(&p, layer, &req, 64, &plan);
        struct correction_expected e = correction_expect(&p, 0, &req, &plan);
        assert_true(e.restore_s < CORRECTION_SHORT_S);
        correction_learn(&p, &e,
                         &(struct correction_observed){.compute_s = plan.comp_busy_s,
                                                       .total_s = e.restore_s + 0.3e-3});
    }
    assert_true(fabs(p.start_s - 0.3e-3) < 0.02e-3);
    assert_true(req.io_latency_s > p.tier[0].latency_s + 0.25e-3);
    /* One outlier moves the learned delay little, and a long restore does not move it. */
    struct correction_expected e = {.restore_s = 1e-3};
    correction_learn(&p, &e, &(struct correction_observed){.total_s = 1});
    assert_true(p.start_s < 0.45e-3);
    double before = p.start_s;
    e.restore_s = 2 * CORRECTION_SHORT_S;
    correction_learn(&p, &e, &(struct correction_observed){.total_s = 1});
    assert_true(p.start_s == before);
}

/* The time to start a restore may have been learned while other programs ran. It must become
 * shorter even if only longer restores follow: a restore whose busier lane works for all but 0.1 ms
 * has waited at most 0.1 ms for its start. */
TEST(long_restores_shorten_the_start)
{
    struct platform p = {0};
    struct plan_layer layer[12];
    struct plan_request req;
    begin(&p, layer, &req, 64);
    p.start_s = 0.5e-3;
    const struct correction_expected e = {.restore_s = 2 * CORRECTION_SHORT_S};
    const struct correction_observed io = {.io_s = 4e-3, .total_s = 4.1e-3};
    const struct correction_observed compute = {.compute_s = 4e-3, .total_s = 4.1e-3};
    for (int i = 0; i < 60; i++)
        correction_learn(&p, &e, i % 2 ? &io : &compute);
    assert_true(fabs(p.start_s - 0.1e-3) < 0.01e-3);
}

/* The latency of the disk was measured while other programs used it. Now it is 0.1 ms. */
TEST(a_latency_of_a_busy_disk_is_corrected)
{
    struct platform p = {0};
    struct plan_layer layer[12];
    struct plan_request req;
    struct plan plan;
    begin(&p, layer, &req, 64);
    p.tier[0].bytes_per_s = 1e10;
    p.tier[0].latency_s = 1.1e-3;
    for (int i = 0; i < 100; i++) {
        plan_kv(&p, layer, &req, 64, &plan);
        struct correction_expected e = correction_expect(&p, 0, &req, &plan);
        correction_learn(&p, &e,
                         &(struct correction_observed){.compute_s = plan.comp_busy_s,
                                                       .total_s = e.restore_s - 1e-3});
    }
    assert_true(fabs(req.io_latency_s - 0.1e-3) < 0.02e-3);
    for (int i = 0; i < 100; i++) /* it does not become negative */
        correction_learn(&p, &(struct correction_expected){.restore_s = 1.9e-3},
                         &(struct correction_observed){.total_s = 1e-6});
    begin(&p, layer, &req, 64);
    assert_true(req.io_latency_s == 0);
}

/* Both lanes take the predicted times, and the restore 1.2 times as long. Later predictions count
 * these pauses. They do not for a short restore, whose pauses are its start, nor beside decodes. */
TEST(pauses_are_predicted)
{
    struct platform p = {0};
    struct plan_layer layer[12];
    struct plan_request req;
    struct plan plan, before, beside;
    begin(&p, layer, &req, 2048);
    assert_int_equal(plan_make(&req, &before, NULL), 0);
    for (int i = 0; i < 40; i++) {
        struct correction_expected e = correction_expect(&p, 0, &req, &before);
        struct correction_observed o = {.io_s = before.io_busy_s,
                                        .compute_s = before.comp_busy_s,
                                        .wait_s = before.restore_s * 1.2 -
                                                  before.comp_busy_s,
                                        .total_s = before.restore_s * 1.2};
        correction_learn(&p, &e, &o);
    }
    begin(&p, layer, &req, 2048);
    assert_int_equal(plan_make(&req, &plan, NULL), 0);
    assert_string_equal(plan.method, before.method);
    assert_true(fabs(plan.restore_s / before.restore_s - 1.2) < 0.03);
    assert_true(fabs(plan.predicted_s / before.predicted_s - 1.2) < 0.03);
    req.comp_slow = 33;
    assert_int_equal(plan_mode_parse("kv", &req, NULL), 0);
    assert_int_equal(plan_make(&req, &beside, NULL), 0);
    p.pause_correction[0].log2 = 0;
    assert_int_equal(plan_make(&req, &plan, NULL), 0);
    assert_true(beside.restore_s == plan.restore_s);
    p.pause_correction[0].log2 = 1;
    p.tier[0].bytes_per_s = 1e10;
    plan_kv(&p, layer, &req, 64, &plan);
    assert_true(plan.restore_s < 1e-3);
}

/* Beside busy threads a mixture, whose lanes both work all the time, takes 1.8 times as long as
 * predicted, and plain KV takes its predicted time. Then KV is chosen, though the lanes of the
 * mixture are shorter. Without restores that use a mixture the belief fades, and it is tried again.
 */
TEST(a_mixture_with_longer_pauses_gives_way)
{
    struct platform p = {0};
    struct plan_layer layer[12];
    struct plan_request req;
    struct plan mixture, plan;
    begin(&p, layer, &req, 2048);
    assert_int_equal(plan_make(&req, &mixture, NULL), 0);
    assert_true(mixture.n_k > 0 && mixture.n_k < 12);
    assert_true(
        platform_is_balanced(mixture.io_busy_s, mixture.comp_busy_s, mixture.restore_s));
    for (int i = 0; i < 40; i++) {
        struct correction_expected e = correction_expect(&p, 0, &req, &mixture);
        struct correction_observed o = {.io_s = mixture.io_busy_s,
                                        .compute_s = mixture.comp_busy_s,
                                        .wait_s = mixture.restore_s * 1.8 -
                                                  mixture.comp_busy_s,
                                        .total_s = mixture.restore_s * 1.8};
        correction_learn(&p, &e, &o);
    }
    assert_true(fabs(platform_pause_factor(&p, true) - 1.8) < 0.05);
    assert_true(platform_pause_factor(&p, false) == 1);
    begin(&p, layer, &req, 2048);
    assert_int_equal(plan_make(&req, &plan, NULL), 0);
    assert_string_equal(plan.method, "KKKKKKKKKKKK");
    assert_true(plan.n_k == 12 && plan.n_io == 12 && plan.n_h == 0);
    assert_true(plan.predicted_s < mixture.predicted_s * 1.8);
    begin(&p, layer, &req, 2048);
    /* Equal pauses change nothing. */
    p.pause_correction[0].log2 = p.pause_correction[1].log2;
    assert_int_equal(plan_make(&req, &plan, NULL), 0);
    assert_string_equal(plan.method, mixture.method);
    p.pause_correction[0].log2 = 0;
    for (int i = 0; i < CORRECTION_UNUSED + 60; i++)
        correction_learn_prefill(&p, 1, 1);
    assert_int_equal(plan_make(&req, &plan, NULL), 0);
    assert_string_equal(plan.method, mixture.method);
}

/* Large restores beside other work have taught that loading takes 2.5 times as long as the profile
 * says. Restores of 0.1 ms are rarely interrupted, so their prediction would stay too long by this
 * factor. Quick ones must therefore correct it. Slow ones teach nothing: their time also includes
 * the wake-up of threads. */
TEST(a_short_restore_teaches_that_compute_is_faster)
{
    struct platform p = {0};
    struct plan_layer layer[12];
    struct plan_request req;
    begin(&p, layer, &req, 64);
    const struct correction_expected e = {.kv_s = 0.1e-3, .slowed = 1};
    const struct correction_observed slow = {.compute_s = 0.9e-3, .total_s = 1e-3};
    const struct correction_observed quick = {.compute_s = 0.1e-3, .total_s = 0.1e-3};
    p.kv_correction.log2 = log2(2.5);
    for (int i = 0; i < 20; i++)
        correction_learn(&p, &e, &slow);
    assert_int_equal(p.kv_correction.n_observed, 0);
    for (int i = 0; i < 20; i++)
        correction_learn(&p, &e, &quick);
    assert_true(factor(&p.kv_correction) <= 1.25 && factor(&p.kv_correction) >= 1);
}

/* Half of the chunks have no KV, so they are projected under the letter K. If projections take
 * twice as long as measured, such restores must correct GEMM. A correction of the loading of KV
 * would make predictions too slow for contexts that have KV in all chunks. */
TEST(parts_without_kv_teach_gemm)
{
    uint8_t masks[2][12];
    struct plan_range ranges[16];
    struct platform p = {0};
    struct plan_layer layer[12];
    struct plan_request req = {.n_layers = 12};
    struct plan plan;
    double prefill_s[12];
    int n_used = 0;
    memset(masks[0], PLAN_HAS_H, sizeof masks[0]);
    memset(masks[1], PLAN_HAS_H | PLAN_HAS_KV, sizeof masks[1]);
    for (int i = 0; i < 16; i++)
        ranges[i] = (struct plan_range){.n_tokens = 64, .mask = masks[i % 2]};
    begin(&p, layer, &req, 64);
    for (int i = 0; i < 30; i++) {
        req = (struct plan_request){.n_layers = 12};
        assert_int_equal(plan_mode_parse("kv", &req, NULL), 0);
        assert_int_equal(plan_best_prefix(&p, ranges, 16, 0, true, layer, prefill_s, &req,
                                          &plan, &n_used, NULL),
                         0);
        assert_int_equal(n_used, 16);
        struct correction_expected e = correction_expect(&p, 0, &req, &plan);
        assert_true(e.gemm_s > 4 * e.kv_s && e.kv_s > 0);
        double compute_s = 2 * e.gemm_s + e.kv_s + e.n_splits * e.slowed * p.split_s;
        correction_learn(&p, &e,
                         &(struct correction_observed){.io_s = e.io_s,
                                                       .compute_s = compute_s,
                                                       .total_s = e.restore_s});
    }
    assert_true(fabs(factor(&p.gemm_correction) / 2 - 1) < 0.02);
    assert_true(p.kv_correction.n_observed == 0);
}

/* Runs of chunks are short, and they take less time than their rows alone by the believed speed.
 * Then the speed is wrong, and not the cost of splits, which cannot be negative. */
TEST(short_runs_correct_a_speed_that_is_too_slow)
{
    struct platform p = {0};
    struct plan_layer layer[12];
    struct plan_request req;
    begin(&p, layer, &req, 64);
    p.kv_correction.log2 = 2;
    const struct correction_expected e = {.kv_s = 0.25e-3, .n_splits = 100, .slowed = 1};
    const struct correction_observed o = {.compute_s = 0.3e-3, .total_s = 0.3e-3};
    for (int i = 0; i < 60; i++)
        correction_learn(&p, &e, &o);
    double predicted_s = e.kv_s * factor(&p.kv_correction) + e.n_splits * p.split_s;
    assert_true(fabs(predicted_s / o.compute_s - 1) < 0.3);
}

/* Lets restores whose work is 3/4 projections and 1/4 loading, with n_splits that cost nothing,
 * take `slow` times as long as the profile says, until they teach nothing more. */
static void teach_mixed(struct platform *p, double slow, int n_splits)
{
    for (int i = 0; i < 30; i++) {
        struct correction_expected e = {
            .gemm_s = 30e-3, .kv_s = 10e-3, .slowed = 1, .n_splits = n_splits};
        double seen_s = slow * (e.gemm_s + e.kv_s);
        struct correction_observed o = {.compute_s = seen_s, .total_s = seen_s};
        correction_learn(p, &e, &o);
    }
}

/* No kind is most of the work. Half of the machine is taken by another program: both kinds take
 * twice as long, and both learn it. A small miss may come from either kind, so it teaches none. */
TEST(a_large_miss_of_a_mixture_teaches_both_kinds)
{
    struct platform p = {0};
    teach_mixed(&p, 1.4, 0);
    assert_true(p.gemm_correction.n_observed == 0 && p.kv_correction.n_observed == 0);
    teach_mixed(&p, 3, 0);
    double gemm = factor(&p.gemm_correction), kv = factor(&p.kv_correction);
    assert_true(gemm > 3 / CORRECTION_LARGE_MISS && gemm <= 3.001);
    assert_true(kv > 3 / CORRECTION_LARGE_MISS && kv <= 3.001);
    teach_mixed(&p, 1, 0);
    assert_true(factor(&p.gemm_correction) <= CORRECTION_LARGE_MISS);
    assert_true(factor(&p.kv_correction) <= CORRECTION_LARGE_MISS);
}

/* Every plan of a context that has lost some of its records mixes both kinds. If such restores
 * taught nothing, their predictions would stay wrong by a factor of 1.4. */
TEST(a_context_in_parts_teaches_both_kinds)
{
    struct platform p = {0};
    teach_mixed(&p, 1.4, 30);
    assert_true(fabs(factor(&p.gemm_correction) - 1.4) < 0.03);
    assert_true(fabs(factor(&p.kv_correction) - 1.4) < 0.03);
}

/* On this machine GEMM, loading of KV and the disk are off by these factors. After some restores
 * with auto's own plans the platform predicts the measured times, and makes the plans of the true
 * costs. */
TEST(learns_the_machine)
{
    struct rng r = {.s = 4};
    for (int t = 0; t < 300; t++) {
        struct platform believed = {0}, real = {0};
        struct plan_layer layer[12], real_layer[12];
        struct plan_request req, real_req;
        struct plan plan, carried, best;
        struct err e;
        begin(&believed, layer, &req, 64);
        begin(&real, real_layer, &real_req, 64);
        double io = exp2(uniform(&r, -2, 2)), gemm = exp2(uniform(&r, -1, 2));
        real.tier[0].bytes_per_s /= io;
        real.c_h.b_s *= gemm;
        real.c_tok.b_s *= gemm;
        double regret = 0;
        for (int i = 0; i < 60; i++) {
            int64_t n = 64 * (1 + (int64_t)rng_below(&r, 64));
            begin(&believed, layer, &req, n);
            begin(&real, real_layer, &real_req, n);
            assert_int_equal(plan_make(&req, &plan, &e), 0);
            real_req.mode = PLAN_FORCED_LAYERS;
            real_req.forced_layers = plan.method;
            assert_int_equal(plan_make(&real_req, &carried, &e), 0);
            real_req.mode = PLAN_AUTO;
            assert_int_equal(plan_make(&real_req, &best, &e), 0);
            if (i >= 40)
                regret = fmax(regret, carried.predicted_s / best.predicted_s);
            struct correction_expected x = correction_expect(&believed, 0, &req, &plan);
            correction_learn(&believed, &x,
                             &(struct correction_observed){.io_s = carried.io_busy_s,
                                                           .compute_s = carried.comp_busy_s,
                                                           .wait_s = carried.predicted_s -
                                                                     carried.comp_busy_s,
                                                           .total_s = carried.predicted_s});
        }
        if (regret > 1.1)
            fail_msg("I/O %.2f, GEMM %.2f: still %.3f times the best plan's time", io, gemm,
                     regret);
    }
}

/* While other programs used the machine, loading KV and reading the disk took eight times as long.
 * Since then no plan uses them, so no restore shows that they are fast again. Prompts that fit
 * their predictions make these beliefs fade, until a plan uses loading and the disk again. */
TEST(a_belief_that_nothing_tests_fades)
{
    for (int disk = 0; disk < 2; disk++) {
        struct platform p = {0};
        struct plan_layer layer[12];
        struct plan_request req;
        struct plan plan;
        begin(&p, layer, &req, 2048);
        p.tier[0].bytes_per_s = disk ? 4e7 : 4e9;
        p.c_kv.b_s = disk ? 5e-7 : 5e-6;
        p.n_tiers = 2;
        p.tier[1] = p.tier[0];
        struct platform_correction *c = disk ? &p.tier[0].correction : &p.kv_correction;
        c->log2 = CORRECTION_LOG2_MAX;
        int n = 0;
        for (;; n++) {
            plan_request_from_platform(&p, 0, 2048, 0, layer, NULL, &req);
            assert_int_equal(plan_make(&req, &plan, NULL), 0);
            if (disk ? plan.n_r < 6 : plan.n_k > 6)
                break;
            assert_true(n < 2 * CORRECTION_UNUSED);
            correction_learn_prefill(&p, 1, 1);
        }
        assert_true(n > CORRECTION_UNUSED);
        /* A belief in use stays: only its restores change it. */
        const struct correction_expected e = {.io_s = 1e-9, .kv_s = 1e-9, .slowed = 1};
        double before = c->log2;
        for (int i = 0; i < 3 * CORRECTION_UNUSED; i++) {
            correction_learn(&p, &e, &(struct correction_observed){.total_s = 1});
            correction_learn_prefill(&p, 1, 1);
        }
        assert_true(c->log2 == before);
    }
}

/* The platform's text contains the corrections, so they survive a restart. */
TEST(is_kept)
{
    struct platform p = {0}, q;
    struct plan_layer layer[12];
    struct plan_request req;
    char text[PLATFORM_FORMAT_MAX];
    begin(&p, layer, &req, 64);
    correction_observe(&p.tier[0].correction, 1, 1.7);
    correction_observe(&p.gemm_correction, 1, 0.8);
    int n = platform_format(&p, text, sizeof text);
    assert_int_equal(platform_parse(text, (size_t)n, &q, NULL), 0);
    assert_true(q.tier[0].correction.log2 == p.tier[0].correction.log2);
    assert_true(q.gemm_correction.log2 == p.gemm_correction.log2);
    assert_int_equal(q.tier[0].correction.n_observed, 1);
    assert_true(platform_h_s(&q, 640) == platform_h_s(&p, 640));
}

/* The time of a restore that shared the machine, or that is incomplete, does not describe the
 * machine and teaches nothing. */
TEST(only_whole_restores_that_ran_alone_teach)
{
    struct correction_observed o = {
        .io_s = 1, .compute_s = 0.5, .wait_s = 0.3, .total_s = 1};
    assert_true(correction_is_of_machine(&o, true));
    assert_false(correction_is_of_machine(&o, false));
    /* for more than a fifth of the time neither lane worked, so another restore had the machine */
    o.total_s = 1.01;
    assert_false(correction_is_of_machine(&o, true));
    o.compute_s = 0;
    o.wait_s = 0.9; /* time spent waiting for the disk does not count as shared */
    assert_true(correction_is_of_machine(&o, true));
}

/* The predicted time of a restore beside decodes is not exact, so the restore teaches nothing. */
TEST(a_slowed_restore_teaches_nothing)
{
    struct platform p = {0};
    struct plan_layer layer[12];
    struct plan_request req;
    struct plan plan;
    plan_kv(&p, layer, &req, 4096, &plan);
    req.comp_slow = 1; /* no decodes slow the restore */
    assert_true(correction_expect(&p, 0, &req, &plan).io_s > 0);
    req.comp_slow = 33;
    struct correction_expected e = correction_expect(&p, 0, &req, &plan);
    assert_true(e.io_s == 0 && e.gemm_s == 0 && e.kv_s == 0);
    struct platform before = p;
    correction_learn(&p, &e,
                     &(struct correction_observed){
                         .io_s = 100, .compute_s = 50, .wait_s = 50, .total_s = 100});
    assert_memory_equal(&p, &before, sizeof p);
}
