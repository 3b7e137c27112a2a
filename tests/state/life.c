/* life.c - see life.h. */
#include "tests/state/life.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "io/io_sim.h"
#include "state/chain.h"
#include "state/restore.h"
#include "state/saver.h"
#include "store/store_impl.h"
#include "tests/state/turns.h"

enum {
    N_WORLDS = 2, /* a model whose layers see all, one whose layers see a window */
    N_TEXTS = 3,
    N_SLOTS = 3, /* contexts that are restored or saved at the same time */
    MAX_ROWS = 128,
    MAX_LAYERS = 8,
    BLOCKS = 16, /* of a context */
};

/* --- worlds: what does not change from life to life ------------------------------------------- */

/* A context and the state that a forward pass gives it. */
struct text {
    int32_t *tokens;
    int n;
    struct chain chain;
    uint8_t *rows[MAX_LAYERS][STORE_KINDS]; /* [n]: as save_layer gets them */
    uint8_t *want[MAX_LAYERS];              /* [n][2 * kv_dim]: as kv_read gives them */
};

struct world {
    struct device *dev;
    struct model *m;
    struct stream *stream;
    struct model_work *work;
    struct kv_pool *pool;
    struct kv_table table[N_SLOTS];
    struct sha256 fingerprint;
    struct text text[N_TEXTS];
    int32_t *pos;
    uint8_t *got;    /* rows of one layer, as kv_read gives them */
    struct io *full; /* a disk on which all texts are saved */
};

static struct world worlds[N_WORLDS];

void (*life_before_restart)(void);

static void must(int rc, const struct err *err, const char *what)
{
    if (rc == 0)
        return;
    fprintf(stderr, "%s: %s\n", what, err->msg);
    exit(1);
}

struct batch {
    struct ragged r;
    int32_t seq_row[2];
    const int32_t *tables[1];
};

static const struct ragged *rows_at(const struct world *w, struct batch *b,
                                    const struct kv_table *t, int pos, int n)
{
    *b = (struct batch){.seq_row = {0, n}, .tables = {t->blocks}};
    b->r = (struct ragged){.n_rows = n,
                           .n_seqs = 1,
                           .pos = w->pos + pos,
                           .seq_row = b->seq_row,
                           .tables = b->tables};
    return &b->r;
}

struct tap {
    struct world *w;
    struct text *t;
    int pos;
};

static int take_rows(void *arg, int l, struct mat hidden, struct mat kv_rows)
{
    const struct tap *a = arg;
    const struct mat m[STORE_KINDS] = {[STORE_HIDDEN] = hidden, [STORE_KV] = kv_rows};
    for (int k = 0; k < STORE_KINDS; k++) {
        size_t row = (size_t)m[k].cols * dtype_bytes(m[k].dtype);
        memcpy(a->t->rows[l][k] + (size_t)a->pos * row, m[k].data, (size_t)m[k].rows * row);
    }
    return 0;
}

static void compute_text(struct world *w, struct text *t)
{
    struct err err = {0};
    struct batch b;
    struct mat x;
    const struct model *m = w->m;
    size_t bytes[STORE_KINDS] = {model_hidden_bytes(m), model_kv_bytes(m)};
    for (int l = 0; l < m->cfg.n_layers; l++) {
        for (int k = 0; k < STORE_KINDS; k++)
            t->rows[l][k] = xmalloc((size_t)t->n * bytes[k]);
        t->want[l] = xmalloc((size_t)t->n * model_kv_bytes(m));
    }
    for (int at = 0, n; at < t->n; at += n) {
        struct tap a = {w, t, at};
        struct model_tap tap = {take_rows, &a};
        n = t->n - at < 512 ? t->n - at : 512;
        must(model_forward(m, w->work, w->stream, t->tokens + at, kv_pool_layers(w->pool),
                           rows_at(w, &b, &w->table[0], at, n), &tap, &x),
             &err, "forward pass");
    }
    for (int l = 0; l < m->cfg.n_layers; l++) {
        struct kv_layer kv = kv_pool_layer(w->pool, l);
        struct mat out = mat_of(t->want[l], m->dtype, t->n, 2 * model_kv_dim(m));
        must(m->dev->ops->kv_read(w->stream, out, &kv,
                                  rows_at(w, &b, &w->table[0], 0, t->n)),
             &err, "reading K and V");
    }
}

/* The second text shares its first chunks with the first. */
static void make_texts(struct world *w, const int n[N_TEXTS], int n_shared, int n_ids)
{
    for (int i = 0; i < N_TEXTS; i++) {
        struct text *t = &w->text[i];
        struct rng r = {.s = (uint64_t)i + 77};
        t->n = n[i];
        t->tokens = xmalloc((size_t)t->n * sizeof *t->tokens);
        for (int k = 0; k < t->n; k++)
            t->tokens[k] = i == 1 && k < n_shared
                               ? w->text[0].tokens[k]
                               : 3 + (int32_t)rng_below(&r, (uint64_t)n_ids);
        chain_init(&t->chain, &w->fingerprint, NULL);
        chain_extend(&t->chain, t->tokens, t->n);
        compute_text(w, t);
    }
}

static void open_world(struct world *w, const char *source, int max_ctx)
{
    struct err err = {0};
    struct model_opts mo = {.dtype = "f32", .max_ctx = max_ctx};
    w->fingerprint = (struct sha256){{9}};
    must(device_open("cpu", NULL, NULL, &w->dev, &err), &err, "device");
    mo.dev = w->dev;
    must(model_open(source, &mo, &w->m, &err), &err, source);
    must(stream_create(w->dev, STREAM_COMPUTE, &w->stream, &err), &err, "stream");
    must(model_work_create(w->m, 512, &w->work, &err), &err, "activations");
    struct kv_pool_opts po = {.n_layers = w->m->cfg.n_layers,
                              .n_kv = w->m->cfg.n_kv_heads,
                              .d_head = w->m->cfg.d_head,
                              .dtype = w->m->dtype,
                              .n_blocks = N_SLOTS * BLOCKS};
    must(kv_pool_create(w->dev, &po, &w->pool, &err), &err, "blocks");
    for (int i = 0; i < N_SLOTS; i++)
        must(kv_table_reserve(w->pool, &w->table[i], BLOCKS * 64, &err), &err, "blocks");
    w->pos = xmalloc(BLOCKS * 64 * sizeof *w->pos);
    for (int i = 0; i < BLOCKS * 64; i++)
        w->pos[i] = i;
    w->got = xmalloc(BLOCKS * 64 * model_kv_bytes(w->m));
}

static void close_world(struct world *w)
{
    io_close(w->full);
    for (int i = 0; i < N_TEXTS; i++) {
        struct text *t = &w->text[i];
        for (int l = 0; l < w->m->cfg.n_layers; l++) {
            for (int k = 0; k < STORE_KINDS; k++)
                free(t->rows[l][k]);
            free(t->want[l]);
        }
        chain_deinit(&t->chain);
        free(t->tokens);
    }
    for (int i = 0; i < N_SLOTS; i++)
        kv_table_free(w->pool, &w->table[i]);
    free(w->pos);
    free(w->got);
    kv_pool_destroy(w->pool);
    model_work_destroy(w->work);
    stream_destroy(w->stream);
    model_close(w->m);
    device_close(w->dev);
}

void life_release(void)
{
    for (int i = 0; i < N_WORLDS; i++)
        close_world(&worlds[i]);
}

/* --- a life ----------------------------------------------------------------------------------- */

/* A context on its way back, and then on its way to the store. */
struct slot {
    struct world *w;
    struct kv_table *table;
    const struct text *t;      /* NULL: the slot is free */
    const struct text *wanted; /* while it waits: what is fetched for it */
    bool waits;
    struct restore *r;
    bool is_started, is_left;
    int first, asked; /* chunks */
    int least;        /* chunks that a race has to bring back; 0: there is none */
    struct plan plan;
    struct save_seq *q;
    struct store_hit hold; /* the last chunk that is continued, or impl NULL */
    int64_t n, until;      /* saved up to here; so far it is to be */
    int64_t committed;
};

struct life {
    struct world *w;
    struct rng rng;
    unsigned trouble;
    struct io *io;
    struct store *store;
    struct saver *saver;
    struct restore_pipeline *pipeline;
    struct slot slot[N_SLOTS];
    int64_t committed[N_TEXTS]; /* tokens that were told to be durable */
    pthread_t other;
    bool has_other, quits;
    uint64_t burst;      /* work items one behind the other, at most */
    uint64_t dram_bytes; /* of copies in front of the disk; 0: none */
    bool is_tight; /* the save buffer holds four chunks, fewer than the slots may want */
    struct life_counts *counts;
};

static bool has(const struct life *f, enum life_trouble t)
{
    return f->trouble >> t & 1;
}

/* Nothing may be lost, and nothing may fail. */
static bool is_calm(const struct life *f)
{
    return (f->trouble & ~(1u << LIFE_SHORT)) == 0;
}

/* What was committed must come back. */
static bool keeps(const struct life *f)
{
    return !has(f, LIFE_HANG) && !has(f, LIFE_FLIP) && !has(f, LIFE_READ_FAIL) &&
           !has(f, LIFE_ERASE);
}

static uint64_t below(struct life *f, uint64_t n)
{
    return rng_below(&f->rng, n);
}

/* --- restoring -------------------------------------------------------------------------------- */

/* Bits that no state has, in blocks [first, end) of a slot. */
static void spoil(struct slot *s, int first, int end)
{
    for (int l = 0; l < s->w->m->cfg.n_layers; l++) {
        struct kv_layer kv = kv_pool_layer(s->w->pool, l);
        for (int b = first; b < end; b++)
            memset(kv.blocks + (size_t)s->table->blocks[b] * kv.block_stride, 0xa5,
                   kv.block_stride);
    }
}

/* Positions [0, n) are in the cache before the restore. */
static void fill(struct slot *s, int n)
{
    struct err err = {0};
    struct batch b;
    const struct model *m = s->w->m;
    for (int l = 0; n > 0 && l < m->cfg.n_layers; l++) {
        struct kv_layer kv = kv_pool_layer(s->w->pool, l);
        struct mat rows = mat_of(s->t->rows[l][STORE_KV], m->dtype, n, 2 * model_kv_dim(m));
        must(model_kv_fill(m, s->w->stream, &kv, rows, rows_at(s->w, &b, s->table, 0, n)),
             &err, "filling blocks");
    }
}

/* Positions [from, end) of layer l are those of the forward pass. */
static void compare(const struct slot *s, int l, int from, int end, const char *what)
{
    struct err err = {0};
    struct batch b;
    const struct model *m = s->w->m;
    size_t row = model_kv_bytes(m);
    struct kv_layer kv = kv_pool_layer(s->w->pool, l);
    if (from >= end)
        return;
    struct mat out = mat_of(s->w->got, m->dtype, end - from, 2 * model_kv_dim(m));
    must(m->dev->ops->kv_read(s->w->stream, out, &kv,
                              rows_at(s->w, &b, s->table, from, end - from)),
         &err, "reading K and V");
    for (int i = from; i < end; i++)
        if (memcmp(s->w->got + (size_t)(i - from) * row, s->t->want[l] + (size_t)i * row,
                   row) != 0)
            turns_fail("%s: layer %d differs at position %d of [%d, %d)", what, l, i, from,
                       end);
}

/* The first position that layer l sees from position n on. */
static int first_seen(const struct model *m, int l, int n)
{
    int window = l < m->cfg.window_layer ? 0 : m->cfg.sliding_window;
    return window > 0 && n + 1 > window ? n + 1 - window : 0;
}

static void make_plan(struct life *f, struct slot *s)
{
    int n = s->w->m->cfg.n_layers, n_r = (int)below(f, (uint64_t)n + 1);
    s->plan = (struct plan){.n_layers = n, .mode = PLAN_FORCED_LAYERS};
    if (below(f, 2) == 0)
        n_r = 0;
    for (int l = 0; l < n; l++)
        s->plan.method[l] = l < n_r ? 'R' : below(f, 2) == 0 ? 'H' : 'K';
    for (int l = n - 1; l >= n_r && below(f, 2) == 0; l--) /* the last layers first */
        s->plan.io_order[s->plan.n_io++] = (int16_t)l;
}

static void begin_restore(struct life *f, struct slot *s, int n_tokens)
{
    struct restore_want want = {.root = &s->t->chain.root,
                                .keys = s->t->chain.keys,
                                .tokens = s->t->tokens,
                                .n_tokens = n_tokens};
    s->is_started = false;
    s->r = restore_find(f->pipeline, &want);
}

static int tokens_of(const struct restore_found *found, int n)
{
    return n == 0 ? 0 : (n - 1) * 64 + found->hits[n - 1].n_tokens;
}

/* What was found is planned; false where nothing was. */
static bool start_restore(struct life *f, struct slot *s, const struct restore_found *found,
                          bool all)
{
    if (found->err.code != 0 && (is_calm(f) || found->err.msg[0] == 0))
        turns_fail("a look-up fails: %s", found->err.msg);
    if (found->n_hits == 0)
        return false;
    s->asked = all || below(f, 3) != 0 ? found->n_hits
                                       : 1 + (int)below(f, (uint64_t)found->n_hits);
    s->first = all || below(f, 3) != 0 ? 0 : (int)below(f, (uint64_t)s->asked);
    make_plan(f, s);
    spoil(s, 0, s->asked);
    fill(s, s->first * 64);
    struct restore_job job = {.n_chunks = s->asked,
                              .first_chunk = s->first,
                              .tokens = s->t->tokens,
                              .table = s->table,
                              .plan = &s->plan};
    restore_start(s->r, &job);
    s->is_started = true;
    s->is_left = false;
    s->least = 0;
    return true;
}

/* Now and then recomputation races the reads, or they are left, whatever they do.  More often where
 * they go wrong. */
static void stall(struct life *f, struct slot *s)
{
    struct restore_result r;
    struct restore_reads reads;
    struct err err = {0};
    restore_reads_of(s->r, &reads);
    if (reads.silent_ns > 0 && reads.n_left == 0)
        turns_fail("a restore without reads is silent");
    bool often = has(f, LIFE_HANG) || has(f, LIFE_READ_FAIL) || has(f, LIFE_FLIP);
    if (below(f, often ? 2 : 12) == 0 && restore_race(s->r)) {
        (void)restore_result_of(s->r, &r, &err);
        s->least = r.n_chunks;
    }
    if (below(f, has(f, LIFE_HANG) ? 20 : 100) == 0) {
        restore_stop(s->r, "left");
        s->is_left = true;
    }
}

/* Layers that new tokens may pass are right in what these tokens see. */
static void check_ready(struct life *f, const struct slot *s)
{
    int n = restore_layers_ready(s->r);
    const struct restore_found *found = restore_found(s->r);
    int end = tokens_of(found, s->asked);
    if (n > 0 && below(f, 4) == 0)
        compare(s, n - 1, first_seen(s->w->m, n - 1, end), end, "a layer that is ready");
}

/* Checks a restore that is done; returns how many tokens are back. */
static int check_restored(struct life *f, struct slot *s)
{
    struct restore_result r;
    struct err err = {0};
    if (restore_result_of(s->r, &r, &err) != 0)
        turns_fail("a restore fails: %s", err.msg);
    if (r.n_chunks < s->first || r.n_chunks > s->asked)
        turns_fail("%d chunks of [%d, %d) are back", r.n_chunks, s->first, s->asked);
    bool is_short = r.n_chunks < s->asked;
    if (!s->is_left && r.n_chunks < s->least)
        turns_fail("%d chunks are back of %d that were raced", r.n_chunks, s->least);
    if (is_short && ((is_calm(f) && !s->is_left) || r.fault[0] == 0))
        turns_fail("%d of %d chunks are back: %s", r.n_chunks, s->asked, r.fault);
    int end = tokens_of(restore_found(s->r), r.n_chunks);
    if (r.n_tokens != end)
        turns_fail("%d tokens are back instead of %d", r.n_tokens, end);
    for (int l = 0; l < s->w->m->cfg.n_layers; l++)
        compare(s, l,
                first_seen(s->w->m, l, end) > r.first_token ? first_seen(s->w->m, l, end)
                                                            : r.first_token,
                end, "a restore");
    struct restore_reads reads;
    restore_reads_of(s->r, &reads);
    f->counts->n_restored++;
    f->counts->n_short += is_short;
    f->counts->n_left += s->is_left;
    f->counts->n_read += r.raced_layers > 0 && !r.won && !s->is_left;
    f->counts->n_recomputed += r.won;
    f->counts->n_late += r.won && reads.n_left > 0;
    f->counts->n_rewound += is_short && s->w->m->cfg.sliding_window > 0 &&
                            r.n_chunks > s->first;
    return end;
}

/* --- saving ----------------------------------------------------------------------------------- */

static void note_committed(struct life *f, struct slot *s)
{
    int64_t n = save_committed_tokens(s->q);
    int64_t *all = &f->committed[s->t - s->w->text];
    if (s->q == NULL)
        return;
    if (n < s->committed || n > s->n)
        turns_fail("%lld tokens are committed, of %lld, after %lld", (long long)n,
                   (long long)s->n, (long long)s->committed);
    s->committed = n;
    *all = n > *all ? n : *all;
}

/* A kind per layer, or both: what another sequence has saved may lack any of these. */
static struct save_policy draw_policy(struct life *f)
{
    struct save_policy p = {0};
    for (int l = 0; l < f->w->m->cfg.n_layers; l++)
        p.kinds[l] = below(f, 5) == 0   ? SAVE_HIDDEN | SAVE_KV
                     : below(f, 2) == 0 ? SAVE_HIDDEN
                                        : SAVE_KV;
    return p;
}

/* Whether a stored tail has all records that the chunk which it becomes is to have. */
static bool can_continue(const struct slot *s, const struct save_policy *p,
                         const struct store_hit *tail)
{
    uint8_t stored[STORE_MAX_LAYERS];
    int n = s->w->m->cfg.n_layers, l = 0;
    save_stored_kinds(&tail->mask, n, stored);
    while (l < n && (p->kinds[l] & ~stored[l]) == 0)
        l++;
    return l == n;
}

/* Saves from position `from` on; `last` is the chunk before it, or NULL. */
static void open_save(struct life *f, struct slot *s, int64_t from,
                      const struct store_hit *last)
{
    struct save_policy policy = draw_policy(f);
    if (from % 64 != 0 && !can_continue(s, &policy, last)) {
        from -= from % 64;
        last = from > 0 ? last - 1 : NULL;
    }
    if (last != NULL)
        s->hold = store_hold(f->store, last);
    struct save_begin b = {.first_token = from,
                           .parent = chain_parent(&s->t->chain, (int)(from / 64)),
                           .tail = from % 64 != 0 ? &s->hold : NULL,
                           .policy = &policy,
                           .is_document = below(f, 4) == 0};
    s->q = save_open(f->saver, &b);
    s->n = s->committed = from;
    s->until = s->t->n;
    if (below(f, 3) == 0)
        s->until = from + (int64_t)below(f, (uint64_t)(s->t->n - from) + 1);
}

/* One batch; false where the sequence is through. */
static bool save_some(struct life *f, struct slot *s)
{
    static const enum save_wait hows[] = {SAVE_TRY, SAVE_SHED, SAVE_WAIT};
    const struct model *m = s->w->m;
    int64_t left = s->until - s->n;
    if (left == 0 || save_ended(s->q) != SAVE_GOES_ON)
        return false;
    int n = 1 + (int)below(f, MAX_ROWS);
    n = n < left ? n : (int)left;
    enum save_wait how = is_calm(f) ? hows[2 * below(f, 2)] : hows[below(f, 3)];
    if (!save_reserve(s->q, s->n, n, how)) {
        (void)restore_pipeline_wait(f->pipeline, 100000);
        return true;
    }
    struct save_part part = {s->q, s->n, 0, n};
    for (int l = 0; l < m->cfg.n_layers; l++) {
        uint8_t *const *rows = s->t->rows[l];
        struct mat h = mat_of(rows[STORE_HIDDEN] + (size_t)s->n * model_hidden_bytes(m),
                              m->dtype, n, m->cfg.n_embd);
        struct mat kv = mat_of(rows[STORE_KV] + (size_t)s->n * model_kv_bytes(m), m->dtype,
                               n, 2 * model_kv_dim(m));
        save_layer(&part, 1, l, h, kv, s->w->stream);
    }
    save_layers_end(f->saver, s->w->stream);
    s->n += n;
    save_advance(s->q, s->t->tokens, s->n);
    return true;
}

static void end_save(struct life *f, struct slot *s)
{
    struct err err = {0};
    if (below(f, 8) == 0)
        save_stop(s->q);
    else
        save_idle(s->q, s->t->tokens, s->n);
    if (below(f, 2) == 0) {
        int rc = saver_flush(f->saver, &err);
        if (rc != 0 && (is_calm(f) || err.msg[0] == 0))
            turns_fail("a flush fails: %s", err.msg);
        if (save_ended(s->q) == SAVE_GOES_ON && !save_is_settled(s->q))
            turns_fail("a sequence is not settled behind a flush");
    }
    note_committed(f, s);
    enum save_end end = save_ended(s->q);
    bool is_right = !is_calm(f) || (end == SAVE_END_MEMORY && f->is_tight);
    if (end != SAVE_GOES_ON && (!is_right || save_end_text(end)[0] == 0))
        turns_fail("saving ends: %s", save_end_text(end));
    f->counts->n_save_ended += end != SAVE_GOES_ON;
    save_close(s->q);
    store_release(f->store, &s->hold, 1);
    s->q = NULL;
    s->t = NULL;
}

/* --- one thing after the other ---------------------------------------------------------------- */

static void cancel(struct life *f, struct slot *s)
{
    enum life_stage at = restore_found(s->r) == NULL ? LIFE_FINDING
                         : !s->is_started            ? LIFE_FOUND
                         : !restore_is_done(s->r)    ? LIFE_READING
                                                     : LIFE_DONE;
    f->counts->n_cancelled[at]++;
    restore_end(s->r);
    s->r = NULL;
    s->t = NULL;
}

static void move_restore(struct life *f, struct slot *s)
{
    const struct restore_found *found = restore_found(s->r);
    int n_back = 0;
    if (found == NULL)
        return;
    if (!s->is_started && start_restore(f, s, found, false))
        return;
    if (s->is_started) {
        check_ready(f, s);
        stall(f, s);
        if (!restore_is_done(s->r))
            return;
        n_back = check_restored(f, s);
    }
    open_save(f, s, n_back, n_back > 0 ? &found->hits[(n_back - 1) / 64] : NULL);
    restore_end(s->r);
    s->r = NULL;
}

static void move(struct life *f, struct slot *s)
{
    if (s->t == NULL && f->dram_bytes > 0 && !s->waits && below(f, 2) == 0) {
        s->waits = true;
        s->wanted = &s->w->text[below(f, 5) / 2];
        restore_pipeline_want(f->pipeline, s, s->wanted->chain.keys,
                              s->wanted->chain.n_chunks, below(f, 100));
    } else if (s->t == NULL) {
        /* What was fetched for the slot is what it now restores, or its request was cancelled. */
        s->t = s->waits && below(f, 4) != 0 ? s->wanted : &s->w->text[below(f, 5) / 2];
        if (s->waits)
            restore_pipeline_want_end(f->pipeline, s);
        s->waits = false;
        begin_restore(f, s, s->t->n - (int)below(f, 3) * 40);
    } else if (s->r != NULL && below(f, has(f, LIFE_HANG) ? 8 : 60) == 0) {
        cancel(f, s);
    } else if (s->r != NULL) {
        move_restore(f, s);
    } else {
        note_committed(f, s);
        if (!save_some(f, s))
            end_save(f, s);
    }
}

/* The compute lane: a few work items; where there is none it may wait.  The simulated clock hardly
 * moves while something is computed, so budgets are small. */
static void work(struct life *f)
{
    int64_t most = below(f, 3) == 0 ? RESTORE_NO_LIMIT : 300;
    for (uint64_t n = 1 + below(f, f->burst); n > 0; n--) {
        int64_t budget = most == RESTORE_NO_LIMIT ? most
                                                  : (int64_t)below(f, (uint64_t)most);
        if (!restore_pipeline_work(f->pipeline, budget) &&
            (below(f, 4) == 0 || !restore_pipeline_wait(f->pipeline, 1000000)))
            break;
    }
}

static void end_slots(struct life *f)
{
    for (int i = 0; i < N_SLOTS; i++) {
        struct slot *s = &f->slot[i];
        if (s->t != NULL && s->r != NULL)
            cancel(f, s);
        else if (s->t != NULL)
            end_save(f, s);
    }
}

/* --- the fourth thread ------------------------------------------------------------------------ */

static void erase(struct life *f, struct rng *r)
{
    const struct text *t = &f->w->text[rng_below(r, N_TEXTS)];
    struct store_erased out = {0};
    struct err err = {0};
    int rc = store_erase(f->store, t->chain.keys, t->chain.n_chunks, &out, &err);
    if (rc != 0 && err.msg[0] == 0)
        turns_fail("an erasure fails without a reason");
    f->counts->n_erased_while_read += rc == 0 && out.n_busy > 0;
}

static void flip(struct life *f, struct rng *r)
{
    char path[64];
    struct io_names names = {0};
    struct io_stat st;
    const char *dir = rng_below(r, 2) == 0 ? "/store/a" : "/store/b";
    if (io_list(f->io, dir, &names, NULL) != 0)
        return;
    for (size_t i = 0; i < names.n; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names.name[i]);
        if (strncmp(names.name[i], "seg", 3) == 0 && io_stat(f->io, path, &st, NULL) == 0 &&
            st.size_bytes > 0)
            (void)io_sim_flip(f->io, path, rng_below(r, st.size_bytes),
                              (unsigned)rng_below(r, 8));
    }
    io_names_free(&names);
}

static void *other_main(void *arg)
{
    struct life *f = arg;
    struct rng r = {.s = f->rng.s ^ 0x0743};
    struct saver_stats stats;
    uint64_t mark = 0;
    while (!f->quits) {
        switch (rng_below(&r, 6)) {
        case 0:
            (void)saver_flush(f->saver, NULL);
            break;
        case 1:
            mark = saver_mark(f->saver);
            break;
        case 2:
            (void)saver_reached(f->saver, mark);
            saver_stats(f->saver, &stats);
            break;
        case 3:
            if (has(f, LIFE_ERASE))
                erase(f, &r);
            break;
        case 4:
            if (has(f, LIFE_FLIP))
                flip(f, &r);
            break;
        default:
            if (has(f, LIFE_STUCK))
                io_sim_unstick(f->io);
            break;
        }
        clock_sleep_ns((int64_t)rng_below(&r, 3000000));
    }
    return NULL;
}

/* --- opening, closing, and the restart -------------------------------------------------------- */

/* Opening may fail where something is wrong, with a message. */
static bool may_fail(const struct life *f, int rc, const struct err *err, const char *what)
{
    if (rc != 0 && (is_calm(f) || err->msg[0] == 0))
        turns_fail("%s: %s (%s)", what, err_name(rc), err->msg);
    return rc != 0;
}

static void close_parts(struct life *f)
{
    struct store_dram dram = {0};
    restore_pipeline_destroy(f->pipeline);
    saver_destroy(f->saver);
    if (f->store != NULL)
        store_dram_stats(f->store, &dram);
    if (f->store != NULL && !store_audit(f->store))
        turns_fail("the store does not add up");
    f->counts->n_dram_reads += dram.n_reads;
    f->counts->n_demoted += dram.n_demoted;
    f->counts->n_promoted += dram.n_promoted;
    store_close(f->store);
    f->pipeline = NULL;
    f->saver = NULL;
    f->store = NULL;
}

/* A slot of staging: a group of eight records (restore.h). */
static size_t slot_bytes(const struct model *m)
{
    size_t h = round_up(64 * model_hidden_bytes(m), STORE_ALIGN);
    size_t kv = round_up(64 * model_kv_bytes(m), STORE_ALIGN);
    return 8 * (h > kv ? h : kv);
}

static bool open_parts(struct life *f)
{
    static const char *const dirs[] = {"/store/a", "/store/b"};
    struct err err = {0};
    struct store_opts so = {.io = f->io,
                            .dirs = dirs,
                            .n_dirs = 2,
                            .segment_bytes = 1 << 20,
                            .dram_bytes = f->dram_bytes,
                            .stuck_ns = has(f, LIFE_STUCK)  ? 2000000
                                        : has(f, LIFE_HANG) ? 200000000
                                                            : 0};
    if (may_fail(f, store_open(&so, &f->store, &err), &err, "opening the store"))
        return false;
    struct saver_opts vo = {.store = f->store,
                            .model = f->w->m,
                            .fingerprint = f->w->fingerprint,
                            .buffer_bytes = f->is_tight ? 1 : 8 << 20,
                            .max_batch_rows = MAX_ROWS};
    struct restore_pipeline_opts po = {.model = f->w->m,
                                       .store = f->store,
                                       .pool = f->w->pool,
                                       .work = f->w->work,
                                       .stream = f->w->stream,
                                       .staging_bytes = (3 + below(f, 4)) *
                                                        slot_bytes(f->w->m),
                                       .max_tokens = f->w->m->max_ctx,
                                       .fetches = f->dram_bytes > 0};
    bool failed = may_fail(f, saver_create(&vo, &f->saver, &err), &err,
                           "creating a saver") ||
                  may_fail(f, restore_pipeline_create(&po, &f->pipeline, &err), &err,
                           "creating a restore pipeline");
    if (failed)
        close_parts(f);
    return !failed;
}

static void fault(struct life *f, struct io_sim_fault x)
{
    x.skip = below(f, x.skip + 1);
    (void)io_sim_fault_add(f->io, &x);
}

/* What the disk will do. */
static void begin_trouble(struct life *f)
{
    const unsigned on_write = IO_SIM_ON_WRITE | IO_SIM_ON_SYNC | IO_SIM_ON_SPACE;
    uint64_t few = 1 + below(f, 4);
    if (has(f, LIFE_READ_FAIL))
        fault(f, (struct io_sim_fault){.kind = IO_SIM_FAIL,
                                       .on = IO_SIM_ON_READ,
                                       .path = "seg",
                                       .skip = 100,
                                       .count = 1 + below(f, 12)});
    if (has(f, LIFE_WRITE_FAIL))
        fault(f, (struct io_sim_fault){
                     .kind = IO_SIM_FAIL, .on = on_write, .skip = 150, .count = few});
    if (has(f, LIFE_FULL))
        fault(f, (struct io_sim_fault){.kind = IO_SIM_FAIL,
                                       .on = IO_SIM_ON_WRITE | IO_SIM_ON_SPACE,
                                       .skip = 150,
                                       .count = 1 + below(f, 60),
                                       .code = -ENOSPC});
    if (has(f, LIFE_STUCK))
        fault(f, (struct io_sim_fault){.kind = IO_SIM_STUCK,
                                       .on = IO_SIM_ON_READ,
                                       .path = "seg",
                                       .skip = 60,
                                       .count = few});
    if (has(f, LIFE_HANG))
        fault(f,
              (struct io_sim_fault){
                  .kind = IO_SIM_STUCK, .on = IO_SIM_ON_READ, .path = "seg", .skip = 60});
    if (has(f, LIFE_SHORT)) {
        fault(f, (struct io_sim_fault){.kind = IO_SIM_SHORT,
                                       .on = IO_SIM_ON_READ | IO_SIM_ON_WRITE,
                                       .path = "seg",
                                       .chance = 0.2});
        fault(f, (struct io_sim_fault){
                     .kind = IO_SIM_SLOW, .chance = 0.05, .slow_ns = 300000});
    }
    if (has(f, LIFE_CRASH))
        io_sim_crash_at(f->io, IO_SIM_AT_OP, 1 + below(f, 250));
}

static void count_trouble(struct life *f)
{
    bool hit[LIFE_TROUBLES] = {
        [LIFE_READ_FAIL] = has(f, LIFE_READ_FAIL) && io_sim_fault_hits(f->io) > 0,
        [LIFE_WRITE_FAIL] = has(f, LIFE_WRITE_FAIL) && io_sim_fault_hits(f->io) > 0,
        [LIFE_STUCK] = has(f, LIFE_STUCK) && io_sim_fault_count(f->io, IO_SIM_STUCK, 0) > 0,
        [LIFE_HANG] = has(f, LIFE_HANG) && io_sim_fault_count(f->io, IO_SIM_STUCK, 0) > 0,
        [LIFE_FULL] = io_sim_fault_count(f->io, IO_SIM_FAIL, -ENOSPC) > 0,
        [LIFE_SHORT] = io_sim_fault_count(f->io, IO_SIM_SHORT, 0) > 0,
        [LIFE_CRASH] = io_sim_crashed(f->io),
        [LIFE_FLIP] = has(f, LIFE_FLIP),
        [LIFE_ERASE] = has(f, LIFE_ERASE),
        [LIFE_MEMORY] = has(f, LIFE_MEMORY),
    };
    for (int i = 0; i < LIFE_TROUBLES; i++)
        f->counts->n_trouble[i] += hit[i];
}

/* Saves and restores, in an order that the seed decides. */
static void live(struct life *f)
{
    int n = has(f, LIFE_MEMORY) ? 60 : 40 + (int)below(f, 110);
    for (uint64_t k = has(f, LIFE_FLIP) ? below(f, 3) : 0; k > 0; k--)
        flip(f, &f->rng);
    f->has_other = pthread_create(&f->other, NULL, other_main, f) == 0;
    for (int i = 0; i < n; i++) {
        move(f, &f->slot[below(f, N_SLOTS)]);
        work(f);
        if (has(f, LIFE_HANG) && below(f, 12) == 0)
            io_sim_unstick(f->io);
    }
    end_slots(f);
    if (has(f, LIFE_HANG)) { /* reads of restores that are long over end now */
        io_sim_fault_clear(f->io);
        io_sim_unstick(f->io);
    }
    f->quits = true;
    if (f->has_other)
        pthread_join(f->other, NULL);
}

/* Nothing stalls for an hour: where no news comes until then, it was not told. */
static void await_news(struct life *f)
{
    const int64_t hour_ns = (int64_t)3600 * 1000000000;
    int64_t until = clock_now_ns() + hour_ns;
    if (!restore_pipeline_wait(f->pipeline, hour_ns) || clock_now_ns() >= until)
        turns_fail("the compute lane waits for news that nobody tells");
}

/* Everything that is found comes back, and what was committed is found. */
static void check_text(struct life *f, int i, bool must_have)
{
    struct slot *s = &f->slot[0];
    const struct restore_found *found;
    s->t = &f->w->text[i];
    begin_restore(f, s, s->t->n);
    while ((found = restore_found(s->r)) == NULL)
        await_news(f);
    int n = tokens_of(found, found->n_hits);
    if (must_have && n < f->committed[i])
        turns_fail("%lld tokens were committed, %d are found: %s",
                   (long long)f->committed[i], n, found->why);
    f->counts->n_committed += must_have ? (uint64_t)f->committed[i] : 0;
    if (start_restore(f, s, found, true)) {
        while (!restore_is_done(s->r))
            if (!restore_pipeline_work(f->pipeline, RESTORE_NO_LIMIT))
                await_news(f);
        (void)check_restored(f, s);
    }
    restore_end(s->r);
    *s = (struct slot){.w = s->w, .table = s->table};
}

static struct io *empty_disk(uint64_t seed)
{
    struct io_sim_opts o = {.seed = seed};
    struct err err = {0};
    struct io *io = NULL;
    must(io_sim_open(&o, &io, &err), &err, "disk");
    must(io_mkdirs(io, "/store", NULL, &err), &err, "/store");
    return io;
}

/* All texts are stored already, or nothing is. */
static void get_disk(struct life *f)
{
    struct err err = {0};
    if (has(f, LIFE_MEMORY) || below(f, 3) == 0) {
        f->io = empty_disk(f->rng.s);
        return;
    }
    must(io_sim_fork(f->w->full, f->rng.s, &f->io, &err), &err, "a full disk");
    for (int i = 0; i < N_TEXTS; i++)
        f->committed[i] = f->w->text[i].n;
}

static void life_main(void *arg)
{
    struct life *f = arg;
    get_disk(f);
    if (open_parts(f)) {
        begin_trouble(f);
        live(f);
        close_parts(f);
    }
    count_trouble(f);
    if (life_before_restart != NULL)
        life_before_restart();
    io_sim_fault_clear(f->io);
    io_sim_crash_at(f->io, IO_SIM_AT_OP, 0);
    io_sim_restart(f->io);
    bool kept = keeps(f);
    f->trouble &= 1u << LIFE_FLIP | 1u << LIFE_READ_FAIL;
    if (open_parts(f)) {
        for (int i = 0; i < N_TEXTS; i++)
            check_text(f, i, kept);
        close_parts(f);
    }
    io_close(f->io);
}

static unsigned draw_trouble(struct rng *r)
{
    unsigned t = 0;
    if (rng_below(r, 4) == 0)
        return rng_below(r, 2) == 0 ? 0 : 1u << LIFE_SHORT;
    for (int n = 1 + (int)rng_below(r, 2); n > 0; n--)
        t |= 1u << rng_below(r, LIFE_MEMORY);
    return t;
}

/* Saves all texts whole, on a disk that lives are given copies of.  Each chunk has records of its
 * own choice, so that a restore has many groups. */
static void fill_disk(void *arg)
{
    struct life *f = arg;
    struct slot *s = &f->slot[0];
    f->io = f->w->full = empty_disk(1);
    (void)open_parts(f);
    for (int i = 0; i < N_TEXTS; i++) {
        s->t = &f->w->text[i];
        for (int64_t at = 0; at < s->t->n; at = s->until) {
            open_save(f, s, at, NULL);
            s->until = at + 64 < s->t->n ? at + 64 : s->t->n;
            while (save_some(f, s)) {
            }
            save_idle(s->q, s->t->tokens, s->n);
            save_close(s->q);
        }
    }
    if (saver_flush(f->saver, NULL) != 0)
        turns_fail("the texts are not saved");
    close_parts(f);
}

static struct life new_life(struct world *w, uint64_t seed, struct life_counts *counts)
{
    struct life f = {.w = w, .rng = {.s = rng_mix(seed)}, .counts = counts};
    for (int i = 0; i < N_SLOTS; i++)
        f.slot[i] = (struct slot){.w = w, .table = &w->table[i]};
    return f;
}

void life_prepare(void)
{
    struct life_counts unused = {0};
    log_set_level(LOG_QUIET);
    open_world(&worlds[0], "synth:tiny-mha", 1024);
    make_texts(&worlds[0], (const int[]){12 * 64 + 20, 11 * 64 + 37, 3 * 64 + 9}, 5 * 64,
               477);
    open_world(&worlds[1], "tests/model/golden/families/mistral", 256);
    make_texts(&worlds[1], (const int[]){3 * 64 + 50, 3 * 64 + 17, 64 + 33}, 2 * 64, 120);
    for (int i = 0; i < N_WORLDS; i++) {
        struct life f = new_life(&worlds[i], 1, &unused);
        turns_run(&(struct turns_opts){.seed = 1}, fill_disk, &f, NULL);
    }
}

void life_run(uint64_t seed, unsigned trouble, struct life_counts *counts)
{
    struct rng r = {.s = rng_mix(seed ^ 0x6c696665)};
    unsigned drawn = draw_trouble(&r);
    trouble = trouble == LIFE_DRAWN ? drawn : trouble;
    bool windows = (trouble >> LIFE_MEMORY & 1) != 0 || rng_below(&r, 3) == 0;
    struct life f = new_life(&worlds[windows], seed, counts);
    struct turns_counts turns;
    f.trouble = trouble;
    f.burst = (const uint64_t[]){3, 100, 300}[rng_below(&r, 3)];
    f.is_tight = rng_below(&r, 3) == 0;
    f.dram_bytes = (const uint64_t[]){0, 1 << 20, 4 << 20}[rng_below(&r, 3)];
    counts->n_calm += is_calm(&f);
    turns_run(&(struct turns_opts){.seed = seed}, life_main, &f, &turns);
    counts->n_lives++;
    counts->n_turns += turns.n_turns;
    counts->n_switches += turns.n_switches;
}
