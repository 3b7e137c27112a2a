/* next_token.c - see next_token.h. */
#include "engine/next_token.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/mem.h"
#include "engine/seq.h"
#include "engine/shaping.h"
#include "model/sample.h"
#include "hcache.h"

static size_t hidden_bytes(const struct model *m, int max_rows)
{
    return round_up((size_t)max_rows * model_hidden_bytes(m), 64);
}

static size_t logit_bytes(const struct model *m, int max_rows)
{
    return (size_t)max_rows * (size_t)m->cfg.vocab_size * sizeof(float);
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
    return q->req->ask.digest || q->req->ask.logprobs;
}

void next_token_begin(struct next_token *h, int n_wanted)
{
    h->n_wanted = n_wanted;
    h->n_shown = h->n_other = 0;
}

int next_token_add(struct next_token *h, struct stream *s, struct seq *q, struct mat x)
{
    int row = next_token_shows_logits(q) ? h->n_shown++ : h->n_wanted + h->n_other++;
    CHECK(row < h->in.rows && x.rows == 1 && h->n_shown <= h->n_wanted);
    h->seqs[row] = q;
    const struct hcache_request *ask = &q->req->ask;
    const struct sample_opts o = {.temperature = ask->temperature,
                                  .top_p = ask->top_p > 0 ? ask->top_p : 1,
                                  .min_p = ask->min_p,
                                  .top_k = ask->top_k,
                                  .seed = ask->seed};
    h->rows[row] = sample_row_of(&o, q->n_tokens);
    return stream_copy(s, mat_rows(h->in, row, 1).data, x.data,
                       model_hidden_bytes(h->model));
}

static bool is_shaped(const struct seq *q)
{
    return shaping_changes(q->req->ask.shaping) || q->req->form != NULL;
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
    if (q->req->form != NULL)
        form_shape(q->req->form, &q->place, q->tokens + n_prompt, q->n_tokens - n_prompt,
                   (struct form_ends){.ids = ends, .n = n_ends}, n_vocab, logits,
                   &q->form_err);
}

/* Shapes the logits that came down, at [n][vocab]. On unified memory they are the logits. */
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

/* Keeps a copy of the logits at `at` and returns it. On unified memory shaping changes the
 * original. */
static const void *keep_raw(struct next_token *h, const void *at)
{
    size_t row = (size_t)h->logits.cols * sizeof *h->raw;
    if (h->raw == NULL)
        h->raw = xmalloc((size_t)h->logits.rows * row);
    memcpy(h->raw, at, (size_t)h->n_wanted * row);
    return h->raw;
}

int next_token_run(struct next_token *h, struct stream *s, struct model_work *work)
{
    int n = h->n_shown + h->n_other;
    struct mat logits = mat_rows(h->logits, 0, n);
    size_t row = (size_t)logits.cols;
    const void *at = NULL, *ids = NULL;
    CHECK(h->n_shown == h->n_wanted);
    if (n == 0)
        return stream_sync(s);
    int rc = model_head(h->model, work, s, mat_rows(h->in, 0, n), logits);
    bool shaped = any_is_shaped(h, n);
    int n_down = shaped ? n : h->n_wanted;
    if (rc == 0 && n_down > 0)
        rc = readback_start(&h->logits_back, s, logits.data,
                            (size_t)n_down * row * sizeof(float), &at);
    if (rc == 0 && shaped)
        rc = stream_sync(s);
    const float *down = at;
    if (rc == 0 && shaped && h->n_wanted > 0)
        at = keep_raw(h, at);
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
