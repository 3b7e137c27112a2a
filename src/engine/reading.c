/* reading.c - see reading.h. */
#include "engine/reading.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/minmax.h"

bool reading_needs_all(const struct request *r, const struct model_config *c)
{
    return r->ask.reads == HCACHE_READS_LOGPROBS ||
           (r->ask.reads == HCACHE_READS_EMBEDDING &&
            (c->pooling != POOLING_LAST || c->both_ways));
}

bool reading_begin(struct seq *s)
{
    const struct hcache_request *ask = &s->req->ask;
    struct hcache_result *r = &s->out.r;
    size_t n = (size_t)(ask->n_prompt - 1) * (size_t)(1 + ask->n_top);
    bool is_judged = ask->reads == HCACHE_READS_JUDGEMENT;
    if (ask->reads == HCACHE_READS_LOGPROBS) {
        r->prompt_logprobs = mem_try_calloc(n + 1, sizeof *r->prompt_logprobs);
        return r->prompt_logprobs != NULL;
    }
    if (ask->reads == HCACHE_READS_NOTHING)
        return true;
    const struct model_config *c = &s->shared->model->cfg;
    r->n_embedding = is_judged ? 1 : config_embedding_width(c);
    r->embedding = mem_try_calloc((size_t)r->n_embedding, sizeof *r->embedding);
    if (!is_judged && r->embedding != NULL)
        s->reading.sum = mem_try_calloc((size_t)c->n_embd, sizeof *s->reading.sum);
    return r->embedding != NULL && (is_judged || s->reading.sum != NULL);
}

/* --- log-probabilities ------------------------------------------------------------------------ */

static bool is_likelier(const float *logits, int32_t a, int32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

void engine_logprobs(const float *logits, int n_vocab, int32_t chosen, int n_top,
                     struct hcache_logprob *out)
{
    struct hcache_logprob *top = out + 1;
    int n = 0;
    float max = -INFINITY;
    double sum = 0;
    for (int i = 0; i < n_vocab; i++)
        max = MAX(logits[i], max);
    for (int i = 0; i < n_vocab; i++)
        sum += exp((double)(logits[i] - max));
    float log_sum = max + (float)log(sum);
    /* Each token is inserted into a short sorted list. */
    for (int32_t i = 0; n_top > 0 && i < n_vocab; i++) {
        if (n == n_top && !is_likelier(logits, i, top[n - 1].id))
            continue;
        int at = n < n_top ? n++ : n - 1;
        for (; at > 0 && is_likelier(logits, i, top[at - 1].id); at--)
            top[at] = top[at - 1];
        top[at].id = i;
    }
    /* a vocabulary smaller than n_top leaves places empty */
    for (int i = n; i < n_top; i++)
        top[i] = (struct hcache_logprob){.id = -1};
    for (int i = 0; i < n; i++)
        top[i].logprob = logits[top[i].id] - log_sum;
    out[0] = (struct hcache_logprob){.id = chosen, .logprob = logits[chosen] - log_sum};
}

/* Reads the logits of a row. The first token's probability is not known: nothing precedes it. */
static void take_logits(struct seq *s, int token, const float *logits, int n_vocab)
{
    const struct hcache_request *ask = &s->req->ask;
    if (token + 1 < ask->n_prompt)
        engine_logprobs(logits, n_vocab, s->tokens[token + 1], ask->n_top,
                        s->out.r.prompt_logprobs +
                            (size_t)token * (size_t)(1 + ask->n_top));
}

/* --- embeddings ------------------------------------------------------------------------------- */

/* Adds a normalised row, if the pooling has it. */
static void take_hidden(struct seq *s, int token, const float *row)
{
    const struct model_config *c = &s->shared->model->cfg;
    bool is_last = token + 1 == s->req->ask.n_prompt;
    bool counts = c->pooling == POOLING_MEAN || (c->pooling == POOLING_CLS && token == 0) ||
                  (c->pooling == POOLING_LAST && is_last);
    for (int i = 0; i < c->n_embd && counts; i++)
        s->reading.sum[i] += (double)row[i];
}

/* Completes the embedding, once all rows are added. */
static int finish_embedding(struct seq *s, struct stream *stream,
                            const struct reading_memory *memory)
{
    const struct model *m = s->shared->model;
    struct hcache_result *r = &s->out.r;
    double of = m->cfg.pooling == POOLING_MEAN ? s->req->ask.n_prompt : 1;
    struct mat pooled = mat_of(memory->logits.data, DTYPE_F32, 1, m->cfg.n_embd), out;
    float *to = m->cfg.n_behind > 0 ? pooled.data : r->embedding;
    for (int i = 0; i < m->cfg.n_embd; i++)
        to[i] = (float)(s->reading.sum[i] / of);
    if (m->cfg.n_behind == 0)
        return 0;
    int rc = model_dense(m, stream, pooled, &out);
    rc = rc == 0 ? stream_sync(stream) : rc;
    memcpy(r->embedding, out.data, (size_t)r->n_embedding * sizeof *r->embedding);
    return rc;
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Computes the logits of rows x, or their final norm for an embedding, and brings the result to the
 * host at *at. Both lie in the logits buffer meanwhile, which must have room for all rows. */
static int compute(struct seq *s, struct stream *stream, struct model_work *work,
                   const struct reading_memory *memory, struct mat x, const void **at)
{
    const struct model *m = s->shared->model;
    bool logits = s->req->ask.reads == HCACHE_READS_LOGPROBS;
    struct mat out = mat_of(memory->logits.data, DTYPE_F32, x.rows,
                            logits ? m->cfg.vocab_size : m->cfg.n_embd);
    int rc = logits ? model_head(m, work, stream, x, out)
                    : model_final_norm(m, work, stream, x, out);
    if (rc == 0)
        rc = readback_start(memory->back, stream, out.data,
                            (size_t)(out.rows * out.cols) * sizeof(float), at);
    return rc == 0 ? stream_sync(stream) : rc;
}

int reading_take(struct seq *s, struct stream *stream, struct model_work *work,
                 const struct reading_memory *memory, int first_token, struct mat x)
{
    const struct hcache_request *ask = &s->req->ask;
    const struct model_config *c = &s->shared->model->cfg;
    bool logits = ask->reads == HCACHE_READS_LOGPROBS;
    int64_t width = logits ? c->vocab_size : c->n_embd;
    /* rows of this width that the logits buffer holds */
    int64_t most = MAX(memory->logits.rows * c->vocab_size / width, memory->logits.rows);
    int end = MIN(first_token + (int)x.rows, ask->n_prompt);
    int from = MAX(first_token, s->reading.n_read), rc = 0;
    if (!logits && ask->reads != HCACHE_READS_EMBEDDING)
        return 0;
    if (!reading_needs_all(s->req, c))
        from = MAX(from, ask->n_prompt - 1);
    for (int n; rc == 0 && from < end; from += n) {
        const void *at;
        n = (int)MIN(MIN(end - from, most), model_work_rows(work));
        rc = compute(s, stream, work, memory, mat_rows(x, from - first_token, n), &at);
        for (int i = 0; rc == 0 && i < n; i++) {
            const float *row = (const float *)at + i * width;
            if (logits)
                take_logits(s, from + i, row, c->vocab_size);
            else
                take_hidden(s, from + i, row);
        }
        if (rc == 0)
            s->reading.n_read = from + n;
        if (rc == 0 && !logits && from + n == ask->n_prompt)
            rc = finish_embedding(s, stream, memory);
    }
    return rc;
}

void reading_end(struct seq *s)
{
    const int32_t *ids = s->req->judges;
    if (s->req->ask.reads == HCACHE_READS_JUDGEMENT && s->n_tokens == s->req->ask.n_prompt)
        s->out.r.embedding[0] =
            (float)(1 / (1 + exp((double)s->logits[ids[1]] - (double)s->logits[ids[0]])));
}
