/* life.h - seeded lives of a store, a saver and a restore pipeline, on a simulated disk.
 *
 * A life opens the three, saves contexts and restores them again, several at a time, closes all,
 * and opens them once more to restore everything.  The engine's thread, the writer, the restores'
 * I/O, the DRAM tier's thread and a fifth (flushes, erasures, damage) run as fibers of
 * tests/state/turns.h.  Half of the lives have a device with memory of its own (life_device.h), and
 * then the sorter of what is saved and two copy streams, too.  The seed decides what is done, what
 * the disk does, and every interleaving.  Some restores are staged first: they read before they
 * have their blocks.
 *
 * Checked in each life (a violation ends the process with the seed):
 *  1. Every restored bit equals that of the forward pass which computed it.
 *  2. Tokens that were told to be committed come back after a restart or a crash, unless the life
 *     erases or damages chunks.
 *  3. In a life without trouble nothing is lost: each restore brings back all chunks that it was
 *     asked for, and no saving ends early.
 *  4. What fails has a reason: saving that ends, a restore that brings back less.
 *  5. A restore that recomputation races loses no chunk, whatever its reads do.  Reads that end
 *     after their restore write nothing that a later restore of the same blocks shows.
 *  6. turns.h: nothing waits for ever, and locks have one order. */
#ifndef TESTS_STATE_LIFE_H
#define TESTS_STATE_LIFE_H

#include <stdbool.h>
#include <stdint.h>

enum life_trouble {
    LIFE_FLIP,       /* bits of stored records flip on the medium */
    LIFE_READ_FAIL,  /* reads fail: -EIO */
    LIFE_WRITE_FAIL, /* writes or syncs fail: -EIO */
    LIFE_STUCK,      /* reads do not end */
    LIFE_HANG,       /* from some moment on reads do not end for long */
    LIFE_FULL,       /* the disk is full */
    LIFE_CRASH,      /* power is lost */
    LIFE_ERASE,      /* contexts are erased meanwhile */
    LIFE_SHORT,      /* transfers are short or slow: no trouble at all */
    LIFE_MEMORY,     /* an allocation fails (the caller says which) */
    LIFE_TROUBLES
};

enum life_stage {
    LIFE_FINDING,
    LIFE_FOUND,
    LIFE_STAGED,
    LIFE_READING,
    LIFE_DONE,
    LIFE_STAGES
};

struct life_counts {
    uint64_t n_lives, n_calm, n_turns, n_switches;
    uint64_t n_trouble[LIFE_TROUBLES]; /* lives in which it happened */
    uint64_t n_cancelled[LIFE_STAGES]; /* restores, by how far they were */
    uint64_t n_restored,
        n_short;        /* restores that ended; with fewer chunks than asked for */
    uint64_t n_rewound; /* restores that lost a chunk and have windows */
    /* Restores that recomputation raced: the reads ended first; it did, of those with reads in
     * flight then; and restores that left their reads */
    uint64_t n_read, n_recomputed, n_late, n_left;
    uint64_t n_replanned; /* restores that changed kinds of records between layers */
    uint64_t n_joint;     /* work items that ended groups of several layers at once */
    /* Staged restores that got their blocks; that were given up because a chunk was erased,
     * damaged or superseded meanwhile */
    uint64_t n_placed, n_gone;
    uint64_t n_erased_while_read; /* erasures while a restore had the chunks */
    uint64_t n_save_ended;        /* sequences whose saving ended early */
    uint64_t n_committed;         /* committed tokens looked for after the restart */
    uint64_t n_dram_reads;        /* records that were served from copies in DRAM */
    uint64_t n_demoted;           /* chunks whose copies made room for others */
    uint64_t n_promoted;          /* copies that were fetched from the disk */
    uint64_t n_split;             /* lives on a device with memory of its own */
    uint64_t n_direct; /* restores that the device read past host memory, at least a part */
    /* Batches of such reads; those that the reader refused, or ended with a fault of its own;
     * how often all were cancelled because the disk was silent */
    uint64_t n_batches, n_refused, n_broken, n_stuck;
};

/* Models, contexts and their reference states, once for all lives. */
void life_prepare(void);
void life_release(void);

/* Called when a life has closed everything for the first time; NULL: nothing is. */
extern void (*life_before_restart)(void);

/* Whether some restores are staged.  Without, a seed draws what it drew before there were any. */
extern bool life_stages;

#define LIFE_DRAWN (~0u)
/* Lives one life. trouble: a bit per enum life_trouble; LIFE_DRAWN: the seed decides. */
void life_run(uint64_t seed, unsigned trouble, struct life_counts *counts);

#endif
