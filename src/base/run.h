/* run.h - divides n things into runs whose lengths differ by at most one; layers are divided among
 * stages with it. */
#ifndef BASE_RUN_H
#define BASE_RUN_H

#include <stdint.h>

/* Returns which of n_runs runs contains the i-th of n things. */
static inline int run_of(int i, int n, int n_runs)
{
    return (int)((int64_t)i * n_runs / n);
}

#endif
