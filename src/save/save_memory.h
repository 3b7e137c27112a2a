/* save_memory.h - memory for chunks on their way to the store: runs of bytes under one bound.
 *
 *   base                                                       base + n_bytes
 *   +---------+-------------+......+---------+.................+
 *   | run     | run         | free | run     | free            |
 *   +---------+-------------+......+---------+.................+
 *
 * Runs have the requested sizes, since a chunk that saves only hidden states needs a third of a
 * chunk that saves both kinds. First fit: low addresses are reused first, so memory that was
 * never needed is never touched. Nothing is allocated after the creation. No locks. */
#ifndef SAVE_SAVE_MEMORY_H
#define SAVE_SAVE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#define SAVE_MEMORY_ALIGN 64

struct save_run {
    size_t at, n_bytes;
};

struct save_memory {
    uint8_t *base;
    size_t n_bytes;        /* size of the memory, which bounds the sum of all runs */
    struct save_run *runs; /* [max_runs] taken runs, by address */
    int n_runs, max_runs;
};

/* Returns 0 or -ENOMEM. min_bytes is the size of the smallest run that will be requested. */
int save_memory_init(struct save_memory *m, size_t n_bytes, size_t min_bytes);
void save_memory_deinit(struct save_memory *m);

/* Returns n_bytes (> 0) aligned to SAVE_MEMORY_ALIGN, not cleared; NULL if no gap fits. */
uint8_t *save_memory_take(struct save_memory *m, size_t n_bytes);
void save_memory_give(struct save_memory *m, const uint8_t *run);
/* Returns the bytes of all taken runs. */
size_t save_memory_used(const struct save_memory *m);

#endif
