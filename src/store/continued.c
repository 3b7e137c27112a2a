/* continued.c - erases the chunks that continue an erased text and whose keys the caller does not
 * know.
 *
 * An interrupted answer (a killed process, a client that left) leaves committed chunks which
 * begin with the end of the turn before. No turn names them, and they keep the chunks that they
 * continue from being erased. When that turn is erased, the caller has its keys, among them the
 * keys of its unfinished end, the *partial* keys. A stored chunk whose first tokens hash to one
 * of these holds the whole erased text, so it is erased too, with all that continues it.
 *
 * Chunks that continue only a part of the text (a system prompt that many share) stay. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "store/store_impl.h"

struct keys {
    struct sha256 *at;
    size_t n, max;
};

static void keys_add(struct keys *k, const struct sha256 *key)
{
    GROW(k->at, k->n, k->max);
    k->at[k->n++] = *key;
}

static int by_bytes(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct sha256));
}

static bool keys_have(const struct keys *sorted, const struct sha256 *key)
{
    return bsearch(key, sorted->at, sorted->n, sizeof *key, by_bytes) != NULL;
}

static void add_unknown(const struct keys *set, const struct sha256 *key, struct keys *out)
{
    if (!keys_have(set, key))
        keys_add(out, key);
}

/* [lock] Finds the keys of chunks that continue one of the keys and are not in the set. If no key
 * belongs to a full chunk, also finds all chunks that begin a context, since an erased text of less
 * than a chunk has no other parent. */
static void candidates_find(const struct store *s, const struct keys *set, struct keys *out)
{
    const struct catalog *c = &s->catalog;
    bool has_full = false;
    for (size_t i = 0; i < set->n; i++) {
        const struct chunk_node *node = catalog_find(c, &set->at[i]);
        if (node == NULL)
            continue;
        has_full |= node->n_tokens == STORE_CHUNK_TOKENS;
        for (const struct chunk_node *x = node->child; x != NULL; x = x->older)
            add_unknown(set, &x->key, out);
    }
    for (uint64_t i = 0; !has_full && i < c->n_buckets; i++)
        for (const struct chunk_node *x = c->buckets[i]; x != NULL; x = x->next)
            if (x->chunk_idx == 0)
                add_unknown(set, &x->key, out);
}

/* Returns whether an erased text ends inside this chunk, which then has all of its last part. */
static bool is_whole(struct store *s, const struct keys *set, const struct sha256 *key,
                     void *block, struct chunk_header *h)
{
    struct store_hit hit;
    bool whole = false;
    if (!store_pin(s, key, &hit))
        return false;
    pthread_mutex_lock(&s->lock);
    const struct extent *x = ((struct chunk_node *)hit.impl)->extents;
    while (x != NULL && x->state != EXTENT_LIVE)
        x = x->next;
    pthread_mutex_unlock(&s->lock);
    if (x != NULL && store_read_header(s, x, block, h, NULL) == 0)
        for (int n = 1; n < h->n_tokens && !whole; n++) {
            struct sha256 end = store_partial_key(&h->parent, h->tokens, n);
            whole = keys_have(set, &end);
        }
    store_release(s, &hit, 1);
    return whole;
}

struct subtree {
    struct keys roots; /* keys of the chunks that were found, sorted */
    struct keys all;   /* the roots and all chunks that continue them, parents first */
    struct keys path;  /* from the first chunk of a context to the last listed chunk */
    size_t n_outside;  /* chunks of the path before its first root */
};

/* Cuts the path back to the chunk's parent, and adds the chunk. The listing is depth first, so a
 * parent that is stored is on the path. A chunk is to be erased if it is a root, or if a root
 * stands before it on the path. */
static int subtree_add(void *arg, const struct store_entry *e)
{
    struct subtree *t = arg;
    while (t->path.n > 0 &&
           memcmp(&t->path.at[t->path.n - 1], &e->parent, sizeof e->parent) != 0)
        t->path.n--;
    bool is_behind_root = t->path.n > t->n_outside;
    bool is_erased = is_behind_root || keys_have(&t->roots, &e->key);
    if (!is_behind_root)
        t->n_outside = t->path.n + !is_erased;
    keys_add(&t->path, &e->key);
    if (is_erased)
        keys_add(&t->all, &e->key);
    return 0;
}

int store_erase_continuing(struct store *s, const struct sha256 *keys, int n,
                           struct store_erased *out, struct err *err)
{
    struct keys set = {0}, found = {0};
    struct subtree t = {0};
    int rc = 0;
    *out = (struct store_erased){0};
    if (n == 0)
        return 0;
    for (int i = 0; i < n; i++)
        keys_add(&set, &keys[i]);
    qsort(set.at, set.n, sizeof set.at[0], by_bytes);
    /* From now on this mark refuses appends by requests that began before. Chunks that they have
     * appended already are found below. */
    pthread_mutex_lock(&s->lock);
    erasures_mark_keys(&s->erasing.marks, ERASURE_END, keys, n);
    uint64_t n_writing = (uint64_t)store_doom_writing(s);
    pthread_mutex_unlock(&s->lock);
    (void)store_commit_run(s, STORE_COMMIT_PENDING, NULL);
    pthread_mutex_lock(&s->lock);
    candidates_find(s, &set, &found);
    pthread_mutex_unlock(&s->lock);
    void *block = mem_map(CHUNK_HEADER_BYTES);
    if (block == NULL)
        rc = err_set(err, -ENOMEM, "no memory to read the heads of chunks");
    struct chunk_header *h = xmalloc(sizeof *h);
    for (size_t i = 0; rc == 0 && i < found.n; i++)
        if (is_whole(s, &set, &found.at[i], block, h))
            keys_add(&t.roots, &found.at[i]);
    if (t.roots.n > 0) {
        qsort(t.roots.at, t.roots.n, sizeof t.roots.at[0], by_bytes);
        rc = store_each(s, subtree_add, &t, err);
    }
    if (rc == 0 && t.all.n > 0)
        rc = store_erase(s, t.all.at, (int)t.all.n, out, err);
    out->n_busy += n_writing;
    if (block != NULL)
        mem_unmap(block, CHUNK_HEADER_BYTES);
    free(h);
    free(set.at);
    free(found.at);
    free(t.roots.at);
    free(t.all.at);
    free(t.path.at);
    return rc;
}
