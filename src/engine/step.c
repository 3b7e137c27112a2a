/* step.c - see step.h. */
#include "engine/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "engine/mixed.h"
#include "engine/reading.h"
#include "engine/seq.h"
#include "engine/shaping.h"
#include "engine/zigzag.h"
#include "model/sample.h"

/* --- pieces that follow one another through stages -------------------------------------------- */

void flight_init(struct flight *f, int max_seqs)
{
    size_t n = (size_t)max_seqs;
    f->parts = xcalloc(n, sizeof *f->parts);
    f->seq_row = xcalloc(n + 1, sizeof *f->seq_row);
    f->tables = xcalloc(n, sizeof *f->tables);
    f->states = xcalloc(n, sizeof *f->states);
    f->ahead = xcalloc(n, sizeof *f->ahead);
}

void flight_deinit(struct flight *f)
{
    free(f->parts);
    free(f->seq_row);
    free(f->tables);
    free(f->states);
    free(f->ahead);
}

int flight_count(const struct device *d, int n_rows)
{
    int n = n_rows / FLIGHT_ROWS;
    return MAX(MIN(n, d->n_stages), 1);
}

void flight_cut(const struct step_batch *b, int begin, int end, struct flight *f)
{
    f->first_row = begin;
    f->n_parts = 0;
    f->seq_row[0] = 0;
    for (int k = 0; k < b->n_seqs; k++) {
        const struct save_part *all = &b->parts[k];
        int from = MAX(all->row, begin);
        int to = MIN(all->row + all->n_rows, end);
        if (from >= to)
            continue;
        f->parts[f->n_parts] = (struct save_part){all->seq, all->pos + (from - all->row),
                                                  from - begin, to - from};
        f->tables[f->n_parts] = b->tables[k];
        f->states[f->n_parts] = b->states[k];
        f->ahead[f->n_parts] = MAX(0, to - (all->row + all->n_rows - b->ahead[k]));
        f->seq_row[++f->n_parts] = to - begin;
    }
    f->r = (struct ragged){.n_rows = end - begin,
                           .n_seqs = f->n_parts,
                           .pos = b->pos + begin,
                           .seq_row = f->seq_row,
                           .tables = f->tables,
                           .states = f->states,
                           .ahead = f->ahead,
                           .id = ragged_new_id()};
}

/* --- the next token --------------------------------------------------------------------------- */

static size_t hidden_bytes(const struct model *m, int max_rows)
{
    return round_up((size_t)max_rows * model_hidden_bytes(m), 64);
}

static size_t logit_bytes(const struct model *m, int max_rows)
{
    /* embeddings use the rows, too (reading.h) */
    int32_t width = m->cfg.n_embd;
    for (int i = 0; i < m->cfg.n_behind; i++)
        width += m->cfg.dense[i];
    width = MAX(m->cfg.vocab_size, width);
    return (size_t)max_rows * (size_t)width * sizeof(float);
}

size_t next_token_bytes(const struct model *m, int max_rows)
{
    return hidden_bytes(m, max_rows) + logit_bytes(m, max_rows) +
           (size_t)max_rows * sizeof(int32_t);
}

int next_token_init(struct next_token *h, const struct model *m, int max_rows,
                    struct err *err)
{
    size_t n = (size_t)max_rows, in = hidden_bytes(m, max_rows);
    size_t logits = logit_bytes(m, max_rows);
    h->model = m;
    h->seqs = xcalloc(n, sizeof(struct seq *));
    h->rows = xcalloc(n, sizeof *h->rows);
    h->shaped = xcalloc((size_t)m->cfg.vocab_size, sizeof *h->shaped);
    h->counts = xcalloc((size_t)m->cfg.vocab_size, sizeof *h->counts);
    int rc = stage_alloc(m->dev, model_last_stage(m), next_token_bytes(m, max_rows),
                         &h->mem, err);
    if (rc == 0)
        rc = readback_init(m->dev, logits, &h->logits_back, err);
    if (rc == 0)
        rc = readback_init(m->dev, n * sizeof *h->ids, &h->ids_back, err);
    if (rc != 0)
        return err_wrap(err, "logits");
    uint8_t *at = h->mem.ptr;
    h->in = mat_of(at, m->dtype, max_rows, m->cfg.n_embd);
    h->logits = mat_of(at + in, DTYPE_F32, max_rows, m->cfg.vocab_size);
    h->ids = (int32_t *)(void *)(at + in + logits);
    return 0;
}

void next_token_deinit(struct next_token *h)
{
    if (h->model == NULL)
        return;
    buf_free(h->model->dev, &h->mem);
    readback_deinit(&h->logits_back);
    readback_deinit(&h->ids_back);
    free(h->seqs);
    free(h->rows);
    free(h->shaped);
    free(h->counts);
    free(h->raw);
}

bool next_token_shows_logits(const struct seq *q)
{
    return q->req->ask.digest || q->req->ask.logprobs || reading_needs_logits(q->req);
}

void next_token_begin(struct next_token *h, int n_seqs, int n_wanted)
{
    h->n_seqs = n_seqs;
    h->n_wanted = n_wanted;
    h->n_shown = h->n_other = h->n_guesses = 0;
}

/* The sampling parameters of the next token of q. */
static struct sample_row sampling_of(const struct seq *q)
{
    const struct hcache_request *ask = &q->req->ask;
    const struct sample_opts o = {.temperature = ask->temperature,
                                  .top_p = ask->top_p > 0 ? ask->top_p : 1,
                                  .min_p = ask->min_p,
                                  .top_k = ask->top_k,
                                  .seed = ask->seed};
    return sample_row_of(&o, q->n_tokens);
}

int next_token_add(struct next_token *h, struct stream *s, struct seq *q, struct mat x)
{
    int row = next_token_shows_logits(q) ? h->n_shown++ : h->n_wanted + h->n_other++;
    int n_guesses = q->guess.n, first = h->n_seqs + h->n_guesses;
    CHECK(row < h->n_seqs && first + n_guesses <= h->in.rows && x.rows == 1 + n_guesses &&
          h->n_shown <= h->n_wanted);
    h->seqs[row] = q;
    h->rows[row] = sampling_of(q);
    q->guess.row = first;
    h->n_guesses += n_guesses;
    size_t bytes = model_hidden_bytes(h->model);
    int rc = stream_copy(s, mat_rows(h->in, row, 1).data, x.data, bytes);
    if (rc == 0 && n_guesses > 0)
        rc = stream_copy(s, mat_rows(h->in, first, n_guesses).data,
                         mat_rows(x, 1, n_guesses).data, (size_t)n_guesses * bytes);
    return rc;
}

static bool is_shaped(const struct seq *q)
{
    return shaping_changes(q->req->ask.shaping) || q->req->form != NULL ||
           q->req->thought.n_end > 0;
}

static bool any_is_shaped(const struct next_token *h, int n)
{
    for (int i = 0; i < n; i++)
        if (is_shaped(h->seqs[i]))
            return true;
    return false;
}

/* Collects the tokens that end the answer of q: its model's, and those of its request. Returns
 * their number, and in *n_own the number of the model's. */
static int end_ids(const struct seq *q, const struct model_config *c,
                   int32_t ids[CONFIG_MAX_EOS + HCACHE_MAX_STOP_IDS], int *n_own)
{
    const struct hcache_shaping *g = q->req->ask.shaping;
    int n = 0;
    for (; !q->req->ask.ignore_eos && n < c->n_eos; n++)
        ids[n] = c->eos_ids[n];
    *n_own = n;
    for (int i = 0; g != NULL && i < g->n_stop_ids; i++)
        ids[n++] = g->stop_ids[i];
    return n;
}

/* Changes the logits [n_vocab] of q. */
static void shape_row(struct next_token *h, struct seq *q, int n_vocab, float *logits)
{
    int32_t ends[CONFIG_MAX_EOS + HCACHE_MAX_STOP_IDS];
    int n_own, n_ends = end_ids(q, &h->model->cfg, ends, &n_own),
               n_prompt = q->req->ask.n_prompt;
    struct shaping_place place = {.tokens = q->tokens,
                                  .n_prompt = n_prompt,
                                  .n_tokens = q->n_tokens,
                                  .end_ids = ends,
                                  .n_end_ids = n_own};
    if (shaping_changes(q->req->ask.shaping))
        shaping_apply(q->req->ask.shaping, &place, n_vocab, h->counts, logits);
    shaping_end_thought(&q->req->thought, &place, n_vocab, logits);
    int left = q->req->ask.close ? q->req->ask.max_tokens - (q->n_tokens - n_prompt) : 0;
    if (q->req->form != NULL)
        form_shape(q->req->form, &q->place, q->tokens + n_prompt, q->n_tokens - n_prompt,
                   (struct form_ends){.ids = ends, .n = n_ends, .left = left}, n_vocab,
                   logits, &q->form_err);
}

/* Shapes the logits of the first n sequences, which came down to at [n][vocab], and copies the
 * shaped ones up. On unified memory `at` is the logits themselves, so nothing is copied. */
static int shape(struct next_token *h, struct stream *s, struct mat logits, const float *at,
                 int n)
{
    const size_t row = (size_t)logits.cols;
    int rc = 0;
    for (int i = 0; rc == 0 && i < n; i++) {
        float *own = mat_rows(logits, i, 1).data;
        if (!is_shaped(h->seqs[i]))
            continue;
        if (own == at + (size_t)i * row) {
            shape_row(h, h->seqs[i], (int)row, own);
            continue;
        }
        memcpy(h->shaped, at + (size_t)i * row, row * sizeof *h->shaped);
        shape_row(h, h->seqs[i], (int)row, h->shaped);
        rc = stream_copy(s, own, h->shaped, row * sizeof(float));
        if (rc == 0)
            rc = stream_sync(s); /* the next row reuses h->shaped */
    }
    return rc;
}

/* Keeps a copy of n rows of logits from row `first` on, and returns it. On unified memory shaping
 * changes the original. */
static const float *keep_raw(struct next_token *h, int first, const void *at, int n)
{
    size_t row = (size_t)h->logits.cols;
    if (h->raw == NULL)
        h->raw = xmalloc((size_t)h->logits.rows * row * sizeof *h->raw);
    return memcpy(h->raw + (size_t)first * row, at, (size_t)n * row * sizeof *h->raw);
}

/* Returns whether any of the n sequences needs its logits, or a token. */
static bool any_goes_on(const struct next_token *h, int n)
{
    bool any = false;
    for (int i = 0; i < n; i++)
        any |= h->seqs[i]->req->ask.max_tokens > 0 || next_token_shows_logits(h->seqs[i]);
    return any;
}

int next_token_run(struct next_token *h, struct stream *s, struct model_work *work)
{
    int n = h->n_shown + h->n_other;
    struct mat logits = mat_rows(h->logits, 0, n);
    size_t row = (size_t)logits.cols;
    const void *at = NULL, *ids = NULL;
    CHECK(h->n_shown == h->n_wanted);
    if (!any_goes_on(h, n))
        return stream_sync(s);
    CHECK(n == h->n_seqs);
    int rc = model_head(h->model, work, s, mat_rows(h->in, 0, n + h->n_guesses),
                        mat_rows(h->logits, 0, n + h->n_guesses));
    bool shaped = any_is_shaped(h, n);
    /* Shaping is done on the host. Without shaping only the wanted logits come down. */
    int n_down = shaped ? n : h->n_wanted;
    if (rc == 0 && n_down > 0)
        rc = readback_start(&h->logits_back, s, logits.data,
                            (size_t)n_down * row * sizeof(float), &at);
    if (rc == 0 && shaped)
        rc = stream_sync(s);
    const float *down = at;
    if (rc == 0 && shaped && h->n_wanted > 0)
        at = keep_raw(h, 0, at, h->n_wanted);
    if (rc == 0 && shaped)
        rc = shape(h, s, logits, down, n);
    if (rc == 0)
        rc = h->model->dev->ops->sample(s, h->ids, logits, h->rows);
    if (rc == 0)
        rc = readback_start(&h->ids_back, s, h->ids, (size_t)n * sizeof *h->ids, &ids);
    if (rc == 0)
        rc = stream_sync(s);
    for (int i = 0; rc == 0 && i < n; i++) {
        h->seqs[i]->next = ((const int32_t *)ids)[i];
        h->seqs[i]->logits = i < h->n_wanted ? (const float *)at + (size_t)i * row : NULL;
    }
    return rc;
}

int next_token_guessed(struct next_token *h, struct stream *s, struct seq *q, int k)
{
    int row = q->guess.row + k;
    struct mat logits = mat_rows(h->logits, row, 1);
    bool shows = next_token_shows_logits(q);
    q->logits = shows ? logits.data : NULL;
    if (is_shaped(q)) {
        if (shows)
            q->logits = keep_raw(h, row, logits.data, 1);
        shape_row(h, q, (int)logits.cols, logits.data);
    }
    h->rows[row] = sampling_of(q);
    int rc = h->model->dev->ops->sample(s, h->ids + row, logits, h->rows + row);
    if (rc == 0)
        rc = stream_sync(s);
    if (rc == 0)
        q->next = h->ids[row];
    return rc;
}

/* --- the batch -------------------------------------------------------------------------------- */

void step_batch_init(struct step_batch *b, struct seq_shared *sh, struct next_token *next,
                     struct zigzag *zigzag, struct mixed *mixed, int max_rows, int max_seqs)
{
    size_t rows = (size_t)max_rows, seqs = (size_t)max_seqs;
    *b = (struct step_batch){.shared = sh, .next = next, .zigzag = zigzag, .mixed = mixed};
    b->seqs = xcalloc(seqs, sizeof *b->seqs);
    b->ids = xcalloc(rows, sizeof *b->ids);
    b->pos = xcalloc(rows, sizeof *b->pos);
    b->tables = xcalloc(seqs, sizeof *b->tables);
    b->states = xcalloc(seqs, sizeof *b->states);
    b->ahead = xcalloc(seqs, sizeof *b->ahead);
    b->parts = xcalloc(seqs, sizeof *b->parts);
    flight_init(&b->flight, max_seqs);
    b->again = xcalloc(seqs, sizeof *b->again);
}

void step_batch_deinit(struct step_batch *b)
{
    free(b->seqs);
    free(b->ids);
    free(b->pos);
    free(b->tables);
    free(b->states);
    free(b->ahead);
    free(b->parts);
    flight_deinit(&b->flight);
    free(b->again);
}

void step_batch_clear(struct step_batch *b)
{
    b->n_seqs = b->n_rows = 0;
}

void step_batch_add(struct step_batch *b, struct seq *s, int n_rows)
{
    int k = b->n_seqs++, first_token = seq_at(s);
    s->row = b->n_rows;
    s->n_rows = n_rows;
    memcpy(s->tokens + s->n_tokens, s->guess.ids, (size_t)s->guess.n * sizeof *s->tokens);
    for (int i = 0; i < n_rows; i++) {
        b->ids[b->n_rows + i] = s->tokens[first_token + i];
        b->pos[b->n_rows + i] = s->n_done + i;
    }
    b->seqs[k] = s;
    b->tables[k] = s->table.blocks;
    b->states[k] = kv_table_state(&s->table);
    b->ahead[k] = s->guess.n;
    b->parts[k] = (struct save_part){s->save, first_token, b->n_rows, n_rows};
    b->n_rows += n_rows;
}

/* --- forward ---------------------------------------------------------------------------------- */

/* Copies the rows of sequences that carry their view. */
static int carry_rows(const struct step_batch *b, int l, struct mat kv_rows)
{
    int begin = b->now->first_row, end = begin + b->now->r.n_rows, rc = 0;
    for (int i = 0; rc == 0 && i < b->n_seqs; i++) {
        struct seq *s = b->seqs[i];
        int from = MAX(s->row, begin), to = MIN(s->row + s->n_rows, end);
        if (carry_is_on(&s->stairs.carry) && from < to)
            rc = carry_take(&s->stairs.carry, b->shared->stream, l,
                            s->n_done + (from - s->row),
                            mat_rows(kv_rows, from - begin, to - from));
    }
    return rc;
}

/* The tap of the forward pass: gives each layer's rows to the saver and to carried views. */
static int snapshot(void *arg, int l, struct mat hidden, struct mat kv_rows)
{
    struct step_batch *b = arg;
    save_layer(b->now->parts, b->now->n_parts, l, hidden, kv_rows, b->shared->stream);
    return b->shared->n_carrying > 0 ? carry_rows(b, l, kv_rows) : 0;
}

/* Returns whether this batch computes a sequence's last known token. */
static bool comes_to_end(const struct seq *s)
{
    return seq_at(s) + s->n_rows - s->guess.n == s->n_tokens;
}

/* Begins a batch of next_token, with the sequences whose last known token this batch computes. */
static void begin_ends(struct step_batch *b)
{
    int n = 0, n_wanted = 0;
    for (int i = 0; i < b->n_seqs; i++) {
        bool ends = comes_to_end(b->seqs[i]);
        n += ends;
        n_wanted += ends && next_token_shows_logits(b->seqs[i]);
    }
    next_token_begin(b->next, n, n_wanted);
}

/* Reads the rows of q, which begin with first_token, for its request. */
static int read_rows(struct next_token *h, const struct seq_shared *sh, struct seq *q,
                     int first_token, struct mat x)
{
    const struct reading_memory memory = {.logits = h->logits, .back = &h->logits_back};
    return reading_take(q, sh->stream, sh->work, &memory, first_token, x);
}

/* Adds the sequences whose last known token is in x to next_token, after reading their rows. x is
 * the batch's rows from first_row on. */
static int take_ends(struct step_batch *b, int first_row, struct mat x)
{
    int rc = 0;
    for (int i = 0; rc == 0 && i < b->n_seqs; i++) {
        struct seq *s = b->seqs[i];
        int n = 1 + s->guess.n, row = s->row + s->n_rows - n - first_row;
        int from = MAX(s->row, first_row);
        int to = MIN(s->row + s->n_rows, first_row + (int)x.rows);
        if (from < to && s->phase == PHASE_PREFILL)
            rc = read_rows(b->next, b->shared, s, seq_at(s) + from - s->row,
                           mat_rows(x, from - first_row, to - from));
        if (rc == 0 && comes_to_end(s) && row >= 0 && row + n <= x.rows)
            rc = next_token_add(b->next, b->shared->stream, s, mat_rows(x, row, n));
    }
    return rc;
}

static void end_snapshots(struct step_batch *b)
{
    if (b->shared->saver != NULL)
        save_layers_end(b->shared->saver, b->shared->stream);
}

/* Takes the batch through all layers, one flight (step.h) after another. */
static int forward_flights(struct step_batch *b, const struct model_tap *tap)
{
    const struct seq_shared *sh = b->shared;
    struct flight *f = &b->flight;
    struct mat x;
    int n = flight_count(sh->model->dev, b->n_rows), rc = 0;
    for (int i = 0; rc == 0 && i < n; i++) {
        flight_cut(b, flight_begin(b->n_rows, i, n), flight_begin(b->n_rows, i + 1, n), f);
        b->now = f;
        rc = model_forward(sh->model, sh->work, sh->stream, b->ids + f->first_row,
                           kv_pool_layers(sh->pool), &f->r, tap, &x);
        end_snapshots(b);
        if (rc == 0)
            rc = take_ends(b, f->first_row, x);
    }
    return rc;
}

/* Directs the tap to this piece: snapshots of rows now belong to it. */
static int set_now(void *arg, int layer, int piece)
{
    struct step_batch *b = arg;
    (void)layer;
    b->now = &b->zigzag->pieces[piece];
    return 0;
}

/* Ends the snapshots of this piece: the next mini-batch overwrites their source. */
static int end_piece(void *arg, int layer, int piece)
{
    (void)layer;
    (void)piece;
    end_snapshots(arg);
    return 0;
}

/* Takes the mini-batches that were cut through all layers, then reads and collects their ends. */
static int pass_zigzag(struct step_batch *b, const struct model_tap *tap,
                       const struct kv_layer *kv, const struct zigzag_calls *calls)
{
    const struct seq_shared *sh = b->shared;
    struct mat x;
    struct model_pass_opts o = {.model = sh->model,
                                .work = sh->work,
                                .stream = sh->stream,
                                .n_rows = b->n_rows,
                                .ids = b->ids,
                                .kv = kv,
                                .tap = tap,
                                .checks_range = true};
    int rc = zigzag_run(b->zigzag, &o, calls, &x);
    return rc == 0 ? take_ends(b, 0, x) : rc;
}

/* Takes all pieces through the layers, layer by layer. */
static int forward_zigzag(struct step_batch *b, const struct model_tap *tap)
{
    const struct zigzag_calls calls = {.before = set_now, .behind = end_piece, .arg = b};
    zigzag_cut(b->zigzag, b);
    int rc = pass_zigzag(b, tap, kv_pool_layers(b->shared->pool), &calls);
    end_snapshots(b);
    return rc;
}

/* Runs the forward pass with mixed blocks, which come over the link. */
static int forward_mixed(struct step_batch *b)
{
    struct mixed *x = b->mixed;
    const struct zigzag_calls calls = {
        .before = mixed_before, .behind = mixed_behind, .arg = x};
    mixed_arrange(x, b);
    return mixed_end(x, pass_zigzag(b, NULL, x->places.layers, &calls));
}

static int forward(struct step_batch *b)
{
    const struct seq_shared *sh = b->shared;
    const struct model_tap snapshots = {.layer = snapshot, .arg = b};
    const struct model_tap *tap = sh->saver != NULL ? &snapshots : NULL;
    begin_ends(b);
    int rc = mixed_is_on(b->mixed)     ? forward_mixed(b)
             : zigzag_is_on(b->zigzag) ? forward_zigzag(b, tap)
                                       : forward_flights(b, tap);
    return rc == 0 ? next_token_run(b->next, sh->stream, sh->work) : rc;
}

/* --- faults ----------------------------------------------------------------------------------- */

int step_recover(struct stream *s, struct err *err)
{
    if (stream_fault(s)[0] == 0)
        return 0;
    int rc = stream_recover(s);
    return rc == 0 ? 0 : err_set(err, rc, "%s", stream_fault(s));
}

struct step_fault step_fault(const struct seq_shared *sh, int rc)
{
    struct step_fault f;
    struct weights_stream_stats weights;
    const char *why = stream_fault(sh->stream);
    weights_stats(&sh->model->w, &weights);
    if (why[0] == 0)
        why = weights.fault[0] != 0 ? weights.fault : err_name(rc);
    snprintf(f.text, sizeof f.text, "%s", why);
    return f;
}

/* Lets a sequence advance over its rows, and over those of its guesses that were right. */
static int advance(struct step_batch *b, struct seq *s)
{
    int n = s->guess.n, rc = 0;
    s->n_rows -= n;
    s->out.r.guessed_tokens += n;
    seq_advance(s);
    for (int k = 0; rc == 0 && k < n; k++) {
        if (s->phase != PHASE_DECODE || s->next != s->guess.ids[k])
            break;
        rc = next_token_guessed(b->next, b->shared->stream, s, k);
        s->n_rows = 1;
        if (rc == 0)
            seq_advance(s);
    }
    s->guess.n = 0;
    return rc;
}

static int advance_all(struct step_batch *b)
{
    int rc = 0;
    for (int i = 0; rc == 0 && i < b->n_seqs; i++)
        rc = advance(b, b->seqs[i]);
    return rc;
}

/* Runs the sequences of a failed batch one by one. A value out of range is the fault of one
 * sequence, and the batch does not tell which. So all rows are computed again, one sequence after
 * another. They have the same bits as before (ops.h), so the written and saved state of the other
 * sequences stays right. */
static int run_one_by_one(struct step_batch *b)
{
    int n = b->n_seqs, rc = 0;
    memcpy(b->again, b->seqs, (size_t)n * sizeof(struct seq *));
    for (int i = 0; rc == 0 && i < n; i++) {
        struct seq *s = b->again[i];
        step_batch_clear(b);
        step_batch_add(b, s, s->n_rows);
        rc = forward(b);
        if (rc == 0)
            rc = advance(b, s);
        if (rc == MODEL_E_OVERFLOW) {
            seq_fail_overflow(s);
            rc = 0;
        }
    }
    memcpy(b->seqs, b->again, (size_t)n * sizeof(struct seq *));
    b->n_seqs = n;
    return rc;
}

/* A failed step may have moved the tails of its sequences (mixed.h), so no sequence is computed
 * again from its tail. The sequences whose rows left the range end. The others wait, and are
 * computed again from their full blocks. */
static int fail_overflowed(struct step_batch *b)
{
    const struct zigzag *z = b->zigzag;
    const struct flight *f = &z->pieces[z->piece];
    struct mat out = zigzag_output(z, z->layer);
    const struct device *dev = b->shared->model->dev;
    int n_failed = 0;
    for (int i = 0; i < b->n_seqs; i++) {
        struct seq *s = b->seqs[i];
        int begin = MAX(s->row, f->first_row);
        int end = s->row + s->n_rows, piece_end = f->first_row + f->r.n_rows;
        bool finite = true;
        end = MIN(end, piece_end);
        int rc = begin < end
                     ? dev->ops->all_finite(b->shared->stream,
                                            mat_rows(out, begin, end - begin), &finite)
                     : 0;
        if (rc != 0)
            return rc;
        if (finite)
            seq_preempt(s);
        else
            seq_fail_overflow(s);
        n_failed += !finite;
    }
    CHECK(n_failed > 0);
    return 0;
}

/* Fails all sequences of the batch. Returns 0 if the device goes on, else its error. */
static int fail_batch(struct step_batch *b, int rc, struct err *err)
{
    char why[300];
    struct step_fault fault = step_fault(b->shared, rc);
    snprintf(why, sizeof why, "forward pass: %s", fault.text);
    for (int i = 0; i < b->n_seqs; i++) {
        if (b->seqs[i]->phase != PHASE_DONE)
            seq_fail(b->seqs[i], rc, why);
    }
    return step_recover(b->shared->stream, err);
}

int step_batch_run(struct step_batch *b, struct err *err)
{
    int rc = forward(b);
    if (rc == 0)
        rc = advance_all(b);
    if (rc == MODEL_E_OVERFLOW)
        rc = mixed_is_on(b->mixed) ? fail_overflowed(b) : run_one_by_one(b);
    return rc == 0 ? 0 : fail_batch(b, rc, err);
}

/* --- new tokens that follow a restore's layers ------------------------------------------------ */

int fused_init(struct fused *f, struct seq_shared *sh, struct next_token *next,
               int max_rows, struct err *err)
{
    const struct model *m = sh->model;
    size_t x = (size_t)max_rows * model_hidden_bytes(m);
    *f = (struct fused){.shared = sh, .next = next, .max_rows = max_rows};
    int rc = stages_alloc(m->dev, 2 * x, f->mem, err);
    if (rc != 0)
        return err_wrap(err, "fused prefill");
    f->pos = xcalloc((size_t)max_rows, sizeof *f->pos);
    f->x.n = 2;
    for (int k = 0; k < m->dev->n_stages; k++)
        for (int i = 0; i < 2; i++)
            f->x.x[k][i] = mat_of((uint8_t *)f->mem[k].ptr + (size_t)i * x, m->dtype,
                                  max_rows, m->cfg.n_embd);
    return 0;
}

void fused_deinit(struct fused *f)
{
    if (f->shared == NULL)
        return;
    stages_free(f->shared->model->dev, f->mem);
    free(f->pos);
}

static int fused_snapshot(void *arg, int l, struct mat hidden, struct mat kv_rows)
{
    struct fused *f = arg;
    save_layer(&f->part, 1, l, hidden, kv_rows, f->shared->stream);
    return 0;
}

void fused_begin(struct fused *f, struct seq *s, int first, const struct store_hit *tail)
{
    const struct seq_shared *sh = f->shared;
    int n = s->view.n_tokens - first;
    if (f->seq != NULL || s->req->restore_first)
        return;
    n = MIN(n, f->max_rows);
    seq_open_save(s, first, tail);
    if (!save_reserve(s->save, view_token(&s->view, first), n, SAVE_TRY)) {
        save_close(s->save);
        s->save = NULL;
        return;
    }
    f->seq = s;
    f->first = first;
    f->n = n;
    f->tap = (struct model_tap){.layer = fused_snapshot, .arg = f};
    model_pass_begin(&f->pass, &(struct model_pass_opts){.model = sh->model,
                                                         .work = sh->work,
                                                         .stream = sh->stream,
                                                         .n_rows = n,
                                                         .ids = s->view.tokens + first,
                                                         .x = &f->x,
                                                         .kv = kv_pool_layers(sh->pool),
                                                         .tap = &f->tap,
                                                         .checks_range = true});
    /* The time when the sequence's restore began. */
    f->t_begin = s->t_start + (int64_t)(s->out.r.timings.lookup_ms * 1e6);
    f->busy_ns = 0;
}

void fused_cancel(struct fused *f, struct seq *s)
{
    if (f->seq != s)
        return;
    f->seq = NULL;
    model_pass_end(&f->pass);
    save_close(s->save);
    s->save = NULL;
}

bool fused_has_begun(const struct fused *f, const struct seq *s)
{
    return f->seq == s && (f->pass.layer > 0 || f->pass.row > 0);
}

/* Takes the next n rows through the present layer and saves them. */
static int pass_rows(struct fused *f, int n)
{
    const struct seq_shared *sh = f->shared;
    int pos0 = f->first + f->pass.row;
    int32_t seq_row[2] = {0, n}, state = kv_table_state(&f->seq->table);
    const int32_t *tables[1] = {f->seq->table.blocks};
    for (int i = 0; i < n; i++)
        f->pos[i] = pos0 + i;
    struct ragged r = {.n_rows = n,
                       .n_seqs = 1,
                       .pos = f->pos,
                       .seq_row = seq_row,
                       .tables = tables,
                       .states = &state,
                       .id = ragged_new_id()};
    f->part = (struct save_part){
        .seq = f->seq->save, .pos = view_token(&f->seq->view, pos0), .n_rows = n};
    int rc = model_pass_layer(&f->pass, &r);
    if (sh->saver != NULL)
        save_layers_end(sh->saver, sh->stream);
    return rc == 0 ? stream_sync(sh->stream) : rc;
}

/* Hands the sequence over to the batches: all its rows here have passed the last layer. Chooses the
 * next token if these rows end with the last known token. */
static int leave(struct fused *f)
{
    const struct seq_shared *sh = f->shared;
    struct seq *s = f->seq;
    struct mat last = mat_rows(model_pass_output(&f->pass), f->n - 1, 1);
    bool ends = view_token(&s->view, f->first + f->n) == s->n_tokens;
    int rc = 0;
    next_token_begin(f->next, ends, ends && next_token_shows_logits(s));
    if (ends)
        rc = read_rows(f->next, sh, s, s->n_tokens - 1, last);
    if (ends && rc == 0)
        rc = next_token_add(f->next, sh->stream, s, last);
    if (rc == 0)
        rc = next_token_run(f->next, sh->stream, sh->work);
    if (rc != 0)
        return rc;
    f->seq = NULL;
    struct restore_result *r = &s->out.restore;
    r->prefill_ns = f->busy_ns;
    r->bubble = restore_bubble(r, clock_now_ns() - f->t_begin);
    seq_enter_prefill(s);
    s->n_rows = f->n;
    seq_advance(s);
    return 0;
}

int fused_finish(struct fused *f)
{
    bool is_over = f->seq != NULL && model_pass_is_done(&f->pass) &&
                   f->seq->restore == NULL;
    return is_over ? leave(f) : 0;
}

int fused_work(struct fused *f, int max_rows, int *n)
{
    struct seq *s = f->seq;
    *n = 0;
    if (s == NULL || max_rows <= 0 || model_pass_is_done(&f->pass) ||
        (s->restore != NULL && f->pass.layer >= restore_layers_ready(s->restore)))
        return 0;
    int64_t t0 = clock_now_ns();
    int left = f->n - f->pass.row;
    *n = MIN(left, max_rows);
    int rc = pass_rows(f, *n);
    f->busy_ns += clock_now_ns() - t0;
    f->shared->stats.fused_rows += (uint64_t)*n;
    return rc == 0 ? fused_finish(f) : rc;
}
