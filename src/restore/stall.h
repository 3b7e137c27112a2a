/* stall.h - when a restore stops relying on reads that hang or crawl.
 *
 * A restore normally waits for its reads, since its plan says that they are cheaper than
 * computing. A disk that hangs makes this wrong. Three answers are possible:
 * - WAIT: the reads go on as planned.
 * - RACE: the compute lane recomputes the context from its tokens, first rows first, while the
 *   reads go on. Rows that are recomputed are no longer read. The restore ends when one of the
 *   two has brought the last row. A race costs only compute that would be idle, so little
 *   evidence suffices.
 * - LEAVE: the restore ends with the rows that a race has recomputed, or with none, and prefill
 *   computes the others. This is the answer beside decodes, since a restore then has only a
 *   small share of the compute, and if recomputation cannot race. All that the reads have
 *   brought is lost, so this answer takes more evidence.
 *
 * The evidence is a silence or a slow pace. A silence counts if it is longer than a share of the
 * recomputation time, and longer than reads take by the plan or by this restore's own pace. A
 * pace is slow if the remaining reads would take longer than STALL_CRAWL of the recomputation
 * time.
 *
 * Pure: no clock, no allocation. */
#ifndef RESTORE_STALL_H
#define RESTORE_STALL_H

#include <stdbool.h>

/* A restore races after a silence of this share of the recomputation time. So a disk that hangs
 * from the start costs 1.1 times the recomputation. */
#define STALL_RACE_SHARE 0.1
/* A restore leaves its reads after a silence of this share of the recomputation time. */
#define STALL_LEAVE_SHARE 0.15
/* Shorter silences are the machine's scheduling: a thread that lost its core. A needless race
 * costs little; needlessly left reads cost a restore. A healthy store in memory has been silent
 * for 250 ms on two processors with a load of 25. */
#define STALL_RACE_LEAST_S  0.002
#define STALL_LEAVE_LEAST_S 1.0
/* A silence counts only if it is at least as long as this many reads are expected to take. */
#define STALL_READS 2
/* Reads crawl if the remaining ones would take this share of the recomputation time. */
#define STALL_CRAWL 0.5

enum stall_choice { STALL_WAIT, STALL_RACE, STALL_LEAVE };

/* The end of a restore that did more than wait. */
enum stall_end {
    STALL_NONE,
    STALL_READ,       /* recomputation raced the reads, and the reads ended first */
    STALL_RECOMPUTED, /* recomputation raced the reads, and ended first */
    STALL_LEFT,       /* the restore gave up its reads */
    STALL_ENDS
};
/* Returns "", "read", "recomputed" or "left". */
const char *stall_end_name(enum stall_end e);

/* State of a restore. A read is a group of records that is read as one. */
struct stall_view {
    /* Time to compute all tokens of the restore, with the compute that they would get now. */
    double recompute_s;
    double elapsed_s; /* time since the restore's reads began */
    /* time since the store last completed any read, while it had reads to do */
    double silent_s;
    double read_s;      /* time of one read, as the plan expects */
    int n_read, n_left; /* reads of this restore: complete, and not complete */
    /* False for a truncated context, whose dropped tokens are gone, and for a forced plan. */
    bool may_recompute;
    bool can_race;  /* the restore's layers can be recomputed while they are read */
    bool is_idle;   /* the compute lane has no other work of this restore */
    bool is_beside; /* other sequences decode */
    bool is_raced;  /* recomputation already races the reads */
};

/* Returns the choice. If no read completes, the choice stays the same for at least *again_s
 * seconds. */
enum stall_choice stall_choose(const struct stall_view *v, double *again_s);

#endif
