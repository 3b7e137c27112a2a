/* crashrun.h - one seeded life of a store on a simulated disk that loses power, and its judge.
 *
 * A life is a workload (append, commit, backfill, lookup, evict, erase, pin, collect garbage,
 * reopen) that is cut off at a chosen operation of the disk, then recovered; the recovery may be
 * cut off too.  The judge keeps, beside it, the sets of records that were acknowledged, on their
 * way, or never committed, and compares.
 *
 * Some faults are honest: the device says that it failed.  Others lie: a write is lost or lands
 * elsewhere, a read returns other bytes.  After a lie nothing can be promised but that no wrong
 * byte is served, and that is what is judged then. */
#ifndef TESTS_STORE_CRASHRUN_H
#define TESTS_STORE_CRASHRUN_H

#include <stdbool.h>
#include <stdint.h>

enum crash_fault {
    CRASH_EIO,
    CRASH_ENOSPC,
    CRASH_EROFS, /* for good, as when a file system is remounted read-only */
    CRASH_EMFILE,
    CRASH_SHORT, /* transfers */
    CRASH_SLOW,
    CRASH_STUCK,
    CRASH_SYNC_LIES, /* a sync fails once; later ones say that all is well */
    CRASH_LOST,      /* the first that lies */
    CRASH_MISDIRECTED,
    CRASH_READ_FLIP,
    CRASH_FAULTS
};
const char *crash_fault_name(enum crash_fault f);

struct crash_opts {
    uint64_t seed;       /* workload, disk and damage */
    uint64_t crash_at;   /* the n-th operation of the disk; 0: never */
    bool at_barrier;     /* crash_at counts syncs only */
    uint64_t recover_at; /* the n-th operation of the recovery; 0: never */
    int n_recover;       /* how often recovery is cut off there; 0: once */
    bool lose_index;     /* after the crash the index is gone, too */
    bool lose_segments;  /* after the crash a segment file is gone, too */
    double fault_chance; /* of an operation to fail, before the crash */
    unsigned faults;     /* which, by bit; 0: EIO, ENOSPC and SHORT */
};

struct crash_result {
    uint64_t n_ops, n_barriers; /* of the disk, in the workload */
    uint64_t n_recover_ops;     /* in the last recovery */
    uint64_t n_recover_crashes;
    uint64_t n_faults, n_fault[CRASH_FAULTS];
    uint64_t n_contexts;      /* that were acknowledged, and looked for after recovery */
    uint64_t n_lost, n_wrong; /* chunks, records */
    uint64_t n_dram;          /* records that were read from copies in DRAM */
    bool crashed;
    char violation[256]; /* empty: every promise held */
};

void crash_run(const struct crash_opts *opts, struct crash_result *out);

#endif
