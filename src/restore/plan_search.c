/* plan_search.c - chooses the method of each layer.
 *
 * Equal layers: only the counts (r, h, k) matter, and with fused prefill also which of H and K
 * is read first. Without fusion any positions give the same lanes; here they are R..RH..HK..K.
 * With fusion, reading in rising layer order unlocks prefill earliest for any sequence of kinds.
 * So the kinds are put in Johnson's order over (read, compute + prefill), from the lowest layer
 * up. All (r, h) pairs, about L*L/2, are bounded in O(1) by the lanes' total work; the few that
 * could win are run through the pipeline.
 *
 * Layers that differ go to plan_branch.c, several stages to plan_stages.c.
 *
 * r = 0 with a free layer 0: reading K there while another layer is read as H is never better
 * than the reverse, so only all-K is tried (the exchange argument is in RESTORATION.md). */
#include <math.h>
#include <string.h>

#include "restore/plan_parts.h"

bool search_allows(const struct search *s, int i, char m)
{
    const struct plan_layer *l = &s->req->layer[i];
    if (m == 'K')
        return l->has_kv;
    return !s->without_h && (l->has_h || l->h_free);
}

double search_bound(const struct search *s, double io_s, double comp_s)
{
    /* A second of both lanes together does 1/io_f of reading and 1/comp_f of computing. It saves
     * 1/io_f + 1/comp_f - 1 seconds against doing the same in turn. */
    double together = lesser(io_s * s->io_f, comp_s * s->comp_f);
    double saved = greater(0, 1 / s->io_f + 1 / s->comp_f - 1);
    return io_s + comp_s - together * saved;
}

/* Smaller differences are rounding errors. */
static const double TIE = 1e-9;

const struct plan_effort plan_effort_full = {.steps = 30000};

bool search_worth(const struct search *s, double bound_s)
{
    double slack = s->effort->slack;
    return !s->found || bound_s <= s->best_s * (slack > 0 ? 1 - slack : 1 + TIE);
}

void search_offer(struct search *s, const char *method, double makespan_s, double work_s)
{
    if (s->found) {
        if (makespan_s > s->best_s * (1 + TIE))
            return;
        if (makespan_s >= s->best_s * (1 - TIE) && work_s >= s->best_work_s)
            return;
    }
    /* Keeps the smaller time. Otherwise a chain of ties could creep upwards. */
    s->best_s = s->found ? lesser(makespan_s, s->best_s) : makespan_s;
    s->best_work_s = work_s;
    memcpy(s->best, method, (size_t)s->n);
    s->best[s->n] = 0;
    s->found = true;
}

static bool alike(const struct plan_layer *x, const struct plan_layer *y)
{
    return x->io_h_s == y->io_h_s && x->io_kv_s == y->io_kv_s &&
           x->comp_h_s == y->comp_h_s && x->comp_kv_s == y->comp_kv_s &&
           x->comp_tok_s == y->comp_tok_s && x->comp_tok_last_s == y->comp_tok_last_s &&
           x->h_bytes == y->h_bytes && x->kv_bytes == y->kv_bytes &&
           x->has_kv == y->has_kv && x->can_recompute == y->can_recompute;
}

/* Returns whether the counts describe the plan completely (see the top of the file). */
static bool counts_suffice(const struct plan_request *req)
{
    const struct plan_layer *l = req->layer;
    /* With a window a recomputed layer's cost depends on the number of layers above it. */
    if (req->window.tokens > 0)
        return false;
    for (int i = 1; i < req->n_layers; i++) {
        if (!alike(&l[0], &l[i]) || l[i].h_free)
            return false;
        if (i > 1 && l[i].has_h != l[1].has_h)
            return false;
        /* The first layer's prefill may differ if the layer itself is free or all layers are K. */
        if (plan_is_fused(req) && req->prefill_s[i] != req->prefill_s[l[0].h_free ? 1 : 0])
            return false;
    }
    /* The counts cannot say 'H' for a free layer 0. Recomputing it gives the same keys and values,
     * so the counts suffice if that costs no more than 'H' does. */
    if (l[0].h_free)
        return l[0].comp_tok_last_s <= l[0].comp_h_s;
    return req->n_layers == 1 || l[0].has_h == l[1].has_h;
}

struct search search_of(const struct plan_request *req, const struct plan_effort *effort,
                        bool without_h)
{
    struct search s = {.req = req,
                       .effort = effort,
                       .without_h = without_h,
                       .n = req->n_layers,
                       .io_f = fmax(1, req->io_overlap),
                       .comp_f = fmax(1, req->comp_overlap)};
    for (int i = 0; req->prefill_s != NULL && i < s.n; i++)
        s.prefill_sum_s += req->prefill_s[i];
    return s;
}

bool search_is_possible(struct search *s)
{
    const struct plan_layer *l = s->req->layer;
    s->r_max = 0;
    while (s->r_max < s->n && l[s->r_max].can_recompute)
        s->r_max++;
    if (s->r_max == 0 && l[0].h_free)
        s->r_max = 1;
    s->r_min = 0;
    for (int i = 0; i < s->n; i++)
        if (!search_allows(s, i, 'H') && !search_allows(s, i, 'K'))
            s->r_min = i + 1;
    return s->r_min <= s->r_max;
}

/* ---- layers that are alike ---- */

struct counts {
    int r, h, k;
};

static bool counts_allowed(const struct search *s, struct counts c)
{
    const struct plan_request *q = s->req;
    const struct plan_layer *l = &q->layer[q->n_layers - 1];
    if (c.h > 0 && !search_allows(s, q->n_layers - 1, 'H'))
        return false;
    if (c.k > 0 && !l->has_kv)
        return false;
    if (c.r == 0 && q->layer[0].h_free && c.h > 0)
        return false; /* a plan with r = 1 does the same work */
    double bytes = c.h * l->h_bytes + c.k * l->kv_bytes;
    return plan_within_budget(q, bytes);
}

static double counts_io_s(const struct plan_layer *l, struct counts c)
{
    return (c.h ? c.h * l->io_h_s : 0) + (c.k ? c.k * l->io_kv_s : 0);
}

static double counts_comp_s(const struct plan_layer *l, struct counts c)
{
    double s = (c.h ? c.h * l->comp_h_s : 0) + (c.k ? c.k * l->comp_kv_s : 0);
    if (c.r > 0)
        s += (c.r > 1 ? (c.r - 1) * l->comp_tok_s : 0) + l->comp_tok_last_s;
    return s;
}

/* Returns a lower bound of the makespan, from the lanes' work and the compute after the last
 * read. */
static double counts_bound(const struct search *s, struct counts c)
{
    const struct plan_request *q = s->req;
    const struct plan_layer *l = &q->layer[q->n_layers - 1];
    double io = counts_io_s(l, c), comp = counts_comp_s(l, c), end = q->head_s;
    if (plan_is_fused(q))
        comp += s->prefill_sum_s;
    else
        end += s->prefill_sum_s;
    double bound = search_bound(s, io, comp) + end;
    if (io > 0) {
        bool h_read = c.h > 0 && l->io_h_s > 0, k_read = c.k > 0 && l->io_kv_s > 0;
        double last = fmin(h_read ? l->comp_h_s : INFINITY,
                           k_read ? l->comp_kv_s : INFINITY);
        if (plan_is_fused(q))
            last += q->prefill_s[q->n_layers - 1];
        bound = fmax(bound, io + q->io_latency_s + last + end);
    }
    return bound;
}

static void counts_method(const struct search *s, struct counts c, char *method)
{
    const struct plan_request *q = s->req;
    const struct plan_layer *l = &q->layer[q->n_layers - 1];
    double p = plan_is_fused(q) ? q->prefill_s[q->n_layers - 1] : 0;
    bool k_first = plan_is_fused(q) && c.h > 0 && c.k > 0 &&
                   johnson_before(l->io_kv_s * s->io_f, (l->comp_kv_s + p) * s->comp_f,
                                  l->io_h_s * s->io_f, (l->comp_h_s + p) * s->comp_f);
    memset(method, 'R', (size_t)c.r);
    memset(method + c.r, k_first ? 'K' : 'H', (size_t)(k_first ? c.k : c.h));
    memset(method + c.r + (k_first ? c.k : c.h), k_first ? 'H' : 'K',
           (size_t)(k_first ? c.h : c.k));
    method[s->n] = 0;
}

static void counts_try(struct search *s, struct counts c)
{
    const struct plan_layer *l = &s->req->layer[s->n - 1];
    struct pipe_job job[PLAN_MAX_LAYERS];
    char method[PLAN_MAX_LAYERS + 1];
    counts_method(s, c, method);
    struct pipe_load load = plan_load_empty(s->req);
    load.job = job;
    load.n_jobs = plan_jobs_ordered(s->req, method, job);
    search_offer(s, method, pipe_run(&load, NULL), counts_io_s(l, c) + counts_comp_s(l, c));
}

static void search_counts(struct search *s)
{
    struct counts first = {-1, 0, 0};
    double first_bound = INFINITY;
    for (int pass = 0; pass < 2; pass++) {
        for (int r = s->r_min; r <= s->r_max; r++)
            for (int h = 0; h <= s->n - r; h++) {
                struct counts c = {r, h, s->n - r - h};
                if (!counts_allowed(s, c))
                    continue;
                double bound = counts_bound(s, c);
                if (pass == 0 && bound < first_bound) {
                    first = c;
                    first_bound = bound;
                }
                if (pass == 1 && search_worth(s, bound))
                    counts_try(s, c);
            }
        if (first.r < 0)
            return;
        if (pass == 0) /* the most promising pair first: it rules out most others */
            counts_try(s, first);
    }
    s->exact = true;
}

/* Searches again without H: a search that was cut short must not lose to KV + recompute, with which
 * users and papers compare. */
static void search_again_without_h(struct search *s)
{
    struct plan_effort less = *s->effort;
    if (less.steps < plan_effort_full.steps)
        less.quick = true;
    s->without_h = true;
    s->effort = &less;
    if (search_is_possible(s))
        search_branch(s);
    s->exact = false;
}

int plan_search(const struct plan_request *req, const struct plan_effort *effort,
                bool without_h, struct plan *out, struct err *e)
{
    struct search s = search_of(req, effort, without_h);
    if (!search_is_possible(&s))
        return err_set(
            e, ERR_NOT_FOUND,
            "plan: layer %d has no usable record and recomputation does not reach it%s",
            s.r_min - 1, without_h ? " (hidden states left out)" : "");
    if (req->n_stages > 1)
        plan_search_stages(&s);
    else if (!effort->quick && counts_suffice(req))
        search_counts(&s);
    else
        search_branch(&s);
    if (s.found && !s.exact && !effort->quick && !without_h && req->n_stages <= 1)
        search_again_without_h(&s);
    if (!s.found)
        return err_set(e, ERR_NOT_FOUND, "no plan stores at most %.0f bytes per token",
                       req->budget_bytes_per_token);
    memcpy(out->method, s.best, sizeof s.best);
    /* plan.h says that H in a free layer 0 is reported as R, which is the same work. */
    if (out->method[0] == 'H' && req->layer[0].h_free)
        out->method[0] = 'R';
    out->predicted_s = s.best_s;
    out->exact = s.exact;
    return 0;
}
