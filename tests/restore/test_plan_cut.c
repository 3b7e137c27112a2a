/* test_plan_cut.c - how many ranges of a chain are restored: compares plan_best_prefix with a full
 * search for every number of ranges. `test_plan_cut check` compares chains of 80 layers and 300
 * ranges, and times the planning (make plan-check). */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/unit.h"
#include <math.h>

#include "restore/pipeline.h"
#include "tests/restore/chains.h"

/* Largest excess of the predicted time over that of the full search. */
static const double WITHIN = 0.01;
/* Limit on the 99th percentile of the processor time of planning. A decode step waits for its
 * planning. */
static const double MOST_S = 3e-3;

static struct random_chain x;
static struct plan plan;
static struct err e;

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double x_s = *(const double *)a, y_s = *(const double *)b;
    return (x_s > y_s) - (x_s < y_s);
}

static bool close_to(double a, double b)
{
    return fabs(a - b) <= 1e-12 * fabs(b);
}

/* Makes a chain of the first n_ranges ranges of x, and the sums over them in *s. */
static struct stored_ranges ranges_of(int n_ranges, int64_t n_new, struct range_sums *s)
{
    struct stored_ranges c = {.platform = &x.platform,
                              .range = x.range,
                              .n_ranges = n_ranges,
                              .n_new = n_new,
                              .n_held = x.req.n_held,
                              .can_recompute = x.can_recompute,
                              .window = x.req.window,
                              .layer = x.layer,
                              .prefill_s = x.prefill_s};
    range_sums_at(&c, n_ranges, s);
    c.n_tokens = s->n_tokens;
    return c;
}

struct shape {
    int least_layers, most_layers, least_ranges, most_ranges;
    /* Sum over all chains of the excess over the full search, which the present search reaches. A
     * better search lowers it; then update the number. INFINITY: unknown. */
    double reached;
};

static int between(struct rng *r, int least, int most)
{
    return least + (int)rng_below(r, (uint64_t)(most - least + 1));
}

enum { MOST_CHAINS = 8000 };

/* Plans the chain x. *took_s gets the processor time. A time above the limit is measured again, at
 * most twice, because other programs can only make a plan slower. */
static int plan_timed(int *n_used, double *took_s)
{
    int rc = 0;
    *took_s = INFINITY;
    for (int i = 0; i < 3 && *took_s > MOST_S; i++) {
        double start = cpu_s();
        rc = random_chain_plan(&x, &plan, n_used, &e);
        *took_s = fmin(*took_s, cpu_s() - start);
    }
    return rc;
}

/* Fills took_s with the processor time of each plan. Returns the number of plans. */
static int compare(const struct shape *s, int n_chains, uint64_t seed, double *took_s)
{
    struct rng r = {seed};
    int n = 0, n_used, n_full, n_parts = 0;
    double worst = 0, sum = 0;
    assert_true(n_chains <= MOST_CHAINS);
    for (int t = 0; t < n_chains; t++) {
        int n_layers = between(&r, s->least_layers, s->most_layers);
        int n_ranges = between(&r, s->least_ranges, s->most_ranges);
        random_chain(&r, n_layers, n_ranges, &x);
        int rc = plan_timed(&n_used, &took_s[n]);
        double full_s = random_chain_full_s(&x, &n_full);
        if (isinf(full_s)) {
            assert_int_equal(rc, ERR_NOT_FOUND);
            assert_int_equal(n_used, 0);
            continue;
        }
        n++;
        if (rc != 0)
            fail_msg("chain %d: %s", t, e.msg);
        n_parts += n_used > 0 && n_used < n_ranges;
        worst = fmax(worst, plan.predicted_s / full_s - 1);
        sum += plan.predicted_s / full_s - 1;
        if (plan.predicted_s > full_s * (1 + WITHIN))
            fail_msg("chain %d: %d ranges take %.9g, the full search's %d take %.9g", t,
                     n_used, plan.predicted_s, n_full, full_s);
    }
    assert_true(n > n_chains / 2);
    /* At least one chain in 20 must be used in part, or the chains would offer no choice. */
    assert_true(n_chains < 50 || n_parts > n_chains / 20);
    print_message("# %d chains, %d used in part; at most %.2g %% slower than a full "
                  "search, %.9g in all\n",
                  n, n_parts, 100 * worst, sum);
    assert_true(sum <= s->reached + 1e-6);
    return n;
}

static double took_s[MOST_CHAINS];

TEST(small_chains)
{
    const struct shape s = {1, 12, 1, 24, 0.0405634561};
    compare(&s, 7000, 1, took_s);
}

/* A few chains of the size that `make plan-check` uses. */
TEST(large_chains)
{
    const struct shape s = {80, 80, 300, 300, 0};
    compare(&s, 5, 3, took_s);
}

/* No plan is faster than the lower bound for its number of ranges. */
TEST(bounds_hold)
{
    struct rng r = {10};
    static struct range_sums s;
    static struct plan_bounds b;
    for (int t = 0; t < 5000; t++) {
        int n_layers = between(&r, 1, 12), n_ranges = between(&r, 1, 4);
        random_chain(&r, n_layers, n_ranges, &x);
        struct stored_ranges c = ranges_of(n_ranges, 100, &s);
        range_request(&c, &s, &x.req);
        if (plan_make(&x.req, &plan, &e) != 0)
            continue;
        struct search search = {.req = &x.req,
                                .n = n_layers,
                                .io_f = fmax(1, x.req.io_overlap),
                                .comp_f = fmax(1, x.req.comp_overlap)};
        for (int i = 0; i < n_layers; i++)
            search.prefill_sum_s += x.req.prefill_s[i];
        assert_true(search_is_possible(&search));
        plan_bounds_init(&b, &search);
        double least_s = plan_bound_least(&b, search.r_min, search.r_max);
        assert_true(plan.predicted_s >= least_s * (1 - 1e-9));
        assert_true(least_s > 0.2 * plan.predicted_s); /* the bound is not trivially low */
    }
}

/* The request that is returned belongs to the returned plan: it predicts the same time. */
TEST(the_request_is_the_plans)
{
    struct rng r = {4};
    static struct pipeline lanes;
    for (int t = 0; t < 200; t++) {
        int n_used;
        random_chain(&r, 12, 24, &x);
        if (random_chain_plan(&x, &plan, &n_used, &e) != 0 || n_used == 0)
            continue;
        pipeline_simulate(&x.req, &plan, &lanes);
        assert_true(lanes.makespan_s == plan.predicted_s);
    }
}

/* A chain always gets the same plan, whatever was planned before. */
TEST(plans_are_repeatable)
{
    static struct plan again;
    for (uint64_t seed = 100; seed < 140; seed++) {
        int n_used, n_again;
        struct rng r = {seed};
        random_chain(&r, 40, 100, &x);
        int rc = random_chain_plan(&x, &plan, &n_used, &e);
        assert_int_equal(random_chain_plan(&x, &again, &n_again, &e), rc);
        assert_int_equal(n_used, n_again);
        assert_true(rc != 0 || memcmp(&plan, &again, sizeof plan) == 0);
    }
}

/* A budget limits what is saved. The records of a chain are saved already, so a request with a
 * budget is refused. */
TEST(a_budget_is_refused)
{
    struct rng r = {11};
    int n_used;
    random_chain(&r, 4, 4, &x);
    x.req.budget_bytes_per_token = 1e9;
    assert_int_equal(random_chain_plan(&x, &plan, &n_used, &e), ERR_USAGE);
    assert_non_null(strstr(e.msg, "budget"));
}

/* ---- sums over ranges ---- */

/* Sums that are updated from one cut to another equal sums computed from the start, for any order
 * of cuts. */
TEST(sums_move)
{
    struct rng r = {5};
    static struct range_sums moving, direct;
    for (int t = 0; t < 300; t++) {
        random_chain(&r, 10, 24, &x);
        struct stored_ranges c = ranges_of(24, 0, &moving);
        for (int i = 0; i < 12; i++) {
            int cut = (int)rng_below(&r, 25);
            range_sums_move(&c, &moving, cut);
            range_sums_at(&c, cut, &direct);
            assert_int_equal(moving.n_ranges, cut);
            assert_int_equal(moving.n_tokens, direct.n_tokens);
            assert_int_equal(moving.n_skipped, direct.n_skipped);
            for (int l = 0; l < 10; l++)
                for (int kind = 0; kind < 2; kind++) {
                    assert_int_equal(moving.h_splits[l], direct.h_splits[l]);
                    assert_int_equal(moving.kv_splits[l], direct.kv_splits[l]);
                    const struct range_share *m = kind ? &moving.kv[l] : &moving.h[l];
                    const struct range_share *d = kind ? &direct.kv[l] : &direct.h[l];
                    assert_int_equal(m->h_tokens, d->h_tokens);
                    assert_int_equal(m->kv_tokens, d->kv_tokens);
                    assert_int_equal(m->lost_tokens, d->lost_tokens);
                    assert_true(fabs(m->io_s - d->io_s) <= 1e-9 * (1e-3 + d->io_s));
                }
        }
    }
}

/* A layer with a window reads the chunks of the last window only, and these whole. */
TEST(windows_skip_whole_chunks)
{
    static struct range_sums s;
    struct rng r = {6};
    random_chain(&r, 4, 3, &x);
    for (int g = 0; g < 3; g++) {
        x.range[g].n_tokens = 128;
        memset(x.mask[g], PLAN_HAS_H | PLAN_HAS_KV, 4);
    }
    /* Token 384 sees positions from 385 - `tokens` on. A chunk is read if it has one of these
     * positions. */
    const struct {
        int window, wanted;
    } cases[] = {{64, 64},   {65, 64},   {66, 128}, {128, 128},
                 {129, 128}, {130, 192}, {385, 384}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        x.req.window = (struct plan_window){layer_set_run(2, PLAN_MAX_LAYERS),
                                            cases[i].window};
        (void)ranges_of(3, 0, &s);
        assert_int_equal(s.h[1].h_tokens, 384);
        assert_int_equal(s.h[2].h_tokens, cases[i].wanted);
        assert_int_equal(s.kv[3].kv_tokens, cases[i].wanted);
    }
    /* Behind 256 tokens that the device holds, token 640 sees positions from 641 - `tokens` on. */
    const struct {
        int window, wanted;
    } held[] = {{64, 64},   {66, 128},  {130, 192}, {322, 384},
                {386, 384}, {641, 384}, {700, 384}};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) {
        x.req.n_held = 256;
        x.req.window = (struct plan_window){layer_set_run(2, PLAN_MAX_LAYERS),
                                            held[i].window};
        (void)ranges_of(3, 0, &s);
        assert_int_equal(s.h[1].h_tokens, 384);
        assert_int_equal(s.h[2].h_tokens, held[i].wanted);
    }
}

/* Tokens that the device holds are not restored, but the tokens that are computed attend to them.
 */
TEST(computed_tokens_attend_to_held_ones)
{
    struct rng r = {13};
    static struct range_sums s;
    static struct plan_layer alone[8];
    random_chain(&r, 8, 6, &x);
    x.req = (struct plan_request){0};
    struct stored_ranges c = ranges_of(6, 100, &s);
    range_request(&c, &s, &x.req);
    memcpy(alone, x.layer, sizeof alone);
    x.req = (struct plan_request){.n_held = 640};
    c = ranges_of(6, 100, &s);
    range_request(&c, &s, &x.req);
    const struct platform *p = &x.platform;
    double again_s = platform_prefill_s(p, 640, s.n_tokens);
    double new_s = platform_prefill_s(p, 640 + s.n_tokens, 100);
    assert_true(again_s > platform_tok_s(p, s.n_tokens));
    assert_int_equal(x.req.n_tokens, s.n_tokens);
    for (int i = 0; i < 8; i++) {
        const struct plan_layer *l = &x.layer[i];
        assert_true(close_to(l->comp_tok_s, again_s));
        assert_true(i == 0 || close_to(x.prefill_s[i], new_s));
        assert_true(l->io_h_s == alone[i].io_h_s && l->io_kv_s == alone[i].io_kv_s);
        assert_true(l->comp_h_s == alone[i].comp_h_s && l->comp_kv_s == alone[i].comp_kv_s);
        assert_true(l->comp_tok_last_s == alone[i].comp_tok_last_s);
    }
}

/* A chain that takes less time to compute than to read is computed. Behind many tokens that the
 * device holds its computation takes longer, so layers of it are read. */
TEST(chains_behind_held_tokens_are_read)
{
    static const uint8_t both[4] = {3, 3, 3, 3};
    const struct plan_range range = {.n_tokens = 1024, .mask = both};
    struct plan_layer layer[4];
    double prefill_s[4];
    struct platform p = {.n_layers = 4,
                         .n_tiers = 1,
                         .tier[0].bytes_per_s = 2e8,
                         .h_bytes = 1000,
                         .kv_bytes = 2000,
                         .c_tok = {.b_s = 1e-7, .c_s = 1e-10},
                         .c_h = {.b_s = 1e-7},
                         .c_kv = {.b_s = 1e-9}};
    for (int i = 0; i < 2; i++) {
        struct plan_request q = {.n_held = (int64_t)i * 1000 * 64, .fused = true};
        int n_used = -1;
        assert_int_equal(plan_best_prefix(&p, &range, 1, 1, true, layer, prefill_s, &q,
                                          &plan, &n_used, &e),
                         0);
        assert_string_equal(plan.method, i == 0 ? "RRRR" : "RRHH");
    }
}

/* A layer costs the time to read its own records, range by range, and to compute them, kind by
 * kind. */
TEST(layers_cost_what_their_records_cost)
{
    struct rng r = {12};
    static struct range_sums s;
    for (int t = 0; t < 200; t++) {
        random_chain(&r, 12, 6, &x);
        x.req = (struct plan_request){0};
        x.platform.unpack_bytes_per_s = 1e9;
        for (int g = 0; g < 6; g++)
            x.range[g].share[rng_below(&r, 2)] = rng_below(&r, 2) ? 0.5 + 0.5 * rng_unit(&r)
                                                                  : 0;
        struct stored_ranges c = ranges_of(6, 100, &s);
        range_request(&c, &s, &x.req);
        const struct platform *p = &x.platform;
        for (int l = 0; l < 12; l++)
            for (int kv = 0; kv < 2; kv++) {
                int64_t n[2] = {0, 0};
                double io_s = 0, unpack_s = 0;
                bool lost = false, before = false;
                int n_splits = 0;
                for (int g = 0; g < 6; g++) {
                    uint8_t has = x.mask[g][l];
                    bool use_kv = kv ? (has & PLAN_HAS_KV) != 0 : (has & PLAN_HAS_H) == 0;
                    lost |= has == 0;
                    n_splits += g > 0 && use_kv != before;
                    before = use_kv;
                    n[use_kv] += x.range[g].n_tokens;
                    enum platform_record kind = use_kv ? RECORD_KV : RECORD_HIDDEN;
                    double n_tokens = (double)x.range[g].n_tokens;
                    double share = x.range[g].share[kind] > 0 ? x.range[g].share[kind] : 1;
                    io_s += fmax(
                        platform_stored_read_s(p, x.range[g].tier, x.range[g].n_tokens,
                                               kind, share),
                        platform_up_s(p, x.range[g].tier, x.range[g].n_tokens, kind));
                    unpack_s += share < 1
                                    ? platform_unpack_s(
                                          p, n_tokens * (use_kv ? p->kv_bytes : p->h_bytes))
                                    : 0;
                }
                const struct plan_layer *y = &x.layer[l];
                assert_int_equal(kv ? y->has_kv : y->has_h, !lost && n[kv] > 0);
                if (lost)
                    continue;
                double comp_s = platform_h_s(p, n[0]) + platform_kv_s(p, n[1]) +
                                n_splits * p->split_s + unpack_s;
                assert_int_equal(kv ? y->kv_splits : y->h_splits, n_splits);
                assert_true(fabs((kv ? y->io_kv_s : y->io_h_s) - io_s) <= 1e-9 * io_s);
                assert_true(fabs((kv ? y->comp_kv_s : y->comp_h_s) - comp_s) <=
                            1e-9 * comp_s);
            }
    }
}

/* ---- the cost of recomputation ---- */

/* Makes a request without records for the chain's platform. */
static void recompute_request(int64_t n_tokens, struct plan_request *q)
{
    struct rng r = {7};
    random_chain(&r, 6, 1, &x);
    for (int i = 0; i < 6; i++)
        x.layer[i] = (struct plan_layer){
            .comp_tok_s = platform_tok_s(&x.platform, n_tokens),
            .comp_tok_last_s = platform_h_s(&x.platform, n_tokens)};
    *q = (struct plan_request){
        .n_layers = 6, .layer = x.layer, .platform = &x.platform, .n_tokens = n_tokens};
}

/* 1000 tokens, windows of 100 tokens from layer 2 on, 5 recomputed layers. Layer 4 is only
 * projected. Layer 3 computes the 100 rows that layer 4's window sees. Layer 2 computes these and
 * the 100 rows before them. Layer 1 has no window: it computes 300 rows, and K and V of all rows.
 * Layer 0 is computed whole. */
TEST(a_layer_recomputes_what_the_windows_above_it_see)
{
    struct plan_request q;
    recompute_request(1000, &q);
    q.window = (struct plan_window){layer_set_run(2, PLAN_MAX_LAYERS), 100};
    const struct platform *p = &x.platform;
    for (int slowed = 0; slowed < 2; slowed++) {
        /* Decodes slow all of a recomputation, including K and V of rows outside the windows. */
        double slow = slowed ? 33 : 1;
        q.comp_slow = slowed ? slow : 0;
        for (int i = 0; slowed && i < 6; i++) {
            x.layer[i].comp_tok_s *= slow;
            x.layer[i].comp_tok_last_s *= slow;
        }
        assert_true(close_to(plan_recompute_s(&q, 4, 5), slow * platform_h_s(p, 1000)));
        assert_true(close_to(plan_recompute_s(&q, 3, 5),
                             slow * (platform_tok_s(p, 100) + platform_h_s(p, 100))));
        assert_true(close_to(plan_recompute_s(&q, 2, 5),
                             slow * (platform_tok_s(p, 200) + platform_h_s(p, 100))));
        assert_true(close_to(plan_recompute_s(&q, 1, 5),
                             slow * (platform_tok_s(p, 300) + platform_h_s(p, 700))));
        assert_true(close_to(plan_recompute_s(&q, 0, 5), slow * platform_tok_s(p, 1000)));
    }
}

/* Windows that are longer than the history save nothing. */
TEST(wide_windows_recompute_everything)
{
    struct plan_request q;
    recompute_request(400, &q);
    q.window = (struct plan_window){layer_set_run(0, PLAN_MAX_LAYERS), 200};
    assert_true(close_to(plan_recompute_s(&q, 1, 4), platform_tok_s(&x.platform, 400)));
    assert_true(plan_recompute_s(&q, 2, 4) < platform_tok_s(&x.platform, 400));
}

TEST(sums_of_recomputation_are_sums)
{
    struct plan_request q;
    double sum_s[PLAN_MAX_LAYERS + 1];
    recompute_request(1000, &q);
    for (int i = 0; i < 6; i++)
        x.layer[i].comp_tok_s *= 1 + i;
    for (int tokens = 0; tokens <= 400; tokens += 100)
        for (uint64_t windowed = 0; windowed < 64; windowed++) { /* every set of 6 layers */
            q.window = (struct plan_window){{{windowed}}, tokens};
            plan_recompute_sums(&q, sum_s);
            for (int r = 0; r <= 6; r++) {
                double want = 0;
                for (int i = 0; i < r; i++)
                    want += plan_recompute_s(&q, i, r);
                assert_true(close_to(sum_s[r], want));
            }
        }
}

/* Decodes slow every cost of compute and no cost of reading. */
TEST(decodes_slow_all_compute)
{
    struct rng r = {8};
    static struct range_sums s;
    static struct plan_layer alone[8];
    double prefill_s[8];
    random_chain(&r, 8, 6, &x);
    for (int g = 0; g < 6; g++)
        memset(x.mask[g], PLAN_HAS_H | PLAN_HAS_KV, 8);
    struct stored_ranges c = ranges_of(6, 100, &s);
    x.req = (struct plan_request){0};
    range_request(&c, &s, &x.req);
    double head_s = x.req.head_s;
    memcpy(alone, x.layer, sizeof alone);
    memcpy(prefill_s, x.prefill_s, sizeof prefill_s);
    x.req = (struct plan_request){.comp_slow = 3, .prefill_slow = 2};
    range_request(&c, &s, &x.req);
    assert_true(close_to(x.req.head_s, 2 * head_s));
    for (int i = 0; i < 8; i++) {
        const struct plan_layer *l = &x.layer[i];
        assert_true(close_to(l->comp_h_s, 3 * alone[i].comp_h_s));
        assert_true(close_to(l->comp_kv_s, 3 * alone[i].comp_kv_s));
        assert_true(close_to(l->comp_tok_s, 3 * alone[i].comp_tok_s));
        assert_true(close_to(l->comp_tok_last_s, 3 * alone[i].comp_tok_last_s));
        assert_true(l->io_h_s == alone[i].io_h_s && l->io_kv_s == alone[i].io_kv_s);
        assert_true(close_to(x.prefill_s[i], 2 * prefill_s[i]));
    }
}

/* The makespan that is computed without events equals that of the event simulation, also if the
 * lanes slow each other. */
TEST(makespans_agree)
{
    static struct pipeline events;
    struct pipe_job job[16];
    double prefill_s[16];
    struct rng r = {9};
    for (int t = 0; t < 20000; t++) {
        int n = between(&r, 1, 16), n_r = between(&r, 0, n);
        struct pipe_load load = {.job = job,
                                 .n_jobs = n,
                                 .n_layers = n,
                                 .n_stages = 1,
                                 .prefill_s = rng_below(&r, 2) ? prefill_s : NULL,
                                 .fused = rng_below(&r, 2),
                                 .head_s = rng_unit(&r),
                                 .latency_s = rng_below(&r, 2) ? rng_unit(&r) : 0,
                                 .io_overlap = 1 + (double)rng_below(&r, 2) * rng_unit(&r),
                                 .comp_overlap = 1 +
                                                 (double)rng_below(&r, 2) * rng_unit(&r)};
        for (int i = 0; i < n; i++) {
            prefill_s[i] = rng_unit(&r);
            job[i] = (struct pipe_job){.io_s = i < n_r ? 0 : (double)rng_below(&r, 4),
                                       .comp_s = (double)rng_below(&r, 3) * rng_unit(&r),
                                       .layer = (int16_t)i,
                                       .method = i < n_r ? 'R' : 'K'};
        }
        double whole_s = pipe_run(&load, &events), quick_s = pipe_run(&load, NULL);
        assert_true(fabs(whole_s - quick_s) <= 1e-9 * whole_s);
    }
}

/* ---- make plan-check ---- */

static void check(const struct shape *s, int n_chains, uint64_t seed)
{
    int n = compare(s, n_chains, seed, took_s);
    qsort(took_s, (size_t)n, sizeof *took_s, by_size);
    print_message("# %d layers, %d ranges: %.2f ms at the median, 99 %% within %.2f ms\n",
                  s->most_layers, s->most_ranges, took_s[n / 2] * 1e3,
                  took_s[n * 99 / 100] * 1e3);
    assert_true(took_s[n * 99 / 100] <= MOST_S);
}

static void check_plain(void **state)
{
    const struct shape s = {80, 80, 300, 300, INFINITY};
    check(&s, 300, 21);
}

static void check_small(void **state)
{
    const struct shape s = {1, 12, 1, 24, INFINITY};
    check(&s, 3000, 23);
}

/* Before a snapshot recurrent layers need a state and no records. Behind it they need inputs: where
 * these are missing, a forced plan ends at the snapshot. */
TEST(a_snapshot_replaces_records)
{
    enum { S = PLAN_STATE, H = PLAN_HAS_H, KV = PLAN_HAS_KV };
    static const uint8_t states[] = {S, S, S, KV}, inputs[] = {H, H, H, KV},
                         bare[] = {0, 0, 0, KV};
    struct plan_layer layer[4];
    double prefill_s[4], restore_s[3];
    struct platform p = {.n_layers = 4,
                         .n_tiers = 1,
                         .tier[0].bytes_per_s = 1e9,
                         .h_bytes = 1000,
                         .kv_bytes = 1000,
                         .c_tok = {.b_s = 1e-3},
                         .c_h = {.b_s = 1e-4},
                         .c_kv = {.b_s = 1e-6}};
    const uint8_t *behind[] = {inputs, bare, inputs};
    for (int i = 0; i < 3; i++) {
        const struct plan_range ranges[] = {{.n_tokens = 2048,
                                             .mask = i == 2 ? inputs : states,
                                             .state_bytes = i == 2 ? 0 : 1e6},
                                            {.n_tokens = 512, .mask = behind[i]}};
        struct plan_request q = {.mode = PLAN_KV};
        struct plan out;
        int n_used = -1;
        assert_int_equal(plan_best_prefix(&p, ranges, 2, 1, true, layer, prefill_s, &q,
                                          &out, &n_used, NULL),
                         0);
        assert_int_equal(n_used, i == 1 ? 1 : 2);
        assert_int_equal(out.n_r, 0);
        restore_s[i] = out.restore_s;
        if (i < 2) {
            double rows = i == 0 ? 512 : 0;
            assert_true(layer[1].io_h_s >= 1e6 / 1e9 + rows * 1000 / 1e9);
            assert_true(layer[1].io_h_s < 1e6 / 1e9 + rows * 1000 / 1e9 + 1e-4);
            assert_true(layer[1].comp_h_s < rows * 1e-4 + 2e-3);
            assert_true(layer[1].comp_tok_last_s < rows * 1e-4 + 1e-9);
        }
    }
    /* without the snapshot all 2,560 tokens of three layers are replayed */
    assert_true(restore_s[0] < 0.3 * restore_s[2]);
    assert_true(restore_s[1] < 0.1 * restore_s[0]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest checks[] = {
        cmocka_unit_test(check_plain),
        cmocka_unit_test(check_small),
    };
    if (argc > 1 && strcmp(argv[1], "check") == 0)
        return cmocka_run_group_tests(checks, NULL, NULL);
    return unit_run(NULL, NULL);
}
