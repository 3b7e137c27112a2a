/* wipe.c - overwrites bytes that must not stay: the places of erased extents, and former extents in
 * free space.
 *
 * *Places.* The extents of an erased chunk leave the index by a commit, which notes their places in
 * the table `wipe`. Their space is free once they are overwritten, synced, and gone from that
 * table. If a process is killed before, the next open goes on.
 *
 * *Remains.* The space of an extent that is evicted, superseded, damaged or never committed is
 * given back unwiped, because wiping costs writes and a sync. Its segment is then *soiled*: its
 * free ranges may hold state and token ids. Every erase wipes the free ranges of all soiled
 * segments, so that a deleted conversation leaves no older copy behind. A killed process may have
 * left bytes anywhere, so all segments are soiled at open.
 *
 * The marker (the empty file wipe.free) lies in the first directory from before the erase's
 * transaction until free space is wiped. While it exists, opening wipes all free space.
 *
 * Memory (the DRAM backend) is not wiped: it is no file, and ends with the process. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "io/io.h"
#include "store/store_impl.h"

static bool in_files(const struct store *s)
{
    return s->ledger.index != NULL;
}

int store_sync_files(struct store *s, struct err *err)
{
    struct err why = {0};
    int rc = s->media->ops->sync(s->media, &why);
    if (rc == 0)
        return 0;
    pthread_mutex_lock(&s->lock);
    store_end_saving(s, rc, &why);
    pthread_mutex_unlock(&s->lock);
    return err_set(err, rc, "%s", why.msg);
}

int store_sync_wiped(struct store *s, struct err *err)
{
    pthread_mutex_lock(&s->commit_lock);
    int rc = store_sync_files(s, err);
    pthread_mutex_unlock(&s->commit_lock);
    return rc;
}

/* --- places of erased extents ----------------------------------------------------------------- */

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
    int rc = index_begin(s->ledger.index, err);
    for (const struct extent *x = list; x != NULL && rc == 0; x = x->next)
        rc = index_wiped(s->ledger.index, x->id, err);
    return rc == 0 ? index_commit(s->ledger.index, id_limit, err) : rc;
}

/* Removes the places of a list from the index. Takes commit_lock, because a commit raises id_limit,
 * and index_lock. */
static int places_forget(struct store *s, const struct extent *list, struct err *err)
{
    if (s->ledger.index == NULL)
        return 0;
    pthread_mutex_lock(&s->commit_lock);
    pthread_mutex_lock(&s->lock);
    uint64_t id_limit = s->ledger.id_limit;
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&s->ledger.index_lock);
    int rc = rows_forget(s, list, id_limit, err);
    if (rc == -ENOSPC && home_release_reserve(s->home.io, s->home.dirs[0]))
        rc = rows_forget(s, list, id_limit, err);
    pthread_mutex_unlock(&s->ledger.index_lock);
    pthread_mutex_unlock(&s->commit_lock);
    return rc;
}

/* [lock] Frees the space of wiped places; with done false they wait for the next wipe instead. */
static void places_settle(struct store *s, struct extent *list, bool done)
{
    for (struct extent *x = list, *next; x != NULL; x = next) {
        next = x->next;
        x->next = NULL;
        if (done) {
            s->space.wiping_bytes -= extent_bytes(x);
            space_give(&s->space, x);
        } else {
            x->next = s->space.wiping;
            s->space.wiping = x;
        }
    }
}

/* [lock] Takes the first places that wait to be wiped, about WIPE_AT_ONCE bytes. */
static struct extent *places_take(struct store *s)
{
    struct extent *list = s->space.wiping, **end = &s->space.wiping;
    for (uint64_t n = 0; *end != NULL && n < WIPE_AT_ONCE; end = &(*end)->next)
        n += extent_bytes(*end);
    s->space.wiping = *end;
    *end = NULL;
    return list;
}

/* [wipe_lock] Wipes some of the places. *more gets whether others still wait. */
static int wipe_some(struct store *s, bool *more, struct err *err)
{
    struct extent *list = NULL;
    *more = false;
    pthread_mutex_lock(&s->lock);
    bool wanted = s->space.wiping != NULL;
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
    *more = s->space.wiping != NULL;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int store_wipe_some(struct store *s, struct err *err)
{
    bool more;
    pthread_mutex_lock(&s->erasing.wipe_lock);
    int rc = wipe_some(s, &more, err);
    pthread_mutex_unlock(&s->erasing.wipe_lock);
    return rc;
}

int store_wipe(struct store *s, struct err *err)
{
    bool more = true;
    int rc = 0;
    while (rc == 0 && more) {
        /* The lock is given up after each part, so a thread that needs room waits for one part
         * only. */
        pthread_mutex_lock(&s->erasing.wipe_lock);
        rc = wipe_some(s, &more, err);
        pthread_mutex_unlock(&s->erasing.wipe_lock);
    }
    return rc;
}

void store_wipe_rest(struct store *s)
{
    struct err why = {0};
    bool more;
    if (s->home.read_only || pthread_mutex_trylock(&s->erasing.wipe_lock) != 0)
        return; /* another thread wipes */
    if (wipe_some(s, &more, &why) != 0)
        log_info("erased chunks could not be wiped yet: %s", why.msg);
    pthread_mutex_unlock(&s->erasing.wipe_lock);
}

/* --- remains in free space -------------------------------------------------------------------- */

static char *marker_path(const struct store *s)
{
    return home_path(s->home.dirs[0], STORE_WIPE_MARKER);
}

int store_mark_remains(struct store *s, struct err *err)
{
    if (!in_files(s))
        return 0;
    pthread_mutex_lock(&s->lock);
    bool wanted = space_has_remains(&s->space, s->media->n_devices);
    pthread_mutex_unlock(&s->lock);
    if (!wanted)
        return 0;
    char *path = marker_path(s);
    int rc = io_touch(s->home.io, path, err);
    free(path);
    return rc == -ENOSPC ? 0 : rc;
}

/* Free ranges of one segment, which are taken from the allocator while they are wiped. */
struct ranges {
    struct alloc_range *at;
    uint32_t n;
};

/* [lock] Takes the free ranges of a soiled segment up to the end of its file; with `tail` only the
 * last one, behind all used bytes. */
static void ranges_take(struct store *s, int device, uint32_t segment, bool tail,
                        struct ranges *out)
{
    struct alloc *a = &s->space.alloc[device];
    struct alloc_segment *g = &a->segments[segment];
    uint64_t size = s->media->ops->segment_size(s->media, device, segment);
    *out = (struct ranges){.at = xmalloc((g->n_free + 1) * sizeof out->at[0])};
    if (!g->soiled)
        return;
    g->soiled = tail; /* the other ranges are not wiped yet */
    for (uint32_t i = 0; i < g->n_free && g->free[i].begin < size; i++) {
        struct alloc_range r = g->free[i];
        if (tail && r.begin < alloc_end(a, segment))
            continue;
        uint64_t file_end = round_up(size, STORE_ALIGN);
        r.end = MIN(r.end, file_end);
        out->at[out->n++] = r;
    }
    for (uint32_t i = 0; i < out->n; i++) {
        int rc = alloc_claim(a, segment, out->at[i].begin,
                             out->at[i].end - out->at[i].begin);
        CHECK(rc == 0);
    }
}

/* Wipes the ranges that ranges_take gives and returns them to the allocator. After an error the
 * segment is soiled again. */
static int segment_wipe(struct store *s, int device, uint32_t segment, bool tail,
                        struct err *err)
{
    struct media *m = s->media;
    struct ranges r;
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    ranges_take(s, device, segment, tail, &r);
    pthread_mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < r.n && rc == 0; i++)
        rc = m->ops->wipe(m, device, segment, r.at[i].begin, r.at[i].end, err);
    if (rc == 0 && r.n > 0)
        rc = store_sync_wiped(s, err);
    for (uint32_t i = 0; i < r.n && rc == 0; i++)
        m->ops->punch(m, device, segment, r.at[i].begin, r.at[i].end);
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < r.n; i++)
        alloc_give(&s->space.alloc[device], segment, r.at[i].begin,
                   r.at[i].end - r.at[i].begin);
    if (rc != 0)
        alloc_soil(&s->space.alloc[device], segment);
    pthread_mutex_unlock(&s->lock);
    free(r.at);
    return rc;
}

static uint32_t n_segments_of(struct store *s, int device)
{
    pthread_mutex_lock(&s->lock);
    uint32_t n = s->space.alloc[device].n_segments;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void store_wipe_tails(struct store *s)
{
    int rc = in_files(s) ? 0 : -1;
    for (int d = 0; d < s->media->n_devices; d++)
        for (uint32_t i = 0; rc == 0 && i < n_segments_of(s, d); i++)
            rc = segment_wipe(s, d, i, true, NULL);
}

int store_wipe_remains(struct store *s, struct err *err)
{
    int rc = 0;
    if (!in_files(s))
        return 0;
    pthread_mutex_lock(&s->lock);
    bool wanted = space_has_remains(&s->space, s->media->n_devices);
    pthread_mutex_unlock(&s->lock);
    for (int d = 0; d < s->media->n_devices && wanted; d++)
        for (uint32_t i = 0; rc == 0 && i < n_segments_of(s, d); i++)
            rc = segment_wipe(s, d, i, false, err);
    if (rc != 0)
        return rc;
    char *path = marker_path(s);
    /* If a crash brings the marker back, the space is only wiped once more. */
    rc = io_unlink(s->home.io, path, err);
    free(path);
    return rc == -ENOENT ? 0 : rc;
}

/* --- at open ---------------------------------------------------------------------------------- */

/* Enters a place. Returns ERR_CORRUPT if the place overlaps a stored extent. */
static int place_enter(void *arg, const struct index_place *place)
{
    struct store *s = arg;
    uint64_t n_bytes = (uint64_t)place->n_blocks * STORE_ALIGN;
    int rc = alloc_claim(&s->space.alloc[place->device], place->segment, place->offset,
                         n_bytes);
    if (rc != 0)
        return rc;
    struct extent *x = xcalloc(1, sizeof *x);
    *x = (struct extent){.id = place->id,
                         .offset = place->offset,
                         .segment = place->segment,
                         .n_blocks = place->n_blocks,
                         .device = (uint8_t)place->device,
                         .state = EXTENT_FREEING,
                         .wipe = 1};
    space_wipe_later(&s->space, x);
    s->space.used_bytes += n_bytes;
    return 0;
}

int store_load_wipes(struct store *s, struct err *err)
{
    return index_load_wipes(s->ledger.index, place_enter, s, err);
}

void store_soil_all(struct store *s)
{
    struct media *m = s->media;
    for (int d = 0; d < m->n_devices; d++)
        for (uint32_t i = 0; i < m->ops->n_segments(m, d); i++)
            if (m->ops->segment_size(m, d, i) > 0)
                alloc_soil(&s->space.alloc[d], i);
}

int store_commit_wiped(struct store *s, unsigned what, struct err *err)
{
    int rc = store_commit_run(s, what, err);
    if (rc == 0)
        rc = store_wipe(s, err);
    return rc == 0 ? store_wipe_remains(s, err) : rc;
}

void store_finish_erase(struct store *s)
{
    struct err why = {0};
    store_wipe_rest(s);
    if (s->home.read_only || !in_files(s))
        return;
    char *path = marker_path(s);
    if (io_exists(s->home.io, path) && store_wipe_remains(s, &why) != 0)
        log_info("free space could not be wiped yet: %s", why.msg);
    free(path);
}
