/* group.c - see tensor/group.h: memory, streams and events of several devices as one.
 *
 * Invariants:
 *  1. Extents do not overlap in the addresses of their stages' rank 0: peers have addresses of
 *     their own (peers.h).  So an address identifies one extent or host memory.
 *  2. All streams of a group stream are of one kind; stream i belongs to device i. */
#include "mpi/group_impl.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "mpi/messages.h"

/* --- addresses -------------------------------------------------------------------------------- */

/* [lock held] Returns the index of the extent that contains p, an address of rank 0; -1: p is host
 * memory. */
static int extent_of(const struct group *g, const uint8_t *p)
{
    int lo = 0, hi = g->n_extents;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (g->extents[mid].at[0] <= p)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo > 0 && p < g->extents[lo - 1].at[0] + g->extents[lo - 1].bytes ? lo - 1 : -1;
}

/* Returns the stage to whose memory p belongs; -1: p is host memory. */
static int home_of(struct group *g, const void *p)
{
    pthread_rwlock_rdlock(&g->lock);
    int i = extent_of(g, p), stage = i >= 0 ? g->extents[i].stage : -1;
    pthread_rwlock_unlock(&g->lock);
    return stage;
}

int group_stage(struct group *g, const void *p)
{
    int home = g->base.n_stages > 1 ? home_of(g, p) : 0;
    return home >= 0 ? home : 0;
}

void *group_address(struct group *g, const void *p, int stage, int r)
{
    const uint8_t *at = p;
    if (p == NULL || (r == 0 && g->base.n_stages == 1))
        return (void *)(uintptr_t)p;
    pthread_rwlock_rdlock(&g->lock);
    int i = extent_of(g, at);
    if (i >= 0) {
        CHECK(g->extents[i].stage == stage);
        at = g->extents[i].at[r] + (at - g->extents[i].at[0]);
    }
    pthread_rwlock_unlock(&g->lock);
    return (void *)(uintptr_t)at;
}

static void extent_add(struct group *g, const struct extent *e)
{
    pthread_rwlock_wrlock(&g->lock);
    if (g->n_extents == g->cap_extents) {
        g->cap_extents = g->cap_extents > 0 ? 2 * g->cap_extents : 64;
        g->extents = xrealloc(g->extents, (size_t)g->cap_extents * sizeof *g->extents);
    }
    int i = g->n_extents++;
    for (; i > 0 && g->extents[i - 1].at[0] > e->at[0]; i--)
        g->extents[i] = g->extents[i - 1];
    g->extents[i] = *e;
    pthread_rwlock_unlock(&g->lock);
}

static struct extent extent_take(struct group *g, const uint8_t *p)
{
    pthread_rwlock_wrlock(&g->lock);
    int i = extent_of(g, p);
    CHECK(i >= 0 && g->extents[i].at[0] == p);
    struct extent e = g->extents[i];
    memmove(&g->extents[i], &g->extents[i + 1],
            (size_t)(--g->n_extents - i) * sizeof *g->extents);
    pthread_rwlock_unlock(&g->lock);
    return e;
}

void *group_rank_address(const struct device *d, const void *p, int rank)
{
    struct group *g = group_of(d);
    return group_address(g, p, group_stage(g, p), rank);
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Returns the index of a stage's first device. */
static int first_of(const struct group *g, int stage)
{
    return stage * g->base.n_ranks;
}

static void free_on_ranks(struct group *g, const struct extent *e, int n)
{
    for (int r = 0; r < n; r++) {
        struct buf b = {e->at[r], e->bytes, MEM_DEVICE};
        int i = first_of(g, e->stage) + r;
        buf_free(g->rank[i], &b);
    }
}

static int alloc_on_stage(struct group *g, int stage, size_t bytes, struct buf *out,
                          struct err *err)
{
    struct extent e = {.bytes = bytes != 0 ? bytes : 1, .stage = stage};
    *out = (struct buf){0};
    for (int r = 0; r < g->base.n_ranks; r++) {
        struct buf b;
        int i = first_of(g, stage) + r;
        int rc = buf_alloc(g->rank[i], MEM_DEVICE, e.bytes, &b, err);
        if (rc != 0) {
            free_on_ranks(g, &e, r);
            return err_wrap(err, "device %d of %d", i, g->n);
        }
        e.at[r] = b.ptr;
    }
    extent_add(g, &e);
    *out = (struct buf){e.at[0], bytes, MEM_DEVICE};
    return 0;
}

static int group_buf_alloc(struct device *d, enum mem_kind kind, size_t bytes,
                           struct buf *out, struct err *err)
{
    struct group *g = group_of(d);
    return kind == MEM_DEVICE ? alloc_on_stage(g, 0, bytes, out, err)
                              : buf_alloc(g->rank[0], kind, bytes, out, err);
}

int group_stage_alloc(struct device *d, int stage, size_t bytes, struct buf *out,
                      struct err *err)
{
    return alloc_on_stage(group_of(d), stage, bytes, out, err);
}

static void group_buf_free(struct device *d, struct buf *b)
{
    struct group *g = group_of(d);
    if (b->kind != MEM_DEVICE) {
        buf_free(g->rank[0], b);
        return;
    }
    struct extent e = extent_take(g, b->ptr);
    free_on_ranks(g, &e, d->n_ranks);
}

/* The processes of this machine share its memory; a rank's part stands for those of all ranks. */
static void group_memory(struct device *d, size_t *unused_bytes, size_t *total_bytes)
{
    device_memory(group_of(d)->rank[0], unused_bytes, total_bytes);
    *unused_bytes /= (size_t)peers_here();
    *total_bytes /= (size_t)peers_here();
}

/* --- streams ---------------------------------------------------------------------------------- */

/* Returns the streams of a stage's ranks. */
static struct stream *const *streams_of(struct stream *s, int stage)
{
    return group_stream(s)->s + first_of(group_of(s->device), stage);
}

void group_settle(struct stream *s)
{
    struct group_stream *gs = group_stream(s);
    size_t n;
    for (size_t at = 0; at < gs->own.bytes; at += n) {
        const struct message *m = message_open(gs->own.at + at, &n, &gs->tables);
        int rc = atomic_load(&gs->s[0]->code) == 0 ? call_run(gs->s[0], &m->c) : 0;
        if (rc != 0)
            stream_fail(gs->s[0], rc, err_name(rc));
    }
    gs->own.bytes = 0;
}

static void group_stream_destroy(struct stream *s)
{
    struct group_stream *gs = group_stream(s);
    group_settle(s);
    for (int i = 0; i < gs->n; i++) {
        stream_destroy(gs->s[i]);
    }
    free(gs->own.at);
    free((void *)gs->tables);
    free(gs);
}

static int group_stream_create(struct device *d, enum stream_kind kind, struct stream **out,
                               struct err *err)
{
    struct group *g = group_of(d);
    struct group_stream *gs = xcalloc(1, sizeof *gs);
    gs->base.device = d;
    gs->base.kind = kind;
    for (int i = 0; i < g->n; i++) {
        gs->n = i + 1;
        int rc = stream_create(g->rank[i], kind, &gs->s[i], err);
        if (rc != 0) {
            group_stream_destroy(&gs->base);
            return err_wrap(err, "device %d of %d", i, g->n);
        }
    }
    *out = &gs->base;
    return 0;
}

int group_code(struct stream *s)
{
    const struct group_stream *gs = group_stream(s);
    for (int i = 0; i < gs->n; i++) {
        int rc = atomic_load(&gs->s[i]->code);
        if (rc != 0)
            stream_fail(s, rc, stream_fault(gs->s[i]));
    }
    return atomic_load(&s->code);
}

static int group_stream_sync(struct stream *s)
{
    const struct group_stream *gs = group_stream(s);
    group_settle(s);
    for (int i = 0; i < gs->n; i++) {
        (void)stream_sync(gs->s[i]);
    }
    return group_code(s);
}

static int group_stream_recover(struct stream *s)
{
    const struct group_stream *gs = group_stream(s);
    group_settle(s);
    for (int i = 0; i < gs->n; i++) {
        (void)stream_recover(gs->s[i]);
    }
    s->fault[0] = 0;
    atomic_store(&s->code, 0);
    return group_code(s);
}

struct stream *group_rank_stream(struct stream *s, int stage, int rank)
{
    group_settle(s);
    return streams_of(s, stage)[rank];
}

/* --- copies ----------------------------------------------------------------------------------- */

/* For shares below this, the exchange costs more than the copy to the device. */
#define MIN_SHARE_BYTES ((size_t)64 << 10)

static int copy_to_each(struct stream *s, int stage, uint8_t *dst, const uint8_t *src,
                        size_t bytes)
{
    struct group *g = group_of(s->device);
    int rc = 0;
    for (int r = 0; r < s->device->n_ranks && rc == 0; r++)
        rc = stream_copy(group_rank_stream(s, stage, r), group_address(g, dst, stage, r),
                         group_address(g, src, stage, r), bytes);
    return rc;
}

/* Each rank of stage `to` copies from its counterpart, after the work queued on both.  All messages
 * of an exchange or of a copy are sent before those of another, so that no two processes wait for
 * each other in different ones. */
static int copy_across(struct stream *s, int to, int from, uint8_t *dst, const uint8_t *src,
                       size_t bytes)
{
    struct group *g = group_of(s->device);
    struct stream *const *giver = streams_of(s, from), *const *taker = streams_of(s, to);
    int rc = 0;
    pthread_mutex_lock(&g->exchange);
    for (int r = 0; r < s->device->n_ranks && rc == 0; r++)
        rc = peer_copy_between(taker[r], group_address(g, dst, to, r), giver[r],
                               group_address(g, src, from, r), bytes);
    pthread_mutex_unlock(&g->exchange);
    return rc;
}

/* Gathers on a stage's ranks, by their own addresses. */
static int exchange(struct stream *s, int stage, const struct mat *out,
                    const struct mat *in)
{
    struct group *g = group_of(s->device);
    pthread_mutex_lock(&g->exchange);
    int rc = peer_gather(s, streams_of(s, stage), s->device->n_ranks, first_of(g, stage),
                         out, in);
    pthread_mutex_unlock(&g->exchange);
    return rc;
}

/* Rank r copies bytes [r * share, (r + 1) * share) to its device, and the ranks exchange them. */
static int copy_shares(struct stream *s, int stage, uint8_t *dst, const uint8_t *src,
                       size_t share)
{
    struct group *g = group_of(s->device);
    struct mat in[MAX_RANKS], out[MAX_RANKS];
    int64_t n = (int64_t)(share / sizeof(float));
    int rc = 0, n_ranks = s->device->n_ranks;
    for (int r = 0; r < n_ranks && rc == 0; r++) {
        uint8_t *all = group_address(g, dst, stage, r);
        out[r] = mat_of(all, DTYPE_F32, 1, n_ranks * n);
        in[r] = mat_cols(out[r], r * n, n);
        rc = stream_copy(group_rank_stream(s, stage, r), in[r].data,
                         src + (size_t)r * share, share);
    }
    if (rc == 0)
        rc = exchange(s, stage, out, in);
    return rc == 0 ? group_code(s) : rc;
}

static int group_stream_copy(struct stream *s, void *dst, const void *src, size_t bytes)
{
    struct group *g = group_of(s->device);
    size_t n = (size_t)s->device->n_ranks;
    size_t share = bytes / n / sizeof(float) * sizeof(float), up = 0;
    int to = home_of(g, dst), from = home_of(g, src), rc;
    group_settle(s);
    if ((rc = group_code(s)) != 0)
        return rc;
    if (to < 0) {
        (void)stream_copy(group_rank_stream(s, from < 0 ? 0 : from, 0), dst, src, bytes);
        return group_code(s);
    }
    if (from >= 0 && from != to) {
        (void)copy_across(s, to, from, dst, src, bytes);
        return group_code(s);
    }
    if (n > 1 && from < 0 && share >= MIN_SHARE_BYTES) {
        rc = copy_shares(s, to, dst, src, share);
        up = share * n;
    }
    if (rc == 0 && up < bytes)
        (void)copy_to_each(s, to, (uint8_t *)dst + up, (const uint8_t *)src + up,
                           bytes - up);
    return group_code(s);
}

int group_kv_chunks_up(struct stream *s, void *dst, const void *src, int n, size_t stride,
                       size_t bytes)
{
    size_t n_ranks = (size_t)s->device->n_ranks, part = bytes / 2 / n_ranks;
    CHECK(2 * part * n_ranks == bytes);
    struct group *g = group_of(s->device);
    int stage = group_stage(g, dst), rc = group_code(s);
    for (size_t r = 0; r < n_ranks && rc == 0; r++)
        for (size_t of = 0; of < 2; of++) { /* K, V */
            size_t at = of * bytes / 2 + r * part;
            (void)stream_copy_strided(group_rank_stream(s, stage, (int)r),
                                      (uint8_t *)group_address(g, dst, stage, (int)r) + at,
                                      stride, (const uint8_t *)src + at, stride, n, part);
        }
    return group_code(s);
}

int group_kv_rows_down(struct stream *s, void *dst, struct mat own)
{
    size_t n_ranks = (size_t)s->device->n_ranks;
    size_t width = (size_t)own.cols * dtype_bytes(own.dtype), half = width / 2;
    struct group *g = group_of(s->device);
    int stage = group_stage(g, own.data), rc = group_code(s);
    for (size_t r = 0; r < n_ranks && rc == 0; r++)
        for (size_t of = 0; of < 2; of++) /* K, V */
            (void)stream_copy_strided(
                group_rank_stream(s, stage, (int)r),
                (uint8_t *)dst + of * n_ranks * half + r * half, n_ranks * width,
                (uint8_t *)group_address(g, own.data, stage, (int)r) + of * half, width,
                own.rows, half);
    return group_code(s);
}

/* --- exchanges -------------------------------------------------------------------------------- */

int group_all_gather(struct stream *s, struct mat out, struct mat in)
{
    struct group *g = group_of(s->device);
    struct mat from[MAX_RANKS], to[MAX_RANKS];
    int rc = group_code(s);
    if (rc != 0 || s->device->n_ranks == 1)
        return rc;
    int stage = group_stage(g, out.data), n_ranks = s->device->n_ranks;
    CHECK(in.dtype == out.dtype && in.rows == out.rows && out.cols == in.cols * n_ranks);
    CHECK((in.ld == in.cols && out.ld == out.cols) || in.rows <= 1);
    for (int r = 0; r < n_ranks; r++) {
        from[r] = in;
        from[r].data = group_address(g, in.data, stage, r);
        to[r] = out;
        to[r].data = group_address(g, out.data, stage, r);
    }
    rc = exchange(s, stage, to, from);
    return rc == 0 ? group_code(s) : rc;
}

/* --- events ----------------------------------------------------------------------------------- */

struct group_event {
    struct event base;
    int n;
    struct event *of[MAX_RANKS];
};

static void group_event_destroy(struct event *e)
{
    struct group_event *ge = (struct group_event *)e;
    for (int r = 0; r < ge->n; r++)
        event_destroy(ge->of[r]);
    free(ge);
}

static int group_event_create(struct device *d, struct event **out, struct err *err)
{
    struct group *g = group_of(d);
    struct group_event *e = xcalloc(1, sizeof *e);
    e->base.device = d;
    for (int r = 0; r < g->n; r++) {
        int rc = event_create(g->rank[r], &e->of[r], err);
        if (rc != 0) {
            group_event_destroy(&e->base);
            return rc;
        }
        e->n = r + 1;
    }
    *out = &e->base;
    return 0;
}

static int on_each_event(struct stream *s, struct event *e,
                         int (*call)(struct stream *s, struct event *e))
{
    group_settle(s);
    for (int i = 0; i < group_stream(s)->n; i++) {
        (void)call(group_stream(s)->s[i], ((struct group_event *)e)->of[i]);
    }
    return group_code(s);
}

static int group_event_record(struct stream *s, struct event *e)
{
    return on_each_event(s, e, event_record);
}

static int group_event_wait(struct stream *s, struct event *e)
{
    return on_each_event(s, e, event_wait);
}

static int group_event_sync(struct event *e)
{
    struct group_event *ge = (struct group_event *)e;
    int rc = 0;
    for (int r = 0; r < ge->n; r++) {
        int code = event_sync(ge->of[r]);
        rc = rc == 0 ? code : rc;
    }
    return rc;
}

/* --- the group itself ------------------------------------------------------------------------- */

static atomic_bool is_open; /* a group has the processes */

static void group_close(struct device *d)
{
    struct group *g = group_of(d);
    CHECK(g->n_extents == 0);
    atomic_store(&is_open, false);
    for (int r = 0; r < g->n; r++) {
        device_close(g->rank[r]);
    }
    pthread_mutex_destroy(&g->exchange);
    pthread_rwlock_destroy(&g->lock);
    free(g->extents);
    free(g);
}

int (*group_reader_open)(struct device *d, const struct buf *into, int n_batches,
                         struct file_reader **out, struct err *err);

static int group_file_reader(struct device *d, const struct buf *into, int n_batches,
                             struct file_reader **out, struct err *err)
{
    return group_reader_open != NULL
               ? group_reader_open(d, into, n_batches, out, err)
               : err_set(err, ERR_UNSUPPORTED,
                         "a group of devices cannot read files itself");
}

static const struct device_vtable group_vtable = {
    .file_reader_open = group_file_reader,
    .close = group_close,
    .buf_alloc = group_buf_alloc,
    .buf_free = group_buf_free,
    .memory = group_memory,
    .stream_create = group_stream_create,
    .stream_destroy = group_stream_destroy,
    .stream_sync = group_stream_sync,
    .stream_recover = group_stream_recover,
    .stream_copy = group_stream_copy,
    .event_create = group_event_create,
    .event_destroy = group_event_destroy,
    .event_record = group_event_record,
    .event_wait = group_event_wait,
    .event_sync = group_event_sync,
};

/* Copies the description of rank 0, and sets the fields that differ in a group: the memory of peers
 * is not this process's. */
static void describe(struct group *g, int n_ranks, int n_stages)
{
    g->base = *g->rank[0];
    g->ops = group_ops(g->rank[0]);
    g->base.ops = &g->ops;
    g->base.v = &group_vtable;
    g->base.n_ranks = n_ranks;
    g->base.n_stages = n_stages;
    g->base.unified = false;
}

int group_make(const struct device *shape, const struct device_opts *o,
               struct device *first, struct pool *pool, struct device **out,
               struct err *err)
{
    int rc = 0, n = shape->n_ranks * shape->n_stages;
    if (atomic_exchange(&is_open, true)) {
        device_close(first);
        return err_set(err, ERR_UNSUPPORTED,
                       "the processes of mpirun have a model: serve one model at a time");
    }
    struct group *g = xcalloc(1, sizeof *g);
    g->base.n_ranks = shape->n_ranks;
    g->base.n_stages = shape->n_stages;
    g->rank[0] = first;
    pthread_mutex_init(&g->exchange, NULL);
    pthread_rwlock_init(&g->lock, NULL);
    for (g->n = 1; g->n < n && rc == 0; g->n += rc == 0)
        rc = peer_open(shape->name, o, g->n, pool, &g->rank[g->n], err);
    if (rc != 0) {
        group_close(&g->base);
        return rc;
    }
    describe(g, shape->n_ranks, shape->n_stages);
    *out = &g->base;
    return 0;
}
