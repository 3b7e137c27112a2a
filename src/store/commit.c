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
    uint64_t *replaced; /* [n_replaced] ids of the extents that the pending ones replace */
    uint64_t n_replaced;
    struct ledger_touch *touched;
    uint32_t n_touched;
    struct index_pin *pin_changes;
    uint32_t n_pin_changes;
    uint64_t id_limit; /* ids below it may be used after this commit */
    bool frees;        /* the commit may release the reserve on a full disk */
};

int store_can_save(struct store *s, struct err *err)
{
    if (s->home.read_only)
        return err_set(err, -EROFS, "the store was opened for reading only");
    if (s->saving_err.code != 0)
        return err_set(err, s->saving_err.code, "saving is off: %s", s->saving_err.msg);
    return 0;
}

bool store_is_unwritable(struct store *s)
{
    pthread_mutex_lock(&s->lock);
    bool is = s->ledger.index != NULL && !s->home.is_beside && store_can_save(s, NULL) != 0;
    pthread_mutex_unlock(&s->lock);
    return is;
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

/* [lock] Notes the LIVE extents of a node whose pending extents replace them. */
static void take_replaced(struct commit *b, const struct chunk_node *n)
{
    for (const struct extent *x = n->extents; x != NULL; x = x->next) {
        if (x->state != EXTENT_LIVE)
            continue;
        b->replaced = xrealloc(b->replaced, (b->n_replaced + 1) * sizeof b->replaced[0]);
        b->replaced[b->n_replaced++] = x->id;
    }
}

/* [lock] Takes the changes that this commit writes. */
static void commit_take(struct store *s, unsigned what, struct commit *b)
{
    *b = (struct commit){.freeing = s->space.freeing,
                         .touched = s->ledger.touched,
                         .n_touched = s->ledger.n_touched,
                         .pin_changes = s->ledger.pin_changes,
                         .n_pin_changes = s->ledger.n_pin_changes,
                         .id_limit = s->ledger.next_id + LEDGER_ID_RESERVE,
                         .frees = (what & STORE_COMMIT_RESERVE) != 0};
    s->space.freeing = NULL;
    s->ledger.touched = NULL;
    s->ledger.n_touched = 0;
    s->ledger.pin_changes = NULL;
    s->ledger.n_pin_changes = 0;
    if (!(what & STORE_COMMIT_PENDING))
        return;
    b->pending = ledger_take_pending(&s->ledger);
    for (const struct extent *x = b->pending; x != NULL; x = x->pending_next)
        b->n_rows++;
    if (b->n_rows == 0)
        return;
    b->rows = xmalloc(b->n_rows * sizeof b->rows[0]);
    uint64_t i = 0;
    for (const struct extent *x = b->pending; x != NULL; x = x->pending_next) {
        b->rows[i++] = row_of(s, x);
        /* A node with two new extents comes twice; dropping a row again changes nothing. */
        if (x->node->replaces)
            take_replaced(b, x->node);
    }
}

/* Writes one index transaction. The records of a PENDING extent can be read without the lock,
 * because only a commit changes its state. */
static int commit_index(struct store *s, const struct commit *b, struct err *err)
{
    int rc = index_begin(s->ledger.index, err);
    uint64_t i = 0;
    for (const struct extent *x = b->pending; rc == 0 && x != NULL; x = x->pending_next)
        rc = index_add(s->ledger.index, &b->rows[i++], x->records, err);
    for (const struct extent *x = b->freeing; rc == 0 && x != NULL; x = x->next) {
        rc = index_drop(s->ledger.index, x->id, err);
        struct index_place place = {x->id, x->offset, x->segment, x->n_blocks, x->device};
        if (rc == 0 && x->wipe)
            rc = index_wipe(s->ledger.index, &place, err);
    }
    for (uint64_t r = 0; rc == 0 && r < b->n_replaced; r++)
        rc = index_drop(s->ledger.index, b->replaced[r], err);
    for (uint32_t p = 0; rc == 0 && p < b->n_pin_changes; p++)
        rc = index_pin(s->ledger.index, &b->pin_changes[p], err);
    for (uint32_t t = 0; rc == 0 && t < b->n_touched; t++)
        rc = index_touch(s->ledger.index, b->touched[t].id, &b->touched[t].use, err);
    return rc == 0 ? index_commit(s->ledger.index, b->id_limit, err) : rc;
}

/* Returns whether a failed commit can be tried again. */
static bool is_passing(int rc)
{
    return rc == -ENOSPC || rc == -ENOMEM;
}

/* Syncs the media, then writes the index. Returns 0 if the changes are durable. After an error that
 * is_passing accepts nothing has happened, and the commit may be tried again. */
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
    if (s->ledger.index != NULL) {
        pthread_mutex_lock(&s->ledger.index_lock);
        rc = commit_index(s, b, err);
        if (rc == -ENOSPC && b->frees && home_release_reserve(s->home.io, s->home.dirs[0]))
            rc = commit_index(s, b, err);
        pthread_mutex_unlock(&s->ledger.index_lock);
    }
    if (rc == 0 && sync && index_first)
        rc = s->media->ops->sync(s->media, err);
    if (rc == 0 && s->ledger.index != NULL)
        rc = home_check_present(&s->home, err);
    return rc;
}

/* [lock] Removes the partial chunks that the chunk of x supersedes. Call it when x is committed. */
static void superseded_drop(struct store *s, const struct extent *x)
{
    struct sha256 key;
    while (ledger_superseded(&s->ledger, x, &key))
        store_drop_superseded(s, &key);
}

/* [lock] Takes the extents that x replaces off its node. Call it when x and the end of their rows
 * are committed. The extents of a pinned chunk only become DEAD, and the last unpin frees them. */
static void replaced_drop(struct store *s, struct extent *x)
{
    struct chunk_node *n = x->node;
    if (!n->replaces)
        return;
    n->replaces = false;
    if (n->doomed) /* all its extents are to be wiped, and leave together */
        return;
    for (struct extent *old = n->extents, *next; old != NULL; old = next) {
        next = old->next;
        if (old->state != EXTENT_LIVE || old == x)
            continue;
        tier_forget(s->tier, old);
        catalog_retire(&s->catalog, old, false);
        if (n->n_pins > 0)
            continue;
        catalog_detach(&s->catalog, old);
        space_give(&s->space, old);
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
        whys_forget(&s->whys, &n->key);
        s->ledger.pending_bytes -= extent_bytes(x);
        s->ledger.n_pending--;
        replaced_drop(s, x);
        superseded_drop(s, x);
        store_unload_node(s, n);
        store_settle_doomed(s, n);
    }
    if (s->ledger.index != NULL) {
        s->ledger.id_limit = b->id_limit;
        s->ledger.index_bytes = index_live_bytes(s->ledger.index);
    }
    s->ledger.is_fresh = false;
    for (struct extent *x = b->freeing, *next; x != NULL; x = next) {
        next = x->next;
        s->space.freeing_bytes -= extent_bytes(x);
        if (x->wipe) {
            space_wipe_later(&s->space, x);
        } else {
            space_give(&s->space, x);
        }
    }
}

/* [lock] Puts the pin changes of a failed commit back in front of later ones. Of several changes of
 * a key the last one counts. */
static void pin_changes_return(struct store *s, struct commit *b)
{
    if (b->n_pin_changes == 0)
        return;
    struct index_pin *newer = s->ledger.pin_changes;
    uint32_t n_newer = s->ledger.n_pin_changes;
    s->ledger.pin_changes = b->pin_changes;
    s->ledger.n_pin_changes = b->n_pin_changes;
    b->pin_changes = NULL;
    for (uint32_t i = 0; i < n_newer; i++)
        ledger_note_pin(&s->ledger, &newer[i]);
    free(newer);
}

/* [lock] Puts the changes of a failed commit back for the next try, in front of later changes. Only
 * the notes of uses are lost, which does no harm. */
static void commit_returns(struct store *s, struct commit *b)
{
    ledger_return_pending(&s->ledger, b->pending);
    struct extent **end = &b->freeing;
    while (*end != NULL)
        end = &(*end)->next;
    *end = s->space.freeing;
    s->space.freeing = b->freeing;
    pin_changes_return(s, b);
}

/* [lock] Forgets uncommitted appends. Their space is not given out again: saving is off, or the
 * store is being closed. */
static void pending_drop(struct store *s)
{
    for (struct extent *x = ledger_take_pending(&s->ledger), *next; x != NULL; x = next) {
        next = x->pending_next;
        x->pending_next = NULL;
        tier_forget(s->tier, x);
        x->node->replaces = false;
        catalog_detach(&s->catalog, x);
        space_give(&s->space, x);
    }
    s->ledger.pending_bytes = s->ledger.n_pending = 0;
    s->ledger.n_supersedes = 0;
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
    /* Extents to be freed always count. Every other change must be asked for in `what`. */
    bool wanted = s->space.freeing != NULL ||
                  ((what & STORE_COMMIT_PENDING) && s->ledger.pending != NULL) ||
                  ((what & STORE_COMMIT_FRESH) && s->ledger.is_fresh) ||
                  ((what & STORE_COMMIT_TOUCHED) && s->ledger.n_touched > 0) ||
                  ((what & STORE_COMMIT_PINS) && s->ledger.n_pin_changes > 0) ||
                  ((what & STORE_COMMIT_IDS) && s->ledger.index != NULL);
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
        free(b.replaced);
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
