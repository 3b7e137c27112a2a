/* engine.c - see engine.h: creation, admission, and the step.
 *
 * Invariants:
 *  1. A sequence's KV cache holds positions [0, n_done); tokens [0, n_tokens) are known; a decoding
 *     sequence has n_done == n_tokens - 1.
 *  2. A running sequence has blocks for the rows that it gets: schedule.c takes them.
 *  3. No memory is allocated in a step, but for what a sequence wants when it begins. */
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "engine/seq.h"

/* --- creation --------------------------------------------------------------------------------- */

static int max_chunks_of(const struct engine *e)
{
    return e->o.model->max_ctx / STORE_CHUNK_TOKENS + 1;
}

static int reserve_batch(struct engine *e, struct err *err)
{
    size_t rows = (size_t)e->o.max_batch_rows, seqs = (size_t)e->o.max_seqs;
    e->ids = xcalloc(rows, sizeof *e->ids);
    e->pos = xcalloc(rows, sizeof *e->pos);
    e->seq_row = xcalloc(seqs + 1, sizeof *e->seq_row);
    e->tables = xcalloc(seqs, sizeof *e->tables);
    e->batch = xcalloc(seqs, sizeof *e->batch);
    e->parts = xcalloc(seqs, sizeof *e->parts);
    flight_init(&e->flight, (int)seqs);
    e->again = xcalloc(seqs, sizeof *e->again);
    return next_token_init(&e->next, e->o.model, e->o.max_seqs, err);
}

static int reserve_restore(struct engine *e, struct err *err)
{
    size_t chunks = (size_t)max_chunks_of(e), layers = (size_t)e->o.model->cfg.n_layers;
    e->ranges = xcalloc(chunks, sizeof *e->ranges);
    e->masks = xcalloc(chunks, layers);
    e->plan_layer = xcalloc(layers, sizeof *e->plan_layer);
    e->prefill_s = xcalloc(layers, sizeof *e->prefill_s);
    struct restorer_opts o = {.model = e->o.model,
                              .store = e->o.store,
                              .pool = e->pool,
                              .work = e->work,
                              .stream = e->stream,
                              .staging_bytes = e->o.staging_bytes,
                              .direct = e->o.direct,
                              .max_tokens = e->o.model->max_ctx};
    int rc = restorer_create(&o, &e->restorer, err);
    if (rc == 0 && e->o.measure_ahead && restoring_must_measure(e))
        restorer_measure(e->restorer, &e->o.fingerprint);
    return rc == 0 ? fused_reserve(e, err) : rc;
}

static int reserve_pool(struct engine *e, struct err *err)
{
    const struct model *m = e->o.model;
    struct kv_pool_opts o = {
        .n_layers = m->cfg.n_layers,
        .n_kv = model_rank_kv_heads(m),
        .d_head = m->cfg.d_head,
        .dtype = m->dtype,
        .keep = e->o.reuse,
        .n_blocks = (int)(round_up((uint64_t)e->o.max_kv_tokens, 64) / 64)};
    return kv_pool_create(m->dev, &o, &e->pool, err);
}

int engine_create(const struct engine_opts *o, struct engine **out, struct err *err)
{
    CHECK(o->max_batch_rows >= RESTORE_GROUP_CHUNKS * STORE_CHUNK_TOKENS);
    CHECK(o->step_rows > 0 && o->step_rows <= o->max_batch_rows);
    CHECK(o->max_seqs > 0 && o->max_seqs <= o->max_batch_rows);
    struct engine *e = xcalloc(1, sizeof *e);
    e->o = *o;
    e->o.age_ns = o->age_ns > 0 ? o->age_ns : 1000000000;
    int rc = stream_create(o->model->dev, STREAM_COMPUTE, &e->stream, err);
    if (rc == 0)
        rc = model_work_create(o->model, o->max_batch_rows, &e->work, err);
    if (rc == 0)
        rc = reserve_pool(e, err);
    if (rc == 0)
        rc = reserve_batch(e, err);
    if (rc == 0 && o->store != NULL)
        rc = reserve_restore(e, err);
    if (rc != 0) {
        engine_destroy(e);
        return rc;
    }
    *out = e;
    return 0;
}

void engine_destroy(struct engine *e)
{
    if (e == NULL)
        return;
    CHECK(e->n_seqs == 0);
    restorer_destroy(e->restorer);
    fused_release(e);
    kv_pool_destroy(e->pool);
    model_work_destroy(e->work);
    next_token_deinit(&e->next);
    stream_destroy(e->stream);
    free(e->seqs);
    free(e->ids);
    free(e->pos);
    free(e->seq_row);
    free(e->tables);
    free(e->batch);
    free(e->parts);
    flight_deinit(&e->flight);
    free(e->again);
    free(e->sched);
    free(e->choice);
    free(e->order);
    free(e->ranges);
    free(e->masks);
    free(e->plan_layer);
    free(e->prefill_s);
    free(e);
}

size_t engine_bytes(const struct engine *e, size_t *kv, size_t *activations,
                    size_t *restore)
{
    const struct model *m = e->o.model;
    *kv = kv_block_bytes(model_rank_kv_heads(m), m->cfg.d_head, m->dtype) *
          (size_t)(round_up((uint64_t)e->o.max_kv_tokens, 64) / 64) *
          (size_t)m->cfg.n_layers;
    size_t n_stages = (size_t)m->dev->n_stages;
    *activations = n_stages * model_work_bytes(m, e->o.max_batch_rows) + e->next.mem.bytes;
    *restore = e->restorer == NULL
                   ? 0
                   : restorer_bytes(e->restorer) + n_stages * e->fused.mem[0].bytes;
    return *kv + *activations + *restore;
}

const struct kv_pool *engine_pool(const struct engine *e)
{
    return e->pool;
}

void engine_stats(const struct engine *e, struct engine_stats *out)
{
    *out = e->stats;
    out->blocks = kv_pool_n_blocks(e->pool);
    out->blocks_free = kv_pool_free_blocks(e->pool);
    out->blocks_kept = kv_pool_kept_blocks(e->pool);
    out->n_evicted = kv_pool_n_evicted(e->pool);
}

/* --- sequences -------------------------------------------------------------------------------- */

static void seq_free(struct engine *e, struct seq *s)
{
    restoring_abandon(e, s);
    save_close(s->save);
    if (s->pin.impl != NULL)
        store_release(e->o.store, &s->pin, 1);
    schedule_drop_blocks(e, s);
    kv_table_free(e->pool, &s->table);
    chain_deinit(&s->chain);
    free(s->predicted.span);
    free(s->measured.span);
    free(s->tokens);
    free(s->salt);
    free(s->plan);
    free(s);
}

static void list_add(struct engine *e, struct seq *s)
{
    if (e->n_seqs == e->cap_seqs) {
        e->cap_seqs = 2 * e->cap_seqs + 8;
        size_t n = (size_t)e->cap_seqs;
        e->seqs = xrealloc(e->seqs, n * sizeof *e->seqs);
        e->sched = xrealloc(e->sched, n * sizeof *e->sched);
        e->choice = xrealloc(e->choice, n * sizeof *e->choice);
        e->order = xrealloc(e->order, n * sizeof *e->order);
    }
    e->seqs[e->n_seqs++] = s;
}

static int check_fit(const struct engine *e, const struct request *r, struct err *err)
{
    int64_t n_max = (int64_t)r->n_prompt + r->max_tokens;
    int64_t pool = (int64_t)kv_pool_n_blocks(e->pool) * KV_BLOCK_TOKENS;
    if (r->n_prompt > e->o.model->max_ctx)
        return err_set(err, ERR_LIMIT,
                       "the prompt has %d tokens, but the maximum context length is %d",
                       r->n_prompt, e->o.model->max_ctx);
    if (n_max > e->o.model->max_ctx)
        return err_set(
            err, ERR_LIMIT,
            "the prompt has %d tokens and %d are to be generated, but the maximum context "
            "length is %d; shorten the prompt or lower --max-tokens",
            r->n_prompt, r->max_tokens, e->o.model->max_ctx);
    if (n_max > pool)
        return err_set(err, ERR_LIMIT,
                       "the prompt has %d tokens and %d are to be generated, but the KV "
                       "cache holds %lld; make it larger (--kv-tokens)",
                       r->n_prompt, r->max_tokens, (long long)pool);
    return 0;
}

int engine_add(struct engine *e, const struct request *r, struct seq **out, struct err *err)
{
    CHECK(r->n_prompt > 0 && r->max_tokens >= 0);
    int rc = check_fit(e, r, err);
    if (rc != 0)
        return rc;
    int n_max = r->n_prompt + r->max_tokens;
    struct seq *s = xcalloc(1, sizeof *s);
    s->engine = e;
    s->req = *r;
    s->t_arrival = clock_now_ns();
    s->salt = r->salt != NULL ? xstrdup(r->salt) : NULL;
    s->plan = r->plan != NULL ? xstrdup(r->plan) : NULL;
    s->tokens = xcalloc((size_t)n_max, sizeof *s->tokens);
    memcpy(s->tokens, r->prompt, (size_t)r->n_prompt * sizeof *s->tokens);
    s->n_tokens = r->n_prompt;
    s->out.tokens = s->tokens;
    s->out.n_prompt = r->n_prompt;
    kv_table_prepare(&s->table, n_max / KV_BLOCK_TOKENS + 1);
    chain_init(&s->chain, &e->o.fingerprint, s->salt);
    chain_extend(&s->chain, s->tokens, s->n_tokens);
    list_add(e, s);
    *out = s;
    return 0;
}

void seq_take_lanes(struct seq *s, struct hcache_lanes *predicted,
                    struct hcache_lanes *measured)
{
    *predicted = s->predicted;
    *measured = s->measured;
    s->predicted = s->measured = (struct hcache_lanes){0};
}

void engine_forget_saved(struct engine *e)
{
    kv_pool_unmark_saved(e->pool);
}

void engine_remove(struct engine *e, struct seq *s)
{
    int i = 0;
    while (i < e->n_seqs && e->seqs[i] != s)
        i++;
    CHECK(i < e->n_seqs);
    memmove(&e->seqs[i], &e->seqs[i + 1], (size_t)(--e->n_seqs - i) * sizeof(struct seq *));
    if (s->phase != PHASE_DONE)
        save_idle(s->save, s->tokens, s->n_done);
    seq_free(e, s);
}

const struct outcome *seq_outcome(const struct seq *s)
{
    return &s->out;
}

int seq_tokens_done(const struct seq *s)
{
    return s->n_done;
}

/* What a sequence saves continues what it took over, which may still be on its way to the store: until
 * one of its own chunks is durable that has to be looked up. */
int64_t seq_committed_tokens(const struct seq *s)
{
    int64_t saved = save_committed_tokens(s->save), known = s->out.n_stored;
    if (saved > s->n_before_save)
        return saved;
    int n_taken = s->out.n_device / STORE_CHUNK_TOKENS;
    struct store_hit hit;
    struct store *store = s->engine->o.store;
    if (n_taken * STORE_CHUNK_TOKENS > known && store != NULL &&
        store_pin(store, &s->chain.keys[n_taken - 1], &hit)) {
        store_release(store, &hit, 1);
        known = (int64_t)n_taken * STORE_CHUNK_TOKENS;
    }
    return known;
}

enum save_end seq_save_end(const struct seq *s)
{
    return save_ended(s->save);
}

const float *seq_logits(const struct seq *s)
{
    return s->logits;
}

const struct kv_table *seq_table(const struct seq *s)
{
    return &s->table;
}

/* The session goes idle: the end of its state is saved, too. */
void seq_finish(struct seq *s, enum finish why)
{
    save_idle(s->save, s->tokens, s->n_done);
    s->out.finish = why;
    s->phase = PHASE_DONE;
    if (s->t_first != 0)
        s->out.decode_ns = clock_now_ns() - s->t_first;
}

/* --- the batch -------------------------------------------------------------------------------- */

static void batch_add(struct engine *e, struct seq *s, int n_rows)
{
    s->row = e->n_rows;
    s->n_rows = n_rows;
    for (int i = 0; i < n_rows; i++) {
        e->ids[e->n_rows + i] = s->tokens[s->n_done + i];
        e->pos[e->n_rows + i] = s->n_done + i;
    }
    e->tables[e->n_batch] = s->table.blocks;
    e->seq_row[e->n_batch] = e->n_rows;
    e->parts[e->n_batch] = (struct save_part){s->save, s->n_done, e->n_rows, n_rows};
    e->batch[e->n_batch++] = s;
    e->n_rows += n_rows;
    e->seq_row[e->n_batch] = e->n_rows;
}

/* Decodes first, so that they never stall behind a long prompt; then prefill pieces, the first in rank
 * first.  Decodes never wait for the saver either: where its buffers are all on their way to the store,
 * a decode is saved no further, and a prefill waits, for a later step if there is other work in this
 * one. */
static void batch_make(struct engine *e)
{
    e->n_batch = e->n_rows = 0;
    for (int i = 0; i < e->n_seqs; i++) {
        struct seq *s = e->seqs[i];
        if (s->phase != PHASE_DECODE || s->rows == 0)
            continue;
        save_reserve(s->save, s->n_done, 1, SAVE_SHED);
        batch_add(e, s, 1);
    }
    for (int i = 0; i < e->n_live; i++) {
        struct seq *s = e->seqs[e->order[i]];
        if (s->phase != PHASE_PREFILL || s->rows == 0)
            continue;
        int left = s->n_tokens - s->n_done;
        int n = left < s->rows ? left : s->rows;
        if (save_reserve(s->save, s->n_done, n, e->n_batch > 0 ? SAVE_TRY : SAVE_WAIT))
            batch_add(e, s, n);
    }
}

/* The tap. */
static int snapshot(void *arg, int l, struct mat hidden, struct mat kv_rows)
{
    struct engine *e = arg;
    save_layer(e->flight.parts, e->flight.n_parts, l, hidden, kv_rows, e->stream);
    return 0;
}

/* Whether this batch brings a sequence to its last known token. */
static bool comes_to_end(const struct seq *s)
{
    return s->n_done + s->n_rows == s->n_tokens;
}

static int count_wanted(const struct engine *e)
{
    int n = 0;
    for (int i = 0; i < e->n_batch; i++)
        n += comes_to_end(e->batch[i]) && next_token_shows_logits(e->batch[i]);
    return n;
}

/* The sequences whose last known token was in this piece of the batch; x: its rows. */
static int take_ends(struct engine *e, const struct flight *f, struct mat x)
{
    int rc = 0;
    for (int i = 0; rc == 0 && i < e->n_batch; i++) {
        struct seq *s = e->batch[i];
        int row = s->row + s->n_rows - 1 - f->first_row;
        if (comes_to_end(s) && row >= 0 && row < f->r.n_rows)
            rc = next_token_add(&e->next, e->stream, s, mat_rows(x, row, 1));
    }
    return rc;
}

/* Hashes what was hashed before and the logits that are there. */
static void digest_logits(struct seq *s, int vocab)
{
    uint64_t link[2] = {s->out.logits_digest,
                        checksum64(s->logits, (size_t)vocab * sizeof *s->logits)};
    s->out.logits_digest = checksum64(link, sizeof link);
}

/* Takes the next token of a sequence. */
static void seq_take_token(struct engine *e, struct seq *s)
{
    int32_t id = s->next;
    if (id == SAMPLE_NO_TOKEN) {
        seq_fail(s, ERR_UNSUPPORTED,
                 "no token can be chosen: all logits are NaN. The weights hold a NaN or an "
                 "infinity (download them again), or values overflow");
        return;
    }
    if (s->req.digest)
        digest_logits(s, e->o.model->cfg.vocab_size);
    if (s->t_first == 0) {
        s->t_first = clock_now_ns();
        s->out.ttft_ns = s->t_first - s->t_admit;
    }
    s->phase = PHASE_DECODE;
    /* A model that emits BOS begins another text: that ends this one as EOS does. */
    const struct model_config *c = &e->o.model->cfg;
    if (!s->req.ignore_eos && (config_is_eos(c, id) || id == c->bos_id)) {
        seq_finish(s, FINISH_EOS);
        return;
    }
    s->tokens[s->n_tokens++] = id;
    s->out.n_generated++;
    if (s->req.on_token != NULL && s->req.on_token(s->req.arg, id) != 0)
        seq_finish(s, FINISH_CANCELLED);
    else if (s->out.n_generated == s->req.max_tokens)
        seq_finish(s, FINISH_LENGTH);
}

void seq_advance(struct engine *e, struct seq *s)
{
    s->n_done += s->n_rows;
    save_advance(s->save, s->tokens, s->n_done);
    schedule_keep(e, s);
    if (s->n_done < s->n_tokens)
        return; /* prefill goes on */
    if (s->phase == PHASE_PREFILL && !s->was_preempted)
        s->out.prefill_ns = clock_now_ns() - s->t_start - s->out.lookup_ns -
                            s->out.restore_ns;
    if (s->req.max_tokens == 0)
        seq_finish(s, FINISH_LENGTH);
    else
        seq_take_token(e, s);
}

static int forward(struct engine *e)
{
    struct model_tap tap = {.layer = snapshot, .arg = e};
    struct flight *f = &e->flight;
    struct mat x;
    int n = flight_count(e->o.model->dev, e->n_rows), rc = 0;
    next_token_begin(&e->next, count_wanted(e));
    for (int i = 0; rc == 0 && i < n; i++) {
        flight_cut(e, i, n, f);
        rc = model_forward(e->o.model, e->work, e->stream, e->ids + f->first_row,
                           kv_pool_layers(e->pool), &f->r, e->o.saver != NULL ? &tap : NULL,
                           &x);
        if (e->o.saver != NULL)
            save_layers_end(e->o.saver, e->stream);
        if (rc == 0)
            rc = take_ends(e, f, x);
    }
    return rc == 0 ? next_token_run(&e->next, e->stream, e->work) : rc;
}

void seq_fail(struct seq *s, int rc, const char *message)
{
    err_set(&s->out.err, rc, "%s", message);
    seq_finish(s, FINISH_ERROR);
}

void seq_fail_overflow(struct seq *s)
{
    seq_fail(s, ERR_UNSUPPORTED,
             "the residual stream left the range of f16 (65504): run this model with "
             "--dtype bf16");
}

/* A value out of range is the fault of one sequence, and the batch does not say whose: all its rows are
 * computed again, one sequence after another.  They have the same bits as before (ops.h), so what the
 * others have written and saved stays right. */
static int run_one_by_one(struct engine *e)
{
    int n = e->n_batch, rc = 0;
    memcpy(e->again, e->batch, (size_t)n * sizeof(struct seq *));
    for (int i = 0; rc == 0 && i < n; i++) {
        struct seq *s = e->again[i];
        e->n_batch = e->n_rows = 0;
        batch_add(e, s, s->n_rows);
        rc = forward(e);
        if (rc == 0)
            seq_advance(e, s);
        if (rc == MODEL_E_OVERFLOW) {
            seq_fail_overflow(s);
            rc = 0;
        }
    }
    e->n_batch = n;
    return rc;
}

int engine_recover(struct engine *e, struct err *err)
{
    if (stream_fault(e->stream)[0] == 0)
        return 0;
    int rc = stream_recover(e->stream);
    return rc == 0 ? 0 : err_set(err, rc, "%s", stream_fault(e->stream));
}

const char *engine_fault(const struct engine *e, int rc)
{
    const char *why = stream_fault(e->stream);
    return why[0] != 0 ? why : err_name(rc);
}

/* The device failed under this batch: its sequences fail, and the others go on if it survives that. */
static int fail_batch(struct engine *e, int rc, struct err *err)
{
    char why[256];
    snprintf(why, sizeof why, "forward pass: %s", engine_fault(e, rc));
    for (int i = 0; i < e->n_batch; i++) {
        if (e->batch[i]->phase != PHASE_DONE)
            seq_fail(e->batch[i], rc, why);
    }
    return engine_recover(e, err);
}

static int run_batch(struct engine *e, struct err *err)
{
    int n = e->n_batch, rc = forward(e);
    for (int i = 0; rc == 0 && i < n; i++)
        seq_advance(e, e->batch[i]);
    if (rc == MODEL_E_OVERFLOW)
        rc = run_one_by_one(e);
    return rc == 0 ? 0 : fail_batch(e, rc, err);
}

/* --- the step --------------------------------------------------------------------------------- */

static int count_decodes(const struct engine *e)
{
    int n = 0;
    for (int i = 0; i < e->n_batch; i++)
        n += e->batch[i]->phase == PHASE_DECODE;
    return n;
}

static bool is_restoring(const struct engine *e)
{
    for (int i = 0; i < e->n_live; i++) {
        if (e->seqs[i]->phase == PHASE_RESTORE)
            return true;
    }
    return false;
}

/* Nobody may begin before the saver has done something: how soon that is looked at. */
enum { IDLE_NS = 200000 };

/* New sequences begin to restore; the batch goes forward; restores take what is left of the step. */
int engine_step(struct engine *e, int *n_active, struct err *err)
{
    schedule(e);
    batch_make(e);
    int64_t t0 = clock_now_ns();
    int n_decodes = count_decodes(e), n_rows = e->n_rows;
    int rc = e->n_batch > 0 ? run_batch(e, err) : 0;
    if (rc != 0)
        return rc;
    if (n_rows > 0)
        schedule_learn(e, n_decodes, n_rows, clock_now_ns() - t0);
    bool restores = is_restoring(e);
    if (e->restorer != NULL)
        restoring_step(e, n_decodes, clock_now_ns() - t0);
    rc = engine_recover(e, err);
    if (rc != 0)
        return rc;
    *n_active = 0;
    for (int i = 0; i < e->n_seqs; i++)
        *n_active += e->seqs[i]->phase != PHASE_DONE;
    if (e->n_batch == 0 && !restores && *n_active > 0)
        clock_sleep_ns(IDLE_NS);
    return 0;
}

int engine_run(struct engine *e, struct err *err)
{
    int n_active, rc;
    do {
        rc = engine_step(e, &n_active, err);
    } while (rc == 0 && n_active > 0);
    return rc;
}
