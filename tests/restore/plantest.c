/* plantest.c - see plantest.h. */
#include "tests/restore/plantest.h"

#include <math.h>

#include "restore/pipeline.h"

/* Permutes the reads by Heap's algorithm. */
double all_orders(const struct plan_request *q, struct plan *p)
{
    static struct pipeline lanes;
    int n = p->n_io, c[16] = {0};
    pipeline_simulate(q, p, &lanes);
    double best = lanes.makespan_s;
    for (int i = 0; i < n;) {
        if (c[i] < i) {
            int j = i % 2 ? c[i] : 0;
            int16_t t = p->io_order[j];
            p->io_order[j] = p->io_order[i];
            p->io_order[i] = t;
            pipeline_simulate(q, p, &lanes);
            best = fmin(best, lanes.makespan_s);
            c[i]++;
            i = 0;
        } else {
            c[i++] = 0;
        }
    }
    return best;
}
