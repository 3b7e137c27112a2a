/* host.c - devices whose memory is the host's: buffers, streams, events.
 *
 * A compute stream has no thread: its operations run before the call returns.  A copy stream is one
 * worker thread with a ring of MAX_COMMANDS commands; when the ring is full, the caller waits.
 *
 * Invariants:
 *  1. commands of a stream are executed in the order in which they were queued;
 *  2. an event counts its records: `marked` when queued, `reached` when executed; a wait is for the
 *     count that was marked when the wait was queued, as on other devices;
 *  3. a stream with a sticky error still executes event marks, so that no thread waits forever. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/copy.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/pool.h"
#include "base/thread.h"
#include "tensor/device.h"
#include "tensor/ops.h"
#include "tensor/shape.h"

/* Bound on queued commands. A step of the hybrid cache queues all blocks of a mini-batch at once
 * (engine/mixed.h). */
#define MAX_COMMANDS 1024

enum command_kind {
    COMMAND_COPY,
    COMMAND_MARK,
    COMMAND_WAIT,
    COMMAND_QUIT,
};

struct host_event {
    struct event base;
    pthread_mutex_t lock; /* guards both counts */
    pthread_cond_t changed;
    uint64_t marked, reached;
};

struct command {
    enum command_kind kind;
    void *dst;
    const void *src;
    size_t bytes;
    struct host_event *event;
    uint64_t count;
};

struct copy_stream {
    struct stream base;
    pthread_t thread;
    pthread_mutex_t lock; /* guards the ring */
    pthread_cond_t queued, taken;
    struct command ring[MAX_COMMANDS];
    /* totals since the start; the ring holds commands n_done to n_queued - 1 */
    uint64_t n_queued, n_done;
    _Atomic double bytes_per_s; /* 0: no limit */
    /* Time at which a throttled link would have delivered all copies so far; 0: it is idle.  Used
     * by the worker only. */
    int64_t due_ns;
};

/* --- events --------------------------------------------------------------------------------- */

static struct host_event *host_event(struct event *e)
{
    return (struct host_event *)e;
}

static int host_event_create(struct device *d, struct event **out, struct err *err)
{
    (void)err;
    struct host_event *e = xcalloc(1, sizeof *e);
    e->base.device = d;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    *out = &e->base;
    return 0;
}

static void host_event_destroy(struct event *base)
{
    struct host_event *e = host_event(base);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

static uint64_t event_mark(struct host_event *e)
{
    pthread_mutex_lock(&e->lock);
    uint64_t count = ++e->marked;
    pthread_mutex_unlock(&e->lock);
    return count;
}

static void event_reach(struct host_event *e, uint64_t count)
{
    pthread_mutex_lock(&e->lock);
    if (count > e->reached)
        e->reached = count;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

static uint64_t event_marked(struct host_event *e)
{
    pthread_mutex_lock(&e->lock);
    uint64_t count = e->marked;
    pthread_mutex_unlock(&e->lock);
    return count;
}

static void event_await(struct host_event *e, uint64_t count)
{
    pthread_mutex_lock(&e->lock);
    while (e->reached < count)
        pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
}

static int host_event_sync(struct event *base)
{
    struct host_event *e = host_event(base);
    event_await(e, event_marked(e));
    return 0;
}

/* --- copy streams --------------------------------------------------------------------------- */

/* Sleeps so that the bytes copied since `from` take as long as over the link.  A sleep ends some
 * ten microseconds late; the next copy sleeps less for that, unless the link was idle in between.
 */
static void throttle(struct copy_stream *s, size_t bytes, int64_t from)
{
    double rate = atomic_load(&s->bytes_per_s);
    if (rate <= 0)
        return;
    s->due_ns = (s->due_ns != 0 ? s->due_ns : from) + (int64_t)((double)bytes / rate * 1e9);
    int64_t now = clock_now_ns();
    if (s->due_ns > now)
        clock_sleep_ns(s->due_ns - now);
}

static int host_stream_throttle(struct stream *base, double bytes_per_s)
{
    atomic_store(&((struct copy_stream *)base)->bytes_per_s, bytes_per_s);
    return 0;
}

/* Waits for an event, and notes for the throttle if the link became idle meanwhile. */
static void wait_idle(struct copy_stream *s, const struct command *c)
{
    event_await(c->event, c->count);
    if (s->due_ns < clock_now_ns())
        s->due_ns = 0;
}

static void command_run(struct copy_stream *s, const struct command *c)
{
    if (c->kind == COMMAND_MARK)
        event_reach(c->event, c->count);
    else if (c->kind == COMMAND_WAIT)
        wait_idle(s, c);
    else if (c->kind == COMMAND_COPY && atomic_load(&s->base.code) == 0) {
        int64_t from = clock_now_ns();
        memcpy(c->dst, c->src, c->bytes);
        throttle(s, c->bytes, from);
    }
}

static void *copy_stream_main(void *arg)
{
    struct copy_stream *s = arg;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        while (s->n_done == s->n_queued) {
            s->due_ns = 0;
            pthread_cond_wait(&s->queued, &s->lock);
        }
        struct command c = s->ring[s->n_done % MAX_COMMANDS];
        pthread_mutex_unlock(&s->lock);
        command_run(s, &c);
        pthread_mutex_lock(&s->lock);
        /* Counted only now: sync waits for executed commands, not for those that were taken. */
        s->n_done++;
        pthread_cond_broadcast(&s->taken);
        pthread_mutex_unlock(&s->lock);
        if (c.kind == COMMAND_QUIT)
            return NULL;
    }
}

static void command_queue(struct stream *base, struct command c)
{
    struct copy_stream *s = (struct copy_stream *)base;
    pthread_mutex_lock(&s->lock);
    while (s->n_queued - s->n_done == MAX_COMMANDS)
        pthread_cond_wait(&s->taken, &s->lock);
    s->ring[s->n_queued++ % MAX_COMMANDS] = c;
    pthread_cond_signal(&s->queued);
    pthread_mutex_unlock(&s->lock);
}

static int copy_stream_create(struct device *d, struct stream **out, struct err *err)
{
    struct copy_stream *s = xcalloc(1, sizeof *s);
    s->base.device = d;
    s->base.kind = STREAM_COPY;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->queued, NULL);
    pthread_cond_init(&s->taken, NULL);
    int rc = thread_create(&s->thread, copy_stream_main, s);
    if (rc != 0) {
        free(s);
        return err_set(err, -rc, "copy stream: no thread: %s", strerror(rc));
    }
    *out = &s->base;
    return 0;
}

static void copy_stream_destroy(struct copy_stream *s)
{
    command_queue(&s->base, (struct command){.kind = COMMAND_QUIT});
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->queued);
    pthread_cond_destroy(&s->taken);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* --- streams of either kind ----------------------------------------------------------------- */

static int compute_stream_create(struct device *d, enum stream_kind kind,
                                 size_t scratch_bytes, struct stream **out, struct err *err)
{
    void *scratch = mem_map(scratch_bytes);
    if (scratch == NULL)
        return err_set(err, -ENOMEM,
                       "compute stream: no address space for %zu bytes of scratch",
                       scratch_bytes);
    struct stream *s = xcalloc(1, sizeof *s);
    s->device = d;
    s->kind = kind;
    s->pool = kind == STREAM_COMPUTE ? d->pool : NULL;
    s->scratch = scratch;
    s->scratch_bytes = scratch_bytes;
    *out = s;
    return 0;
}

struct host_device {
    struct device base;
    size_t scratch_bytes;
};

static int host_stream_create(struct device *d, enum stream_kind kind, struct stream **out,
                              struct err *err)
{
    if (kind == STREAM_COPY)
        return copy_stream_create(d, out, err);
    return compute_stream_create(d, kind, ((struct host_device *)d)->scratch_bytes, out,
                                 err);
}

static void host_stream_destroy(struct stream *s)
{
    if (s->kind == STREAM_COPY) {
        copy_stream_destroy((struct copy_stream *)s);
        return;
    }
    mem_unmap(s->scratch, s->scratch_bytes);
    free(s);
}

static int host_stream_sync(struct stream *base)
{
    if (base->kind == STREAM_COPY) {
        struct copy_stream *s = (struct copy_stream *)base;
        pthread_mutex_lock(&s->lock);
        uint64_t end = s->n_queued;
        while (s->n_done < end)
            pthread_cond_wait(&s->taken, &s->lock);
        pthread_mutex_unlock(&s->lock);
    }
    return atomic_load(&base->code);
}

static int host_stream_recover(struct stream *s)
{
    (void)host_stream_sync(s);
    s->fault[0] = 0;
    atomic_store(&s->code, 0);
    return 0;
}

static int host_stream_copy(struct stream *s, void *dst, const void *src, size_t bytes)
{
    int rc = atomic_load(&s->code);
    if (rc != 0)
        return rc;
    if (s->kind != STREAM_COPY)
        memcpy(dst, src, bytes);
    else
        command_queue(s, (struct command){COMMAND_COPY, dst, src, bytes, NULL, 0});
    return 0;
}

/* --- many copies at once ---------------------------------------------------------------------- */

/* Below this size, waking a thread takes longer than copying. */
#define COPY_ALONE_BYTES 16384

struct copy_job {
    const struct copy_part *copies;
    int n;
    size_t bytes; /* total of all copies */
};

/* Copies a thread's share, which is a range of the concatenated bytes of all copies. */
static void copy_share(void *arg, int thread_idx, int n_threads)
{
    const struct copy_job *j = arg;
    long begin, end;
    pool_share((long)j->bytes, 64, thread_idx, n_threads, &begin, &end);
    size_t at = 0;
    for (int i = 0; i < j->n && at < (size_t)end; at += j->copies[i++].bytes) {
        const struct copy_part *c = &j->copies[i];
        size_t from = MAX((size_t)begin, at) - at;
        size_t to = MIN((size_t)end - at, c->bytes);
        if (from < to)
            copy_past_caches((uint8_t *)c->dst + from, (const uint8_t *)c->src + from,
                             to - from);
    }
    copy_past_caches_end();
}

static int host_stream_copy_all(struct stream *s, const struct copy_part *copies, int n)
{
    struct copy_job job = {.copies = copies, .n = n};
    int rc = 0;
    if (s->kind == STREAM_COPY) { /* a copy stream's worker copies them one by one */
        for (int i = 0; i < n && rc == 0; i++)
            rc = stream_copy(s, copies[i].dst, copies[i].src, copies[i].bytes);
        return rc;
    }
    rc = stream_enter(s);
    for (int i = 0; i < n; i++)
        job.bytes += copies[i].bytes;
    if (rc == 0)
        pool_run(job.bytes < COPY_ALONE_BYTES ? NULL : s->pool, copy_share, &job);
    return rc;
}

static int host_event_record(struct stream *s, struct event *base)
{
    struct host_event *e = host_event(base);
    uint64_t count = event_mark(e);
    if (s->kind != STREAM_COPY)
        event_reach(e, count);
    else
        command_queue(s,
                      (struct command){.kind = COMMAND_MARK, .event = e, .count = count});
    return atomic_load(&s->code);
}

static int host_event_wait(struct stream *s, struct event *base)
{
    struct host_event *e = host_event(base);
    uint64_t count = event_marked(e);
    if (s->kind != STREAM_COPY)
        event_await(e, count);
    else
        command_queue(s,
                      (struct command){.kind = COMMAND_WAIT, .event = e, .count = count});
    return atomic_load(&s->code);
}

/* --- two operations in one -------------------------------------------------------------------- */

int host_add_norm(struct stream *s, struct mat out, struct mat sum, struct mat x,
                  struct mat y, const float *w, const float *b, float eps)
{
    const struct ops *op = s->device->ops;
    int rc = op->add(s, sum, x, y);
    if (rc != 0)
        return rc;
    return b != NULL ? op->layernorm(s, out, sum, w, b, eps)
                     : op->rmsnorm(s, out, sum, w, eps);
}

int host_rope_kv_fill(struct stream *s, struct mat q, const struct kv_layer *kv,
                      struct mat rows, const struct rope *rope, const struct ragged *r)
{
    const struct ops *op = s->device->ops;
    int rc = op->rope(s, q, kv->d_head, rope, r);
    return rc == 0 ? op->kv_fill(s, kv, rows, rope, r) : rc;
}

/* --- packing ---------------------------------------------------------------------------------- */

/* Fills a temporary block without rotation, or copies the rows of V by heads. */
int host_kv_pack(struct stream *s, void *chunk, struct mat rows, int n_kv, int d_head)
{
    int32_t pos[KV_BLOCK_TOKENS], block = 0, seq_row[2] = {0, KV_BLOCK_TOKENS};
    const int32_t *table = &block;
    size_t head_bytes = (size_t)d_head * dtype_bytes(rows.dtype);
    if (kv_rows_are_one(n_kv, d_head, rows)) {
        for (size_t h = 0; h < (size_t)n_kv; h++)
            for (size_t i = 0; i < KV_BLOCK_TOKENS; i++)
                memcpy((uint8_t *)chunk + (h * KV_BLOCK_TOKENS + i) * head_bytes,
                       (const uint8_t *)rows.data +
                           (i * (size_t)rows.ld * dtype_bytes(rows.dtype) + h * head_bytes),
                       head_bytes);
        return stream_enter(s);
    }
    struct rope none = {.max_pos = KV_BLOCK_TOKENS};
    for (int i = 0; i < KV_BLOCK_TOKENS; i++)
        pos[i] = i;
    struct kv_layer kv = {.blocks = chunk,
                          .block_stride = kv_block_bytes(n_kv, d_head, rows.dtype),
                          .dtype = rows.dtype,
                          .n_kv = n_kv,
                          .d_head = d_head,
                          .is_scratch = true};
    struct ragged r = {.n_rows = KV_BLOCK_TOKENS,
                       .n_seqs = 1,
                       .pos = pos,
                       .seq_row = seq_row,
                       .tables = &table};
    return s->device->ops->kv_fill(s, &kv, rows, &none, &r);
}

/* --- checksums -------------------------------------------------------------------------------- */

int host_checksum(struct stream *s, uint64_t *out, const void *first, size_t stride,
                  const uint32_t *n_bytes, int n)
{
    check_checksum(s, first, stride, n);
    int rc = stream_enter(s);
    for (int i = 0; rc == 0 && i < n; i++)
        out[i] = checksum64((const uint8_t *)first + (size_t)i * stride, n_bytes[i]);
    return rc;
}

/* --- memory and the device itself ----------------------------------------------------------- */

static int host_buf_alloc(struct device *d, enum mem_kind kind, size_t bytes,
                          struct buf *out, struct err *err)
{
    *out = (struct buf){0};
    void *p = mem_map(bytes != 0 ? bytes : 1);
    if (p == NULL)
        return err_set(err, -ENOMEM, "device %s: cannot allocate %zu bytes", d->name,
                       bytes);
    *out = (struct buf){p, bytes, kind};
    return 0;
}

static void host_buf_free(struct device *d, struct buf *b)
{
    (void)d;
    mem_unmap(b->ptr, b->bytes != 0 ? b->bytes : 1);
}

static void host_memory(struct device *d, size_t *unused_bytes, size_t *total_bytes)
{
    (void)d;
    *total_bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    *unused_bytes = *total_bytes;
}

static void host_device_close(struct device *d)
{
    free(d);
}

static const struct device_vtable host_vtable = {
    .close = host_device_close,
    .buf_alloc = host_buf_alloc,
    .buf_free = host_buf_free,
    .memory = host_memory,
    .stream_create = host_stream_create,
    .stream_destroy = host_stream_destroy,
    .stream_sync = host_stream_sync,
    .stream_recover = host_stream_recover,
    .stream_copy = host_stream_copy,
    .stream_copy_all = host_stream_copy_all,
    .stream_throttle = host_stream_throttle,
    .event_create = host_event_create,
    .event_destroy = host_event_destroy,
    .event_record = host_event_record,
    .event_wait = host_event_wait,
    .event_sync = host_event_sync,
};

int host_device_open(const char *name, const struct ops *ops, int numerics_version,
                     const char *isa, size_t scratch_bytes, struct pool *pool,
                     struct device **out, struct err *err)
{
    (void)err;
    struct host_device *d = xcalloc(1, sizeof *d);
    *d = (struct host_device){.base = {.name = name,
                                       .ops = ops,
                                       .pool = pool,
                                       .act_dtype = DTYPE_F32,
                                       .unified = true,
                                       .q8 = true,
                                       .quantised = true,
                                       .batch_rows = 512,
                                       .n_ranks = 1,
                                       .n_stages = 1,
                                       .v = &host_vtable,
                                       .numerics = name,
                                       .numerics_version = numerics_version,
                                       .isa = isa},
                              .scratch_bytes = scratch_bytes};
    *out = &d->base;
    return 0;
}
