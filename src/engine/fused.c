/* fused.c - see fused.h. */
#include "engine/fused.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"

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

static int snapshot(void *arg, int l, struct mat hidden, struct mat kv_rows)
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
    f->tap = (struct model_tap){.layer = snapshot, .arg = f};
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
    int32_t seq_row[2] = {0, n};
    const int32_t *tables[1] = {f->seq->table.blocks};
    for (int i = 0; i < n; i++)
        f->pos[i] = pos0 + i;
    struct ragged r = {.n_rows = n,
                       .n_seqs = 1,
                       .pos = f->pos,
                       .seq_row = seq_row,
                       .tables = tables,
                       .id = ragged_new_id()};
    f->part = (struct save_part){
        .seq = f->seq->save, .pos = view_token(&f->seq->view, pos0), .n_rows = n};
    int rc = model_pass_layer(&f->pass, &r);
    if (sh->saver != NULL)
        save_layers_end(sh->saver, sh->stream);
    return rc == 0 ? stream_sync(sh->stream) : rc;
}

/* Hands the sequence over to the batches: all its rows here have passed the last layer. */
static int leave(struct fused *f)
{
    const struct seq_shared *sh = f->shared;
    struct seq *s = f->seq;
    struct mat last = mat_rows(model_pass_output(&f->pass), f->n - 1, 1);
    bool ends = view_token(&s->view, f->first + f->n) == s->n_tokens;
    int rc = 0;
    next_token_begin(f->next, ends && next_token_shows_logits(s));
    if (ends)
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
