/* catalog.h - the chunks in memory: a hash table by key, the tree of parents, and the chunks
 * that may be evicted. Pure: no files, no locks (the store's lock protects it).
 *
 * A *node* stands for a key. It may have extents, or be only a name: the root of a context, or a
 * parent whose data is gone (a hole). A node without extents, children, pins or a writer is
 * freed.
 *
 * A *lasting pin* (store_pin_until) keeps a node, and its chunk is evicted after all chunks without
 * a lasting pin. A *guarantee* (store_guarantee) is a lasting pin under which the chunk is never
 * evicted. All chunks before it stay, too, since they are no leaves; their extents count as
 * guaranteed.
 *
 * Only leaves are evicted, so a stored chunk's parent is normally stored. If it is not, the
 * chunk cannot be reached until the parent is stored again, since keys hash their whole past.
 *
 * Uses are ordered by `tick`, a counter. store/placement.h decides which of an owner's
 * evictable nodes is evicted first. A chunk takes about 340 bytes on one device. */
#ifndef STORE_CATALOG_H
#define STORE_CATALOG_H

#include "store/placement.h"
#include "store/placement_price.h"
#include "store/chunk.h"
#include "store/expiry.h"

enum extent_state {
    EXTENT_PENDING, /* written and not committed: look-ups do not find it */
    EXTENT_LIVE,    /* committed: the index has its row */
    EXTENT_DEAD, /* condemned, replaced or dropped, and kept only because a hit pins its chunk */
    /* Taken off its node. Its space becomes free when the index no longer names it. */
    EXTENT_FREEING,
};

struct extent {
    struct extent *next; /* next on the node, or in the list of extents being freed */
    struct extent *pending_next;  /* next in the list of extents to be committed */
    struct chunk_node *node;      /* the node that has this extent; NULL in state FREEING */
    struct chunk_record *records; /* [n_records]; NULL: the table is not loaded */
    struct tier_copy *copy;       /* copy in DRAM (tier.c); NULL: none */
    uint64_t id;
    uint64_t offset;
    uint32_t segment;
    uint32_t n_blocks;
    uint16_t n_records;
    uint8_t device;
    uint8_t state : 7;
    /* In state FREEING: the extent's bytes must be wiped before its space is free (store_erase). */
    uint8_t wipe : 1;
};

/* Two bits for each token: a hash of this token and all tokens before it (nearest.c). */
struct chunk_marks {
    uint64_t bits[2];
};

struct chunk_node {
    struct sha256 key;
    struct store_mask mask; /* union of the records of its LIVE extents */
    struct chunk_node *parent;
    struct chunk_node *child;         /* newest of the nodes that continue this one */
    struct chunk_node *older, *newer; /* neighbours by age among its parent's children */
    struct chunk_node *next;          /* next in its hash bucket */
    struct extent *extents;
    struct chunk_marks marks; /* valid if has_marks */
    /* The node's entry among its owner's evictable chunks. */
    struct placement_item place;
    /* its chunk's copies in DRAM (tier.c); NULL: no extent has a copy */
    struct tier_chunk *copied;
    uint32_t n_children, n_pins;
    uint32_t pin_at;    /* 1 + its index in catalog.pins; 0: it has no lasting pin */
    uint32_t ttl_s;     /* time to live after its last use; 0: it does not expire */
    uint32_t expiry_at; /* 1 + its index in catalog.expiry; 0: it has no entry */
    /* Number of guaranteed chunks among this chunk and all that continue it. */
    uint32_t n_guarded;
    uint32_t chunk_idx;
    uint32_t n_live, n_pending;
    uint32_t n_copied_children; /* children with copies in DRAM; set by tier.c */
    uint16_t fingerprint_idx, owner_idx;
    uint8_t n_tokens;
    bool has_writer : 1; /* an append of this key is under way */
    bool has_marks : 1;
    bool reachable : 1; /* set by the garbage collection if a lookup can reach the node */
    bool yields : 1;    /* a partial chunk that is removed when its context goes on */
    /* Erased while in use: look-ups miss the chunk, and it is wiped when its last user has left. */
    bool doomed : 1;
    /* Its headers were read since open, or wait to be read (lookup.c). */
    bool has_header_noted : 1;
    bool replaces : 1; /* its PENDING extents replace the LIVE ones with the next commit */
    bool is_guaranteed : 1; /* its lasting pin is a guarantee: it is never evicted */
};

struct catalog_fingerprint {
    struct sha256 value;
    uint64_t n_nodes; /* number of nodes with this fingerprint and LIVE extents */
};

struct catalog_owner {
    uint64_t tag; /* the owner's tag, from store_owner */
    uint64_t used_bytes;
    uint64_t quota_bytes;      /* 0: the store's default quota holds */
    uint64_t guaranteed_bytes; /* part of used_bytes: extents that are not evicted */
    uint64_t n_chunks;
    struct placement_part place; /* the owner's evictable chunks */
};

struct catalog_pin {
    struct chunk_node *node;
    int64_t until_wall_s;
};

struct node_block;

struct catalog {
    struct node_block *blocks;     /* memory of all nodes */
    struct chunk_node *free_nodes; /* free nodes in `blocks`, linked by next */
    struct chunk_node **buckets;
    uint64_t n_buckets, n_nodes;
    uint64_t n_chunks;  /* number of nodes with LIVE extents */
    uint64_t n_partial; /* part of n_chunks: fewer than STORE_CHUNK_TOKENS tokens */
    uint64_t n_live;    /* number of LIVE extents */
    struct catalog_fingerprint *fingerprints;
    uint32_t n_fingerprints;
    struct catalog_owner *owners;
    uint32_t n_owners;
    /* Hash table with open addressing, by tag: [n_owner_slots] 1 + index of an owner; 0: a free
     * slot. */
    uint32_t *owner_slots;
    uint32_t n_owner_slots;
    struct catalog_pin *pins;
    uint32_t n_pins;
    uint32_t n_guaranteed;     /* part of n_pins: the guarantees */
    uint64_t guaranteed_bytes; /* sum over all owners */
    uint64_t tick;
    struct expiry expiry; /* nodes with a time to live */
    /* Costs from which each use computes the value of holding the chunk. All 0: all chunks have the
     * same value. */
    struct placement_price price;
    struct placement policy;
    /* state of the policy `ours`; NULL for other policies */
    struct placement_learn *learn;
    struct placement_window *window; /* NULL: waiting requests are not known */
};

/* Everything that identifies a chunk. */
struct chunk_id {
    const struct sha256 *key, *parent, *fingerprint;
    uint64_t owner;
    uint32_t chunk_idx;
    int n_tokens;
    bool yields;
};

/* Makes an empty catalog. With has_window it notes which chunks the waiting requests will use. A
 * policy that looks ahead always has this window. */
void catalog_init(struct catalog *c, enum placement_kind policy, bool has_window);
/* Makes room for this many nodes at once. Growing step by step would visit all nodes each time. */
void catalog_reserve(struct catalog *c, uint64_t n_nodes);
/* Frees all nodes and extents, whatever their state. */
void catalog_deinit(struct catalog *c);

static inline uint64_t extent_bytes(const struct extent *x)
{
    return (uint64_t)x->n_blocks * STORE_ALIGN;
}

/* Hints that a key will be looked up soon. Call catalog_prefetch_chain first, and somewhat later
 * catalog_prefetch_node. */
void catalog_prefetch_chain(const struct catalog *c, const struct sha256 *key);
void catalog_prefetch_node(const struct catalog *c, const struct sha256 *key);
struct chunk_node *catalog_find(const struct catalog *c, const struct sha256 *key);
/* Returns the node whose place.id is `id`, or NULL. */
struct chunk_node *catalog_named(const struct catalog *c, uint64_t id);
/* Finds or adds the node of a key, and links it to its parent's node, which is added too if
 * missing. Returns ERR_LIMIT after 65,535 different fingerprints, or 65,535 owners. */
int catalog_add(struct catalog *c, const struct chunk_id *id, struct chunk_node **out);
/* Finds or adds an owner. Returns ERR_LIMIT after 65,535 owners. */
int catalog_owner(struct catalog *c, uint64_t tag, uint16_t *idx);

/* Sets a lasting pin of a key, stored or not. A second pin replaces the first. */
void catalog_pin(struct catalog *c, const struct sha256 *key, int64_t until_wall_s);
/* Makes the node's lasting pin a guarantee, or an ordinary pin again. Takes time in proportion to
 * the chunks before the node. */
void catalog_guarantee(struct catalog *c, struct chunk_node *n, bool is_guaranteed);
/* Ends the node's lasting pin, if any. The node may be freed. */
void catalog_unpin(struct catalog *c, struct chunk_node *n);

/* Puts an extent on its node. Its state is LIVE, and `mask` names its records; or it is PENDING,
 * its records are loaded, and `mask` is not used. */
void catalog_attach(struct catalog *c, struct chunk_node *n, struct extent *x,
                    const struct store_mask *mask);
/* Changes an extent's state from PENDING to LIVE. */
void catalog_publish(struct catalog *c, struct extent *x);
/* Takes an extent off its node and gives it to the caller. The node may be freed. LIVE extents must
 * leave together, since the node's mask is the union of their records. */
void catalog_detach(struct catalog *c, struct extent *x);
/* Changes the state of one extent from LIVE to DEAD, while another stays LIVE. is_last: no other
 * extent has its records, which must be loaded; they leave the node's mask. Otherwise another one
 * has them too, and the mask stays. */
void catalog_retire(struct catalog *c, struct extent *x, bool is_last);
/* Changes the state of all the node's extents from LIVE to DEAD. */
void catalog_kill(struct catalog *c, struct chunk_node *n);

/* Marks a node as most recently used. A new chunk gets the time to live of this use. Any other
 * chunk keeps the longest time to live of its uses; a use without a time to live counts as the
 * longest. use NULL: no hints. */
void catalog_touch(struct catalog *c, struct chunk_node *n, uint32_t wall_s,
                   const struct store_use *use);
/* Sets a chunk's time to live. ttl_s 0: the chunk does not expire. */
void catalog_set_ttl(struct catalog *c, struct chunk_node *n, uint32_t ttl_s);
/* Tells the policy that the node, which it chose as its victim, is evicted. */
void catalog_evicted(struct catalog *c, const struct chunk_node *n);
/* Notes that a waiting request needs the chunk of a key, stored or not. Returns false if there is
 * no window, or if it has no room. catalog_expect_no_more withdraws the note. */
bool catalog_expect(struct catalog *c, const struct sha256 *key, uint64_t turn);
void catalog_expect_no_more(struct catalog *c, const struct sha256 *key, uint64_t turn);
/* Sets the node's last use to the one that the index has recorded. An older use changes nothing. */
void catalog_used_at(struct catalog *c, struct chunk_node *n, uint64_t tick,
                     uint32_t wall_s);
/* Makes the node the first to be evicted, until it is used again. */
void catalog_drop(struct catalog *c, struct chunk_node *n);
/* Enters n among the evictable nodes, removes it from them, or frees it, as n's state demands. Call
 * it after n_pins or has_writer has changed. */
void catalog_settle(struct catalog *c, struct chunk_node *n);
/* Returns the leaf of all owners that the policy evicts next; NULL if none may be evicted. */
struct chunk_node *catalog_victim(const struct catalog *c);
/* Returns whether a new chunk of key `newcomer` may push the victim out; true without newcomer. */
bool catalog_admits(const struct catalog *c, const struct chunk_node *victim,
                    const struct sha256 *newcomer);
/* Finds up to `most` chunks that may be evicted, have no lasting pin, and were last used before a
 * time. Returns their number. */
int catalog_idle(const struct catalog *c, uint32_t before_wall_s, struct chunk_node **out,
                 int most);
struct chunk_node *catalog_victim_of(const struct catalog *c, uint16_t owner_idx);

/* Returns whether any live chunk has this fingerprint. */
bool catalog_knows(const struct catalog *c, const struct sha256 *fingerprint);

/* Returns the bytes of all extents on nodes, in any state. Slow; for audits. */
uint64_t catalog_bytes(const struct catalog *c);

/* Recounts everything. Returns false if an invariant is broken. Slow; for tests and verify. */
bool catalog_audit(const struct catalog *c);

#endif
