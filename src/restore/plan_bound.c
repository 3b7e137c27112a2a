/* plan_bound.c - lower bounds of the makespan for every length of the recomputed prefix.
 *
 * While an assignment runs for T seconds, u * reads + v * compute <= T * D(u, v) for any weights
 * u and v. D(u, v) is the most weighted work that both lanes together can do in a second. With
 * the least weighted work that every layer can have, this gives a bound of T for each (u, v); the
 * largest bound of a few (u, v) is used. Compute also idles until the first read has arrived, and
 * I/O while the last layer is computed; both idle times count if every layer must be read.
 *
 * With fused prefill, layer j of the new tokens waits for the reads of all layers up to j, and
 * all later layers of the new tokens follow it.
 *
 * With several stages, their compute counts as shared evenly. */
#include <math.h>

#include "base/minmax.h"
#include "restore/plan_parts.h"

/* Returns the weighted work of an option, NULL if the layer lacks it. (Infinite costs would not do:
 * infinity times a weight of 0 is a NaN.) */
static double work_of(const struct plan_bounds *b, int w, const struct pipe_job *job)
{
    return job == NULL ? INFINITY : b->u[w] * job->io_s + b->v[w] * job->comp_s;
}

static void bound_layer(struct plan_bounds *b, const struct search *s, int i)
{
    bool can_h = search_allows(s, i, 'H'), can_k = search_allows(s, i, 'K');
    struct pipe_job h = {.io_s = INFINITY, .comp_s = INFINITY}, k = h;
    if (can_h)
        h = plan_job(s->req, i, 'H', 0);
    if (can_k)
        k = plan_job(s->req, i, 'K', 0);
    h.comp_s /= b->n_stages;
    k.comp_s /= b->n_stages;
    double h_bytes = can_h ? plan_layer_bytes(&s->req->layer[i], 'H') : INFINITY;
    double kv_bytes = can_k ? plan_layer_bytes(&s->req->layer[i], 'K') : INFINITY;
    b->least_bytes[i] = lesser(h_bytes, kv_bytes);
    double min_io_s = lesser(h.io_s, k.io_s), min_comp_s = lesser(h.comp_s, k.comp_s);
    if (b->fused) {
        double behind_s = b->prefill_behind_s += s->req->prefill_s[i];
        b->front_s[i] = min_io_s + greater(behind_s, b->front_s[i + 1]);
    }
    b->min_io_s[i] = lesser(b->min_io_s[i + 1], min_io_s);
    b->min_comp_s[i] = lesser(b->min_comp_s[i + 1], min_comp_s);
    for (int w = 0; w < PLAN_WEIGHTS; w++) {
        b->least[i][w] = lesser(work_of(b, w, can_h ? &h : NULL),
                                work_of(b, w, can_k ? &k : NULL));
        b->rest[i][w] = b->rest[i + 1][w] + b->least[i][w];
    }
}

void plan_bounds_init(struct plan_bounds *b, const struct search *s)
{
    b->fused = plan_is_fused(s->req);
    b->n = s->n;
    b->n_stages = MAX(s->req->n_stages, 1);
    b->latency_s = s->req->io_latency_s;
    b->last_prefill_s = b->fused ? s->req->prefill_s[s->n - 1] : 0;
    b->prefill_s = b->fused ? s->prefill_sum_s : 0;
    b->end_s = s->req->head_s + (b->fused ? 0 : s->prefill_sum_s);
    for (int w = 0; w < PLAN_WEIGHTS; w++) {
        b->u[w] = (double)w / (PLAN_WEIGHTS - 1);
        b->v[w] = 1 - b->u[w];
        b->most[w] = fmax(fmax(b->u[w], b->v[w]), b->u[w] / s->io_f + b->v[w] / s->comp_f);
        b->most_inverse[w] = 1 / b->most[w];
        b->rest[s->n][w] = 0;
    }
    b->front_s[s->n] = b->prefill_behind_s = 0;
    b->min_io_s[s->n] = b->min_comp_s[s->n] = INFINITY;
    for (int i = s->n - 1; i >= 0; i--)
        bound_layer(b, s, i);
    plan_recompute_sums(s->req, b->recompute_s);
}

void plan_bounds_idle(const struct plan_bounds *b, int r, double *head_s, double *tail_s)
{
    bool all_read = r < b->n && b->min_io_s[r] > 0 && b->n_stages == 1;
    *head_s = all_read && r == 0 ? b->min_io_s[r] + b->latency_s : 0;
    *tail_s = all_read ? b->min_comp_s[r] + b->latency_s + b->last_prefill_s : 0;
}

double plan_bound_lanes(const struct plan_bounds *b, double io_s, double comp_s,
                        const double *rest, double head_s, double tail_s)
{
    double least_s[PLAN_WEIGHTS], best = 0;
    for (int w = 0; w < PLAN_WEIGHTS; w++) {
        double u = b->u[w], v = b->v[w], most = b->most[w];
        double work = u * io_s + v * comp_s + rest[w] + tail_s * (most - v) +
                      head_s * (most - u);
        least_s[w] = work * b->most_inverse[w];
    }
    for (int w = 0; w < PLAN_WEIGHTS; w++)
        best = greater(best, least_s[w]);
    return best + b->end_s;
}

double plan_bound_of(const struct plan_bounds *b, int r)
{
    double head_s, tail_s, comp_s = (b->recompute_s[r] + b->prefill_s) / b->n_stages;
    plan_bounds_idle(b, r, &head_s, &tail_s);
    double lanes_s = plan_bound_lanes(b, 0, comp_s, b->rest[r], head_s, tail_s);
    double front_s = b->fused && r < b->n ? b->front_s[r] + b->min_comp_s[r] : 0;
    return greater(lanes_s, front_s + b->end_s);
}

double plan_bound_least(const struct plan_bounds *b, int r_min, int r_max)
{
    double best = INFINITY;
    for (int r = r_min; r <= r_max; r++)
        best = lesser(best, plan_bound_of(b, r));
    return best;
}
