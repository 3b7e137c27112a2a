/* save_writer.c - stage two of saving: full chunks from all sequences into the store.
 *
 * save_writer_step writes one chunk of the queue, or commits. save_writer_wait sleeps until
 * there is a chunk or a commit is due. Chunks of one sequence are taken in their order, so the
 * committed chunks of a sequence are always a prefix of it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/step.h"
#include "save/bugs.h"
#include "pack/pack.h"
#include "store/chain.h"
#include "save/saver_impl.h"

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
        snprintf(text, sizeof text,
                 "saving stopped until a restart, generation goes on: %s", e->msg);
        s->o.warn(s->o.warn_arg, text);
    }
}

/* Notes that the disk is full. That is not a fault: the store continues once there is room. */
static void note_full_disk(struct saver *s, const struct err *e)
{
    pthread_mutex_lock(&s->lock);
    bool first = !s->disk_is_full;
    s->disk_is_full = true;
    s->full_err = *e;
    pthread_mutex_unlock(&s->lock);
    if (first && s->o.warn != NULL) {
        char text[640];
        snprintf(text, sizeof text,
                 "nothing is saved while the disk is full, generation goes on: %s", e->msg);
        s->o.warn(s->o.warn_arg, text);
    }
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

/* Reads one record of a stored tail. Copies the rows that the sequence continues to the first rows
 * of the chunk's record. */
static int read_tail_record(struct saver *s, const struct save_chunk *c, int l,
                            enum store_kind kind, struct err *err)
{
    const struct store_hit *hit = &c->seq->tail;
    struct store_read read = {.hit = hit,
                              .layer = l,
                              .kind = kind,
                              .dst = s->tail_record.ptr,
                              .dst_bytes = s->tail_record.bytes};
    struct store_read *one = &read, *done[1];
    int n_done = 0;
    size_t row_bytes = s->record_bytes[kind] / STORE_CHUNK_TOKENS;
    size_t n_bytes = (size_t)hit->n_tokens * row_bytes;
    int rc = store_reader_submit(s->reader, &one, 1, err);
    if (rc == 0)
        rc = store_reader_wait(s->reader, done, 1, &n_done, err);
    if (rc == 0 && read.status != 0)
        rc = err_set(err, read.status, "reading: %s", err_name(read.status));
    if (rc == 0)
        rc = store_read_check(&read, err);
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
    for (int l = 0; rc == 0 && l < s->o.model->cfg.n_layers; l++) {
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
                             STORE_CHUNK_TOKENS, 2 * model_kv_dim(m));
    int rc = model_kv_pack(m, s->pack_stream, s->packed.ptr, rows);
    return rc == 0 ? s->packed.ptr : NULL;
}

/* Returns the code for the model's state, or 0 if there is none. */
static int pack_code(const struct saver *s)
{
    enum dtype t = s->o.model->dtype;
    return t == DTYPE_BF16 ? PACK_BF16 : t == DTYPE_F16 ? PACK_F16 : 0;
}

/* Returns whether a chunk is to be packed. Under load it is not: writing chunks as they are frees
 * the memory for chunks sooner. */
static bool may_pack(struct saver *s, const struct save_chunk *c)
{
    if (!c->seq->policy.packs || c->n_tokens < STORE_CHUNK_TOKENS || pack_code(s) == 0)
        return false;
    size_t used_bytes = 0;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->memory.n_runs; i++)
        used_bytes += s->memory.runs[i].n_bytes;
    pthread_mutex_unlock(&s->lock);
    return used_bytes <= s->memory.n_bytes / 2;
}

/* Replaces a record of a full chunk, which is to be stored, by its packed bytes. They take the
 * place of the chunk's rows, which nobody needs any more. Leaves *r alone if they would take as
 * many blocks of the store. */
static int pack_record(struct saver *s, struct save_chunk *c, struct store_record *r)
{
    uint8_t *rows = save_record(c, r->layer, r->kind), *run = s->tail_record.ptr;
    size_t blocks = round_up(r->n_bytes, STORE_ALIGN);
    if (blocks == STORE_ALIGN)
        return 0;
    const void *laid_out = r->kind == STORE_KV ? lay_out_kv(c, r) : rows;
    if (laid_out == NULL)
        return -EIO;
    size_t n = pack_run((enum pack_type)pack_code(s), laid_out, r->n_bytes, run,
                        blocks - STORE_ALIGN);
    if (n == 0)
        return 0;
    *r = (struct store_record){.layer = r->layer,
                               .kind = r->kind,
                               .bytes = memcpy(rows, run, n),
                               .n_bytes = (uint32_t)n,
                               .is_packed = true};
    atomic_fetch_add(&s->n_packed, 1);
    return 0;
}

static bool wants(const struct save_chunk *c, int l, int kind,
                  const struct store_mask *without)
{
    return (c->seq->policy.kinds[l] & 1u << kind) &&
           !store_mask_has(without, l, (enum store_kind)kind);
}

static bool wants_any(const struct saver *s, const struct save_chunk *c,
                      const struct store_mask *without)
{
    for (int l = 0; l < s->o.model->cfg.n_layers; l++) {
        if (wants(c, l, STORE_HIDDEN, without) || wants(c, l, STORE_KV, without))
            return true;
    }
    return false;
}

/* Makes the records that the policy asks for and `without` does not name. Returns how many, or a
 * negative error. */
static int make_records(struct saver *s, struct save_chunk *c,
                        const struct store_mask *without, struct store_record *records)
{
    bool is_full = c->n_tokens == STORE_CHUNK_TOKENS, packs = may_pack(s, c);
    int n = 0;
    for (int l = 0; l < s->o.model->cfg.n_layers; l++) {
        for (int k = 0; k < STORE_KINDS; k++) {
            enum store_kind kind = (enum store_kind)k;
            if (!wants(c, l, k, without))
                continue;
            struct store_record r = {.layer = l, .kind = kind};
            r.n_bytes = (uint32_t)((size_t)c->n_tokens * s->record_bytes[kind] /
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
    /* A tail that goes on in another way remains. */
    if (continues_tail(c) && q->n_tail == q->tail.n_tokens)
        chunk.supersedes = &q->tail.key;
    (void)store_pin(s->o.store, key, &stored);
    if (!is_sound(s, q, key, &stored))
        store_release(s->o.store, &stored, 1);
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
    int n = 0;
    *key = store_state_key(&q->last);
    for (int l = 0; l < m->cfg.n_layers; l++) {
        if (!config_is_recurrent(&m->cfg, l))
            continue;
        records[n] = (struct store_record){.layer = l,
                                           .kind = STORE_HIDDEN,
                                           .bytes = save_state(c, n),
                                           .n_bytes = (uint32_t)s->state_bytes};
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
    if (q->n_fresh == q->max_fresh) {
        q->max_fresh = q->max_fresh == 0 ? 16 : 2 * q->max_fresh;
        q->fresh = xrealloc(q->fresh, (size_t)q->max_fresh * sizeof q->fresh[0]);
    }
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

static void settle_locked(struct saver *s, uint64_t n_chunks)
{
    s->n_settled += n_chunks;
    pthread_cond_broadcast(&s->changed);
    if (s->on_commit != NULL)
        s->on_commit(s->on_commit_arg);
}

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

static bool is_stored(struct saver *s, const struct sha256 *key)
{
    struct store_hit hit;
    bool found = store_pin(s->o.store, key, &hit);
    if (found)
        store_release(s->o.store, &hit, 1);
    return found;
}

/* Returns whether the disk is full. If it is, a missing parent was not stored for want of space. */
static bool is_full(struct saver *s)
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
    if (!q->parent_seen && !is_stored(s, &q->parent) && b->n > 0)
        commit(s, b);
    q->parent_seen = q->parent_seen || is_stored(s, &q->parent);
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

/* Writes one chunk or snapshot. A problem of this chunk (no room under the cap, a missing parent or
 * tail) ends the saving of its sequence; one of a snapshot does not. A fault of the store ends all
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
        end = is_full(s) ? SAVE_END_SPACE : SAVE_END_PARENT;
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
static struct save_chunk *take_chunk(struct saver *s)
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

enum step save_writer_step(struct saver *s)
{
    struct uncommitted *b = &s->uncommitted;
    pthread_mutex_lock(&s->lock);
    struct save_chunk *c = take_chunk(s);
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

void save_writer_wait(struct saver *s)
{
    const struct uncommitted *b = &s->uncommitted;
    struct timespec due = {.tv_sec = b->due_ns / 1000000000,
                           .tv_nsec = b->due_ns % 1000000000};
    pthread_mutex_lock(&s->lock);
    while (!may_take(s) && !s->quit && !is_commit_due(s)) {
        if (b->n == 0)
            pthread_cond_wait(&s->changed, &s->lock);
        else
            (void)pthread_cond_timedwait(&s->changed, &s->lock, &due);
    }
    uint64_t after = s->queue != NULL ? s->queue->after : 0;
    pthread_mutex_unlock(&s->lock);
    if (s->down != NULL)
        save_down_await(s->down, after);
}

/* Waits until the time has come, or there is something to save. Returns whether the time has
 * come. */
static bool rest_until(struct saver *s, int64_t due_ns)
{
    int64_t now_ns = clock_now_ns();
    pthread_mutex_lock(&s->lock);
    for (; !may_take(s) && !s->quit && !s->is_awaited && now_ns < due_ns;
         now_ns = clock_now_ns())
        (void)clock_cond_wait(&s->changed, &s->lock, due_ns - now_ns);
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
        rc = repack_open(s->o.store, INT64_MAX, &i->repack, &err);
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

void *save_writer_main(void *saver)
{
    enum step did;
    step_back();
    while ((did = save_writer_step(saver)) != STEP_ENDED) {
        if (did == STEP_WAITS && !pack_idle(saver))
            save_writer_wait(saver);
    }
    return NULL;
}
