/* restore_replan.c - measures the lanes of a running restore, and changes the kind of record of
 * layers whose reads have not begun (restore/replan.h).
 *
 * restore_replan decides after each work item that had no budget. With a budget, beside decodes, a
 * restore has a fixed share of the compute, which its plan takes into account. A device with memory
 * of its own does not report the time of one kind of record, so plans stay unchanged there. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "restore/replan.h"
#include "restore/restore_impl.h"

/* A lane has shown its speed when it has done this share of its work. */
#define LEAST_SHARE 0.1

static int rows_of_layer(const struct restore *r, int l)
{
    return restore_tokens(r, r->job.n_chunks) - r->start[l] * STORE_CHUNK_TOKENS;
}

static int chunks_of_layer(const struct restore *r, int l)
{
    int n = r->job.n_chunks - r->start[l];
    return n > 0 ? n : 1;
}

static double planned_io_s(const struct restore *r, int l)
{
    return r->method[l] == 'H' ? r->costs[l].io_h_s : r->costs[l].io_kv_s;
}

void restore_replan_begin(struct restore *r)
{
    const struct plan *p = r->job.plan;
    memcpy(r->method, p->method, (size_t)p->n_layers);
    r->may_replan = r->job.layer != NULL && r->rr->up == NULL;
    for (int l = 0; r->may_replan && l < p->n_layers; l++) {
        const struct plan_layer *c = &r->job.layer[l];
        r->costs[l] = (struct layer_cost){.io_h_s = c->io_h_s,
                                          .io_kv_s = c->io_kv_s,
                                          .comp_h_s = c->comp_h_s,
                                          .comp_kv_s = c->comp_kv_s,
                                          .has_both = c->has_h && c->has_kv && !c->h_free};
    }
    for (int i = r->n_late; r->may_replan && i < r->n_order; i++)
        r->io_planned_s += planned_io_s(r, r->order[i]);
}

void restore_replan_read(struct restore *r, const struct group *g)
{
    const struct layer_cost *c = &r->costs[g->layer];
    if (r->may_replan && g->n_chunks > 0)
        r->io_done_s += (g->kind == STORE_HIDDEN ? c->io_h_s : c->io_kv_s) * g->n_chunks /
                        chunks_of_layer(r, g->layer);
}

/* [lock] Returns the actual time of reads divided by their planned time, or 1 if too few reads are
 * done. */
static double io_factor(const struct restore *r, int64_t now)
{
    int64_t ns = r->io_ns + (r->n_in_flight > 0 ? now - r->io_since : 0);
    return r->io_done_s > LEAST_SHARE * r->io_planned_s ? (double)ns * 1e-9 / r->io_done_s
                                                        : 1;
}

/* Returns the compute time of a layer restored by one kind of record: measured on this restore's
 * rows if there are enough of them, else as planned. */
static double comp_s(const struct restore *r, int l, enum store_kind kind)
{
    const struct layer_cost *c = &r->costs[l];
    if (r->kind_rows[kind] < GROUP_ROWS)
        return kind == STORE_HIDDEN ? c->comp_h_s : c->comp_kv_s;
    return (double)r->kind_ns[kind] * 1e-9 / (double)r->kind_rows[kind] *
           rows_of_layer(r, l);
}

static enum store_kind kind_of(const struct restore *r, int l)
{
    return r->method[l] == 'H' ? STORE_HIDDEN : STORE_KV;
}

/* [lock] Describes the remaining work. left[]: the layers that may change, in the order of their
 * reads. */
static struct replan_view look(const struct restore *r, int64_t now, int16_t *left)
{
    struct replan_view v = {0};
    double slow = io_factor(r, now);
    for (int i = r->n_late; i < r->n_order; i++) {
        int l = r->order[i];
        const struct layer_cost *c = &r->costs[l];
        double to_read = 1; /* share of the layer that is still to be read */
        if (i < r->next_layer)
            to_read = 0;
        else if (i == r->next_layer)
            to_read = (double)(r->job.n_chunks - r->next_chunk) / chunks_of_layer(r, l);
        if (i <= r->next_layer || !c->has_both) {
            v.io_rest_s += slow * to_read * planned_io_s(r, l);
            v.comp_rest_s += comp_s(r, l, kind_of(r, l)) * r->layer_left[l] /
                             chunks_of_layer(r, l);
            continue;
        }
        /* Layers that may change have nearly equal costs; their sums become means below. */
        left[v.n_left++] = (int16_t)l;
        v.n_hidden += r->method[l] == 'H';
        v.io_h_s += slow * c->io_h_s;
        v.io_kv_s += slow * c->io_kv_s;
        v.comp_h_s += comp_s(r, l, STORE_HIDDEN);
        v.comp_kv_s += comp_s(r, l, STORE_KV);
    }
    double n = v.n_left > 0 ? v.n_left : 1;
    v.io_h_s /= n;
    v.io_kv_s /= n;
    v.comp_h_s /= n;
    v.comp_kv_s /= n;
    int rows = r->n_recompute > 0 ? restore_tokens(r, r->job.n_chunks) - r->re.row : 0;
    v.comp_rest_s += (double)rows * r->n_recompute * r->rr->row_ns[0] * 1e-9;
    return v;
}

/* [lock] Changes layers. A layer that computes longer than it reads must begin earlier, so the
 * last layers become K and V, and the first ones hidden states. */
static void change(struct restore *r, const int16_t *left, int n_left, int n_more_hidden)
{
    bool to_hidden = n_more_hidden > 0;
    int n = abs(n_more_hidden);
    for (int i = 0; i < n_left && n > 0; i++) {
        int l = left[to_hidden ? i : n_left - 1 - i];
        if (r->method[l] != (to_hidden ? 'K' : 'H'))
            continue;
        r->method[l] = to_hidden ? 'H' : 'K';
        r->out.n_replanned++;
        n--;
    }
}

void restore_replan(struct restore *r)
{
    int16_t left[STORE_MAX_LAYERS];
    struct restore_pipeline *rr = r->rr;
    if (!r->may_replan || r->out.raced_layers > 0 || r->is_stopped)
        return;
    pthread_mutex_lock(&rr->lock);
    struct replan_view v = look(r, clock_now_ns(), left);
    change(r, left, v.n_left, replan_hidden(&v) - v.n_hidden);
    pthread_mutex_unlock(&rr->lock);
}
