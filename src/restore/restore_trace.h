/* restore_trace.h - the spans of one lane of a restore: for pictures, not for decisions. Pure.
 *
 * Work of one layer and method without a visible gap is one span, so the picture of a long
 * context has about as many spans as layers. Memory is fixed: spans beyond it are left out. */
#ifndef RESTORE_RESTORE_TRACE_H
#define RESTORE_RESTORE_TRACE_H

#include <stdint.h>

enum { RESTORE_MAX_SPANS = 512 }; /* spans of one lane */

struct restore_span {
    int64_t start_ns, end_ns; /* times of clock_now_ns */
    int16_t layer;
    char method; /* 'R', 'H', 'K' */
};

struct restore_trace {
    int n;
    struct restore_span span[RESTORE_MAX_SPANS];
};

/* Adds a span. A lane does one thing at a time: a span that began before the last one ended, as
 * reads in flight do, begins at that end. */
void restore_trace_add(struct restore_trace *t, int64_t start_ns, int64_t end_ns, int layer,
                       char method);

#endif
