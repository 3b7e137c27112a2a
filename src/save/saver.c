/* saver.c - see saver.h: memory, sequences, and stage one. Stage two is save_writer.c.
 *
 * Invariants:
 * 1. A chunk is in exactly one place: a sequence's open chunks, the queue, or with the writer.
 * 2. Chunks of one sequence enter the queue in order, and the writer takes them in order.
 * 3. A caller that waits for memory waits until saver_is_busy is false. Tails of running
 *    sequences keep their memory until they are full, so no caller waits for those. */
#include "save/saver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/step.h"
#include "base/thread.h"
#include "save/saver_impl.h"
#include "tensor/group.h"

/* Pinned memory for layers on their way down. */
#define DOWN_BYTES ((size_t)64 << 20)

/* --- why saving ends -------------------------------------------------------------------------- */

const char *save_end_text(enum save_end e)
{
    switch (e) {
    case SAVE_END_BEHIND:
        return "the store's writer fell behind; a larger save buffer bridges it";
    case SAVE_END_MEMORY:
        return "there is no memory for it: the unfinished chunks of the running sequences "
               "fill the save buffer (make it larger, or run fewer sequences at once), or "
               "the machine's memory is used up";
    case SAVE_END_CAP:
        return "the cap of the store (store-cap) or the quota of its salt is reached, and "
               "nothing may be evicted";
    case SAVE_END_REFUSED:
        return "the store or the quota of its salt is full of chunks that waiting requests "
               "need sooner: raise the cap (store-cap) or the quota";
    case SAVE_END_SPACE:
        return "the disk is full: make room on it, or bound the store (store-cap)";
    case SAVE_END_PARENT:
        return "the chunk that it continues was evicted from the store";
    case SAVE_END_TAIL:
        return "the stored end of the context could not be read";
    case SAVE_END_ERASED:
        return "its context, or a part of it, was erased while it was computed";
    case SAVE_END_DEVICE:
        return "the device failed to copy its results";
    case SAVE_END_FAULT:
        return "the store failed; nothing is saved any more";
    case SAVE_GOES_ON:
    case SAVE_ENDS:
        break;
    }
    return "";
}

void save_end_seq(struct save_seq *q, enum save_end why)
{
    int going = SAVE_GOES_ON;
    shared_turn();
    if (atomic_compare_exchange_strong(&q->end, &going, (int)why))
        atomic_fetch_add(&q->saver->n_ended[why], 1);
}

enum save_end save_ended(const struct save_seq *q)
{
    return q == NULL ? SAVE_GOES_ON : (enum save_end)shared_load(&q->end);
}

/* --- life cycle ------------------------------------------------------------------------------- */

static void lay_out(const struct saver *s, const struct save_policy *p,
                    struct save_layout *out)
{
    size_t at = round_up(sizeof(struct save_chunk), SAVE_MEMORY_ALIGN);
    for (int l = 0; l < s->o.model->cfg.n_layers; l++) {
        for (int kind = 0; kind < STORE_KINDS; kind++) {
            out->at[l][kind] = at;
            if (p->kinds[l] & 1u << kind)
                at += round_up(s->record_bytes[kind], SAVE_MEMORY_ALIGN);
        }
    }
    out->n_bytes = at;
}

void saver_rest(struct saver *s)
{
    pthread_mutex_lock(&s->lock);
    if (s->memory.n_runs == 0)
        mem_give_back(s->memory.base, s->memory.n_bytes);
    pthread_mutex_unlock(&s->lock);
}

size_t saver_bytes(const struct saver *s)
{
    size_t down = s->down != NULL ? save_down_bytes(s->down) : 0;
    return s->memory.n_bytes + s->packed.bytes + s->tail_record.bytes + down;
}

static void release(struct saver *s)
{
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    save_down_destroy(s->down);
    save_memory_deinit(&s->memory);
    store_reader_close(s->reader);
    buf_free(s->o.model->dev, &s->packed);
    buf_free(s->o.model->dev, &s->tail_record);
    free(s->copies);
    stream_destroy(s->pack_stream);
    repack_close(s->idle.repack);
    free(s);
}

static int n_recurrent(const struct model *m)
{
    int n = 0;
    for (int l = 0; l < m->cfg.n_layers; l++)
        n += config_is_recurrent(&m->cfg, l);
    return n;
}

/* Returns the memory that one snapshot takes; 0 if no layer is recurrent. */
static size_t snapshot_bytes(const struct saver *s)
{
    size_t states = (size_t)n_recurrent(s->o.model) * s->state_bytes;
    return states > 0 ? round_up(sizeof(struct save_chunk), SAVE_MEMORY_ALIGN) + states : 0;
}

static int reserve_memory(struct saver *s, struct err *err)
{
    const struct model *m = s->o.model;
    struct save_policy both;
    struct save_layout full;
    memset(both.kinds, SAVE_HIDDEN | SAVE_KV, sizeof both.kinds);
    lay_out(s, &both, &full);
    /* n rows of one sequence touch at most n/64 full chunks plus a partial one at each end. */
    size_t least = ((size_t)s->o.max_batch_rows / STORE_CHUNK_TOKENS + 2) * full.n_bytes;
    size_t bytes = MAX(s->o.buffer_bytes, least) + 2 * snapshot_bytes(s);
    size_t smallest = sizeof(struct save_chunk) + s->record_bytes[STORE_HIDDEN];
    if (s->record_bytes[STORE_KV] < s->record_bytes[STORE_HIDDEN])
        smallest = sizeof(struct save_chunk) + s->record_bytes[STORE_KV];
    if (s->state_bytes > 0)
        smallest = MIN(smallest, snapshot_bytes(s));
    int rc = save_memory_init(&s->memory, bytes, smallest);
    if (rc != 0)
        return err_set(err, rc, "memory for chunks to be saved: %zu bytes", bytes);
    rc = buf_alloc(m->dev, MEM_HOST, s->record_bytes[STORE_KV], &s->packed, err);
    size_t record = MAX(s->record_bytes[STORE_KV], s->record_bytes[STORE_HIDDEN]);
    if (rc == 0)
        rc = buf_alloc(m->dev, MEM_PINNED, store_read_room(s->o.store, record),
                       &s->tail_record, err);
    return rc == 0 ? 0 : err_wrap(err, "memory for records as they are stored");
}

/* Returns the most copies for one layer. Each matrix takes one copy per decode row, or per chunk of
 * a prefill piece. */
static int max_copies(const struct saver *s)
{
    return 4 * s->o.max_batch_rows;
}

/* Makes the ring. It holds all layers of a batch of decodes, and of a full batch as many layers
 * as keep the device and the sorter busy. */
static int make_down(struct saver *s, struct err *err)
{
    const struct model *m = s->o.model;
    size_t row = model_hidden_bytes(m) + model_kv_bytes(m);
    size_t layer = (size_t)s->o.max_batch_rows * row + 1024, ring = DOWN_BYTES;
    if (ring > (size_t)m->cfg.n_layers * layer)
        ring = (size_t)m->cfg.n_layers * layer;
    if (ring < 3 * layer)
        ring = 3 * layer;
    struct save_down_opts o = {
        .dev = m->dev, .ring_bytes = ring, .max_moves = max_copies(s)};
    if (!m->dev->unified)
        return save_down_create(&o, &s->down, err);
    s->copies = xcalloc((size_t)max_copies(s), sizeof *s->copies);
    return 0;
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
    s->queue_end = &s->queue;
    for (int k = 0; k < STORE_KINDS; k++)
        s->record_bytes[k] = record_bytes(m, (enum store_kind)k);
    s->state_bytes = model_state_bytes(&m->cfg);
    pthread_mutex_init(&s->lock, NULL);
    clock_cond_init(&s->changed);
    int rc = reserve_memory(s, err);
    if (rc == 0)
        rc = make_down(s, err);
    if (rc == 0)
        rc = stream_create(m->dev, STREAM_INLINE, &s->pack_stream, err);
    if (rc == 0 && (rc = thread_create(&s->writer, save_writer_main, s)) != 0)
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
    CHECK(s->memory.n_runs == 0);
    release(s);
}

void saver_on_commit(struct saver *s, void (*fn)(void *arg), void *arg)
{
    pthread_mutex_lock(&s->lock);
    s->on_commit = fn;
    s->on_commit_arg = arg;
    pthread_mutex_unlock(&s->lock);
}

/* [lock] Makes the writer commit the queue soon. */
static void hurry(struct saver *s)
{
    s->is_awaited = saver_is_busy(s);
    pthread_cond_broadcast(&s->changed);
}

uint64_t saver_mark(struct saver *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t mark = s->n_queued;
    hurry(s);
    pthread_mutex_unlock(&s->lock);
    return mark;
}

bool saver_reached(const struct saver *s, uint64_t mark)
{
    return shared_load(&s->n_settled) >= mark;
}

uint64_t saver_settled(const struct saver *s)
{
    return shared_load(&s->n_settled);
}

void saver_hold_back(struct saver *s)
{
    pthread_mutex_lock(&s->lock);
    s->holds_back = true;
    pthread_mutex_unlock(&s->lock);
}

int saver_flush(struct saver *s, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    s->holds_back = false;
    pthread_mutex_unlock(&s->lock);
    uint64_t mark = saver_mark(s);
    pthread_mutex_lock(&s->lock);
    while (shared_load(&s->n_settled) < mark)
        pthread_cond_wait(&s->changed, &s->lock);
    int rc = s->fault;
    if (rc != 0 && err != NULL)
        *err = s->fault_err;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void saver_stats(struct saver *s, struct saver_stats *out)
{
    *out = (struct saver_stats){.n_chunks = shared_load(&s->n_chunks),
                                .n_tails = shared_load(&s->n_tails),
                                .n_shared = shared_load(&s->n_shared),
                                .n_packed = shared_load(&s->n_packed),
                                .n_repacked = shared_load(&s->n_repacked),
                                .bound_bytes = s->memory.n_bytes};
    for (int e = 0; e < SAVE_ENDS; e++)
        out->n_ended[e] = shared_load(&s->n_ended[e]);
    pthread_mutex_lock(&s->lock);
    const struct err *why = s->fault != 0     ? &s->fault_err
                            : s->disk_is_full ? &s->full_err
                                              : &(struct err){0};
    out->fault = s->fault != 0 ? s->fault : s->disk_is_full ? -ENOSPC : 0;
    snprintf(out->fault_why, sizeof out->fault_why, "%.199s", why->msg);
    for (int i = 0; i < s->memory.n_runs; i++)
        out->used_bytes += s->memory.runs[i].n_bytes;
    pthread_mutex_unlock(&s->lock);
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

void save_stored_kinds(const struct store_mask *mask, int n_layers, uint8_t *kinds)
{
    for (int l = 0; l < n_layers; l++)
        kinds[l] = (uint8_t)((store_mask_has(mask, l, STORE_HIDDEN) ? SAVE_HIDDEN : 0) |
                             (store_mask_has(mask, l, STORE_KV) ? SAVE_KV : 0));
}

double save_stored_share(const struct store_hit *hit, enum store_kind kind,
                         const struct model *m)
{
    int n = 0;
    for (int l = 0; l < m->cfg.n_layers; l++)
        n += store_mask_has(&hit->mask, l, kind);
    size_t bytes = record_bytes(m, kind) * (size_t)hit->n_tokens / STORE_CHUNK_TOKENS;
    return n > 0 ? MIN(1, hit->bytes[kind] / (n * (double)bytes)) : 1;
}

/* Returns whether the tail of the sequence has all records that are to be saved. */
static bool tail_suffices(const struct save_seq *q, int n_layers)
{
    uint8_t stored[STORE_MAX_LAYERS];
    save_stored_kinds(&q->tail.mask, n_layers, stored);
    return save_kinds_suffice(q->policy.kinds, stored, n_layers);
}

struct save_seq *save_open(struct saver *s, const struct save_begin *b)
{
    if (s == NULL || saves_nothing(b->policy, s->o.model->cfg.n_layers))
        return NULL;
    struct save_seq *q = xcalloc(1, sizeof *q);
    q->saver = s;
    q->parent = q->last = *b->parent;
    q->truncation = b->truncation;
    q->policy = *b->policy;
    q->owner = b->owner;
    q->epoch = b->epoch;
    q->use = b->use;
    q->is_document = b->is_document;
    lay_out(s, b->policy, &q->layout);
    q->first_open = q->tail_idx = (int)(b->first_token / STORE_CHUNK_TOKENS);
    q->max_open = s->o.max_batch_rows / STORE_CHUNK_TOKENS + 2;
    q->open = xcalloc((size_t)q->max_open, sizeof *q->open);
    q->n_refs = 1;
    /* True for the first chunk, whose parent is the root. */
    q->parent_seen = b->first_token < STORE_CHUNK_TOKENS;
    atomic_init(&q->committed, (long long)b->first_token);
    q->n_handed_over = b->first_token;
    if (b->first_token % STORE_CHUNK_TOKENS == 0)
        return q;
    q->tail = store_hold(s->o.store, b->tail);
    q->n_tail = (int)(b->first_token % STORE_CHUNK_TOKENS);
    q->last = q->tail.key;
    CHECK(q->n_tail <= q->tail.n_tokens);
    CHECK(tail_suffices(q, s->o.model->cfg.n_layers));
    return q;
}

void save_drop_ref_locked(struct save_seq *q)
{
    if (--q->n_refs > 0)
        return;
    if (q->pin.impl != NULL)
        store_release(q->saver->o.store, &q->pin, 1);
    if (q->tail.impl != NULL)
        store_release(q->saver->o.store, &q->tail, 1);
    for (int i = 0; i < q->n_fresh; i++)
        remote_offer(q->saver->o.remote, &q->fresh[i], q->use.ttl_s);
    free(q->fresh);
    free(q->open);
    free(q);
}

/* Waits until no rows are on their way to chunks that are given back. */
static void await_rows(const struct save_seq *q)
{
    if (q->saver->down != NULL && q->n_open > 0)
        save_down_await(q->saver->down, save_down_queued(q->saver->down));
}

static void drop_open_locked(struct save_seq *q)
{
    for (int i = 0; i < q->n_open; i++)
        save_memory_give(&q->saver->memory, (const uint8_t *)q->open[i]);
    q->n_open = 0;
    pthread_cond_broadcast(&q->saver->changed);
}

static void drop_open(struct save_seq *q)
{
    await_rows(q);
    pthread_mutex_lock(&q->saver->lock);
    drop_open_locked(q);
    pthread_mutex_unlock(&q->saver->lock);
}

void save_close(struct save_seq *q)
{
    if (q == NULL)
        return;
    struct saver *s = q->saver;
    await_rows(q);
    pthread_mutex_lock(&s->lock);
    drop_open_locked(q);
    save_drop_ref_locked(q);
    pthread_mutex_unlock(&s->lock);
}

void save_stop(struct save_seq *q)
{
    if (q != NULL)
        drop_open(q);
}

bool save_is_settled(const struct save_seq *q)
{
    return q == NULL || save_ended(q) != SAVE_GOES_ON ||
           shared_load(&q->committed) >= q->n_handed_over;
}

int64_t save_committed_tokens(const struct save_seq *q)
{
    return q == NULL ? 0 : (int64_t)shared_load(&q->committed);
}

/* --- stage one -------------------------------------------------------------------------------- */

/* Returns memory for one more chunk. If it returns NULL, *end gets the reason. With SAVE_TRY, *end
 * is SAVE_GOES_ON if the writer will free some memory. */
static struct save_chunk *take_chunk(struct save_seq *q, enum save_wait how,
                                     enum save_end *end)
{
    struct saver *s = q->saver;
    struct save_chunk *c;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        c = (struct save_chunk *)(void *)save_memory_take(&s->memory, q->layout.n_bytes);
        if (c != NULL)
            break;
        s->holds_back = false;
        pthread_cond_broadcast(&s->changed);
        if (how != SAVE_WAIT || !saver_is_busy(s))
            break;
        hurry(s);
        pthread_cond_wait(&s->changed, &s->lock);
    }
    *end = !saver_is_busy(s) ? SAVE_END_MEMORY
           : how == SAVE_TRY ? SAVE_GOES_ON
                             : SAVE_END_BEHIND;
    pthread_mutex_unlock(&s->lock);
    return c;
}

bool save_reserve(struct save_seq *q, int64_t pos, int n, enum save_wait how)
{
    if (q == NULL || n == 0)
        return true;
    int last = (int)((pos + n - 1) / STORE_CHUNK_TOKENS);
    while (save_ended(q) == SAVE_GOES_ON && q->first_open + q->n_open <= last) {
        enum save_end end;
        CHECK(pos / STORE_CHUNK_TOKENS >= q->first_open && q->n_open < q->max_open);
        struct save_chunk *c = take_chunk(q, how, &end);
        if (c == NULL && end == SAVE_GOES_ON)
            return false;
        if (c == NULL) {
            save_end_seq(q, end);
            break;
        }
        c->seq = q;
        c->chunk_idx = q->first_open + q->n_open;
        atomic_init(&c->lost, false);
        q->open[q->n_open++] = c;
    }
    if (save_ended(q) != SAVE_GOES_ON)
        drop_open(q);
    return true;
}

/* The host addresses of a batch's rows, by kind. On a device with memory of its own the rows are
 * there when they have come down. */
struct rows {
    /* First byte of row `first` of the batch. NULL: the kind is not saved in this layer. */
    const uint8_t *at[STORE_KINDS];
    size_t row_bytes[STORE_KINDS];
    int64_t first;
};

static void copy_later(struct saver *s, uint8_t *to, const uint8_t *at, size_t n_bytes)
{
    CHECK(s->n_copies < max_copies(s));
    s->copies[s->n_copies++] = (struct copy_part){to, at, n_bytes};
}

/* Copies rows [from, from + n) of the batch to rows [row, row + n) of a chunk's record. */
static void copy_rows(struct save_chunk *c, int l, enum store_kind kind, int64_t row,
                      const struct rows *src, int64_t from, int64_t n)
{
    struct saver *s = c->seq->saver;
    size_t bytes = src->row_bytes[kind];
    uint8_t *to = save_record(c, l, kind) + (size_t)row * bytes;
    const uint8_t *at = src->at[kind] + (size_t)(from - src->first) * bytes;
    if (s->down != NULL)
        save_down_move(s->down, to, at, (size_t)n * bytes, &c->lost);
    else
        copy_later(s, to, at, (size_t)n * bytes);
}

static void save_rows(const struct save_part *p, int l, const struct rows *src)
{
    struct save_seq *q = p->seq;
    unsigned kinds = q->policy.kinds[l];
    for (int64_t done = 0, n; done < p->n_rows; done += n) {
        int64_t row = (p->pos + done) % STORE_CHUNK_TOKENS;
        int i = (int)((p->pos + done) / STORE_CHUNK_TOKENS) - q->first_open;
        n = STORE_CHUNK_TOKENS - row;
        n = MIN(n, p->n_rows - done);
        if (i >= q->n_open)
            return; /* nothing was reserved, since saving had ended */
        if (kinds & SAVE_HIDDEN)
            copy_rows(q->open[i], l, STORE_HIDDEN, row, src, p->row + done, n);
        if (kinds & SAVE_KV)
            copy_rows(q->open[i], l, STORE_KV, row, src, p->row + done, n);
    }
}

static bool is_saved(const struct save_part *p)
{
    return p->seq != NULL && p->n_rows > 0 && save_ended(p->seq) == SAVE_GOES_ON;
}

/* Brings down the rows from the first saved one to the last, on a device with memory of its own. */
static void bring_down(struct save_down *d, const struct save_part *parts, int n_parts,
                       int l, struct rows *src, const struct mat m[STORE_KINDS])
{
    unsigned kinds = 0;
    int64_t end = 0;
    src->first = m[STORE_HIDDEN].rows;
    for (int i = 0; i < n_parts; i++) {
        if (!is_saved(&parts[i]))
            continue;
        kinds |= parts[i].seq->policy.kinds[l];
        src->first = MIN(parts[i].row, src->first);
        end = MAX(parts[i].row + parts[i].n_rows, end);
    }
    for (int k = 0; k < STORE_KINDS; k++)
        src->at[k] = kinds & 1u << k ? save_down_rows(d, m[k], k == STORE_KV, src->first,
                                                      end - src->first)
                                     : NULL;
}

/* Ends saving for the sequences of a batch whose rows the device could not copy: this chunk and
 * all behind it are missing. */
static void end_all(const struct save_part *parts, int n_parts)
{
    for (int i = 0; i < n_parts; i++) {
        if (is_saved(&parts[i]))
            save_end_seq(parts[i].seq, SAVE_END_DEVICE);
    }
}

static struct saver *saver_of(const struct save_part *parts, int n_parts)
{
    for (int i = 0; i < n_parts; i++) {
        if (is_saved(&parts[i]))
            return parts[i].seq->saver;
    }
    return NULL;
}

void save_layer(const struct save_part *parts, int n_parts, int l, struct mat hidden,
                struct mat kv_rows, struct stream *s)
{
    CHECK(hidden.ld == hidden.cols && kv_rows.ld == kv_rows.cols);
    const struct mat m[STORE_KINDS] = {[STORE_HIDDEN] = hidden, [STORE_KV] = kv_rows};
    struct saver *saver = saver_of(parts, n_parts);
    struct rows src = {.first = 0};
    if (saver == NULL)
        return;
    for (int k = 0; k < STORE_KINDS; k++) {
        src.at[k] = m[k].data;
        src.row_bytes[k] = (size_t)m[k].cols * dtype_bytes(m[k].dtype);
    }
    src.row_bytes[STORE_KV] *= (size_t)saver->o.model->dev->n_ranks;
    saver->n_copies = 0;
    if (saver->down != NULL) {
        save_down_begin(saver->down);
        bring_down(saver->down, parts, n_parts, l, &src, m);
    }
    for (int i = 0; i < n_parts; i++) {
        if (is_saved(&parts[i]))
            save_rows(&parts[i], l, &src);
    }
    int rc = saver->down != NULL ? save_down_end(saver->down, s)
                                 : stream_copy_all(s, saver->copies, saver->n_copies);
    if (rc != 0)
        end_all(parts, n_parts);
}

void save_layers_end(struct saver *saver, struct stream *s)
{
    if (saver->down != NULL)
        (void)save_down_join(saver->down, s); /* s remembers its failure */
}

/* Puts a chunk or a snapshot at the end of the queue. */
static void queue_put(struct save_seq *q, struct save_chunk *c)
{
    struct saver *s = q->saver;
    c->next = NULL;
    c->after = s->down != NULL ? save_down_queued(s->down) : 0;
    pthread_mutex_lock(&s->lock);
    *s->queue_end = c;
    s->queue_end = &c->next;
    s->n_queued++;
    q->n_refs++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* Hands the first open chunk to the writer, with n_tokens rows. */
static void enqueue(struct save_seq *q, const int32_t *tokens, int n_tokens,
                    bool has_snapshot)
{
    struct save_chunk *c = q->open[0];
    c->n_tokens = n_tokens;
    c->has_snapshot = has_snapshot;
    memset(c->tokens, 0, sizeof c->tokens);
    memcpy(c->tokens, tokens + (int64_t)c->chunk_idx * STORE_CHUNK_TOKENS,
           (size_t)n_tokens * sizeof *tokens);
    queue_put(q, c);
    q->n_handed_over = (int64_t)c->chunk_idx * STORE_CHUNK_TOKENS + n_tokens;
    q->first_open++;
    q->n_open--;
    memmove(q->open, q->open + 1, (size_t)q->n_open * sizeof *q->open);
}

void save_advance(struct save_seq *q, const int32_t *tokens, int64_t n_tokens)
{
    if (q == NULL)
        return;
    if (save_ended(q) != SAVE_GOES_ON) {
        drop_open(q);
        return;
    }
    while ((int64_t)(q->first_open + 1) * STORE_CHUNK_TOKENS <= n_tokens && q->n_open > 0)
        enqueue(q, tokens, STORE_CHUNK_TOKENS, false);
}

/* --- snapshots -------------------------------------------------------------------------------- */

/* Returns memory for a snapshot. NULL: more than half of all memory is taken, and chunks come
 * first. */
static struct save_chunk *take_snapshot(struct save_seq *q)
{
    struct saver *s = q->saver;
    size_t used = 0;
    uint8_t *run = NULL;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->memory.n_runs; i++)
        used += s->memory.runs[i].n_bytes;
    if (used <= s->memory.n_bytes / 2)
        run = save_memory_take(&s->memory, snapshot_bytes(s));
    pthread_mutex_unlock(&s->lock);
    return (struct save_chunk *)(void *)run;
}

/* Copies all states to a new snapshot behind n_tokens tokens. Returns NULL if there is no memory
 * for it, or a state stands elsewhere. */
static struct save_chunk *copy_states(struct save_seq *q, int64_t n_tokens,
                                      const struct save_states *states)
{
    struct saver *s = q->saver;
    const struct model *m = s->o.model;
    struct save_chunk *c = states != NULL && states->state >= 0 && s->state_bytes > 0
                               ? take_snapshot(q)
                               : NULL;
    bool is_there = c != NULL;
    for (int l = 0, i = 0; is_there && l < m->cfg.n_layers; l++) {
        const struct kv_layer *of = &states->layers[l];
        if (!config_is_recurrent(&m->cfg, l))
            continue;
        const uint8_t *from = of->blocks + (size_t)states->state * of->block_stride;
        c->seq = q;
        is_there = model_state_seen(from) == n_tokens;
        if (is_there)
            memcpy(save_state(c, i++), from, s->state_bytes);
    }
    if (c != NULL && !is_there) {
        pthread_mutex_lock(&s->lock);
        save_memory_give(&s->memory, (const uint8_t *)c);
        pthread_mutex_unlock(&s->lock);
        return NULL;
    }
    if (c != NULL) {
        c->chunk_idx = (int)((n_tokens - 1) / STORE_CHUNK_TOKENS);
        c->n_tokens = 0;
        atomic_init(&c->lost, false);
    }
    return c;
}

bool save_states(struct save_seq *q, int64_t n_tokens, const struct save_states *states)
{
    if (q == NULL || save_ended(q) != SAVE_GOES_ON || n_tokens == 0)
        return false;
    CHECK(n_tokens == q->n_handed_over && n_tokens % STORE_CHUNK_TOKENS == 0);
    struct save_chunk *c = copy_states(q, n_tokens, states);
    if (c != NULL)
        queue_put(q, c);
    return c != NULL;
}

static void enqueue_tail(struct save_seq *q, const int32_t *tokens, int64_t n_tokens,
                         const struct save_states *states)
{
    int64_t n = n_tokens - (int64_t)q->first_open * STORE_CHUNK_TOKENS;
    bool is_news = q->tail.impl == NULL || q->first_open != q->tail_idx || n > q->n_tail;
    CHECK(n < STORE_CHUNK_TOKENS);
    if (!is_news)
        return;
    struct save_chunk *c = copy_states(q, n_tokens, states);
    enqueue(q, tokens, (int)n, c != NULL);
    if (c != NULL)
        queue_put(q, c);
}

void save_idle(struct save_seq *q, const int32_t *tokens, int64_t n_tokens,
               const struct save_states *states)
{
    if (q == NULL)
        return;
    bool has_tail = n_tokens > (int64_t)q->first_open * STORE_CHUNK_TOKENS;
    if (save_ended(q) == SAVE_GOES_ON && q->n_open > 0 && has_tail)
        enqueue_tail(q, tokens, n_tokens, states);
    else if (n_tokens == q->n_handed_over && n_tokens % STORE_CHUNK_TOKENS == 0)
        (void)save_states(q, n_tokens, states);
    pthread_mutex_lock(&q->saver->lock);
    hurry(q->saver);
    pthread_mutex_unlock(&q->saver->lock);
}
