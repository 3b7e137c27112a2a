/* restore_trace.h - what one lane of a restore did, span by span: for pictures, not
 * for decisions. Pure.
 *
 * Work of one layer and method that follows closely is one span, so that a picture of a
 * long context has no more spans than layers, about.  Memory is fixed: what comes after
 * it has been filled is left out. */
#ifndef STATE_RESTORE_TRACE_H
#define STATE_RESTORE_TRACE_H

#include <stdint.h>

enum { RESTORE_MAX_SPANS = 512 }; /* of one lane */

struct restore_span {
    int64_t start_ns, end_ns; /* of clock_now_ns */
    int16_t layer;
    char method; /* 'R', 'H', 'K' */
};

struct restore_trace {
    int n;
    struct restore_span span[RESTORE_MAX_SPANS];
};

/* A lane does one thing at a time: what began before the last span ended, as reads in
 * flight do, begins with its end. */
void restore_trace_add(struct restore_trace *t, int64_t start_ns, int64_t end_ns, int layer,
                       char method);

#endif
