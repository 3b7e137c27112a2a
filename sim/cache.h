/* cache.h - a simulated cache of blocks in one tier or two, with the policies of
 * store/placement.h.
 *
 * Blocks are numbers. A block's parent holds the tokens before it; blocks form trees, and a
 * block is in the cache only if its parent is. With two tiers (memory and disk) a block is in
 * one of them. When memory is full a block moves to disk; when disk is full a block is evicted.
 *
 *     tier 0 (memory)   loses blocks that have no children in memory: to the disk, or for good if
 *                       there is no disk
 *     tier 1 (disk)     loses blocks that have no children at all, for good
 *
 * A request pins the last block of its path. This protects all blocks before it too, because a
 * block with a child is no leaf. src/store treats chunks in the same way, and
 * tests/store/test_victims.c checks that both choose the same victims.
 *
 * Pure: no clock, no I/O; memory is taken at creation. */
#ifndef SIM_CACHE_H
#define SIM_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "store/placement.h"

#define CACHE_NONE  UINT32_MAX
#define CACHE_TIERS 2

struct cache_block {
    struct placement_item place;
    uint32_t parent;
    uint32_t n_children, n_above; /* children in the cache; children in tier 0 */
    uint32_t n_pins;
    uint8_t tier; /* 1 + the tier; 0: not in the cache */
};

struct cache_opts {
    uint32_t n_blocks; /* blocks have the numbers below n_blocks */
    int n_tiers;
    uint64_t max_blocks[CACHE_TIERS];
    enum placement_kind policy;
    /* a newcomer that is worth less than the victim is refused (placement_admits) */
    bool refuses;
    /* The caller's window, whose ids are 1 + a block's number; NULL: no window. */
    struct placement_window *window;
};

struct cache {
    struct cache_opts o;
    struct cache_block *block; /* [n_blocks] */
    struct placement policy[CACHE_TIERS];
    struct placement_part part[CACHE_TIERS];
    struct placement_learn *learn; /* ours: the learner of both tiers; else NULL */
    uint64_t n_in[CACHE_TIERS];
    uint64_t tick;
    /* Blocks evicted, added, moved down, and moved up. */
    uint64_t n_evicted, n_added, n_down, n_up;
    /* Called before a block is evicted for good, and before a victim leaves tier 0; NULL: not
     * called. */
    void (*on_evict)(void *arg, uint32_t block);
    void (*on_leave)(void *arg, const struct placement_item *victim);
    void *arg;
};

void cache_init(struct cache *c, const struct cache_opts *o);
void cache_deinit(struct cache *c);

static inline bool cache_has(const struct cache *c, uint32_t block)
{
    return c->block[block].tier != 0;
}

/* Notes a use of a block in the cache. use->at is ignored: the cache counts uses itself. */
void cache_touch(struct cache *c, uint32_t block, const struct placement_use *use);
/* Puts a block into tier 0; evicts if the tier is full. parent is in the cache; CACHE_NONE: the
 * block has no parent. The block gets one pin. Returns false if nothing may be evicted. */
bool cache_add(struct cache *c, uint32_t block, uint32_t parent,
               const struct placement_use *use);
/* Moves a pinned block of tier 1, whose parent is in tier 0, to tier 0; evicts if tier 0 is full.
 * Returns false if nothing may be evicted. */
bool cache_raise(struct cache *c, uint32_t block, uint32_t time);
void cache_pin(struct cache *c, uint32_t block);
void cache_unpin(struct cache *c, uint32_t block);
/* Call when the window has changed for a block. */
void cache_review(struct cache *c, uint32_t block);
/* Marks a block as useless, so it is evicted first. If `child` is in the cache and its parent is
 * the block, it loses this parent and becomes a first block. CACHE_NONE: no child changes. */
void cache_drop(struct cache *c, uint32_t block, uint32_t child);

/* Returns whether all counts add up. Slow; for tests. */
bool cache_audit(const struct cache *c);

#endif
