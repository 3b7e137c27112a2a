/* spans.h - the parts of a long piece of work, one after another, with their times.
 *
 *     spans_begin(&s);  read();  spans_end(&s, "read");  check();  spans_end(&s, "check");
 *
 * The times of all parts add up to the whole.  A struct belongs to one thread.  NULL is allowed
 * everywhere and records nothing. */
#ifndef BASE_SPANS_H
#define BASE_SPANS_H

#include "base/clock.h"

#include <stddef.h>

enum { SPANS_MAX = 24 };

struct spans {
    int n;
    struct {
        const char *name; /* static */
        int64_t ns;
    } of[SPANS_MAX];
    int64_t at_ns; /* end of the last part */
};

static inline void spans_begin(struct spans *s)
{
    if (s != NULL)
        *s = (struct spans){.at_ns = clock_now_ns()};
}

/* Ends the part that began at the last end. If all places are taken, the last part grows. */
static inline void spans_end(struct spans *s, const char *name)
{
    if (s == NULL)
        return;
    int64_t now = clock_now_ns();
    if (s->n < SPANS_MAX)
        s->of[s->n++].name = name;
    s->of[s->n - 1].ns += now - s->at_ns;
    s->at_ns = now;
}

#endif
