/* commit.c - the barrier: data durable, then the index.
 *
 *   1. lock: take the pending extents and those to be freed
 *   2. sync the media                         (only if something was appended)
 *   3. one index transaction: rows added, rows dropped, uses noted
 *   4. lock: publish, and give freed space back to the allocator
 *
 * Step 2 before 3: the index never names bytes that are not durable. Step 3 before 4: freed
 * space is not overwritten while a crash could still bring its row back.
 *
 * A failed sync is final: Linux reports a lost write once and then forgets it, so a second try
 * would look like success. Everything uncommitted is dropped, and saving is off until the store
 * is opened anew. Reading goes on. A full disk under the index, or no memory for it, is the
 * exception: nothing has happened, everything stays appended, and the next commit tries again. */
#include <errno.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/mem.h"
#include "store/store_impl.h"

/* Changes that one commit makes durable. It owns its arrays until it has ended. */
struct commit {
    struct extent *pending;
    struct index_row *rows; /* [n_rows] rows of the pending extents, in their order */
    uint64_t n_rows;
    struct extent *freeing;
    struct store_touch *touched;
    uint32_t n_touched;
    struct index_pin *pin_changes;
    uint32_t n_pin_changes;
    uint64_t id_limit; /* ids below it may be used after this commit */
    bool frees;        /* the commit may release the reserve on a full disk */
};

int store_can_save(struct store *s, struct err *err)
{
    if (s->read_only)
        return err_set(err, -EROFS, "the store was opened for reading only");
    if (s->saving_err.code != 0)
        return err_set(err, s->saving_err.code, "saving is off: %s", s->saving_err.msg);
    return 0;
}

static struct index_row row_of(const struct store *s, const struct extent *x)
{
    const struct chunk_node *n = x->node;
    CHECK(x->state == EXTENT_PENDING && n->parent != NULL);
    return (struct index_row){
        .id = x->id,
        .key = n->key,
        .parent = n->parent->key,
        .fingerprint = s->catalog.fingerprints[n->fingerprint_idx].value,
        .offset = x->offset,
        .segment = x->segment,
        .n_blocks = x->n_blocks,
        .chunk_idx = n->chunk_idx,
        .device = x->device,
        .n_records = x->n_records,
        .mask = chunk_mask(x->records, x->n_records),
        .owner = s->catalog.owners[n->owner_idx].tag,
        .n_tokens = n->n_tokens,
        .yields = n->yields,
        .tick = n->place.used_at,
        .used_wall_s = n->place.used_time,
        .ttl_s = n->ttl_s,
        .is_dropped = n->place.is_dropped,
    };
}

/* [lock] Takes the changes that this commit writes. */
static void commit_take(struct store *s, unsigned what, struct commit *b)
{
    *b = (struct commit){.freeing = s->freeing,
                         .touched = s->touched,
                         .n_touched = s->n_touched,
                         .pin_changes = s->pin_changes,
                         .n_pin_changes = s->n_pin_changes,
                         .id_limit = s->next_id + STORE_ID_RESERVE,
                         .frees = (what & STORE_COMMIT_RESERVE) != 0};
    s->freeing = NULL;
    s->touched = NULL;
    s->n_touched = 0;
    s->pin_changes = NULL;
    s->n_pin_changes = 0;
    if (!(what & STORE_COMMIT_PENDING))
        return;
    b->pending = s->pending;
    s->pending = NULL;
    s->pending_end = &s->pending;
    for (const struct extent *x = b->pending; x != NULL; x = x->pending_next)
        b->n_rows++;
    if (b->n_rows == 0)
        return;
    b->rows = xmalloc(b->n_rows * sizeof b->rows[0]);
    uint64_t i = 0;
    for (const struct extent *x = b->pending; x != NULL; x = x->pending_next)
        b->rows[i++] = row_of(s, x);
}

/* Writes one index transaction. The records of a PENDING extent can be read without the lock,
 * because only a commit changes its state. */
static int commit_index(struct store *s, const struct commit *b, struct err *err)
{
    int rc = index_begin(s->index, err);
    uint64_t i = 0;
    for (const struct extent *x = b->pending; rc == 0 && x != NULL; x = x->pending_next)
        rc = index_add(s->index, &b->rows[i++], x->records, err);
    for (const struct extent *x = b->freeing; rc == 0 && x != NULL; x = x->next) {
        rc = index_drop(s->index, x->id, err);
        struct index_place place = {x->id, x->offset, x->segment, x->n_blocks, x->device};
        if (rc == 0 && x->wipe)
            rc = index_wipe(s->index, &place, err);
    }
    for (uint32_t p = 0; rc == 0 && p < b->n_pin_changes; p++)
        rc = index_pin(s->index, &b->pin_changes[p], err);
    for (uint32_t t = 0; rc == 0 && t < b->n_touched; t++)
        rc = index_touch(s->index, b->touched[t].id, &b->touched[t].use, err);
    return rc == 0 ? index_commit(s->index, b->id_limit, err) : rc;
}

/* Returns whether a failed commit can be tried again. */
static bool is_passing(int rc)
{
    return rc == -ENOSPC || rc == -ENOMEM;
}

static int commit_write(struct store *s, const struct commit *b, struct err *err)
{
    int rc = 0;
    bool index_first = store_has_bug(STORE_BUG_INDEX_FIRST);
    bool sync = b->pending != NULL && !store_has_bug(STORE_BUG_NO_SYNC);
    if (sync && !index_first)
        rc = s->media->ops->sync(s->media, err);
    /* An error of a sync is final, even with a code that otherwise counts as passing. */
    if (rc != 0)
        return is_passing(rc) ? -EIO : rc;
    if (s->index != NULL) {
        pthread_mutex_lock(&s->index_lock);
        rc = commit_index(s, b, err);
        if (rc == -ENOSPC && b->frees && store_release_reserve(s->io, s->dirs[0]))
            rc = commit_index(s, b, err);
        pthread_mutex_unlock(&s->index_lock);
    }
    if (rc == 0 && sync && index_first)
        rc = s->media->ops->sync(s->media, err);
    if (rc == 0 && s->index != NULL)
        rc = store_check_present(s, err);
    return rc;
}

/* [lock] Removes the partial chunks that the chunk of x supersedes. Call it when x is committed. */
static void superseded_drop(struct store *s, const struct extent *x)
{
    for (uint32_t i = s->n_supersedes; i-- > 0;) {
        if (s->supersedes[i].by != x)
            continue;
        struct sha256 key = s->supersedes[i].key;
        s->supersedes[i] = s->supersedes[--s->n_supersedes];
        store_drop_superseded(s, &key);
    }
}

/* [lock] Publishes the committed changes. */
static void commit_succeeds(struct store *s, struct commit *b)
{
    for (struct extent *x = b->pending, *next; x != NULL; x = next) {
        next = x->pending_next;
        x->pending_next = NULL;
        struct chunk_node *n = x->node;
        catalog_publish(&s->catalog, x);
        store_forget_reasons(s, &n->key);
        s->pending_bytes -= extent_bytes(x);
        s->n_pending--;
        superseded_drop(s, x);
        store_unload_node(s, n);
        store_settle_doomed(s, n);
    }
    if (s->index != NULL) {
        s->id_limit = b->id_limit;
        s->index_bytes = index_live_bytes(s->index);
    }
    s->is_fresh = false;
    for (struct extent *x = b->freeing, *next; x != NULL; x = next) {
        next = x->next;
        s->freeing_bytes -= extent_bytes(x);
        if (x->wipe) {
            x->next = s->wiping;
            s->wiping = x;
            s->wiping_bytes += extent_bytes(x);
        } else {
            store_give_extent(s, x);
        }
    }
}

/* [lock] Puts the pin changes of a failed commit back in front of later ones. Of several changes of
 * a key the last one counts. */
static void pin_changes_return(struct store *s, struct commit *b)
{
    if (b->n_pin_changes == 0)
        return;
    struct index_pin *newer = s->pin_changes;
    uint32_t n_newer = s->n_pin_changes;
    s->pin_changes = b->pin_changes;
    s->n_pin_changes = b->n_pin_changes;
    b->pin_changes = NULL;
    for (uint32_t i = 0; i < n_newer; i++)
        store_note_pin(s, &newer[i]);
    free(newer);
}

/* [lock] Puts the changes of a failed commit back for the next try, in front of later changes. */
static void commit_returns(struct store *s, struct commit *b)
{
    if (b->pending != NULL) {
        struct extent *last = b->pending;
        while (last->pending_next != NULL)
            last = last->pending_next;
        last->pending_next = s->pending;
        if (s->pending == NULL)
            s->pending_end = &last->pending_next;
        s->pending = b->pending;
    }
    struct extent **end = &b->freeing;
    while (*end != NULL)
        end = &(*end)->next;
    *end = s->freeing;
    s->freeing = b->freeing;
    pin_changes_return(s, b);
}

/* [lock] Forgets uncommitted appends. Their space is not given out again: saving is off, or the
 * store is being closed. */
static void pending_drop(struct store *s)
{
    for (struct extent *x = s->pending, *next; x != NULL; x = next) {
        next = x->pending_next;
        x->pending_next = NULL;
        tier_forget(s->tier, x);
        catalog_detach(&s->catalog, x);
        store_give_extent(s, x);
    }
    s->pending_bytes = s->n_pending = 0;
    s->n_supersedes = 0;
    s->pending = NULL;
    s->pending_end = &s->pending;
}

void store_end_saving(struct store *s, int rc, const struct err *why)
{
    if (s->saving_err.code != 0)
        return;
    s->saving_err = *why;
    s->saving_err.code = rc;
    pending_drop(s);
}

int store_commit_run(struct store *s, unsigned what, struct err *err)
{
    struct commit b = {0};
    struct err local = {0};
    pthread_mutex_lock(&s->commit_lock);
    pthread_mutex_lock(&s->lock);
    int rc = store_can_save(s, &local);
    bool wanted = s->freeing != NULL ||
                  ((what & STORE_COMMIT_PENDING) && s->pending != NULL) ||
                  ((what & STORE_COMMIT_FRESH) && s->is_fresh) ||
                  ((what & STORE_COMMIT_TOUCHED) && s->n_touched > 0) ||
                  ((what & STORE_COMMIT_PINS) && s->n_pin_changes > 0) ||
                  ((what & STORE_COMMIT_IDS) && s->index != NULL);
    if (rc == 0 && wanted)
        commit_take(s, what, &b);
    pthread_mutex_unlock(&s->lock);

    if (rc == 0 && wanted) {
        rc = commit_write(s, &b, &local);
        pthread_mutex_lock(&s->lock);
        if (rc == 0)
            commit_succeeds(s, &b);
        else
            commit_returns(s, &b);
        if (rc != 0 && !is_passing(rc))
            store_end_saving(s, rc, &local);
        bool damaged = rc == ERR_CORRUPT;
        pthread_mutex_unlock(&s->lock);
        free(b.rows);
        free(b.touched);
        free(b.pin_changes);
        /* Opening does not read the damaged part, so without a rebuild every later commit would
         * fail on the same damage. */
        if (damaged)
            store_want_rebuild(s);
    }
    pthread_mutex_unlock(&s->commit_lock);
    if (rc != 0)
        err_set(err, rc, "%s", local.msg);
    return rc;
}

int store_commit(struct store *s, struct err *err)
{
    int rc = store_commit_run(s, STORE_COMMIT_PENDING | STORE_COMMIT_FRESH, err);
    if (rc == 0)
        store_wipe_rest(s);
    return rc;
}
