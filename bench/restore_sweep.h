/* restore_sweep.h - checks over random cases that auto is as fast as the best single method. It
 * also reports how far predictions are off, with and without other work on the machine. */
#ifndef BENCH_RESTORE_SWEEP_H
#define BENCH_RESTORE_SWEEP_H

#include <stdint.h>
#include <stdio.h>

#include "bench/background.h"
#include "bench/restore_lab.h"

struct sweep_opts {
    /* the sweep runs cases [skip, skip + n_cases) of the seed's endless sequence */
    int n_cases, skip;
    uint64_t seed;
    int rounds; /* minimum rounds of every case, in which the methods take turns */
    FILE *csv;  /* NULL: no CSV is written */
    /* kinds of other work, one bit per enum background; a case draws one of them */
    unsigned loads;
    bool damages; /* whether one case in four has hidden records */
    struct io *io;
    /* folder of the store; BACKGROUND_READER reads the largest file in it */
    const char *folder;
};

/* Runs the sweep. `file` and `dram` hold the same context. A case draws a length, and a throttle of
 * the file store or DRAM. Returns 0 even if auto was too slow in some cases; *n_broken gets the
 * number of such cases. */
int sweep_run(const struct sweep_opts *o, struct lab *file, struct lab *dram, int *n_broken,
              struct err *err);

#endif
