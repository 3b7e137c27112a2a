/* test_plan_decisions.c - which plans the planner makes, number by number, for seeded requests.
 *
 * Other tests judge plans: test_plan_exact.c against brute force, test_plan_cut.c against full
 * searches. A search that ends early, or a sum with a wrong term, may pass there, because another
 * plan is as good or nearly so. Here every number of a plan is compared with a golden file, and so
 * is the number of steps that a complete search takes. A change that is meant to change plans
 * writes the files anew (tests/base/golden.h). Its diff shows each plan that is different. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include <math.h>

#include "restore/pipeline.h"
#include "tests/base/golden.h"
#include "tests/restore/chains.h"

#define GOLDEN "tests/restore/golden/decisions.txt"

/* ---- what is told of a plan ---- */

/* Tells letters as runs: RRHHHK is "R2 H3 K1". */
static void tell_letters(struct textbuf *b, const char *method)
{
    for (int i = 0, n; method[i] != 0; i += n) {
        n = (int)strspn(method + i, (char[]){method[i], 0});
        textbuf_addf(b, " %c%d", method[i], n);
    }
}

/* Tells the order of reads as rising runs of layers: 3, 4, 5, 1 is "3-5 1". */
static void tell_order(struct textbuf *b, const struct plan *p)
{
    textbuf_addf(b, "    reads");
    for (int i = 0, end; i < p->n_io; i = end) {
        for (end = i + 1; end < p->n_io && p->io_order[end] == p->io_order[end - 1] + 1;)
            end++;
        textbuf_addf(b, end > i + 1 ? " %d-%d" : " %d", p->io_order[i],
                     p->io_order[end - 1]);
    }
    textbuf_addf(b, "\n");
}

static void tell_numbers(struct textbuf *b, const struct plan *p)
{
    textbuf_addf(b, " = %d R, %d H, %d K%s, %.6g ms\n", p->n_r, p->n_h, p->n_k,
                 p->exact ? ", exact" : "", p->predicted_s * 1e3);
    textbuf_addf(b, "    restore %.6g ms, I/O %.6g, compute %.6g, bubble %.4f, %.6g bytes",
                 p->restore_s * 1e3, p->io_busy_s * 1e3, p->comp_busy_s * 1e3, p->bubble,
                 p->stored_bytes_per_token);
    textbuf_addf(b, ", passed %.6g ms\n", p->passed_gain_s * 1e3);
}

static void tell(struct textbuf *b, const char *name, int rc, const struct plan *p,
                 const struct err *e)
{
    textbuf_addf(b, "  %s:", name);
    if (rc != 0) {
        textbuf_addf(b, " error %d, %s\n", rc, e->msg);
        return;
    }
    tell_letters(b, p->method);
    tell_numbers(b, p);
    if (p->n_io > 0)
        tell_order(b, p);
    textbuf_addf(b, "    %s\n", p->reason);
    if (p->n_r_added > 0)
        textbuf_addf(b, "    %d R added\n", p->n_r_added);
}

/* ---- requests ---- */

struct shape {
    const char *name;
    int n_layers, n_stages;
    bool alike, holes, fused, overlap, budget, doubted;
};

static const struct shape shapes[] = {
    {.name = "alike", .n_layers = 12, .n_stages = 1, .alike = true},
    {.name = "alike, fused", .n_layers = 12, .n_stages = 1, .alike = true, .fused = true},
    {.name = "alike, a budget",
     .n_layers = 12,
     .n_stages = 1,
     .alike = true,
     .budget = true},
    {.name = "alike, lanes that slow each other",
     .n_layers = 12,
     .n_stages = 1,
     .alike = true,
     .overlap = true},
    {.name = "alike, doubted",
     .n_layers = 12,
     .n_stages = 1,
     .alike = true,
     .doubted = true},
    {.name = "different", .n_layers = 11, .n_stages = 1},
    {.name = "different, fused", .n_layers = 11, .n_stages = 1, .fused = true},
    {.name = "different, a budget", .n_layers = 11, .n_stages = 1, .budget = true},
    {.name = "different, records missing", .n_layers = 11, .n_stages = 1, .holes = true},
    {.name = "different, fused, lanes that slow each other",
     .n_layers = 9,
     .n_stages = 1,
     .fused = true,
     .overlap = true},
    {.name = "different, doubted, records missing",
     .n_layers = 10,
     .n_stages = 1,
     .holes = true,
     .doubted = true},
    {.name = "many different", .n_layers = 40, .n_stages = 1, .fused = true, .holes = true},
    {.name = "two stages", .n_layers = 12, .n_stages = 2, .alike = true},
    {.name = "three stages, different", .n_layers = 13, .n_stages = 3},
    {.name = "four stages, different, fused",
     .n_layers = 14,
     .n_stages = 4,
     .fused = true,
     .holes = true},
    {.name = "two stages, a budget", .n_layers = 10, .n_stages = 2, .budget = true},
};

enum { N_SHAPES = sizeof shapes / sizeof *shapes, INSTANCES = 3 };

struct instance {
    struct plan_request req;
    struct plan_layer layer[PLAN_MAX_LAYERS];
    double prefill_s[PLAN_MAX_LAYERS];
};

static double seconds(struct rng *r)
{
    return 1e-3 * exp(rng_unit(r) * log(100));
}

static struct plan_layer draw_layer(struct rng *r, const struct shape *s)
{
    struct plan_layer l = {.has_h = true, .has_kv = true, .can_recompute = true};
    l.io_h_s = seconds(r);
    l.io_kv_s = rng_below(r, 2) ? 2 * l.io_h_s : l.io_h_s * (0.25 + rng_unit(r));
    l.up_h_s = s->n_stages > 1 ? seconds(r) : 0;
    l.up_kv_s = s->n_stages > 1 ? l.up_h_s * (0.5 + rng_unit(r)) : 0;
    l.comp_h_s = seconds(r);
    l.comp_kv_s = l.comp_h_s * 0.2 * rng_unit(r);
    l.comp_tok_s = l.comp_h_s * (1 + 4 * rng_unit(r));
    l.comp_tok_last_s = l.comp_h_s;
    l.h_bytes = 2048;
    l.kv_bytes = rng_below(r, 2) ? 4096 : 1024;
    l.has_h = !s->holes || rng_below(r, 5) != 0;
    l.has_kv = !s->holes || rng_below(r, 5) != 0;
    return l;
}

static void draw(struct rng *r, const struct shape *s, struct instance *x)
{
    int n = s->n_layers;
    memset(x, 0, sizeof *x);
    x->req = (struct plan_request){
        .n_layers = n, .n_stages = s->n_stages, .layer = x->layer};
    for (int i = 0; i < n; i++) {
        x->layer[i] = s->alike && i > 0 ? x->layer[0] : draw_layer(r, s);
        x->prefill_s[i] = s->alike && i > 0 ? x->prefill_s[0] : seconds(r);
    }
    bool recomputes = rng_below(r, 4) != 0;
    for (int i = 0; i < n; i++)
        x->layer[i].can_recompute = recomputes || (s->holes && i < n / 2);
    x->layer[0].h_free = rng_below(r, 3) != 0;
    x->req.io_latency_s = rng_below(r, 2) ? seconds(r) : 0;
    if (s->fused || rng_below(r, 2)) {
        x->req.prefill_s = x->prefill_s;
        x->req.fused = s->fused;
        x->req.head_s = seconds(r);
    }
    if (s->overlap) {
        x->req.io_overlap = 1 + 0.5 * rng_unit(r);
        x->req.comp_overlap = 1 + 0.5 * rng_unit(r);
    }
    if (s->budget)
        x->req.budget_bytes_per_token = n * (1024 + 1024 * rng_unit(r));
    if (s->doubted)
        x->req.spread = 1.1 + 0.5 * rng_unit(r);
}

static struct instance x;
static struct plan plan;
static struct err e;

/* Plans of every mode for requests of every shape. */
TEST(plans_are_the_golden_ones)
{
    static const char *const modes[] = {"auto",      "hidden",       "kv",
                                        "recompute", "kv+recompute", "paper"};
    struct textbuf b = {0};
    for (int i = 0; i < N_SHAPES; i++)
        for (int k = 0; k < INSTANCES; k++) {
            struct rng r = {1000 * (uint64_t)i + (uint64_t)k};
            draw(&r, &shapes[i], &x);
            textbuf_addf(&b, "%s, %d\n", shapes[i].name, k);
            for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
                assert_int_equal(plan_mode_parse(modes[m], &x.req, &e), 0);
                tell(&b, modes[m], plan_make(&x.req, &plan, &e), &plan, &e);
            }
            char letters[PLAN_MAX_LAYERS + 1] = "RR";
            int n = shapes[i].n_layers;
            memset(letters + 2, 'H', (size_t)(n - 2 - n / 3));
            memset(letters + n - n / 3, 'K', (size_t)(n / 3));
            assert_int_equal(plan_mode_parse(letters, &x.req, &e), 0);
            tell(&b, letters, plan_make(&x.req, &plan, &e), &plan, &e);
        }
    golden_digests(&b, GOLDEN, "plans");
}

/* ---- searches ---- */

/* Returns the least number of steps with which the search is complete; 30,000 if it needs more. */
static long steps_of(const struct plan_request *q)
{
    long lo = 0, hi = plan_effort_full.steps;
    while (lo + 1 < hi) {
        const struct plan_effort some = {.steps = (lo + hi) / 2};
        if (plan_search(q, &some, false, &plan, &e) == 0 && plan.exact)
            hi = some.steps;
        else
            lo = some.steps;
    }
    return hi;
}

/* Results of searches that are cut short, quick or allowed to be slightly wrong, and the number of
 * steps of a complete search. */
TEST(searches_take_the_golden_steps)
{
    static const long steps[] = {1, 20, 40, 80, 200, 500, 2000};
    struct textbuf b = {0};
    for (int i = 0; i < N_SHAPES; i++)
        for (int k = 0; k < 2 * INSTANCES; k++) {
            struct rng r = {70000 + 1000 * (uint64_t)i + (uint64_t)k};
            draw(&r, &shapes[i], &x);
            textbuf_addf(&b, "%s, %d: %ld steps\n", shapes[i].name, k, steps_of(&x.req));
            for (int how = 0; how < 14; how++) {
                struct plan_effort some = {.steps = steps[how / 2], .quick = how % 2};
                some.slack = how / 2 == 6 ? 0.02 : 0;
                int rc = plan_search(&x.req, &some, false, &plan, &e);
                textbuf_addf(&b, "  %ld%s:", some.steps, some.quick ? ", quick" : "");
                if (rc == 0)
                    tell_letters(&b, plan.method);
                textbuf_addf(&b, rc == 0 ? ", %.6g ms%s\n" : " none\n",
                             plan.predicted_s * 1e3, plan.exact ? ", exact" : "");
            }
        }
    golden_digests(&b, GOLDEN, "searches");
}

/* ---- chains ---- */

static struct random_chain c;

static void tell_chain(struct textbuf *b, const char *mode)
{
    int n_used = -1;
    assert_int_equal(plan_mode_parse(mode, &c.req, &e), 0);
    int rc = random_chain_plan(&c, &plan, &n_used, &e);
    textbuf_addf(b, "  %d ranges used\n", n_used);
    tell(b, mode, rc, &plan, &e);
    if (rc != 0 || n_used == 0)
        return;
    const struct plan_request *q = &c.req;
    textbuf_addf(b,
                 "    request: latency %.6g ms, spread %.6g, head %.6g ms, tier %d, %lld "
                 "tokens\n",
                 q->io_latency_s * 1e3, q->spread, q->head_s * 1e3, q->tier,
                 (long long)q->n_tokens);
    for (int i = 0; i < q->n_layers; i += 1 + q->n_layers / 3) {
        const struct plan_layer *l = &q->layer[i];
        textbuf_addf(b, "    layer %d: %.6g %.6g %.6g %.6g %.6g %.6g us,", i,
                     l->io_h_s * 1e6, l->io_kv_s * 1e6, l->comp_h_s * 1e6,
                     l->comp_kv_s * 1e6, l->h_load_s * 1e6, l->kv_project_s * 1e6);
        textbuf_addf(b, " %.6g %.6g %.6g us, %.6g %.6g bytes, %d%d%d\n",
                     l->comp_tok_s * 1e6, l->comp_tok_last_s * 1e6,
                     q->prefill_s != NULL ? q->prefill_s[i] * 1e6 : 0, l->h_bytes,
                     l->kv_bytes, l->has_h, l->has_kv, l->can_recompute);
    }
}

/* Cuts and plans of chains, and the requests that the cuts make. */
TEST(cuts_are_the_golden_ones)
{
    static const char *const modes[] = {"hidden", "kv", "kv+recompute", "paper"};
    static const struct {
        int n_layers, n_ranges, n;
    } sizes[] = {{3, 4, 12}, {12, 24, 20}, {20, 90, 10}, {48, 200, 8}, {80, 300, 6}};
    struct textbuf b = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int k = 0; k < sizes[i].n; k++) {
            struct rng r = {500 * (uint64_t)(i + 1) + (uint64_t)k};
            random_chain(&r, sizes[i].n_layers, sizes[i].n_ranges, &c);
            textbuf_addf(&b, "%d layers, %d ranges, %d\n", sizes[i].n_layers,
                         sizes[i].n_ranges, k);
            tell_chain(&b, "auto");
            tell_chain(&b, modes[k % 4]);
        }
    golden_digests(&b, GOLDEN, "cuts");
}

/* Cuts of long chains, which are found by few estimates. Only the number of ranges, the time and
 * the letters are told. */
TEST(cuts_of_long_chains_are_the_golden_ones)
{
    static const struct {
        int n_layers, n_ranges, n;
    } sizes[] = {{2, 500, 20},  {16, 400, 40}, {17, 200, 40}, {40, 120, 60},
                 {80, 300, 80}, {40, 3, 40},   {80, 5, 40},   {20, 6, 40}};
    struct textbuf b = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int k = 0; k < sizes[i].n; k++) {
            struct rng r = {20000 * (uint64_t)(i + 1) + (uint64_t)k};
            int n_used = -1;
            random_chain(&r, sizes[i].n_layers, sizes[i].n_ranges, &c);
            int rc = random_chain_plan(&c, &plan, &n_used, &e);
            textbuf_addf(&b, "%d %d %d: %d %.6g ms", sizes[i].n_layers, sizes[i].n_ranges,
                         k, n_used, plan.predicted_s * 1e3);
            if (rc == 0)
                tell_letters(&b, plan.method);
            textbuf_addf(&b, "\n");
        }
    golden_digests(&b, GOLDEN, "long_cuts");
}

/* Plans of whole contexts on a platform, with stages and without. */
TEST(platforms_make_the_golden_plans)
{
    static const char *const modes[] = {"auto", "paper"};
    struct textbuf b = {0};
    for (int k = 0; k < 24; k++) {
        struct rng r = {9000 + (uint64_t)k};
        random_chain(&r, 16, 1, &c);
        struct platform *p = &c.platform;
        if (k % 3 == 2) {
            p->n_stages = 2;
            p->tier[0].up_bytes_per_s = 0.7 * p->tier[0].bytes_per_s;
        }
        p->start_s = 1e-3 * k;
        p->weights_s = k % 5 == 4 ? 2e-3 : 0;
        if (k % 4 == 3)
            p->pause_correction[0] = p->pause_correction[1] = (struct platform_correction){
                .log2 = 0.3, .n_observed = 4};
        plan_request_from_platform(p, (int)rng_below(&r, (uint64_t)p->n_tiers),
                                   64 * (1 + k * k), k % 2 ? 100 * k : 0, c.layer,
                                   c.prefill_s, &c.req);
        textbuf_addf(&b, "%d\n", k);
        for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
            assert_int_equal(plan_mode_parse(modes[m], &c.req, &e), 0);
            tell(&b, modes[m], plan_make(&c.req, &plan, &e), &plan, &e);
        }
    }
    golden_digests(&b, GOLDEN, "platforms");
}
