/* saver.c - see saver.h.
 *
 * Owns: the chunk buffers, the queue, the writer thread.
 * Invariants:
 *  1. A buffer is in exactly one place: the free list, a sequence's open chunks, or the queue.
 *  2. Chunks of one sequence enter the queue in order and the writer takes them in order, so what is
 *     committed of a sequence is always a prefix of it.
 *  3. n_in_flight counts buffers that are queued or being written; who waits for a free buffer or
 *     for a flush waits for that number to fall. */
#include "state/saver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/mem.h"

enum {
    MAX_UNCOMMITTED = 64, /* chunks appended before a commit is due in any case */
};

struct save_seq {
    struct saver *saver;
    /* of the next chunk to be written; the writer's, as hashing is its work */
    struct sha256 parent;
    /* the writer's: the last committed chunk. It stays while it may be continued */
    struct store_hit pin;
    struct save_policy policy;
    int first_open; /* chunk index of open[0] */
    int n_open, max_open;
    uint8_t **open;         /* buffers of chunks that are being filled, in order */
    atomic_llong committed; /* tokens */
    atomic_bool shed;
    int n_refs; /* the owner, and every chunk in flight; under the saver's lock */
};

struct job {
    struct save_seq *seq;
    uint8_t *buf;
    int chunk_idx;
    int32_t tokens[STORE_CHUNK_TOKENS];
};

struct saver {
    struct saver_opts o;
    uint8_t *mem;
    size_t buf_bytes, n_bufs;
    size_t hidden_bytes, kv_bytes; /* one record, and its room in a buffer: */
    size_t hidden_room, kv_room;

    struct stream *pack_stream; /* the writer's */
    uint8_t *packed; /* K and V of one chunk in a block's layout [n_layers][kv_room] */

    pthread_t writer;
    pthread_mutex_t lock; /* guards all that follows, and n_refs of sequences */
    pthread_cond_t changed;
    uint8_t **free_bufs;
    size_t n_free;
    struct job *jobs; /* ring of n_bufs: every job has a buffer, so it cannot overflow */
    size_t head, n_jobs, n_in_flight;
    bool quit;
    int fault; /* the first code that the store returned; saving is over */
    struct err fault_err;
};

/* --- buffers ---------------------------------------------------------------------------------- */

static uint8_t *record_of(const struct saver *s, uint8_t *buf, int l, enum store_kind kind)
{
    size_t layer = (size_t)l * (s->hidden_room + s->kv_room);
    return buf + layer + (kind == STORE_KV ? s->hidden_room : 0);
}

/* A free buffer; NULL where there is none (and, for SAVE_WAIT, none will come). Takes the lock. */
static uint8_t *take_buf(struct saver *s, enum save_wait how)
{
    pthread_mutex_lock(&s->lock);
    while (how == SAVE_WAIT && s->n_free == 0 && s->n_in_flight > 0)
        pthread_cond_wait(&s->changed, &s->lock);
    uint8_t *buf = s->n_free > 0 ? s->free_bufs[--s->n_free] : NULL;
    pthread_mutex_unlock(&s->lock);
    return buf;
}

static void give_buf_locked(struct saver *s, uint8_t *buf)
{
    CHECK(s->n_free < s->n_bufs);
    s->free_bufs[s->n_free++] = buf;
}

static void drop_ref_locked(struct save_seq *q)
{
    if (--q->n_refs > 0)
        return;
    if (q->pin.impl != NULL)
        store_release(q->saver->o.store, &q->pin, 1);
    free(q->open);
    free(q);
}

/* --- the writer ------------------------------------------------------------------------------- */

static void set_fault(struct saver *s, int rc, const struct err *e)
{
    pthread_mutex_lock(&s->lock);
    bool first = s->fault == 0;
    if (first) {
        s->fault = rc;
        s->fault_err = *e;
    }
    pthread_mutex_unlock(&s->lock);
    if (first && s->o.warn != NULL) {
        char text[640];
        snprintf(text, sizeof text, "saving stopped, generation goes on: %s", e->msg);
        s->o.warn(s->o.warn_arg, text);
    }
}

/* Lays one layer's K and V out as a KV block, so that a restore need not transpose. */
static int pack(struct saver *s, const struct job *j, int l, const void **bytes)
{
    const struct model *m = s->o.model;
    uint8_t *chunk = s->packed + (size_t)l * s->kv_room;
    struct mat rows = mat_of(record_of(s, j->buf, l, STORE_KV), m->dtype,
                             STORE_CHUNK_TOKENS, 2 * model_kv_dim(m));
    *bytes = chunk;
    return model_kv_pack(m, s->pack_stream, chunk, rows);
}

static int append(struct saver *s, const struct job *j, struct err *err)
{
    struct store_record records[STORE_MAX_LAYERS * STORE_KINDS];
    int n = 0;
    for (int l = 0; l < s->o.model->cfg.n_layers; l++) {
        for (int kind = 0; kind < STORE_KINDS; kind++) {
            if (!(j->seq->policy.kinds[l] & 1u << kind))
                continue;
            const void *bytes = record_of(s, j->buf, l, (enum store_kind)kind);
            int rc = kind == STORE_KV ? pack(s, j, l, &bytes) : 0;
            if (rc != 0)
                return err_set(err, rc, "packing a chunk: %s", err_name(rc));
            records[n++] = (struct store_record){
                .layer = l,
                .kind = (enum store_kind)kind,
                .bytes = bytes,
                .n_bytes = (uint32_t)(kind == STORE_KV ? s->kv_bytes : s->hidden_bytes)};
        }
    }
    struct store_chunk c = {.key = store_chunk_key(&j->seq->parent, j->tokens),
                            .parent = j->seq->parent,
                            .fingerprint = s->o.fingerprint,
                            .chunk_idx = (uint32_t)j->chunk_idx,
                            .records = records,
                            .n_records = n};
    memcpy(c.tokens, j->tokens, sizeof c.tokens);
    int rc = store_append(s->o.store, &c, err);
    if (rc == 0)
        j->seq->parent = c.key;
    return rc;
}

/* What the writer has appended since its last commit. */
struct batch {
    int n;
    struct save_seq *seq[MAX_UNCOMMITTED];
    int chunk_idx[MAX_UNCOMMITTED];
};

/* What was reported committed must not be evicted under a sequence that goes on: its next chunk could
 * never be found.  So the last chunk is pinned, and with it all before it. */
static void pin_last(struct saver *s, struct save_seq *q)
{
    struct store_hit hit = {0};
    (void)store_pin(s->o.store, &q->parent, &hit);
    if (q->pin.impl != NULL)
        store_release(s->o.store, &q->pin, 1);
    q->pin = hit;
}

static void commit(struct saver *s, struct batch *b)
{
    struct err err = {0};
    if (b->n == 0)
        return;
    int rc = store_commit(s->o.store, &err);
    if (rc != 0)
        set_fault(s, rc, &err);
    for (int i = 0; rc == 0 && i < b->n; i++)
        pin_last(s, b->seq[i]);
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < b->n; i++) {
        if (rc == 0)
            atomic_store(&b->seq[i]->committed,
                         (long long)(b->chunk_idx[i] + 1) * STORE_CHUNK_TOKENS);
        else
            atomic_store(&b->seq[i]->shed, true);
        drop_ref_locked(b->seq[i]);
    }
    s->n_in_flight -= (size_t)b->n;
    b->n = 0;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* A chunk that does not fit under the store's cap, or whose parent was evicted meanwhile, ends the
 * saving of its sequence; any other failure is the store's and ends saving. */
static bool is_of_sequence(int rc)
{
    return rc == ERR_LIMIT || rc == ERR_NOT_FOUND;
}

static void write_job(struct saver *s, struct job *j, struct batch *b)
{
    struct err err = {0};
    int rc = s->fault != 0 || atomic_load(&j->seq->shed) ? ERR_CANCELLED
                                                         : append(s, j, &err);
    if (rc != 0 && rc != ERR_CANCELLED && !is_of_sequence(rc))
        set_fault(s, rc, &err);
    pthread_mutex_lock(&s->lock);
    give_buf_locked(s, j->buf);
    if (rc == 0) {
        b->seq[b->n] = j->seq;
        b->chunk_idx[b->n++] = j->chunk_idx;
    } else {
        atomic_store(&j->seq->shed, true);
        drop_ref_locked(j->seq);
        s->n_in_flight--;
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static bool next_job(struct saver *s, struct job *j, bool wait)
{
    pthread_mutex_lock(&s->lock);
    while (wait && s->n_jobs == 0 && !s->quit)
        pthread_cond_wait(&s->changed, &s->lock);
    bool got = s->n_jobs > 0;
    if (got) {
        *j = s->jobs[s->head];
        s->head = (s->head + 1) % s->n_bufs;
        s->n_jobs--;
    }
    pthread_mutex_unlock(&s->lock);
    return got;
}

static void *writer_main(void *arg)
{
    struct saver *s = arg;
    struct batch b = {0};
    struct job j;
    for (;;) {
        if (!next_job(s, &j, b.n == 0)) {
            if (b.n == 0)
                return NULL; /* quit, and nothing left */
            commit(s, &b);   /* caught up */
            continue;
        }
        write_job(s, &j, &b);
        if (b.n == MAX_UNCOMMITTED)
            commit(s, &b);
    }
}

/* --- life cycle ------------------------------------------------------------------------------- */

size_t saver_bytes(const struct saver *s)
{
    return s->n_bufs * s->buf_bytes + (size_t)s->o.model->cfg.n_layers * s->kv_room;
}

static void release(struct saver *s)
{
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    mem_unmap(s->mem, saver_bytes(s));
    stream_destroy(s->pack_stream);
    free(s->free_bufs);
    free(s->jobs);
    free(s);
}

int saver_create(const struct saver_opts *o, struct saver **out, struct err *err)
{
    const struct model *m = o->model;
    if (m->cfg.n_layers > STORE_MAX_LAYERS)
        return err_set(err, ERR_UNSUPPORTED,
                       "the store holds at most %d layers, the model has %d",
                       STORE_MAX_LAYERS, m->cfg.n_layers);
    struct saver *s = xcalloc(1, sizeof *s);
    s->o = *o;
    s->hidden_bytes = STORE_CHUNK_TOKENS * model_hidden_bytes(m);
    s->kv_bytes = STORE_CHUNK_TOKENS * model_kv_bytes(m);
    s->hidden_room = round_up(s->hidden_bytes, STORE_ALIGN);
    s->kv_room = round_up(s->kv_bytes, STORE_ALIGN);
    s->buf_bytes = (size_t)m->cfg.n_layers * (s->hidden_room + s->kv_room);
    /* Of n rows in a batch, a sequence touches at most n / 64 + 2 chunks. */
    size_t least = (size_t)o->max_batch_rows / STORE_CHUNK_TOKENS +
                   2 * (size_t)o->max_seqs + 1;
    s->n_bufs = o->buffer_bytes / s->buf_bytes > least ? o->buffer_bytes / s->buf_bytes
                                                       : least;
    s->mem = mem_map(saver_bytes(s));
    if (s->mem == NULL) {
        size_t bytes = saver_bytes(s);
        free(s);
        return err_set(err, -ENOMEM, "chunk buffers for saving: %zu bytes", bytes);
    }
    s->packed = s->mem + s->n_bufs * s->buf_bytes;
    s->free_bufs = xcalloc(s->n_bufs, sizeof *s->free_bufs);
    s->jobs = xcalloc(s->n_bufs, sizeof *s->jobs);
    for (size_t i = s->n_bufs; i-- > 0;)
        give_buf_locked(s, s->mem + i * s->buf_bytes); /* low addresses are reused first */
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    int rc = stream_create(m->dev, STREAM_INLINE, &s->pack_stream, err);
    if (rc == 0 && (rc = pthread_create(&s->writer, NULL, writer_main, s)) != 0)
        rc = err_set(err, -rc, "the thread that saves: %s", strerror(rc));
    if (rc != 0) {
        release(s);
        return rc;
    }
    *out = s;
    return 0;
}

void saver_destroy(struct saver *s)
{
    if (s == NULL)
        return;
    pthread_mutex_lock(&s->lock);
    s->quit = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->writer, NULL);
    CHECK(s->n_free == s->n_bufs);
    release(s);
}

int saver_flush(struct saver *s, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    while (s->n_in_flight > 0)
        pthread_cond_wait(&s->changed, &s->lock);
    int rc = s->fault;
    if (rc != 0 && err != NULL)
        *err = s->fault_err;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* --- one sequence ----------------------------------------------------------------------------- */

static bool saves_nothing(const struct save_policy *p, int n_layers)
{
    for (int l = 0; l < n_layers; l++) {
        if (p->kinds[l] != 0)
            return false;
    }
    return true;
}

struct save_seq *save_open(struct saver *s, const struct sha256 *parent,
                           const struct save_policy *policy, int64_t first_token)
{
    CHECK(first_token % STORE_CHUNK_TOKENS == 0);
    if (s == NULL || saves_nothing(policy, s->o.model->cfg.n_layers))
        return NULL;
    struct save_seq *q = xcalloc(1, sizeof *q);
    q->saver = s;
    q->parent = *parent;
    q->policy = *policy;
    q->first_open = (int)(first_token / STORE_CHUNK_TOKENS);
    q->max_open = s->o.max_batch_rows / STORE_CHUNK_TOKENS + 2;
    q->open = xcalloc((size_t)q->max_open, sizeof *q->open);
    q->n_refs = 1;
    atomic_init(&q->committed, (long long)first_token);
    return q;
}

static void drop_open(struct save_seq *q)
{
    pthread_mutex_lock(&q->saver->lock);
    for (int i = 0; i < q->n_open; i++)
        give_buf_locked(q->saver, q->open[i]);
    q->n_open = 0;
    pthread_cond_broadcast(&q->saver->changed);
    pthread_mutex_unlock(&q->saver->lock);
}

void save_close(struct save_seq *q)
{
    if (q == NULL)
        return;
    struct saver *s = q->saver;
    drop_open(q);
    pthread_mutex_lock(&s->lock);
    drop_ref_locked(q);
    pthread_mutex_unlock(&s->lock);
}

bool save_reserve(struct save_seq *q, int64_t pos, int n, enum save_wait how)
{
    if (q == NULL || n == 0)
        return true;
    int last = (int)((pos + n - 1) / STORE_CHUNK_TOKENS);
    while (!atomic_load(&q->shed) && q->first_open + q->n_open <= last) {
        CHECK(pos / STORE_CHUNK_TOKENS >= q->first_open && q->n_open < q->max_open);
        uint8_t *buf = take_buf(q->saver, how);
        if (buf != NULL)
            q->open[q->n_open++] = buf;
        else if (how == SAVE_TRY)
            return false;
        else
            atomic_store(&q->shed, true);
    }
    if (atomic_load(&q->shed))
        drop_open(q);
    return true;
}

static void copy_rows(uint8_t *record, int64_t row, struct mat src, int64_t first,
                      int64_t n)
{
    size_t row_bytes = (size_t)src.cols * dtype_bytes(src.dtype);
    const uint8_t *from = (const uint8_t *)src.data;
    CHECK(src.ld == src.cols);
    memcpy(record + (size_t)row * row_bytes, from + (size_t)first * row_bytes,
           (size_t)n * row_bytes);
}

void save_rows(struct save_seq *q, int l, int64_t pos, struct mat hidden,
               struct mat kv_rows)
{
    if (q == NULL || atomic_load(&q->shed))
        return;
    unsigned kinds = q->policy.kinds[l];
    for (int64_t done = 0; done < hidden.rows;) {
        int64_t row = (pos + done) % STORE_CHUNK_TOKENS;
        int64_t n = STORE_CHUNK_TOKENS - row;
        n = n < hidden.rows - done ? n : hidden.rows - done;
        int i = (int)((pos + done) / STORE_CHUNK_TOKENS) - q->first_open;
        if (i >= q->n_open)
            return; /* shed by the writer between save_reserve and here */
        if (kinds & SAVE_HIDDEN)
            copy_rows(record_of(q->saver, q->open[i], l, STORE_HIDDEN), row, hidden, done,
                      n);
        if (kinds & SAVE_KV)
            copy_rows(record_of(q->saver, q->open[i], l, STORE_KV), row, kv_rows, done, n);
        done += n;
    }
}

static void enqueue(struct save_seq *q, const int32_t *tokens)
{
    struct saver *s = q->saver;
    int idx = q->first_open;
    struct job j = {.seq = q, .buf = q->open[0], .chunk_idx = idx};
    memcpy(j.tokens, tokens + (int64_t)idx * STORE_CHUNK_TOKENS, sizeof j.tokens);
    pthread_mutex_lock(&s->lock);
    CHECK(s->n_jobs < s->n_bufs);
    s->jobs[(s->head + s->n_jobs++) % s->n_bufs] = j;
    s->n_in_flight++;
    q->n_refs++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    q->n_open--;
    memmove(q->open, q->open + 1, (size_t)q->n_open * sizeof *q->open);
}

void save_advance(struct save_seq *q, const int32_t *tokens, int64_t n_tokens)
{
    if (q == NULL)
        return;
    if (atomic_load(&q->shed)) {
        drop_open(q);
        return;
    }
    while ((int64_t)(q->first_open + 1) * STORE_CHUNK_TOKENS <= n_tokens && q->n_open > 0) {
        enqueue(q, tokens);
        q->first_open++;
    }
}

int64_t save_committed_tokens(const struct save_seq *q)
{
    return q == NULL ? 0 : (int64_t)atomic_load(&q->committed);
}

bool save_is_shed(const struct save_seq *q)
{
    return q != NULL && atomic_load(&q->shed);
}
