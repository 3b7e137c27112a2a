/* restore_trace.c - see restore_trace.h. */
#include "restore/restore_trace.h"

enum { GAP_NS = 20000 }; /* shorter gaps would not be visible */

void restore_trace_add(struct restore_trace *t, int64_t start_ns, int64_t end_ns, int layer,
                       char method)
{
    struct restore_span *last = t->n > 0 ? &t->span[t->n - 1] : 0;
    if (last != 0 && start_ns < last->end_ns)
        start_ns = last->end_ns;
    if (end_ns <= start_ns)
        return;
    if (last != 0 && last->layer == layer && last->method == method &&
        start_ns - last->end_ns < GAP_NS) {
        last->end_ns = end_ns;
        return;
    }
    if (t->n < RESTORE_MAX_SPANS)
        t->span[t->n++] = (struct restore_span){start_ns, end_ns, (int16_t)layer, method};
}
