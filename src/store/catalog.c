/* catalog.c - see catalog.h.
 *
 * Invariants: 1. n->mask is the union of the masks of n's LIVE extents, and n_live, n_pending count
 * them.  2. n_children counts the nodes whose parent is n.  3. n is in the heap exactly when it may
 * be evicted.  4. A node that nothing needs does not exist. */
#include "store/catalog.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/mem.h"

void catalog_init(struct catalog *c)
{
    *c = (struct catalog){.n_buckets = 1024, .tick = 1};
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
            free(n);
        }
    }
    free(c->buckets);
    free(c->heap);
    free(c->fingerprints);
    *c = (struct catalog){0};
}

/* --- the heap: the smallest tick on top ------------------------------------------------------- */

static void heap_put(struct catalog *c, uint32_t at, struct chunk_node *n)
{
    c->heap[at] = n;
    n->heap_at = at + 1;
}

static void heap_up(struct catalog *c, uint32_t at)
{
    struct chunk_node *n = c->heap[at];
    while (at > 0 && c->heap[(at - 1) / 2]->tick > n->tick) {
        heap_put(c, at, c->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    heap_put(c, at, n);
}

static void heap_down(struct catalog *c, uint32_t at)
{
    struct chunk_node *n = c->heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= c->n_heap)
            break;
        if (child + 1 < c->n_heap && c->heap[child + 1]->tick < c->heap[child]->tick)
            child++;
        if (c->heap[child]->tick >= n->tick)
            break;
        heap_put(c, at, c->heap[child]);
        at = child;
    }
    heap_put(c, at, n);
}

static void heap_add(struct catalog *c, struct chunk_node *n)
{
    if (c->n_heap == c->max_heap) {
        c->max_heap = c->max_heap == 0 ? 64 : 2 * c->max_heap;
        c->heap = xrealloc(c->heap, c->max_heap * sizeof c->heap[0]);
    }
    c->heap[c->n_heap] = n;
    heap_up(c, c->n_heap++);
}

static void heap_remove(struct catalog *c, struct chunk_node *n)
{
    uint32_t at = n->heap_at - 1;
    CHECK(at < c->n_heap && c->heap[at] == n);
    n->heap_at = 0;
    struct chunk_node *last = c->heap[--c->n_heap];
    if (last == n)
        return;
    heap_put(c, at, last);
    heap_up(c, at);
    heap_down(c, last->heap_at - 1);
}

/* --- nodes ------------------------------------------------------------------------------------ */

static struct chunk_node **bucket_of(const struct catalog *c, const struct sha256 *key)
{
    return &c->buckets[get_u64(key->b) & (c->n_buckets - 1)]; /* keys are uniform already */
}

static void buckets_grow(struct catalog *c)
{
    struct catalog old = *c;
    c->n_buckets *= 2;
    c->buckets = xcalloc(c->n_buckets, sizeof c->buckets[0]);
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

struct chunk_node *catalog_find(const struct catalog *c, const struct sha256 *key)
{
    struct chunk_node *n = *bucket_of(c, key);
    while (n != NULL && memcmp(n->key.b, key->b, sizeof key->b) != 0)
        n = n->next;
    return n;
}

static struct chunk_node *node_new(struct catalog *c, const struct sha256 *key)
{
    if (c->n_nodes == c->n_buckets)
        buckets_grow(c);
    struct chunk_node *n = xcalloc(1, sizeof *n);
    n->key = *key;
    struct chunk_node **b = bucket_of(c, key);
    n->next = *b;
    *b = n;
    c->n_nodes++;
    return n;
}

static bool evictable(const struct chunk_node *n)
{
    return n->n_live > 0 && n->n_pending == 0 && n->n_children == 0 && n->n_pins == 0 &&
           !n->has_writer;
}

static void node_free(struct catalog *c, struct chunk_node *n)
{
    CHECK(n->heap_at == 0);
    struct chunk_node **p = bucket_of(c, &n->key);
    while (*p != n)
        p = &(*p)->next;
    *p = n->next;
    c->n_nodes--;
    free(n);
}

void catalog_settle(struct catalog *c, struct chunk_node *n)
{
    while (n != NULL) {
        if (evictable(n) && n->heap_at == 0)
            heap_add(c, n);
        else if (!evictable(n) && n->heap_at != 0)
            heap_remove(c, n);
        if (n->extents != NULL || n->n_children > 0 || n->n_pins > 0 || n->has_writer)
            return;
        struct chunk_node *parent = n->parent;
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
    c->fingerprints = xrealloc(c->fingerprints,
                               (c->n_fingerprints + 1) * sizeof c->fingerprints[0]);
    c->fingerprints[c->n_fingerprints] = (struct catalog_fingerprint){.value = *value};
    *idx = (uint16_t)c->n_fingerprints++;
    return 0;
}

int catalog_add(struct catalog *c, const struct sha256 *key, const struct sha256 *parent,
                const struct sha256 *fingerprint, uint32_t chunk_idx,
                struct chunk_node **out)
{
    uint16_t fingerprint_idx;
    int rc = fingerprint_find(c, fingerprint, &fingerprint_idx);
    if (rc != 0)
        return rc;
    struct chunk_node *n = catalog_find(c, key);
    if (n == NULL)
        n = node_new(c, key);
    if (n->parent == NULL) {
        struct chunk_node *p = catalog_find(c, parent);
        if (p == NULL)
            p = node_new(c, parent);
        p->n_children++;
        n->parent = p;
        catalog_settle(c, p);
    }
    if (n->extents == NULL) { /* was only a name: what it is comes from its first extent */
        n->chunk_idx = chunk_idx;
        n->fingerprint_idx = fingerprint_idx;
    }
    *out = n;
    return 0;
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
        c->fingerprints[n->fingerprint_idx].n_nodes++;
    }
}

static void node_loses(struct catalog *c, struct chunk_node *n)
{
    CHECK(n->n_live > 0);
    c->n_live--;
    if (--n->n_live == 0) {
        c->n_chunks--;
        c->fingerprints[n->fingerprint_idx].n_nodes--;
    }
}

void catalog_attach(struct catalog *c, struct chunk_node *n, struct extent *x,
                    const struct store_mask *mask)
{
    CHECK(x->state == EXTENT_LIVE || x->state == EXTENT_PENDING);
    x->node = n;
    x->next = n->extents;
    n->extents = x;
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

/* --- use -------------------------------------------------------------------------------------- */

void catalog_used_at(struct catalog *c, struct chunk_node *n, uint64_t tick,
                     uint32_t wall_s)
{
    if (tick <= n->tick)
        return;
    n->tick = tick;
    n->used_wall_s = wall_s;
    if (n->heap_at != 0)
        heap_down(c, n->heap_at - 1);
    if (tick > c->tick)
        c->tick = tick;
}

void catalog_touch(struct catalog *c, struct chunk_node *n, uint32_t wall_s)
{
    catalog_used_at(c, n, c->tick + 1, wall_s);
}

struct chunk_node *catalog_victim(const struct catalog *c)
{
    return c->n_heap > 0 ? c->heap[0] : NULL;
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
            for (const struct extent *x = n->extents; x != NULL; x = x->next)
                n_bytes += extent_bytes(x);
    return n_bytes;
}

static bool node_audit(const struct catalog *c, const struct chunk_node *n)
{
    uint32_t n_live = 0, n_pending = 0, n_all = 0;
    for (const struct extent *x = n->extents; x != NULL; x = x->next, n_all++) {
        n_live += x->state == EXTENT_LIVE;
        n_pending += x->state == EXTENT_PENDING;
        if (x->node != n || x->state == EXTENT_FREEING)
            return false;
    }
    bool needed = n_all > 0 || n->n_children > 0 || n->n_pins > 0 || n->has_writer;
    bool in_heap = n->heap_at > 0 && n->heap_at <= c->n_heap &&
                   c->heap[n->heap_at - 1] == n;
    return n_live == n->n_live && n_pending == n->n_pending && needed &&
           in_heap == evictable(n) && (n->heap_at != 0) == in_heap;
}

bool catalog_audit(const struct catalog *c)
{
    uint64_t n_nodes = 0, n_chunks = 0, n_children = 0, n_with_parent = 0;
    for (uint64_t i = 0; i < c->n_buckets; i++) {
        for (const struct chunk_node *n = c->buckets[i]; n != NULL; n = n->next) {
            if (!node_audit(c, n))
                return false;
            n_nodes++;
            n_chunks += n->n_live > 0;
            n_children += n->n_children;
            n_with_parent += n->parent != NULL;
        }
    }
    for (uint32_t i = 1; i < c->n_heap; i++)
        if (c->heap[(i - 1) / 2]->tick > c->heap[i]->tick)
            return false;
    return n_nodes == c->n_nodes && n_chunks == c->n_chunks && n_children == n_with_parent;
}
