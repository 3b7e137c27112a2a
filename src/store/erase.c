/* erase.c - erases chunks so that no readable remains are left.
 *
 *   1. uncommitted appends are committed, so that every extent of the chunks has a row
 *   2. a marker says that free space must be wiped (remains.c)
 *   3. lock: the chunks are taken off the catalog; their extents are marked to be wiped
 *   4. one index transaction: rows dropped, their places entered into `wipe`
 *   5. the places are overwritten with zeros, synced, and then punched
 *   6. one index transaction: the places leave `wipe`; their space may be used again
 *   7. free space that may hold older bytes is wiped in the same way; the marker is removed
 *   8. the index's log, which still has the dropped rows, is folded, overwritten and cut
 *   9. the chunks' copies in DRAM, which step 3 has taken away, are zeroed
 *
 * A crash before step 4 leaves the chunks as they were. A crash after step 4 leaves them absent,
 * and the next open continues with step 5. A chunk in use is doomed: it is missing for lookups, and
 * step 3 happens when its last user leaves. So is a chunk that is being written. Chunks that come
 * later, of requests that began before the erasure, are refused (erasures.h). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "store/store_impl.h"

void store_free_list(struct extent *list)
{
    for (struct extent *x = list, *next; x != NULL; x = next) {
        next = x->next;
        free(x->records);
        free(x);
    }
}

/* --- taking chunks away ----------------------------------------------------------------------- */

static bool in_use(const struct chunk_node *n)
{
    return n->n_pins > 0 || n->n_pending > 0 || n->has_writer;
}

/* [lock] Ends the node's lasting pin. The node may be freed. */
static void pin_end(struct store *s, struct chunk_node *n)
{
    if (n->pin_at == 0)
        return;
    store_note_pin(s, &(struct index_pin){.key = n->key});
    catalog_unpin(&s->catalog, n);
}

/* [lock] Takes away the extents of a node that is not in use, to be wiped. The node may be
 * freed. */
static void node_erase(struct store *s, struct chunk_node *n)
{
    for (struct extent *x = n->extents; x != NULL; x = x->next)
        x->wipe = 1;
    n->doomed = false;
    n->n_pins++; /* a damaged chunk has no extents that keep its node while the pin ends */
    pin_end(s, n);
    n->n_pins--;
    store_evict_node(s, n, STORE_EVICT_ERASED);
}

void store_doom(struct store *s, struct chunk_node *n)
{
    CHECK(in_use(n) || n->n_children > 0);
    n->doomed = true;
    tier_forget_node(s->tier, n);
    /* The pin ends now. Otherwise a damaged chunk's node may be freed later, and its pin would stay
     * behind. */
    pin_end(s, n);
}

/* A damaged node between n and the returned one has no extents left, and is freed with n. */
struct chunk_node *store_doomed_above(const struct chunk_node *n)
{
    struct chunk_node *up = n->parent;
    while (up != NULL && up->doomed && up->extents == NULL && !in_use(up))
        up = up->parent;
    return up != NULL && up->doomed ? up : NULL;
}

void store_settle_doomed(struct store *s, struct chunk_node *n)
{
    while (n != NULL && n->doomed && !in_use(n) && n->n_children == 0) {
        struct chunk_node *up = store_doomed_above(n);
        node_erase(s, n);
        n = up;
    }
}

int store_doom_writing(struct store *s)
{
    int n = 0;
    for (struct store_writing *w = s->writing; w != NULL; w = w->next)
        if (erasures_concern(&s->erasures, w->chunk)) {
            store_doom(s, w->node);
            n++;
        }
    return n;
}

/* [lock] Returns whether a chunk that is not erased continues the node. */
static bool is_continued(const struct chunk_node *n)
{
    for (const struct chunk_node *c = n->child; c != NULL; c = c->older)
        if (!c->doomed)
            return true;
    return false;
}

int store_take_chain(struct store *s, const struct sha256 *keys, int n, bool is_all,
                     struct sha256 *taken, struct store_erased *out)
{
    int n_taken = 0;
    for (int i = n; i-- > 0;) {
        struct chunk_node *node = catalog_find(&s->catalog, &keys[i]);
        /* A chunk that is being written has no extents yet. */
        if (node == NULL || (node->extents == NULL && !node->has_writer)) {
            if (node != NULL)
                pin_end(s, node);
            continue;
        }
        if (!is_all && is_continued(node)) {
            out->n_shared += (uint64_t)i + 1;
            return n_taken;
        }
        if (taken != NULL)
            taken[n_taken] = keys[i];
        n_taken++;
        if (node->n_children > 0 || in_use(node)) {
            store_doom(s, node);
            out->n_busy++;
            continue;
        }
        for (const struct extent *x = node->extents; x != NULL; x = x->next)
            out->n_bytes += extent_bytes(x);
        out->n_chunks++;
        struct chunk_node *up = store_doomed_above(node);
        node_erase(s, node);
        store_settle_doomed(s, up);
    }
    return n_taken;
}

/* The chunks that one erase takes off the catalog. */
struct taking {
    struct sha256 *keys;
    int n;
    bool is_done;
    /* true in an owner's erase: a chunk is taken even if other chunks continue it */
    bool is_all;
};

/* [lock] Takes the chunks of keys[0..n) off the catalog, sets their marks, and dooms the chunks
 * that are being written. */
static void chain_take(struct store *s, const struct sha256 *keys, int n, struct taking *t,
                       struct store_erased *out)
{
    t->n = store_take_chain(s, keys, n, t->is_all, t->keys, out);
    t->is_done = true;
    int n_kept = (int)out->n_shared;
    if (!t->is_all) /* for an owner's erase store_erase_owner has set the mark already */
        erasures_mark_keys(&s->erasures, ERASURE_KEY, keys + n_kept, n - n_kept);
    /* chunks of keys[] that are being written are in n_busy already */
    (void)store_doom_writing(s);
}

static int erase_now(struct store *s, const struct sha256 *keys, int n, struct taking *t,
                     struct store_erased *out, struct err *err)
{
    int rc = store_commit_run(
        s, STORE_COMMIT_PENDING | STORE_COMMIT_FRESH | STORE_COMMIT_RESERVE, err);
    if (rc == 0)
        rc = store_mark_remains(s, err);
    if (rc == 0) {
        pthread_mutex_lock(&s->lock);
        rc = store_can_save(s, err);
        if (rc == 0)
            chain_take(s, keys, n, t, out);
        pthread_mutex_unlock(&s->lock);
    }
    if (rc == 0)
        rc = store_commit_run(s, STORE_COMMIT_PINS | STORE_COMMIT_RESERVE, err);
    if (rc == 0)
        rc = store_wipe(s, err);
    if (rc == 0)
        rc = store_wipe_remains(s, err);
    if (rc == 0)
        rc = store_fold_log(s, err);
    if (rc == 0)
        store_fill_reserve(s);
    return rc;
}

/* [erase_lock] Notes that the disk is too full to finish an erasure. The chunks have left the
 * catalog, and store_settle does the rest. */
static void wait_for_room(struct store *s, const struct taking *t, struct store_erased *out)
{
    s->owes_remains = true;
    *out = (struct store_erased){.n_shared = out->n_shared,
                                 .n_busy = out->n_busy,
                                 .n_owed = (uint64_t)t->n - out->n_busy};
}

/* Erases keys[0..n); if that fails, notes what is still owed. owner: the owner of all keys[], if
 * this is an owner's erase; else NULL. */
static int erase_or_owe(struct store *s, const struct sha256 *keys, int n,
                        const uint64_t *owner, struct store_erased *out, struct err *err)
{
    struct taking t = {.keys = xmalloc(((size_t)n + 1) * sizeof t.keys[0]),
                       .is_all = owner != NULL};
    *out = (struct store_erased){0};
    pthread_mutex_lock(&s->erase_lock);
    int rc = erase_now(s, keys, n, &t, out, err);
    bool is_unwritable = rc != 0 && store_is_unwritable(s);
    if (is_unwritable || rc == -ENOSPC) {
        pthread_mutex_lock(&s->lock);
        if (!t.is_done)
            chain_take(s, keys, n, &t, out);
        pthread_mutex_unlock(&s->lock);
    }
    if (is_unwritable)
        store_owe(s, t.keys, t.n, owner, out);
    else if (rc == -ENOSPC)
        wait_for_room(s, &t, out);
    if (t.n > 0 && s->on_erased != NULL)
        s->on_erased(s->on_erased_arg, t.keys, t.n);
    pthread_mutex_lock(&s->lock);
    tier_wait_zeroed(s->tier);
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_unlock(&s->erase_lock);
    free(t.keys);
    return rc;
}

void store_on_erased(struct store *s,
                     void (*fn)(void *arg, const struct sha256 *keys, int n), void *arg)
{
    pthread_mutex_lock(&s->erase_lock);
    s->on_erased = fn;
    s->on_erased_arg = arg;
    pthread_mutex_unlock(&s->erase_lock);
}

uint64_t store_epoch(struct store *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t epoch = s->erasures.epoch;
    pthread_mutex_unlock(&s->lock);
    return epoch;
}

void store_refuse_former(struct store *s)
{
    pthread_mutex_lock(&s->lock);
    erasures_mark_all(&s->erasures);
    (void)store_doom_writing(s);
    pthread_mutex_unlock(&s->lock);
}

int store_erase(struct store *s, const struct sha256 *keys, int n, struct store_erased *out,
                struct err *err)
{
    return erase_or_owe(s, keys, n, NULL, out, err);
}

static void erased_add(struct store_erased *sum, const struct store_erased *part)
{
    sum->n_chunks += part->n_chunks;
    sum->n_bytes += part->n_bytes;
    sum->n_shared += part->n_shared;
    sum->n_busy += part->n_busy;
    sum->n_owed += part->n_owed;
    sum->is_noted = part->is_noted;
    memcpy(sum->not_noted_because, part->not_noted_because, sizeof sum->not_noted_because);
}

int store_erase_owner(struct store *s, uint64_t owner, struct store_erased *out,
                      struct err *err)
{
    enum { ROUNDS = 4 }; /* chunks that are appended meanwhile need another round */
    int rc = 0, n = 1;
    *out = (struct store_erased){0};
    /* The mark is set before the chunks are listed, so that no chunk of an earlier request is
     * missed. */
    pthread_mutex_lock(&s->lock);
    erasures_mark_owner(&s->erasures, owner);
    uint64_t n_writing = (uint64_t)store_doom_writing(s);
    pthread_mutex_unlock(&s->lock);
    for (int round = 0; rc == 0 && n > 0 && round < ROUNDS; round++) {
        struct store_erased part = {0};
        struct sha256 *keys;
        rc = store_owned_keys(s, owner, &keys, &n, err);
        if (rc == 0 && (n > 0 || round == 0))
            rc = erase_or_owe(s, keys, n, &owner, &part, err);
        free(keys);
        erased_add(out, &part);
    }
    out->n_busy += n_writing;
    return rc;
}

/* --- wiping ----------------------------------------------------------------------------------- */

/* Bytes that are wiped between two syncs: about 60 ms of a fast disk. */
#define WIPE_AT_ONCE ((uint64_t)32 << 20)

/* A run of bytes that several places may share. */
struct run {
    uint64_t begin, end;
    uint32_t segment;
    uint8_t device;
};

static int by_place(const void *a, const void *b)
{
    const struct run *x = a, *y = b;
    int by = ORDER(x->device, y->device);
    by = by != 0 ? by : ORDER(x->segment, y->segment);
    return by != 0 ? by : ORDER(x->begin, y->begin);
}

/* Lists the runs of the places. Extents that were written one after the other are one run: a file
 * system takes milliseconds to make a hole, however long it is. The caller frees *out. */
static size_t runs_of(const struct extent *list, struct run **out)
{
    size_t n = 0, n_runs = 0;
    for (const struct extent *x = list; x != NULL; x = x->next)
        n++;
    struct run *runs = xmalloc(n * sizeof *runs);
    n = 0;
    for (const struct extent *x = list; x != NULL; x = x->next)
        runs[n++] = (struct run){x->offset, x->offset + extent_bytes(x), x->segment,
                                 x->device};
    qsort(runs, n, sizeof *runs, by_place);
    for (size_t i = 0; i < n; i++) {
        struct run *last = n_runs > 0 ? &runs[n_runs - 1] : NULL;
        if (last != NULL && last->device == runs[i].device &&
            last->segment == runs[i].segment && last->end == runs[i].begin)
            last->end = runs[i].end;
        else
            runs[n_runs++] = runs[i];
    }
    *out = runs;
    return n_runs;
}

/* Overwrites the bytes of all places, syncs, and gives their space back to the file system. No lock
 * is held while bytes are overwritten, so commits go on. */
static int places_wipe(struct store *s, const struct extent *list, struct err *err)
{
    struct media *m = s->media;
    struct run *r;
    size_t n = runs_of(list, &r);
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = m->ops->wipe(m, r[i].device, r[i].segment, r[i].begin, r[i].end, err);
    if (rc == 0)
        rc = store_sync_wiped(s, err);
    for (size_t i = 0; i < n && rc == 0; i++)
        m->ops->punch(m, r[i].device, r[i].segment, r[i].begin, r[i].end);
    free(r);
    return rc;
}

/* [index_lock] Removes the places of a list from the index, in one transaction. */
static int rows_forget(struct store *s, const struct extent *list, uint64_t id_limit,
                       struct err *err)
{
    int rc = index_begin(s->index, err);
    for (const struct extent *x = list; x != NULL && rc == 0; x = x->next)
        rc = index_wiped(s->index, x->id, err);
    return rc == 0 ? index_commit(s->index, id_limit, err) : rc;
}

/* Removes the places of a list from the index. Takes commit_lock, because a commit raises id_limit,
 * and index_lock. */
static int places_forget(struct store *s, const struct extent *list, struct err *err)
{
    if (s->index == NULL)
        return 0;
    pthread_mutex_lock(&s->commit_lock);
    pthread_mutex_lock(&s->lock);
    uint64_t id_limit = s->id_limit;
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&s->index_lock);
    int rc = rows_forget(s, list, id_limit, err);
    if (rc == -ENOSPC && store_release_reserve(s->io, s->dirs[0]))
        rc = rows_forget(s, list, id_limit, err);
    pthread_mutex_unlock(&s->index_lock);
    pthread_mutex_unlock(&s->commit_lock);
    return rc;
}

/* [lock] Frees the space of wiped places. If wiping failed (done is false), the places wait for the
 * next wipe. */
static void places_settle(struct store *s, struct extent *list, bool done)
{
    for (struct extent *x = list, *next; x != NULL; x = next) {
        next = x->next;
        x->next = NULL;
        if (done) {
            s->wiping_bytes -= extent_bytes(x);
            store_give_extent(s, x);
        } else {
            x->next = s->wiping;
            s->wiping = x;
        }
    }
}

/* [lock] Takes the first places that wait to be wiped, about WIPE_AT_ONCE bytes. */
static struct extent *places_take(struct store *s)
{
    struct extent *list = s->wiping, **end = &s->wiping;
    for (uint64_t n = 0; *end != NULL && n < WIPE_AT_ONCE; end = &(*end)->next)
        n += extent_bytes(*end);
    s->wiping = *end;
    *end = NULL;
    return list;
}

/* [wipe_lock] Wipes some of the places. *more: others wait. */
static int wipe_some(struct store *s, bool *more, struct err *err)
{
    struct extent *list = NULL;
    *more = false;
    pthread_mutex_lock(&s->lock);
    bool wanted = s->wiping != NULL;
    pthread_mutex_unlock(&s->lock);
    /* A fresh commit comes first. The index that was found at open may be gone after the next
     * crash, because the end of a log that was cut off is readable but not durable. */
    int rc = wanted ? store_commit_run(s, STORE_COMMIT_FRESH | STORE_COMMIT_RESERVE, err)
                    : 0;
    if (rc != 0 || !wanted)
        return rc;
    pthread_mutex_lock(&s->lock);
    rc = store_can_save(s, err);
    if (rc == 0)
        list = places_take(s);
    pthread_mutex_unlock(&s->lock);
    if (rc == 0 && list != NULL)
        rc = places_wipe(s, list, err);
    if (rc == 0 && list != NULL)
        rc = places_forget(s, list, err);
    pthread_mutex_lock(&s->lock);
    places_settle(s, list, rc == 0);
    *more = s->wiping != NULL;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int store_wipe_some(struct store *s, struct err *err)
{
    bool more;
    pthread_mutex_lock(&s->wipe_lock);
    int rc = wipe_some(s, &more, err);
    pthread_mutex_unlock(&s->wipe_lock);
    return rc;
}

int store_wipe(struct store *s, struct err *err)
{
    bool more = true;
    int rc = 0;
    while (rc == 0 && more) {
        /* Given up in between, so that a thread which needs room waits for a part only. */
        pthread_mutex_lock(&s->wipe_lock);
        rc = wipe_some(s, &more, err);
        pthread_mutex_unlock(&s->wipe_lock);
    }
    return rc;
}

void store_wipe_rest(struct store *s)
{
    struct err why = {0};
    bool more;
    if (s->read_only || pthread_mutex_trylock(&s->wipe_lock) != 0)
        return; /* another thread wipes */
    if (wipe_some(s, &more, &why) != 0)
        log_info("erased chunks could not be wiped yet: %s", why.msg);
    pthread_mutex_unlock(&s->wipe_lock);
}

/* --- at open ---------------------------------------------------------------------------------- */

/* Enters a place. Returns ERR_CORRUPT if the place overlaps a stored extent. */
static int place_enter(void *arg, const struct index_place *place)
{
    struct store *s = arg;
    uint64_t n_bytes = (uint64_t)place->n_blocks * STORE_ALIGN;
    int rc = alloc_claim(&s->alloc[place->device], place->segment, place->offset, n_bytes);
    if (rc != 0)
        return rc;
    struct extent *x = xcalloc(1, sizeof *x);
    *x = (struct extent){.next = s->wiping,
                         .id = place->id,
                         .offset = place->offset,
                         .segment = place->segment,
                         .n_blocks = place->n_blocks,
                         .device = (uint8_t)place->device,
                         .state = EXTENT_FREEING,
                         .wipe = 1};
    s->wiping = x;
    s->wiping_bytes += n_bytes;
    s->used_bytes += n_bytes;
    return 0;
}

int store_load_wipes(struct store *s, struct err *err)
{
    return index_load_wipes(s->index, place_enter, s, err);
}
