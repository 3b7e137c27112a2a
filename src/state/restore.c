/* restore.c - see restore.h.
 *
 * Invariants:
 *  1. A group and its slot are owned by the I/O thread from when it takes them until the last read
 *     is done, then by the compute thread until the group is in the KV cache.
 *  2. Recomputation never reads what the I/O lane brings: R layers are a prefix, each needs only the
 *     KV of its own layer, which it writes itself in ascending order of rows.
 *  3. n_good only falls. Work on chunks at or beyond it is skipped; chunks before it are complete in
 *     every layer when restore_run returns. */
#include "state/restore.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/queue.h"

enum {
    GROUP = RESTORE_GROUP_CHUNKS,
    GROUP_ROWS = GROUP * STORE_CHUNK_TOKENS,
    MAX_SLOTS = 1024 / GROUP, /* the I/O layer's bound on queue depth */
};

/* A run of chunks of one layer that is read and computed as one, and the memory that it is read to. */
struct group {
    uint8_t *slot;
    int layer, first_chunk, n_chunks;
    enum store_kind kind;
    struct store_read reads[GROUP];
    int n_left; /* reads not yet complete */
};

/* What every restore uses again: memory and the reader. */
struct restorer {
    struct restorer_opts o;
    size_t record_bytes[STORE_KINDS]; /* as stored, not padded */
    size_t record_room[STORE_KINDS];
    struct buf staging;
    size_t slot_bytes;
    int n_slots;
    struct group *groups;        /* [n_slots] */
    struct queue *free;          /* groups that nobody uses */
    struct queue *ready;         /* groups whose reads are done; then &end */
    struct group end;            /* says that the I/O lane has ended */
    struct store_reader *reader; /* NULL after a fault, until the next restore opens one */
    struct stream **inline_streams; /* one per compute thread */
    struct buf scratch;
    struct mat kv_rows; /* [GROUP_ROWS][2 * kv_dim] T: one projected group */
    struct mat prefix;  /* [max_tokens][d] T: hidden states of the recomputed prefix */
    int32_t *pos;       /* [max_tokens]: 0, 1, 2, ... */
};

/* One run. */
struct restore {
    struct restorer *rr;
    const struct restore_job *job;
    const struct model *m;
    struct restore_result *out;

    int16_t order[STORE_MAX_LAYERS]; /* layers in the order of their reads */
    int n_order;
    int next_layer,
        next_chunk; /* what the I/O lane reads next: an index into order, a chunk */

    int n_recompute;      /* R layers */
    int re_layer, re_row; /* next step of the recomputation */

    atomic_int n_good; /* chunks believed good so far */
    pthread_mutex_t fault_lock;
    atomic_bool stop; /* the compute lane failed: read no further */

    int64_t io_ns; /* the I/O thread's own until it is joined, with what follows */
    uint64_t read_bytes;
    struct err io_err;
    int io_rc;
};

/* Does a failed read or check mean that the bytes on the medium are no good?  What is only a trouble
 * of this moment (no memory, no power) leaves them to the next restore. */
static bool is_damage(int rc)
{
    return rc == ERR_CORRUPT || rc == -EIO || rc == -ENODATA;
}

/* A chunk cannot be used: restore what precedes it. */
static void lose_chunk(struct restore *r, int chunk, int rc, const char *why)
{
    pthread_mutex_lock(&r->fault_lock);
    if (chunk < atomic_load(&r->n_good)) {
        atomic_store(&r->n_good, chunk);
        snprintf(r->out->fault, sizeof r->out->fault, "chunk %d: %s", chunk, why);
        if (is_damage(rc))
            store_condemn(r->rr->o.store, &r->job->hits[chunk], why);
    }
    pthread_mutex_unlock(&r->fault_lock);
}

/* --- what is to be done ----------------------------------------------------------------------- */

static uint8_t chunk_mask(const struct store_hit *h, int layer)
{
    return (uint8_t)((store_mask_has(&h->mask, layer, STORE_HIDDEN) ? PLAN_HAS_H : 0) |
                     (store_mask_has(&h->mask, layer, STORE_KV) ? PLAN_HAS_KV : 0));
}

/* 'H' or 'K': what is read of a chunk, which may lack the kind that the plan prefers; else 0. */
static char method_of(const struct restore *r, int layer, int chunk)
{
    uint8_t mask = chunk_mask(&r->job->hits[chunk], layer);
    char how = plan_range_method(r->job->plan->method[layer], mask, false);
    return how == 'H' || how == 'K' ? how : 0;
}

static int count_recomputed(const struct plan *p)
{
    int n = 0;
    while (n < p->n_layers && p->method[n] == 'R')
        n++;
    /* Layer 0's hidden states are embedding rows: restoring it "from hidden" is recomputing it. */
    return n == 0 && p->method[0] == 'H' ? 1 : n;
}

/* The plan's order of reads; layers that it does not name come last. */
static void make_order(struct restore *r)
{
    const struct plan *p = r->job->plan;
    bool done[STORE_MAX_LAYERS] = {false};
    for (int i = 0; i < r->n_recompute; i++)
        done[i] = true;
    for (int i = 0; i < p->n_io + r->m->cfg.n_layers; i++) {
        int layer = i < p->n_io ? p->io_order[i] : i - p->n_io;
        if (done[layer])
            continue;
        done[layer] = true;
        r->order[r->n_order++] = (int16_t)layer;
    }
}

/* Chunks without a record that the plan can use, and all behind them, are left to prefill. */
static void check_records(struct restore *r)
{
    for (int c = 0; c < r->job->n_chunks; c++) {
        for (int i = 0; i < r->n_order; i++) {
            if (method_of(r, r->order[i], c) == 0) {
                lose_chunk(r, c, ERR_NOT_FOUND, "no record that the plan can use");
                return;
            }
        }
    }
}

/* The next run of good chunks of one layer and kind, into g; false where there is none. */
static bool next_group(struct restore *r, struct group *g)
{
    int n_good = atomic_load(&r->n_good), c = r->next_chunk;
    if (c >= n_good) { /* on to the next layer */
        r->next_layer++;
        c = 0;
    }
    if (r->next_layer >= r->n_order || n_good == 0)
        return false;
    g->layer = r->order[r->next_layer];
    g->first_chunk = c;
    char how = method_of(r, g->layer, c);
    while (c < n_good && c - g->first_chunk < GROUP && method_of(r, g->layer, c) == how)
        c++;
    g->n_chunks = c - g->first_chunk;
    g->kind = how == 'H' ? STORE_HIDDEN : STORE_KV;
    r->out->n_by_method[how == 'H' ? 1 : 2] += g->n_chunks;
    r->next_chunk = c;
    return true;
}

/* --- the I/O lane ----------------------------------------------------------------------------- */

static int submit_group(struct restore *r, struct group *g)
{
    struct store_read *reads[GROUP];
    for (int i = 0; i < g->n_chunks; i++) {
        g->reads[i] = (struct store_read){.hit = &r->job->hits[g->first_chunk + i],
                                          .layer = g->layer,
                                          .kind = g->kind,
                                          .dst = g->slot +
                                                 (size_t)i * r->rr->record_room[g->kind],
                                          .dst_bytes = r->rr->record_room[g->kind],
                                          .user = g};
        reads[i] = &g->reads[i];
    }
    g->n_left = g->n_chunks;
    return store_reader_submit(r->rr->reader, reads, g->n_chunks, &r->io_err);
}

/* Collects completions; a group whose reads are all done goes to the compute lane. */
static int collect(struct restore *r, int *n_in_flight)
{
    struct store_read *done[2 * GROUP];
    int n = 0;
    int rc = store_reader_wait(r->rr->reader, done, 2 * GROUP, &n, &r->io_err);
    for (int i = 0; i < n; i++) {
        struct group *g = done[i]->user;
        r->read_bytes += done[i]->status == 0 ? done[i]->n_bytes : 0;
        if (--g->n_left == 0) {
            (*n_in_flight)--;
            queue_push(r->rr->ready, g);
        }
    }
    return rc;
}

static int read_all(struct restore *r)
{
    struct queue *unused = r->rr->free;
    int rc = 0, n_in_flight = 0;
    bool more = true;
    int64_t busy_since = 0;
    while (rc == 0 && (more || n_in_flight > 0)) {
        struct group *g = NULL;
        more = more && !atomic_load(&r->stop);
        if (more) /* with nothing in flight, the compute lane has a group and will give it back */
            g = n_in_flight == 0 ? queue_pop(unused) : queue_try_pop(unused);
        if (g != NULL && !next_group(r, g)) {
            more = false;
            queue_push(unused, g);
        } else if (g != NULL) {
            if (n_in_flight++ == 0)
                busy_since = clock_now_ns();
            rc = submit_group(r, g);
        } else if (n_in_flight > 0) {
            rc = collect(r, &n_in_flight);
            if (n_in_flight == 0)
                r->io_ns += clock_now_ns() - busy_since;
        }
    }
    return rc;
}

static void *io_main(void *arg)
{
    struct restore *r = arg;
    r->io_rc = read_all(r);
    queue_push(r->rr->ready, &r->rr->end);
    return NULL;
}

/* --- the compute lane ------------------------------------------------------------------------- */

/* Checks one record; a bad one is a miss from its chunk on. */
static bool check_record(struct restore *r, const struct group *g, int i)
{
    const struct store_read *read = &g->reads[i];
    struct err e = {0};
    int rc = read->status;
    if (rc == 0)
        rc = store_read_check(read, &e);
    if (rc == 0 && read->n_bytes != r->rr->record_bytes[g->kind])
        rc = err_set(&e, ERR_CORRUPT, "record of %u bytes where %zu belong", read->n_bytes,
                     r->rr->record_bytes[g->kind]);
    if (rc != 0)
        lose_chunk(r, g->first_chunk + i, rc, e.msg[0] != 0 ? e.msg : err_name(rc));
    return rc == 0;
}

/* The view of positions [row, row + n) of the one sequence that is being restored. */
struct one_seq {
    struct ragged r;
    int32_t seq_row[2];
    const int32_t *tables[1];
};

static const struct ragged *rows_of(const struct restore *r, struct one_seq *q, int row,
                                    int n)
{
    q->seq_row[0] = 0;
    q->seq_row[1] = n;
    q->tables[0] = r->job->table->blocks;
    q->r = (struct ragged){.n_rows = n,
                           .n_seqs = 1,
                           .pos = r->rr->pos + row,
                           .seq_row = q->seq_row,
                           .tables = q->tables};
    return &q->r;
}

/* Hidden states where they lie. (The view is read only: the cast away of const is contained.) */
static struct mat hidden_rows(const struct restore *r, const struct store_read *read)
{
    return mat_of((void *)(uintptr_t)read->bytes, r->m->dtype, STORE_CHUNK_TOKENS,
                  r->m->cfg.n_embd);
}

static int project_and_fill(struct restore *r, int layer, int row, struct mat hidden)
{
    struct one_seq q;
    struct stream *s = r->rr->o.stream;
    struct kv_layer kv = kv_pool_layer(r->rr->o.pool, layer);
    struct mat kv_rows = mat_rows(r->rr->kv_rows, 0, hidden.rows);
    int rc = model_kv_project(r->m, r->rr->o.work, s, layer, hidden, kv_rows);
    if (rc != 0)
        return rc;
    return model_kv_fill(r->m, s, &kv, kv_rows, rows_of(r, &q, row, (int)hidden.rows));
}

/* Groups that have arrived by the same moment: their chunks are shared out together, since waking
 * the workers for eight chunks of 256 KiB costs a fifth of the work. */
enum { MAX_ARRIVED = 4 };

struct arrived {
    struct restore *r;
    struct group *groups[MAX_ARRIVED];
    int n_groups, n_chunks;
    atomic_int rc;
};

/* Checked and, where it is KV, put into the cache while it is still in this core's cache. */
static void take_chunk(struct arrived *a, struct group *g, int i, struct stream *s)
{
    struct restore *r = a->r;
    if (!check_record(r, g, i) || g->kind != STORE_KV)
        return;
    int chunk = g->first_chunk + i;
    struct kv_layer kv = kv_pool_layer(r->rr->o.pool, g->layer);
    int rc = model_kv_load(r->m, s, &kv, r->job->table->blocks[chunk], g->reads[i].bytes,
                           chunk * STORE_CHUNK_TOKENS);
    if (rc != 0)
        atomic_store(&a->rc, rc);
}

/* A thread's share of the chunks, counted through all groups. */
static void arrived_share(void *arg, int thread_idx, int n_threads)
{
    struct arrived *a = arg;
    struct stream *s = a->r->rr->inline_streams[thread_idx];
    long begin, end, first = 0;
    pool_share(a->n_chunks, 1, thread_idx, n_threads, &begin, &end);
    for (int g = 0; g < a->n_groups; first += a->groups[g++]->n_chunks) {
        long from = begin > first ? begin - first : 0;
        for (long i = from; i < a->groups[g]->n_chunks && first + i < end; i++)
            take_chunk(a, a->groups[g], (int)i, s);
    }
}

/* Records that lie behind one another are projected as one matrix (a GEMM of 512 rows), else one by
 * one: the bits are the same. */
static int project_group(struct restore *r, const struct group *g)
{
    size_t bytes = r->rr->record_bytes[STORE_HIDDEN];
    int n = atomic_load(&r->n_good) - g->first_chunk, rc = 0;
    n = n < g->n_chunks ? n : g->n_chunks;
    for (int i = 0, run; rc == 0 && i < n; i += run) {
        struct mat rows = hidden_rows(r, &g->reads[i]);
        for (run = 1; i + run < n; run++) {
            if (g->reads[i + run].bytes != g->reads[i].bytes + (size_t)run * bytes)
                break;
        }
        rows.rows *= run;
        rc = project_and_fill(r, g->layer, (g->first_chunk + i) * STORE_CHUNK_TOKENS, rows);
    }
    return rc;
}

/* From their records into the KV cache. A group behind a chunk that was lost is left out. */
static int compute_arrived(struct restore *r, struct group *const *groups, int n)
{
    struct arrived a = {.r = r};
    int rc;
    for (int i = 0; i < n; i++) {
        if (groups[i]->first_chunk >= atomic_load(&r->n_good))
            continue;
        a.groups[a.n_groups++] = groups[i];
        a.n_chunks += groups[i]->n_chunks;
    }
    if (a.n_chunks == 0)
        return 0;
    pool_run(r->m->dev->pool, arrived_share, &a);
    rc = atomic_load(&a.rc);
    for (int i = 0; rc == 0 && i < a.n_groups; i++) {
        if (a.groups[i]->kind == STORE_HIDDEN)
            rc = project_group(r, a.groups[i]);
    }
    return rc;
}

static bool recompute_remains(const struct restore *r)
{
    return r->re_layer < r->n_recompute;
}

/* One step of the recomputed prefix: up to GROUP_ROWS rows of one layer. The last layer needs its K
 * and V only. */
static int recompute_step(struct restore *r)
{
    int n_tokens = atomic_load(&r->n_good) * STORE_CHUNK_TOKENS;
    int n = n_tokens - r->re_row < GROUP_ROWS ? n_tokens - r->re_row : GROUP_ROWS;
    int rc = 0, l = r->re_layer, row = r->re_row;
    if (n > 0) {
        struct one_seq q;
        const struct ragged *rg = rows_of(r, &q, row, n);
        struct mat x = mat_rows(r->rr->prefix, row, n);
        struct kv_layer kv = kv_pool_layer(r->rr->o.pool, l);
        if (l == 0)
            rc = model_embed(r->m, r->rr->o.work, r->rr->o.stream, x, r->job->tokens + row,
                             rg);
        if (rc == 0 && l < r->n_recompute - 1)
            rc = model_layer(r->m, r->rr->o.work, r->rr->o.stream, l, x, x, &kv, rg, NULL);
        else if (rc == 0)
            rc = project_and_fill(r, l, row, x);
        r->out->n_by_method[0] += n / STORE_CHUNK_TOKENS;
        r->re_row += n;
    }
    if (r->re_row >= atomic_load(&r->n_good) * STORE_CHUNK_TOKENS) {
        r->re_layer++;
        r->re_row = 0;
    }
    return rc;
}

/* Groups that have arrived go first, so that their slots are free again; recomputation fills the
 * time in between. */
static int compute_all(struct restore *r)
{
    int rc = 0;
    for (;;) {
        struct group *g = queue_try_pop(r->rr->ready);
        int64_t t0 = clock_now_ns();
        if (g == NULL && recompute_remains(r) && rc == 0) {
            rc = recompute_step(r);
            if (rc != 0)
                atomic_store(&r->stop, true);
            r->out->compute_ns += clock_now_ns() - t0;
            continue;
        }
        if (g == NULL) {
            g = queue_pop(r->rr->ready);
            r->out->wait_ns += clock_now_ns() - t0;
            t0 = clock_now_ns();
        }
        struct group *arrived[MAX_ARRIVED];
        bool last = false;
        int n = 0;
        for (; g != NULL && !last;
             g = n < MAX_ARRIVED ? queue_try_pop(r->rr->ready) : NULL) {
            last = g == &r->rr->end;
            if (!last)
                arrived[n++] = g;
        }
        if (rc == 0)
            rc = compute_arrived(r, arrived, n);
        if (rc != 0)
            atomic_store(&r->stop, true);
        for (int i = 0; i < n; i++)
            queue_push(r->rr->free, arrived[i]);
        r->out->compute_ns += clock_now_ns() - t0;
        if (last)
            break;
    }
    while (rc == 0 && recompute_remains(r)) {
        int64_t t0 = clock_now_ns();
        rc = recompute_step(r);
        r->out->compute_ns += clock_now_ns() - t0;
    }
    return rc;
}

/* --- life cycle ------------------------------------------------------------------------------- */

/* A fresh reader, and every group unused. */
static int open_reader(struct restorer *r, struct err *err)
{
    while (queue_try_pop(r->free) != NULL)
        ;
    for (int i = 0; i < r->n_slots; i++)
        queue_push(r->free, &r->groups[i]);
    return store_reader_open(r->o.store, r->n_slots * GROUP, r->staging.ptr,
                             r->staging.bytes, &r->reader, err);
}

static int reserve_staging(struct restorer *r, struct err *err)
{
    size_t hidden = r->record_room[STORE_HIDDEN], kv = r->record_room[STORE_KV];
    r->slot_bytes = GROUP * (hidden > kv ? hidden : kv);
    size_t n = r->o.staging_bytes / r->slot_bytes;
    r->n_slots = n < 3 ? 3 : n > MAX_SLOTS ? MAX_SLOTS : (int)n;
    int rc = buf_alloc(r->o.model->dev, MEM_PINNED, (size_t)r->n_slots * r->slot_bytes,
                       &r->staging, err);
    if (rc != 0)
        return err_wrap(err, "staging for restores");
    memset(r->staging.ptr, 0,
           r->staging.bytes); /* page faults now, not in the first restore */
    r->groups = xcalloc((size_t)r->n_slots, sizeof *r->groups);
    r->free = queue_create((size_t)r->n_slots);
    r->ready = queue_create((size_t)r->n_slots + 1);
    for (int i = 0; i < r->n_slots; i++)
        r->groups[i].slot = (uint8_t *)r->staging.ptr + (size_t)i * r->slot_bytes;
    return open_reader(r, err);
}

static int reserve_scratch(struct restorer *r, struct err *err)
{
    const struct model *m = r->o.model;
    size_t kv = GROUP_ROWS * model_kv_bytes(m);
    size_t prefix = (size_t)r->o.max_tokens * model_hidden_bytes(m);
    int rc = buf_alloc(m->dev, MEM_DEVICE, kv + prefix, &r->scratch, err);
    if (rc != 0)
        return err_wrap(err, "scratch for restores");
    uint8_t *p = r->scratch.ptr;
    r->kv_rows = mat_of(p, m->dtype, GROUP_ROWS, 2 * model_kv_dim(m));
    r->prefix = mat_of(p + kv, m->dtype, r->o.max_tokens, m->cfg.n_embd);
    r->pos = xmalloc((size_t)r->o.max_tokens * sizeof *r->pos);
    for (int i = 0; i < r->o.max_tokens; i++)
        r->pos[i] = i;
    return 0;
}

static int reserve_streams(struct restorer *r, struct err *err)
{
    int n = pool_threads(r->o.model->dev->pool), rc = 0;
    r->inline_streams = xcalloc((size_t)n, sizeof *r->inline_streams);
    for (int i = 0; rc == 0 && i < n; i++)
        rc = stream_create(r->o.model->dev, STREAM_INLINE, &r->inline_streams[i], err);
    return rc;
}

int restorer_create(const struct restorer_opts *o, struct restorer **out, struct err *err)
{
    CHECK(model_work_rows(o->work) >= GROUP_ROWS && o->model->dev->unified);
    CHECK(o->model->cfg.n_layers <= STORE_MAX_LAYERS);
    struct restorer *r = xcalloc(1, sizeof *r);
    r->o = *o;
    r->record_bytes[STORE_HIDDEN] = STORE_CHUNK_TOKENS * model_hidden_bytes(o->model);
    r->record_bytes[STORE_KV] = STORE_CHUNK_TOKENS * model_kv_bytes(o->model);
    for (int k = 0; k < STORE_KINDS; k++)
        r->record_room[k] = round_up(r->record_bytes[k], STORE_ALIGN);
    int rc = reserve_staging(r, err);
    if (rc == 0)
        rc = reserve_scratch(r, err);
    if (rc == 0)
        rc = reserve_streams(r, err);
    if (rc != 0) {
        restorer_destroy(r);
        return rc;
    }
    *out = r;
    return 0;
}

void restorer_destroy(struct restorer *r)
{
    if (r == NULL)
        return;
    store_reader_close(r->reader);
    queue_destroy(r->free);
    queue_destroy(r->ready);
    free(r->groups);
    for (int i = 0; r->inline_streams != NULL && i < pool_threads(r->o.model->dev->pool);
         i++)
        stream_destroy(r->inline_streams[i]);
    free(r->inline_streams);
    buf_free(r->o.model->dev, &r->staging);
    buf_free(r->o.model->dev, &r->scratch);
    free(r->pos);
    free(r);
}

size_t restorer_bytes(const struct restorer *r)
{
    return r->staging.bytes + r->scratch.bytes;
}

/* --- one restore ------------------------------------------------------------------------------ */

/* Nothing comes back; the caller prefills. */
static int give_up(struct restore *r, const char *what, const struct err *why)
{
    snprintf(r->out->fault, sizeof r->out->fault, "%s: %.130s", what, why->msg);
    atomic_store(&r->n_good, 0);
    return 0;
}

static int run_lanes(struct restore *r, struct err *err)
{
    struct restorer *rr = r->rr;
    pthread_t io;
    int rc = pthread_create(&io, NULL, io_main, r);
    if (rc != 0) {
        err_set(&r->io_err, -rc, "%s", strerror(rc));
        return give_up(r, "no thread for reading", &r->io_err);
    }
    rc = compute_all(r);
    pthread_join(io, NULL);
    if (rc == 0)
        rc = stream_sync(rr->o.stream);
    if (r->io_rc != 0) {
        /* No single chunk is to blame, but nothing read is known to be complete.  What is in flight
         * is waited for; the next restore opens a fresh reader. */
        store_reader_close(rr->reader);
        rr->reader = NULL;
        give_up(r, "reading", &r->io_err);
    }
    return rc == 0 ? 0 : err_set(err, rc, "restoring: compute failed: %s", err_name(rc));
}

int restore_run(struct restorer *rr, const struct restore_job *job,
                struct restore_result *out, struct err *err)
{
    int64_t t0 = clock_now_ns();
    struct restore r = {.rr = rr, .job = job, .m = rr->o.model, .out = out};
    *out = (struct restore_result){0};
    CHECK(job->n_chunks > 0 && job->n_chunks * STORE_CHUNK_TOKENS <= rr->o.max_tokens);
    CHECK(job->plan->n_layers == r.m->cfg.n_layers);
    atomic_init(&r.n_good, job->n_chunks);
    atomic_init(&r.stop, false);
    pthread_mutex_init(&r.fault_lock, NULL);
    r.n_recompute = count_recomputed(job->plan);
    make_order(&r);
    check_records(&r);

    int rc = 0;
    if (rr->reader == NULL && open_reader(rr, &r.io_err) != 0)
        give_up(&r, "no reader", &r.io_err);
    else if (atomic_load(&r.n_good) > 0)
        rc = run_lanes(&r, err);
    out->n_chunks = atomic_load(&r.n_good);
    out->read_bytes = r.read_bytes;
    out->io_ns = r.io_ns;
    out->total_ns = clock_now_ns() - t0;
    pthread_mutex_destroy(&r.fault_lock);
    return rc;
}
