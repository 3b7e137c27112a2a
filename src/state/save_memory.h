/* save_memory.h - memory for chunks on their way to the store: runs of bytes under one bound.
 *
 *   base                                                       base + n_bytes
 *   +---------+-------------+......+---------+.................+
 *   | run     | run         | free | run     | free            |
 *   +---------+-------------+......+---------+.................+
 *
 * Runs have the sizes that are asked for, since a chunk that saves hidden states alone needs a
 * third of one that saves both kinds.  First fit: low addresses are used again first, so that
 * what was never needed is never touched.  Nothing is allocated after the creation.  No locks. */
#ifndef STATE_SAVE_MEMORY_H
#define STATE_SAVE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#define SAVE_MEMORY_ALIGN 64

struct save_run {
    size_t at, n_bytes;
};

struct save_memory {
    uint8_t *base;
    size_t n_bytes;        /* the bound */
    struct save_run *runs; /* [max_runs], by address: those that are taken */
    int n_runs, max_runs;
};

/* min_bytes: the smallest run that will be asked for. -ENOMEM. */
int save_memory_init(struct save_memory *m, size_t n_bytes, size_t min_bytes);
void save_memory_deinit(struct save_memory *m);

/* n_bytes > 0, aligned to SAVE_MEMORY_ALIGN and not cleared; NULL where no gap is large enough. */
uint8_t *save_memory_take(struct save_memory *m, size_t n_bytes);
void save_memory_give(struct save_memory *m, const uint8_t *run);

#endif
