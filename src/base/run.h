/* run.h - n things in runs that differ by one at most: the rule by which stages have layers. */
#ifndef BASE_RUN_H
#define BASE_RUN_H

#include <stdint.h>

/* The run, of n_runs, that has the i-th of n things. */
static inline int run_of(int i, int n, int n_runs)
{
    return (int)((int64_t)i * n_runs / n);
}

#endif
