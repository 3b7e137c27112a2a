/* engine.c - see engine.h: creation, admission, and the step.
 *
 * Invariants:
 *  1. A sequence's KV cache holds positions [0, n_done); tokens [0, n_tokens) are known; a decoding
 *     sequence has n_done == n_tokens - 1.
 *  2. Blocks for prompt and max_tokens are reserved at admission: a running sequence never lacks one.
 *  3. No memory is allocated in a step. */
#include "engine/engine.h"

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
    const struct model *m = e->o.model;
    size_t rows = (size_t)e->o.max_batch_rows, seqs = (size_t)e->o.max_seqs;
    size_t head_bytes = round_up(seqs * model_hidden_bytes(m), 64);
    size_t logit_bytes = seqs * (size_t)m->cfg.vocab_size * sizeof(float);
    e->ids = xcalloc(rows, sizeof *e->ids);
    e->pos = xcalloc(rows, sizeof *e->pos);
    e->seq_row = xcalloc(seqs + 1, sizeof *e->seq_row);
    e->tables = xcalloc(seqs, sizeof *e->tables);
    e->batch = xcalloc(seqs, sizeof *e->batch);
    e->parts = xcalloc(seqs, sizeof *e->parts);
    e->seqs = xcalloc(seqs, sizeof *e->seqs);
    e->sample_scratch = xcalloc((size_t)m->cfg.vocab_size, 2 * sizeof(uint32_t));
    int rc = buf_alloc(m->dev, MEM_DEVICE, head_bytes + logit_bytes, &e->head_mem, err);
    if (rc != 0)
        return err_wrap(err, "logits");
    e->head_in = mat_of(e->head_mem.ptr, m->dtype, e->o.max_seqs, m->cfg.n_embd);
    e->logits = mat_of((uint8_t *)e->head_mem.ptr + head_bytes, DTYPE_F32, e->o.max_seqs,
                       m->cfg.vocab_size);
    return 0;
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
                              .max_tokens = e->o.model->max_ctx};
    return restorer_create(&o, &e->restorer, err);
}

static int reserve_pool(struct engine *e, struct err *err)
{
    const struct model *m = e->o.model;
    struct kv_pool_opts o = {
        .n_layers = m->cfg.n_layers,
        .n_kv = m->cfg.n_kv_heads,
        .d_head = m->cfg.d_head,
        .dtype = m->dtype,
        .n_blocks = (int)(round_up((uint64_t)e->o.max_kv_tokens, 64) / 64)};
    int rc = kv_pool_create(m->dev, &o, &e->pool, err);
    if (rc != 0)
        return rc;
    e->kv = xcalloc((size_t)m->cfg.n_layers, sizeof *e->kv);
    for (int l = 0; l < m->cfg.n_layers; l++)
        e->kv[l] = kv_pool_layer(e->pool, l);
    return 0;
}

int engine_create(const struct engine_opts *o, struct engine **out, struct err *err)
{
    CHECK(o->max_batch_rows >= RESTORE_GROUP_CHUNKS * STORE_CHUNK_TOKENS);
    CHECK(o->step_rows > 0 && o->step_rows <= o->max_batch_rows);
    CHECK(o->max_seqs > 0 && o->max_seqs <= o->max_batch_rows);
    struct engine *e = xcalloc(1, sizeof *e);
    e->o = *o;
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
    for (int i = 0; e->seqs != NULL && i < e->o.max_seqs; i++)
        CHECK(e->seqs[i] == NULL);
    restorer_destroy(e->restorer);
    kv_pool_destroy(e->pool);
    model_work_destroy(e->work);
    buf_free(e->o.model->dev, &e->head_mem);
    stream_destroy(e->stream);
    free(e->kv);
    free(e->seqs);
    free(e->ids);
    free(e->pos);
    free(e->seq_row);
    free(e->tables);
    free(e->batch);
    free(e->parts);
    free(e->sample_scratch);
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
    *kv = kv_block_bytes(m->cfg.n_kv_heads, m->cfg.d_head, m->dtype) *
          (size_t)(round_up((uint64_t)e->o.max_kv_tokens, 64) / 64) *
          (size_t)m->cfg.n_layers;
    *activations = model_work_bytes(m, e->o.max_batch_rows) + e->head_mem.bytes;
    *restore = e->restorer != NULL ? restorer_bytes(e->restorer) : 0;
    return *kv + *activations + *restore;
}

const struct kv_pool *engine_pool(const struct engine *e)
{
    return e->pool;
}

/* --- sequences -------------------------------------------------------------------------------- */

static void seq_free(struct engine *e, struct seq *s)
{
    restoring_abandon(e, s);
    save_close(s->save);
    if (s->pin.impl != NULL)
        store_release(e->o.store, &s->pin, 1);
    kv_table_free(e->pool, &s->table);
    chain_deinit(&s->chain);
    free(s->tokens);
    free(s->salt);
    free(s->plan);
    free(s);
}

static int free_place(const struct engine *e)
{
    int i = 0;
    while (i < e->o.max_seqs && e->seqs[i] != NULL)
        i++;
    return i;
}

int engine_add(struct engine *e, const struct request *r, struct seq **out, struct err *err)
{
    int64_t n_max = (int64_t)r->n_prompt + r->max_tokens;
    CHECK(r->n_prompt > 0 && r->max_tokens >= 0);
    if (n_max > e->o.model->max_ctx)
        return err_set(
            err, ERR_LIMIT,
            "the prompt has %d tokens and %d are to be generated, but the context holds "
            "%d; shorten the prompt or lower --max-tokens",
            r->n_prompt, r->max_tokens, e->o.model->max_ctx);
    int place = free_place(e);
    if (place == e->o.max_seqs)
        return err_set(err, ERR_LIMIT, "%d sequences are running already", place);
    struct seq *s = xcalloc(1, sizeof *s);
    int rc = kv_table_reserve(e->pool, &s->table, n_max, err);
    if (rc != 0) {
        free(s);
        return rc;
    }
    s->req = *r;
    s->t_start = clock_now_ns();
    s->salt = r->salt != NULL ? xstrdup(r->salt) : NULL;
    s->plan = r->plan != NULL ? xstrdup(r->plan) : NULL;
    s->tokens = xcalloc((size_t)n_max, sizeof *s->tokens);
    memcpy(s->tokens, r->prompt, (size_t)r->n_prompt * sizeof *s->tokens);
    s->n_tokens = r->n_prompt;
    s->out.tokens = s->tokens;
    s->out.n_prompt = r->n_prompt;
    chain_init(&s->chain, &e->o.fingerprint, s->salt);
    chain_extend(&s->chain, s->tokens, s->n_tokens);
    e->seqs[place] = s;
    *out = s;
    return 0;
}

void engine_remove(struct engine *e, struct seq *s)
{
    for (int i = 0; i < e->o.max_seqs; i++) {
        if (e->seqs[i] == s)
            e->seqs[i] = NULL;
    }
    seq_free(e, s);
}

const struct outcome *seq_outcome(const struct seq *s)
{
    return &s->out;
}

int64_t seq_committed_tokens(const struct seq *s)
{
    int64_t saved = save_committed_tokens(s->save);
    return saved > s->out.n_stored ? saved : s->out.n_stored;
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

static void seq_finish(struct seq *s, enum finish why)
{
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

/* Decodes first, so that they never stall behind a long prompt; then prefill pieces.  Decodes never
 * wait for the saver either: where its buffers are all on their way to the store, a decode is saved no
 * further, and a prefill waits, for a later step if there is other work in this one. */
static void batch_make(struct engine *e)
{
    e->n_batch = e->n_rows = 0;
    for (int i = 0; i < e->o.max_seqs; i++) {
        struct seq *s = e->seqs[i];
        if (s == NULL || s->phase != PHASE_DECODE)
            continue;
        save_reserve(s->save, s->n_done, 1, SAVE_SHED);
        batch_add(e, s, 1);
    }
    for (int i = 0; i < e->o.max_seqs && e->n_rows < e->o.step_rows; i++) {
        struct seq *s = e->seqs[i];
        if (s == NULL || s->phase != PHASE_PREFILL)
            continue;
        int room = e->o.step_rows - e->n_rows, left = s->n_tokens - s->n_done;
        int n = left < room ? left : room;
        if (save_reserve(s->save, s->n_done, n, e->n_batch > 0 ? SAVE_TRY : SAVE_WAIT))
            batch_add(e, s, n);
    }
}

/* The tap. */
static int snapshot(void *arg, int l, struct mat hidden, struct mat kv_rows)
{
    struct engine *e = arg;
    save_layer(e->parts, e->n_batch, l, hidden, kv_rows);
    return 0;
}

/* Logits of the sequences whose last known token has just been computed, in rows of their own. */
static int run_head(struct engine *e, struct mat x)
{
    size_t row_bytes = model_hidden_bytes(e->o.model);
    int n = 0, rc = 0;
    for (int i = 0; rc == 0 && i < e->n_batch; i++) {
        struct seq *s = e->batch[i];
        if (s->n_done + s->n_rows < s->n_tokens)
            continue; /* prefill goes on */
        s->logits = mat_rows(e->logits, n, 1).data;
        rc = stream_copy(e->stream, mat_rows(e->head_in, n++, 1).data,
                         mat_rows(x, s->row + s->n_rows - 1, 1).data, row_bytes);
    }
    if (rc == 0 && n > 0)
        rc = model_head(e->o.model, e->work, e->stream, mat_rows(e->head_in, 0, n),
                        mat_rows(e->logits, 0, n));
    return rc == 0 ? stream_sync(e->stream) : rc;
}

/* Takes the next token of a sequence whose logits are there. */
static void seq_sample(struct engine *e, struct seq *s)
{
    int vocab = e->o.model->cfg.vocab_size;
    uint64_t link[2] = {s->out.logits_digest,
                        checksum64(s->logits, (size_t)vocab * sizeof *s->logits)};
    s->out.logits_digest = checksum64(link, sizeof link);
    int32_t id = sample_token(s->logits, vocab, &s->req.sample, s->n_tokens,
                              e->sample_scratch);
    if (s->phase == PHASE_PREFILL) {
        s->t_first = clock_now_ns();
        s->out.ttft_ns = s->t_first - s->t_start;
        s->phase = PHASE_DECODE;
    }
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

static void seq_advance(struct engine *e, struct seq *s)
{
    s->n_done += s->n_rows;
    save_advance(s->save, s->tokens, s->n_done);
    if (s->n_done < s->n_tokens)
        return; /* prefill goes on */
    if (s->phase == PHASE_PREFILL)
        s->out.prefill_ns = clock_now_ns() - s->t_start - s->out.lookup_ns -
                            s->out.restore_ns;
    if (s->req.max_tokens == 0)
        seq_finish(s, FINISH_LENGTH);
    else
        seq_sample(e, s);
}

static int run_batch(struct engine *e, struct err *err)
{
    struct ragged r = {.n_rows = e->n_rows,
                       .n_seqs = e->n_batch,
                       .pos = e->pos,
                       .seq_row = e->seq_row,
                       .tables = e->tables};
    struct model_tap tap = {.layer = snapshot, .arg = e};
    struct mat x;
    int rc = model_forward(e->o.model, e->work, e->stream, e->ids, e->kv, &r,
                           e->o.saver != NULL ? &tap : NULL, &x);
    if (rc == 0)
        rc = run_head(e, x);
    if (rc == MODEL_E_OVERFLOW)
        return err_set(
            err, ERR_UNSUPPORTED,
            "the residual stream left the range of f16 (65504): run this model with "
            "--dtype bf16");
    if (rc != 0)
        return err_set(err, rc, "forward pass: %s", err_name(rc));
    return 0;
}

/* --- the step --------------------------------------------------------------------------------- */

static int count_decodes(const struct engine *e)
{
    int n = 0;
    for (int i = 0; i < e->n_batch; i++)
        n += e->batch[i]->phase == PHASE_DECODE;
    return n;
}

/* New sequences begin to restore; the batch goes forward; restores take what is left of the step. */
int engine_step(struct engine *e, int *n_active, struct err *err)
{
    for (int i = 0; i < e->o.max_seqs; i++) {
        if (e->seqs[i] != NULL && e->seqs[i]->phase == PHASE_NEW)
            restoring_begin(e, e->seqs[i]);
    }
    batch_make(e);
    int64_t t0 = clock_now_ns();
    int n_decodes = count_decodes(e);
    if (e->n_batch > 0) {
        int rc = run_batch(e, err);
        if (rc != 0)
            return rc;
        for (int i = 0; i < e->n_batch; i++)
            seq_advance(e, e->batch[i]);
    }
    restoring_step(e, n_decodes, clock_now_ns() - t0);
    *n_active = 0;
    for (int i = 0; i < e->o.max_seqs; i++)
        *n_active += e->seqs[i] != NULL && e->seqs[i]->phase != PHASE_DONE;
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
