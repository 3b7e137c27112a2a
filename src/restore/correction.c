/* correction.c - see correction.h. */
#include "restore/correction.h"

#include <math.h>
#include <stdlib.h>

#include "restore/pipeline.h"
#include "restore/plan_parts.h"

/* Limit of one step, in log2. A larger surprise is not noise. No single observation moves a factor
 * further than this. */
#define STEP 0.26

/* A shorter measurement contains more clock and wake-up time than cost. It is an upper bound of the
 * cost, so it teaches only that compute is faster than believed, by more than SHORT_MISS. */
#define LEAST_S    0.2e-3
#define SHORT_MISS 1.25

/* A short restore moves platform.start_s by at most CORRECTION_GAIN_MIN times this. Beside busy
 * threads one short restore in five waits for milliseconds. With 0.5 ms such restores made the
 * others seem up to twice as long. */
#define START_STEP_S 0.1e-3

/* A restore teaches a kind of compute only if that kind is at least this share of its compute. */
#define MOST 0.8
/* A lane decides a restore's time if it works for at least this share of it. */
#define DECIDES 0.8
/* The I/O lane is the bottleneck if compute waits for it for this share of the restore's time. */
#define IO_BOUND 0.2

static double clamp(double x, double limit)
{
    return fmin(limit, fmax(-limit, x));
}

/* Counts a large surprise, which continues the series in its direction, or begins one. */
static void go_on(struct platform_correction *c, double observed_log2, int direction)
{
    bool is_new = c->run * direction <= 0;
    if (is_new || fabs(observed_log2 - c->log2) < fabs(c->run_log2 - c->log2))
        c->run_log2 = observed_log2;
    c->run = is_new ? direction : c->run + direction;
}

void correction_observe(struct platform_correction *c, double expected_s, double observed_s)
{
    double ratio = observed_s / expected_s;
    if (!(expected_s > 0) || !(ratio > 0) || !isfinite(ratio))
        return;
    double observed_log2 = clamp(log2(ratio), CORRECTION_LOG2_MAX);
    double surprise = observed_log2 - c->log2;
    if (fabs(surprise) <= STEP)
        c->run = 0;
    else
        go_on(c, observed_log2, surprise > 0 ? 1 : -1);
    double gain = fmax(CORRECTION_GAIN_MIN, 1.0 / (c->n_observed + 2));
    c->spread_log2 += gain * (fmin(fabs(surprise), CORRECTION_SPREAD_MAX) - c->spread_log2);
    if (abs(c->run) >= CORRECTION_RUN) {
        c->log2 = c->run_log2;
        c->run = 0;
    } else {
        c->log2 += gain * clamp(surprise, STEP);
    }
    if (c->n_observed < 1000000000)
        c->n_observed++;
}

static bool is_large_miss(double miss)
{
    return miss > CORRECTION_LARGE_MISS || miss < 1 / CORRECTION_LARGE_MISS;
}

void correction_check(struct platform_correction *c, double believed_s, double sample_s)
{
    double miss = sample_s / believed_s;
    if (!(believed_s > 0) || !(miss > 0) || !isfinite(miss) || !is_large_miss(miss))
        return;
    double half = 0.5 * log2(miss);
    c->log2 = clamp(c->log2 + clamp(half, 1), CORRECTION_LOG2_MAX);
    c->spread_log2 = fmax(c->spread_log2, fmin(fabs(half), CORRECTION_SPREAD_MAX));
}

/* Sums the compute of the plan's layers by kind, from the descriptors (corrections included). */
static void sum_kinds(const struct plan_request *req, const struct plan *plan,
                      double split_s, struct correction_expected *e)
{
    for (int i = 0; i < plan->n_layers; i++) {
        const struct plan_layer *l = &req->layer[i];
        switch (plan->method[i]) {
        case 'K':
            e->kv_s += l->comp_kv_s - l->kv_project_s - l->kv_splits * split_s;
            e->gemm_s += l->kv_project_s;
            e->n_splits += l->kv_splits;
            break;
        case 'H':
            e->gemm_s += l->comp_h_s - l->h_load_s - l->h_splits * split_s;
            e->kv_s += l->h_load_s;
            e->n_splits += l->h_splits;
            break;
        default:
            e->gemm_s += plan_recompute_s(req, i, plan->n_r);
        }
    }
}

struct correction_expected correction_expect(const struct platform *p, int tier,
                                             const struct plan_request *req,
                                             const struct plan *plan)
{
    struct correction_expected e = {.tier = tier};
    struct plan_request alone = *req;
    struct pipeline lanes;
    if (req->comp_slow > 1)
        return (struct correction_expected){0};
    alone.prefill_s = NULL;
    alone.head_s = 0;
    pipeline_simulate(&alone, plan, &lanes);
    sum_kinds(req, plan, p->split_s, &e);
    double sum = e.gemm_s + e.kv_s + e.n_splits * p->split_s;
    double slowed = sum > 0 ? lanes.comp_busy_s / sum : 1;
    e.gemm_s *= slowed / platform_correction_factor(&p->gemm_correction);
    e.kv_s *= slowed / platform_correction_factor(&p->kv_correction);
    e.slowed = slowed;
    /* If a bus is slower than the store, the time of reads says nothing about the store. */
    const struct platform_tier *t = &p->tier[tier];
    bool is_store_bound = req->n_stages > 1 || platform_is_store_bound(p, tier);
    if (plan->n_io > 0 && is_store_bound)
        e.io_s = (lanes.io_busy_s + t->latency_s) /
                 platform_correction_factor(&t->correction);
    if (plan->n_io > 0)
        e.restore_s = lanes.restore_s - p->start_s;
    return e;
}

bool correction_is_of_machine(const struct correction_observed *o, bool is_whole)
{
    return is_whole && o->compute_s + o->wait_s >= CORRECTION_ALONE * o->total_s;
}

/* Moves platform.start_s by a limited step towards the time that a short restore took beyond its
 * predicted lanes, lanes_s. The start of a longer restore takes at most the time during which its
 * busier lane did not work, so a longer restore only shortens start_s. */
static void learn_start(struct platform *p, const struct correction_expected *e,
                        const struct correction_observed *o)
{
    double lanes_s = e->restore_s, least_s = -p->tier[e->tier].latency_s;
    bool is_short = lanes_s < CORRECTION_SHORT_S;
    double start_s = o->total_s - (is_short ? lanes_s : fmax(o->io_s, o->compute_s));
    if (!(lanes_s > 0) || (!is_short && start_s >= p->start_s))
        return;
    double surprise = clamp(start_s - p->start_s, START_STEP_S);
    p->start_s = fmin(CORRECTION_SHORT_S,
                      fmax(least_s, p->start_s + CORRECTION_GAIN_MIN * surprise));
}

/* Moves platform.split_s, the cost of a split, by a limited step. surplus_s: compute beyond the
 * rows' own time. */
static void learn_split(struct platform *p, const struct correction_expected *e,
                        double surplus_s)
{
    double surprise = clamp(surplus_s / (e->n_splits * e->slowed) - p->split_s,
                            PLATFORM_SPLIT_S);
    p->split_s = fmin(CORRECTION_SPLIT_MAX_S,
                      fmax(0, p->split_s + CORRECTION_GAIN_MIN * surprise));
}

/* Corrects the cost of splits, or the kind that was most of the compute lane's work. The costs of
 * the other kinds are taken as right. If no kind was most of the work, a large miss corrects both
 * kinds by the same ratio. With splits a miss of any size does: the context has lost records in
 * parts, and each of its plans mixes both kinds. */
static void learn_compute(struct platform *p, const struct correction_expected *e,
                          double observed_s)
{
    struct platform_correction *gemm = &p->gemm_correction, *kv = &p->kv_correction;
    double sum = e->gemm_s + e->kv_s;
    double rows_s = e->gemm_s * platform_correction_factor(gemm) +
                    e->kv_s * platform_correction_factor(kv);
    if (e->n_splits > 0 && rows_s < e->n_splits * CORRECTION_SHORT_RUN_S) {
        /* The time of the rows alone may be below LEAST_S, so the splits count too. */
        if (observed_s > LEAST_S || rows_s + e->n_splits * e->slowed * p->split_s > LEAST_S)
            learn_split(p, e, observed_s - rows_s);
        /* If the rows alone would take longer, the belief about their speed is wrong. */
        if (!(observed_s < rows_s / SHORT_MISS))
            return;
    }
    observed_s -= e->n_splits * e->slowed * p->split_s;
    double miss = observed_s / rows_s;
    if (sum <= LEAST_S && !(miss < 1 / SHORT_MISS))
        return;
    if (e->gemm_s >= MOST * sum)
        correction_observe(gemm, e->gemm_s,
                           observed_s - e->kv_s * platform_correction_factor(kv));
    else if (e->kv_s >= MOST * sum)
        correction_observe(kv, e->kv_s,
                           observed_s - e->gemm_s * platform_correction_factor(gemm));
    else if (e->n_splits > 0 || is_large_miss(miss)) {
        correction_observe(gemm, e->gemm_s,
                           e->gemm_s * platform_correction_factor(gemm) * miss);
        correction_observe(kv, e->kv_s, e->kv_s * platform_correction_factor(kv) * miss);
    }
}

/* Returns how many times as long as believed a lane took; 0 if it did not decide the restore's
 * time. */
static double lane_ratio(double believed_s, double observed_s, double lanes_s)
{
    return believed_s >= DECIDES * lanes_s ? observed_s / believed_s : 0;
}

/* Teaches the factor of pauses: the time of a restore over the time that its lanes take at the
 * speeds that they had in it. */
static void learn_pauses(struct platform *p, const struct correction_expected *e,
                         const struct correction_observed *o)
{
    double lanes_s = e->restore_s;
    double io_s = e->io_s * platform_correction_factor(&p->tier[e->tier].correction);
    double compute_s = e->gemm_s * platform_correction_factor(&p->gemm_correction) +
                       e->kv_s * platform_correction_factor(&p->kv_correction) +
                       e->n_splits * e->slowed * p->split_s;
    double ratio = fmax(lane_ratio(io_s, o->io_s, lanes_s),
                        lane_ratio(compute_s, o->compute_s, lanes_s));
    bool balanced = platform_is_balanced(io_s, compute_s, lanes_s);
    p->pause_correction[balanced].n_unused = 0;
    if (lanes_s >= CORRECTION_SHORT_S && ratio > 0)
        correction_observe(&p->pause_correction[balanced], ratio * lanes_s + p->start_s,
                           o->total_s);
}

void correction_learn(struct platform *p, const struct correction_expected *e,
                      const struct correction_observed *o)
{
    learn_pauses(p, e, o);
    learn_start(p, e, o);
    struct platform_correction *io = &p->tier[e->tier].correction;
    if (e->io_s > 0)
        io->n_unused = 0;
    if (e->kv_s > 0)
        p->kv_correction.n_unused = 0;
    double believed_io_s = e->io_s * platform_correction_factor(io);
    bool io_bound = o->wait_s > IO_BOUND * o->total_s;
    if (e->io_s > LEAST_S && (io_bound || o->io_s < believed_io_s))
        correction_observe(io, e->io_s, o->io_s);
    learn_compute(p, e, o->compute_s);
}

/* Share by which an unused belief fades with each batch of prompts. */
#define FADE 0.0625

static void fade(struct platform_correction *c)
{
    if (c->n_unused < CORRECTION_UNUSED)
        c->n_unused++;
    else if (c->log2 > 0)
        c->log2 -= FADE * c->log2;
}

void correction_learn_prefill(struct platform *p, double believed_s, double observed_s)
{
    double miss = observed_s / believed_s;
    fade(&p->kv_correction);
    fade(&p->pause_correction[true]);
    for (int t = 0; t < p->n_tiers; t++)
        fade(&p->tier[t].correction);
    if (!(believed_s > 0) || !(observed_s > LEAST_S) || p->weights_s > 0)
        return;
    if (!is_large_miss(miss))
        return;
    double measured_s = believed_s / platform_correction_factor(&p->gemm_correction);
    correction_observe(&p->gemm_correction, measured_s, observed_s);
}
