/* gc.c - garbage collection: removes chunks that cannot be reached, wipes erased chunks and the
 * files' free space, cuts files behind their last used byte, and folds the index's log.
 *
 * After a collection no byte of an evicted or erased chunk is left in a file of the store. */
#include <errno.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/minmax.h"
#include "store/store_impl.h"

/* Compares two nodes for qsort. */
static int by_chunk_idx(const void *a, const void *b)
{
    const struct chunk_node *x = *(struct chunk_node *const *)a,
                            *y = *(struct chunk_node *const *)b;
    return x->chunk_idx < y->chunk_idx ? -1 : x->chunk_idx > y->chunk_idx;
}

/* [lock] Frees chunks that no lookup can reach, because a chunk before them is missing. */
static int orphans_free(struct store *s, struct err *err)
{
    struct catalog *c = &s->catalog;
    struct chunk_node **nodes = mem_try((c->n_chunks + 1) * sizeof nodes[0]);
    uint64_t n = 0;
    if (nodes == NULL)
        return err_set(err, -ENOMEM, "no memory to go through %llu chunks",
                       (unsigned long long)c->n_chunks);
    for (uint64_t i = 0; i < c->n_buckets; i++)
        for (struct chunk_node *node = c->buckets[i]; node != NULL; node = node->next) {
            node->reachable = false;
            if (node->n_live > 0)
                nodes[n++] = node;
        }
    qsort(nodes, n, sizeof nodes[0], by_chunk_idx); /* puts parents before their children */
    for (uint64_t i = 0; i < n; i++)
        nodes[i]->reachable = nodes[i]->chunk_idx == 0 ||
                              (nodes[i]->parent != NULL && nodes[i]->parent->reachable);
    for (uint64_t i = n; i-- > 0;) { /* goes from children to their parents */
        struct chunk_node *node = nodes[i];
        if (!node->reachable && node->n_pins == 0 && node->n_pending == 0 &&
            !node->has_writer && node->n_children == 0 && node->n_guarded == 0)
            store_evict_node(s, node, STORE_EVICT_ORPHAN);
    }
    free(nodes);
    return 0;
}

/* [lock] Cuts every segment behind its last used byte. */
static int segments_trim(struct store *s, struct err *err)
{
    struct media *m = s->media;
    int rc = 0;
    for (int d = 0; d < m->n_devices; d++)
        for (uint32_t i = 0; rc == 0 && i < m->ops->n_segments(m, d); i++)
            rc = m->ops->cut(m, d, i, alloc_end(&s->space.alloc[d], i), err);
    return rc;
}

void store_cut_files(struct store *s)
{
    (void)segments_trim(s, NULL); /* a file that cannot be cut keeps its size */
}

static uint64_t files_bytes(struct store *s)
{
    struct media *m = s->media;
    uint64_t n_bytes = 0;
    for (int d = 0; d < m->n_devices; d++)
        for (uint32_t i = 0; i < m->ops->n_segments(m, d); i++)
            n_bytes += m->ops->segment_size(m, d, i);
    return n_bytes;
}

void store_cut_to_cap(struct store *s)
{
    if (s->home.read_only || s->ledger.index == NULL || s->space.cap_bytes == 0)
        return;
    /* If the commit fails, the next opening tries again. */
    if (files_bytes(s) <= s->space.cap_bytes ||
        store_commit_run(s, STORE_COMMIT_FRESH, NULL) != 0)
        return;
    store_wipe_tails(s);
    pthread_mutex_lock(&s->lock);
    store_cut_files(s);
    pthread_mutex_unlock(&s->lock);
}

/* Cuts the files, once the index has dropped all freed extents. */
static int files_trim(struct store *s, struct err *err)
{
    pthread_mutex_lock(&s->commit_lock);
    pthread_mutex_lock(&s->lock);
    int rc = segments_trim(s, err);
    pthread_mutex_unlock(&s->lock);
    if (rc == 0)
        rc = store_sync_files(s, err);
    pthread_mutex_unlock(&s->commit_lock);
    return rc;
}

int store_fold_log(struct store *s, struct err *err)
{
    int rc = 0;
    if (s->ledger.index == NULL)
        return 0;
    pthread_mutex_lock(&s->ledger.index_lock);
    rc = index_compact(s->ledger.index, err);
    if (rc == -ENOSPC && home_release_reserve(s->home.io, s->home.dirs[0]))
        rc = index_compact(s->ledger.index, err);
    pthread_mutex_unlock(&s->ledger.index_lock);
    return rc;
}

int store_gc(struct store *s, uint64_t *freed_bytes, struct err *err)
{
    pthread_mutex_lock(&s->erasing.erase_lock);
    pthread_mutex_lock(&s->lock);
    uint64_t before = files_bytes(s);
    int rc = store_can_save(s, err);
    if (rc == 0)
        rc = orphans_free(s, err);
    pthread_mutex_unlock(&s->lock);
    if (rc == 0)
        /* Free space is wiped before the files are cut. So the cut, which holds the lock, finds
         * nothing to overwrite. */
        rc = store_commit_wiped(s, STORE_COMMIT_FRESH | STORE_COMMIT_RESERVE, err);
    if (rc == 0)
        rc = files_trim(s, err);
    if (rc == 0)
        rc = store_fold_log(s, err);
    if (rc == 0)
        home_fill_reserve(&s->home, s->space.cap_bytes);
    pthread_mutex_lock(&s->lock);
    tier_wait_zeroed(s->tier);
    uint64_t after = files_bytes(s);
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_unlock(&s->erasing.erase_lock);
    *freed_bytes = before - MIN(before, after);
    return rc;
}
