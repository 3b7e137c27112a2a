/* plan_parts.h - shared by the planner's files; no other file includes it. */
#ifndef RESTORE_PLAN_PARTS_H
#define RESTORE_PLAN_PARTS_H

#include "restore/pipeline.h"
#include "restore/plan.h"

/* The compiler inlines these; fmin and fmax are calls. */
static inline double lesser(double x, double y)
{
    return x < y ? x : y;
}

static inline double greater(double x, double y)
{
    return x > y ? x : y;
}

/* Bounds of a search. The search ends as soon as no candidate can be faster by more than `slack`, a
 * share of the best time, or after `steps` steps of about 20 ns. `quick` leaves out work that only
 * proves the search complete. */
struct plan_effort {
    double slack;
    long steps;
    bool quick;
};
/* ---- plan_order.c: an assignment's jobs, and the best order to read them in ---- */

/* Returns the job that restores one layer by `method`, if r layers are recomputed. */
struct pipe_job plan_job(const struct plan_request *req, int layer, char method, int r);
/* Returns the compute time of one layer of a recomputed prefix of r layers. */
double plan_recompute_s(const struct plan_request *req, int layer, int r);
/* Fills sum_s[r], for r from 0 to n_layers, with the compute time of the whole recomputed prefix of
 * r layers. */
void plan_recompute_sums(const struct plan_request *req, double *sum_s);
/* Returns the request's lanes without jobs. */
struct pipe_load plan_load_empty(const struct plan_request *req);
/* Makes the jobs of method[n_layers] in the best read order. Returns the number of jobs, one per
 * layer. */
int plan_jobs_ordered(const struct plan_request *req, const char *method,
                      struct pipe_job *job);
/* Orders job[0, n), one job per layer in rising order, for the best reads if new tokens are
 * prefilled inside the restore. */
void plan_order_fused(const struct plan_request *req, struct pipe_job *job, int n);
/* Johnson's rule: returns whether (a1, b1) must come before (a2, b2). False if they are equal. */
bool johnson_before(double a1, double b1, double a2, double b2);
/* Returns the bytes per token that a layer stores to be restored by `method`. */
static inline double plan_layer_bytes(const struct plan_layer *l, char method)
{
    return method == 'K' ? l->kv_bytes : method == 'H' && !l->h_free ? l->h_bytes : 0;
}
static inline bool plan_within_budget(const struct plan_request *req, double bytes)
{
    return req->budget_bytes_per_token <= 0 || bytes <= req->budget_bytes_per_token;
}
/* Returns whether new tokens are prefilled inside the restore. */
bool plan_is_fused(const struct plan_request *req);
/* Returns the number of leading R. */
int plan_prefix_r(const char *method);

/* Makes the load of a finished plan, with its reads in io_order. */
void plan_load(const struct plan_request *req, const struct plan *plan,
               struct pipe_job *job, struct pipe_load *load);

/* ---- plan_range.c: what records cost on a platform ---- */

/* The ranges of a stored chain. The first ones are restored. The tokens of the others are
 * prefilled with the new tokens. */
struct stored_ranges {
    const struct platform *platform;
    const struct plan_range *range;
    int n_ranges;
    /* n_tokens: tokens of all ranges; n_new: new tokens after the ranges */
    int64_t n_tokens, n_new;
    int64_t n_held; /* tokens before the ranges, which the device holds */
    bool can_recompute;
    struct plan_window window;
    struct plan_layer *layer; /* the caller's arrays [n_layers]: layer and prefill_s */
    double *prefill_s;
};

/* How a layer's tokens are restored under one letter. */
struct range_share {
    int64_t h_tokens, kv_tokens, lost_tokens; /* lost: tokens without a record */
    double io_s, up_s, unpack_s;
    double stored_bytes;
};

/* The shares of all layers over the ranges up to a cut. Tokens before a layer's window count in
 * no share. */
struct range_sums {
    int n_ranges;
    int64_t n_tokens, n_skipped; /* n_skipped: tokens before the windows */
    struct range_share h[PLAN_MAX_LAYERS], kv[PLAN_MAX_LAYERS];
    int h_splits[PLAN_MAX_LAYERS],
        kv_splits[PLAN_MAX_LAYERS]; /* see plan_range in plan.h */
};

/* Returns how many of the first n tokens of the ranges the next token no longer sees through the
 * window, in whole chunks. */
int64_t plan_tokens_skipped(const struct stored_ranges *c, int64_t n);
void range_sums_init(struct range_sums *s);
/* Adds the next range to the sums. */
void range_sums_next(const struct stored_ranges *c, struct range_sums *s);
/* Changes the sums to those of the first n_ranges ranges, from any state. */
void range_sums_move(const struct stored_ranges *c, struct range_sums *s, int n_ranges);
/* Computes the sums of the first n_ranges ranges from the beginning. They have no rounding errors
 * from subtracting ranges. */
void range_sums_at(const struct stored_ranges *c, int n_ranges, struct range_sums *s);
/* Makes the request that restores the ranges of `s`. */
void range_request(const struct stored_ranges *c, const struct range_sums *s,
                   struct plan_request *req);

/* ---- plan_cut.c: how much of a chain ---- */

/* Plans to restore the first n_used ranges. */
int plan_at_cut(const struct stored_ranges *c, int n_used, const struct plan_effort *effort,
                struct plan_request *req, struct plan *out, struct err *e);

/* ---- plan_search.c: which assignment ---- */

extern const struct plan_effort plan_effort_full;

/* Finds the best assignment; without_h: as if no layer had hidden states. Fills method and
 * exact. */
int plan_search(const struct plan_request *req, const struct plan_effort *effort,
                bool without_h, struct plan *out, struct err *e);
/* Does the same as plan_make with less effort. */
int plan_make_within(const struct plan_request *req, const struct plan_effort *effort,
                     struct plan *out, struct err *e);
/* Fills only mode, letters and predicted_s. Works as plan_make_within does for auto, without
 * checking the request. */
int plan_estimate(const struct plan_request *req, const struct plan_effort *effort,
                  struct plan *out, struct err *e);

struct search;

/* ---- plan_stages.c: stages that restore their layers beside each other ---- */

void plan_search_stages(struct search *s);
/* Orders the reads of job[0, n), which has one job per layer. */
void plan_order_stages(const struct plan_request *req, struct pipe_job *job, int n);

/* A search in progress: the best candidate so far, and values that all candidates share. */
struct search {
    const struct plan_request *req;
    const struct plan_effort *effort;
    bool without_h;
    int n, r_min, r_max; /* admissible lengths of the recomputed prefix */
    double io_f, comp_f; /* overlap factors, >= 1 */
    double prefill_sum_s;
    bool found, exact;
    double best_s, best_work_s;
    char best[PLAN_MAX_LAYERS + 1];
};

/* Returns a search that has found nothing yet. */
struct search search_of(const struct plan_request *req, const struct plan_effort *effort,
                        bool without_h);
/* Finds r_min and r_max. Returns false if no length is possible. */
bool search_is_possible(struct search *s);
/* Returns whether layer i may be restored with method m ('H' or 'K'). */
bool search_allows(const struct search *s, int i, char m);
/* Returns a lower bound on the end of every schedule with total read time io_s and total compute
 * comp_s. */
double search_bound(const struct search *s, double io_s, double comp_s);
/* Returns whether a candidate that cannot end before bound_s may still be the best. */
bool search_worth(const struct search *s, double bound_s);
/* Takes the candidate if it is better; total work decides between equally fast ones. */
void search_offer(struct search *s, const char *method, double makespan_s, double work_s);

/* ---- plan_bound.c: lower bounds on the time of every assignment ---- */

/* Even, so that compilers compute two weights with one instruction. */
enum { PLAN_WEIGHTS = 10 };

struct plan_bounds {
    bool fused;
    int n, n_stages;
    double u[PLAN_WEIGHTS], v[PLAN_WEIGHTS]; /* weights of the two lanes' work */
    /* Most weighted work that both lanes can do in a second: D(u, v) in plan_bound.c. */
    double most[PLAN_WEIGHTS];
    double most_inverse[PLAN_WEIGHTS];           /* 1 / most */
    double least[PLAN_MAX_LAYERS][PLAN_WEIGHTS]; /* weighted work of each layer */
    /* Weighted work of all layers from this one on. */
    double rest[PLAN_MAX_LAYERS + 1][PLAN_WEIGHTS];
    double least_bytes[PLAN_MAX_LAYERS];
    /* sums over the layers from this one on */
    double min_io_s[PLAN_MAX_LAYERS + 1], min_comp_s[PLAN_MAX_LAYERS + 1];
    /* fused: time of the reads from this layer on, and of the new tokens' layers that wait for
     * them. */
    double front_s[PLAN_MAX_LAYERS + 1], prefill_behind_s;
    double recompute_s[PLAN_MAX_LAYERS + 1];
    double latency_s, last_prefill_s, prefill_s, end_s;
};

/* Initialises *b. search_is_possible(s) must be true; s need not have a candidate yet. */
void plan_bounds_init(struct plan_bounds *b, const struct search *s);
/* Returns a lower bound on the time of plans whose lanes have the reads io_s, the compute comp_s,
 * and the weighted work rest[PLAN_WEIGHTS] of other layers. head_s, tail_s: of plan_bounds_idle. */
double plan_bound_lanes(const struct plan_bounds *b, double io_s, double comp_s,
                        const double *rest, double head_s, double tail_s);
/* Returns a lower bound on the time of plans with r recomputed layers. */
double plan_bound_of(const struct plan_bounds *b, int r);
/* Returns a lower bound on the time of plans with r_min to r_max recomputed layers. */
double plan_bound_least(const struct plan_bounds *b, int r_min, int r_max);
/* Sets *head_s to the least time that compute idles before the first read has arrived, and *tail_s
 * to the least time that I/O idles after the last read. */
void plan_bounds_idle(const struct plan_bounds *b, int r, double *head_s, double *tail_s);

/* ---- plan_branch.c: layers that differ ---- */

void search_branch(struct search *s);

/* ---- plan_paper.c ---- */

/* Applies the paper's closed form: fills method. */
int plan_paper(const struct plan_request *req, struct plan *out, struct err *e);

/* ---- plan_check.c ---- */

int plan_check_request(const struct plan_request *req, struct err *e);
/* Checks that every layer can be restored by its letter. */
int plan_check_method(const struct plan_request *req, const char *method, struct err *e);

/* Adapts out->method to the existing records, as plan_request.mode says, and sets n_r_added. Does
 * nothing if that needs a layer that cannot be recomputed. */
void plan_adapt(const struct plan_request *req, struct plan *out);

/* ---- plan_reason.c ---- */

/* Writes out->reason; all other fields of the plan must be filled. */
void plan_explain(const struct plan_request *req, struct plan *out);

#endif
