/* group.c - see group.h: memory, streams and events of several devices as one.
 *
 * Invariants:
 *  1. Extents do not overlap in rank 0's addresses, so an address names one of them or host memory.
 *  2. All streams of a group stream are of one kind; stream i belongs to rank i. */
#include "tensor/group_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "tensor/collective.h"

/* --- addresses -------------------------------------------------------------------------------- */

/* [lock] The extent that holds p, as an address of rank 0; -1: it is host memory. */
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

void *group_address(struct group *g, const void *p, int r)
{
    const uint8_t *at = p;
    if (p == NULL || r == 0)
        return (void *)(uintptr_t)p;
    pthread_rwlock_rdlock(&g->lock);
    int i = extent_of(g, at);
    if (i >= 0)
        at = g->extents[i].at[r] + (at - g->extents[i].at[0]);
    pthread_rwlock_unlock(&g->lock);
    return (void *)(uintptr_t)at;
}

static bool is_on_device(struct group *g, const void *p)
{
    pthread_rwlock_rdlock(&g->lock);
    bool is = extent_of(g, p) >= 0;
    pthread_rwlock_unlock(&g->lock);
    return is;
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

void *rank_address(const struct device *d, const void *p, int rank)
{
    CHECK(rank < d->n_ranks);
    return d->n_ranks > 1 ? group_address(group_of(d), p, rank) : (void *)(uintptr_t)p;
}

/* --- memory ----------------------------------------------------------------------------------- */

void group_enter(const struct group *g, int r)
{
    if (g->rank[r]->v->enter != NULL)
        g->rank[r]->v->enter(g->rank[r]);
}

static void free_on_ranks(struct group *g, const struct extent *e, int n)
{
    for (int r = 0; r < n; r++) {
        struct buf b = {e->at[r], e->bytes, MEM_DEVICE};
        group_enter(g, r);
        buf_free(g->rank[r], &b);
    }
}

static int group_buf_alloc(struct device *d, enum mem_kind kind, size_t bytes,
                           struct buf *out, struct err *err)
{
    struct group *g = group_of(d);
    struct extent e = {.bytes = bytes != 0 ? bytes : 1};
    group_enter(g, 0);
    if (kind != MEM_DEVICE)
        return buf_alloc(g->rank[0], kind, bytes, out, err);
    *out = (struct buf){0};
    for (int r = 0; r < g->n; r++) {
        struct buf b;
        group_enter(g, r);
        int rc = buf_alloc(g->rank[r], MEM_DEVICE, e.bytes, &b, err);
        if (rc != 0) {
            free_on_ranks(g, &e, r);
            return err_wrap(err, "rank %d of %d", r, g->n);
        }
        e.at[r] = b.ptr;
    }
    extent_add(g, &e);
    *out = (struct buf){e.at[0], bytes, MEM_DEVICE};
    return 0;
}

static void group_buf_free(struct device *d, struct buf *b)
{
    struct group *g = group_of(d);
    group_enter(g, 0);
    if (b->kind != MEM_DEVICE) {
        buf_free(g->rank[0], b);
        return;
    }
    struct extent e = extent_take(g, b->ptr);
    free_on_ranks(g, &e, g->n);
}

/* Of the rank that has the least; memory that is the host's is all ranks' together. */
static void group_memory(struct device *d, size_t *unused_bytes, size_t *total_bytes)
{
    struct group *g = group_of(d);
    for (int r = 0; r < g->n; r++) {
        size_t unused, total;
        group_enter(g, r);
        device_memory(g->rank[r], &unused, &total);
        if (r == 0 || unused < *unused_bytes)
            *unused_bytes = unused, *total_bytes = total;
    }
    if (d->unified)
        *unused_bytes /= (size_t)g->n, *total_bytes /= (size_t)g->n;
}

/* --- streams ---------------------------------------------------------------------------------- */

static void group_stream_destroy(struct stream *s)
{
    struct group_stream *gs = group_stream(s);
    for (int r = 0; r < gs->of.n; r++) {
        group_enter(group_of(s->device), r);
        event_destroy(gs->of.mark[r]);
        stream_destroy(gs->of.s[r]);
    }
    free(gs);
}

static int group_stream_create(struct device *d, enum stream_kind kind, struct stream **out,
                               struct err *err)
{
    struct group *g = group_of(d);
    struct group_stream *gs = xcalloc(1, sizeof *gs);
    gs->base.device = d;
    gs->base.kind = kind;
    gs->base.pool = kind == STREAM_COMPUTE ? d->pool : NULL;
    for (int r = 0; r < g->n; r++) {
        gs->of.n = r + 1;
        group_enter(g, r);
        int rc = stream_create(g->rank[r], kind, &gs->of.s[r], err);
        if (rc == 0)
            rc = event_create(g->rank[r], &gs->of.mark[r], err);
        if (rc != 0) {
            group_stream_destroy(&gs->base);
            return err_wrap(err, "rank %d of %d", r, g->n);
        }
    }
    *out = &gs->base;
    return 0;
}

int group_code(struct stream *s)
{
    const struct ranks *of = &group_stream(s)->of;
    for (int r = 0; r < of->n; r++) {
        int rc = atomic_load(&of->s[r]->code);
        if (rc != 0)
            stream_fail(s, rc, stream_fault(of->s[r]));
    }
    return atomic_load(&s->code);
}

static int group_stream_sync(struct stream *s)
{
    const struct ranks *of = &group_stream(s)->of;
    for (int r = 0; r < of->n; r++) {
        group_enter(group_of(s->device), r);
        (void)stream_sync(of->s[r]);
    }
    return group_code(s);
}

static int group_stream_recover(struct stream *s)
{
    const struct ranks *of = &group_stream(s)->of;
    for (int r = 0; r < of->n; r++) {
        group_enter(group_of(s->device), r);
        (void)stream_recover(of->s[r]);
    }
    s->fault[0] = 0;
    atomic_store(&s->code, 0);
    return group_code(s);
}

struct stream *rank_stream(struct stream *s, int rank)
{
    CHECK(rank < s->device->n_ranks);
    if (s->device->n_ranks == 1)
        return s;
    group_enter(group_of(s->device), rank);
    return group_stream(s)->of.s[rank];
}

/* What an exchange has said becomes the stream's, unless a rank has said it better. */
static int exchanged(struct stream *s, int rc, const char *what)
{
    if (rc != 0 && group_code(s) == 0)
        stream_fail(s, rc, what);
    return group_code(s);
}

/* --- copies ----------------------------------------------------------------------------------- */

/* A share smaller than this costs more in its exchange than its way up. */
#define MIN_SHARE_BYTES ((size_t)64 << 10)

static int copy_to_each(struct group *g, const struct ranks *of, uint8_t *dst,
                        const uint8_t *src, size_t bytes)
{
    int rc = 0;
    for (int r = 0; r < g->n && rc == 0; r++) {
        group_enter(g, r);
        rc = stream_copy(of->s[r], group_address(g, dst, r), group_address(g, src, r),
                         bytes);
    }
    return rc;
}

/* Rank r brings bytes [r * share, (r + 1) * share) up, and the ranks exchange them. */
static int copy_shares(struct stream *s, uint8_t *dst, const uint8_t *src, size_t share)
{
    struct group *g = group_of(s->device);
    const struct ranks *of = &group_stream(s)->of;
    struct mat in[MAX_RANKS], out[MAX_RANKS];
    int64_t n = (int64_t)(share / sizeof(float));
    int rc = 0;
    for (int r = 0; r < g->n && rc == 0; r++) {
        uint8_t *all = group_address(g, dst, r);
        out[r] = mat_of(all, DTYPE_F32, g->n, n);
        in[r] = mat_rows(out[r], r, 1);
        group_enter(g, r);
        rc = stream_copy(of->s[r], in[r].data, src + (size_t)r * share, share);
    }
    pthread_mutex_lock(&g->exchange);
    if (rc == 0)
        rc = g->collective->all_gather(g->collective, of, out, in);
    pthread_mutex_unlock(&g->exchange);
    return exchanged(s, rc, "a copy up, in shares");
}

static int group_stream_copy(struct stream *s, void *dst, const void *src, size_t bytes)
{
    struct group *g = group_of(s->device);
    const struct ranks *of = &group_stream(s)->of;
    size_t share = bytes / (size_t)g->n / sizeof(float) * sizeof(float), up = 0;
    int rc = group_code(s);
    if (rc != 0)
        return rc;
    if (!is_on_device(g, dst)) {
        group_enter(g, 0);
        (void)stream_copy(of->s[0], dst, src, bytes);
        return group_code(s);
    }
    if (!s->device->unified && !is_on_device(g, src) && share >= MIN_SHARE_BYTES) {
        rc = copy_shares(s, dst, src, share);
        up = share * (size_t)g->n;
    }
    if (rc == 0 && up < bytes)
        (void)copy_to_each(g, of, (uint8_t *)dst + up, (const uint8_t *)src + up,
                           bytes - up);
    return group_code(s);
}

/* --- exchanges -------------------------------------------------------------------------------- */

int all_reduce(struct stream *s, struct mat x)
{
    struct group *g = group_of(s->device);
    struct mat of_rank[MAX_RANKS];
    CHECK(x.ld == x.cols || x.rows <= 1);
    int rc = s->device->n_ranks > 1 ? group_code(s) : atomic_load(&s->code);
    if (rc != 0 || s->device->n_ranks == 1)
        return rc;
    for (int r = 0; r < g->n; r++) {
        of_rank[r] = x;
        of_rank[r].data = group_address(g, x.data, r);
    }
    pthread_mutex_lock(&g->exchange);
    rc = g->collective->all_reduce(g->collective, &group_stream(s)->of, of_rank);
    pthread_mutex_unlock(&g->exchange);
    return exchanged(s, rc, "all-reduce");
}

int all_gather(struct stream *s, struct mat out, struct mat in)
{
    struct group *g = group_of(s->device);
    struct mat from[MAX_RANKS], to[MAX_RANKS];
    int rc = s->device->n_ranks > 1 ? group_code(s) : atomic_load(&s->code);
    if (rc != 0 || s->device->n_ranks == 1)
        return rc;
    CHECK(in.ld == in.cols && out.ld == out.cols && in.dtype == out.dtype);
    CHECK(in.cols == out.cols && out.rows == in.rows * g->n);
    for (int r = 0; r < g->n; r++) {
        from[r] = in;
        from[r].data = group_address(g, in.data, r);
        to[r] = out;
        to[r].data = group_address(g, out.data, r);
    }
    pthread_mutex_lock(&g->exchange);
    rc = g->collective->all_gather(g->collective, &group_stream(s)->of, to, from);
    pthread_mutex_unlock(&g->exchange);
    return exchanged(s, rc, "all-gather");
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
        group_enter(g, r);
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
    for (int r = 0; r < group_stream(s)->of.n; r++) {
        group_enter(group_of(s->device), r);
        (void)call(group_stream(s)->of.s[r], ((struct group_event *)e)->of[r]);
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
        group_enter(group_of(e->device), r);
        int code = event_sync(ge->of[r]);
        rc = rc == 0 ? code : rc;
    }
    return rc;
}

/* --- the group itself ------------------------------------------------------------------------- */

static void group_close(struct device *d)
{
    struct group *g = group_of(d);
    CHECK(g->n_extents == 0);
    if (g->collective != NULL)
        g->collective->close(g->collective);
    for (int r = 0; r < g->n; r++) {
        group_enter(g, r);
        device_close(g->rank[r]);
    }
    pthread_mutex_destroy(&g->exchange);
    pthread_rwlock_destroy(&g->lock);
    free(g->extents);
    free(g);
}

static const struct device_vtable group_vtable = {
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

/* What rank 0 is, but for what is the group's own. */
static void describe(struct group *g)
{
    g->base = *g->rank[0];
    g->ops = group_ops(g->rank[0]);
    g->base.ops = &g->ops;
    g->base.v = &group_vtable;
    g->base.n_ranks = g->n;
}

int group_open(const char *name, int n_ranks, struct pool *pool, struct device **out,
               struct err *err)
{
    if (n_ranks < 1 || n_ranks > MAX_RANKS)
        return err_set(err, ERR_USAGE, "%d ranks: there can be 1 to %d", n_ranks,
                       MAX_RANKS);
    if (n_ranks == 1)
        return device_open(name, pool, out, err);
    struct group *g = xcalloc(1, sizeof *g);
    g->base.n_ranks = n_ranks;
    pthread_mutex_init(&g->exchange, NULL);
    pthread_rwlock_init(&g->lock, NULL);
    int rc = 0;
    for (int r = 0; r < n_ranks && rc == 0; r++) {
        rc = rank_open(name, r, pool, &g->rank[r], err);
        if (rc == 0)
            g->n = r + 1;
    }
    if (rc == 0)
        rc = g->rank[0]->unified ? collective_memory_open(&g->collective, err)
                                 : cuda_collective_open(n_ranks, &g->collective, err);
    if (rc != 0) {
        group_close(&g->base);
        return err_wrap(err, "%d ranks", n_ranks);
    }
    describe(g);
    *out = &g->base;
    return 0;
}
