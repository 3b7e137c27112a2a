/* crashrun.h - one seeded life of a store on a simulated disk that loses power, and its judge.
 *
 * A life is a workload (append, commit, backfill, lookup, evict, erase, pin, collect garbage,
 * reopen).  It is cut off at a chosen operation of the disk and then recovered; the recovery may be
 * cut off too.  The judge keeps its own sets of the records that were acknowledged, pending, or
 * never committed, and compares them with the store.
 *
 * Some faults are honest: the device reports that it failed.  Others lie: a write is lost or lands
 * elsewhere, a read returns other bytes.  After a lie the store promises only that it serves no
 * wrong byte, and the judge checks only that. */
#ifndef TESTS_STORE_CRASHRUN_H
#define TESTS_STORE_CRASHRUN_H

#include <stdbool.h>
#include <stdint.h>

enum crash_fault {
    CRASH_EIO,
    CRASH_ENOSPC,
    CRASH_EROFS, /* permanently, as when a file system is remounted read-only */
    CRASH_EMFILE,
    CRASH_SHORT, /* transfers that are too short */
    CRASH_SLOW,
    CRASH_STUCK,
    CRASH_SYNC_LIES, /* a sync fails once; later syncs report success */
    CRASH_LOST,      /* lost writes; this and the following faults lie */
    CRASH_MISDIRECTED,
    CRASH_READ_FLIP,
    CRASH_FAULTS
};
const char *crash_fault_name(enum crash_fault f);

struct crash_opts {
    uint64_t seed;       /* for the workload, the disk and the damage */
    uint64_t crash_at;   /* cut off at this operation of the disk; 0: never */
    bool at_barrier;     /* crash_at counts syncs only */
    uint64_t recover_at; /* cut off at this operation of the recovery; 0: never */
    int n_recover;       /* number of recoveries that are cut off there; 0 means 1 */
    bool lose_index;     /* the index is lost after the crash */
    bool lose_segments;  /* a segment file is lost after the crash */
    double fault_chance; /* the probability that an operation fails, before the crash */
    /* one bit for each fault that may happen; 0: EIO, ENOSPC and SHORT */
    unsigned faults;
};

struct crash_result {
    uint64_t n_ops, n_barriers; /* operations and syncs of the disk in the workload */
    uint64_t n_recover_ops;     /* operations of the disk in the last recovery */
    uint64_t n_recover_crashes;
    uint64_t n_faults, n_fault[CRASH_FAULTS];
    uint64_t n_contexts; /* acknowledged contexts that were looked for after the recovery */
    uint64_t n_lost, n_wrong; /* n_lost: lost chunks; n_wrong: wrong records */
    uint64_t n_dram;          /* records that were read from copies in DRAM */
    uint64_t n_promoted;      /* chunks that were read ahead into DRAM */
    uint64_t n_replaced;      /* chunks whose extents one extent replaced */
    uint64_t n_dropped;       /* chunks that lost the records of one layer */
    bool crashed;
    char violation[256]; /* empty if every promise held */
};

void crash_run(const struct crash_opts *opts, struct crash_result *out);

#endif
