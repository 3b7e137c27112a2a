/* crashrun.h - one seeded life of a store on a simulated disk that loses power, and its judge.
 *
 * A life is a workload (append, commit, backfill, lookup, evict, collect garbage, reopen) that is
 * cut off at a chosen operation of the disk, then recovered; the recovery may be cut off too.  The
 * judge keeps, beside it, the sets of records that were acknowledged, on their way, or never
 * committed, and compares. */
#ifndef TESTS_STORE_CRASHRUN_H
#define TESTS_STORE_CRASHRUN_H

#include <stdbool.h>
#include <stdint.h>

struct crash_opts {
    uint64_t seed;       /* workload, disk and damage */
    uint64_t crash_at;   /* the n-th operation of the disk; 0: never */
    uint64_t recover_at; /* the n-th operation of the recovery; 0: never */
    bool lose_index;     /* after the crash the index is gone, too */
    /* of an operation to fail with -EIO or -ENOSPC, before the crash */
    double fault_chance;
};

struct crash_result {
    uint64_t n_ops;         /* of the disk, in the workload */
    uint64_t n_recover_ops; /* in the last recovery */
    uint64_t n_faults;
    bool crashed;
    char violation[256]; /* empty: every promise held */
};

void crash_run(const struct crash_opts *opts, struct crash_result *out);

#endif
