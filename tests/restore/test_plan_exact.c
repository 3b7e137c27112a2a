/* test_plan_exact.c - compares the planner with brute force and with every alternative.
 *
 * Brute force does not use Johnson's rule. It tries every admissible assignment of letters and
 * every order of reads, and times them with the event simulation.  HCACHE_PLANS=N compares N times
 * as many instances. */
#include "tests/unit.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "restore/pipeline.h"
#include "restore/plan.h"
#include "tests/restore/plantest.h"

static const double EPS = 1e-9;

/* Returns the number of instances that are compared instead of n. */
static int times(int n)
{
    const char *text = getenv("HCACHE_PLANS");
    return text != NULL ? n * atoi(text) : n;
}

struct instance {
    struct plan_request req;
    struct plan_layer layer[PLAN_MAX_LAYERS];
    double prefill_s[PLAN_MAX_LAYERS];
};

struct shape {
    int min_layers, max_layers;
    bool uniform, holes, overlap, budget;
    int fused;    /* whether prefill is fused: 0 no, 1 at random, 2 always */
    bool slow_kv; /* placing K and V may take longer than projecting a hidden state */
};

/* Draws a time within three decades, as on real machines; sometimes zero. */
static double random_time(struct rng *r)
{
    if (rng_below(r, 24) == 0)
        return 0;
    return exp(log(1e-3) + rng_unit(r) * log(1e3));
}

static struct plan_layer random_layer(struct rng *r, const struct shape *s)
{
    struct plan_layer l = {.has_h = true, .has_kv = true, .can_recompute = true};
    l.io_h_s = random_time(r);
    l.io_kv_s = rng_below(r, 2) ? 2 * l.io_h_s : l.io_h_s * (0.25 + rng_unit(r));
    l.comp_h_s = random_time(r);
    l.comp_kv_s = l.comp_h_s * (rng_below(r, 3) ? 0.1 : 0) * rng_unit(r);
    l.comp_tok_s = l.comp_h_s * (1 + 9 * rng_unit(r));
    l.comp_tok_last_s = l.comp_h_s;
    l.h_bytes = 2;
    l.kv_bytes = rng_below(r, 2) ? 4 : 1;
    if (s->slow_kv)
        l.comp_kv_s = 4 * l.comp_h_s * rng_unit(r);
    if (s->holes) {
        l.has_h = rng_below(r, 4) != 0;
        l.has_kv = rng_below(r, 4) != 0;
    }
    return l;
}

static void random_instance(struct rng *r, const struct shape *s, struct instance *x)
{
    memset(x, 0, sizeof *x);
    int n = s->min_layers +
            (int)rng_below(r, (uint64_t)(s->max_layers - s->min_layers + 1));
    x->req = (struct plan_request){.n_layers = n, .layer = x->layer};
    x->layer[0] = random_layer(r, s);
    for (int i = 1; i < n; i++)
        x->layer[i] = s->uniform ? x->layer[0] : random_layer(r, s);
    x->layer[0].h_free = rng_below(r, 4) != 0;
    bool recompute = rng_below(r, 8) != 0;
    for (int i = 0; i < n; i++)
        x->layer[i].can_recompute = recompute || (x->layer[i].has_h && rng_below(r, 2));
    if (s->uniform)
        for (int i = 0; i < n; i++)
            x->layer[i].can_recompute = recompute;
    if (s->fused == 2 || (s->fused == 1 && rng_below(r, 2))) {
        double p = random_time(r);
        for (int i = 0; i < n; i++)
            x->prefill_s[i] = s->uniform ? p : random_time(r);
        x->req.prefill_s = x->prefill_s;
        x->req.fused = s->fused == 2 || rng_below(r, 4) != 0;
        x->req.head_s = random_time(r);
    }
    if (rng_below(r, 2))
        x->req.io_latency_s = random_time(r);
    if (s->overlap) {
        x->req.io_overlap = 1 + rng_unit(r);
        x->req.comp_overlap = 1 + rng_unit(r);
    }
    if (s->budget)
        x->req.budget_bytes_per_token = n * (0.5 + 3 * rng_unit(r));
}

static bool can(const struct plan_request *q, int i, char m)
{
    const struct plan_layer *l = &q->layer[i];
    return m == 'K' ? l->has_kv : l->has_h || l->h_free;
}

static double brute_force(const struct plan_request *q, bool with_orders)
{
    int n = q->n_layers, r_max = 0;
    double best = INFINITY;
    while (r_max < n && q->layer[r_max].can_recompute)
        r_max++;
    if (r_max == 0 && q->layer[0].h_free)
        r_max = 1;
    for (int r = 0; r <= r_max; r++)
        for (int bits = 0; bits < 1 << (n - r); bits++) {
            struct plan p = {.n_layers = n};
            double bytes = 0;
            bool ok = true;
            memset(p.method, 'R', (size_t)r);
            for (int i = r; i < n && ok; i++) {
                char m = bits >> (i - r) & 1 ? 'H' : 'K';
                const struct plan_layer *l = &q->layer[i];
                ok = can(q, i, m);
                p.method[i] = m;
                if ((m == 'K' && l->io_kv_s > 0) ||
                    (m == 'H' && !l->h_free && l->io_h_s > 0))
                    p.io_order[p.n_io++] = (int16_t)i;
                bytes += m == 'K' ? l->kv_bytes : l->h_free ? 0 : l->h_bytes;
            }
            if (!ok || (q->budget_bytes_per_token > 0 && bytes > q->budget_bytes_per_token))
                continue;
            if (with_orders) {
                best = fmin(best, all_orders(q, &p));
                continue;
            }
            struct plan_request forced = *q;
            struct plan best_order;
            forced.mode = PLAN_FORCED_LAYERS;
            forced.forced_layers = p.method;
            assert_int_equal(plan_make(&forced, &best_order, NULL), 0);
            best = fmin(best, best_order.predicted_s);
        }
    return best;
}

static void compare(const struct shape *s, int n_instances, uint64_t seed, bool with_orders,
                    double tolerance, int most_worse)
{
    struct rng r = {seed};
    struct instance x;
    struct plan p;
    struct err e;
    int n_worse = 0, n_inexact = 0;
    double worst = 0;
    for (int t = 0; t < n_instances; t++) {
        random_instance(&r, s, &x);
        double want = brute_force(&x.req, with_orders);
        int rc = plan_make(&x.req, &p, &e);
        if (isinf(want)) {
            assert_int_not_equal(rc, 0);
            continue;
        }
        if (rc != 0)
            fail_msg("instance %d: %s", t, e.msg);
        n_inexact += !p.exact;
        double off = want > 0 ? p.predicted_s / want - 1 : p.predicted_s;
        worst = fmax(worst, off);
        n_worse += off > EPS;
        if (off < -EPS)
            fail_msg("instance %d: %g is better than every schedule (%g)", t, p.predicted_s,
                     want);
        if (off > tolerance + EPS)
            fail_msg("instance %d: %s takes %.9g, the best is %.9g", t, p.method,
                     p.predicted_s, want);
    }
    print_message(
        "# %d instances: %d above the optimum, at most by %.3g; %d searches cut short\n",
        n_instances, n_worse, worst, n_inexact);
    assert_int_equal(n_inexact, 0);
    assert_in_range(n_worse, 0, most_worse);
}

/* ---- brute force over assignments and orders ---- */

TEST(test_uniform)
{
    compare(&(struct shape){.min_layers = 1, .max_layers = 6, .uniform = true}, times(150),
            1, true, 0, 0);
}

TEST(test_uniform_seven_layers)
{
    compare(&(struct shape){.min_layers = 7, .max_layers = 7, .uniform = true}, times(1), 2,
            true, 0, 0);
}

TEST(test_uniform_fused)
{
    compare(&(struct shape){.min_layers = 1, .max_layers = 5, .uniform = true, .fused = 2},
            times(500), 3, true, 0, 0);
}

TEST(test_different_layers)
{
    compare(&(struct shape){.min_layers = 1, .max_layers = 5, .holes = true, .fused = 1},
            times(700), 4, true, 0, 0);
}

TEST(test_different_layers_fused)
{
    compare(&(struct shape){.min_layers = 2, .max_layers = 5, .fused = 2}, times(500), 5,
            true, 0, 0);
}

TEST(test_budget)
{
    struct shape s = {
        .min_layers = 1, .max_layers = 5, .holes = true, .budget = true, .fused = 1};
    compare(&s, times(350), 6, true, 0, 0);
    s.uniform = true;
    s.holes = false;
    compare(&s, times(350), 7, true, 0, 0);
}

TEST(test_slow_kv)
{
    struct shape s = {.min_layers = 1, .max_layers = 5, .slow_kv = true, .fused = 1};
    compare(&s, times(100), 13, true, 0, 0);
    s.uniform = true;
    compare(&s, times(350), 14, true, 0, 0);
}

/* Compares with all assignments in the planner's own order of reads, for more layers. */
TEST(test_assignments_of_ten_layers)
{
    compare(&(struct shape){.min_layers = 8, .max_layers = 10, .holes = true, .fused = 1},
            times(50), 8, false, 0, 0);
}

/* If the lanes slow each other, Johnson's rule is not a theorem; this test bounds what it loses.
 * Factors up to 2, and latencies as long as reads, are far from any real machine. Even so nearly
 * all plans are optimal. */
TEST(test_overlap)
{
    struct shape s = {.min_layers = 1, .max_layers = 5, .overlap = true, .fused = 1};
    compare(&s, 1500, 9, true, 0.09, 49);
    s.uniform = true;
    compare(&s, 1500, 10, true, 0.09, 12);
}

/* ---- every alternative, many instances ---- */

static double predicted(struct plan_request q, enum plan_mode mode)
{
    struct plan p;
    q.mode = mode;
    return plan_make(&q, &p, NULL) == 0 ? p.predicted_s : INFINITY;
}

static double predicted_counts(struct plan_request q, int r, int h)
{
    char m[PLAN_MAX_LAYERS + 1] = {0};
    memset(m, 'R', (size_t)r);
    memset(m + r, 'H', (size_t)h);
    memset(m + r + h, 'K', (size_t)(q.n_layers - r - h));
    q.forced_layers = m;
    return predicted(q, PLAN_FORCED_LAYERS);
}

static double predicted_random(struct plan_request q, struct rng *r)
{
    char m[PLAN_MAX_LAYERS + 1] = {0};
    int n_r = (int)rng_below(r, (uint64_t)q.n_layers + 1);
    for (int i = 0; i < q.n_layers; i++)
        m[i] = i < n_r ? 'R' : rng_below(r, 2) ? 'H' : 'K';
    q.forced_layers = m;
    return predicted(q, PLAN_FORCED_LAYERS);
}

/* If the lanes overlap, the search does not try r = 0 followed by H. That plan may be a percent
 * faster if the lanes slow each other nearly as much as overlap gains. So random assignments are
 * compared only without overlap. */
static void never_worse(const struct shape *s, int n_instances, uint64_t seed)
{
    struct rng r = {seed};
    static struct instance x;
    struct plan best;
    int n_exact = 0, n_made = 0, n_gain = 0;
    const enum plan_mode modes[] = {PLAN_HIDDEN, PLAN_KV, PLAN_RECOMPUTE, PLAN_KV_RECOMPUTE,
                                    PLAN_PAPER};
    for (int t = 0; t < n_instances; t++) {
        random_instance(&r, s, &x);
        int n = x.req.n_layers;
        int rc = plan_make(&x.req, &best, NULL);
        double least = INFINITY, single = INFINITY;
        for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
            double got = predicted(x.req, modes[m]);
            least = fmin(least, got);
            single = m < 3 ? fmin(single, got) : single;
        }
        int n_r = (int)rng_below(&r, (uint64_t)n + 1);
        least = fmin(least, predicted_counts(x.req, n_r,
                                             (int)rng_below(&r, (uint64_t)(n - n_r + 1))));
        if (!s->overlap)
            least = fmin(least, predicted_random(x.req, &r));
        if (rc != 0) {
            assert_true(isinf(least));
            continue;
        }
        if (best.predicted_s > least * (1 + EPS) + 1e-15)
            fail_msg("instance %d, %d layers: %s takes %.9g, an alternative %.9g", t, n,
                     best.method, best.predicted_s, least);
        n_made++;
        n_exact += best.exact;
        n_gain += best.predicted_s < 0.9 * single;
    }
    print_message(
        "# %d plans, %d searches complete, %d more than 10 %% faster than the best single "
        "method\n",
        n_made, n_exact, n_gain);
}

TEST(test_never_worse_uniform)
{
    never_worse(
        &(struct shape){.min_layers = 1, .max_layers = 40, .uniform = true, .fused = 1},
        times(10000), 11);
}

TEST(test_never_worse_different)
{
    never_worse(
        &(struct shape){.min_layers = 1, .max_layers = 12, .holes = true, .fused = 1},
        times(6000), 12);
}

TEST(test_never_worse_large_different)
{
    never_worse(&(struct shape){.min_layers = 20, .max_layers = 100, .fused = 1}, times(60),
                13);
}

TEST(test_never_worse_overlap)
{
    never_worse(&(struct shape){.min_layers = 1,
                                .max_layers = 24,
                                .uniform = true,
                                .overlap = true,
                                .fused = 1},
                times(4000), 14);
}

/* ---- more resources never hurt ---- */

static double scaled(const struct instance *x, double io, double comp)
{
    static struct instance y;
    y = *x;
    y.req.layer = y.layer;
    y.req.prefill_s = x->req.prefill_s != NULL ? y.prefill_s : NULL;
    for (int i = 0; i < y.req.n_layers; i++) {
        struct plan_layer *l = &y.layer[i];
        l->io_h_s *= io;
        l->io_kv_s *= io;
        l->comp_h_s *= comp;
        l->comp_kv_s *= comp;
        l->comp_tok_s *= comp;
        l->comp_tok_last_s *= comp;
        y.prefill_s[i] *= comp;
    }
    return predicted(y.req, PLAN_AUTO);
}

TEST(test_monotone)
{
    struct rng r = {15};
    static struct instance x;
    const struct shape s = {.min_layers = 1, .max_layers = 32, .uniform = true, .fused = 1};
    for (int t = 0; t < times(600); t++) {
        random_instance(&r, &s, &x);
        double base = predicted(x.req, PLAN_AUTO), f = rng_unit(&r), g = rng_unit(&r);
        if (isinf(base))
            continue;
        assert_true(scaled(&x, f, 1) <= base * (1 + EPS));
        assert_true(scaled(&x, 1, g) <= base * (1 + EPS));
        assert_true(scaled(&x, f * g, g) <= scaled(&x, f, 1) * (1 + EPS));
        x.layer[0].h_free = true; /* a further record never hurts */
        assert_true(predicted(x.req, PLAN_AUTO) <= base * (1 + EPS));
    }
}

/* ---- time ---- */

/* Returns the mean planning time in us. *quickest_us gets the least time, which is reliable even on
 * a busy machine. */
static double planning_us(int n_layers, bool uniform, bool fused, bool overlap,
                          int *n_exact, double *quickest_us)
{
    struct rng r = {16};
    static struct instance x;
    struct plan p;
    const struct shape s = {.min_layers = n_layers,
                            .max_layers = n_layers,
                            .uniform = uniform,
                            .fused = fused ? 2 : 0,
                            .overlap = overlap};
    int64_t total = 0;
    int n = 10;
    *n_exact = 0;
    *quickest_us = 1e9;
    for (int t = 0; t < n; t++) {
        random_instance(&r, &s, &x);
        int64_t start = clock_now_ns();
        assert_int_equal(plan_make(&x.req, &p, NULL), 0);
        int64_t took = clock_now_ns() - start;
        total += took;
        *quickest_us = fmin(*quickest_us, (double)took / 1000);
        *n_exact += p.exact;
    }
    return (double)total / n / 1000;
}

TEST(test_time)
{
    const int sizes[] = {12, 32, 80, 100};
    for (int i = 0; i < 4; i++)
        for (int kind = 0; kind < 8; kind++) {
            bool uniform = !(kind & 1), fused = kind & 2, overlap = kind & 4;
            int n_exact;
            double quickest_us;
            double us = planning_us(sizes[i], uniform, fused, overlap, &n_exact,
                                    &quickest_us);
            print_message("# %3d layers, %s%s%s: %.0f us, %d of 10 searches complete\n",
                          sizes[i], uniform ? "alike" : "all different",
                          fused ? ", fused" : "", overlap ? ", overlap" : "", us, n_exact);
            /* Far above the values in docs/RESTORATION.md, because sanitizers and busy machines
             * are slow. An unbounded search would take years. */
            assert_true(quickest_us < 1e6);
        }
}
