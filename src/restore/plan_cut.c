/* plan_cut.c - how many of a chain's ranges to restore.
 *
 * Each cut, a number of leading ranges, has its own best plan. A full search for each takes 0.1
 * to 0.5 s for 300 ranges of an 80-layer model, and decodes wait for it. So:
 * 1. Sample: take cuts at most 1/64 of the tokens apart, and cuts just before a range in which
 *    one more layer has no record. Between two of these cuts the best time changes little. The
 *    sums over the ranges move from one cut to the next in O(layers).
 * 2. Bound: compute the least time that any plan of the sample can take (plan_bound.c), in
 *    O(layers).
 * 3. Estimate: search quickly at the samples of least bound, until no bound is below the best by
 *    SLACK.
 * 4. Refine: bound and estimate the cuts beside the best sample.
 * 5. Plan: search once more at the best cut.
 *
 * Searches are few and take a bounded number of steps; nothing depends on a clock.
 * tests/restore/test_plan_cut.c compares with a full search for every cut, `make plan-check` at
 * full size. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/minmax.h"
#include "restore/plan_parts.h"

enum {
    SAMPLES = 64, /* samples at equal distances in tokens */
    /* In addition, there are samples just before a layer loses its records. */
    SAMPLES_MAX = SAMPLES + PLAN_MAX_LAYERS + 2,
    REFINED_MAX = 12,
    REFINED_ESTIMATES = 4, /* estimates that are kept for refining */
};

/* A cut whose bound is not below the best time by this share is left out. */
static const double SLACK = 0.004;

/* A search of at most this many layers takes hardly any time. */
enum { FEW_LAYERS = 16 };
static const struct plan_effort estimate_few_effort = {.slack = 1e-4, .steps = 3000};
/* 80 layers: about 60 us. */
static const struct plan_effort estimate_effort = {
    .slack = 0.002, .steps = 2000, .quick = true};
/* Effort of the search at the chosen cut. Without this search 5 of 1,160 chains lie 1.1 to 1.4 %
 * above a full search. */
static const struct plan_effort final_effort = {.steps = 12000};

/* Returns how many estimates to make. For many layers there are few: a bound is then near its plan,
 * and an estimate takes long. */
static int estimates_for(const struct platform *p)
{
    int n = 6 + 320 / p->n_layers;
    return p->n_stages > 1 ? REFINED_ESTIMATES / 2 + n / 2 : n;
}

int plan_at_cut(const struct stored_ranges *c, int n_used, const struct plan_effort *effort,
                struct plan_request *req, struct plan *out, struct err *e)
{
    struct range_sums s;
    range_sums_at(c, n_used, &s);
    range_request(c, &s, req);
    return plan_make_within(req, effort, out, e);
}

/* Returns the prefill time of the tokens that are not restored: all layers, one after another. */
static double prefill_all_s(const struct platform *p, int64_t n_past, int64_t n_new)
{
    if (n_new <= 0)
        return 0;
    return p->n_layers * platform_prefill_s(p, n_past, n_new) + platform_ends_s(p, n_new);
}

struct sample {
    int cut;
    bool done;
    double bound_s;
};

struct cuts {
    const struct stored_ranges *c;
    struct plan_request *req;
    int estimates_left;
    struct plan_effort effort; /* of an estimate */
    int best;                  /* number of ranges of the best cut; 0: none */
    double best_s;             /* the least time so far; plain prefill counts too */
    double restoring_s;        /* the least time of a plan that restores something */
    struct range_sums sums;
    int n_samples;
    struct sample sample[SAMPLES_MAX];
};

/* Returns a lower bound on the time of every plan for the request; infinite if there is none. */
static double bound_of(const struct plan_request *req)
{
    struct plan_bounds b;
    struct search s = search_of(req, &plan_effort_full, false);
    if (!search_is_possible(&s))
        return INFINITY;
    plan_bounds_init(&b, &s);
    return plan_bound_least(&b, s.r_min, s.r_max);
}

/* Searches quickly at the cut of x, whose sums are s. Keeps the cut if it is the best so far. */
static void estimate(struct cuts *k, const struct range_sums *s, struct sample *x)
{
    struct plan plan;
    x->done = true;
    k->estimates_left--;
    range_request(k->c, s, k->req);
    if (plan_estimate(k->req, &k->effort, &plan, NULL) != 0)
        return;
    k->restoring_s = fmin(k->restoring_s, plan.predicted_s);
    if (plan.predicted_s <= k->best_s) {
        k->best_s = plan.predicted_s;
        k->best = x->cut;
    }
}

static bool is_worth(const struct cuts *k, const struct sample *x)
{
    return !x->done && x->bound_s <= k->best_s * (1 - SLACK);
}

/* ---- sampling ---- */

/* Returns the last layer that lacks all records in this range, or -1. */
static int last_lost(const struct plan_range *r, int n_layers)
{
    int i = n_layers - 1;
    while (i >= 0 && plan_range_method('H', r->mask[i]) != 0)
        i--;
    return i;
}

static void add_sample(struct cuts *k, const struct range_sums *s)
{
    CHECK(k->n_samples < SAMPLES_MAX);
    range_request(k->c, s, k->req);
    k->sample[k->n_samples++] = (struct sample){.cut = s->n_ranges,
                                                .bound_s = bound_of(k->req)};
}

static void take_samples(struct cuts *k)
{
    const struct stored_ranges *c = k->c;
    struct range_sums *s = &k->sums;
    int lost = -1;
    int64_t last = 0, step = c->n_ranges <= SAMPLES ? 0 : c->n_tokens / SAMPLES + 1;
    range_sums_init(s);
    for (int g = 0; g < c->n_ranges; g++) {
        range_sums_next(c, s);
        bool is_last = g + 1 == c->n_ranges;
        int next_lost = is_last ? -1 : last_lost(&c->range[g + 1], c->platform->n_layers);
        if (!is_last && next_lost <= lost &&
            s->n_tokens + c->range[g + 1].n_tokens - last <= step)
            continue;
        add_sample(k, s);
        last = s->n_tokens;
        lost = MAX(next_lost, lost);
    }
}

/* ---- estimating ---- */

/* Returns the sample with the least bound of x[n]; NULL if none is worth an estimate. */
static struct sample *next_sample(const struct cuts *k, struct sample *x, int n)
{
    struct sample *least = NULL;
    for (int i = 0; i < n; i++)
        if (is_worth(k, &x[i]) && (least == NULL || x[i].bound_s < least->bound_s))
            least = &x[i];
    return least;
}

static void estimate_samples(struct cuts *k)
{
    for (struct sample *x; k->estimates_left > REFINED_ESTIMATES &&
                           (x = next_sample(k, k->sample, k->n_samples)) != NULL;) {
        range_sums_move(k->c, &k->sums, x->cut);
        estimate(k, &k->sums, x);
    }
}

/* ---- refining ---- */

static int sample_before(const struct cuts *k, int cut)
{
    int before = 0;
    for (int i = 0; i < k->n_samples && k->sample[i].cut < cut; i++)
        before = k->sample[i].cut;
    return before;
}

static int sample_behind(const struct cuts *k, int cut)
{
    for (int i = 0; i < k->n_samples; i++)
        if (k->sample[i].cut > cut)
            return k->sample[i].cut;
    return cut;
}

/* Bounds and estimates cuts between the best sample and its neighbours. */
static void refine(struct cuts *k)
{
    int from = sample_before(k, k->best), to = sample_behind(k, k->best), best = k->best;
    int stride = (to - from) / REFINED_MAX + 1, n = 0;
    struct sample x[REFINED_MAX];
    for (int cut = from + stride; cut < to; cut += stride) {
        range_sums_move(k->c, &k->sums, cut);
        range_request(k->c, &k->sums, k->req);
        x[n++] = (struct sample){
            .cut = cut, .done = cut == best, .bound_s = bound_of(k->req)};
    }
    for (struct sample *y; k->estimates_left > 0 && (y = next_sample(k, x, n)) != NULL;) {
        range_sums_move(k->c, &k->sums, y->cut);
        estimate(k, &k->sums, y);
    }
}

/* ---- choosing a cut ---- */

/* Finds the best cut: k->best. */
static void find_cut(struct cuts *k)
{
    take_samples(k);
    k->estimates_left = estimates_for(k->c->platform);
    k->effort = k->req->n_layers > FEW_LAYERS ? estimate_effort : estimate_few_effort;
    estimate_samples(k);
    if (k->best > 0)
        refine(k);
}

/* Chooses the letters of a forced plan for the first g ranges, without their time. */
static int choose_forced(struct cuts *k, int g, struct plan *out, struct err *e)
{
    range_sums_move(k->c, &k->sums, g);
    range_request(k->c, &k->sums, k->req);
    return plan_estimate(k->req, &plan_effort_full, out, e);
}

/* Finds the longest prefix that the mode can restore and that adds no more recomputed layers
 * than the first range does. The letters decide that, so only the chosen plan is simulated. */
static int longest_prefix(struct cuts *k, struct plan *out, int *n_used, struct err *e)
{
    int n_ranges = k->c->n_ranges, rc = choose_forced(k, 1, out, e);
    int n_added = rc == 0 ? out->n_r_added : PLAN_MAX_LAYERS;
    for (int g = n_ranges; g > 0 && rc != ERR_USAGE; g--) {
        rc = choose_forced(k, g, out, e);
        if (rc != 0 || out->n_r_added > n_added)
            continue;
        *n_used = g;
        return plan_at_cut(k->c, g, &plan_effort_full, k->req, out, e);
    }
    return rc;
}

static void explain_nothing(const struct cuts *k, double nothing_s, struct plan *out)
{
    memset(out, 0, sizeof *out);
    out->predicted_s = nothing_s;
    if (isfinite(k->restoring_s))
        snprintf(out->reason, sizeof out->reason,
                 "prefill of everything %.3g ms, the best restore first %.3g ms",
                 nothing_s * 1e3, k->restoring_s * 1e3);
    else
        snprintf(out->reason, sizeof out->reason, "no records that a restore could use");
}

int plan_best_prefix(const struct platform *p, const struct plan_range *range, int n_ranges,
                     int64_t n_new, bool can_recompute, struct plan_layer *layer,
                     double *prefill_s, struct plan_request *req, struct plan *out,
                     int *n_used, struct err *e)
{
    struct stored_ranges c = {.platform = p,
                              .range = range,
                              .n_ranges = n_ranges,
                              .n_new = n_new,
                              .n_held = req->n_held,
                              .can_recompute = can_recompute,
                              .window = req->window,
                              .layer = layer,
                              .prefill_s = prefill_s};
    struct cuts k = {.c = &c, .req = req, .best_s = INFINITY, .restoring_s = INFINITY};
    for (int g = 0; g < n_ranges; g++)
        c.n_tokens += range[g].n_tokens;
    double nothing_s = prefill_all_s(p, c.n_held, c.n_tokens + n_new) *
                       fmax(1, req->prefill_slow);
    bool may_prefill = can_recompute || n_ranges == 0;
    *n_used = 0;
    if (req->budget_bytes_per_token != 0)
        return err_set(
            e, ERR_USAGE,
            "plan request: a budget bounds the state to save; a chain is saved already");
    if (req->mode != PLAN_AUTO && n_ranges > 0)
        return longest_prefix(&k, out, n_used, e);
    if (may_prefill)
        k.best_s = nothing_s;
    find_cut(&k);
    *n_used = k.best;
    if (k.best == 0 && may_prefill) {
        explain_nothing(&k, nothing_s, out);
        return 0;
    }
    /* If nothing can be restored, the first range gives the reason. */
    range_sums_at(&c, k.best > 0 ? k.best : 1, &k.sums);
    range_request(&c, &k.sums, req);
    return plan_make_within(req, &final_effort, out, e);
}
