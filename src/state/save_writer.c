/* save_writer.c - stage two of saving: full chunks from all sequences into the store.
 *
 * Chunks of one sequence are taken in their order, so what is committed of a sequence is always a
 * prefix of it. */
#include <stdio.h>
#include <string.h>

#include "state/saver_impl.h"

enum {
    MAX_UNCOMMITTED = 64, /* chunks appended before a commit is due in any case */
};

/* What was appended since the last commit. */
struct batch {
    int n;
    struct save_seq *seq[MAX_UNCOMMITTED];
    int64_t n_tokens[MAX_UNCOMMITTED]; /* of the sequence, durable with the commit */
};

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

/* --- one chunk -------------------------------------------------------------------------------- */

/* Lays one layer's K and V out as a KV block, so that a restore need not transpose. */
static int pack(struct saver *s, const struct save_chunk *c, int l, const void **bytes)
{
    const struct model *m = s->o.model;
    uint8_t *to = (uint8_t *)s->packed.ptr + (size_t)l * s->record_bytes[STORE_KV];
    struct mat rows = mat_of(save_record(c, l, STORE_KV), m->dtype, STORE_CHUNK_TOKENS,
                             2 * model_kv_dim(m));
    *bytes = to;
    return model_kv_pack(m, s->pack_stream, to, rows);
}

/* The records that the policy asks for and `have` does not name. */
static int make_records(struct saver *s, const struct save_chunk *c,
                        const struct store_mask *have, struct store_record *records,
                        int *n_records, struct err *err)
{
    int n = 0;
    for (int l = 0; l < s->o.model->cfg.n_layers; l++) {
        for (int k = 0; k < STORE_KINDS; k++) {
            enum store_kind kind = (enum store_kind)k;
            if (!(c->seq->policy.kinds[l] & 1u << k) || store_mask_has(have, l, kind))
                continue;
            const void *bytes = save_record(c, l, kind);
            int rc = kind == STORE_KV ? pack(s, c, l, &bytes) : 0;
            if (rc != 0)
                return err_set(err, rc, "packing a chunk: %s", err_name(rc));
            records[n++] = (struct store_record){
                .layer = l,
                .kind = kind,
                .bytes = bytes,
                .n_bytes = (uint32_t)s->record_bytes[kind]};
        }
    }
    *n_records = n;
    return 0;
}

/* The key is the sequence's new end. It is pinned where it is stored already. */
static void move_pin(struct saver *s, struct save_seq *q, const struct sha256 *key)
{
    struct store_hit hit = {0};
    (void)store_pin(s->o.store, key, &hit);
    if (q->pin.impl != NULL)
        store_release(s->o.store, &q->pin, 1);
    q->pin = hit;
}

/* What another sequence has stored under the same key is neither packed nor written again: equal
 * prefixes are stored once, and records of a kind that was not saved then are added. */
static int append(struct saver *s, const struct save_chunk *c, struct err *err)
{
    struct store_record records[STORE_MAX_LAYERS * STORE_KINDS];
    struct save_seq *q = c->seq;
    struct store_chunk chunk = {.key = store_chunk_key(&q->parent, c->tokens),
                                .parent = q->parent,
                                .fingerprint = s->o.fingerprint,
                                .owner = q->owner,
                                .chunk_idx = (uint32_t)c->chunk_idx,
                                .records = records};
    struct store_hit stored = {0};
    (void)store_pin(s->o.store, &chunk.key, &stored);
    int rc = make_records(s, c, &stored.mask, records, &chunk.n_records, err);
    memcpy(chunk.tokens, c->tokens, sizeof chunk.tokens);
    if (rc == 0) /* also with no records: it counts as a use */
        rc = store_append(s->o.store, &chunk, err);
    if (rc == 0) {
        q->parent = chunk.key;
        atomic_fetch_add(&s->n_shared, chunk.n_records == 0);
    }
    if (stored.impl != NULL && rc == 0) { /* it must not be evicted before the commit */
        if (q->pin.impl != NULL)
            store_release(s->o.store, &q->pin, 1);
        q->pin = stored;
    } else if (stored.impl != NULL) {
        store_release(s->o.store, &stored, 1);
    }
    return rc;
}

/* A chunk that does not fit under the store's cap, or whose parent was evicted meanwhile, ends the
 * saving of its sequence; any other failure is the store's and ends saving. */
static enum save_end end_of(int rc)
{
    return rc == ERR_LIMIT       ? SAVE_END_CAP
           : rc == ERR_NOT_FOUND ? SAVE_END_PARENT
                                 : SAVE_END_FAULT;
}

/* --- the barrier ------------------------------------------------------------------------------ */

/* What was reported committed must not be evicted under a sequence that goes on: its next chunk could
 * never be found.  So the last chunk is pinned, and with it all before it. */
static void commit(struct saver *s, struct batch *b)
{
    struct err err = {0};
    int rc = store_commit(s->o.store, &err);
    if (rc != 0)
        set_fault(s, rc, &err);
    for (int i = 0; rc == 0 && i < b->n; i++)
        move_pin(s, b->seq[i], &b->seq[i]->parent);
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < b->n; i++) {
        if (rc == 0)
            atomic_store(&b->seq[i]->committed, (long long)b->n_tokens[i]);
        else
            save_end_seq(b->seq[i], SAVE_END_FAULT);
        save_drop_ref_locked(b->seq[i]);
    }
    atomic_fetch_add(&s->n_chunks, rc == 0 ? (unsigned long long)b->n : 0);
    s->n_in_flight -= (size_t)b->n;
    b->n = 0;
    pthread_cond_broadcast(&s->changed);
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

/* Whether a sequence's first chunk continues one that is stored.  One that another sequence handed over
 * was in the queue before it, and may want to be committed first. */
static bool has_parent(struct saver *s, struct save_seq *q, struct batch *b)
{
    if (!q->parent_seen && !is_stored(s, &q->parent) && b->n > 0)
        commit(s, b);
    q->parent_seen = q->parent_seen || is_stored(s, &q->parent);
    return q->parent_seen;
}

static void write_chunk(struct saver *s, struct save_chunk *c, struct batch *b)
{
    struct err err = {0};
    struct save_seq *q = c->seq;
    bool goes_on = save_ended(q) == SAVE_GOES_ON && s->fault == 0;
    int rc = !goes_on ? ERR_CANCELLED : has_parent(s, q, b) ? 0 : ERR_NOT_FOUND;
    if (rc == 0)
        rc = append(s, c, &err);
    if (goes_on && rc != 0 && end_of(rc) == SAVE_END_FAULT)
        set_fault(s, rc, &err);
    pthread_mutex_lock(&s->lock);
    if (rc == 0) {
        b->seq[b->n] = q;
        b->n_tokens[b->n++] = (int64_t)(c->chunk_idx + 1) * STORE_CHUNK_TOKENS;
    } else {
        save_end_seq(q, goes_on ? end_of(rc) : SAVE_END_FAULT);
        save_drop_ref_locked(q);
        s->n_in_flight--;
    }
    save_memory_give(&s->memory, (const uint8_t *)c);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* The next chunk; NULL where there is none (and, with `wait`, none will come). */
static struct save_chunk *next_chunk(struct saver *s, bool wait)
{
    pthread_mutex_lock(&s->lock);
    while (wait && s->queue == NULL && !s->quit)
        pthread_cond_wait(&s->changed, &s->lock);
    struct save_chunk *c = s->queue;
    if (c != NULL)
        s->queue = c->next;
    if (s->queue == NULL)
        s->queue_end = &s->queue;
    pthread_mutex_unlock(&s->lock);
    return c;
}

void *save_writer_main(void *arg)
{
    struct saver *s = arg;
    struct batch b = {0};
    for (;;) {
        struct save_chunk *c = next_chunk(s, b.n == 0);
        if (c == NULL && b.n == 0)
            return NULL; /* quit, and nothing left */
        if (c != NULL)
            write_chunk(s, c, &b);
        if (b.n > 0 && (c == NULL || b.n == MAX_UNCOMMITTED)) /* caught up, or enough */
            commit(s, &b);
    }
}
