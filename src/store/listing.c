/* listing.c - lists chunks depth first, so that a chain stands together. The list is taken with the
 * lock held, and reported without it. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "store/store_impl.h"

/* A chunk that is listed, and its entry in the listing. */
struct leaf {
    struct chunk_node *node;
    struct store_entry entry;
};

static int by_parent(const void *a, const void *b)
{
    const struct leaf *x = a, *y = b;
    uintptr_t p = (uintptr_t)x->node->parent, q = (uintptr_t)y->node->parent;
    if (p != q)
        return p < q ? -1 : 1;
    return memcmp(x->node->key.b, y->node->key.b, sizeof x->node->key.b);
}

static struct store_entry entry_of(const struct store *s, const struct chunk_node *n)
{
    struct store_entry e = {
        .key = n->key,
        .fingerprint = s->catalog.fingerprints[n->fingerprint_idx].value,
        .owner = s->catalog.owners[n->owner_idx].tag,
        .chunk_idx = n->chunk_idx,
        .n_tokens = n->n_tokens,
        .mask = n->mask,
        .used_wall_s = n->place.used_time,
        .tick = n->place.used_at,
        .pinned_until_wall_s = n->pin_at != 0 ? s->catalog.pins[n->pin_at - 1].until_wall_s
                                              : 0,
        .expires_wall_s = n->ttl_s > 0 ? (int64_t)n->place.used_time + n->ttl_s : 0,
        .is_guaranteed = n->n_guarded > 0,
    };
    if (n->parent != NULL)
        e.parent = n->parent->key;
    for (const struct extent *x = n->extents; x != NULL; x = x->next)
        if (x->state == EXTENT_LIVE)
            e.bytes += extent_bytes(x);
    return e;
}

/* Returns whether a chunk is listed. with_pending true: a chunk whose extents are all uncommitted
 * is listed, too. */
static bool is_listed(const struct chunk_node *n, bool with_pending)
{
    return !n->doomed && (n->n_live > 0 || (with_pending && n->n_pending > 0));
}

/* [lock] Returns how many chunks are listed. */
static uint64_t count_listed(const struct catalog *c, bool with_pending)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < c->n_buckets; i++)
        for (const struct chunk_node *node = c->buckets[i]; node != NULL; node = node->next)
            n += is_listed(node, with_pending);
    return n;
}

/* [lock] Returns the listed chunks, sorted by the addresses of their parents; NULL if there is no
 * memory. */
static struct leaf *leaves_take(struct store *s, bool with_pending, uint64_t *n_out)
{
    const struct catalog *c = &s->catalog;
    struct leaf *leaves = mem_try((count_listed(c, with_pending) + 1) * sizeof leaves[0]);
    uint64_t n = 0;
    *n_out = 0;
    if (leaves == NULL)
        return NULL;
    for (uint64_t i = 0; i < c->n_buckets; i++)
        for (struct chunk_node *node = c->buckets[i]; node != NULL; node = node->next)
            if (is_listed(node, with_pending))
                leaves[n++] = (struct leaf){node, entry_of(s, node)};
    qsort(leaves, n, sizeof leaves[0], by_parent);
    *n_out = n;
    return leaves;
}

/* Returns the index of the first leaf whose parent has this or a higher address. */
static uint64_t children_begin(const struct leaf *leaves, uint64_t n,
                               const struct chunk_node *parent)
{
    uint64_t lo = 0, hi = n;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        if ((uintptr_t)leaves[mid].node->parent < (uintptr_t)parent)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Computes the order of listing: depth first, so that a chain stands together. `order` has room for
 * n numbers, and behind them for n more, which are used as a stack. Returns the number of listed
 * chunks. */
static uint64_t leaves_order(const struct leaf *leaves, uint64_t n, bool with_pending,
                             uint64_t *order)
{
    uint64_t *stack = order + n;
    uint64_t n_order = 0, n_stack = 0;
    for (uint64_t i = n; i-- > 0;)
        if (leaves[i].node->parent == NULL ||
            !is_listed(leaves[i].node->parent, with_pending))
            stack[n_stack++] = i;
    while (n_stack > 0) {
        uint64_t i = stack[--n_stack];
        order[n_order++] = i;
        const struct chunk_node *node = leaves[i].node;
        for (uint64_t j = children_begin(leaves, n, node);
             j < n && leaves[j].node->parent == node; j++)
            stack[n_stack++] = j;
    }
    return n_order;
}

/* Calls fn for every listed chunk. Returns 0, the first result of fn that is not 0, or -ENOMEM. */
static int each(struct store *s, bool with_pending,
                int (*fn)(void *arg, const struct store_entry *e), void *arg,
                struct err *err)
{
    uint64_t n, n_order = 0;
    pthread_mutex_lock(&s->lock);
    struct leaf *leaves = leaves_take(s, with_pending, &n);
    uint64_t *order = mem_try((2 * n + 1) * sizeof order[0]);
    int rc = 0;
    if (leaves == NULL || order == NULL)
        rc = err_set(err, -ENOMEM, "no memory to list %llu chunks",
                     (unsigned long long)s->catalog.n_chunks);
    else
        n_order = leaves_order(leaves, n, with_pending, order);
    pthread_mutex_unlock(&s->lock);
    for (uint64_t i = 0; i < n_order && rc == 0; i++)
        rc = fn(arg, &leaves[order[i]].entry);
    free(order);
    free(leaves);
    return rc;
}

int store_each(struct store *s, int (*fn)(void *arg, const struct store_entry *e),
               void *arg, struct err *err)
{
    return each(s, false, fn, arg, err);
}

int store_each_appended(struct store *s, int (*fn)(void *arg, const struct store_entry *e),
                        void *arg, struct err *err)
{
    return each(s, true, fn, arg, err);
}
