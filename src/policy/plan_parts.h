/* plan_parts.h - what the planner's files share; nobody else includes it. */
#ifndef POLICY_PLAN_PARTS_H
#define POLICY_PLAN_PARTS_H

#include "policy/pipeline.h"
#include "policy/plan.h"

/* How long a search may look.  It ends as soon as no candidate can be faster by more than
 * `slack`, a share of the best time; and after `steps` of about 20 ns.  `quick` leaves out what
 * only completes a search. */
struct plan_effort {
    double slack;
    double regret_slack; /* hedging: a worst regret may be larger by this, for less time */
    long steps;
    bool quick;
};
/* ---- plan_order.c: an assignment's jobs, and the best order to read them in ---- */

/* One layer's restoration by `method`; r layers are recomputed. */
struct pipe_job plan_job(const struct plan_request *req, int layer, char method, int r);
/* Compute of layer `layer` of a recomputed prefix of r. */
double plan_recompute_s(const struct plan_request *req, int layer, int r);
/* sum_s[r], for r from 0 to n_layers: compute of the whole recomputed prefix of r. */
void plan_recompute_sums(const struct plan_request *req, double *sum_s);
/* The request's lanes without jobs. */
struct pipe_load plan_load_empty(const struct plan_request *req);
/* Jobs of method[n_layers] in the best read order; returns their number (one a layer). */
int plan_jobs_ordered(const struct plan_request *req, const char *method,
                      struct pipe_job *job);
/* Johnson's rule: may (a1, b1) not come after (a2, b2)?  Strict: false where they are
 * equal. */
bool johnson_before(double a1, double b1, double a2, double b2);
/* Bytes per token that a layer stores to be restored by `method`. */
static inline double plan_layer_bytes(const struct plan_layer *l, char method)
{
    return method == 'K' ? l->kv_bytes : method == 'H' && !l->h_free ? l->h_bytes : 0;
}
static inline bool plan_within_budget(const struct plan_request *req, double bytes)
{
    return req->budget_bytes_per_token <= 0 || bytes <= req->budget_bytes_per_token;
}
/* Whether new tokens are prefilled inside the restore. */
bool plan_is_fused(const struct plan_request *req);
/* The number of leading R. */
int plan_prefix_r(const char *method);

/* The load of a finished plan, its reads in io_order (or layer order, token-wise). */
void plan_load(const struct plan_request *req, const struct plan *plan,
               struct pipe_job *job, struct pipe_load *load);

/* ---- plan_range.c: what records cost on a platform ---- */

/* The ranges of a stored chain. The first ones are restored; the tokens of the others are
 * prefilled with the new tokens. */
struct stored_ranges {
    const struct platform *platform;
    const struct plan_range *range;
    int n_ranges;
    int64_t n_tokens, n_new; /* tokens of all ranges, and new ones behind them */
    bool can_recompute;
    struct plan_window window;
    struct plan_layer *layer; /* the caller's [n_layers], as prefill_s */
    double *prefill_s;
};

/* What a layer's tokens are restored from under one letter. */
struct range_share {
    int64_t h_tokens, kv_tokens, lost_tokens; /* lost: no record */
    double io_s, up_s;
};

/* The shares of all layers over the ranges up to a cut.  Tokens before a layer's window have no
 * share. */
struct range_sums {
    int n_ranges;
    int64_t n_tokens, n_skipped; /* before the windows */
    struct range_share h[PLAN_MAX_LAYERS], kv[PLAN_MAX_LAYERS];
};

/* Tokens before the window behind n tokens, in whole chunks. */
int64_t plan_tokens_skipped(const struct plan_window *w, int64_t n);
void range_sums_init(struct range_sums *s);
/* Adds the next range. */
void range_sums_next(const struct stored_ranges *c, struct range_sums *s);
/* Moves to the first n_ranges, from wherever it is. */
void range_sums_move(const struct stored_ranges *c, struct range_sums *s, int n_ranges);
/* The same from the start: without the rounding errors of what was taken away again. */
void range_sums_at(const struct stored_ranges *c, int n_ranges, struct range_sums *s);
/* The request that restores the ranges of `s`. */
void range_request(const struct stored_ranges *c, const struct range_sums *s,
                   struct plan_request *req);

/* On the lane that all stages share, which of one stage is all of its I/O; on the
 * bus of its own. */
double plan_io_s(const struct platform *p, int tier, int64_t n, enum platform_record kind);
double plan_up_s(const struct platform *p, int tier, int64_t n, enum platform_record kind);

/* ---- plan_cut.c: how much of a chain ---- */

/* The plan that restores the first n_used ranges. */
int plan_at_cut(const struct stored_ranges *c, int n_used, const struct plan_effort *effort,
                struct plan_request *req, struct plan *out, struct err *e);

/* ---- plan_search.c: which assignment ---- */

extern const struct plan_effort plan_effort_full;

/* The best assignment; without_h: as if no layer had hidden states.  Fills method and
 * exact. */
int plan_search(const struct plan_request *req, const struct plan_effort *effort,
                bool without_h, struct plan *out, struct err *e);
/* plan_make with less effort. */
int plan_make_within(const struct plan_request *req, const struct plan_effort *effort,
                     struct plan *out, struct err *e);
/* Only mode, letters and predicted_s of plan_make_within for auto, and without its checks of the
 * request. */
int plan_estimate(const struct plan_request *req, const struct plan_effort *effort,
                  struct plan *out, struct err *e);

struct search;

/* ---- plan_stages.c: stages that restore their layers beside each other ---- */

void plan_search_stages(struct search *s);
/* Orders the reads of one job a layer. */
void plan_order_stages(const struct plan_request *req, struct pipe_job *job, int n);

/* ---- plan_hedge.c: when reading may be faster or slower than was measured ---- */

bool plan_wants_hedge(const struct plan_request *req);
/* As plan_search, with the least worst regret over req->io_spread. Fills hedged_s too. */
int plan_hedge(const struct plan_request *req, const struct plan_effort *effort,
               struct plan *out, struct err *e);

/* A search in progress: the best so far, and what all candidates share. */
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

/* Finds r_min and r_max; whether there is such a length. */
bool search_is_possible(struct search *s);
/* Layer i may be restored with method m ('H' or 'K') behind r recomputed layers. */
bool search_allows(const struct search *s, int i, char m);
/* No schedule of total read time io_s and total compute comp_s ends earlier than this. */
double search_bound(const struct search *s, double io_s, double comp_s);
/* Whether a candidate that cannot end before bound_s is worth looking at. */
bool search_worth(const struct search *s, double bound_s);
/* Takes the candidate where it is better; equally fast candidates are judged by total work.
 */
void search_offer(struct search *s, const char *method, double makespan_s, double work_s);

/* ---- plan_bound.c: what no assignment undercuts ---- */

enum { PLAN_WEIGHTS = 9 };

struct plan_bounds {
    bool fused;
    int n, n_stages;
    double u[PLAN_WEIGHTS], v[PLAN_WEIGHTS], most[PLAN_WEIGHTS]; /* D(u, v) */
    double most_inverse[PLAN_WEIGHTS];
    double least[PLAN_MAX_LAYERS][PLAN_WEIGHTS];    /* weighted work of each layer */
    double rest[PLAN_MAX_LAYERS + 1][PLAN_WEIGHTS]; /* and of all layers from this one on */
    double least_bytes[PLAN_MAX_LAYERS];
    double min_io_s[PLAN_MAX_LAYERS + 1],
        min_comp_s[PLAN_MAX_LAYERS + 1]; /* from this one on */
    /* fused: of the reads from this layer on, and the new tokens' layers that wait for them */
    double front_s[PLAN_MAX_LAYERS + 1], prefill_behind_s;
    double recompute_s[PLAN_MAX_LAYERS + 1];
    double latency_s, last_prefill_s, prefill_s, end_s;
};

/* `s` has been found possible; its best need not be known. */
void plan_bounds_init(struct plan_bounds *b, const struct search *s);
/* No plan that recomputes r layers ends earlier. */
double plan_bound_of(const struct plan_bounds *b, int r);
/* No plan that recomputes r_min to r_max layers does. */
double plan_bound_least(const struct plan_bounds *b, int r_min, int r_max);
/* How long compute idles at least before the first read, and I/O behind the last one. */
void plan_bounds_idle(const struct plan_bounds *b, int r, double *head_s, double *tail_s);

/* ---- plan_branch.c: layers that differ ---- */

void search_branch(struct search *s);

/* ---- plan_paper.c ---- */

/* The paper's closed form: fills method and other. */
int plan_paper(const struct plan_request *req, struct plan *out, struct err *e);
/* Token-wise modes: fills method, other, tokens_h, tokens_other. */
int plan_tokenwise(const struct plan_request *req, struct plan *out, struct err *e);
/* Two jobs a layer. */
int plan_tokenwise_jobs(const struct plan_request *req, const struct plan *plan,
                        struct pipe_job *job);

/* ---- plan_check.c ---- */

int plan_check_request(const struct plan_request *req, struct err *e);
/* Whether every layer can be restored by its letter. */
int plan_check_method(const struct plan_request *req, const char *method, struct err *e);

/* ---- plan_deviate.c ---- */

/* Changes out->method to what the records allow, and says so in out->deviation. */
void plan_deviate(const struct plan_request *req, struct plan *out);
/* Adds a clause to out->deviation. */
void plan_tell_deviation(struct plan *out, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- plan_reason.c ---- */

/* Writes out->reason; everything else of the plan is there. */
void plan_explain(const struct plan_request *req, struct plan *out);

#endif
