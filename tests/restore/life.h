/* life.h - seeded lives of a store, a saver and a restore pipeline, on a simulated disk.
 *
 * A life opens the three, saves contexts and restores them again, several at a time, closes all,
 * and opens them once more to restore everything.  The following threads run as fibers of
 * tests/restore/turns.h: the engine's thread, the writer, the restores' I/O, the DRAM tier's
 * thread, and one that flushes, erases and damages.  Half of the lives have a device with memory
 * of its own (life_device.h).  They also have the thread that sorts saved rows, and two copy
 * streams. The seed decides the operations, the disk's answers and the order of all threads.
 *
 * Each life checks the following (a violation ends the process and prints the seed):
 *  1. Every restored bit equals that of the forward pass which computed it.
 *  2. Tokens that were reported as committed come back after a restart or a crash, unless the life
 *     erases or damages chunks.
 *  3. In a life without trouble nothing is lost: each restore brings back all chunks that it was
 *     asked for, and no saving ends early.
 *  4. Each failure has a reason: saving that ends early, and a restore that brings back less.
 *  5. A restore that races with recomputation loses no chunk, whatever its reads do.  Reads that
 *     end after their restore write nothing that a later restore of the same blocks shows.
 *  6. Nothing waits for ever, and locks have one order (turns.h).
 *  7. No chunk of a text outlives an erasure unless a request that began later has saved it. */
#ifndef TESTS_RESTORE_LIFE_H
#define TESTS_RESTORE_LIFE_H

#include <stdbool.h>
#include <stdint.h>

enum life_trouble {
    LIFE_FLIP,       /* bits of stored records flip on the medium */
    LIFE_READ_FAIL,  /* reads fail with -EIO */
    LIFE_WRITE_FAIL, /* writes or syncs fail with -EIO */
    LIFE_STUCK,      /* some reads never end */
    LIFE_HANG,       /* from some moment on, reads take very long */
    LIFE_FULL,       /* the disk is full */
    LIFE_CRASH,      /* power is lost */
    LIFE_ERASE,      /* contexts are erased meanwhile */
    LIFE_SHORT,      /* transfers are short or slow; this is no trouble: nothing may fail */
    LIFE_MEMORY,     /* an allocation fails; the caller chooses which */
    LIFE_LOSSY,      /* many reads fail with -EIO; the caller chooses such lives */
    LIFE_TROUBLES
};

enum life_stage { LIFE_FINDING, LIFE_FOUND, LIFE_READING, LIFE_DONE, LIFE_STAGES };

struct life_counts {
    uint64_t n_lives, n_calm, n_turns, n_switches;
    uint64_t n_trouble[LIFE_TROUBLES]; /* lives in which the trouble happened */
    /* cancelled restores, by the stage that they had reached */
    uint64_t n_cancelled[LIFE_STAGES];
    /* n_restored: restores that ended. n_short: restores that brought back fewer chunks than the
     * life had asked for. */
    uint64_t n_restored, n_short;
    uint64_t n_rewound; /* restores that lost a chunk of a model with sliding windows */
    /* How races with recomputation ended. n_read: the reads ended first. n_recomputed:
     * recomputation ended first. n_late: as n_recomputed, with reads still in flight. n_left: the
     * restore gave its reads up. */
    uint64_t n_read, n_recomputed, n_late, n_left;
    uint64_t n_joint; /* work items that ended groups of several layers at once */
    uint64_t n_erased_while_read; /* erasures of chunks that a restore was reading */
    uint64_t n_too_late; /* sequences whose saving ended because their context was erased */
    /* erased chunks that were looked up and, as they must be, not found */
    uint64_t n_erased_gone;
    uint64_t n_save_ended; /* sequences whose saving ended early */
    uint64_t n_committed;  /* committed tokens that were looked for after the restart */
    uint64_t n_dram_reads; /* records served from copies in DRAM */
    uint64_t n_demoted;    /* chunks whose copies were evicted from DRAM for others */
    uint64_t n_promoted;   /* copies that were read from the disk into DRAM */
    uint64_t n_split;      /* lives on a device with memory of its own */
    /* restores with at least some reads by the device, past host memory */
    uint64_t n_direct;
    /* n_batches: batches of such reads.  n_refused: batches that the reader did not take.
     * n_broken: batches that ended with a fault of the reader.  n_stuck: how often all were
     * cancelled because the disk did not answer. */
    uint64_t n_batches, n_refused, n_broken, n_stuck;
};

/* Makes the models, the contexts and their reference states, once for all lives. */
void life_prepare(void);
void life_release(void);

/* Called when a life has closed everything for the first time; may be NULL. */
extern void (*life_before_restart)(void);

#define LIFE_DRAWN (~0u)
/* Runs one life. `trouble` has one bit per enum life_trouble. With LIFE_DRAWN the seed chooses the
 * troubles. */
void life_run(uint64_t seed, unsigned trouble, struct life_counts *counts);

#endif
