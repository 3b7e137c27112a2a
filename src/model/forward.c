/* forward.c - the forward pass, a function per step, driven by the description of the family.
 *
 * Invariants:
 *  1. A row's results depend on its own input and position and on the cache only.
 *  2. K is rounded to the state dtype before RoPE, in model_layer and in model_kv_project alike: the
 *     same code computes both, which is what makes restoring from hidden states exact.
 *  3. The residual stream is rounded to the state dtype at the layer boundary, nowhere else. */
#include "model/model.h"

#include <math.h>

#include "base/check.h"
#include "base/hash.h"
#include "model/share.h"
#include "model/work.h"
#include "tensor/collective.h"

#define TRY(call)                                                                          \
    do {                                                                                   \
        int rc_ = (call);                                                                  \
        if (rc_ != 0)                                                                      \
            return rc_;                                                                    \
    } while (0)

static struct mat first_rows(struct mat a, int64_t n)
{
    return mat_rows(a, 0, n);
}

/* To x, on the stage that has the table. */
static int embed(const struct model *m, struct model_work *w, struct stream *s,
                 struct activations *a, struct mat x, const int32_t *ids,
                 const struct ragged *r)
{
    const struct ops *op = m->dev->ops;
    const struct model_config *c = &m->cfg;
    bool plain = c->position == POSITION_ROPE && c->embed_scale == 1.0f;
    if (m->w.embed.data == NULL) {
        struct mat rows = plain ? x : first_rows(a->x[1], x.rows);
        TRY(op->weight_rows(s, rows, &m->w.head, ids));
        if (plain)
            return 0;
        for (int i = 0; i < r->n_rows; i++)
            w->ids[i] = i; /* the gathered rows are now a table of their own */
        TRY(op->embed(s, first_rows(a->norm, x.rows), rows, w->ids, c->embed_scale));
    } else if (plain) {
        return op->embed(s, x, m->w.embed, ids, 1.0f);
    } else {
        TRY(op->embed(s, first_rows(a->norm, x.rows), m->w.embed, ids, c->embed_scale));
    }
    if (c->position != POSITION_LEARNED)
        return op->convert(s, x, first_rows(a->norm, x.rows));
    for (int i = 0; i < r->n_rows; i++)
        w->ids[i] = r->pos[i] + c->position_offset;
    TRY(op->embed(s, first_rows(a->norm2, x.rows), m->w.pos_embed, w->ids, 1.0f));
    return op->add(s, x, first_rows(a->norm, x.rows), first_rows(a->norm2, x.rows));
}

static int copy_rows(struct stream *s, struct mat to, struct mat from)
{
    CHECK(to.ld == to.cols && from.ld == from.cols && to.rows == from.rows);
    return stream_copy(s, to.data, from.data,
                       (size_t)(to.rows * to.cols) * dtype_bytes(to.dtype));
}

int model_embed(const struct model *m, struct model_work *w, struct stream *s, struct mat x,
                const int32_t *ids, const struct ragged *r)
{
    int stage = share_stage(&m->cfg, SLOT_EMBED, 0, m->dev->n_stages);
    struct activations *a = &w->at[stage];
    if (stage == 0)
        return embed(m, w, s, a, x, ids, r);
    struct mat there = first_rows(a->x[0], x.rows);
    TRY(embed(m, w, s, a, there, ids, r));
    return copy_rows(s, x, there);
}

int model_cross(const struct model *m, struct stream *s, int l, struct mat before_x,
                struct mat x)
{
    if (l == 0 || model_stage(m, l) == model_stage(m, l - 1)) {
        CHECK(x.data == before_x.data);
        return 0;
    }
    return copy_rows(s, x, before_x);
}

static int norm(const struct model *m, struct stream *s, struct mat out, struct mat x,
                const float *weight, const float *bias)
{
    const struct ops *op = m->dev->ops;
    if (m->cfg.norm == NORM_LAYER)
        return op->layernorm(s, out, x, weight, bias, m->cfg.norm_eps);
    return op->rmsnorm(s, out, x, weight, m->cfg.norm_eps);
}

/* K (before RoPE) and V of normalised inputs, rounded to the state dtype. */
static int project_kv(const struct model *m, struct activations *a, struct stream *s, int l,
                      struct mat normed, struct mat kv_rows)
{
    const struct ops *op = m->dev->ops;
    const struct layer_weights *lw = &m->w.layers[l];
    struct mat kv = first_rows(a->kv, normed.rows);
    if (lw->k_norm == NULL && kv.dtype == kv_rows.dtype)
        return op->matmul(s, kv_rows, normed, &lw->wkv, lw->bkv); /* nothing to round */
    TRY(op->matmul(s, kv, normed, &lw->wkv, lw->bkv));
    if (lw->k_norm != NULL)
        TRY(op->head_norm(s, mat_cols(kv, 0, model_rank_kv_dim(m)), m->cfg.d_head,
                          lw->k_norm, m->cfg.norm_eps));
    return op->convert(s, kv_rows, kv);
}

int model_kv_project(const struct model *m, struct model_work *w, struct stream *s, int l,
                     struct mat h, struct mat kv_rows)
{
    const struct layer_weights *lw = &m->w.layers[l];
    struct activations *a = &w->at[model_stage(m, l)];
    CHECK(h.rows <= w->max_rows && kv_rows.rows == h.rows);
    struct mat normed = first_rows(a->norm, h.rows);
    TRY(norm(m, s, normed, h, lw->norm1_w, lw->norm1_b));
    return project_kv(m, a, s, l, normed, kv_rows);
}

int model_kv_fill(const struct model *m, struct stream *s, const struct kv_layer *kv,
                  struct mat kv_rows, const struct ragged *r)
{
    return m->dev->ops->kv_fill(s, kv, kv_rows, &m->rope[kv->stage], r);
}

int model_kv_pack(const struct model *m, struct stream *s, void *chunk, struct mat kv_rows)
{
    return m->dev->ops->kv_pack(s, chunk, kv_rows, m->cfg.n_kv_heads, m->cfg.d_head);
}

int model_kv_load(const struct model *m, struct stream *s, const struct kv_layer *kv,
                  const struct kv_chunks *chunks)
{
    return m->dev->ops->kv_load(s, kv, chunks, &m->rope[kv->stage]);
}

/* att = attention of the normalised rows over the cache, kv_fill included. */
static int attend(const struct model *m, struct activations *a, struct stream *s, int l,
                  struct mat normed, struct mat kv_rows, const struct kv_layer *kv,
                  const struct ragged *r)
{
    const struct ops *op = m->dev->ops;
    const struct model_config *c = &m->cfg;
    const struct layer_weights *lw = &m->w.layers[l];
    struct mat q = first_rows(a->q, normed.rows);
    TRY(project_kv(m, a, s, l, normed, kv_rows));
    TRY(op->matmul(s, q, normed, &lw->wq, lw->bq));
    if (lw->q_norm != NULL)
        TRY(op->head_norm(s, q, c->d_head, lw->q_norm, c->norm_eps));
    TRY(op->rope_kv_fill(s, q, kv, kv_rows, &m->rope[kv->stage], r));
    int window = l < c->window_layer ? 0 : c->sliding_window;
    float scale = (float)(1.0 / sqrt((double)c->d_head));
    return op->attention(s, first_rows(a->att, q.rows), q, kv, r, scale, window);
}

static enum activation activation_of(enum act_kind a)
{
    switch (a) {
    case ACT_SILU:
        return ACTIVATION_SILU;
    case ACT_GELU:
        return ACTIVATION_GELU;
    case ACT_GELU_TANH:
        return ACTIVATION_GELU_TANH;
    case ACT_RELU:
        break;
    }
    return ACTIVATION_RELU;
}

/* out [n][d] = down(act(up(normed))), f32. The ranks' products are summands. */
static int mlp(const struct model *m, struct activations *a, struct stream *s, int l,
               struct mat normed, struct mat out)
{
    const struct ops *op = m->dev->ops;
    const struct layer_weights *lw = &m->w.layers[l];
    enum activation act = activation_of(m->cfg.act);
    struct mat up = first_rows(a->up, normed.rows);
    struct mat ffn = up;
    TRY(op->matmul(s, up, normed, &lw->w_up, lw->b_up));
    if (m->cfg.mlp_gated) {
        ffn = first_rows(a->ffn, normed.rows);
        TRY(op->act_mul(s, ffn, up, act));
    } else {
        TRY(op->act(s, up, act));
    }
    return op->matmul(s, out, ffn, &lw->w_down, lw->b_down);
}

static struct mat layer_kv_rows(struct activations *a, int l, int64_t n)
{
    return first_rows(a->kv_rows[l % a->n_kv_rows], n);
}

/* A layer over a batch, and how far a pass is in it.  It comes in three parts, between which the ranks meet:
 *
 *   attention: norm, wq wkv, rope, kv_fill, attention, wo |+| MLP: + x, norm, w_up, act, w_down |+| end: + */
struct layer_call {
    const struct model *m;
    struct model_work *w;
    struct stream *s;
    int l;
    struct mat x, out;
    const struct kv_layer *kv;
    const struct ragged *r;
};

/* What a layer's parts hand on to each other. */
struct layer_rows {
    struct activations *a;
    const struct layer_weights *lw;
    struct mat normed, summand, sum;
};

static struct layer_rows rows_of(const struct layer_call *c)
{
    struct activations *a = &c->w->at[model_stage(c->m, c->l)];
    int64_t n = c->r->n_rows;
    return (struct layer_rows){a, &c->m->w.layers[c->l], first_rows(a->norm, n),
                               first_rows(a->norm2, n), first_rows(a->sum, n)};
}

static int attention_part(void *arg)
{
    const struct layer_call *c = arg;
    struct layer_rows p = rows_of(c);
    int64_t n = c->r->n_rows;
    struct mat rows = layer_kv_rows(p.a, c->l, n);
    TRY(norm(c->m, c->s, p.normed, c->x, p.lw->norm1_w, p.lw->norm1_b));
    TRY(attend(c->m, p.a, c->s, c->l, p.normed, rows, c->kv, c->r));
    return c->m->dev->ops->matmul(c->s, p.summand, first_rows(p.a->att, n), &p.lw->wo,
                                  p.lw->bo);
}

static int add_norm(const struct layer_call *c, struct layer_rows p)
{
    const struct model_config *cfg = &c->m->cfg;
    const float *bias = cfg->norm == NORM_LAYER ? p.lw->norm2_b : NULL;
    return c->m->dev->ops->add_norm(c->s, p.normed, p.sum, c->x, p.summand, p.lw->norm2_w,
                                    bias, cfg->norm_eps);
}

static int mlp_part(void *arg)
{
    const struct layer_call *c = arg;
    const struct model *m = c->m;
    struct layer_rows p = rows_of(c);
    /* sum = x + attention, in f32 */
    if (m->cfg.block == BLOCK_SEQUENTIAL)
        TRY(add_norm(c, p));
    else
        TRY(m->dev->ops->add(c->s, p.sum, c->x, p.summand));
    if (m->cfg.block == BLOCK_PARALLEL_NORM2)
        TRY(norm(m, c->s, p.normed, c->x, p.lw->norm2_w, p.lw->norm2_b));
    return mlp(m, p.a, c->s, c->l, p.normed, p.summand);
}

static int end_part(const struct layer_call *c)
{
    struct layer_rows p = rows_of(c);
    return c->m->dev->ops->add(c->s, c->out, p.sum, p.summand);
}

/* Queues a part, or has it recorded. */
typedef int (*part_queue)(struct layer_call *c, int (*part)(void *arg), int idx);

static int queue_part(struct layer_call *c, int (*part)(void *arg), int idx)
{
    (void)idx;
    return part(c);
}

static int layer_in_parts(struct layer_call *c, part_queue queue)
{
    struct mat summand = rows_of(c).summand;
    TRY(queue(c, attention_part, 0));
    TRY(all_reduce(c->s, summand));
    TRY(queue(c, mlp_part, 1));
    TRY(all_reduce(c->s, summand));
    return end_part(c);
}

static int queue_layer(void *arg)
{
    return layer_in_parts(arg, queue_part);
}

int model_layer(const struct model *m, struct model_work *w, struct stream *s, int l,
                struct mat x, struct mat out, const struct kv_layer *kv,
                const struct ragged *r, struct mat *kv_rows)
{
    struct layer_call c = {m, w, s, l, x, out, kv, r};
    CHECK(r->n_rows <= w->max_rows && x.rows == r->n_rows && out.rows == r->n_rows);
    if (kv_rows != NULL)
        *kv_rows = layer_kv_rows(rows_of(&c).a, l, r->n_rows);
    return queue_layer(&c);
}

/* Each rank has computed its run of the vocabulary; all get all. */
static int head_of_ranks(const struct model *m, struct activations *a, struct stream *s,
                         struct mat normed, struct mat logits)
{
    int n_ranks = m->dev->n_ranks;
    int64_t run = a->head.cols;
    for (int64_t row = 0, n; row < normed.rows; row += n) {
        n = normed.rows - row < a->head.rows ? normed.rows - row : a->head.rows;
        struct mat own = first_rows(a->head, n), to = mat_rows(logits, row, n);
        struct mat all = first_rows(a->head_all, n * n_ranks);
        TRY(m->dev->ops->matmul(s, own, mat_rows(normed, row, n), &m->w.head,
                                m->w.head_bias));
        TRY(all_gather(s, all, own));
        for (int r = 0; r < n_ranks; r++)
            TRY(m->dev->ops->convert(s, mat_cols(to, r * run, run),
                                     mat_rows(all, r * n, n)));
    }
    return 0;
}

int model_head(const struct model *m, struct model_work *w, struct stream *s, struct mat x,
               struct mat logits)
{
    struct activations *a = &w->at[model_last_stage(m)];
    struct mat normed = first_rows(a->norm, x.rows);
    TRY(norm(m, s, normed, x, m->w.final_norm_w, m->w.final_norm_b));
    if (a->head.rows > 0)
        return head_of_ranks(m, a, s, normed, logits);
    return m->dev->ops->matmul(s, logits, normed, &m->w.head, m->w.head_bias);
}

/* f16 ends at 65504; some models' residuals do not. */
int model_check_overflow(const struct model *m, struct stream *s, struct mat x)
{
    bool finite = true;
    if (m->dtype != DTYPE_F16)
        return 0;
    TRY(m->dev->ops->all_finite(s, x, &finite));
    return finite ? 0 : MODEL_E_OVERFLOW;
}

static int record_part(struct layer_call *c, int (*part)(void *arg), int idx)
{
    const struct ops *op = c->m->dev->ops;
    const void *const operands[] = {
        c->m,          &c->m->w.layers[c->l], c->w, c->x.data, c->out.data,
        c->kv->blocks, (void *)(intptr_t)idx};
    return op->record(c->s, c->r, checksum64(operands, sizeof operands), c->x.data, part,
                      c);
}

/* Where nobody meets anybody, a layer is recorded as one. */
static int run_layer(struct layer_call *c)
{
    enum { WHOLE = -1 };
    if (c->m->dev->ops->record == NULL)
        return queue_layer(c);
    return c->m->dev->n_ranks == 1 ? record_part(c, queue_layer, WHOLE)
                                   : layer_in_parts(c, record_part);
}

int model_forward(const struct model *m, struct model_work *w, struct stream *s,
                  const int32_t *ids, const struct kv_layer *kv_layers,
                  const struct ragged *r, const struct model_tap *tap, struct mat *x)
{
    struct mat in = first_rows(w->at[0].x[0], r->n_rows);
    TRY(model_embed(m, w, s, in, ids, r));
    for (int l = 0; l < m->cfg.n_layers; l++) {
        struct activations *a = &w->at[model_stage(m, l)];
        struct mat here = first_rows(a->x[l % a->n_x], r->n_rows);
        struct mat out = first_rows(a->x[(l + 1) % a->n_x], r->n_rows);
        TRY(model_cross(m, s, l, in, here));
        struct layer_call c = {m, w, s, l, here, out, &kv_layers[l], r};
        TRY(run_layer(&c));
        /* What left f16's range never comes back, so the last layer tells of all of them: where the
         * host would wait for the device each time, only that is asked. */
        if (m->dev->unified || l + 1 == m->cfg.n_layers)
            TRY(model_check_overflow(m, s, out));
        if (tap != NULL)
            TRY(tap->layer(tap->arg, l, here, layer_kv_rows(a, l, r->n_rows)));
        in = out;
    }
    *x = in;
    return 0;
}
