/* catalog.c - see catalog.h.
 *
 * Invariants:
 * 1. n->mask is the union of the masks of n's LIVE extents, and n_live, n_pending count them.
 * 2. n_children counts the nodes whose parent is n.
 * 3. n is in its owner's heap exactly when it may be evicted.
 * 4. A node without extents, children, pins or a writer does not exist.
 * 5. An owner's used_bytes sum the extents on its nodes; guaranteed_bytes sum those on its nodes
 *    with n_guarded > 0.
 * 6. n_guarded counts the guaranteed nodes among n and its descendants. */
#include "store/catalog.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"

/* Nodes are allocated in blocks. Allocating a million of them one by one took a third of the time
 * of opening a store. */
enum { BLOCK_NODES = 512 };

struct node_block {
    struct node_block *next;
    struct chunk_node node[BLOCK_NODES];
};

static struct chunk_node *node_take(struct catalog *c)
{
    if (c->free_nodes == NULL) {
        struct node_block *b = xmalloc(sizeof *b);
        b->next = c->blocks;
        c->blocks = b;
        for (int i = BLOCK_NODES; i-- > 0;) {
            b->node[i].next = c->free_nodes;
            c->free_nodes = &b->node[i];
        }
    }
    struct chunk_node *n = c->free_nodes;
    c->free_nodes = n->next;
    *n = (struct chunk_node){0};
    return n;
}

/* Most chunks in the window of waiting requests: 4 million tokens of prompts, 4 MiB. */
enum { WINDOW_WAITS = 1 << 16, WINDOW_PLACES = 2 * WINDOW_WAITS };

/* Makes the window. Without memory for it the policy does not look ahead; nothing else changes. */
static void window_make(struct catalog *c)
{
    struct placement_upcoming *place = mem_try_calloc(WINDOW_PLACES, sizeof place[0]);
    struct placement_wait *wait = mem_try_calloc(WINDOW_WAITS, sizeof wait[0]);
    if (place == NULL || wait == NULL) {
        free(place);
        free(wait);
        return;
    }
    c->window = xmalloc(sizeof *c->window);
    placement_window_init(c->window, place, WINDOW_PLACES, wait, WINDOW_WAITS);
}

void catalog_init(struct catalog *c, enum placement_kind policy, bool has_window)
{
    *c = (struct catalog){.n_buckets = 1024, .tick = 1};
    if (policy == PLACEMENT_OURS) {
        c->learn = xmalloc(sizeof *c->learn);
        placement_learn_init(c->learn);
    }
    if (has_window || placement_looks_ahead(policy))
        window_make(c);
    placement_init(&c->policy, policy, c->window, c->learn);
    c->buckets = xcalloc(c->n_buckets, sizeof c->buckets[0]);
}

void catalog_deinit(struct catalog *c)
{
    for (uint64_t i = 0; i < c->n_buckets; i++) {
        for (struct chunk_node *n = c->buckets[i], *next; n != NULL; n = next) {
            next = n->next;
            for (struct extent *x = n->extents, *after; x != NULL; x = after) {
                after = x->next;
                free(x->records);
                free(x);
            }
        }
    }
    for (struct node_block *b = c->blocks, *next; b != NULL; b = next) {
        next = b->next;
        free(b);
    }
    for (uint32_t i = 0; i < c->n_owners; i++)
        free(c->owners[i].place.slot);
    if (c->window != NULL) {
        free(c->window->place);
        free(c->window->wait);
        free(c->window);
    }
    expiry_deinit(&c->expiry);
    free(c->learn);
    free(c->owners);
    free(c->owner_slots);
    free(c->pins);
    free(c->buckets);
    free(c->fingerprints);
    *c = (struct catalog){0};
}

/* --- evictable nodes -------------------------------------------------------------------------- */

static struct chunk_node *node_of(struct placement_item *item)
{
    return (struct chunk_node *)((char *)item - offsetof(struct chunk_node, place));
}

static void place_add(struct catalog *c, struct chunk_node *n)
{
    struct catalog_owner *o = &c->owners[n->owner_idx];
    struct placement_part *h = &o->place;
    if (h->n == h->max) {
        uint32_t max = h->max == 0 ? 64 : 2 * h->max;
        placement_set_slots(h, xrealloc(h->slot, max * sizeof h->slot[0]), max);
    }
    placement_insert(&c->policy, h, &n->place);
}

/* Returns the policy's part with the leaves of n's owner; NULL if the store has no owner yet. A
 * node that never had an extent, because its chunk was pinned before it was stored, is in no
 * part. */
static struct placement_part *place_of(struct catalog *c, const struct chunk_node *n)
{
    return c->owners != NULL ? &c->owners[n->owner_idx].place : NULL;
}

/* --- nodes ------------------------------------------------------------------------------------ */

static struct chunk_node **bucket_of(const struct catalog *c, const struct sha256 *key)
{
    /* keys are hashes, so their bits are uniform already */
    return &c->buckets[get_u64(key->b) & (c->n_buckets - 1)];
}

/* Grows the hash table. Without memory for it the chains get longer; nothing else changes. */
static void buckets_grow(struct catalog *c, uint64_t n_buckets)
{
    struct catalog old = *c;
    struct chunk_node **grown = mem_try_calloc(n_buckets, sizeof grown[0]);
    if (grown == NULL)
        return;
    c->n_buckets = n_buckets;
    c->buckets = grown;
    for (uint64_t i = 0; i < old.n_buckets; i++) {
        for (struct chunk_node *n = old.buckets[i], *next; n != NULL; n = next) {
            next = n->next;
            struct chunk_node **b = bucket_of(c, &n->key);
            n->next = *b;
            *b = n;
        }
    }
    free(old.buckets);
}

void catalog_reserve(struct catalog *c, uint64_t n_nodes)
{
    uint64_t n_buckets = c->n_buckets;
    while (n_buckets < n_nodes)
        n_buckets *= 2;
    if (n_buckets > c->n_buckets)
        buckets_grow(c, n_buckets);
}

void catalog_prefetch_chain(const struct catalog *c, const struct sha256 *key)
{
    __builtin_prefetch(bucket_of(c, key), 1);
}

void catalog_prefetch_node(const struct catalog *c, const struct sha256 *key)
{
    const struct chunk_node *n = *bucket_of(c, key);
    if (n != NULL)
        __builtin_prefetch(n);
}

struct chunk_node *catalog_find(const struct catalog *c, const struct sha256 *key)
{
    struct chunk_node *n = *bucket_of(c, key);
    while (n != NULL && memcmp(n->key.b, key->b, sizeof key->b) != 0)
        n = n->next;
    return n;
}

/* store_chunk_name sets the lowest bit of a key's first bytes, so keys of two buckets can have this
 * id. */
struct chunk_node *catalog_named(const struct catalog *c, uint64_t id)
{
    for (uint64_t bit = 0; bit < 2; bit++) {
        struct chunk_node *n = c->buckets[(id ^ bit) & (c->n_buckets - 1)];
        while (n != NULL && n->place.id != id)
            n = n->next;
        if (n != NULL)
            return n;
    }
    return NULL;
}

static struct chunk_node *node_new(struct catalog *c, const struct sha256 *key)
{
    if (c->n_nodes == c->n_buckets)
        buckets_grow(c, 2 * c->n_buckets);
    struct chunk_node *n = node_take(c);
    n->key = *key;
    n->place.id = store_chunk_name(key);
    struct chunk_node **b = bucket_of(c, key);
    n->next = *b;
    *b = n;
    c->n_nodes++;
    return n;
}

/* Returns whether a node has a place in the tree of parents. A node that has only a lasting pin has
 * none: with a place, a pinned chunk that is gone would keep its parents from being evicted. */
static bool is_in_tree(const struct chunk_node *n)
{
    return n->extents != NULL || n->n_children > 0 || n->n_pins > 0 || n->has_writer;
}

static bool evictable(const struct chunk_node *n)
{
    return n->n_live > 0 && n->n_pending == 0 && n->n_children == 0 && n->n_pins == 0 &&
           !n->has_writer && !n->is_guaranteed;
}

static void node_free(struct catalog *c, struct chunk_node *n)
{
    CHECK(n->place.slot == 0);
    expiry_clear(&c->expiry, n);
    struct chunk_node **p = bucket_of(c, &n->key);
    while (*p != n)
        p = &(*p)->next;
    *p = n->next;
    c->n_nodes--;
    n->next = c->free_nodes;
    c->free_nodes = n;
}

/* --- guarantees ------------------------------------------------------------------------------- */

static uint64_t node_bytes(const struct chunk_node *n)
{
    uint64_t n_bytes = 0;
    for (const struct extent *x = n->extents; x != NULL; x = x->next)
        n_bytes += extent_bytes(x);
    return n_bytes;
}

static void guaranteed_change(struct catalog *c, const struct chunk_node *n,
                              uint64_t n_bytes, bool is_more)
{
    if (n_bytes == 0)
        return; /* a node that never had an extent has no owner yet */
    uint64_t *of_owner = &c->owners[n->owner_idx].guaranteed_bytes;
    *of_owner = is_more ? *of_owner + n_bytes : *of_owner - n_bytes;
    c->guaranteed_bytes = is_more ? c->guaranteed_bytes + n_bytes
                                  : c->guaranteed_bytes - n_bytes;
}

/* Adds n_ends to n_guarded of n and of all nodes before n, or subtracts it if is_more is false.
 * n_ends counts guaranteed chunks that are n or continue n. */
static void guards_change(struct catalog *c, struct chunk_node *n, uint32_t n_ends,
                          bool is_more)
{
    for (; n != NULL && n_ends > 0; n = n->parent) {
        uint32_t before = n->n_guarded;
        CHECK(is_more || before >= n_ends);
        n->n_guarded = is_more ? before + n_ends : before - n_ends;
        if ((before == 0) != (n->n_guarded == 0))
            guaranteed_change(c, n, node_bytes(n), is_more);
    }
}

/* --- the tree --------------------------------------------------------------------------------- */

static void child_add(struct catalog *c, struct chunk_node *parent, struct chunk_node *n)
{
    guards_change(c, parent, n->n_guarded, true);
    n->parent = parent;
    n->older = parent->child;
    n->newer = NULL;
    if (n->older != NULL)
        n->older->newer = n;
    parent->child = n;
}

static void child_remove(struct catalog *c, struct chunk_node *n)
{
    guards_change(c, n->parent, n->n_guarded, false);
    if (n->newer != NULL)
        n->newer->older = n->older;
    else
        n->parent->child = n->older;
    if (n->older != NULL)
        n->older->newer = n->newer;
    n->parent = n->older = n->newer = NULL;
}

void catalog_settle(struct catalog *c, struct chunk_node *n)
{
    while (n != NULL) {
        if (evictable(n) && n->place.slot == 0)
            place_add(c, n);
        else if (!evictable(n) && n->place.slot != 0)
            placement_remove(place_of(c, n), &n->place);
        if (is_in_tree(n))
            return;
        /* n leaves the tree. Its parent may now be a leaf, or without use itself. */
        struct chunk_node *parent = n->parent;
        if (parent != NULL)
            child_remove(c, n);
        if (n->pin_at == 0)
            node_free(c, n);
        n = parent;
        if (n != NULL) {
            CHECK(n->n_children > 0);
            n->n_children--;
        }
    }
}

static int fingerprint_find(struct catalog *c, const struct sha256 *value, uint16_t *idx)
{
    for (uint32_t i = c->n_fingerprints; i-- > 0;) {
        if (memcmp(c->fingerprints[i].value.b, value->b, sizeof value->b) == 0) {
            *idx = (uint16_t)i;
            return 0;
        }
    }
    if (c->n_fingerprints == UINT16_MAX)
        return ERR_LIMIT;
    c->fingerprints = xgrow(c->fingerprints, c->n_fingerprints, sizeof c->fingerprints[0]);
    c->fingerprints[c->n_fingerprints] = (struct catalog_fingerprint){.value = *value};
    *idx = (uint16_t)c->n_fingerprints++;
    return 0;
}

/* --- owners ----------------------------------------------------------------------------------- */

static uint32_t *owner_slot(struct catalog *c, uint64_t tag)
{
    uint64_t at = (tag * 0x9e3779b97f4a7c15u) >> 32;
    for (;; at++) {
        uint32_t *slot = &c->owner_slots[at & (c->n_owner_slots - 1)];
        if (*slot == 0 || c->owners[*slot - 1].tag == tag)
            return slot;
    }
}

static void owner_slots_grow(struct catalog *c)
{
    free(c->owner_slots);
    c->n_owner_slots = c->n_owner_slots == 0 ? 64 : 2 * c->n_owner_slots;
    c->owner_slots = xcalloc(c->n_owner_slots, sizeof c->owner_slots[0]);
    for (uint32_t i = 0; i < c->n_owners; i++)
        *owner_slot(c, c->owners[i].tag) = i + 1;
}

int catalog_owner(struct catalog *c, uint64_t tag, uint16_t *idx)
{
    if (2 * c->n_owners >= c->n_owner_slots)
        owner_slots_grow(c);
    uint32_t *slot = owner_slot(c, tag);
    if (*slot == 0) {
        if (c->n_owners == UINT16_MAX)
            return ERR_LIMIT;
        c->owners = xgrow(c->owners, c->n_owners, sizeof c->owners[0]);
        c->owners[c->n_owners] = (struct catalog_owner){.tag = tag};
        *slot = ++c->n_owners;
    }
    *idx = (uint16_t)(*slot - 1);
    return 0;
}

int catalog_add(struct catalog *c, const struct chunk_id *id, struct chunk_node **out)
{
    uint16_t fingerprint_idx, owner_idx;
    int rc = fingerprint_find(c, id->fingerprint, &fingerprint_idx);
    if (rc == 0)
        rc = catalog_owner(c, id->owner, &owner_idx);
    if (rc != 0)
        return rc;
    struct chunk_node *n = catalog_find(c, id->key);
    if (n == NULL)
        n = node_new(c, id->key);
    if (n->parent == NULL) {
        struct chunk_node *p = catalog_find(c, id->parent);
        if (p == NULL)
            p = node_new(c, id->parent);
        p->n_children++;
        child_add(c, p, n);
        catalog_settle(c, p);
    }
    /* A node that was only a name takes its identity from its first extent. */
    if (n->extents == NULL) {
        n->chunk_idx = id->chunk_idx;
        n->n_tokens = (uint8_t)id->n_tokens;
        n->yields = id->yields;
        n->fingerprint_idx = fingerprint_idx;
        n->owner_idx = owner_idx;
    }
    /* one append without the flag is enough to keep the chunk */
    n->yields = n->yields && id->yields;
    *out = n;
    return 0;
}

/* --- lasting pins ----------------------------------------------------------------------------- */

void catalog_pin(struct catalog *c, const struct sha256 *key, int64_t until_wall_s)
{
    struct chunk_node *n = catalog_find(c, key);
    if (n == NULL)
        n = node_new(c, key);
    if (n->pin_at == 0) {
        c->pins = xgrow(c->pins, c->n_pins, sizeof c->pins[0]);
        c->pins[c->n_pins].node = n;
        n->pin_at = ++c->n_pins;
    }
    c->pins[n->pin_at - 1].until_wall_s = until_wall_s;
    placement_keep(&c->policy, place_of(c, n), &n->place, true);
}

void catalog_guarantee(struct catalog *c, struct chunk_node *n, bool is_guaranteed)
{
    CHECK(n->pin_at != 0);
    if (n->is_guaranteed == is_guaranteed)
        return;
    n->is_guaranteed = is_guaranteed;
    guards_change(c, n, 1, is_guaranteed);
    c->n_guaranteed = is_guaranteed ? c->n_guaranteed + 1 : c->n_guaranteed - 1;
    catalog_settle(c, n);
}

void catalog_unpin(struct catalog *c, struct chunk_node *n)
{
    if (n->pin_at == 0)
        return;
    catalog_guarantee(c, n, false);
    struct catalog_pin *last = &c->pins[--c->n_pins];
    c->pins[n->pin_at - 1] = *last;
    last->node->pin_at = n->pin_at;
    n->pin_at = 0;
    placement_keep(&c->policy, place_of(c, n), &n->place, false);
    catalog_settle(c, n);
}

void catalog_drop(struct catalog *c, struct chunk_node *n)
{
    placement_drop(&c->policy, place_of(c, n), &n->place, true);
}

/* --- extents ---------------------------------------------------------------------------------- */

static void mask_union(struct store_mask *m, const struct store_mask *more)
{
    for (int k = 0; k < STORE_KINDS; k++)
        for (int w = 0; w < STORE_MAX_LAYERS / 64; w++)
            m->has[k][w] |= more->has[k][w];
}

static void node_gains(struct catalog *c, struct chunk_node *n,
                       const struct store_mask *mask)
{
    mask_union(&n->mask, mask);
    c->n_live++;
    if (n->n_live++ == 0) {
        c->n_chunks++;
        c->n_partial += n->n_tokens < STORE_CHUNK_TOKENS;
        c->fingerprints[n->fingerprint_idx].n_nodes++;
        c->owners[n->owner_idx].n_chunks++;
    }
}

static void node_loses(struct catalog *c, struct chunk_node *n)
{
    CHECK(n->n_live > 0);
    c->n_live--;
    if (--n->n_live == 0) {
        c->n_chunks--;
        c->n_partial -= n->n_tokens < STORE_CHUNK_TOKENS;
        c->fingerprints[n->fingerprint_idx].n_nodes--;
        c->owners[n->owner_idx].n_chunks--;
        catalog_set_ttl(c, n, 0);
    }
}

void catalog_attach(struct catalog *c, struct chunk_node *n, struct extent *x,
                    const struct store_mask *mask)
{
    CHECK(x->state == EXTENT_LIVE || x->state == EXTENT_PENDING);
    x->node = n;
    x->next = n->extents;
    n->extents = x;
    c->owners[n->owner_idx].used_bytes += extent_bytes(x);
    if (n->n_guarded > 0)
        guaranteed_change(c, n, extent_bytes(x), true);
    if (x->state == EXTENT_LIVE)
        node_gains(c, n, mask);
    else
        n->n_pending++;
    catalog_settle(c, n);
}

void catalog_publish(struct catalog *c, struct extent *x)
{
    struct chunk_node *n = x->node;
    CHECK(x->state == EXTENT_PENDING && x->records != NULL && n->n_pending > 0);
    struct store_mask mask = chunk_mask(x->records, x->n_records);
    x->state = EXTENT_LIVE;
    n->n_pending--;
    node_gains(c, n, &mask);
    catalog_settle(c, n);
}

void catalog_detach(struct catalog *c, struct extent *x)
{
    struct chunk_node *n = x->node;
    struct extent **p = &n->extents;
    while (*p != x)
        p = &(*p)->next;
    *p = x->next;
    c->owners[n->owner_idx].used_bytes -= extent_bytes(x);
    if (n->n_guarded > 0)
        guaranteed_change(c, n, extent_bytes(x), false);
    if (x->state == EXTENT_PENDING) {
        CHECK(n->n_pending > 0);
        n->n_pending--;
    } else if (x->state == EXTENT_LIVE) {
        node_loses(c, n);
        if (n->n_live == 0)
            memset(&n->mask, 0, sizeof n->mask);
    }
    x->node = NULL;
    x->next = NULL;
    x->state = EXTENT_FREEING;
    catalog_settle(c, n);
}

void catalog_retire(struct catalog *c, struct extent *x, bool is_last)
{
    CHECK(x->state == EXTENT_LIVE && x->node->n_live > 1);
    struct store_mask gone = {0};
    if (is_last)
        gone = chunk_mask(x->records, x->n_records);
    for (int k = 0; k < STORE_KINDS; k++)
        for (int w = 0; w < STORE_MAX_LAYERS / 64; w++)
            x->node->mask.has[k][w] &= ~gone.has[k][w];
    x->state = EXTENT_DEAD;
    node_loses(c, x->node);
}

void catalog_kill(struct catalog *c, struct chunk_node *n)
{
    for (struct extent *x = n->extents; x != NULL; x = x->next) {
        if (x->state == EXTENT_LIVE) {
            x->state = EXTENT_DEAD;
            node_loses(c, n);
        }
    }
    memset(&n->mask, 0, sizeof n->mask);
    catalog_settle(c, n);
}

/* --- uses of chunks --------------------------------------------------------------------------- */

void catalog_set_ttl(struct catalog *c, struct chunk_node *n, uint32_t ttl_s)
{
    n->ttl_s = ttl_s;
    if (ttl_s == 0)
        expiry_clear(&c->expiry, n);
    else if (n->expiry_at == 0) /* otherwise the node's present entry is early enough */
        expiry_set(&c->expiry, n, n->place.used_time + ttl_s);
}

static uint8_t class_of(const struct catalog *c, const struct chunk_node *n,
                        const struct store_use *use)
{
    bool is_partial = n->n_tokens < STORE_CHUNK_TOKENS;
    uint8_t class = placement_class(use->turn, use->may_call_tools, is_partial);
    return placement_class_owner(class,
                                 c->owners != NULL ? c->owners[n->owner_idx].tag : 0);
}

/* Returns the time saved by holding the node's chunk, per byte. */
static double value_of(const struct catalog *c, const struct chunk_node *n, double share)
{
    return placement_price_stored(&c->price, n->n_tokens, share, node_bytes(n));
}

static void used_at(struct catalog *c, struct chunk_node *n, uint64_t tick, uint32_t wall_s,
                    const struct store_use *use)
{
    struct placement_use u = {.at = tick,
                              .time = wall_s,
                              .class = class_of(c, n, use),
                              .lot = use->lot,
                              .reuse_in = use->reuse_in_s,
                              .value = value_of(c, n, use->share)};
    if (tick <= n->place.used_at)
        return;
    if (n->place.is_dropped)
        placement_drop(&c->policy, place_of(c, n), &n->place, false);
    placement_touch(&c->policy, place_of(c, n), &n->place, &u);
    c->tick = MAX(c->tick, tick);
}

void catalog_used_at(struct catalog *c, struct chunk_node *n, uint64_t tick,
                     uint32_t wall_s)
{
    used_at(c, n, tick, wall_s, &(struct store_use){0});
}

/* Returns the node's time to live after a use with the time ttl_s: the longer one; 0, which is no
 * end, is the longest. */
static uint32_t ttl_after(const struct chunk_node *n, uint32_t ttl_s)
{
    if (n->n_live == 0) /* n is a new chunk */
        return ttl_s;
    if (n->ttl_s == 0 || ttl_s == 0)
        return 0;
    return MAX(n->ttl_s, ttl_s);
}

void catalog_touch(struct catalog *c, struct chunk_node *n, uint32_t wall_s,
                   const struct store_use *use)
{
    used_at(c, n, c->tick + 1, wall_s, use != NULL ? use : &(struct store_use){0});
    if (use != NULL)
        catalog_set_ttl(c, n, ttl_after(n, use->ttl_s));
}

void catalog_evicted(struct catalog *c, const struct chunk_node *n)
{
    placement_evicted(&c->policy, &n->place, c->n_chunks);
}

/* --- waiting requests ------------------------------------------------------------------------- */

static void review(struct catalog *c, const struct sha256 *key)
{
    struct chunk_node *n = catalog_find(c, key);
    if (n != NULL)
        placement_review(&c->policy, place_of(c, n), &n->place);
}

bool catalog_expect(struct catalog *c, const struct sha256 *key, uint64_t turn)
{
    bool is_known = c->window != NULL &&
                    placement_window_add(c->window, store_chunk_name(key), turn);
    if (is_known)
        review(c, key);
    return is_known;
}

void catalog_expect_no_more(struct catalog *c, const struct sha256 *key, uint64_t turn)
{
    if (c->window != NULL &&
        placement_window_remove(c->window, store_chunk_name(key), turn))
        review(c, key);
}

struct chunk_node *catalog_victim_of(const struct catalog *c, uint16_t owner_idx)
{
    struct placement_item *item = placement_victim(&c->owners[owner_idx].place);
    return item != NULL ? node_of(item) : NULL;
}

struct chunk_node *catalog_victim(const struct catalog *c)
{
    struct chunk_node *victim = NULL;
    for (uint32_t i = 0; i < c->n_owners; i++) {
        struct chunk_node *n = catalog_victim_of(c, (uint16_t)i);
        if (n != NULL && (victim == NULL ||
                          placement_goes_before(&c->policy, &n->place, &victim->place)))
            victim = n;
    }
    return victim;
}

bool catalog_admits(const struct catalog *c, const struct chunk_node *victim,
                    const struct sha256 *newcomer)
{
    return newcomer == NULL || placement_admits(&c->policy, &victim->place,
                                                store_chunk_name(newcomer), UINT64_MAX);
}

int catalog_idle(const struct catalog *c, uint32_t before_wall_s, struct chunk_node **out,
                 int most)
{
    int n = 0;
    for (uint32_t i = 0; i < c->n_owners; i++) {
        const struct placement_part *leaves = &c->owners[i].place;
        for (uint32_t k = 0; k < leaves->n && n < most; k++) {
            struct placement_item *item = leaves->slot[k].item;
            if (item->used_time < before_wall_s && !item->is_kept)
                out[n++] = node_of(item);
        }
    }
    return n;
}

bool catalog_knows(const struct catalog *c, const struct sha256 *fingerprint)
{
    for (uint32_t i = 0; i < c->n_fingerprints; i++)
        if (c->fingerprints[i].n_nodes > 0 &&
            memcmp(c->fingerprints[i].value.b, fingerprint->b, sizeof fingerprint->b) == 0)
            return true;
    return false;
}

/* --- audit ------------------------------------------------------------------------------------ */

uint64_t catalog_bytes(const struct catalog *c)
{
    uint64_t n_bytes = 0;
    for (uint64_t i = 0; i < c->n_buckets; i++)
        for (const struct chunk_node *n = c->buckets[i]; n != NULL; n = n->next)
            n_bytes += node_bytes(n);
    return n_bytes;
}

static bool guards_audit(const struct chunk_node *n)
{
    uint64_t n_ends = n->is_guaranteed;
    for (const struct chunk_node *child = n->child; child != NULL; child = child->older)
        n_ends += child->n_guarded;
    return n->n_guarded == n_ends && (!n->is_guaranteed || n->pin_at != 0);
}

static bool node_audit(const struct catalog *c, const struct chunk_node *n)
{
    uint32_t n_live = 0, n_pending = 0;
    for (const struct extent *x = n->extents; x != NULL; x = x->next) {
        n_live += x->state == EXTENT_LIVE;
        n_pending += x->state == EXTENT_PENDING;
        if (x->node != n || x->state == EXTENT_FREEING)
            return false;
    }
    const struct placement_part *place = &c->owners[n->owner_idx].place;
    bool pin_good = n->pin_at == 0 ||
                    (n->pin_at <= c->n_pins && c->pins[n->pin_at - 1].node == n);
    bool needed = is_in_tree(n) || (n->pin_at != 0 && n->parent == NULL);
    return n_live == n->n_live && n_pending == n->n_pending && needed && pin_good &&
           (n->place.slot != 0) == evictable(n) && placement_audit(place, &n->place) &&
           n->place.is_kept == (n->pin_at != 0) && guards_audit(n) &&
           (n->ttl_s != 0) == (n->expiry_at != 0) &&
           (n->expiry_at == 0 ||
            (n->expiry_at <= c->expiry.n && c->expiry.entry[n->expiry_at - 1].node == n));
}

/* Recounts the owners' chunks and bytes, and guarantees. Returns false if a count is wrong. */
static bool owners_audit(const struct catalog *c)
{
    bool good = true;
    uint64_t guaranteed_bytes = 0;
    uint32_t n_guaranteed = 0;
    struct catalog_owner *sum = xcalloc(c->n_owners + 1, sizeof sum[0]);
    for (uint64_t i = 0; i < c->n_buckets; i++)
        for (const struct chunk_node *n = c->buckets[i]; n != NULL; n = n->next) {
            struct catalog_owner *o = &sum[n->owner_idx];
            o->used_bytes += node_bytes(n);
            o->guaranteed_bytes += n->n_guarded > 0 ? node_bytes(n) : 0;
            o->n_chunks += n->n_live > 0;
            n_guaranteed += n->is_guaranteed;
        }
    for (uint32_t i = 0; i < c->n_owners; i++) {
        const struct catalog_owner *o = &c->owners[i];
        good = good && sum[i].used_bytes == o->used_bytes &&
               sum[i].guaranteed_bytes == o->guaranteed_bytes &&
               sum[i].n_chunks == o->n_chunks;
        guaranteed_bytes += o->guaranteed_bytes;
    }
    free(sum);
    return good && n_guaranteed == c->n_guaranteed &&
           guaranteed_bytes == c->guaranteed_bytes;
}

bool catalog_audit(const struct catalog *c)
{
    uint64_t n_nodes = 0, n_chunks = 0, n_partial = 0, n_children = 0, n_with_parent = 0;
    uint32_t n_pins = 0;
    for (uint64_t i = 0; i < c->n_buckets; i++) {
        for (const struct chunk_node *n = c->buckets[i]; n != NULL; n = n->next) {
            if (!node_audit(c, n))
                return false;
            n_nodes++;
            n_chunks += n->n_live > 0;
            n_partial += n->n_live > 0 && n->n_tokens < STORE_CHUNK_TOKENS;
            n_children += n->n_children;
            if (n->parent != NULL &&
                (n->newer != NULL ? n->newer->older != n : n->parent->child != n))
                return false;
            n_with_parent += n->parent != NULL;
            n_pins += n->pin_at != 0;
        }
    }
    return n_nodes == c->n_nodes && n_chunks == c->n_chunks && n_partial == c->n_partial &&
           n_children == n_with_parent && n_pins == c->n_pins && owners_audit(c);
}
