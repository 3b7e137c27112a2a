/* catalog.h - the chunks in memory: a hash table by key, the tree of parents, and who may be
 * evicted.  Pure: no files, no locks (the store's lock protects it).
 *
 * A *node* stands for a key.  It may have extents, or be only a name: the root of a context, or
 * a parent whose data is gone (a hole).  A node without extents, children, pins or a writer is
 * freed.  A *lasting pin* (store_pin_until) keeps a node, and puts it behind all that have none.
 * A *guarantee* (store_guarantee) is a lasting pin under which the chunk is never evicted.  All
 * chunks before it stay, too, since they are no leaves; their extents count as guaranteed.
 * Only leaves are evicted, so a stored chunk's parent is normally stored; where it is not, the
 * chunk is merely unreachable until the parent is stored again, since keys hash their whole
 * past.
 *
 * Use is ordered by `tick`, a counter.  policy/placement.h decides which of an owner's evictable
 * nodes goes first. About 340 bytes a chunk on one device. */
#ifndef STORE_CATALOG_H
#define STORE_CATALOG_H

#include "policy/placement.h"
#include "policy/placement_price.h"
#include "store/chunk.h"
#include "store/expiry.h"

enum extent_state {
    EXTENT_PENDING, /* written, not committed: invisible */
    EXTENT_LIVE,    /* named by the index */
    EXTENT_DEAD,    /* condemned; still there because a hit pins its chunk */
    EXTENT_FREEING, /* off its node; its space is free once the index has let go of it */
};

/* chunk_node.pin_at: 1 + a position; 0: none. */

struct extent {
    struct extent *next;          /* on the node, or in the list of those being freed */
    struct extent *pending_next;  /* in the list of those to be committed */
    struct chunk_node *node;      /* NULL once FREEING */
    struct chunk_record *records; /* n_records, or NULL where not loaded */
    struct tier_copy *copy;       /* in DRAM, tier.c's; NULL: none */
    uint64_t id;
    uint64_t offset;
    uint32_t segment;
    uint32_t n_blocks;
    uint16_t n_records;
    uint8_t device;
    uint8_t state : 7;
    uint8_t
        wipe : 1; /* FREEING: its bytes must be gone before its space is free (store_erase) */
};

/* Two bits for each token, of it and all before it (nearest.c). */
struct chunk_marks {
    uint64_t bits[2];
};

struct chunk_node {
    struct sha256 key;
    struct store_mask mask; /* the records of LIVE extents */
    struct chunk_node *parent;
    struct chunk_node *child;         /* its newest */
    struct chunk_node *older, *newer; /* other children of its parent */
    struct chunk_node *next;          /* in its hash bucket */
    struct extent *extents;
    struct chunk_marks marks;    /* where has_marks */
    struct placement_item place; /* among its owner's chunks that may be evicted */
    struct tier_chunk *copied;   /* in DRAM, tier.c's; NULL: no extent has a copy */
    uint32_t n_children, n_pins;
    uint32_t pin_at;    /* 0: no lasting pin */
    uint32_t ttl_s;     /* it expires so long after its last use; 0: it does not */
    uint32_t expiry_at; /* 1 + its place in catalog.expiry; 0: none */
    uint32_t n_guarded; /* guaranteed chunks: this one and those that continue it */
    uint32_t chunk_idx;
    uint32_t n_live, n_pending;
    uint32_t n_copied_children; /* tier.c's */
    uint16_t fingerprint_idx, owner_idx;
    uint8_t n_tokens;
    bool has_writer : 1; /* an append of this key is under way */
    bool has_marks : 1;
    bool reachable : 1; /* gc's mark */
    bool yields : 1;    /* a partial chunk that goes when its context goes on */
    bool doomed : 1;    /* erased while in use: missing, and wiped when it is free */
    bool
        has_header_noted : 1; /* its headers were read since open, or are to be (headers.c) */
    bool is_guaranteed : 1;   /* its lasting pin is a guarantee: it is never evicted */
};

struct catalog_fingerprint {
    struct sha256 value;
    uint64_t n_nodes; /* with live extents */
};

struct catalog_owner {
    uint64_t tag; /* store_owner */
    uint64_t used_bytes;
    uint64_t quota_bytes;      /* 0: the store's default */
    uint64_t guaranteed_bytes; /* of used_bytes: extents that are not evicted */
    uint64_t n_chunks;
    struct placement_part place; /* of its chunks */
};

struct catalog_pin {
    struct chunk_node *node;
    int64_t until_wall_s;
};

struct node_block;

struct catalog {
    struct node_block *blocks;     /* all memory of nodes */
    struct chunk_node *free_nodes; /* of it, linked by next */
    struct chunk_node **buckets;
    uint64_t n_buckets, n_nodes;
    uint64_t n_chunks;  /* nodes with live extents */
    uint64_t n_partial; /* of them, with fewer than STORE_CHUNK_TOKENS tokens */
    uint64_t n_live;    /* live extents */
    struct catalog_fingerprint *fingerprints;
    uint32_t n_fingerprints;
    struct catalog_owner *owners;
    uint32_t n_owners;
    uint32_t *owner_slots; /* open addressing: 1 + index by tag; a power of two of them */
    uint32_t n_owner_slots;
    struct catalog_pin *pins;
    uint32_t n_pins;
    uint32_t n_guaranteed;     /* of the pins */
    uint64_t guaranteed_bytes; /* of all owners */
    uint64_t tick;
    struct expiry expiry; /* of the nodes with a time to live */
    struct placement_price
        price; /* of chunks that are used; all 0: all are worth the same */
    struct placement policy;
    struct placement_learn *learn;   /* of the policy `ours`; else NULL */
    struct placement_window *window; /* NULL: nobody looks ahead */
};

/* What a node is called and stands for. */
struct chunk_id {
    const struct sha256 *key, *parent, *fingerprint;
    uint64_t owner;
    uint32_t chunk_idx;
    int n_tokens;
    bool yields;
};

/* has_window: waiting requests are known, also where the policy does not look at them. */
void catalog_init(struct catalog *c, enum placement_kind policy, bool has_window);
/* Makes room for this many nodes at once: growing step by step visits them all each time. */
void catalog_reserve(struct catalog *c, uint64_t n_nodes);
void catalog_deinit(
    struct catalog *c); /* frees all nodes and extents, whatever their state */

static inline uint64_t extent_bytes(const struct extent *x)
{
    return (uint64_t)x->n_blocks * STORE_ALIGN;
}

/* Two hints that a key will be looked for soon: first where its chain is, somewhat later, its
 * nodes. */
void catalog_prefetch_chain(const struct catalog *c, const struct sha256 *key);
void catalog_prefetch_node(const struct catalog *c, const struct sha256 *key);
struct chunk_node *catalog_find(const struct catalog *c, const struct sha256 *key);
/* The node whose place.id this is; NULL: there is none. */
struct chunk_node *catalog_named(const struct catalog *c, uint64_t id);
/* Finds or adds the node of a key, and links it to its parent's node, which is added too where it
 * is missing. ERR_LIMIT after 65,535 different fingerprints, or as many owners. */
int catalog_add(struct catalog *c, const struct chunk_id *id, struct chunk_node **out);
/* Finds or adds the place of an owner; ERR_LIMIT likewise. */
int catalog_owner(struct catalog *c, uint64_t tag, uint16_t *idx);

/* A lasting pin of a key, stored or not; a second one replaces the first. */
void catalog_pin(struct catalog *c, const struct sha256 *key, int64_t until_wall_s);
/* Makes the node's lasting pin a guarantee, or an ordinary pin again. Takes O(chunks before it). */
void catalog_guarantee(struct catalog *c, struct chunk_node *n, bool is_guaranteed);
/* Ends the node's lasting pin, if it has one; the node may be gone afterwards. */
void catalog_unpin(struct catalog *c, struct chunk_node *n);

/* Puts an extent (state PENDING or LIVE, records loaded or `mask` given) on its node. */
void catalog_attach(struct catalog *c, struct chunk_node *n, struct extent *x,
                    const struct store_mask *mask);
/* PENDING -> LIVE. */
void catalog_publish(struct catalog *c, struct extent *x);
/* Takes an extent off its node, which is then the caller's; the node may be gone afterwards.  LIVE
 * extents leave together, since the mask is their union. */
void catalog_detach(struct catalog *c, struct extent *x);
/* LIVE -> DEAD for all extents of the node. */
void catalog_kill(struct catalog *c, struct chunk_node *n);

/* Marks as most recently used.  A chunk that is new gets the time to live of its use; another keeps
 * the longest one of its uses, of which none is the longest. use NULL: a use that says nothing. */
void catalog_touch(struct catalog *c, struct chunk_node *n, uint32_t wall_s,
                   const struct store_use *use);
/* ttl_s 0: the chunk does not expire. */
void catalog_set_ttl(struct catalog *c, struct chunk_node *n, uint32_t ttl_s);
/* The node was the victim and goes: the policy learns. */
void catalog_evicted(struct catalog *c, const struct chunk_node *n);
/* A waiting request that needs the chunk of a key comes or goes; the key may be stored or not.
 * Returns false where the window has no room for it. */
bool catalog_expect(struct catalog *c, const struct sha256 *key, uint64_t turn);
void catalog_expect_no_more(struct catalog *c, const struct sha256 *key, uint64_t turn);
/* Was used then, as the index remembers; an older use changes nothing. */
void catalog_used_at(struct catalog *c, struct chunk_node *n, uint64_t tick,
                     uint32_t wall_s);
/* The node is the first to be evicted, until it is used again. */
void catalog_drop(struct catalog *c, struct chunk_node *n);
/* After n_pins or has_writer changed: updates whether n may be evicted, or frees it. */
void catalog_settle(struct catalog *c, struct chunk_node *n);
/* The leaf that the policy evicts next, of all or of one owner; NULL where nothing can be
 * evicted. */
struct chunk_node *catalog_victim(const struct catalog *c);
/* Whether a chunk may push the victim out.  newcomer: its key; NULL: it may in any case. */
bool catalog_admits(const struct catalog *c, const struct chunk_node *victim,
                    const struct sha256 *newcomer);
/* Finds up to `most` chunks that may be evicted, have no lasting pin, and were last used before a
 * time; returns how many. */
int catalog_idle(const struct catalog *c, uint32_t before_wall_s, struct chunk_node **out,
                 int most);
struct chunk_node *catalog_victim_of(const struct catalog *c, uint16_t owner_idx);

/* Whether any live chunk has this fingerprint. */
bool catalog_knows(const struct catalog *c, const struct sha256 *fingerprint);

/* The bytes of all extents on nodes, in whatever state. Slow, for audits. */
uint64_t catalog_bytes(const struct catalog *c);

/* Recounts everything; false where an invariant does not hold. Slow, for tests and verify. */
bool catalog_audit(const struct catalog *c);

#endif
