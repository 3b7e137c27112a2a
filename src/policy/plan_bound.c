/* plan_bound.c - lower bounds of the makespan for every length of the recomputed prefix.
 *
 * While an assignment runs for T seconds, u * reads + v * compute <= T * D(u, v) for any weights
 * u and v, where D is the most that a second of both lanes can do. The bound is the best of a
 * few (u, v), each with the least weighted work that every layer can have. Compute also idles
 * until the first read has arrived, and I/O while the last layer is computed; both idle times
 * count if every layer must be read.
 *
 * With fused prefill, layer j of the new tokens waits for the reads of all layers up to j, and
 * all later layers of the new tokens follow it.
 *
 * With several stages, their compute counts as shared evenly. */
#include <math.h>

#include "policy/plan_parts.h"

static void bound_layer(struct plan_bounds *b, const struct search *s, int i)
{
    double min_io = INFINITY, min_comp = INFINITY, min_bytes = INFINITY;
    double *least = b->least[i];
    for (int w = 0; w < PLAN_WEIGHTS; w++)
        least[w] = INFINITY;
    for (const char *m = "HK"; *m != 0; m++) {
        if (!search_allows(s, i, *m))
            continue;
        struct pipe_job j = plan_job(s->req, i, *m, 0);
        double comp_s = j.comp_s / b->n_stages;
        for (int w = 0; w < PLAN_WEIGHTS; w++)
            least[w] = lesser(least[w], b->u[w] * j.io_s + b->v[w] * comp_s);
        min_io = lesser(min_io, j.io_s);
        min_comp = lesser(min_comp, comp_s);
        min_bytes = lesser(min_bytes, plan_layer_bytes(&s->req->layer[i], *m));
    }
    b->least_bytes[i] = min_bytes;
    if (b->fused) {
        double behind_s = b->prefill_behind_s += s->req->prefill_s[i];
        b->front_s[i] = min_io + greater(behind_s, b->front_s[i + 1]);
    }
    b->min_io_s[i] = lesser(b->min_io_s[i + 1], min_io);
    b->min_comp_s[i] = lesser(b->min_comp_s[i + 1], min_comp);
    for (int w = 0; w < PLAN_WEIGHTS; w++)
        b->rest[i][w] = b->rest[i + 1][w] + least[w];
}

void plan_bounds_init(struct plan_bounds *b, const struct search *s)
{
    b->fused = plan_is_fused(s->req);
    b->n = s->n;
    b->n_stages = s->req->n_stages > 1 ? s->req->n_stages : 1;
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

double plan_bound_of(const struct plan_bounds *b, int r)
{
    double best = b->fused && r < b->n ? b->front_s[r] + b->min_comp_s[r] : 0, head_s,
           tail_s;
    double comp_s = (b->recompute_s[r] + b->prefill_s) / b->n_stages;
    plan_bounds_idle(b, r, &head_s, &tail_s);
    for (int w = 0; w < PLAN_WEIGHTS; w++) {
        double u = b->u[w], v = b->v[w], most = b->most[w];
        double work = v * comp_s + b->rest[r][w] + tail_s * (most - v) +
                      head_s * (most - u);
        best = greater(best, work * b->most_inverse[w]);
    }
    return best + b->end_s;
}

double plan_bound_least(const struct plan_bounds *b, int r_min, int r_max)
{
    double best = INFINITY;
    for (int r = r_min; r <= r_max; r++)
        best = lesser(best, plan_bound_of(b, r));
    return best;
}
