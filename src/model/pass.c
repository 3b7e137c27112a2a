/* pass.c - see pass.h. */
#include "model/pass.h"

#include <stdatomic.h>

#include "base/check.h"
#include "model/work.h"

static atomic_llong n_passes;

int64_t model_passes(void)
{
    return atomic_load(&n_passes);
}

void model_pass_begin(struct model_pass *p, const struct model_pass_opts *o)
{
    CHECK(o->n_rows > 0 && o->x->n >= 1 && o->x->n <= 3);
    atomic_fetch_add(&n_passes, 1);
    *p = (struct model_pass){.o = *o, .layer = o->first_layer};
}

/* Returns the next n rows of layer l's input, on a stage. */
static struct mat rows_of(const struct model_pass *p, int l, int stage, int n)
{
    const struct residual *x = p->o.x;
    return mat_rows(x->x[stage][l % x->n], p->row, n);
}

static int acquire(struct model_pass *p)
{
    CHECK(!model_pass_is_done(p) && (p->lw == NULL) == (p->row == 0));
    if (p->lw != NULL)
        return 0;
    return weights_acquire(&p->o.model->w, p->layer, p->o.stream, &p->lw);
}

static void release(struct model_pass *p)
{
    weights_release(&p->o.model->w, p->layer, p->o.stream);
    p->lw = NULL;
}

/* Sets *in to the next rows of the present layer's input. Layer 0 embeds the tokens, if there are
 * ids. Rows are copied here if the layer before is on another stage. */
static int input(struct model_pass *p, const struct ragged *r, struct mat *in)
{
    const struct model *m = p->o.model;
    int l = p->layer, stage = model_stage(m, l), n = r->n_rows;
    CHECK(n > 0 && n <= p->o.n_rows - p->row);
    *in = rows_of(p, l, stage, n);
    if (l == 0 && p->o.ids != NULL)
        return model_embed(m, p->o.work, p->o.stream, *in, p->o.ids + p->row, r);
    if (l == p->o.first_layer || model_stage(m, l - 1) == stage)
        return 0;
    return copy_to_stage(p->o.stream, *in, rows_of(p, l, model_stage(m, l - 1), n));
}

/* Checks that an f16 output is in range. f16 ends at 65504, which the residual streams of some
 * models exceed. */
static int check_range(const struct model_pass *p, struct mat x)
{
    const struct model *m = p->o.model;
    /* A value that left f16's range never comes back, so the last layer shows it too.  On devices
     * where the check makes the host wait, only that layer is checked. */
    bool asks = m->dev->unified || p->layer + 1 == m->cfg.n_layers, finite = true;
    if (!p->o.checks_range || m->dtype != DTYPE_F16 || !asks)
        return 0;
    TRY(m->dev->ops->all_finite(p->o.stream, x, &finite));
    return finite ? 0 : MODEL_E_OVERFLOW;
}

int model_pass_layer(struct model_pass *p, const struct ragged *r)
{
    const struct model *m = p->o.model;
    int l = p->layer, stage = model_stage(m, l), n = r->n_rows;
    const struct activations *a = &p->o.work->at[stage];
    struct layer_call c = {.m = m, .w = p->o.work, .s = p->o.stream, .l = l, .r = r};
    TRY(acquire(p));
    TRY(input(p, r, &c.x));
    c.lw = p->lw;
    c.out = rows_of(p, l + 1, stage, n);
    bool keeps = l < config_n_keeping(&m->cfg);
    if (keeps && !config_is_recurrent(&m->cfg, l))
        c.kv_rows = model_kv_rows(m, l, a->kv_rows[l % a->n_kv_rows].data, n);
    c.kv = &p->o.kv[config_kv_layer(&m->cfg, l)];
    c.ids = p->o.ids != NULL ? p->o.ids + p->row : NULL;
    TRY(layer_forward(&c));
    TRY(check_range(p, c.out));
    if (p->o.tap != NULL && keeps)
        TRY(p->o.tap->layer(p->o.tap->arg, l, c.x, c.kv_rows));
    p->row += n;
    if (p->row == p->o.n_rows) {
        release(p);
        p->layer++;
        p->row = 0;
        if (p->layer == m->cfg.n_layers)
            return weights_check(&m->w);
    }
    return 0;
}

int model_pass_kv(struct model_pass *p, const struct ragged *r, struct mat kv_rows)
{
    struct mat in;
    CHECK(p->row == 0 && p->lw == NULL && r->n_rows == p->o.n_rows);
    TRY(input(p, r, &in));
    if (config_is_recurrent(&p->o.model->cfg, p->layer))
        TRY(model_replay(p->o.model, p->o.work, p->o.stream, p->layer, in, kv_rows,
                         &p->o.kv[p->layer], r));
    else
        TRY(model_kv_project(p->o.model, p->o.work, p->o.stream, p->layer, in, kv_rows));
    p->layer = p->o.model->cfg.n_layers;
    return 0;
}

struct mat model_pass_output(const struct model_pass *p)
{
    CHECK(p->layer > 0 && p->row == 0);
    return rows_of(p, p->layer, model_stage(p->o.model, p->layer - 1), p->o.n_rows);
}

void model_pass_end(struct model_pass *p)
{
    if (p->lw != NULL)
        release(p);
}

int model_forward(const struct model *m, struct model_work *w, struct stream *s,
                  const int32_t *ids, const struct kv_layer *kv_layers,
                  const struct ragged *r, const struct model_tap *tap, struct mat *x)
{
    struct model_pass p;
    int rc = 0;
    model_pass_begin(&p, &(struct model_pass_opts){.model = m,
                                                   .work = w,
                                                   .stream = s,
                                                   .n_rows = r->n_rows,
                                                   .ids = ids,
                                                   .x = &w->x,
                                                   .kv = kv_layers,
                                                   .tap = tap,
                                                   .checks_range = true});
    while (rc == 0 && !model_pass_is_done(&p))
        rc = model_pass_layer(&p, r);
    if (rc == 0)
        *x = model_pass_output(&p);
    model_pass_end(&p);
    return rc;
}

int model_kv_project(const struct model *m, struct model_work *w, struct stream *s, int l,
                     struct mat h, struct mat kv_rows)
{
    TRY(weights_check(&m->w));
    return layer_kv(m, w, s, l, &m->w.layers[l], h, kv_rows);
}

int model_replay(const struct model *m, struct model_work *w, struct stream *s, int l,
                 struct mat h, struct mat kv_rows, const struct kv_layer *kv,
                 const struct ragged *r)
{
    const struct layer_weights *lw;
    if (!config_is_recurrent(&m->cfg, l)) {
        TRY(model_kv_project(m, w, s, l, h, kv_rows));
        return model_kv_fill(m, s, l, kv, kv_rows, r);
    }
    TRY(weights_acquire(&m->w, l, s, &lw));
    int rc = layer_advance(m, w, s, l, lw, h, kv, r);
    weights_release(&m->w, l, s);
    return rc;
}
