/* evict.c - room under the cap: the least recently used leaf goes first.
 *
 * A leaf is a chunk that nothing stored continues; chunks that are pinned, being written, or not
 * yet committed are never evicted.  An evicted chunk is a miss at once; its space is free only when
 * the index has durably let go of it. */
#include <stdlib.h>

#include "base/check.h"
#include "store/store_impl.h"

void store_give_extent(struct store *s, struct extent *x)
{
    CHECK(x->node == NULL && s->used_bytes >= extent_bytes(x));
    if (x->n_blocks > 0)
        alloc_give(&s->alloc[x->device], x->segment, x->offset, extent_bytes(x));
    s->used_bytes -= extent_bytes(x);
    free(x->records);
    free(x);
}

void store_free_extent(struct store *s, struct extent *x)
{
    catalog_detach(&s->catalog, x);
    x->next = s->freeing;
    s->freeing = x;
    s->freeing_bytes += extent_bytes(x);
}

void store_evict_node(struct store *s, struct chunk_node *n)
{
    n->n_pins++; /* keeps the node while its extents go */
    while (n->extents != NULL)
        store_free_extent(s, n->extents);
    n->n_pins--;
    catalog_settle(&s->catalog, n);
    s->n_evicted++;
}

/* [lock] Evicts until `want_bytes` are on their way to be free, or nothing can be evicted. */
static void evict(struct store *s, uint64_t want_bytes)
{
    struct chunk_node *n;
    while (s->freeing_bytes < want_bytes && (n = catalog_victim(&s->catalog)) != NULL)
        store_evict_node(s, n);
}

/* [lock] What must not happen, for STORE_BUG_EARLY_REUSE: the index still names these bytes. */
static void reuse_early(struct store *s)
{
    for (struct extent *x = s->freeing; x != NULL; x = x->next) {
        if (x->n_blocks == 0)
            continue;
        alloc_give(&s->alloc[x->device], x->segment, x->offset, extent_bytes(x));
        s->used_bytes -= extent_bytes(x);
        s->freeing_bytes -= extent_bytes(x);
        x->n_blocks = 0;
    }
}

int store_make_room(struct store *s, uint64_t n_bytes, struct err *err)
{
    if (s->cap_bytes == 0)
        return 0;
    while (n_bytes > s->cap_bytes || s->used_bytes > s->cap_bytes - n_bytes) {
        uint64_t over = n_bytes > s->cap_bytes ? 0
                                               : s->used_bytes - (s->cap_bytes - n_bytes);
        /* Each round costs an fsync of the index, so a large store makes room for several. */
        uint64_t slack = s->cap_bytes / 64;
        if (over > 0)
            evict(s, over);
        if (over > 0 && n_bytes > 0 && slack >= 4 * n_bytes)
            evict(s, over + slack);
        if (s->freeing == NULL)
            return err_set(
                err, ERR_LIMIT,
                "%llu bytes do not fit under the store's cap of %llu: %llu are in use "
                "and nothing can be evicted",
                (unsigned long long)n_bytes, (unsigned long long)s->cap_bytes,
                (unsigned long long)s->used_bytes);
        if (store_has_bug(STORE_BUG_EARLY_REUSE) && s->freeing_bytes > 0) {
            reuse_early(s);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        int rc = store_commit_run(s, 0, err);
        pthread_mutex_lock(&s->lock);
        if (rc != 0)
            return rc;
    }
    return 0;
}
