/* append.c - appends chunks: finds the missing records, places their extents, writes them.
 *
 * A device gets one extent, and a second one if the chunk has records that the store keeps apart
 * (store_keep_apart): these can then be dropped without the others.
 *
 * One append of a key runs at a time (has_writer), so two threads that save the same chunk store
 * it once: the second waits and then finds nothing missing. Space is reserved before the lock is
 * dropped for the write, so the cap holds at every moment. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "store/store_impl.h"

/* The extent to be written on one device. */
struct draft {
    struct chunk_header h;
    const struct store_record *from[CHUNK_MAX_RECORDS];
    struct extent *x;
};

static int n_tokens_of(const struct store_chunk *c)
{
    return c->n_tokens != 0 ? c->n_tokens : STORE_CHUNK_TOKENS;
}

/* Returns by how many bytes a record grows on its way to the disk. */
static uint32_t seal_bytes(const struct store *s)
{
    return s->home.seal != NULL ? SEAL_BYTES : 0;
}

/* Returns 0 if the chunk can be stored, ERR_LIMIT if it is too large, or ERR_USAGE if its key is
 * not that of its tokens. */
static int chunk_check(const struct store *s, const struct store_chunk *c, struct err *err)
{
    uint32_t most = CHUNK_MAX_RECORD_BYTES - seal_bytes(s);
    CHECK(c->n_records >= 0 && c->n_records <= CHUNK_MAX_RECORDS);
    CHECK(c->n_tokens >= 0 && c->n_tokens <= STORE_CHUNK_TOKENS);
    CHECK(!c->yields || n_tokens_of(c) < STORE_CHUNK_TOKENS);
    struct store_mask seen = {0};
    for (int i = 0; i < c->n_records; i++) {
        const struct store_record *r = &c->records[i];
        CHECK(r->layer >= 0 && r->layer < STORE_MAX_LAYERS && r->kind < STORE_KINDS);
        CHECK(!store_mask_has(&seen, r->layer, r->kind));
        store_mask_add(&seen, r->layer, r->kind);
        if (r->n_bytes == 0 || r->n_bytes > most)
            return err_set(err, ERR_LIMIT,
                           "a record of %u bytes cannot be stored (1 to %u)", r->n_bytes,
                           most);
    }
    if (c->chunk_idx >= CHUNK_MAX_IDX)
        return err_set(err, ERR_LIMIT, "the context is too long to be stored");
    struct sha256 key = store_partial_key(&c->parent, c->tokens, n_tokens_of(c));
    if (memcmp(key.b, c->key.b, sizeof key.b) != 0)
        return err_set(err, ERR_USAGE,
                       "a chunk's key is not the hash of its parent and tokens");
    return 0;
}

/* Returns the records of a chunk that need not be written: they are stored, or being written. */
static struct store_mask mask_of(const struct chunk_node *n)
{
    struct store_mask m = n->mask;
    for (const struct extent *x = n->extents; x != NULL; x = x->next)
        if (x->state == EXTENT_PENDING)
            for (int i = 0; i < x->n_records; i++)
                store_mask_add(&m, x->records[i].layer,
                               (enum store_kind)x->records[i].kind);
    return m;
}

/* Returns whether a record is to be tight. A smaller one takes a block, so that the number of an
 * extent's records is bounded by that of its blocks (space_index_has_room). */
static bool is_tight(const struct store *s, const struct store_record *r)
{
    return (r->is_packed || s->home.seal != NULL) &&
           r->n_bytes + seal_bytes(s) > STORE_ALIGN;
}

/* Inserts a record at its place in (kind, layer) order. */
static void draft_insert(const struct store *s, struct draft *d,
                         const struct store_record *r)
{
    int at = d->h.n_records++;
    int order = r->kind * STORE_MAX_LAYERS + r->layer;
    for (; at > 0; at--) {
        const struct chunk_record *before = &d->h.records[at - 1];
        if (before->kind * STORE_MAX_LAYERS + before->layer < order)
            break;
        d->h.records[at] = d->h.records[at - 1];
        d->from[at] = d->from[at - 1];
    }
    d->h.records[at] = (struct chunk_record){.n_bytes = r->n_bytes + seal_bytes(s),
                                             .layer = (uint8_t)r->layer,
                                             .kind = (uint8_t)r->kind,
                                             .is_packed = r->is_packed,
                                             .is_tight = is_tight(s, r)};
    d->from[at] = r;
}

static struct draft *draft_new(const struct store *s, const struct store_chunk *c,
                               int device)
{
    struct draft *d = xcalloc(1, sizeof *d);
    memcpy(d->h.uuid, s->home.uuid, sizeof d->h.uuid);
    d->h.device = (uint16_t)device;
    d->h.chunk_idx = c->chunk_idx;
    d->h.key = c->key;
    d->h.parent = c->parent;
    d->h.fingerprint = c->fingerprint;
    d->h.owner = c->owner;
    d->h.n_tokens = n_tokens_of(c);
    d->h.yields = c->yields;
    memcpy(d->h.tokens, c->tokens, (size_t)d->h.n_tokens * sizeof d->h.tokens[0]);
    return d;
}

/* Returns whether the store keeps records of this chunk apart. */
static bool has_parts(const struct store *s, const struct store_chunk *c)
{
    return n_tokens_of(c) == STORE_CHUNK_TOKENS && !layer_set_is_empty(&s->apart.layers) &&
           memcmp(&c->fingerprint, &s->apart.of, sizeof s->apart.of) == 0;
}

/* Makes one draft per device that misses records, or two: the second one, n_devices behind the
 * first, has the records that are kept apart. Returns the bytes of all drafts. */
static uint64_t drafts_plan(const struct store *s, const struct store_chunk *c,
                            const struct store_mask *have, struct draft **drafts)
{
    int n_devices = s->media->n_devices;
    bool parts = has_parts(s, c);
    for (int i = 0; i < c->n_records; i++) {
        const struct store_record *r = &c->records[i];
        if (store_mask_has(have, r->layer, r->kind))
            continue;
        int device = (int)((c->chunk_idx + (uint32_t)r->layer) % (uint32_t)n_devices);
        int at = device;
        if (parts && layer_set_has(&s->apart.layers, r->layer))
            at += n_devices;
        if (drafts[at] == NULL)
            drafts[at] = draft_new(s, c, device);
        draft_insert(s, drafts[at], r);
    }
    uint64_t all_bytes = 0;
    for (int i = 0; i < store_most_extents(s); i++) {
        if (drafts[i] == NULL)
            continue;
        drafts[i]->h.n_bytes = chunk_layout(drafts[i]->h.records, drafts[i]->h.n_records);
        all_bytes += drafts[i]->h.n_bytes;
    }
    return all_bytes;
}

static struct extent *extent_new(struct chunk_header *h)
{
    struct extent *x = xcalloc(1, sizeof *x);
    x->id = h->id;
    x->segment = h->segment;
    x->offset = h->offset;
    x->n_blocks = (uint32_t)(h->n_bytes / STORE_ALIGN);
    x->n_records = h->n_records;
    x->device = (uint8_t)h->device;
    x->state = EXTENT_PENDING;
    return x;
}

/* [lock, dropped while the index commits] Makes room in the owner's quota and under the cap, and
 * has the index reserve enough unused ids for the extents. Returns 0 if all of this holds now. */
static int prepare(struct store *s, uint16_t owner_idx, uint64_t n_bytes,
                   const struct sha256 *newcomer, struct err *err)
{
    uint64_t n_ids = (uint64_t)store_most_extents(s);
    int rc = 0;
    do {
        if (s->ledger.id_limit - s->ledger.next_id < n_ids) {
            pthread_mutex_unlock(&s->lock);
            rc = store_commit_run(s, STORE_COMMIT_IDS, err);
            pthread_mutex_lock(&s->lock);
        }
        if (rc == 0)
            rc = store_make_room(s, n_bytes, newcomer, err);
    } while (rc == 0 && s->ledger.id_limit - s->ledger.next_id < n_ids);
    /* This call comes last, because it does not drop the lock: no other thread acts between it and
     * the caller's reservation. */
    return rc == 0 ? store_make_owner_room(s, owner_idx, n_bytes, newcomer, err) : rc;
}

/* [lock] Reserves space for the drafts: an id, a place, and with has_copies a copy in DRAM. If it
 * returns an error, drafts_return gives back what the first drafts have got. */
static int drafts_reserve(struct store *s, uint16_t owner_idx, struct draft **drafts,
                          bool has_copies, struct err *err)
{
    for (int i = 0; i < store_most_extents(s); i++) {
        struct draft *d = drafts[i];
        if (d == NULL)
            continue;
        int rc = alloc_take(&s->space.alloc[d->h.device], d->h.n_bytes, &d->h.segment,
                            &d->h.offset);
        if (rc != 0)
            return err_set(err, rc, "a chunk of %llu bytes does not fit a segment of %llu",
                           (unsigned long long)d->h.n_bytes,
                           (unsigned long long)s->media->segment_bytes);
        d->h.id = s->ledger.next_id++;
        d->x = extent_new(&d->h);
        d->x->copy = has_copies ? tier_take(s->tier, d->h.n_bytes) : NULL;
        s->space.used_bytes += d->h.n_bytes;
        s->catalog.owners[owner_idx].used_bytes += d->h.n_bytes;
    }
    return 0;
}

static int drafts_write(struct store *s, struct draft **drafts, struct err *err)
{
    for (int i = 0; i < store_most_extents(s); i++) {
        if (drafts[i] == NULL)
            continue;
        const struct tier_copy *copy = drafts[i]->x->copy;
        uint8_t *to = copy != NULL ? tier_at(s->tier, copy, CHUNK_HEADER_BYTES) : NULL;
        int rc = s->media->ops->write(s->media, &drafts[i]->h, drafts[i]->from, to, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* [lock] Gives back the reserved space of drafts whose extents are not on a chunk's node. */
static void drafts_return(struct store *s, uint16_t owner_idx, struct draft **drafts)
{
    for (int i = 0; i < store_most_extents(s); i++) {
        struct draft *d = drafts[i];
        if (d == NULL || d->x == NULL)
            continue;
        s->catalog.owners[owner_idx].used_bytes -= d->h.n_bytes;
        tier_abandon(s->tier, d->x, d->x->copy);
        space_give(&s->space, d->x);
        d->x = NULL;
    }
}

/* Number of further tries after the first one has met a full disk or cap. Each try evicts twice as
 * much as the previous one, because the holes that eviction frees may be too small. */
enum { SPACE_ROUNDS = 4 };

/* [lock, dropped meanwhile] Finds room for the drafts and writes them. If all free space is in
 * holes that are too small, the write must make files grow. It returns -ENOSPC if the disk is full,
 * and ERR_LIMIT if the files reach their cap. After both this evicts chunks and tries again. */
static int drafts_place(struct store *s, uint16_t owner_idx, struct draft **drafts,
                        uint64_t n_bytes, const struct sha256 *newcomer, struct err *err)
{
    for (int round = 0;; round++) {
        int rc = prepare(s, owner_idx, n_bytes, newcomer, err);
        if (rc == 0)
            rc = drafts_reserve(s, owner_idx, drafts, true, err);
        bool is_placed = rc == 0; /* an ERR_LIMIT that follows comes from the write */
        pthread_mutex_unlock(&s->lock);
        if (rc == 0)
            rc = drafts_write(s, drafts, err);
        pthread_mutex_lock(&s->lock);
        if (rc != -ENOSPC && !(is_placed && rc == ERR_LIMIT))
            return rc;
        drafts_return(s, owner_idx, drafts);
        bool is_cap = rc == ERR_LIMIT, evicts = !is_cap || round > 0;
        enum store_evict why = is_cap ? STORE_EVICT_CAP : STORE_EVICT_SPACE;
        if (round == SPACE_ROUNDS ||
            (evicts && !store_make_space(s, n_bytes << round, why, newcomer)))
            return rc;
        /* The cap bounds all files together, so cutting the ends of other files makes room. The
         * first try does only this, and evicts nothing. */
        if (is_cap) {
            pthread_mutex_unlock(&s->lock);
            store_wipe_tails(s);
            pthread_mutex_lock(&s->lock);
            store_cut_files(s);
        }
    }
}

/* [lock] Hands the written extents to the next commit. */
static void drafts_attach(struct store *s, struct chunk_node *n, struct draft **drafts)
{
    for (int i = 0; i < store_most_extents(s); i++) {
        struct draft *d = drafts[i];
        if (d == NULL)
            continue;
        size_t n_bytes = d->h.n_records * sizeof d->h.records[0];
        d->x->records = memcpy(xmalloc(n_bytes), d->h.records, n_bytes);
        /* Subtracts the reserved bytes, because catalog_attach counts them again. */
        s->catalog.owners[n->owner_idx].used_bytes -= d->h.n_bytes;
        catalog_attach(&s->catalog, n, d->x, NULL);
        tier_enter(s->tier, d->x, TIER_WRITTEN);
        s->counts.appended_bytes += d->h.n_bytes;
        ledger_add(&s->ledger, d->x);
        d->x = NULL;
    }
}

/* [lock] Frees the drafts. */
static void drafts_free(struct store *s, uint16_t owner_idx, struct draft **drafts)
{
    drafts_return(s, owner_idx, drafts);
    for (int i = 0; i < store_most_extents(s); i++)
        free(drafts[i]);
}

static int comes_too_late(struct err *err)
{
    return err_set(err, ERR_ERASED, "it was erased after its request had begun");
}

/* [lock] Waits until no other thread writes this key, then becomes its writer. Returns 0 with *w;
 * ERR_ERASED if an erasure refuses the chunk; or the reason why nothing can be saved. */
static int writer_enter(struct store *s, const struct store_chunk *c,
                        struct store_writing *w, struct err *err)
{
    struct chunk_node *n;
    while ((n = catalog_find(&s->catalog, &c->key)) != NULL && n->has_writer)
        pthread_cond_wait(&s->writer_left, &s->lock);
    int rc = store_can_save(s, err);
    if (rc == 0 && erasures_concern(&s->erasing.marks, c))
        rc = comes_too_late(err);
    if (rc == 0) {
        struct chunk_id id = {&c->key,      &c->parent,     &c->fingerprint, c->owner,
                              c->chunk_idx, n_tokens_of(c), c->yields};
        rc = catalog_add(&s->catalog, &id, &n);
        if (rc != 0)
            err_set(err, rc, "the store holds too many different fingerprints or owners");
    }
    if (rc != 0)
        return rc;
    n->marks = store_marks_of(c->tokens, n_tokens_of(c));
    n->has_marks = true;
    n->has_writer = true;
    /* An append ends an earlier erasure of the chunk. A replacement does not: it only gives the
     * chunk another form. */
    n->doomed = n->doomed && c->replaces;
    catalog_settle(&s->catalog, n);
    *w = (struct store_writing){.next = s->erasing.writing, .chunk = c, .node = n};
    s->erasing.writing = w;
    return 0;
}

/* [lock] Ends writer_enter, and erases the chunk if an erasure has doomed it meanwhile. */
static void writer_leave(struct store *s, const struct store_writing *w)
{
    struct chunk_node *n = w->node;
    struct store_writing **p = &s->erasing.writing;
    while (*p != w)
        p = &(*p)->next;
    *p = w->next;
    n->has_writer = false;
    if (n->doomed)
        store_settle_doomed(s, n);
    else
        catalog_settle(&s->catalog, n);
    pthread_cond_broadcast(&s->writer_left);
}

/* [lock] Has the partial chunk `key` removed once n is committed; at once if n is already. */
static void supersede(struct store *s, struct chunk_node *n, const struct sha256 *key)
{
    if (n->n_pending == 0) {
        store_drop_superseded(s, key);
        return;
    }
    const struct extent *x = n->extents;
    while (x->state != EXTENT_PENDING)
        x = x->next;
    ledger_supersede(&s->ledger, x, key);
}

static bool has_copy(const struct chunk_node *n)
{
    for (const struct extent *x = n->extents; x != NULL; x = x->next)
        if (x->copy != NULL)
            return true;
    return false;
}

/* [lock, dropped meanwhile] Finds room for drafts that replace a node's extents, without evicting
 * anything, and writes them. Returns ERR_BUSY if there is no room. */
static int drafts_replace(struct store *s, struct chunk_node *n, struct draft **drafts,
                          uint64_t n_bytes, struct err *err)
{
    const struct space *sp = &s->space;
    const struct catalog_owner *o = &s->catalog.owners[n->owner_idx];
    uint64_t quota = o->quota_bytes != 0 ? o->quota_bytes : sp->quota_bytes;
    int rc = 0;
    if (s->ledger.id_limit - s->ledger.next_id < (uint64_t)store_most_extents(s)) {
        pthread_mutex_unlock(&s->lock);
        rc = store_commit_run(s, STORE_COMMIT_IDS, err);
        pthread_mutex_lock(&s->lock);
    }
    if (rc != 0)
        return rc;
    if ((sp->cap_bytes != 0 && sp->used_bytes + n_bytes > sp->cap_bytes) ||
        (quota != 0 && o->used_bytes + n_bytes > quota) ||
        !space_index_has_room(sp, &s->catalog, s->ledger.index_bytes,
                              s->ledger.n_pending + (uint64_t)store_most_extents(s),
                              s->ledger.pending_bytes + n_bytes))
        return err_set(err, ERR_BUSY, "there is no room for a chunk in two forms");
    rc = drafts_reserve(s, n->owner_idx, drafts, has_copy(n), err);
    pthread_mutex_unlock(&s->lock);
    if (rc == 0)
        rc = drafts_write(s, drafts, err);
    pthread_mutex_lock(&s->lock);
    /* the disk is full, or free space is in holes that are too small */
    return rc == ERR_LIMIT || rc == -ENOSPC
               ? err_set(err, ERR_BUSY, "there is no room for it")
               : rc;
}

/* [lock] Returns whether the chunk's records are just those that the node has. */
static bool has_just(const struct chunk_node *n, const struct store_chunk *c)
{
    struct store_mask mask = {0};
    for (int i = 0; i < c->n_records; i++)
        store_mask_add(&mask, c->records[i].layer, c->records[i].kind);
    return n->n_live > 0 && n->n_pending == 0 && !n->doomed &&
           memcmp(&mask, &n->mask, sizeof mask) == 0;
}

int store_append(struct store *s, const struct store_chunk *chunk, struct err *err)
{
    struct draft *drafts[2 * STORE_MAX_DEVICES] = {0};
    struct store_writing w;
    int rc = chunk_check(s, chunk, err);
    if (rc == 0)
        rc = mem_check(err);
    if (rc != 0)
        return rc;

    pthread_mutex_lock(&s->lock);
    rc = writer_enter(s, chunk, &w, err);
    if (rc != 0) {
        pthread_mutex_unlock(&s->lock);
        return rc;
    }
    struct chunk_node *n = w.node;
    struct store_mask have = mask_of(n);
    if (chunk->replaces && !has_just(n, chunk))
        rc = err_set(err, ERR_BUSY, "the chunk is not stored with these records alone");
    if (chunk->replaces)
        have = (struct store_mask){0};
    uint64_t n_bytes = rc == 0 ? drafts_plan(s, chunk, &have, drafts) : 0;
    if (n_bytes > 0) {
        rc = chunk->replaces
                 ? drafts_replace(s, n, drafts, n_bytes, err)
                 : drafts_place(s, n->owner_idx, drafts, n_bytes,
                                chunk->may_be_refused ? &chunk->key : NULL, err);
        /* While it was written the chunk may have been evicted or condemned. */
        if (rc == 0 && chunk->replaces && !has_just(n, chunk))
            rc = err_set(err, ERR_BUSY, "the chunk has left the store meanwhile");
        /* Checks again whether the store can save: a commit may have failed for good meanwhile. */
        if (rc == 0)
            rc = store_can_save(s, err);
        if (rc == 0)
            drafts_attach(s, n, drafts);
        n->replaces = rc == 0 && chunk->replaces;
        /* The chunk was erased while it was written. It comes too late, and the next commit wipes
         * it. */
        if (rc == 0 && erasures_concern(&s->erasing.marks, chunk))
            rc = comes_too_late(err);
    }
    if (rc == 0 && !chunk->replaces)
        store_touch_node(s, n, &chunk->use);
    if (rc == 0 && chunk->supersedes != NULL)
        supersede(s, n, chunk->supersedes);
    drafts_free(s, n->owner_idx, drafts);
    writer_leave(s, &w);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int store_commit(struct store *s, struct err *err)
{
    int rc = store_commit_run(s, STORE_COMMIT_PENDING | STORE_COMMIT_FRESH, err);
    if (rc == 0)
        store_wipe_rest(s);
    return rc;
}
