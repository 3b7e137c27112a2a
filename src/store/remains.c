/* remains.c - bytes of former extents in free space, and wiping them.
 *
 * The space of an extent that is evicted, superseded, damaged or never committed is given back
 * unwiped, because wiping costs writes and a sync. Its segment is then *soiled*: its free
 * ranges may hold state and token ids. Every erase wipes the free ranges of all soiled segments,
 * so that a deleted conversation leaves no older copy behind. A killed process may have left
 * bytes anywhere, so all segments are soiled at open.
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
    return s->index != NULL;
}

/* [lock] Returns whether free space may hold bytes of former extents. */
static bool has_remains(const struct store *s)
{
    for (int d = 0; d < s->media->n_devices; d++)
        for (uint32_t i = 0; i < s->alloc[d].n_segments; i++)
            if (s->alloc[d].segments[i].soiled)
                return true;
    return s->freeing != NULL; /* the erase's own commit frees the space of these extents */
}

static char *marker_path(const struct store *s)
{
    return store_path(s->dirs[0], STORE_WIPE_MARKER);
}

int store_mark_remains(struct store *s, struct err *err)
{
    struct io_file *file = NULL;
    if (!in_files(s))
        return 0;
    pthread_mutex_lock(&s->lock);
    bool wanted = has_remains(s);
    pthread_mutex_unlock(&s->lock);
    if (!wanted)
        return 0;
    char *path = marker_path(s);
    int rc = io_file_open(s->io, path, IO_CREATE, &file, err);
    io_file_close(file);
    if (rc == 0)
        rc = io_dir_sync(s->io, s->dirs[0], err);
    free(path);
    return rc == -ENOSPC ? 0 : rc;
}

/* --- wiping ----------------------------------------------------------------------------------- */

/* Free ranges of one segment, which are taken from the allocator while they are wiped. */
struct ranges {
    struct alloc_range *at;
    uint32_t n;
};

/* [lock] Takes the free ranges of a soiled segment up to the end of its file. tail: only the last
 * one, behind all used bytes. */
static void ranges_take(struct store *s, int device, uint32_t segment, bool tail,
                        struct ranges *out)
{
    struct alloc *a = &s->alloc[device];
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
        alloc_give(&s->alloc[device], segment, r.at[i].begin, r.at[i].end - r.at[i].begin);
    if (rc != 0)
        alloc_soil(&s->alloc[device], segment);
    pthread_mutex_unlock(&s->lock);
    free(r.at);
    return rc;
}

static uint32_t n_segments_of(struct store *s, int device)
{
    pthread_mutex_lock(&s->lock);
    uint32_t n = s->alloc[device].n_segments;
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
    bool wanted = has_remains(s);
    pthread_mutex_unlock(&s->lock);
    for (int d = 0; d < s->media->n_devices && wanted; d++)
        for (uint32_t i = 0; rc == 0 && i < n_segments_of(s, d); i++)
            rc = segment_wipe(s, d, i, false, err);
    if (rc != 0)
        return rc;
    char *path = marker_path(s);
    /* If a crash brings the marker back, the space is only wiped once more. */
    rc = io_unlink(s->io, path, err);
    free(path);
    return rc == -ENOENT ? 0 : rc;
}

/* --- at open ---------------------------------------------------------------------------------- */

void store_soil_all(struct store *s)
{
    struct media *m = s->media;
    for (int d = 0; d < m->n_devices; d++)
        for (uint32_t i = 0; i < m->ops->n_segments(m, d); i++)
            if (m->ops->segment_size(m, d, i) > 0)
                alloc_soil(&s->alloc[d], i);
}

void store_finish_erase(struct store *s)
{
    struct err why = {0};
    store_wipe_rest(s);
    if (s->read_only || !in_files(s))
        return;
    char *path = marker_path(s);
    if (io_exists(s->io, path) && store_wipe_remains(s, &why) != 0)
        log_info("free space could not be wiped yet: %s", why.msg);
    free(path);
}
