/* tier.h - copies of extents in DRAM, in front of the disk; private to src/store.
 *
 * The disk is the home of every chunk. A *copy* holds the records of one extent in an arena of
 * fixed size, byte for byte as they lie on the disk. No index names a copy, so dropping one
 * loses nothing. A chunk is *copied* while at least one of its extents has a copy.
 *
 *     tier_take --> filled by the caller --> tier_enter --> found by tier_read
 *         |                                      |               |  tier_release
 *         '-- tier_abandon       tier_forget <---'---------------'
 *                  |                  |  its last reader has left
 *                  v                  v
 *                   zeroed by the tier's thread --> free again
 *
 * Invariants:
 * 1. The caller of tier_take sets extent.copy; tier_forget clears it. tier_read does not find a
 *    forgotten copy. Its bytes are zeroed once its last reader, or the caller that fills it, has
 *    left.
 * 2. Free bytes of the arena are zero, except those of copies that wait to be zeroed.
 * 3. A copied chunk is in the heap of possible victims exactly when its copies have no reader
 *    and no copied chunk continues it. So a context loses its tail in DRAM before its head.
 * 4. No caller waits for room. The tier's thread drops the policy's next victim while less than
 *    1/16 of the arena is free, or no free range holds the largest copy so far. If there is
 *    still no room, a copy is not made, and n_full counts it.
 *
 * A copy is needless if the caller holds the chunk's state itself (tier_hold). It is dropped
 * before all others as soon as no copied chunk continues its chunk.
 *
 * The order of victims is attentionstore's (store/placement.h): chunks that a waiting request
 * needs are dropped last, otherwise chunks fetched for it could be dropped first. Under `ours`
 * it is that policy's order. The policy does not learn here: the store's own part learns from
 * the same uses.
 *
 * Functions marked [lock] are called with the store's lock held. Every function takes a NULL
 * tier, does nothing, and returns NULL or 0. */
#ifndef STORE_TIER_H
#define STORE_TIER_H

#include <pthread.h>

#include "store/read_ahead.h"
#include "store/catalog.h"

struct tier;
struct tier_copy;

struct tier_opts {
    uint64_t bytes;             /* size of the arena */
    struct store_memory memory; /* memory.get NULL: ordinary memory */
    uint64_t ahead_bytes;       /* as in arena_opts */
    enum placement_kind policy;
    struct placement_window *window; /* the catalog's window; may be NULL */
    /* the waiting requests' wants; told when a copy is dropped */
    struct read_ahead_queue *wants;
    pthread_mutex_t *lock; /* the store's lock */
};

/* Maps the arena and starts the tier's thread. Returns -ENOMEM if there is not enough memory. */
int tier_open(const struct tier_opts *o, struct tier **out, struct err *err);
/* Ends the thread and gives back the arena without zeroing it. Takes all copies off the catalog. */
void tier_close(struct tier *t, struct catalog *c);

/* [lock] Returns room for the copy of an extent, or NULL if there is none. The caller owns the
 * copy until tier_enter or tier_abandon. */
struct tier_copy *tier_take(struct tier *t, uint64_t extent_bytes);
/* [lock] Describes the arena's room for the copy of an extent to store/read_ahead.h. t is not
 * NULL. */
struct read_ahead_room tier_room(const struct tier *t, uint64_t extent_bytes);
/* [lock] Returns whether tier_take would find room now. If it would not, the tier's thread makes
 * some. */
bool tier_has_room(struct tier *t, uint64_t extent_bytes);
/* [lock] Gives up a copy from tier_take that was not entered. Another thread may have forgotten the
 * copy already. copy NULL does nothing. */
void tier_abandon(struct tier *t, struct extent *x, struct tier_copy *copy);
/* Returns the address, inside the copy, of the record at this offset of the extent. */
uint8_t *tier_at(const struct tier *t, const struct tier_copy *copy, uint64_t offset);

enum tier_how { TIER_WRITTEN, TIER_PROMOTED };
/* [lock] Enters x->copy, which is filled, for tier_read to find. x is on its node. */
void tier_enter(struct tier *t, struct extent *x, enum tier_how how);
/* [lock] Forgets the extent's copy. Call it before x leaves its node. */
void tier_forget(struct tier *t, struct extent *x);
/* [lock] Forgets the copies of all extents of a node. */
void tier_forget_node(struct tier *t, struct chunk_node *n);

/* [lock] Forgets a damaged copy, which the caller is reading. */
void tier_distrust(struct tier *t, struct tier_copy *copy);

/* [lock] Returns the extent's copy, with one more reader, who will read n_bytes. Returns NULL if
 * the extent has no filled copy. */
struct tier_copy *tier_read(struct tier *t, const struct extent *x, uint32_t n_bytes);
/* [lock] Call when a reader is done with the copy. */
void tier_release(struct tier *t, struct tier_copy *copy);

/* [lock] Returns whether every committed extent of the node has a filled copy. */
bool tier_has_all(const struct tier *t, const struct chunk_node *n);

/* [lock] Notes that the caller's own memory holds the state of chunks of this name
 * (placement_item.id) from now on, or no longer. n is the chunk's node, or NULL. */
void tier_hold(struct tier *t, uint64_t name, bool is_held, const struct chunk_node *n);
/* [lock] Returns whether the caller holds the state of the node's chunk. */
bool tier_is_held(const struct tier *t, const struct chunk_node *n);

/* [lock] Call when the node's chunk was used. n may be NULL. */
void tier_touch(struct tier *t, const struct chunk_node *n);
/* [lock] Call when something but a use has changed the node's place. n may be NULL. */
void tier_review(struct tier *t, const struct chunk_node *n);

/* [lock] Returns the processor time, in seconds, that the system would take to provide memory for
 * n_bytes of new copies. n_promised bytes of the memory provided so far belong to other
 * requests. */
double tier_price_s(const struct tier *t, uint64_t n_bytes, uint64_t n_promised);
/* Waits until the system has provided the memory asked for at the start. Returns false after
 * timeout_ns. *n_bytes is the memory provided so far. */
bool tier_await_memory(const struct tier *t, int64_t timeout_ns, uint64_t *n_bytes);

/* [lock, released meanwhile] Waits until every forgotten copy without readers is zeroed. */
void tier_wait_zeroed(struct tier *t);
/* [lock, released meanwhile] Waits until the tier's thread has nothing to do. For tests. */
void tier_settle(struct tier *t);

/* [lock] Fills in the tier's statistics. */
void tier_stats(const struct tier *t, struct store_dram *out);
/* [lock] Recounts everything. Returns false if an invariant is broken. Slow; for tests. */
bool tier_audit(const struct tier *t, const struct catalog *c);

#endif
