/* solo.c - see solo.h. */
#include "solo.h"

#include "tests/unit.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/pool.h"
#include "tests/tensor/peer_threads.h"
#include "text/tokenizer.h"

static void must(int rc, const struct err *e)
{
    if (rc != 0)
        fail_msg("%s: %s", err_name(rc), e->msg);
}

void solo_open_as(struct solo *t, const char *source, const char *device, int n_ranks,
                  int n_threads, const struct model_opts *opts)
{
    struct err e = {0};
    struct model_opts o = *opts;
    memset(t, 0, sizeof *t);
    must(pool_create(n_threads, &t->pool, &e), &e);
    peer_threads_use();
    must(group_open(device, NULL, n_ranks == SOLO_OWN_MEMORY ? 1 : n_ranks, 1, t->pool,
                    &t->dev, &e),
         &e);
    t->dev->unified = t->dev->unified && n_ranks != SOLO_OWN_MEMORY;
    must(stream_create(t->dev, STREAM_COMPUTE, &t->s, &e), &e);
    o.dev = t->dev;
    o.probe_ids = tokenizer_first_ids;
    must(model_open(source, &o, &t->m, &e), &e);
    must(model_work_create(t->m, SOLO_MAX_ROWS, &t->work, &e), &e);
    const struct model_config *c = &t->m->cfg;
    struct kv_pool_opts k = {.n_layers = config_n_keeping(c),
                             .n_kv = c->n_kv_heads / t->dev->n_ranks,
                             .d_head = c->d_head,
                             .local = c->windowed,
                             .local_n_kv = c->local_kv_heads,
                             .local_d_head = c->local_d_head,
                             .dtype = t->m->dtype,
                             .n_blocks = SOLO_MAX_TOKENS / KV_BLOCK_TOKENS,
                             .recurrent = c->recurrent,
                             .state_bytes = model_state_bytes(c),
                             .n_states = 1};
    must(kv_pool_create(t->dev, &k, &t->kv, &e), &e);
    t->layers = kv_pool_layers(t->kv);
}

void solo_open(struct solo *t, const char *source, const char *device, const char *dtype,
               int n_threads)
{
    solo_open_as(t, source, device, 1, n_threads, &(struct model_opts){.dtype = dtype});
}

void solo_open_held(struct solo *t, const char *source, const char *dtype,
                    const char *weights)
{
    solo_open_as(t, source, "cpu", 1, 2,
                 &(struct model_opts){.dtype = dtype, .weights = weights});
}

void solo_close(struct solo *t)
{
    stream_destroy(t->s);
    kv_table_free(t->kv, &t->table);
    kv_pool_destroy(t->kv);
    model_work_destroy(t->work);
    model_close(t->m);
    device_close(t->dev);
    pool_destroy(t->pool);
}

void solo_forget(struct solo *t)
{
    kv_table_cut(t->kv, &t->table, 0);
    t->n_tokens = 0;
}

void solo_feed(struct solo *t, const int32_t *ids, int n, float *logits)
{
    solo_feed_tapped(t, ids, n, logits, NULL);
}

void solo_feed_tapped(struct solo *t, const int32_t *ids, int n, float *logits,
                      const struct model_tap *tap)
{
    struct err e = {0};
    must(solo_try(t, ids, n, logits, tap), &e);
}

int solo_try(struct solo *t, const int32_t *ids, int n, float *logits,
             const struct model_tap *tap)
{
    struct err e = {0};
    int32_t pos[SOLO_MAX_ROWS], seq_row[2] = {0, n};
    assert_in_range(n, 1, SOLO_MAX_ROWS);
    must(kv_table_reserve(t->kv, &t->table, t->n_tokens + n, &e), &e);
    for (int i = 0; i < n; i++)
        pos[i] = (int32_t)t->n_tokens + i;
    const int32_t *tables[1] = {t->table.blocks};
    struct ragged r = {
        .n_rows = n, .n_seqs = 1, .pos = pos, .seq_row = seq_row, .tables = tables};
    struct mat x;
    int rc = model_forward(t->m, t->work, t->s, ids, t->layers, &r, tap, &x);
    if (rc == 0 && logits != NULL)
        rc = model_head(t->m, t->work, t->s, x,
                        mat_of(logits, DTYPE_F32, n, t->m->cfg.vocab_size));
    if (rc == 0)
        rc = stream_sync(t->s);
    t->n_tokens += n;
    return rc;
}

int32_t solo_best(const struct solo *t, const float *logits)
{
    int32_t best = 0;
    for (int32_t i = 1; i < t->m->cfg.vocab_size; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}
