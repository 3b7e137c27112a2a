/* serve.c - carries out the messages of process 0 on a device of this process. */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/pool.h"
#include "mpi/messages.h"

#define HUGE_BYTES ((uintptr_t)2 << 20)

struct server {
    struct device *d; /* NULL: none is open */
    struct pool *pool;
    struct stream **streams;
    int n_streams;
    uint8_t *message;
    size_t room;
    struct rows *rows;       /* the model's files; NULL: none are open */
    uintptr_t first, mapped; /* memory of process 0's choice is mapped in [first, mapped) */
};

/* A message that has come. */
struct visit {
    struct message *m;
    const struct call *c;
    struct stream *s;
};

static void answer(const struct visit *v, int rc, const char *why)
{
    struct answer a = {.rc = rc};
    snprintf(a.why, sizeof a.why, "%s", why);
    job_send(0, (int)v->c->n[2], &a, sizeof a);
}

/* Messages carried out since a device was opened. */
static _Atomic uint64_t n_carried;

uint64_t serve_carried(void)
{
    return atomic_load(&n_carried);
}

static void open_device(struct server *s, const struct visit *v)
{
    const char *name = v->c->host, *isa = name + strlen(name) + 1;
    atomic_store(&n_carried, 0);
    struct device_opts o = {.isa = isa[0] != 0 ? isa : NULL};
    struct err err = {0};
    int rc = pool_create((int)v->c->n[0], &s->pool, &err);
    if (rc == 0)
        rc = device_open(name, &o, s->pool, &s->d, &err);
    answer(v, rc, err.msg);
}

static void close_device(struct server *s)
{
    for (int i = 0; i < s->n_streams; i++)
        stream_destroy(s->streams[i]);
    s->n_streams = 0;
    rows_close(s->rows);
    s->rows = NULL;
    if (s->d != NULL)
        device_close(s->d);
    pool_destroy(s->pool);
    if (s->mapped > s->first)
        (void)munmap((void *)s->first, s->mapped - s->first);
    s->first = s->mapped = 0;
    s->d = NULL;
    s->pool = NULL;
}

/* Maps zeroed memory at the address that process 0 has chosen; its addresses ascend. A mapping
 * begins where the last one ended and ends with a huge page: small matrices share huge pages. */
static void allocate(struct server *s, const struct visit *v)
{
    uintptr_t want = (uintptr_t)v->c->n[0], end = want + (uintptr_t)v->c->n[1];
    uintptr_t from = MAX(want / HUGE_BYTES * HUGE_BYTES, s->mapped);
    size_t bytes = end > from ? (size_t)(round_up(end, HUGE_BYTES) - from) : 0;
    char why[80] = "";
    void *got = bytes == 0 ? NULL
                           : mmap((void *)from, bytes, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE |
                                      MAP_FIXED_NOREPLACE,
                                  -1, 0);
    bool ok = bytes == 0 || got == (void *)from;
    if (bytes > 0 && ok) {
        (void)madvise(got, bytes, MADV_HUGEPAGE);
        s->mapped = from + bytes;
        if (s->first == 0)
            s->first = from;
    }
    if (!ok)
        snprintf(why, sizeof why, "no memory for %zu bytes: %s", bytes, strerror(errno));
    answer(v, ok ? 0 : -ENOMEM, why);
}

/* All streams compute on the calling thread, so messages are carried out one after another. */
static void make_stream(struct server *s, const struct visit *v)
{
    int i = v->m->stream;
    struct err err = {0};
    enum stream_kind kind = v->c->n[0] == STREAM_INLINE ? STREAM_INLINE : STREAM_COMPUTE;
    if (i >= s->n_streams) {
        s->streams = xrealloc(s->streams, ((size_t)i + 1) * sizeof(struct stream *));
        while (s->n_streams <= i)
            s->streams[s->n_streams++] = NULL;
    }
    CHECK(stream_create(s->d, kind, &s->streams[i], &err) ==
          0); /* a host stream cannot fail */
}

static void write_pieces(const struct visit *v)
{
    const struct call *c = v->c;
    size_t bytes = (size_t)c->n[1];
    for (int64_t i = 0; i < c->n[0]; i++)
        memcpy((uint8_t *)(uintptr_t)c->p[0] + i * c->n[2],
               (const uint8_t *)c->host + (size_t)i * bytes, bytes);
}

static void read_pieces(const struct visit *v)
{
    const struct call *c = v->c;
    size_t bytes = (size_t)c->n[1];
    const uint8_t *from = c->p[0];
    uint8_t *all = NULL;
    if (c->n[0] > 1 && c->n[2] != c->n[1]) {
        all = xmalloc((size_t)c->n[0] * bytes);
        for (int64_t i = 0; i < c->n[0]; i++)
            memcpy(all + (size_t)i * bytes, from + i * c->n[2], bytes);
    }
    job_send(0, (int)c->n[3], all != NULL ? all : from, (size_t)c->n[0] * bytes);
    free(all);
}

static int operation(const struct visit *v)
{
    bool finite = false;
    struct call c = *v->c;
    c.finite = &finite;
    int rc = call_run(v->s, &c);
    if (c.kind == CALL_ALL_FINITE)
        job_send(0, v->m->tag, &finite, sizeof finite);
    return rc;
}

static void open_file(struct server *s, const struct visit *v)
{
    struct err err = {0};
    struct sha256 hash;
    memcpy(&hash, v->c->host, sizeof hash);
    rows_close(s->rows);
    s->rows = NULL;
    int rc = rows_open((const char *)v->c->host + sizeof hash, (int)v->c->n[0], &hash, s->d,
                       &s->rows, &err);
    answer(v, rc, err.msg);
}

static void read_rows(struct server *s, const struct visit *v)
{
    const struct call *c = v->c;
    struct weight w = c->w;
    int rc = rows_read(s->rows, v->s, &w, c->n[0], (int)c->n[1], c->n[2], c->n[3]);
    if (rc != 0)
        stream_fail(v->s, rc, err_name(rc));
}

/* Carries out a message that is no operation. Returns whether it was one of these. */
static bool other_call(struct server *sv, const struct visit *v)
{
    const struct call *c = v->c;
    switch (c->kind) {
    case CALL_OPEN:
        open_device(sv, v);
        return true;
    case CALL_CLOSE:
        close_device(sv);
        return true;
    case CALL_ALLOC:
        allocate(sv, v);
        return true;
    case CALL_FREE:
        (void)munmap((void *)(uintptr_t)c->n[0], (size_t)c->n[1]);
        return true;
    case CALL_STREAM:
        make_stream(sv, v);
        return true;
    case CALL_STREAM_END:
        stream_destroy(v->s);
        sv->streams[v->m->stream] = NULL;
        return true;
    case CALL_SYNC:
        answer(v, stream_sync(v->s), stream_fault(v->s));
        return true;
    case CALL_RECOVER:
        answer(v, stream_recover(v->s), stream_fault(v->s));
        return true;
    case CALL_WRITE:
        write_pieces(v);
        return true;
    case CALL_READ:
        read_pieces(v);
        return true;
    case CALL_COPY:
        for (int64_t i = 0; i < c->n[0]; i++)
            memmove((uint8_t *)(uintptr_t)c->p[0] + i * c->n[2],
                    (const uint8_t *)c->p[1] + i * c->n[3], (size_t)c->n[1]);
        return true;
    case CALL_GIVE:
        job_send((int)c->n[2], (int)c->n[1], c->p[0], (size_t)c->n[0]);
        return true;
    case CALL_TAKE:
        job_receive((int)c->n[2], (int)c->n[1], (void *)(uintptr_t)c->p[0],
                    (size_t)c->n[0]);
        return true;
    case CALL_GATHER:
        job_gather((int)c->n[0], (int)c->n[1], c->m[0], c->m[1]);
        return true;
    case CALL_FILE:
        open_file(sv, v);
        return true;
    case CALL_ROWS:
        read_rows(sv, v);
        return true;
    default:
        return false;
    }
}

/* Waits for the next message. *tables has the batch's tables. */
static struct visit next_message(struct server *sv, const int32_t ***tables)
{
    size_t n = job_await(0, TAG_CALL), used;
    if (n > sv->room) {
        sv->room = 2 * n;
        sv->message = xrealloc(sv->message, sv->room);
    }
    job_receive(0, TAG_CALL, sv->message, n);
    struct message *m = message_open(sv->message, &used, tables);
    return (struct visit){m, &m->c,
                          m->stream < sv->n_streams ? sv->streams[m->stream] : NULL};
}

/* A signal that ends the job reaches every process. Process 0 decides when the others end, because
 * it still saves. */
int serve(void)
{
    struct server sv = {0};
    const int32_t **tables = NULL;
    (void)signal(SIGTERM, SIG_IGN);
    (void)signal(SIGINT, SIG_IGN);
    for (;;) {
        struct visit v = next_message(&sv, &tables);
        if (v.c->kind == CALL_LEAVE)
            break;
        int rc = other_call(&sv, &v) ? 0 : operation(&v);
        if (rc != 0)
            stream_fail(v.s, rc, err_name(rc));
        atomic_fetch_add(&n_carried, 1);
    }
    close_device(&sv);
    free(sv.streams);
    free(sv.message);
    free((void *)tables);
    return 0;
}
