/* ppl_overflow.c - see ppl_overflow.h.
 *
 * Host memory keeps the rows of all tokens in view (K before RoPE, and V) by position, layer by
 * layer. At a step the remaining rows move down by S positions, there and in the cache. */
#include "apps/ppl_overflow.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"

struct run {
    const struct ppl_overflow *o;
    uint8_t *rows; /* [n_layers][C][2 * kv_dim] of the model's type, by position */
    size_t row_bytes;
    int32_t *pos; /* [C] the numbers 0, 1, 2, ... */
    int32_t *ids; /* [C] ids of the tokens in view, by position */
    int at;       /* position of the rows that are being computed */
};

int ppl_overflow_check(const struct model *m, struct err *err)
{
    int rc = model_check_truncation(m, err);
    if (rc != 0)
        return rc;
    if (!m->dev->unified)
        return err_set(err, ERR_UNSUPPORTED, "--overflow needs one CPU device");
    return 0;
}

static struct mat rows_at(const struct run *r, int layer, int64_t position, int n)
{
    const struct model *m = r->o->model;
    size_t row = (size_t)layer * (size_t)r->o->truncation.context + (size_t)position;
    return mat_of(r->rows + row * r->row_bytes, m->dtype, n, config_kv_width(&m->cfg, 0));
}

/* A tap that copies K before RoPE, and V, to r->rows. */
static int keep_rows(void *arg, int l, struct mat hidden, struct mat kv_rows)
{
    struct run *r = arg;
    (void)hidden;
    struct mat to = rows_at(r, l, r->at, (int)kv_rows.rows);
    memcpy(to.data, kv_rows.data, (size_t)kv_rows.rows * r->row_bytes);
    return 0;
}

struct one_run {
    struct ragged r;
    int32_t seq_row[2];
    const int32_t *tables[1];
};

static const struct ragged *positions(const struct run *r, struct one_run *q,
                                      int64_t position, int n)
{
    *q = (struct one_run){.seq_row = {0, n}, .tables = {r->o->table->blocks}};
    q->r = (struct ragged){.n_rows = n,
                           .n_seqs = 1,
                           .pos = r->pos + position,
                           .seq_row = q->seq_row,
                           .tables = q->tables};
    return &q->r;
}

/* Computes positions [from, to) of the view. next[i]: the token after position from + i; NULL: the
 * positions are not scored. */
static int compute(struct run *r, int64_t from, int64_t to, const int32_t *next)
{
    const struct ppl_overflow *o = r->o;
    const struct model_tap tap = {.layer = keep_rows, .arg = r};
    int max_rows = model_work_rows(o->work), rc = 0;
    for (int64_t p = from; rc == 0 && p < to; p += max_rows) {
        int n = to - p < max_rows ? (int)(to - p) : max_rows;
        struct one_run q;
        struct mat x;
        r->at = (int)p;
        rc = model_forward(o->model, o->work, o->stream, r->ids + p,
                           kv_pool_layers(o->pool), positions(r, &q, p, n), &tap, &x);
        if (rc == 0 && next != NULL)
            rc = o->score(o->arg, x, next + (p - from), n);
    }
    return rc;
}

/* --- a step ----------------------------------------------------------------------------------- */

/* Reads K and V of positions [from, to) of a layer from the cache into r->rows. K is rotated there,
 * as in the cache. */
static int read_rotated(struct run *r, int layer, int64_t from, int64_t to)
{
    struct one_run q;
    const struct ppl_overflow *o = r->o;
    struct kv_layer kv = kv_pool_layer(o->pool, layer);
    int n = (int)(to - from);
    return o->model->dev->ops->kv_read(o->stream, rows_at(r, layer, from, n), &kv,
                                       positions(r, &q, from, n));
}

/* Moves the rows of positions [K + S, C) to [K, C - S). K is rotated to the new positions, or stays
 * unchanged. */
static int move_layer(struct run *r, int layer)
{
    const struct ppl_overflow *o = r->o;
    const struct truncation *t = &o->truncation;
    const struct rope none = {.max_pos = t->context};
    int64_t from = t->keep + t->step;
    int n = (int)(t->context - from);
    struct kv_layer kv = kv_pool_layer(o->pool, layer);
    struct one_run q;
    int rc = o->how == PPL_STALE ? read_rotated(r, layer, from, t->context) : 0;
    if (rc != 0)
        return rc;
    struct mat to = rows_at(r, layer, t->keep, n);
    memmove(to.data, rows_at(r, layer, from, n).data, (size_t)n * r->row_bytes);
    const struct ragged *at = positions(r, &q, t->keep, n);
    return o->how == PPL_STALE ? o->model->dev->ops->kv_fill(o->stream, &kv, to, &none, at)
                               : model_kv_fill(o->model, o->stream, layer, &kv, to, at);
}

/* Moves the view to the next stair. When it returns, the cache has positions [0, C - S). */
static int step(struct run *r)
{
    const struct ppl_overflow *o = r->o;
    const struct truncation *t = &o->truncation;
    size_t n_moved = (size_t)(t->context - t->step - t->keep);
    memmove(r->ids + t->keep, r->ids + t->keep + t->step, n_moved * sizeof *r->ids);
    if (o->how == PPL_RECOMPUTE)
        return compute(r, 0, t->context - t->step, NULL);
    int rc = 0;
    for (int l = 0; rc == 0 && l < o->model->cfg.n_layers; l++)
        rc = move_layer(r, l);
    return rc;
}

/* --- the text --------------------------------------------------------------------------------- */

/* Computes the tokens of the stair that begins with `cut`, up to the end of the text. The text's
 * last token predicts nothing. */
static int compute_stair(struct run *r, const int32_t *ids, int64_t n, int64_t cut)
{
    const struct truncation *t = &r->o->truncation;
    int64_t first = truncation_first(t, cut), end = truncation_end(t, cut);
    int64_t at = truncation_position(t, cut, first);
    end = end < n - 1 ? end : n - 1;
    memcpy(r->ids + at, ids + first, (size_t)(end - first) * sizeof *ids);
    return compute(r, at, at + end - first, cut > 0 ? ids + first + 1 : NULL);
}

int ppl_overflow_run(const struct ppl_overflow *o, const int32_t *ids, int64_t n,
                     int *n_steps, struct err *err)
{
    const struct truncation *t = &o->truncation;
    size_t c = (size_t)t->context;
    struct run r = {.o = o, .row_bytes = model_kv_bytes(o->model, 0)};
    int rc = 0;
    r.rows = xmalloc((size_t)o->model->cfg.n_layers * c * r.row_bytes);
    r.pos = xcalloc(c, sizeof *r.pos);
    r.ids = xcalloc(c, sizeof *r.ids);
    for (size_t i = 0; i < c; i++)
        r.pos[i] = (int32_t)i;
    *n_steps = 0;
    for (int64_t cut = 0; rc == 0 && truncation_first(t, cut) < n - 1; cut += t->step) {
        if (cut > 0) {
            ++*n_steps;
            rc = step(&r);
        }
        if (rc == 0)
            rc = compute_stair(&r, ids, n, cut);
        o->progress(o->arg, truncation_end(t, cut));
    }
    free(r.rows);
    free(r.pos);
    free(r.ids);
    return rc == 0 ? 0 : err_set(err, rc, "forward pass: %s", err_name(rc));
}
