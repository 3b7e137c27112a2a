/* fused.c - new tokens pass through the layers while these come back (DESIGN §10).
 *
 *   I/O      [K2 ][K3 ][K4 ][K5 ]
 *   compute  [R0 ][P0 ][k2][P1.][P2 ][k3][P3 ][k4][P4 ][k5][P5 ][head]
 *
 * Layer i of the new tokens needs only layer i of the context, so it is prefilled as soon as that is
 * in the cache, and the time to the first token is that of one pipeline.  One sequence at a time has
 * its first batch of new tokens here, at most max_batch_rows; what is behind them, and the new tokens
 * of others, are prefilled when all is restored.  The rows have the bits that they get in any batch.
 *
 * Prefill is the filler: a work item runs when the restores have none, on a layer that is in the cache
 * already, so it never waits.  It is accounted in rows times layers, as a batch is.
 *
 * Where its save has no room yet (the writer is behind), or another sequence is here, it is tried again
 * while its layers come back.
 *
 * Nothing is told to anybody before the last layer: a chunk that turns out to be damaged throws the
 * work away, and the sequence goes the ordinary way. */
#include "engine/seq.h"

#include "base/check.h"
#include "base/clock.h"

int fused_reserve(struct engine *e, struct err *err)
{
    const struct model *m = e->o.model;
    struct fused *f = &e->fused;
    int64_t rows = e->o.max_batch_rows;
    size_t x = (size_t)rows * model_hidden_bytes(m);
    int rc = stages_alloc(m->dev, 2 * x, f->mem, err);
    if (rc != 0)
        return err_wrap(err, "fused prefill");
    f->x.n = 2;
    for (int k = 0; k < m->dev->n_stages; k++)
        for (int i = 0; i < 2; i++)
            f->x.x[k][i] = mat_of((uint8_t *)f->mem[k].ptr + (size_t)i * x, m->dtype, rows,
                                  m->cfg.n_embd);
    return 0;
}

void fused_release(struct engine *e)
{
    stages_free(e->o.model->dev, e->fused.mem);
}

static int snapshot(void *arg, int l, struct mat hidden, struct mat kv_rows)
{
    struct engine *e = arg;
    save_layer(&e->fused.part, 1, l, hidden, kv_rows, e->stream);
    return 0;
}

void fused_begin(struct engine *e, struct seq *s, int first, const struct store_hit *tail)
{
    struct fused *f = &e->fused;
    int n = s->n_tokens - first;
    if (f->seq != NULL || s->req.restore_first)
        return;
    n = n < e->o.max_batch_rows ? n : e->o.max_batch_rows;
    seq_open_save(e, s, first, tail);
    if (!save_reserve(s->save, first, n, SAVE_TRY)) {
        save_close(s->save);
        s->save = NULL;
        return;
    }
    f->seq = s;
    f->first = first;
    f->n = n;
    f->tap = (struct model_tap){.layer = snapshot, .arg = e};
    model_pass_begin(&f->pass, &(struct model_pass_opts){.model = e->o.model,
                                                         .work = e->work,
                                                         .stream = e->stream,
                                                         .n_rows = n,
                                                         .ids = s->tokens + first,
                                                         .x = &f->x,
                                                         .kv = kv_pool_layers(e->pool),
                                                         .tap = &f->tap,
                                                         .checks_range = true});
    f->t_begin = s->t_start + s->out.lookup_ns; /* when its restore began */
    f->busy_ns = 0;
}

void fused_cancel(struct engine *e, struct seq *s)
{
    if (e->fused.seq != s)
        return;
    e->fused.seq = NULL;
    model_pass_end(&e->fused.pass);
    save_close(s->save);
    s->save = NULL;
}

/* The next n rows pass the present layer, and are saved. */
static int pass_rows(struct engine *e, int n)
{
    struct fused *f = &e->fused;
    int pos0 = f->first + f->pass.row;
    int32_t seq_row[2] = {0, n};
    const int32_t *tables[1] = {f->seq->table.blocks};
    for (int i = 0; i < n; i++)
        e->pos[i] = pos0 + i;
    struct ragged r = {.n_rows = n,
                       .n_seqs = 1,
                       .pos = e->pos,
                       .seq_row = seq_row,
                       .tables = tables,
                       .id = ragged_new_id()};
    f->part = (struct save_part){.seq = f->seq->save, .pos = pos0, .n_rows = n};
    int rc = model_pass_layer(&f->pass, &r);
    if (e->o.saver != NULL)
        save_layers_end(e->o.saver, e->stream);
    return rc == 0 ? stream_sync(e->stream) : rc;
}

static void fail(struct engine *e, struct seq *s, int rc)
{
    if (rc == MODEL_E_OVERFLOW)
        seq_fail_overflow(s);
    else
        seq_fail(s, rc, engine_fault(e, rc));
    restoring_abandon(e, s);
}

/* The last layer is behind them: the sequence is where a batch would have brought it. */
static void leave(struct engine *e)
{
    struct fused *f = &e->fused;
    struct seq *s = f->seq;
    struct mat last = mat_rows(model_pass_output(&f->pass), f->n - 1, 1);
    int rc = 0;
    bool ends = f->first + f->n == s->n_tokens;
    next_token_begin(&e->next, ends && next_token_shows_logits(s));
    if (ends)
        rc = next_token_add(&e->next, e->stream, s, last);
    if (rc == 0)
        rc = next_token_run(&e->next, e->stream, e->work);
    f->seq = NULL;
    if (rc != 0) {
        fail(e, s, rc);
        return;
    }
    struct restore_result *r = &s->out.restore;
    r->prefill_ns = f->busy_ns;
    r->bubble = restore_bubble(r, clock_now_ns() - f->t_begin);
    schedule_prefill(e, s);
    s->n_rows = f->n;
    seq_advance(e, s);
}

int fused_work(struct engine *e, int max_rows)
{
    struct fused *f = &e->fused;
    struct seq *s = f->seq;
    if (s == NULL || max_rows <= 0 || model_pass_is_done(&f->pass) ||
        (s->restore != NULL && f->pass.layer >= restore_layers_ready(s->restore)))
        return 0;
    int64_t t0 = clock_now_ns();
    int left = f->n - f->pass.row, n = left < max_rows ? left : max_rows;
    int rc = pass_rows(e, n);
    f->busy_ns += clock_now_ns() - t0;
    e->stats.fused_rows += (uint64_t)n;
    if (rc != 0) {
        fail(e, s, rc);
        return n;
    }
    fused_finish(e);
    return n;
}

bool fused_finish(struct engine *e)
{
    struct fused *f = &e->fused;
    bool is_over = f->seq != NULL && model_pass_is_done(&f->pass) &&
                   f->seq->restore == NULL;
    if (is_over)
        leave(e);
    return is_over;
}
