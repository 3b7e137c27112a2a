/* files.c - media in files (media.h): per device a folder of segments seg-000000.hc,
 * seg-000001.hc..
 *
 * Owns the segment files and the writers (a queue with a ring of aligned buffers each). Files
 * grow in preallocated steps, so that a full disk shows before data is written.
 *
 * Invariants:
 * 1. A segment's `dirty` is set after its write has completed and before the writer returns.
 *    sync clears it before it syncs, and sets it again if that fails.
 * 2. An open file stays open until close, or until it is cut to nothing, when no extent lies in
 *    it. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/copy.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "io/io.h"
#include "io/io_erase.h"
#include "store/alloc.h"
#include "store/media.h"

/* Pieces in a writer's ring. 1 MiB requests at depth 4 to 8 were measured best. The first piece is
 * written last, because it begins with the header, which holds the checksums of everything behind
 * it. */
#define WRITER_PIECES 8

struct segment {
    struct io_file *file;
    uint64_t size_bytes;
    bool dirty;
};

struct device {
    char *dir;
    struct segment **segments; /* entry i is NULL if segment i has no file */
    uint32_t n_segments;
    /* The name of a file in this folder may not be durable. Also true at open, because a killed
     * process may have left files whose names were never synced. */
    bool dir_dirty;
};

struct writer {
    struct writer *next;
    int64_t t_used; /* of an idle one (clock_now_ns) */
    struct io_queue *queue;
    uint8_t *buffer; /* [WRITER_PIECES * IO_PIECE_BYTES] */
    uint8_t *sealed; /* [sealed_bytes] an encrypted record */
    size_t sealed_bytes;
    struct io_req reqs[WRITER_PIECES];
    bool busy[WRITER_PIECES];
};

struct files {
    struct media base;
    struct io *io;
    unsigned open_flags;
    uint64_t max_step_bytes, max_bytes;
    int64_t stuck_ns;
    const struct seal *seal;
    struct owner_keys *owners;
    /* grow_lock is held while files are made, grow or are cut. `lock` protects the fields below and
     * is never held during I/O, since readers need it. grow_lock is taken before `lock`. */
    pthread_mutex_t grow_lock, lock;
    struct device devices[STORE_MAX_DEVICES];
    struct writer *idle;
};

static struct files *files_of(struct media *m)
{
    return (struct files *)m;
}

/* --- segments --------------------------------------------------------------------------------- */

static char *segment_path(const struct device *d, uint32_t segment)
{
    return xasprintf("%s/seg-%06u.hc", d->dir, segment);
}

/* Raises the limit on descriptors. Returns whether it was raised. With one segment per GiB the
 * usual soft limit of 1024 is soon reached. */
static bool descriptors_raise(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max)
        return false;
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

/* [grow_lock] Opens or creates a segment's file and enters it into the table. */
static int segment_open(struct files *f, struct device *d, uint32_t segment, unsigned flags,
                        struct err *err)
{
    char *path = segment_path(d, segment);
    struct segment *seg = xcalloc(1, sizeof *seg);
    int rc = io_file_open(f->io, path, f->open_flags | flags, &seg->file, err);
    if (rc == -EMFILE && descriptors_raise())
        rc = io_file_open(f->io, path, f->open_flags | flags, &seg->file, err);
    free(path);
    if (rc == 0)
        rc = io_file_size(seg->file, &seg->size_bytes, err);

    pthread_mutex_lock(&f->lock);
    /* dir_dirty is set after the creation: before it, a sync could clear it too early. It is set
     * even if the creation failed, because the name may exist. */
    d->dir_dirty = true;
    if (rc == 0 && segment >= d->n_segments) {
        d->segments = xrealloc(d->segments, (segment + 1) * sizeof d->segments[0]);
        while (d->n_segments <= segment)
            d->segments[d->n_segments++] = NULL;
    }
    if (rc == 0)
        d->segments[segment] = seg;
    pthread_mutex_unlock(&f->lock);
    if (rc != 0) {
        io_file_close(seg->file);
        free(seg);
    }
    return rc;
}

static struct segment *segment_get(struct files *f, int device, uint32_t segment)
{
    struct device *d = &f->devices[device];
    pthread_mutex_lock(&f->lock);
    struct segment *seg = segment < d->n_segments ? d->segments[segment] : NULL;
    pthread_mutex_unlock(&f->lock);
    return seg;
}

static void segment_resized(struct files *f, struct segment *seg, uint64_t size_bytes)
{
    pthread_mutex_lock(&f->lock);
    seg->size_bytes = size_bytes;
    seg->dirty = true;
    pthread_mutex_unlock(&f->lock);
}

/* Returns the number of bytes by which a file is preallocated at a time. It grows with the file, so
 * that a small store stays small and a large one does not ask for space with every chunk. */
static uint64_t step_of(const struct files *f, uint64_t end_bytes)
{
    uint64_t step = round_up(end_bytes / 4, STORE_ALIGN);
    return MIN(step, f->max_step_bytes);
}

/* Space that segment files leave free on the index's device. The index's log grows to 4 MiB before
 * it begins again. On a disk without room for that, not even evicted chunks could be freed. */
#define INDEX_RESERVE_BYTES ((uint64_t)8 << 20)

static int reserve_check(struct files *f, int device, uint64_t n_bytes, struct err *err)
{
    uint64_t free_bytes, total_bytes;
    /* If the free space is unknown, the write itself reports a full disk. */
    if (device != 0 ||
        io_space(f->io, f->devices[0].dir, &free_bytes, &total_bytes, NULL) != 0)
        return 0;
    uint64_t reserve = total_bytes / 16 < INDEX_RESERVE_BYTES ? total_bytes / 16
                                                              : INDEX_RESERVE_BYTES;
    if (free_bytes >= reserve && free_bytes - reserve >= n_bytes)
        return 0;
    return err_set(err, -ENOSPC,
                   "%s: No space left on device: %llu KiB are free, and %llu are kept for "
                   "the index",
                   f->devices[0].dir, (unsigned long long)free_bytes >> 10,
                   (unsigned long long)reserve >> 10);
}

/* [grow_lock] Returns by how many bytes the files may still grow. */
static uint64_t growth_left(struct files *f)
{
    uint64_t n_bytes = 0;
    if (f->max_bytes == 0)
        return UINT64_MAX;
    for (int d = 0; d < f->base.n_devices; d++)
        for (uint32_t i = 0; i < f->devices[d].n_segments; i++)
            if (f->devices[d].segments[i] != NULL)
                n_bytes += f->devices[d].segments[i]->size_bytes;
    return n_bytes < f->max_bytes ? f->max_bytes - n_bytes : 0;
}

/* [grow_lock] Makes the file at least end_bytes long, and one step longer if there is room.
 * end_bytes is a multiple of STORE_ALIGN. The file's present size may be none after a crash.
 * Returns -ENOSPC if the disk is full, ERR_LIMIT if the files reach their cap. */
static int segment_grow(struct files *f, int device, struct segment *seg,
                        uint64_t end_bytes, struct err *err)
{
    if (seg->size_bytes >= end_bytes)
        return 0;
    uint64_t want = MIN(end_bytes + step_of(f, end_bytes), f->base.segment_bytes);
    uint64_t left = growth_left(f);
    if (end_bytes - seg->size_bytes > left)
        return err_set(err, ERR_LIMIT,
                       "the store's files would exceed its cap of %llu bytes",
                       (unsigned long long)f->max_bytes);
    if (want - seg->size_bytes > left)
        want = (seg->size_bytes + left) / STORE_ALIGN * STORE_ALIGN;
    if (reserve_check(f, device, want - seg->size_bytes, NULL) != 0)
        want = end_bytes;
    int rc = reserve_check(f, device, want - seg->size_bytes, err);
    if (rc != 0)
        return rc;
    rc = io_file_allocate(seg->file, seg->size_bytes, want - seg->size_bytes, err);
    if (rc == -ENOSPC && want > end_bytes) {
        want = end_bytes;
        rc = io_file_allocate(seg->file, seg->size_bytes, want - seg->size_bytes, err);
    }
    if (rc == -EOPNOTSUPP) {
        want = end_bytes; /* the write itself will extend the file */
        rc = 0;
    }
    if (rc == 0)
        segment_resized(f, seg, want);
    return rc;
}

/* Opens or creates the segment's file, and makes it at least end_bytes long. Returns 0 with *out or
 * the error of segment_grow or of the device. */
static int segment_for_write(struct files *f, int device, uint32_t segment,
                             uint64_t end_bytes, struct segment **out, struct err *err)
{
    int rc = 0;
    pthread_mutex_lock(&f->grow_lock);
    *out = segment_get(f, device, segment);
    if (*out == NULL) {
        rc = segment_open(f, &f->devices[device], segment, IO_CREATE, err);
        *out = segment_get(f, device, segment);
    }
    if (rc == 0)
        rc = segment_grow(f, device, *out, end_bytes, err);
    pthread_mutex_unlock(&f->grow_lock);
    return rc;
}

static void dirty_set(struct files *f, bool *flag)
{
    pthread_mutex_lock(&f->lock);
    *flag = true;
    pthread_mutex_unlock(&f->lock);
}

/* --- writing ---------------------------------------------------------------------------------- */

static void writer_free(struct writer *w)
{
    io_queue_close(w->queue);
    if (w->buffer != NULL)
        mem_unmap(w->buffer, (size_t)WRITER_PIECES * IO_PIECE_BYTES);
    free(w->sealed);
    free(w);
}

static int writer_get(struct files *f, struct writer **out, struct err *err)
{
    pthread_mutex_lock(&f->lock);
    struct writer *w = f->idle;
    if (w != NULL)
        f->idle = w->next;
    pthread_mutex_unlock(&f->lock);
    if (w == NULL) {
        struct io_buffer b = {.length = (size_t)WRITER_PIECES * IO_PIECE_BYTES};
        w = xcalloc(1, sizeof *w);
        w->buffer = mem_map(b.length);
        int rc = w->buffer == NULL ? err_set(err, -ENOMEM, "no memory for write buffers")
                                   : io_queue_open(f->io, WRITER_PIECES, &w->queue, err);
        if (rc != 0) {
            writer_free(w);
            return rc;
        }
        b.base = w->buffer;
        (void)io_queue_register_buffers(w->queue, &b, 1, NULL);
    }
    *out = w;
    return 0;
}

/* An idle writer is freed after this time. Its 8 MiB take 3 ms to provide again. */
#define WRITER_REST_NS ((int64_t)10 * 1000000000)

static void files_rest(struct media *m)
{
    struct files *f = files_of(m);
    struct writer *old = NULL;
    int64_t now = clock_now_ns();
    pthread_mutex_lock(&f->lock);
    for (struct writer **at = &f->idle, *w; (w = *at) != NULL;) {
        if (now - w->t_used < WRITER_REST_NS) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        w->next = old;
        old = w;
    }
    pthread_mutex_unlock(&f->lock);
    for (struct writer *next; old != NULL; old = next) {
        next = old->next;
        writer_free(old);
    }
}

static void writer_put(struct files *f, struct writer *w)
{
    w->t_used = clock_now_ns();
    pthread_mutex_lock(&f->lock);
    w->next = f->idle;
    f->idle = w;
    pthread_mutex_unlock(&f->lock);
}

/* One extent on its way through the ring. */
struct stream {
    struct writer *w;
    struct io_file *file;
    uint64_t begin;    /* offset of the extent in the file */
    uint64_t offset;   /* offset of the current piece in the file */
    unsigned piece;    /* piece that is being filled */
    size_t fill_bytes; /* bytes of that piece that are filled */
    int status;        /* the first error, or 0 */
    uint8_t *copy;     /* receives the records as well; NULL: no copy */
    struct files *files;
    const struct seal *of_owner; /* encrypts records and tokens; NULL: they are plain */
    int64_t stuck_ns;
    struct err *err;
};

static uint8_t *piece_buf(const struct stream *st, unsigned piece)
{
    return st->w->buffer + (size_t)piece * IO_PIECE_BYTES;
}

/* Waits for at least one request, or for all requests in flight. The first error goes to
 * st->status. */
static void stream_reap(struct stream *st, bool all)
{
    do {
        struct io_req *done[WRITER_PIECES];
        unsigned n;
        struct err queue_err = {0};
        int rc = io_queue_wait(st->w->queue, 1, WRITER_PIECES, st->stuck_ns, done, &n,
                               &queue_err);
        /* Cancelled requests come back with the next wait, once the device releases them. */
        if (rc == 0 && n == 0) {
            if (st->status == 0)
                st->status = err_set(st->err, -ETIMEDOUT, "%s does not answer",
                                     io_file_path(st->file));
            io_queue_cancel(st->w->queue);
        }
        for (unsigned i = 0; i < n; i++) {
            st->w->busy[done[i] - st->w->reqs] = false;
            if (done[i]->result != 0 && st->status == 0)
                st->status = io_req_err(done[i], st->err);
        }
        if (rc != 0) { /* the queue itself is broken, so no request comes back any more */
            if (st->status == 0)
                st->status = err_set(st->err, rc, "%s", queue_err.msg);
            return;
        }
    } while (all && io_queue_outstanding(st->w->queue) > 0);
}

static void stream_submit(struct stream *st, unsigned piece, uint64_t offset,
                          size_t n_bytes)
{
    struct io_req *req = &st->w->reqs[piece];
    *req = (struct io_req){.file = st->file,
                           .op = IO_WRITE,
                           .buf = piece_buf(st, piece),
                           .length = n_bytes,
                           .offset = offset};
    st->w->busy[piece] = true;
    copy_past_caches_end();
    io_queue_submit(st->w->queue, &req, 1);
}

/* Submits the current, full piece, and goes on to a free one. Piece 0 is kept for the end. */
static void stream_next(struct stream *st)
{
    if (st->piece != 0)
        stream_submit(st, st->piece, st->offset, st->fill_bytes);
    st->offset += st->fill_bytes;
    st->fill_bytes = 0;
    for (;;) {
        for (unsigned i = 1; i < WRITER_PIECES; i++) {
            if (!st->w->busy[i]) {
                st->piece = i;
                return;
            }
        }
        stream_reap(st, false);
        if (st->status != 0)
            return;
    }
}

/* Appends n bytes (zeros if bytes is NULL). */
static void stream_put(struct stream *st, const uint8_t *bytes, size_t n)
{
    while (n > 0 && st->status == 0) {
        if (st->fill_bytes == IO_PIECE_BYTES) {
            stream_next(st);
            continue;
        }
        size_t part = MIN(IO_PIECE_BYTES - st->fill_bytes, n);
        uint8_t *to = piece_buf(st, st->piece) + st->fill_bytes;
        if (bytes != NULL) {
            /* the device reads this memory next, not the processor */
            copy_past_caches(to, bytes, part);
            bytes += part;
        } else {
            memset(to, 0, part);
        }
        st->fill_bytes += part;
        n -= part;
    }
}

/* Appends zeros up to an offset in the extent. */
static void stream_pad(struct stream *st, uint64_t offset)
{
    stream_put(st, NULL, st->begin + offset - (st->offset + st->fill_bytes));
}

/* Encrypts the bytes of one record. Returns NULL, with an error in st, if that fails. */
static const void *stream_seal(struct stream *st, const struct sha256 *key,
                               const struct chunk_record *r,
                               const struct store_record *from, const void *bytes)
{
    struct writer *w = st->w;
    uint8_t name[STORE_NAME_BYTES], salt[SEAL_SALT_BYTES];
    if (from->has_checksum && checksum64(bytes, from->n_bytes) != from->checksum) {
        st->status = err_set(st->err, ERR_CORRUPT,
                             "a record has changed since it was checked");
        return NULL;
    }
    if (w->sealed_bytes < r->n_bytes) {
        uint8_t *grown = mem_try_realloc(w->sealed, r->n_bytes);
        if (grown == NULL) {
            st->status = err_set(st->err, -ENOMEM, "no memory to encrypt a record");
            return NULL;
        }
        w->sealed = grown;
        w->sealed_bytes = r->n_bytes;
    }
    st->status = io_random(st->files->io, salt, sizeof salt, st->err);
    if (st->status != 0)
        return NULL;
    chunk_record_name(key, r->layer, r->kind, r->is_packed, name);
    seal_run(st->of_owner, name, sizeof name, salt, bytes, r->n_bytes - SEAL_BYTES,
             w->sealed);
    return w->sealed;
}

/* Takes or makes the bytes of one record, checksums them, and appends them, while they are in the
 * processor's caches. */
static void stream_record(struct stream *st, const struct sha256 *key,
                          struct chunk_record *r, const struct store_record *from)
{
    const void *bytes = media_record_bytes(from, st->err);
    if (bytes == NULL) {
        st->status = -EIO;
        return;
    }
    const bool seals = st->of_owner != NULL;
    if (seals && (bytes = stream_seal(st, key, r, from, bytes)) == NULL)
        return;
    r->checksum = seals ? checksum64(bytes, r->n_bytes)
                        : media_record_checksum(from, bytes);
    stream_pad(st, r->offset);
    stream_put(st, bytes, r->n_bytes);
    if (st->copy != NULL)
        copy_past_caches(st->copy + (r->offset - CHUNK_HEADER_BYTES), bytes, r->n_bytes);
}

/* Writes a whole extent. The piece with the header goes last, since it needs all checksums. Returns
 * 0 or the first error. No request is in flight then, unless the queue is broken. */
static int extent_write(struct stream *st, struct chunk_header *h,
                        const struct store_record *const *from)
{
    stream_put(st, NULL, CHUNK_HEADER_BYTES);
    for (int i = 0; i < h->n_records && st->status == 0; i++)
        stream_record(st, &h->key, &h->records[i], from[i]);
    if (st->status == 0)
        stream_pad(st, h->n_bytes);
    if (st->status == 0) {
        size_t first_bytes = MIN(h->n_bytes, IO_PIECE_BYTES);
        chunk_header_encode(h, piece_buf(st, 0));
        chunk_header_seal(st->files->seal, st->of_owner, piece_buf(st, 0));
        CHECK(st->offset + st->fill_bytes == h->offset + h->n_bytes);
        if (st->piece != 0)
            stream_submit(st, st->piece, st->offset, st->fill_bytes);
        stream_submit(st, 0, h->offset, first_bytes);
    }
    if (io_queue_outstanding(st->w->queue) > 0)
        stream_reap(st, true);
    return st->status;
}

static int files_write(struct media *m, struct chunk_header *h,
                       const struct store_record *const *from, uint8_t *copy,
                       struct err *err)
{
    struct files *f = files_of(m);
    struct segment *seg;
    struct writer *w;
    CHECK(h->device < m->n_devices && h->offset + h->n_bytes <= m->segment_bytes);
    const struct seal *of_owner = NULL;
    int rc = f->seal != NULL ? owner_keys_get(f->owners, h->owner, &of_owner, err) : 0;
    if (rc == 0)
        rc = segment_for_write(f, h->device, h->segment, h->offset + h->n_bytes, &seg, err);
    if (rc == 0)
        rc = writer_get(f, &w, err);
    if (rc != 0)
        return rc;
    struct stream st = {.w = w,
                        .file = seg->file,
                        .begin = h->offset,
                        .offset = h->offset,
                        .copy = copy,
                        .files = f,
                        .of_owner = of_owner,
                        .stuck_ns = f->stuck_ns,
                        .err = err};
    rc = extent_write(&st, h, from);
    if (io_queue_outstanding(w->queue) == 0) {
        memset(w->busy, 0, sizeof w->busy);
        writer_put(f, w);
    } else {
        writer_free(w); /* waits for requests in flight */
    }
    dirty_set(f, &seg->dirty);
    return rc;
}

/* --- syncing ---------------------------------------------------------------------------------- */

/* Clears the mark of the next dirty segment and returns it; NULL if no segment is dirty. */
static struct segment *dirty_take(struct files *f)
{
    struct segment *found = NULL;
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < f->base.n_devices && found == NULL; i++) {
        struct device *d = &f->devices[i];
        for (uint32_t j = 0; j < d->n_segments && found == NULL; j++)
            if (d->segments[j] != NULL && d->segments[j]->dirty)
                found = d->segments[j];
    }
    if (found != NULL)
        found->dirty = false;
    pthread_mutex_unlock(&f->lock);
    return found;
}

static int folder_sync(struct files *f, struct device *d, struct err *err)
{
    pthread_mutex_lock(&f->lock);
    bool dirty = d->dir_dirty;
    d->dir_dirty = false;
    pthread_mutex_unlock(&f->lock);
    int rc = dirty ? io_dir_sync(f->io, d->dir, err) : 0;
    if (rc != 0) /* the folder stays dirty, so no later sync succeeds without syncing it */
        dirty_set(f, &d->dir_dirty);
    return rc;
}

static int files_sync(struct media *m, struct err *err)
{
    struct files *f = files_of(m);
    int rc = 0;
    for (struct segment *seg; rc == 0 && (seg = dirty_take(f)) != NULL;) {
        rc = io_file_sync(seg->file, err);
        if (rc != 0)
            dirty_set(f, &seg->dirty);
    }
    for (int i = 0; rc == 0 && i < m->n_devices; i++)
        rc = folder_sync(f, &f->devices[i], err);
    return rc;
}

/* --- reading ---------------------------------------------------------------------------------- */

static struct io_file *files_file(struct media *m, int device, uint32_t segment)
{
    struct segment *seg = segment_get(files_of(m), device, segment);
    CHECK(seg != NULL); /* the segment has a file, because an extent lies in it */
    return seg->file;
}

size_t media_sectors(const struct io_file *file, size_t n_bytes, uint64_t *offset)
{
    uint64_t align = file != NULL ? io_file_read_align(file) : 1;
    uint64_t end = round_up(*offset + n_bytes, align);
    *offset -= *offset % align;
    return end - *offset;
}

static int files_read(struct media *m, int device, uint32_t segment, uint64_t offset,
                      void *buf, size_t n, struct err *err)
{
    CHECK((uintptr_t)buf % STORE_ALIGN == 0 && n % STORE_ALIGN == 0 &&
          offset % STORE_ALIGN == 0);
    return io_file_pread(files_file(m, device, segment), buf, n, offset, err);
}

static const uint8_t *files_at(struct media *m, int device, uint32_t segment,
                               uint64_t offset)
{
    (void)m, (void)device, (void)segment, (void)offset;
    return NULL;
}

static uint32_t files_n_segments(struct media *m, int device)
{
    struct files *f = files_of(m);
    pthread_mutex_lock(&f->lock);
    uint32_t n = f->devices[device].n_segments;
    pthread_mutex_unlock(&f->lock);
    return n;
}

static uint64_t files_segment_size(struct media *m, int device, uint32_t segment)
{
    struct files *f = files_of(m);
    struct segment *seg = segment_get(f, device, segment);
    if (seg == NULL)
        return 0;
    pthread_mutex_lock(&f->lock);
    uint64_t n = seg->size_bytes;
    pthread_mutex_unlock(&f->lock);
    return n;
}

/* --- giving space back to the file system ----------------------------------------------------- */

/* [grow_lock] Removes a segment's file. */
static int segment_remove(struct files *f, struct device *d, uint32_t segment,
                          struct err *err)
{
    char *path = segment_path(d, segment);
    pthread_mutex_lock(&f->lock);
    struct segment *seg = d->segments[segment];
    d->segments[segment] = NULL;
    pthread_mutex_unlock(&f->lock);
    io_file_close(seg->file);
    free(seg);
    int rc = io_erase(f->io, path, err);
    dirty_set(f, &d->dir_dirty);
    free(path);
    return rc;
}

static int files_cut(struct media *m, int device, uint32_t segment, uint64_t end_bytes,
                     struct err *err)
{
    struct files *f = files_of(m);
    int rc = 0;
    pthread_mutex_lock(&f->grow_lock);
    struct segment *seg = segment_get(f, device, segment);
    if (seg != NULL && end_bytes == 0) {
        rc = segment_remove(f, &f->devices[device], segment, err);
    } else if (seg != NULL && seg->size_bytes > end_bytes) {
        rc = io_file_cut(seg->file, end_bytes, err);
        segment_resized(f, seg, rc == 0 ? end_bytes : seg->size_bytes);
    }
    pthread_mutex_unlock(&f->grow_lock);
    return rc;
}

/* Returns the segment, and lowers *end to its file's end: a damaged file may be shorter than it
 * should be. Returns NULL if the file has nothing in [begin, *end). */
static struct segment *part_of(struct files *f, int device, uint32_t segment,
                               uint64_t begin, uint64_t *end)
{
    struct segment *seg = segment_get(f, device, segment);
    if (seg == NULL)
        return NULL;
    pthread_mutex_lock(&f->lock);
    *end = MIN(*end, round_up(seg->size_bytes, STORE_ALIGN));
    pthread_mutex_unlock(&f->lock);
    return begin < *end ? seg : NULL;
}

static int files_wipe(struct media *m, int device, uint32_t segment, uint64_t begin,
                      uint64_t end, struct err *err)
{
    struct files *f = files_of(m);
    struct segment *seg = part_of(f, device, segment, begin, &end);
    bool any = false;
    int rc = seg != NULL ? io_file_zero(seg->file, begin, end, &any, err) : 0;
    if (any)
        dirty_set(f, &seg->dirty);
    return rc;
}

/* A failure only leaves zeros where a hole could be. */
static void files_punch(struct media *m, int device, uint32_t segment, uint64_t begin,
                        uint64_t end)
{
    struct segment *seg = part_of(files_of(m), device, segment, begin, &end);
    if (seg != NULL)
        (void)io_file_punch(seg->file, begin, end - begin, NULL);
}

/* --- life cycle ------------------------------------------------------------------------------- */

static void files_close(struct media *m)
{
    struct files *f = files_of(m);
    for (int i = 0; i < m->n_devices; i++) {
        struct device *d = &f->devices[i];
        for (uint32_t j = 0; j < d->n_segments; j++) {
            if (d->segments[j] != NULL)
                io_file_close(d->segments[j]->file);
            free(d->segments[j]);
        }
        free(d->segments);
        free(d->dir);
    }
    for (struct writer *w = f->idle, *next; w != NULL; w = next) {
        next = w->next;
        writer_free(w);
    }
    pthread_mutex_destroy(&f->grow_lock);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

static const struct media_ops files_ops = {
    .close = files_close,
    .write = files_write,
    .sync = files_sync,
    .read = files_read,
    .at = files_at,
    .file = files_file,
    .n_segments = files_n_segments,
    .segment_size = files_segment_size,
    .cut = files_cut,
    .wipe = files_wipe,
    .punch = files_punch,
    .rest = files_rest,
};

/* Reads a segment's number from a name like "seg-000000.hc". Returns false for others. */
static bool segment_of_name(const char *name, uint32_t *segment)
{
    unsigned n;
    char again[32];
    if (sscanf(name, "seg-%6u.hc", &n) != 1 || n >= ALLOC_MAX_SEGMENTS)
        return false;
    snprintf(again, sizeof again, "seg-%06u.hc", n);
    *segment = n;
    return strcmp(name, again) == 0;
}

static int device_open(struct files *f, struct device *d, struct err *err)
{
    struct io_names names;
    int rc = io_list(f->io, d->dir, &names, err);
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < names.n && rc == 0; i++) {
        uint32_t segment;
        if (segment_of_name(names.name[i], &segment))
            rc = segment_open(f, d, segment, 0, err);
    }
    io_names_free(&names);
    return rc;
}

int files_open(const struct files_opts *opts, struct media **out, struct err *err)
{
    struct files *f = xcalloc(1, sizeof *f);
    f->base = (struct media){&files_ops, opts->n_dirs, opts->segment_bytes};
    f->io = opts->io;
    f->open_flags = (opts->read_only ? IO_READ_ONLY : 0u) |
                    (opts->no_direct ? 0u : IO_DIRECT);
    f->max_step_bytes = opts->max_step_bytes;
    f->max_bytes = opts->max_bytes;
    f->stuck_ns = opts->stuck_ns;
    f->seal = opts->seal;
    f->owners = opts->owners;
    pthread_mutex_init(&f->grow_lock, NULL);
    pthread_mutex_init(&f->lock, NULL);
    for (int i = 0; i < opts->n_dirs; i++)
        f->devices[i] = (struct device){.dir = xstrdup(opts->dirs[i]), .dir_dirty = true};
    int rc = 0;
    for (int i = 0; i < opts->n_dirs && rc == 0; i++)
        rc = device_open(f, &f->devices[i], err);
    if (rc != 0) {
        files_close(&f->base);
        return rc;
    }
    *out = &f->base;
    return 0;
}
