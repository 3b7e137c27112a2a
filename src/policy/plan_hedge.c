/* plan_hedge.c - a plan that is still good if the disk is faster or slower than measured.
 *
 * A mixture balances two lanes, so it is sensitive to their ratio. One recomputed layer in front
 * of KV pays while the disk is slow, and costs its whole projection once the disk is fast again
 * (a plan of R + 11 K on a disk whose speed drifted lost 10.7 % to plain KV). If the read speed
 * is known only within a factor f, auto takes the plan with the least worst regret: its time
 * over the best plan's, with reads at 1/f, 1 and f times the measured time. Candidates are the
 * best plan of each case and every single method.
 *
 * A single method also wins if a mixture is predicted to gain less over it than PLAN_LEAST_GAIN,
 * or less than both PLAN_LEAST_GAIN_S and PLAN_GREAT_GAIN: costs are not known that well. Plain
 * reads have a second use: with little compute beside them they show the full speed of the
 * disk. */
#include <math.h>
#include <string.h>

#include "policy/plan_parts.h"

enum {
    CASES = PLAN_HEDGE_CASES,
    CANDIDATES = PLAN_HEDGE_CANDIDATES,
    SINGLES_END = CASES + 3,
    GIVEN = SINGLES_END, /* the plan that plan_hedge_improve improves */
};

struct candidate {
    char method[PLAN_MAX_LAYERS + 1];
    bool exact;
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
                       const char *method, double *time_s)
{
    struct pipe_job job[PLAN_MAX_LAYERS];
    double io_s[PLAN_MAX_LAYERS];
    struct pipe_load load = plan_load_empty(req);
    load.job = job;
    load.n_jobs = plan_jobs_ordered(req, method, job);
    for (int i = 0; i < load.n_jobs; i++)
        io_s[i] = job[i].io_s;
    for (int k = 0; k < CASES; k++) {
        for (int i = 0; i < load.n_jobs; i++)
            job[i].io_s = factor[k] * io_s[i];
        time_s[k] = pipe_run(&load, NULL);
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

/* Fills the candidates and their times. Returns 1; 0 if the first candidate is useless: only its
 * letters and its time at the measured speed are filled then. */
static int collect(const struct plan_request *req, const struct plan_effort *effort,
                   const double *factor, struct candidate *c, struct plan_hedge_times *t,
                   struct err *e)
{
    struct plan_layer layer[PLAN_MAX_LAYERS];
    struct plan_request scaled = *req;
    struct plan plan;
    scaled.layer = layer;
    for (int k = 0; k < CANDIDATES; k++)
        for (int i = 0; i < CASES; i++)
            t->s[k][i] = INFINITY;
    for (int k = 0; k < CASES; k++) {
        memset(&plan, 0, sizeof plan);
        scale_io(req, factor[k], layer);
        int rc = plan_search(&scaled, effort, false, &plan, e);
        if (rc != 0)
            return rc;
        memcpy(c[k].method, plan.method, sizeof plan.method);
        c[k].exact = plan.exact;
        if (k == 0)
            t->s[0][0] = plan.predicted_s;
        if (k == 0 && effort->useless_s > 0 && plan.predicted_s >= effort->useless_s)
            return 0;
    }
    for (int k = 0; k < CASES; k++)
        find_times(req, factor, c[k].method, t->s[k]);
    for (int k = CASES; k < SINGLES_END; k++) {
        memset(c[k].method, 0, sizeof c[k].method);
        memset(c[k].method, "KHR"[k - CASES], (size_t)req -> n_layers);
        c[k].exact = c[0].exact;
        if (is_possible(req, c[k].method))
            find_times(req, factor, c[k].method, t->s[k]);
    }
    return 1;
}

static double worst_regret(const double *time_s, const double *best)
{
    double worst = 1;
    for (int i = 0; i < CASES; i++)
        worst = fmax(worst, best[i] > 0 || isinf(time_s[i]) ? time_s[i] / best[i] : 1);
    return worst;
}

/* Returns whether a single method loses so little, in every case, that no mixture is worth it. */
static bool is_good_enough(const double *time_s, const double *best, double least)
{
    for (int i = 0; i < CASES; i++)
        if (time_s[i] > fmax(best[i] * least * (1 + PLAN_LEAST_GAIN),
                             best[i] + fmin(PLAN_LEAST_GAIN_S, PLAN_GREAT_GAIN * best[i])))
            return false;
    return true;
}

static void find_best(const struct plan_hedge_times *t, double *best)
{
    for (int i = 0; i < CASES; i++) {
        best[i] = INFINITY;
        for (int k = 0; k < CANDIDATES; k++)
            best[i] = lesser(best[i], t->s[k][i]);
    }
}

int plan_hedge_choose(const struct plan_hedge_times *t, double most_s, double slack)
{
    double best[CASES], regret[CANDIDATES], least = INFINITY;
    int chosen = -1;
    find_best(t, best);
    for (int k = 0; k < CANDIDATES; k++) {
        regret[k] = t->s[k][0] <= most_s ? worst_regret(t->s[k], best) : INFINITY;
        least = fmin(least, regret[k]);
    }
    /* The first candidate, the plan for the measured speed, wins a tie. */
    for (int k = 0; k < CANDIDATES; k++)
        if (regret[k] <= least * (1 + slack + 1e-9) &&
            (chosen < 0 || (slack > 0 && t->s[k][0] < t->s[chosen][0])))
            chosen = k;
    bool is_single = chosen >= CASES && chosen < SINGLES_END;
    for (int k = CASES; k < SINGLES_END;
         k++) /* the best single method that is good enough */
        if (isfinite(regret[k]) && is_good_enough(t->s[k], best, least) &&
            (!is_single || t->s[k][0] < t->s[chosen][0])) {
            chosen = k;
            is_single = true;
        }
    return chosen;
}

/* Makes the candidate the plan. */
static void take(struct plan *out, const struct plan_hedge_times *t,
                 const struct candidate *c, const double *time_s)
{
    double best[CASES];
    find_best(t, best);
    memcpy(out->method, c->method, sizeof out->method);
    out->exact = c->exact;
    out->predicted_s = time_s[0];
    out->hedged_s = isfinite(best[0]) ? out->predicted_s - best[0] : 0;
}

int plan_hedge(const struct plan_request *req, const struct plan_effort *effort,
               struct plan *out, struct err *e)
{
    const double factor[CASES] = {1, req->io_spread, 1 / req->io_spread};
    struct candidate c[CANDIDATES];
    struct plan_hedge_times times, *t = effort->times != NULL ? effort->times : &times;
    int rc = collect(req, effort, factor, c, t, e);
    if (rc < 0)
        return rc;
    int chosen = rc > 0 ? plan_hedge_choose(t, INFINITY, effort->regret_slack) : 0;
    take(out, t, &c[chosen], t->s[chosen]);
    return 0;
}

void plan_hedge_improve(const struct plan_request *req, const struct plan_effort *effort,
                        struct plan *plan)
{
    const double factor[CASES] = {1, req->io_spread, 1 / req->io_spread};
    struct candidate c[CANDIDATES];
    struct plan_hedge_times t;
    if (collect(req, effort, factor, c, &t, NULL) < 1)
        return;
    memcpy(c[GIVEN].method, plan->method, sizeof plan->method);
    c[GIVEN].exact = plan->exact;
    find_times(req, factor, c[GIVEN].method, t.s[GIVEN]);
    int chosen = plan_hedge_choose(&t, t.s[GIVEN][0] * (1 + 1e-9), effort->regret_slack);
    take(plan, &t, &c[chosen], t.s[chosen]);
}
