/* placement.h - what a full tier evicts: of chunks on a disk, or of blocks in the KV pool.
 *
 * The tier's owner tells which of its items may be evicted (insert, remove) and when each was
 * used (touch); the victim is the item that goes next.  The owner inserts leaves only, items
 * that nothing in the tier continues.  So a chain loses its tail before its head, whatever the
 * policy.
 *
 * The policy is LRU: the item that was used least recently goes first.  Kept items (a lasting
 * pin) go behind all others, in the same order.
 *
 * Each operation takes O(log n); the victim is there at once.
 *
 * Pure: no clock, no I/O, no allocation.  An item lies inside the owner's node; the owner
 * provides the array of slots. */
#ifndef POLICY_PLACEMENT_H
#define POLICY_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

struct placement_item {
    uint64_t used_at; /* a counter of the owner's: larger is later */
    uint32_t slot;    /* 1 + its position; 0: it may not be evicted */
    bool is_kept;
};

struct placement {
    struct placement_item **slot; /* [max], the owner's: a heap, the victim on top */
    uint32_t n, max;
};

/* Provides an array with the n items that there are; the owner frees the former one. */
void placement_set_slots(struct placement *p, struct placement_item **slot, uint32_t max);

/* The item may be evicted from now on. It is not there yet, and there is a free slot. */
void placement_insert(struct placement *p, struct placement_item *item);
/* It may not be evicted any more, or has been. */
void placement_remove(struct placement *p, struct placement_item *item);
/* Set when the item was used, and whether it is kept. An item that is in no placement is marked only, and
 * p may be NULL then. */
void placement_touch(struct placement *p, struct placement_item *item, uint64_t used_at);
void placement_keep(struct placement *p, struct placement_item *item, bool is_kept);

/* The item that goes next; NULL where none may be evicted. */
struct placement_item *placement_victim(const struct placement *p);
/* Whether x goes before y: among the victims of several tiers' parts. */
bool placement_goes_before(const struct placement_item *x, const struct placement_item *y);

/* Whether the item stands where it says, in the right order. Takes O(1), for audits. */
bool placement_audit(const struct placement *p, const struct placement_item *item);

#endif
