/* placement.h - which item a full tier evicts: a chunk of a store, or a block of the KV pool.
 *
 * A *tier* has one `struct placement`: the chosen policy and all that it has learned. Its leaves
 * stand in one or more *parts* (`struct placement_part`), for example one for each owner of a
 * store. The victim of a tier is the first of its parts' victims (placement_goes_before).
 *
 * The owner inserts only leaves: items that no other item in the tier continues. So a chain
 * loses its tail before its head under every policy.
 *
 * Items are ordered by rank first, then by the order that the policy gives:
 *
 *     rank       items                                    order within the rank
 *     DROPPED    expired, superseded or dropped ones      the policy's
 *     ORDINARY   all others                               the policy's
 *     UPCOMING   waiting requests need them               the last request's first
 *     KEPT       a lasting pin                            the policy's
 *
 * Only attentionstore and ours look at the waiting requests (placement_window.h). attentionstore
 * counts the first request that needs an item. ours counts all of them: an item that twice as
 * many requests need counts as needed window.step turns earlier.
 *
 *     policy          order of ordinary items
 *     lru             last use
 *     fifo            first use
 *     lfu             number of uses + order of the last victim (dynamic aging)
 *     attentionstore  last use
 *     ours            last use + the time that an item of this class and value is worth keeping
 *                     (placement_learn.h), or a client's hint of the next use
 *     belady          next use, the latest first; for simulations that know the future
 *
 * `ours` departs from LRU's order only while two miniature caches show that this pays
 * (placement_trial.h). It never falls more than 1 point of hits behind LRU over any 10,000
 * requests, because placement_guard.h bounds how far it departs. While it may not depart, it
 * evicts the least recently used item. So a part keeps its items in both orders.
 *
 * Each operation takes O(log n); the victim is found in O(1).
 *
 * Pure: no clock, no I/O, no allocation. An item lies inside the owner's node; the owner
 * provides the array of slots and the memory of the window. Times are in any unit that the owner
 * counts in (seconds, or uses). */
#ifndef STORE_PLACEMENT_H
#define STORE_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "store/placement_learn.h"
#include "store/placement_window.h"

enum placement_kind {
    PLACEMENT_LRU,
    PLACEMENT_FIFO,
    PLACEMENT_LFU,
    PLACEMENT_ATTENTIONSTORE,
    PLACEMENT_OURS,
    PLACEMENT_BELADY, /* for simulations only */
};
#define PLACEMENT_KINDS 6
/* Policy of the store and the KV pool unless --policy names another. */
#define PLACEMENT_DEFAULT PLACEMENT_LRU

/* The words of --policy ("lru", ...), belady last, then NULL. */
extern const char *const placement_names[PLACEMENT_KINDS + 1];
/* Returns the policy of a name, or -1. */
int placement_kind_of(const char *name);

enum placement_rank {
    PLACEMENT_DROPPED,
    PLACEMENT_ORDINARY,
    PLACEMENT_UPCOMING,
    PLACEMENT_KEPT,
};

struct placement_item {
    uint64_t id;    /* id of the content, the same in every tier; 0: no window knows it */
    uint64_t order; /* set by the policy: within a rank the lowest order is evicted first */
    uint64_t used_at; /* the owner's counter of uses; 0: never used */
    uint32_t used_time;
    uint32_t due_time; /* time of the next use, by a client's hint; 0: no hint */
    uint32_t worth;    /* ours: time for which the item is held after its last use */
    /* 1 + its position in its part; 0: in no part, so it may not be evicted */
    uint32_t slot;
    uint32_t age_slot; /* ours: 1 + its position in the order of last use */
    uint16_t n_uses;
    uint8_t class; /* class of its last use: PLACEMENT_CLASSES (placement_learn.h) */
    uint8_t rank : 2;
    bool is_kept : 1, is_dropped : 1;
};

/* One use of an item. */
struct placement_use {
    /* The owner's counter of uses at this use. A larger number is a later use. It breaks ties, and
     * is the order of lru. */
    uint64_t at;
    uint32_t time;     /* the present time */
    uint8_t class;     /* placement_class() of the request */
    uint64_t lot;      /* a number that all items of one request share */
    uint32_t reuse_in; /* a client's hint: time until the next use; 0: no hint */
    /* ours: seconds saved for each byte (placement_price.h); 0: counts as 1. */
    double value;
    uint64_t next; /* belady only: time of the next use; UINT64_MAX: never */
};

/* Position i of each of the part's two heaps. The victim is on top of one of the heaps. */
struct placement_slot {
    struct placement_item *item;   /* heap in the policy's order */
    struct placement_item *oldest; /* ours: heap in the order of last use */
};

struct placement_part {
    struct placement_slot *slot; /* [max], the owner's */
    uint32_t n, max;
    const struct placement *policy; /* policy of the items; set by placement_insert */
};

struct placement {
    enum placement_kind kind;
    uint64_t age;                    /* lfu: order of the last victim */
    struct placement_window *window; /* NULL: no waiting request is known */
    struct placement_learn *learn; /* ours; NULL: items of all classes are worth the same */
};

/* Returns whether a policy looks at the waiting requests. */
bool placement_looks_ahead(enum placement_kind kind);

/* Initialises p. `window` and `learn` may be NULL; the caller keeps ownership of both. */
void placement_init(struct placement *p, enum placement_kind kind,
                    struct placement_window *window, struct placement_learn *learn);
/* Gives the part a larger array, to whose first n slots the owner has already copied the part's
 * items. The owner frees the former array. */
void placement_set_slots(struct placement_part *h, struct placement_slot *slot,
                         uint32_t max);

/* Adds an item, which is in no part yet: it may be evicted from now on. h has a free slot. */
void placement_insert(struct placement *p, struct placement_part *h,
                      struct placement_item *item);
/* Takes an item out: it may no longer be evicted. */
void placement_remove(struct placement_part *h, struct placement_item *item);
/* Notes a use of an item. h is its part; NULL, or another part, if the item is in none. */
void placement_touch(struct placement *p, struct placement_part *h,
                     struct placement_item *item, const struct placement_use *use);
/* Set whether an item has a lasting pin (keep), and whether it has become useless (drop). */
void placement_keep(struct placement *p, struct placement_part *h,
                    struct placement_item *item, bool is_kept);
void placement_drop(struct placement *p, struct placement_part *h,
                    struct placement_item *item, bool is_dropped);
/* Call when the window changed for the item: a waiting request that needs it came or went. */
void placement_review(struct placement *p, struct placement_part *h,
                      struct placement_item *item);
/* Tells the policy that the victim is evicted from a tier of n_items items. */
void placement_evicted(struct placement *p, const struct placement_item *item,
                       uint64_t n_items);

/* Returns the item to evict next; NULL if none may be evicted. */
struct placement_item *placement_victim(const struct placement_part *h);
/* Returns whether content that the tier does not have may push the victim out. ours: an item that a
 * waiting request needs stays if the newcomer is needed later, or by no known request. belady: the
 * item that is used sooner stays. `next` is the time of the newcomer's next use. */
bool placement_admits(const struct placement *p, const struct placement_item *victim,
                      uint64_t id, uint64_t next);
/* Returns whether x is evicted before y. Compares the victims of several parts. */
bool placement_goes_before(const struct placement *p, const struct placement_item *x,
                           const struct placement_item *y);

/* Returns whether the item is at its recorded position, in the right order. O(1); for audits. */
bool placement_audit(const struct placement_part *h, const struct placement_item *item);

#endif
