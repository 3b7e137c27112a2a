/* restore_sweep.h - promise P2 over random cases: auto against the best single method; and how far
 * predictions are off, with other work on the machine and without. */
#ifndef BENCH_RESTORE_SWEEP_H
#define BENCH_RESTORE_SWEEP_H

#include <stdint.h>
#include <stdio.h>

#include "bench/background.h"
#include "bench/restore_lab.h"

struct sweep_opts {
    int n_cases, skip; /* cases [skip, skip + n_cases) of the seed's endless row of them */
    uint64_t seed;
    int rounds; /* of every case at least, in which the methods take turns */
    FILE *csv;  /* NULL: none */
    /* Kinds of other work that run beside cases, one drawn for each; a bit per enum background */
    unsigned loads;
    bool damages; /* a case in four has hidden records */
    struct io *io;
    const char *folder; /* of the store: the competing reader reads its largest file */
};

/* `file` and `dram` hold the same context.  Every case is a length, and a throttle of the file
 * store or DRAM.  Returns 0 also where the promise was broken: *n_broken says how often. */
int sweep_run(const struct sweep_opts *o, struct lab *file, struct lab *dram, int *n_broken,
              struct err *err);

#endif
