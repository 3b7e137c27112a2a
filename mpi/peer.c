/* peer.c - a peer as a device of process 0: each call becomes a message (messages.h).
 *
 * Invariants:
 *  1. Calls to one peer are sent under its lock, so a call with an answer meets its own.
 *  2. An event of a peer is always reached: the peer carries out messages one after another, in the
 *     order in which they were sent, whatever their streams. */
#include "mpi/group_impl.h"
#include "mpi/messages.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/pool.h"

/* Peer i has the addresses [BASE + i * RANGE, BASE + (i + 1) * RANGE), where the system maps
 * nothing unless it is asked to. The thread sanitizer keeps those of the first line for itself. */
#ifndef __SANITIZE_THREAD__
#define BASE  ((uintptr_t)0x200000000000)
#define RANGE ((uintptr_t)1 << 41)
#else
#define BASE  ((uintptr_t)0x1000000000)
#define RANGE ((uintptr_t)1 << 34)
#endif
#define PAGE      ((size_t)4096)
#define MOST_COPY (MOST_MESSAGE_BYTES / 4)

struct peer {
    struct device base;
    int index;
    pthread_mutex_t lock; /* protects the following, and the order of messages */
    uintptr_t next;       /* the next address that is given out */
    int n_streams;
    uint64_t n_sent;
    struct messages out; /* the message that is sent */
};

struct peer_stream {
    struct stream base;
    int id;
};

static struct peer *peer_of(const struct device *d)
{
    return (struct peer *)d;
}

static bool is_of_peers(const void *p)
{
    return (uintptr_t)p >= BASE && (uintptr_t)p < BASE + MAX_RANKS * RANGE;
}

/* --- messages --------------------------------------------------------------------------------- */

/* [lock held] Sends a message. */
static void send_locked(struct peer *p, const struct message *m)
{
    p->out.bytes = 0;
    message_add(&p->out, m);
    CHECK(p->out.bytes <= MOST_MESSAGE_BYTES);
    job_post(p->index, TAG_CALL, p->out.at, p->out.bytes);
    p->n_sent++;
}

uint64_t peer_sent(struct device *d)
{
    struct peer *p = peer_of(d);
    pthread_mutex_lock(&p->lock);
    uint64_t n = p->n_sent;
    pthread_mutex_unlock(&p->lock);
    return n;
}

static void send_message(struct peer *p, const struct message *m)
{
    pthread_mutex_lock(&p->lock);
    send_locked(p, m);
    pthread_mutex_unlock(&p->lock);
}

/* Sends a message whose answer is a struct answer, and waits for that. */
static struct answer ask(struct peer *p, struct message *m)
{
    struct answer a;
    send_message(p, m);
    job_receive(p->index, (int)m->c.n[2], &a, sizeof a);
    return a;
}

/* Sends a call on a stream, whatever the stream's error. */
static void tell(struct stream *s, struct call c)
{
    send_message(peer_of(s->device),
                 &(struct message){.c = c, .stream = ((struct peer_stream *)s)->id});
}

/* Sends a call unless the stream has an error. Returns the stream's sticky error. */
static int post(struct stream *s, struct call c)
{
    int rc = atomic_load(&s->code);
    if (rc == 0)
        tell(s, c);
    return rc;
}

int peer_run(struct stream *s, const struct call *c)
{
    struct peer *p = peer_of(s->device);
    struct message m = {.c = *c, .stream = ((struct peer_stream *)s)->id, .tag = job_tag()};
    int rc = atomic_load(&s->code);
    if (rc != 0)
        return rc;
    send_message(p, &m);
    if (c->kind == CALL_ALL_FINITE)
        job_receive(p->index, m.tag, c->finite, sizeof *c->finite);
    return 0;
}

/* --- memory and streams ----------------------------------------------------------------------- */

static void peer_close(struct device *d)
{
    struct peer *p = peer_of(d);
    send_message(p, &(struct message){.c.kind = CALL_CLOSE});
    job_end_process(p->index);
    pthread_mutex_destroy(&p->lock);
    free(p->out.at);
    free(p);
}

/* Returns the distance of a buffer's address to the next one's. */
static uintptr_t apart(size_t bytes)
{
    return (uintptr_t)round_up(bytes, PAGE) + PAGE;
}

static int peer_alloc(struct device *d, enum mem_kind kind, size_t bytes, struct buf *out,
                      struct err *err)
{
    struct peer *p = peer_of(d);
    CHECK(kind == MEM_DEVICE);
    struct answer a;
    int tag = job_tag();
    pthread_mutex_lock(&p->lock);
    uintptr_t at = p->next, next = at + apart(bytes);
    bool fits = next <= BASE + ((uintptr_t)p->index + 1) * RANGE;
    if (fits) {
        struct message m = {
            .c = {.kind = CALL_ALLOC, .n = {(int64_t)at, (int64_t)bytes, tag}}};
        p->next = next;
        send_locked(p, &m);
    }
    pthread_mutex_unlock(&p->lock);
    if (!fits)
        return err_set(err, -ENOMEM, "process %d: no addresses for %zu bytes", p->index,
                       bytes);
    job_receive(p->index, tag, &a, sizeof a);
    *out = (struct buf){(void *)at, bytes, kind};
    return a.rc == 0 ? 0 : err_set(err, a.rc, "process %d: %s", p->index, a.why);
}

static void peer_free(struct device *d, struct buf *b)
{
    int64_t at = (int64_t)(uintptr_t)b->ptr, bytes = (int64_t)apart(b->bytes);
    send_message(peer_of(d), &(struct message){.c = {.kind = CALL_FREE, .n = {at, bytes}}});
}

/* The memory of rank 0 stands for its peers'. */
static void peer_memory(struct device *d, size_t *unused_bytes, size_t *total_bytes)
{
    (void)d;
    *unused_bytes = *total_bytes = SIZE_MAX;
}

static int peer_stream_create(struct device *d, enum stream_kind kind, struct stream **out,
                              struct err *err)
{
    struct peer *p = peer_of(d);
    struct peer_stream *s = xcalloc(1, sizeof *s);
    (void)err;
    s->base.device = d;
    s->base.kind = kind;
    pthread_mutex_lock(&p->lock);
    s->id = p->n_streams++;
    pthread_mutex_unlock(&p->lock);
    *out = &s->base;
    return post(*out, (struct call){.kind = CALL_STREAM, .n = {(int64_t)kind}});
}

static void peer_stream_destroy(struct stream *s)
{
    struct peer_stream *p = (struct peer_stream *)s;
    send_message(peer_of(s->device),
                 &(struct message){.c.kind = CALL_STREAM_END, .stream = p->id});
    free(p);
}

/* Waits for all work of a stream, and takes its error. */
static int settle(struct stream *s, int kind)
{
    struct message m = {.c = {.kind = kind, .n = {0, 0, job_tag()}},
                        .stream = ((struct peer_stream *)s)->id};
    struct answer a = ask(peer_of(s->device), &m);
    if (a.rc != 0)
        stream_fail(s, a.rc, a.why);
    return atomic_load(&s->code);
}

static int peer_stream_sync(struct stream *s)
{
    return settle(s, CALL_SYNC);
}

static int peer_stream_recover(struct stream *s)
{
    atomic_store(&s->code, 0);
    s->fault[0] = 0;
    return settle(s, CALL_RECOVER);
}

/* --- copies ----------------------------------------------------------------------------------- */

/* Reads n pieces, `stride` apart in the peer's memory, to pieces dst_stride apart in the host's. */
static int read_pieces(struct stream *s, uint8_t *dst, size_t dst_stride, const void *src,
                       size_t stride, int64_t n, size_t bytes)
{
    int tag = job_tag(), rc;
    size_t all = (size_t)n * bytes;
    bool whole = n == 1 || dst_stride == bytes;
    rc = post(s, (struct call){.kind = CALL_READ,
                               .p = {src},
                               .n = {n, (int64_t)bytes, (int64_t)stride, tag}});
    if (rc != 0)
        return rc;
    uint8_t *to = whole ? dst : xmalloc(all);
    job_receive(peer_of(s->device)->index, tag, to, all);
    for (int64_t i = 0; !whole && i < n; i++)
        memcpy(dst + (size_t)i * dst_stride, to + (size_t)i * bytes, bytes);
    if (!whole)
        free(to);
    return 0;
}

static int write_pieces(struct stream *s, void *dst, size_t stride, const uint8_t *src,
                        size_t src_stride, int64_t n, size_t bytes)
{
    struct call c = {.kind = CALL_WRITE,
                     .p = {dst},
                     .n = {n, (int64_t)bytes, (int64_t)stride},
                     .host = src,
                     .host_bytes = (size_t)n * bytes};
    if (n == 1 || src_stride == bytes)
        return post(s, c);
    uint8_t *from = xmalloc(c.host_bytes);
    for (int64_t i = 0; i < n; i++)
        memcpy(from + (size_t)i * bytes, src + (size_t)i * src_stride, bytes);
    c.host = from;
    int rc = post(s, c);
    free(from);
    return rc;
}

static int peer_copy_strided(struct stream *s, void *dst, size_t dst_stride,
                             const void *src, size_t src_stride, int64_t n, size_t bytes)
{
    bool to = is_of_peers(dst), from = is_of_peers(src);
    int64_t at_once = MAX((int64_t)(MOST_COPY / MAX(bytes, 1)), 1);
    int rc = atomic_load(&s->code);
    if (to && from)
        return post(s, (struct call){.kind = CALL_COPY,
                                     .p = {dst, src},
                                     .n = {n, (int64_t)bytes, (int64_t)dst_stride,
                                           (int64_t)src_stride}});
    for (int64_t i = 0, k; rc == 0 && bytes > 0 && i < n; i += k) {
        k = MIN(n - i, at_once);
        uint8_t *d = (uint8_t *)dst + (size_t)i * dst_stride;
        const uint8_t *f = (const uint8_t *)src + (size_t)i * src_stride;
        rc = to ? write_pieces(s, d, dst_stride, f, src_stride, k, bytes)
                : read_pieces(s, d, dst_stride, f, src_stride, k, bytes);
    }
    return rc;
}

static int peer_copy(struct stream *s, void *dst, const void *src, size_t bytes)
{
    int rc = atomic_load(&s->code);
    if (is_of_peers(dst) && is_of_peers(src))
        return peer_copy_strided(s, dst, bytes, src, bytes, 1, bytes);
    for (size_t at = 0, n; rc == 0 && at < bytes; at += n) {
        n = MIN(bytes - at, MOST_COPY);
        rc = peer_copy_strided(s, (uint8_t *)dst + at, n, (const uint8_t *)src + at, n, 1,
                               n);
    }
    return rc;
}

bool peer_is(const struct stream *s)
{
    return s->device->v->stream_copy == peer_copy;
}

int peer_copy_between(struct stream *to, void *dst, struct stream *from, const void *src,
                      size_t bytes)
{
    int rc = 0;
    if (!peer_is(from)) {
        rc = stream_sync(from);
        return rc == 0 ? stream_copy(to, dst, src, bytes) : rc;
    }
    if (!peer_is(to)) {
        rc = stream_sync(to);
        return rc == 0 ? stream_copy(from, dst, src, bytes) : rc;
    }
    for (size_t at = 0, n; rc == 0 && at < bytes; at += n) {
        n = MIN(bytes - at, MOST_COPY);
        int tag = job_tag();
        struct call give = {.kind = CALL_GIVE,
                            .p = {(const uint8_t *)src + at},
                            .n = {(int64_t)n, tag, peer_of(to->device)->index}};
        struct call take = {.kind = CALL_TAKE,
                            .p = {(uint8_t *)dst + at},
                            .n = {(int64_t)n, tag, peer_of(from->device)->index}};
        if ((rc = post(from, give)) == 0)
            tell(to, take); /* or the giver would wait for it */
    }
    return rc;
}

/* --- events ----------------------------------------------------------------------------------- */

static int peer_event_create(struct device *d, struct event **out, struct err *err)
{
    (void)err;
    *out = xcalloc(1, sizeof **out);
    (*out)->device = d;
    return 0;
}

static void peer_event_destroy(struct event *e)
{
    free(e);
}

static int peer_event(struct stream *s, struct event *e)
{
    (void)e;
    return atomic_load(&s->code);
}

static int peer_event_sync(struct event *e)
{
    (void)e;
    return 0;
}

static const struct device_vtable peer_vtable = {
    .close = peer_close,
    .buf_alloc = peer_alloc,
    .buf_free = peer_free,
    .memory = peer_memory,
    .stream_create = peer_stream_create,
    .stream_destroy = peer_stream_destroy,
    .stream_sync = peer_stream_sync,
    .stream_recover = peer_stream_recover,
    .stream_copy = peer_copy,
    .stream_copy_strided = peer_copy_strided,
    .event_create = peer_event_create,
    .event_destroy = peer_event_destroy,
    .event_record = peer_event,
    .event_wait = peer_event,
    .event_sync = peer_event_sync,
};

/* --- operations ------------------------------------------------------------------------------- */

/* A group's operations come by peers_run. Weights are packed rank by rank. */
static int peer_weight_pack(struct stream *s, struct weight *w, int64_t row,
                            const void *src, int64_t n_rows)
{
    size_t row_bytes = weight_row_bytes(w);
    int64_t at_once = MAX((int64_t)(MOST_COPY / row_bytes) / 16 * 16, 16);
    int rc = 0;
    for (int64_t i = 0, n; rc == 0 && i < n_rows; i += n) {
        n = MIN(n_rows - i, at_once);
        rc = post(s, (struct call){.kind = CALL_WEIGHT_PACK,
                                   .w = *w,
                                   .n = {row + i, n},
                                   .host = (const uint8_t *)src + (size_t)i * row_bytes,
                                   .host_bytes = (size_t)n * row_bytes});
    }
    return rc;
}

static const struct ops peer_ops = {.weight_pack = peer_weight_pack};

/* --- opening ---------------------------------------------------------------------------------- */

int peer_open(const char *name, const struct device_opts *o, int index, struct pool *pool,
              struct device **out, struct err *err)
{
    struct peer *p = xcalloc(1, sizeof *p);
    char names[128];
    const char *isa = o != NULL && o->isa != NULL ? o->isa : "";
    snprintf(names, sizeof names, "%s%c%s", name, 0, isa);
    p->base.name = name;
    p->base.v = &peer_vtable;
    p->base.ops = &peer_ops;
    p->base.n_ranks = p->base.n_stages = 1;
    p->index = index;
    p->next = BASE + (uintptr_t)index * RANGE;
    pthread_mutex_init(&p->lock, NULL);
    job_begin_process(index);
    struct answer a = ask(p,
                          &(struct message){.c = {.kind = CALL_OPEN,
                                                  .n = {pool_threads(pool), 0, job_tag()},
                                                  .host = names,
                                                  .host_bytes = sizeof names}});
    *out = &p->base;
    if (a.rc == 0)
        return 0;
    job_end_process(index);
    pthread_mutex_destroy(&p->lock);
    free(p->out.at);
    free(p);
    return err_set(err, a.rc, "process %d: %s", index, a.why);
}

/* Peers are told first, and then the rank of this process, if it is one, takes part. It does so
 * even if its stream has failed, because the others wait for it. */
int peer_gather(struct stream *group, struct stream *const *s, int n, int first,
                const struct mat *out, const struct mat *in)
{
    int rc = 0;
    for (int r = n - 1; r >= 0; r--) {
        if (!peer_is(s[r]))
            group_settle(group);
        int code = peer_is(s[r]) ? atomic_load(&s[r]->code) : stream_sync(s[r]);
        rc = rc == 0 ? code : rc;
        if (peer_is(s[r]))
            tell(s[r],
                 (struct call){.kind = CALL_GATHER, .m = {out[r], in[r]}, .n = {first, n}});
        else
            job_gather(first, n, out[r], in[r]);
    }
    return rc;
}

/* --- files of the model ----------------------------------------------------------------------- */

bool group_have_file(struct device *d, const char *source, int n_tensors,
                     const struct sha256 *hash, struct err *why)
{
    struct group *g = (struct group *)d;
    size_t n = strlen(source) + 1;
    uint8_t *host = xmalloc(sizeof *hash + n);
    int tags[MAX_RANKS];
    bool all = true;
    memcpy(host, hash, sizeof *hash);
    memcpy(host + sizeof *hash, source, n);
    for (int i = 1; i < g->n; i++) { /* all look at the same time */
        tags[i] = job_tag();
        send_message(peer_of(g->rank[i]),
                     &(struct message){.c = {.kind = CALL_FILE,
                                             .n = {n_tensors, 0, tags[i]},
                                             .host = host,
                                             .host_bytes = sizeof *hash + n}});
    }
    for (int i = 1; i < g->n; i++) {
        struct answer a;
        job_receive(i, tags[i], &a, sizeof a);
        if (a.rc != 0)
            err_set(why, a.rc, "process %d gets its weights from process 0: %s", i, a.why);
        all = all && a.rc == 0;
    }
    free(host);
    return all;
}

int peer_read_rows(struct stream *s, const struct weight *w, int64_t dst_row, int number,
                   int64_t row, int64_t n)
{
    return post(s,
                (struct call){.kind = CALL_ROWS, .w = *w, .n = {dst_row, number, row, n}});
}
