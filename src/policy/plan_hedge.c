/* plan_hedge.c - a plan that is still good if the disk is faster or slower than measured.
 *
 * A mixture balances two lanes, so it is sensitive to their ratio. One recomputed layer in front
 * of KV pays while the disk is slow, and costs its whole projection once the disk is fast again
 * (a plan of R + 11 K on a disk whose speed drifted lost 10.7 % to plain KV). If the read speed
 * is known only within a factor f, auto takes the plan with the least worst regret: its time
 * over the best plan's, with reads at 1/f, 1 and f times the measured time. Candidates are the
 * best plan of each case and every single method.
 *
 * A single method also wins if a mixture is predicted to gain less than PLAN_LEAST_GAIN or
 * PLAN_LEAST_GAIN_S over it: costs are not known that well. Reads without compute beside them also
 * show the full speed of the disk. */
#include <math.h>
#include <string.h>

#include "policy/plan_parts.h"

enum { CASES = 3, CANDIDATES = CASES + 3 };

struct candidate {
    char method[PLAN_MAX_LAYERS + 1];
    bool exact;
    double time_s[CASES];
};

/* Least spread against which auto hedges. Smaller ones are noise, and so would be the gain. */
static const double LEAST_SPREAD = 1.02;

bool plan_wants_hedge(const struct plan_request *req)
{
    return req->mode == PLAN_AUTO && req->io_spread > LEAST_SPREAD;
}

static void scale_io(const struct plan_request *req, double factor,
                     struct plan_layer *layer)
{
    memcpy(layer, req->layer, (size_t)req->n_layers * sizeof *layer);
    for (int i = 0; i < req->n_layers; i++) {
        layer[i].io_h_s *= factor;
        layer[i].io_kv_s *= factor;
    }
}

/* Finds the time of these letters in every case, with reads in the order for the measured speed. */
static void find_times(const struct plan_request *req, const double *factor,
                       struct candidate *c)
{
    struct pipe_job job[PLAN_MAX_LAYERS];
    double io_s[PLAN_MAX_LAYERS];
    struct pipe_load load = plan_load_empty(req);
    load.job = job;
    load.n_jobs = plan_jobs_ordered(req, c->method, job);
    for (int i = 0; i < load.n_jobs; i++)
        io_s[i] = job[i].io_s;
    for (int k = 0; k < CASES; k++) {
        for (int i = 0; i < load.n_jobs; i++)
            job[i].io_s = factor[k] * io_s[i];
        c->time_s[k] = pipe_run(&load, NULL);
    }
}

static double stored_bytes(const struct plan_request *req, const char *method)
{
    double sum = 0;
    for (int i = 0; i < req->n_layers; i++)
        sum += plan_layer_bytes(&req->layer[i], method[i]);
    return sum;
}

static bool is_possible(const struct plan_request *req, const char *method)
{
    return plan_check_method(req, method, NULL) == 0 &&
           plan_within_budget(req, stored_bytes(req, method));
}

/* Returns the number of candidates. It is less than CASES if the first one is useless. */
static int collect(const struct plan_request *req, const struct plan_effort *effort,
                   const double *factor, struct candidate *c, struct err *e)
{
    struct plan_layer layer[PLAN_MAX_LAYERS];
    struct plan_request scaled = *req;
    struct plan plan;
    int n = 0;
    scaled.layer = layer;
    for (int i = 0; i < CASES; i++) {
        memset(&plan, 0, sizeof plan);
        scale_io(req, factor[i], layer);
        int rc = plan_search(&scaled, effort, false, &plan, e);
        if (rc != 0)
            return rc;
        memcpy(c[n].method, plan.method, sizeof plan.method);
        c[n].exact = plan.exact;
        c[n++].time_s[0] = plan.predicted_s;
        if (i == 0 && effort->useless_s > 0 && plan.predicted_s >= effort->useless_s)
            return 1;
    }
    for (const char *single = "KHR"; *single != 0; single++) {
        memset(c[n].method, 0, sizeof c[n].method);
        memset(c[n].method, *single, (size_t)req->n_layers);
        c[n].exact = c[0].exact;
        n += is_possible(req, c[n].method);
    }
    return n;
}

static double worst_regret(const struct candidate *c, const double *best)
{
    double worst = 1;
    for (int i = 0; i < CASES; i++)
        worst = fmax(worst, best[i] > 0 ? c->time_s[i] / best[i] : 1);
    return worst;
}

/* Returns whether a single method loses so little, in every case, that no mixture is worth it. */
static bool is_good_enough(const struct candidate *c, const double *best, double least)
{
    for (int i = 0; i < CASES; i++)
        if (c->time_s[i] >
            fmax(best[i] * least * (1 + PLAN_LEAST_GAIN), best[i] + PLAN_LEAST_GAIN_S))
            return false;
    return true;
}

/* Returns the candidate with the least worst regret; among candidates within `slack` of it, the
 * fastest at the measured speed. The first CASES candidates may be mixtures, the others are single
 * methods. */
static const struct candidate *choose(const struct candidate *c, int n, const double *best,
                                      double slack)
{
    const struct candidate *chosen = NULL;
    double least = INFINITY;
    for (int k = 0; k < n; k++)
        least = fmin(least, worst_regret(&c[k], best));
    /* The first candidate, the plan for the measured speed, wins a tie. */
    for (int k = 0; k < n; k++)
        if (worst_regret(&c[k], best) <= least * (1 + slack + 1e-9) &&
            (chosen == NULL || (slack > 0 && c[k].time_s[0] < chosen->time_s[0])))
            chosen = &c[k];
    for (int k = CASES; k < n; k++) /* the best single method that is good enough */
        if (is_good_enough(&c[k], best, least) &&
            (chosen < c + CASES || c[k].time_s[0] < chosen->time_s[0]))
            chosen = &c[k];
    return chosen;
}

int plan_hedge(const struct plan_request *req, const struct plan_effort *effort,
               struct plan *out, struct err *e)
{
    const double factor[CASES] = {1, req->io_spread, 1 / req->io_spread};
    double best[CASES] = {INFINITY, INFINITY, INFINITY};
    struct candidate c[CANDIDATES];
    int n = collect(req, effort, factor, c, e);
    if (n < 0)
        return n;
    if (n < CASES) {
        memcpy(out->method, c[0].method, sizeof out->method);
        out->predicted_s = c[0].time_s[0];
        return 0;
    }
    for (int k = 0; k < n; k++) {
        find_times(req, factor, &c[k]);
        for (int i = 0; i < CASES; i++)
            best[i] = fmin(best[i], c[k].time_s[i]);
    }
    const struct candidate *chosen = choose(c, n, best, effort->regret_slack);
    memcpy(out->method, chosen->method, sizeof out->method);
    out->exact = chosen->exact;
    out->predicted_s = chosen->time_s[0];
    out->hedged_s = chosen->time_s[0] - best[0];
    return 0;
}
