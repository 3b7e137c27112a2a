/* lanes.c - see lanes.h. */
#include "engine/lanes.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/minmax.h"
#include "restore/pipeline.h"
#include "restore/restore_trace.h"

static int by_start(const void *a, const void *b)
{
    const struct hcache_span *x = a, *y = b;
    return (x->start_ms > y->start_ms) - (x->start_ms < y->start_ms);
}

static void take(struct hcache_lanes *out, struct hcache_span *span, int n, double total_ms)
{
    free(out->span);
    qsort(span, (size_t)n, sizeof *span, by_start);
    *out = (struct hcache_lanes){.span = span, .n = n, .total_ms = total_ms};
}

/* Leaves out the prefill of new tokens, which the simulation puts behind the restore, and copies
 * to stages, which a measured restore does not report. */
void lanes_predict(struct hcache_lanes *out, const struct plan_request *req,
                   const struct plan *plan)
{
    struct pipeline *p = xmalloc(sizeof *p);
    int n = 0;
    pipeline_simulate(req, plan, p);
    struct hcache_span *span = xmalloc(((size_t)p->n_items + 1) * sizeof *span);
    for (int i = 0; i < p->n_items; i++) {
        const struct pipe_item *item = &p->item[i];
        if (item->lane == PIPE_PREFILL || item->lane == PIPE_UP)
            continue;
        span[n++] = (struct hcache_span){.start_ms = (float)(item->start_s * 1e3),
                                         .end_ms = (float)(item->end_s * 1e3),
                                         .layer = item->layer,
                                         .method = item->method,
                                         .is_io = item->lane == PIPE_IO};
    }
    take(out, span, n, p->restore_s * 1e3);
    free(p);
}

void lanes_measure(struct hcache_lanes *out, struct restore *r)
{
    struct restore_trace *t = xmalloc(2 * sizeof *t);
    int64_t t0, end = 0;
    int n = 0;
    restore_trace_of(r, &t[0], &t[1], &t0);
    struct hcache_span *span = xmalloc((size_t)(t[0].n + t[1].n + 1) * sizeof *span);
    for (int lane = 0; lane < 2; lane++) {
        for (int i = 0; i < t[lane].n; i++) {
            const struct restore_span *s = &t[lane].span[i];
            end = MAX(s->end_ns, end);
            span[n++] = (struct hcache_span){.start_ms = (float)(s->start_ns - t0) * 1e-6f,
                                             .end_ms = (float)(s->end_ns - t0) * 1e-6f,
                                             .layer = s->layer,
                                             .method = s->method,
                                             .is_io = lane == 0};
        }
    }
    take(out, span, n, n > 0 ? (double)(end - t0) * 1e-6 : 0);
    free(t);
}
