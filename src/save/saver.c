/* saver.c - see saver.h: life cycle, sequences; stage one; stage two, the writer's thread.
 *
 * Invariants:
 * 1. A chunk is in exactly one place: a sequence's open chunks, the queue, or with the writer.
 * 2. Chunks of one sequence enter the queue in order, and the writer takes them in order. So the
 *    committed chunks of a sequence are always a prefix of it.
 * 3. A caller that waits for memory waits until saver_is_busy is false. Tails of running
 *    sequences keep their memory until they are full, so no caller waits for those. */
#include "save/saver.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/step.h"
#include "base/thread.h"
#include "save/bugs.h"
#include "save/snapshots.h"
#include "save/saver_impl.h"
#include "store/chain.h"
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

/* Ends the saving of a sequence. The first reason stays. Any thread. */
static void save_end_seq(struct save_seq *q, enum save_end why)
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

static void *save_writer_main(void *saver);

static void lay_out(const struct saver *s, const struct save_policy *p,
                    struct save_layout *out)
{
    size_t at = round_up(sizeof(struct save_chunk), SAVE_MEMORY_ALIGN);
    for (int l = 0; l < config_n_keeping(&s->o.model->cfg); l++) {
        for (int kind = 0; kind < STORE_KINDS; kind++) {
            out->at[l][kind] = at;
            if (p->kinds[l] & 1u << kind)
                at += round_up(record_bytes(s->o.model, l, (enum store_kind)kind),
                               SAVE_MEMORY_ALIGN);
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
    stream_destroy(s->pack_stream);
    buf_free(s->o.model->dev, &s->packed);
    buf_free(s->o.model->dev, &s->tail_record);
    free(s->copies);
    repack_close(s->idle.repack);
    free(s);
}

static int n_recurrent(const struct model *m)
{
    int n = 0;
    for (int l = 0; l < config_n_keeping(&m->cfg); l++)
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
    size_t smallest = sizeof(struct save_chunk) +
                      MIN(s->record_bytes[STORE_KV], s->record_bytes[STORE_HIDDEN]);
    if (s->state_bytes > 0)
        smallest = MIN(smallest, snapshot_bytes(s));
    int rc = save_memory_init(&s->memory, bytes, smallest);
    if (rc != 0)
        return err_set(err, rc, "memory for chunks to be saved: %zu bytes", bytes);
    rc = buf_alloc(m->dev, MEM_HOST, s->record_bytes[STORE_KV], &s->packed, err);
    size_t record = MAX(s->record_bytes[STORE_KV], s->record_bytes[STORE_HIDDEN]);
    record = MAX(record, s->state_bytes);
    if (rc == 0)
        rc = buf_alloc(m->dev, MEM_PINNED, store_read_room(s->o.store, record),
                       &s->tail_record, err);
    return rc == 0 ? 0 : err_wrap(err, "memory for records as they are stored");
}

/* Returns a bound on one layer's copies: each matrix takes at most one per row. */
static int max_copies(const struct saver *s)
{
    return 4 * s->o.max_batch_rows;
}

/* Makes the ring. It holds all layers of a batch of decodes, and of a full batch as many layers
 * as keep the device and the sorter busy. */
static int make_down(struct saver *s, struct err *err)
{
    const struct model *m = s->o.model;
    size_t row = model_hidden_bytes(m) + model_most_kv_bytes(m);
    size_t layer = (size_t)s->o.max_batch_rows * row + 1024;
    size_t all = (size_t)config_n_keeping(&m->cfg) * layer;
    size_t ring = MAX(MIN(DOWN_BYTES, all), 3 * layer);
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
    if (config_n_keeping(&m->cfg) > STORE_MAX_LAYERS)
        return err_set(err, ERR_UNSUPPORTED,
                       "the store holds at most %d layers, the model has %d",
                       STORE_MAX_LAYERS, config_n_keeping(&m->cfg));
    struct saver *s = xcalloc(1, sizeof *s);
    s->o = *o;
    s->queue_end = &s->queue;
    if (s->o.input_tokens == 0)
        s->o.input_tokens = SNAPSHOT_INPUTS;
    for (int k = 0; k < STORE_KINDS; k++)
        s->record_bytes[k] = record_most_bytes(m, (enum store_kind)k);
    s->state_bytes = model_state_bytes(&m->cfg);
    s->apart = o->remote == NULL ? save_apart(&m->cfg) : (struct layer_set){{0}};
    store_keep_apart(o->store, &o->fingerprint, &s->apart);
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
    out->used_bytes = save_memory_used(&s->memory);
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
                         bool is_snapshot, const struct model *m)
{
    size_t bytes = 0;
    for (int l = 0; l < config_n_keeping(&m->cfg); l++)
        if (store_mask_has(&hit->mask, l, kind))
            bytes += is_snapshot ? model_state_bytes(&m->cfg)
                                 : record_bytes(m, l, kind) * (size_t)hit->n_tokens /
                                       STORE_CHUNK_TOKENS;
    return bytes > 0 ? MIN(1, hit->bytes[kind] / (double)bytes) : 1;
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
    if (s == NULL || saves_nothing(b->policy, config_n_keeping(&s->o.model->cfg)))
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
    q->first_chunk = (int)(b->first_token / STORE_CHUNK_TOKENS);
    q->prompt_chunks = (int)(MAX(b->n_prompt - 1, 0) / STORE_CHUNK_TOKENS);
    if (b->first_token % STORE_CHUNK_TOKENS == 0)
        return q;
    q->tail = store_hold(s->o.store, b->tail);
    q->n_tail = (int)(b->first_token % STORE_CHUNK_TOKENS);
    q->last = q->tail.key;
    CHECK(q->n_tail <= q->tail.n_tokens);
    CHECK(tail_suffices(q, config_n_keeping(&s->o.model->cfg)));
    return q;
}

/* [lock] With the last reference frees the sequence, ends its pins, and offers chunks that waited
 * for its end to the remote. */
static void save_drop_ref_locked(struct save_seq *q)
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

/* Returns memory for one more chunk. Returns NULL if there is none, and sets *end to the reason why
 * saving ends, or to SAVE_GOES_ON if `how` is SAVE_TRY and the writer will free some memory. */
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
 * there when they have been copied to the host. */
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

/* Returns memory for a snapshot; NULL if more than half of all memory is taken. */
static struct save_chunk *take_snapshot(struct save_seq *q)
{
    struct saver *s = q->saver;
    uint8_t *run = NULL;
    pthread_mutex_lock(&s->lock);
    if (save_memory_used(&s->memory) <= s->memory.n_bytes / 2)
        run = save_memory_take(&s->memory, snapshot_bytes(s));
    pthread_mutex_unlock(&s->lock);
    return (struct save_chunk *)(void *)run;
}

/* Copies all states to a new snapshot behind n_tokens tokens. Returns NULL if there is no memory
 * for it, or if a state is not that behind exactly these tokens. */
static struct save_chunk *copy_states(struct save_seq *q, int64_t n_tokens,
                                      const struct save_states *states)
{
    struct saver *s = q->saver;
    const struct model *m = s->o.model;
    struct save_chunk *c = states != NULL && states->state >= 0 && s->state_bytes > 0
                               ? take_snapshot(q)
                               : NULL;
    bool is_there = c != NULL;
    for (int l = 0, i = 0; is_there && l < config_n_keeping(&m->cfg); l++) {
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

/* Hands the unfinished last chunk to the writer, and a snapshot behind it if there is memory. Does
 * nothing if the stored tail already has these tokens. */
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

/* --- stage two: the writer: faults of the store ----------------------------------------------- */

static void warn_user(const struct saver *s, const char *what, const struct err *e)
{
    char text[640];
    snprintf(text, sizeof text, "%s, generation goes on: %s", what, e->msg);
    if (s->o.warn != NULL)
        s->o.warn(s->o.warn_arg, text);
}

/* Ends saving for all sequences. The first fault stays. */
static void set_fault(struct saver *s, int rc, const struct err *e)
{
    pthread_mutex_lock(&s->lock);
    bool first = s->fault == 0;
    if (first) {
        s->fault = rc;
        s->fault_err = *e;
    }
    pthread_mutex_unlock(&s->lock);
    if (first)
        warn_user(s, "saving stopped until a restart", e);
}

/* Notes that the disk is full. That is not a fault: the store continues once there is room. */
static void note_full_disk(struct saver *s, const struct err *e)
{
    pthread_mutex_lock(&s->lock);
    bool first = !s->disk_is_full;
    s->disk_is_full = true;
    s->full_err = *e;
    pthread_mutex_unlock(&s->lock);
    if (first)
        warn_user(s, "nothing is saved while the disk is full", e);
}

/* Notes that there is room: bytes were committed. */
static void note_room(struct saver *s)
{
    pthread_mutex_lock(&s->lock);
    s->disk_is_full = false;
    pthread_mutex_unlock(&s->lock);
}

/* --- continuing a stored tail ----------------------------------------------------------------- */

static bool continues_tail(const struct save_chunk *c)
{
    return c->seq->tail.impl != NULL && c->chunk_idx == c->seq->tail_idx;
}

/* Reads one record of a stored tail, and copies its first n_tail rows into the chunk's record. */
static int read_tail_record(struct saver *s, const struct save_chunk *c, int l,
                            enum store_kind kind, struct err *err)
{
    const struct store_hit *hit = &c->seq->tail;
    struct store_read read = {.hit = hit,
                              .layer = l,
                              .kind = kind,
                              .dst = s->tail_record.ptr,
                              .dst_bytes = s->tail_record.bytes};
    size_t row_bytes = record_bytes(s->o.model, l, kind) / STORE_CHUNK_TOKENS;
    size_t n_bytes = (size_t)hit->n_tokens * row_bytes;
    int rc = store_reader_read(s->reader, &read, err);
    if (rc == 0 &&
        (read.n_bytes != n_bytes || read.is_packed)) /* only full chunks are packed */
        rc = err_set(err, ERR_CORRUPT, "a record has %u bytes instead of %zu", read.n_bytes,
                     n_bytes);
    if (rc == 0)
        memcpy(save_record(c, l, kind), read.bytes, (size_t)c->seq->n_tail * row_bytes);
    return rc;
}

/* Fills in the rows that were saved before: the chunk continues a stored tail. */
static int fill_from_tail(struct saver *s, const struct save_chunk *c, struct err *err)
{
    struct save_seq *q = c->seq;
    int rc = store_load(s->o.store, &q->tail, err); /* it was pinned without its records */
    if (rc == 0 && s->reader == NULL)
        rc = store_reader_open(s->o.store, 1, s->tail_record.ptr, s->tail_record.bytes,
                               &s->reader, err);
    for (int l = 0; rc == 0 && l < config_n_keeping(&s->o.model->cfg); l++) {
        for (int k = 0; rc == 0 && k < STORE_KINDS; k++)
            if (q->policy.kinds[l] & 1u << k)
                rc = read_tail_record(s, c, l, (enum store_kind)k, err);
    }
    if (rc == ERR_CORRUPT)
        store_condemn(s->o.store, &q->tail, err->msg);
    return rc;
}

/* --- writing one chunk ------------------------------------------------------------------------ */

/* Lays one layer's K and V out as a KV block, so that a restore need not transpose them. The
 * store calls it when it wants the record, and writes the result while it is in the cache. */
static const void *lay_out_kv(void *arg, const struct store_record *r)
{
    const struct save_chunk *c = arg;
    struct saver *s = c->seq->saver;
    const struct model *m = s->o.model;
    struct mat rows = mat_of(save_record(c, r->layer, STORE_KV), m->dtype,
                             STORE_CHUNK_TOKENS, config_kv_width(&m->cfg, r->layer));
    int rc = model_kv_pack(m, s->pack_stream, r->layer, s->packed.ptr, rows);
    return rc == 0 ? s->packed.ptr : NULL;
}

/* Returns whether a chunk of a sequence is to be packed. Under load it is not: writing chunks as
 * they are frees the memory for chunks sooner. */
static bool may_pack(struct saver *s, const struct save_seq *q)
{
    if (!q->policy.packs)
        return false;
    pthread_mutex_lock(&s->lock);
    size_t used_bytes = save_memory_used(&s->memory);
    pthread_mutex_unlock(&s->lock);
    return used_bytes <= s->memory.n_bytes / 2;
}

/* Packs a record to `place`, which is as large as the record is now. */
static void put_packed(struct saver *s, enum pack_type type, const void *from, void *place,
                       struct store_record *r)
{
    if (repack_record(r, type, from, s->tail_record.ptr)) {
        r->bytes = memcpy(place, r->bytes, r->n_bytes);
        atomic_fetch_add(&s->n_packed, 1);
    }
}

/* Packs a record of a full chunk into the memory of the chunk's rows, which are used up then. */
static int pack_record(struct saver *s, struct save_chunk *c, struct store_record *r)
{
    uint8_t *rows = save_record(c, r->layer, r->kind);
    if (round_up(r->n_bytes, STORE_ALIGN) == STORE_ALIGN)
        return 0;
    const void *laid_out = r->kind == STORE_KV ? lay_out_kv(c, r) : rows;
    if (laid_out == NULL)
        return -EIO;
    put_packed(s, save_pack_type(s->o.model->dtype), laid_out, rows, r);
    return 0;
}

/* Returns whether the policy saves this record of the chunk, and `without` lacks it. */
static bool wants(const struct save_chunk *c, int l, int kind,
                  const struct store_mask *without)
{
    return (c->seq->policy.kinds[l] & 1u << kind) &&
           !store_mask_has(without, l, (enum store_kind)kind);
}

static bool wants_any(const struct saver *s, const struct save_chunk *c,
                      const struct store_mask *without)
{
    for (int l = 0; l < config_n_keeping(&s->o.model->cfg); l++) {
        if (wants(c, l, STORE_HIDDEN, without) || wants(c, l, STORE_KV, without))
            return true;
    }
    return false;
}

/* Makes the wanted records that `without` lacks. Returns their number, or a negative error. */
static int make_records(struct saver *s, struct save_chunk *c,
                        const struct store_mask *without, struct store_record *records)
{
    bool is_full = c->n_tokens == STORE_CHUNK_TOKENS,
         packs = is_full && may_pack(s, c->seq);
    int n = 0;
    for (int l = 0; l < config_n_keeping(&s->o.model->cfg); l++) {
        for (int k = 0; k < STORE_KINDS; k++) {
            enum store_kind kind = (enum store_kind)k;
            if (!wants(c, l, k, without))
                continue;
            struct store_record r = {.layer = l, .kind = kind};
            r.n_bytes = (uint32_t)((size_t)c->n_tokens * record_bytes(s->o.model, l, kind) /
                                   STORE_CHUNK_TOKENS);
            if (kind == STORE_KV && is_full) {
                r.make = lay_out_kv;
                r.make_arg = c;
            } else {
                r.bytes = save_record(c, l, kind);
            }
            int rc = packs ? pack_record(s, c, &r) : 0;
            if (rc != 0)
                return rc;
            records[n++] = r;
        }
    }
    return n;
}

/* Moves the sequence's pin to `hit`. */
static void hold_pin(struct saver *s, struct save_seq *q, const struct store_hit *hit)
{
    if (q->pin.impl != NULL)
        store_release(s->o.store, &q->pin, 1);
    q->pin = *hit;
}

/* Returns whether a stored chunk is sound. It reads and checks the chunk only if a damaged chunk
 * of the context before it was saved again. The chunks behind that one are computed again in any
 * case, so all damage heals in one pass, and `committed` never counts a damaged chunk. False:
 * the chunk must be written again, too. */
static bool is_sound(struct saver *s, struct save_seq *q, const struct sha256 *key,
                     const struct store_hit *stored)
{
    bool is_good = true;
    if (stored->impl == NULL)
        q->heals = q->heals || store_was_damaged(s->o.store, key);
    /* If the disk fails here, the fault shows when the chunk is read. */
    else if (q->heals && store_verify_chunk(s->o.store, key, &is_good, NULL) != 0)
        is_good = true;
    return is_good;
}

/* Returns why saving ends after an append that returned rc. */
static enum save_end end_of_append(int rc)
{
    return rc == ERR_LIMIT       ? SAVE_END_CAP
           : rc == ERR_BUSY      ? SAVE_END_REFUSED
           : rc == -ENOMEM       ? SAVE_END_MEMORY
           : rc == -ENOSPC       ? SAVE_END_SPACE
           : rc == ERR_NOT_FOUND ? SAVE_END_PARENT
           : rc == ERR_ERASED    ? SAVE_END_ERASED
                                 : SAVE_END_FAULT;
}

/* Appends a chunk. Records that another sequence has stored under the same key are neither
 * laid out nor written again: equal prefixes are stored once. Records of kinds that were not saved
 * then are added. */
static int append(struct saver *s, struct save_chunk *c, struct sha256 *key,
                  enum save_end *end, bool *has_written, struct err *err)
{
    struct store_record records[STORE_MAX_LAYERS * STORE_KINDS];
    struct save_seq *q = c->seq;
    struct store_hit stored = {0};
    struct sha256 parent = chain_stored_behind(&q->truncation, &q->parent, c->chunk_idx);
    *key = store_partial_key(&parent, c->tokens, c->n_tokens);
    struct store_chunk chunk = {
        .key = *key,
        .parent = parent,
        .fingerprint = s->o.fingerprint,
        .owner = q->owner,
        .epoch = q->epoch,
        .follows = &q->parent,
        .use = q->use,
        .chunk_idx = (uint32_t)c->chunk_idx,
        .n_tokens = c->n_tokens,
        .yields = c->n_tokens < STORE_CHUNK_TOKENS && !q->is_document && !c->has_snapshot,
        .may_be_refused = !q->is_document && q->truncation.context == 0,
        .records = records};
    memcpy(chunk.tokens, c->tokens, sizeof chunk.tokens);
    /* The chunk replaces the stored tail only if it continues all of the tail's tokens. */
    if (continues_tail(c) && q->n_tail == q->tail.n_tokens)
        chunk.supersedes = &q->tail.key;
    (void)store_pin(s->o.store, key, &stored);
    if (!is_sound(s, q, key, &stored))
        store_release(s->o.store, &stored, 1); /* clears stored: all is written */
    struct store_mask without = {0};
    if (stored.impl != NULL)
        without = stored.mask;
    int rc = 0;
    *end = SAVE_END_FAULT;
    if (continues_tail(c) && wants_any(s, c, &without)) {
        rc = fill_from_tail(s, c, err);
        *end = rc != 0 ? SAVE_END_TAIL : SAVE_END_FAULT;
    }
    /* A chunk without new records is appended, too: the append counts as a use. */
    if (rc == 0) {
        int n = make_records(s, c, &without, records);
        chunk.n_records = MAX(n, 0);
        rc = n < 0 ? err_set(err, n, "keys and values could not be laid out")
                   : store_append(s->o.store, &chunk, err);
        *end = end_of_append(rc);
    }
    if (rc == 0)
        atomic_fetch_add(&s->n_shared, chunk.n_records == 0);
    *has_written |= rc == 0 && chunk.n_records > 0;
    /* The chunk must not be evicted before the commit. */
    if (rc == 0 && stored.impl != NULL)
        hold_pin(s, q, &stored);
    else if (stored.impl != NULL)
        store_release(s->o.store, &stored, 1);
    return rc;
}

/* Appends a snapshot behind the last chunk of its sequence. A lack of room leaves it out: a restore
 * then replays the states from an earlier place. */
static int append_snapshot(struct saver *s, const struct save_chunk *c, struct sha256 *key,
                           enum save_end *end, struct err *err)
{
    const struct model *m = s->o.model;
    struct store_record records[STORE_MAX_LAYERS];
    struct save_seq *q = c->seq;
    bool packs = may_pack(s, q);
    int n = 0;
    *key = store_state_key(&q->last);
    for (int l = 0; l < config_n_keeping(&m->cfg); l++) {
        if (!config_is_recurrent(&m->cfg, l))
            continue;
        records[n] = (struct store_record){.layer = l,
                                           .kind = STORE_HIDDEN,
                                           .bytes = save_state(c, n),
                                           .n_bytes = (uint32_t)s->state_bytes};
        if (packs)
            put_packed(s, PACK_F32, records[n].bytes, save_state(c, n), &records[n]);
        n++;
    }
    const struct store_chunk chunk = {.key = *key,
                                      .parent = q->last,
                                      .fingerprint = s->o.fingerprint,
                                      .owner = q->owner,
                                      .epoch = q->epoch,
                                      .use = q->use,
                                      .chunk_idx = (uint32_t)c->chunk_idx,
                                      .n_tokens = 1,
                                      .tokens = {STORE_STATE_TOKEN},
                                      .records = records,
                                      .n_records = n,
                                      .may_be_refused = true};
    int rc = store_append(s->o.store, &chunk, err);
    *end = end_of_append(rc) == SAVE_END_FAULT ? SAVE_END_FAULT : SAVE_GOES_ON;
    return rc;
}

/* --- the commit ------------------------------------------------------------------------------- */

/* Offers a full chunk to the remote, now or when the sequence ends. A partial chunk is not
 * offered, since it is soon superseded. */
static void offer(struct saver *s, const struct written *w)
{
    struct save_seq *q = w->seq;
    if (w->is_tail)
        return;
    if (remote_wants(s->o.remote, REMOTE_WHEN_COMMITTED))
        remote_offer(s->o.remote, &w->key, q->use.ttl_s);
    if (!remote_wants(s->o.remote, REMOTE_WHEN_ENDED))
        return;
    GROW(q->fresh, q->n_fresh, q->max_fresh);
    q->fresh[q->n_fresh++] = w->key;
}

/* Notes a committed chunk and pins it; a snapshot is neither counted nor pinned. A chunk that was
 * reported committed must not be evicted while its sequence goes on, or its next chunk could never
 * be found. The pin on the last chunk protects all chunks before it. */
static void committed(struct saver *s, const struct written *w)
{
    struct store_hit hit = {0};
    if (w->is_snapshot)
        return;
    (void)store_pin(s->o.store, &w->key, &hit);
    hold_pin(s, w->seq, &hit);
    offer(s, w);
    atomic_fetch_add(&s->n_chunks, 1);
    atomic_fetch_add(&s->n_tails, w->is_tail);
    shared_store(&w->seq->committed, (long long)w->n_tokens);
}

/* --- records that are dropped ----------------------------------------------------------------- */

struct layer_set save_layers(const struct save_policy *p)
{
    struct layer_set out = {{0}};
    for (int l = 0; l < STORE_MAX_LAYERS; l++)
        if (p->kinds[l] != 0)
            layer_set_add(&out, l);
    return out;
}

struct layer_set save_apart(const struct model_config *c)
{
    struct layer_set out = {{0}};
    int n = config_n_keeping(c);
    for (int l = 0; l < n; l++)
        if (config_window(c, l) > 0 || config_is_recurrent(c, l))
            layer_set_add(&out, l);
    return layer_set_last_out(&out, n) < 0 ? (struct layer_set){{0}} : out;
}

static bool has_record(const struct store_mask *m, int l)
{
    return store_mask_has(m, l, STORE_HIDDEN) || store_mask_has(m, l, STORE_KV);
}

/* Fills whole [n]: the chunk has a record of every layer with a window, except layers that are not
 * `saved` and that none of the chunks has. The masks lie `stride` bytes apart. */
static void fill_whole(const struct model_config *c, const struct layer_set *saved,
                       const struct store_mask *mask, size_t stride, int n, bool *whole)
{
    const char *at = (const char *)mask;
    memset(whole, true, (size_t)n * sizeof *whole);
    for (int l = 0; l < config_n_keeping(c); l++) {
        bool counts = layer_set_has(saved, l);
        for (int i = 0; i < n && config_window(c, l) > 0 && !counts; i++)
            counts = has_record((const void *)(at + (size_t)i * stride), l);
        for (int i = 0; i < n && config_window(c, l) > 0 && counts; i++)
            whole[i] = whole[i] && has_record((const void *)(at + (size_t)i * stride), l);
    }
}

int save_resumable(const struct model_config *c, const struct layer_set *saved,
                   const struct store_hit *hits, int n, int first, int64_t n_tokens)
{
    if (n == 0 || c->sliding_window <= 0)
        return n;
    bool *whole = xcalloc((size_t)n, sizeof *whole);
    fill_whole(c, saved, &hits[0].mask, sizeof *hits, n, whole);
    int m = window_resume(whole, n, first, n_tokens, c->sliding_window);
    free(whole);
    return m;
}

/* Chooses the chunks whose windows no resume point of the context needs. */
static void choose_windows(struct saver *s, const struct save_seq *q,
                           const struct store_link *links, int n, bool *drop)
{
    const struct model_config *cfg = &s->o.model->cfg;
    const struct layer_set saved = save_layers(&q->policy);
    bool *whole = xcalloc(2 * (size_t)n, sizeof *whole), *wanted = whole + n;
    fill_whole(cfg, &saved, &links[0].mask, sizeof *links, n, whole);
    for (int i = 0; i < n; i++)
        wanted[i] = links[i].is_branch || links[i].is_pinned || i + 1 == n ||
                    i + 1 == q->first_chunk || i + 1 == q->prompt_chunks;
    window_thin(whole, wanted, n, cfg->sliding_window, drop);
    free(whole);
}

/* Chooses the chunks that lose the recurrent layers' inputs: those before the last snapshot and
 * before the last input_tokens tokens. */
static void choose_inputs(struct saver *s, const struct store_link *links, int n,
                          bool *drop)
{
    int n_old = n - s->o.input_tokens / STORE_CHUNK_TOKENS;
    int newest = n; /* chunks up to the last snapshot */
    for (; newest > 0; newest--) {
        struct sha256 key = store_state_key(&links[newest - 1].key);
        if (store_pin(s->o.store, &key, NULL))
            break;
    }
    for (int i = 0; i < MIN(n_old, newest); i++)
        for (int l = 0; l < STORE_MAX_LAYERS; l++)
            drop[i] |= layer_set_has(&s->apart, l) && has_record(&links[i].mask, l);
}

/* Drops the records that no resume point of the context needs. Returns whether it dropped any. */
static bool thin(struct saver *s, const struct save_seq *q)
{
    struct store *store = s->o.store;
    uint64_t n_bytes = 0;
    int n = 0;
    struct store_link *links = layer_set_is_empty(&s->apart)
                                   ? NULL
                                   : store_chain_of(store, &q->parent, &n);
    bool *drop = xcalloc((size_t)n + 1, sizeof *drop);
    if (n > 0 && config_is_hybrid(&s->o.model->cfg))
        choose_inputs(s, links, n, drop);
    else if (n > 0)
        choose_windows(s, q, links, n, drop);
    for (int i = 0; i < n; i++) {
        struct store_hit hit = {0};
        if (!drop[i] || !store_pin(store, &links[i].key, &hit))
            continue;
        if (store_load(store, &hit, NULL) == 0)
            n_bytes += store_drop_records(store, &hit, &s->apart);
        store_release(store, &hit, 1);
    }
    free(links);
    free(drop);
    return n_bytes > 0;
}

/* Thins the records of all sequences that have just had chunks committed. */
static void thin_committed(struct saver *s, const struct uncommitted *b)
{
    bool any = false;
    for (int i = 0; i < b->n; i++) {
        bool is_last = true;
        for (int k = i + 1; k < b->n; k++)
            is_last = is_last && b->chunk[k].seq != b->chunk[i].seq;
        any |= is_last && thin(s, b->chunk[i].seq);
    }
    pthread_mutex_lock(&s->lock);
    bool goes_on = s->queue != NULL; /* then the next commit frees the space */
    pthread_mutex_unlock(&s->lock);
    if (any && !goes_on)
        (void)store_commit(s->o.store, NULL);
}

/* --- the commit, continued -------------------------------------------------------------------- */

static void settle_locked(struct saver *s, uint64_t n_chunks)
{
    s->n_settled += n_chunks;
    pthread_cond_broadcast(&s->changed);
    if (s->on_commit != NULL)
        s->on_commit(s->on_commit_arg);
}

/* Commits the appended chunks and settles them. After an error their sequences' saving ends. */
static void commit(struct saver *s, struct uncommitted *b)
{
    struct err err = {0};
    int rc = store_commit(s->o.store, &err);
    /* After a lack of memory or space the store keeps what was appended, and continues. */
    enum save_end end = rc == -ENOMEM   ? SAVE_END_MEMORY
                        : rc == -ENOSPC ? SAVE_END_SPACE
                                        : SAVE_END_FAULT;
    if (rc != 0 && end == SAVE_END_FAULT)
        set_fault(s, rc, &err);
    if (end == SAVE_END_SPACE)
        note_full_disk(s, &err);
    if (rc == 0 && b->has_written)
        note_room(s);
    b->has_written = false;
    for (int i = 0; rc == 0 && i < b->n; i++)
        committed(s, &b->chunk[i]);
    if (rc == 0)
        thin_committed(s, b);
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < b->n; i++) {
        if (rc != 0)
            save_end_seq(b->chunk[i].seq, end);
        save_drop_ref_locked(b->chunk[i].seq);
    }
    settle_locked(s, (uint64_t)(b->n + b->n_given_up));
    b->n = b->n_given_up = 0;
    pthread_mutex_unlock(&s->lock);
}

/* --- the queue -------------------------------------------------------------------------------- */

/* Returns whether the disk is full. If it is, a missing parent was not stored for want of space. */
static bool disk_is_full(struct saver *s)
{
    pthread_mutex_lock(&s->lock);
    bool full = s->disk_is_full;
    pthread_mutex_unlock(&s->lock);
    return full;
}

/* Returns whether the chunk that a sequence's first chunk continues is stored. If another
 * sequence handed it over, it was queued earlier and may have to be committed first. */
static bool has_parent(struct saver *s, struct save_seq *q, struct uncommitted *b)
{
    if (!q->parent_seen && !store_pin(s->o.store, &q->parent, NULL) && b->n > 0)
        commit(s, b);
    q->parent_seen = q->parent_seen || store_pin(s->o.store, &q->parent, NULL);
    return q->parent_seen;
}

/* Notes that a chunk or a snapshot was appended. */
static void add_written(struct saver *s, const struct save_chunk *c,
                        const struct sha256 *key)
{
    struct uncommitted *b = &s->uncommitted;
    struct save_seq *q = c->seq;
    struct written *w = &b->chunk[b->n];
    if (b->n == 0)
        b->due_ns = clock_now_ns() + SAVE_COMMIT_NS;
    *w = (struct written){.seq = q,
                          .key = *key,
                          .n_tokens = (int64_t)c->chunk_idx * STORE_CHUNK_TOKENS +
                                      c->n_tokens,
                          .is_tail = c->n_tokens < STORE_CHUNK_TOKENS,
                          .is_snapshot = c->n_tokens == 0};
    b->n++;
    if (w->is_snapshot)
        return;
    if (state_has_bug(STATE_BUG_EARLY_COMMITTED))
        shared_store(&q->committed, (long long)w->n_tokens);
    q->last = *key;
    if (!w->is_tail)
        q->parent = *key;
}

/* Writes one chunk or snapshot. A problem of a chunk (no room, a missing parent or tail) ends the
 * saving of its sequence, a problem of a snapshot does not. A fault of the store ends all
 * saving. */
static void write_chunk(struct saver *s, struct save_chunk *c, struct uncommitted *b)
{
    struct err err = {0};
    struct save_seq *q = c->seq;
    struct sha256 key;
    enum save_end end = SAVE_END_FAULT;
    int rc = ERR_CANCELLED;
    if (shared_load(&c->lost))
        save_end_seq(q, SAVE_END_DEVICE);
    if (save_ended(q) == SAVE_GOES_ON && s->fault == 0 && !has_parent(s, q, b))
        end = disk_is_full(s) ? SAVE_END_SPACE : SAVE_END_PARENT;
    else if (save_ended(q) == SAVE_GOES_ON && s->fault == 0)
        rc = c->n_tokens == 0 ? append_snapshot(s, c, &key, &end, &err)
                              : append(s, c, &key, &end, &b->has_written, &err);
    if (rc != 0 && rc != ERR_CANCELLED && end == SAVE_END_FAULT)
        set_fault(s, rc, &err);
    if (rc == -ENOSPC)
        note_full_disk(s, &err);
    s->idle.wants |= rc == 0 && q->policy.packs;
    s->idle.due_ns = clock_now_ns() + s->o.pack_idle_ns;
    pthread_mutex_lock(&s->lock);
    if (rc == 0) {
        add_written(s, c, &key);
    } else {
        if (end != SAVE_GOES_ON)
            save_end_seq(q, end);
        save_drop_ref_locked(q);
        b->n_given_up += b->n > 0; /* chunks settle in their order, so that marks hold */
        if (b->n == 0)
            settle_locked(s, 1);
    }
    save_memory_give(&s->memory, (const uint8_t *)c);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* [lock] Returns whether the appended chunks are to be committed before the next chunk comes. */
static bool is_commit_due(const struct saver *s)
{
    const struct uncommitted *b = &s->uncommitted;
    return b->n > 0 && (s->quit || s->is_awaited || clock_now_ns() >= b->due_ns);
}

/* [lock] Returns whether the writer may take a chunk from the queue. */
static bool may_take(const struct saver *s)
{
    return s->queue != NULL && (!s->holds_back || s->quit);
}

/* [lock] Returns the next chunk of the queue if all its rows have arrived, else NULL. */
static struct save_chunk *next_chunk(struct saver *s)
{
    struct save_chunk *c = may_take(s) ? s->queue : NULL;
    bool checks = s->down != NULL && !state_has_bug(STATE_BUG_EARLY_ROWS);
    if (c == NULL || (checks && !save_down_has_sorted(s->down, c->after)))
        return NULL;
    s->queue = c->next;
    if (s->queue == NULL)
        s->queue_end = &s->queue;
    return c;
}

/* Lowers the writer's priority, so that the writer gets the processor time that computing leaves.
 * At the same priority the writer took half a core from each step that ran at the same time (p99 +
 * 28 % with a batch of 8, docs/perf/). The lowest priority, and SCHED_IDLE, were no better, and
 * starved the writer beside other programs: a commit of a second's work took half a minute, and
 * sequences were shed. */
static void step_back(void)
{
    enum { NICE = 10 };
    /* On Linux this sets the thread's own priority. */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
}

/* Writes the next chunk of the queue. Commits when MAX_UNCOMMITTED chunks have gathered, or when a
 * commit is due and no chunk may be taken. */
static enum step save_writer_step(struct saver *s)
{
    struct uncommitted *b = &s->uncommitted;
    pthread_mutex_lock(&s->lock);
    struct save_chunk *c = next_chunk(s);
    bool is_empty = c == NULL && !may_take(s);
    bool is_due = is_empty && is_commit_due(s), ends = is_empty && b->n == 0 && s->quit;
    if (is_due)
        /* All chunks that the flush waits for are now in the batch. */
        s->is_awaited = false;
    pthread_mutex_unlock(&s->lock);
    if (c != NULL)
        write_chunk(s, c, b);
    if (is_due || b->n == MAX_UNCOMMITTED)
        commit(s, b);
    return ends ? STEP_ENDED : c != NULL || is_due ? STEP_WORKED : STEP_WAITS;
}

static void save_writer_wait(struct saver *s)
{
    const struct uncommitted *b = &s->uncommitted;
    pthread_mutex_lock(&s->lock);
    while (!may_take(s) && !s->quit && !is_commit_due(s)) {
        if (b->n == 0)
            pthread_cond_wait(&s->changed, &s->lock);
        else
            (void)clock_cond_wait_until(&s->changed, &s->lock, b->due_ns);
    }
    uint64_t after = s->queue != NULL ? s->queue->after : 0;
    pthread_mutex_unlock(&s->lock);
    if (s->down != NULL)
        save_down_await(s->down, after);
}

/* Waits until due_ns. Returns false if there is something to save or commit before. */
static bool rest_until(struct saver *s, int64_t due_ns)
{
    pthread_mutex_lock(&s->lock);
    while (!may_take(s) && !s->quit && !s->is_awaited && clock_now_ns() < due_ns)
        (void)clock_cond_wait_until(&s->changed, &s->lock, due_ns);
    bool has_come = !may_take(s) && !s->quit && !s->is_awaited;
    pthread_mutex_unlock(&s->lock);
    return has_come;
}

/* Packs one stored chunk if nothing was to be saved for a while. Returns false if there is nothing
 * to pack until a chunk is saved. After each chunk it rests four times as long as the chunk took,
 * so it takes at most a fifth of a core. */
static bool pack_idle(struct saver *s)
{
    enum { RESTS = 4 };
    struct idle *i = &s->idle;
    struct repack_counts n = {0};
    struct err err = {0};
    bool more = false;
    if (s->o.pack_idle_ns == 0 || (!i->wants && i->repack == NULL) ||
        s->uncommitted.n > 0 || s->fault != 0)
        return false;
    if (!rest_until(s, i->due_ns))
        return true;
    int64_t begin_ns = clock_now_ns();
    int rc = 0;
    if (i->repack == NULL) {
        i->wants = false;
        rc = repack_open(s->o.store, &i->repack, &err);
    }
    if (rc == 0)
        rc = repack_step(i->repack, &more, &err);
    if (rc != 0)
        log_debug("stored chunks are not packed: %s", err.msg);
    int64_t end_ns = clock_now_ns();
    i->due_ns = end_ns + RESTS * (end_ns - begin_ns);
    if (more)
        return true;
    if (i->repack != NULL)
        repack_counts(i->repack, &n);
    atomic_fetch_add(&s->n_repacked, n.n_chunks);
    repack_close(i->repack);
    i->repack = NULL;
    return true;
}

static void *save_writer_main(void *saver)
{
    enum step did;
    step_back();
    while ((did = save_writer_step(saver)) != STEP_ENDED) {
        if (did == STEP_WAITS && !pack_idle(saver))
            save_writer_wait(saver);
    }
    return NULL;
}
