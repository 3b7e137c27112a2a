/* forward.c - the arithmetic of a forward pass: embedding, one transformer layer, head.
 *
 * layer() is one whole layer, in the order of the data; the family's description (config.h) selects
 * its variations.  pass.c takes rows through the layers.
 *
 * Invariants:
 *  1. A row's results depend only on its own input, its position and the cache.
 *  2. K is rounded to the state dtype before RoPE, both in a layer and in a projection: kv_products
 *     and round_kv compute both, which makes restoring from hidden states exact.
 *  3. The residual stream is rounded to the state dtype at the layer boundary, nowhere else. */
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/minmax.h"
#include "model/experts.h"
#include "model/share.h"
#include "model/work.h"
#include "tensor/group.h"

static struct mat first_rows(struct mat a, int64_t n)
{
    return mat_rows(a, 0, n);
}

/* Multiplies rows by a factor, in place: they are looked up in themselves, with the factor. */
int scale_rows(const struct model *m, struct model_work *w, struct stream *s, struct mat x,
               float factor)
{
    if (factor == 1)
        return 0;
    CHECK(x.rows <= w->max_rows);
    for (int i = 0; i < x.rows; i++)
        w->ids[i] = i;
    return m->dev->ops->embed(s, x, x, w->ids, factor);
}

/* --- embedding -------------------------------------------------------------------------------- */

/* Sets x to the embeddings of ids, on the stage that holds the embedding table. */
static int embed(const struct model *m, struct model_work *w, struct stream *s, int stage,
                 struct mat x, const int32_t *ids, const struct ragged *r)
{
    const struct ops *op = m->dev->ops;
    const struct model_config *c = &m->cfg;
    struct activations *a = &w->at[stage];
    bool plain = c->position == POSITION_ROPE && c->embed_scale == 1.0f;
    bool tied = m->w.embed.data == NULL;
    if (tied || dtype_has_blocks(m->w.embed.dtype)) {
        /* Rows of blocks are rounded to the state dtype before they are scaled.  So bf16 state has
         * the bits that a table held as bf16 gives. */
        TRY(tied ? op->weight_rows(s, x, &m->w.head, ids)
                 : op->embed(s, x, m->w.embed, ids, 1.0f));
        if (plain)
            return 0;
        for (int i = 0; i < r->n_rows; i++)
            w->ids[i] = i; /* the gathered rows form a table of their own */
        TRY(op->embed(s, first_rows(a->norm, x.rows), x, w->ids, c->embed_scale));
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

int model_embed(const struct model *m, struct model_work *w, struct stream *s, struct mat x,
                const int32_t *ids, const struct ragged *r)
{
    int stage = share_stage(&m->cfg, SLOT_EMBED, 0, m->dev->n_stages);
    if (stage == 0)
        return embed(m, w, s, stage, x, ids, r);
    struct mat there = first_rows(w->x.x[stage][0], x.rows);
    TRY(embed(m, w, s, stage, there, ids, r));
    return copy_to_stage(s, x, there);
}

int copy_to_stage(struct stream *s, struct mat to, struct mat from)
{
    CHECK(to.ld == to.cols && from.ld == from.cols && to.rows == from.rows);
    return stream_copy(s, to.data, from.data,
                       (size_t)(to.rows * to.cols) * dtype_bytes(to.dtype));
}

/* --- K and V ---------------------------------------------------------------------------------- */

static int norm(const struct model *m, struct stream *s, struct mat out, struct mat x,
                const float *weight, const float *bias)
{
    const struct ops *op = m->dev->ops;
    if (m->cfg.norm >= NORM_LAYER)
        return op->layernorm(s, out, x, weight, bias, m->cfg.norm_eps);
    return op->rmsnorm(s, out, x, weight, m->cfg.norm_eps);
}

/* Sets out to the input of a projection: x after its norm, or x itself if norms come later. */
static int norm_before(const struct model *m, struct stream *s, struct mat out,
                       struct mat x, const float *weight, const float *bias)
{
    return m->cfg.norm_place == NORMS_AFTER ? m->dev->ops->convert(s, out, x)
                                            : norm(m, s, out, x, weight, bias);
}

/* Applies an RMS norm over each head of layer l, or over all heads together, in place. */
static int norm_heads(const struct model *m, struct stream *s, int l, struct mat x,
                      const float *weight)
{
    int width = m->cfg.qk_norm == QK_NORM_ALL ? (int)x.cols : config_d_head(&m->cfg, l);
    return m->dev->ops->head_norm(s, x, width, weight, m->cfg.norm_eps);
}

/* Returns the matrix that receives the products with W_k and W_v: kv_rows itself if they are
 * neither normalised nor rounded afterwards. */
static struct mat kv_place(const struct activations *a, const struct layer_weights *lw,
                           struct mat kv_rows)
{
    struct mat kv = mat_cols(first_rows(a->kv, kv_rows.rows), 0, kv_rows.cols);
    return lw->k_norm == NULL && kv.dtype == kv_rows.dtype ? kv_rows : kv;
}

/* Fills p with the products that compute K and V: one if W_k and W_v are one matrix, else two.
 * Returns their number. */
static int kv_products(const struct layer_weights *lw, struct mat kv, struct product p[2])
{
    int64_t n_k = lw->wkv.n, n_v = lw->wv.n;
    p[0] = (struct product){mat_cols(kv, 0, n_k), &lw->wkv, lw->bkv};
    if (n_v == 0)
        return 1;
    p[1] = (struct product){mat_cols(kv, n_k, n_v), &lw->wv,
                            lw->bkv != NULL ? lw->bkv + n_k : NULL};
    return 2;
}

static int multiply(const struct model *m, struct stream *s, struct mat a,
                    const struct product *p, int n)
{
    const struct ops *op = m->dev->ops;
    if (op->matmul_many != NULL)
        return op->matmul_many(s, a, p, n);
    for (int i = 0; i < n; i++)
        TRY(op->matmul(s, p[i].c, a, p[i].w, p[i].bias));
    return 0;
}

/* The norms of latents have an epsilon of their own, as in the reference library. */
#define LATENT_EPS 1e-6f

/* Sets kv_rows to the products `kv`, rounded to the state dtype: K (after its norm, before RoPE)
 * and V. */
static int round_kv(const struct model *m, struct stream *s, int l,
                    const struct layer_weights *lw, struct mat kv, struct mat kv_rows)
{
    const struct ops *op = m->dev->ops;
    int64_t dim = model_rank_kv_dim(m, l), rank = config_kv_rank(&m->cfg);
    if (kv.data == kv_rows.data)
        return 0;
    if (config_is_latent(&m->cfg)) {
        TRY(op->head_norm(s, mat_cols(kv, m->cfg.d_rope, rank), (int)rank, lw->k_norm,
                          LATENT_EPS));
        return op->convert(s, kv_rows, kv);
    }
    if (lw->k_norm != NULL)
        TRY(norm_heads(m, s, l, mat_cols(kv, 0, dim), lw->k_norm));
    if (m->cfg.v_norm)
        TRY(norm_heads(m, s, l, mat_cols(kv, dim, dim), NULL));
    return op->convert(s, kv_rows, kv);
}

/* Columns of the heads of a matrix: those of head h begin at first + h * step. */
struct head_cols {
    int64_t first, step;
};

/* Computes n columns of `out` for each head: products of w->k columns of `in` with the head's run
 * of w's rows. */
static int multiply_heads(const struct layer_call *c, struct mat out, struct head_cols to,
                          struct mat in, struct head_cols from, const struct weight *w,
                          int64_t n)
{
    for (int h = 0; h < c->m->cfg.n_heads; h++) {
        struct weight run = weight_run(c->m, w, h, n);
        TRY(c->m->dev->ops->matmul(c->s, mat_cols(out, to.first + h * to.step, n),
                                   mat_cols(in, from.first + h * from.step, w->k), &run,
                                   NULL));
    }
    return 0;
}

/* Computes the queries of latent attention and kv_rows, from normalised rows.  A query's part for
 * the latent is multiplied by W_k of its head, so that scores are products with the latent. */
static int project_latent(const struct layer_call *c, const struct activations *a,
                          struct mat normed, struct mat q)
{
    const struct model_config *cfg = &c->m->cfg;
    const struct layer_weights *lw = c->lw;
    int64_t rope = cfg->d_rope, d_nope = cfg->latent.d_nope, d = cfg->d_head;
    struct mat all = first_rows(a->latent, normed.rows);
    struct mat parts = mat_cols(all, 0, lw->wq.n),
               low = mat_cols(all, all.cols - cfg->latent.q_rank, cfg->latent.q_rank);
    struct mat kv = kv_place(a, lw, c->kv_rows);
    bool of_low = lw->w_qa.n > 0;
    const struct product p[] = {{kv, &lw->wkv, NULL},
                                {of_low ? low : parts, of_low ? &lw->w_qa : &lw->wq, NULL}};
    TRY(multiply(c->m, c->s, normed, p, 2));
    TRY(round_kv(c->m, c->s, c->l, lw, kv, c->kv_rows));
    if (of_low) {
        TRY(c->m->dev->ops->head_norm(c->s, low, cfg->latent.q_rank, lw->q_norm,
                                      LATENT_EPS));
        TRY(c->m->dev->ops->matmul(c->s, parts, low, &lw->wq, NULL));
    }
    for (int64_t i = 0; i < q.rows; i++)
        for (int64_t h = 0; h < cfg->n_heads; h++)
            memcpy((float *)q.data + i * q.ld + h * d,
                   (const float *)parts.data + i * parts.ld + h * rope,
                   (size_t)rope * sizeof(float));
    return multiply_heads(c, q, (struct head_cols){rope, d}, parts,
                          (struct head_cols){cfg->n_heads * rope, d_nope}, &lw->w_uk,
                          d - rope);
}

/* Computes the products with W_q, and kv_rows, from normalised rows; layer_kv computes the same
 * kv_rows. */
static int project_qkv(const struct model *m, const struct activations *a, struct stream *s,
                       int l, const struct layer_weights *lw, struct mat normed,
                       struct mat q, struct mat kv_rows)
{
    if (l >= config_n_keeping(&m->cfg))
        return m->dev->ops->matmul(s, q, normed, &lw->wq, lw->bq);
    struct mat kv = kv_place(a, lw, kv_rows);
    struct product p[3];
    int n = kv_products(lw, kv, p);
    p[n++] = (struct product){q, &lw->wq, lw->bq};
    TRY(multiply(m, s, normed, p, n));
    return round_kv(m, s, l, lw, kv, kv_rows);
}

int layer_kv(const struct model *m, struct model_work *w, struct stream *s, int l,
             const struct layer_weights *lw, struct mat h, struct mat kv_rows)
{
    const struct activations *a = &w->at[model_stage(m, l)];
    CHECK(h.rows <= w->max_rows && kv_rows.rows == h.rows);
    struct mat normed = first_rows(a->norm, h.rows);
    TRY(norm_before(m, s, normed, h, lw->norm1_w, lw->norm1_b));
    struct mat kv = kv_place(a, lw, kv_rows);
    struct product p[2];
    int n = kv_products(lw, kv, p);
    TRY(multiply(m, s, normed, p, n));
    return round_kv(m, s, l, lw, kv, kv_rows);
}

/* Returns the rotation of layer l, which holds the rows' positions. */
static const struct rope *rope_of_rows(const struct model *m, int l, const struct ragged *r)
{
    for (int i = 0; m->rope_blocks != NULL && i < r->n_rows; i++)
        model_rope_reach(m, r->pos[i]);
    return model_rope(m, l);
}

int model_kv_fill(const struct model *m, struct stream *s, int l, const struct kv_layer *kv,
                  struct mat kv_rows, const struct ragged *r)
{
    return m->dev->ops->kv_fill(s, kv, kv_rows, rope_of_rows(m, l, r), r);
}

int model_kv_pack(const struct model *m, struct stream *s, int l, void *chunk,
                  struct mat kv_rows)
{
    return m->dev->ops->kv_pack(s, chunk, kv_rows, config_kv_heads(&m->cfg, l),
                                config_d_head(&m->cfg, l));
}

int model_kv_load(const struct model *m, struct stream *s, int l, const struct kv_layer *kv,
                  const struct kv_chunks *chunks)
{
    for (int i = 0; i < chunks->n; i++)
        model_rope_reach(m, chunks->pos0 + i * KV_BLOCK_TOKENS);
    struct kv_chunks c = *chunks;
    c.v_is_k = config_is_latent(&m->cfg);
    return m->dev->ops->kv_load(s, kv, &c, model_rope(m, l));
}

/* --- recurrent layers ------------------------------------------------------------------------- */

struct delta_rule model_delta_rule(const struct model_config *c,
                                   const struct layer_weights *lw)
{
    const struct recurrence *r = &c->recurrence;
    struct delta_rule d = {.kind = (enum delta_kind)r->kind,
                           .n_k = r->n_k,
                           .n_v = r->n_v,
                           .tiled = r->tiled,
                           .d_k = r->d_k,
                           .d_v = r->d_v,
                           .n_conv = r->n_conv};
    if (lw != NULL) {
        d.conv = lw->conv;
        d.a_log = lw->a_log;
        d.dt_bias = lw->dt;
        d.conv_bias = lw->conv_b;
        d.skip = lw->skip;
    }
    return d;
}

/* The columns of a recurrent layer's rows.  A short convolution's are B, x, C and the results; its
 * channels, B * x, take the place of B. */
struct mix {
    struct mat ba, qkvz;   /* the products: beta and a; channels and z */
    struct mat in;         /* beta, a and the channels */
    struct mat out, gated; /* the heads' results; z and these */
    int64_t n_in;          /* columns of qkvz before z */
};

/* Returns where the columns of a recurrent layer's first n rows lie in a->mix. */
static struct mix mix_of(const struct model *m, const struct activations *a, int64_t n)
{
    struct delta_rule d = model_delta_rule(&m->cfg, NULL);
    struct mat all = first_rows(a->mix, n);
    int64_t v = (int64_t)d.n_v * d.d_v, n_ba = delta_gates_cols(&d);
    int64_t no_beta = d.kind == DELTA_MAMBA2 ? d.n_v : 0;
    int64_t n_in = delta_channels(&d) + (d.kind == DELTA_SHORT_CONV ? v : 0);
    return (struct mix){.ba = mat_cols(all, no_beta, n_ba - no_beta),
                        .qkvz = mat_cols(all, n_ba, n_in + v),
                        .in = mat_cols(all, 0, delta_in_cols(&d)),
                        .out = mat_cols(all, n_ba + n_in + v, v),
                        .gated = mat_cols(all, n_ba + n_in, 2 * v),
                        .n_in = n_in};
}

/* Computes out = a w for the columns of out, which are those of w from column `from` on. The rows
 * of a packed weight lie behind one another in panels of 16, so a run of panels is a weight. */
static int product_part(const struct ops *op, struct stream *s, struct mat out,
                        struct mat a, struct weight w, int64_t from)
{
    size_t before = op->weight_bytes(w.dtype, from, w.k);
    w.mem.ptr = (uint8_t *)w.mem.ptr + before;
    w.mem.bytes -= before;
    w.n = out.cols;
    return out.rows > 0 && out.cols > 0 ? op->matmul(s, out, a, &w, NULL) : 0;
}

/* Computes the products of a recurrent layer. For the states alone z is not wanted, and q only of
 * the newest rows, which the convolution keeps. */
static int mix_products(const struct model *m, struct stream *s,
                        const struct layer_weights *lw, struct mat normed,
                        const struct mix *x, bool only_states)
{
    const struct recurrence *r = &m->cfg.recurrence;
    const struct ops *op = m->dev->ops;
    int64_t n = only_states ? x->n_in : x->qkvz.cols;
    int64_t q = only_states ? (int64_t)r->n_k * r->d_k : 0;
    int64_t newest = MIN(normed.rows, r->n_conv - 1), row = normed.rows - newest;
    if (x->ba.cols > 0)
        TRY(op->matmul(s, x->ba, normed, &lw->mix_ba, NULL));
    TRY(product_part(op, s, mat_cols(x->qkvz, q, n - q), normed, lw->mix, q));
    TRY(product_part(op, s, mat_cols(mat_rows(x->qkvz, row, newest), 0, q),
                     mat_rows(normed, row, newest), lw->mix, 0));
    if (m->cfg.recurrence.kind != DELTA_SHORT_CONV)
        return 0;
    return op->act_mul(s, x->in, mat_cols(x->qkvz, 0, x->n_in), ACTIVATION_NONE);
}

int layer_advance(const struct model *m, struct model_work *w, struct stream *s, int l,
                  const struct layer_weights *lw, struct mat h, const struct kv_layer *kv,
                  const struct ragged *r)
{
    const struct activations *a = &w->at[model_stage(m, l)];
    struct mat normed = first_rows(a->norm, h.rows);
    struct mix x = mix_of(m, a, h.rows);
    struct delta_rule d = model_delta_rule(&m->cfg, lw);
    CHECK(h.rows <= w->max_rows);
    TRY(norm_before(m, s, normed, h, lw->norm1_w, lw->norm1_b));
    TRY(mix_products(m, s, lw, normed, &x, true));
    return m->dev->ops->delta_net(s, (struct mat){0}, x.in, &d, kv, r);
}

/* --- one layer -------------------------------------------------------------------------------- */

enum activation model_activation(enum act_kind a)
{
    switch (a) {
    case ACT_SILU:
        return ACTIVATION_SILU;
    case ACT_GELU:
        return ACTIVATION_GELU;
    case ACT_GELU_TANH:
        return ACTIVATION_GELU_TANH;
    case ACT_SWIGLU_CLAMPED:
        return ACTIVATION_SWIGLU_CLAMPED;
    case ACT_RELU:
        break;
    }
    return ACTIVATION_RELU;
}

/* Products of at most this many rows wait for memory, and not for arithmetic. */
enum { FEW_ROWS = 4 };

/* Says which weights are read after the next product. */
static void expect(const struct layer_call *c, const struct weight *const *w, int n)
{
    const struct ops *op = c->m->dev->ops;
    if (op->expect != NULL && c->r->n_rows <= FEW_ROWS)
        op->expect(c->s, w, n);
}

static void expect_one(const struct layer_call *c, const struct weight *w)
{
    expect(c, &w, 1);
}

/* Says which weights are read after the layer's last product: those of the next layer's first
 * products, or of the head. */
static void expect_after(const struct layer_call *c)
{
    const struct weight *w[MATMUL_MANY];
    int n = 0;
    if (c->l + 1 == c->m->cfg.n_layers) {
        w[n++] = &c->m->w.head;
    } else {
        const struct layer_weights *next = weights_resident(&c->m->w, c->l + 1);
        if (next == NULL)
            return;
        const struct weight *const all[] = {&next->mix, &next->wkv, &next->wv, &next->wq};
        for (int i = 0; i < 4; i++)
            if (all[i]->n > 0)
                w[n++] = all[i];
    }
    expect(c, w, n);
}

/* Computes out = in . w^T (+ bias) of all ranks: `in` has the rank's columns, and w its rows. */
static int multiply_shares(const struct layer_call *c, const struct activations *a,
                           struct mat out, struct mat in, const struct weight *w,
                           const float *bias)
{
    const struct ops *op = c->m->dev->ops;
    struct mat own = first_rows(a->own, in.rows);
    struct mat all = mat_of(a->wide.data, in.dtype, in.rows, w->k);
    if (c->m->dev->n_ranks == 1)
        return op->matmul(c->s, out, in, w, bias);
    TRY(all_gather(c->s, all, in));
    TRY(op->matmul(c->s, own, all, w, bias));
    return all_gather(c->s, out, own);
}

/* Applies the norm that follows attention or the MLP, if there is one, and the model's factor. */
static int finish_summand(const struct layer_call *c, struct mat summand,
                          const float *after)
{
    const struct ops *op = c->m->dev->ops;
    if (after != NULL)
        TRY(op->rmsnorm(c->s, summand, summand, after, c->m->cfg.norm_eps));
    return scale_rows(c->m, c->w, c->s, summand, c->m->cfg.residual_scale);
}

/* Computes the MLP: down(act(gate) * up), or down(act(up)), or those of the row's experts. */
static int mlp(const struct layer_call *c, const struct activations *a, struct mat normed,
               struct mat summand)
{
    const struct model_config *cfg = &c->m->cfg;
    const struct layer_weights *lw = c->lw;
    const struct ops *op = c->m->dev->ops;
    if (cfg->n_experts > 0)
        return experts_mlp(c, a, normed, summand);
    struct mat up = mat_cols(first_rows(a->up, c->r->n_rows), 0, lw->w_up.n);
    struct mat ffn = up;
    if (cfg->mlp_gated)
        ffn = mat_cols(first_rows(a->ffn, c->r->n_rows), 0, lw->w_up.n / 2);
    expect_one(c, &lw->w_down);
    TRY(op->matmul(c->s, up, normed, &lw->w_up, lw->b_up));
    if (cfg->mlp_gated)
        TRY(op->act_mul(c->s, ffn, up, model_activation(cfg->act)));
    else
        TRY(op->act(c->s, up, model_activation(cfg->act)));
    expect_after(c);
    return multiply_shares(c, a, summand, ffn, &lw->w_down, lw->b_down);
}

/* Multiplies each query by the factor of its position. Few rows have other factors than the row
 * before. */
static int grow_queries(const struct layer_call *c, struct mat q)
{
    const int32_t *pos = c->r->pos, ctx = c->m->cfg.query_ctx;
    double growth = (double)c->m->cfg.query_growth;
    for (int i = 0, n; growth > 0 && i < c->r->n_rows; i += n) {
        for (n = 1; i + n < c->r->n_rows && pos[i + n] / ctx == pos[i] / ctx; n++)
            ;
        float factor = (float)(1 + growth * log(1 + pos[i] / ctx));
        TRY(scale_rows(c->m, c->w, c->s, mat_rows(q, i, n), factor));
    }
    return 0;
}

/* Computes summand = attention over the cache: q, K and V are projected from the normalised input,
 * K and V enter the cache, and q attends to the whole cache. */
static int attend(const struct layer_call *c, const struct activations *a,
                  struct mat normed, struct mat summand)
{
    const struct model *m = c->m;
    const struct model_config *cfg = &m->cfg;
    const struct layer_weights *lw = c->lw;
    const struct ops *op = m->dev->ops;
    struct stream *s = c->s;
    int d_head = config_d_head(cfg, c->l);
    int64_t width = (int64_t)cfg->n_heads * d_head / m->dev->n_ranks;
    struct mat all = first_rows(a->q, c->r->n_rows), q = mat_cols(all, 0, width);
    struct mat att = mat_cols(first_rows(a->att, c->r->n_rows), 0, width);
    struct mat raw = cfg->attn_gated ? mat_cols(all, 2 * width, width) : att;
    const struct attention_rule rule = {.scale = cfg->attn_scale > 0
                                                     ? cfg->attn_scale
                                                     : (float)(1.0 / sqrt((double)d_head)),
                                        .cap = cfg->attn_cap,
                                        .window = config_window(cfg, c->l),
                                        .sinks = lw->sinks,
                                        .both_ways = cfg->both_ways};
    expect_one(c, &lw->wo);
    if (config_is_latent(cfg))
        TRY(project_latent(c, a, normed, q));
    else
        TRY(project_qkv(m, a, s, c->l, lw, normed, mat_cols(all, 0, lw->wq.n), c->kv_rows));
    if (lw->q_norm != NULL && !config_is_latent(cfg))
        TRY(norm_heads(m, s, c->l, q, lw->q_norm));
    TRY(grow_queries(c, q));
    const struct rope *rope = rope_of_rows(m, c->l, c->r);
    TRY(c->l < config_n_keeping(cfg) ? op->rope_kv_fill(s, q, c->kv, c->kv_rows, rope, c->r)
                                     : op->rope(s, q, d_head, rope, c->r));
    TRY(op->attention(s, raw, q, c->kv, c->r, &rule));
    if (cfg->attn_gated)
        TRY(op->act_mul(s, att, mat_cols(all, width, 2 * width), ACTIVATION_SIGMOID));
    if (cfg->n_experts == 0)
        expect_one(c, &lw->w_up);
    if (config_is_latent(cfg)) { /* what attention took from latents becomes that of V */
        struct mat v = mat_cols(first_rows(a->latent, c->r->n_rows), 0, lw->wo.k);
        TRY(multiply_heads(c, v, (struct head_cols){0, cfg->latent.d_v}, att,
                           (struct head_cols){cfg->d_rope, d_head}, &lw->w_uv,
                           cfg->latent.d_v));
        return op->matmul(s, summand, v, &lw->wo, lw->bo);
    }
    return multiply_shares(c, a, summand, att, &lw->wo, lw->bo);
}

/* Computes summand = the result of a recurrent layer's heads, and advances its states. */
static int recur(const struct layer_call *c, const struct activations *a, struct mat normed,
                 struct mat summand)
{
    const struct model *m = c->m;
    const struct layer_weights *lw = c->lw;
    const struct ops *op = m->dev->ops;
    struct mix x = mix_of(m, a, c->r->n_rows);
    struct delta_rule d = model_delta_rule(&m->cfg, lw);
    struct mat out = mat_cols(first_rows(a->att, c->r->n_rows), 0, x.out.cols);
    expect_one(c, &lw->mix_out);
    TRY(mix_products(m, c->s, lw, normed, &x, false));
    TRY(op->delta_net(c->s, x.out, x.in, &d, c->kv, c->r));
    if (d.kind == DELTA_NET)
        TRY(op->head_norm(c->s, x.out, d.d_v, lw->mix_norm, m->cfg.norm_eps));
    TRY(op->act_mul(c->s, out, x.gated,
                    d.kind == DELTA_SHORT_CONV ? ACTIVATION_NONE : ACTIVATION_SILU));
    int64_t run = out.cols / d.n_k; /* Mamba-2: each group has a norm */
    for (int64_t at = 0; d.kind == DELTA_MAMBA2 && at < out.cols; at += run)
        TRY(op->rmsnorm(c->s, mat_cols(out, at, run), mat_cols(out, at, run),
                        lw->mix_norm + at, m->cfg.norm_eps));
    if (m->cfg.n_experts == 0)
        expect_one(c, &lw->w_up);
    return op->matmul(c->s, summand, out, &lw->mix_out, NULL);
}

/* Computes summand = the part of the layer's own embeddings of the tokens: a gate of `sum`, times
 * the mean of the token's row of the layer's table and of a product with its embedding. */
static int add_layer_embd(const struct layer_call *c, const struct activations *a,
                          struct mat sum, struct mat summand)
{
    const struct model *m = c->m;
    const struct ops *op = m->dev->ops;
    struct stream *s = c->s;
    int64_t n = c->r->n_rows, d = m->cfg.n_layer_embd;
    struct mat both = first_rows(a->layer_embd, n), token = first_rows(a->token_embd, n);
    struct mat gate = mat_cols(both, 0, d), own = mat_cols(both, d, d);
    struct mat normed = first_rows(a->norm, n), row = mat_cols(summand, 0, d);
    struct weight in = weight_run(m, &m->w.layer_in, c->l, d);
    struct mat table = mat_cols(m->w.pos_embed, c->l * d, d);
    CHECK(c->ids != NULL);
    TRY(embed(m, c->w, s, model_stage(m, c->l), token, c->ids, c->r));
    TRY(op->convert(s, normed, token));
    TRY(op->matmul(s, own, normed, &in, NULL));
    TRY(scale_rows(m, c->w, s, own, (float)(1 / sqrt((double)m->cfg.n_embd))));
    TRY(op->head_norm(s, own, (int)d, m->w.layer_in_norm, m->cfg.norm_eps));
    TRY(op->embed(s, row, table, c->ids, sqrtf((float)d)));
    TRY(op->add(s, own, own, row));
    TRY(scale_rows(m, c->w, s, own, (float)sqrt(0.5)));
    TRY(op->matmul(s, gate, sum, &c->lw->layer_gate, NULL));
    struct mat product = mat_cols(normed, 0, d);
    TRY(op->act_mul(s, product, both, model_activation(m->cfg.act)));
    TRY(op->matmul(s, summand, product, &c->lw->layer_out, NULL));
    return op->rmsnorm(s, summand, summand, c->lw->layer_norm, m->cfg.norm_eps);
}

/* Computes out = the layer applied to x, rounded to the state dtype.  Each rank of a device group
 * computes a share of every product; the ranks gather what the next product needs whole. */
static int layer(void *arg)
{
    const struct layer_call *c = arg;
    const struct model *m = c->m;
    const struct model_config *cfg = &m->cfg;
    const struct layer_weights *lw = c->lw;
    const struct ops *op = m->dev->ops;
    struct stream *s = c->s;
    const struct activations *a = &c->w->at[model_stage(m, c->l)];
    int64_t n = c->r->n_rows;
    struct mat normed = first_rows(a->norm, n), summand = first_rows(a->norm2, n);
    struct mat sum = first_rows(a->sum, n);
    bool after = cfg->norm_place == NORMS_AFTER;

    TRY(norm_before(m, s, normed, c->x, lw->norm1_w, lw->norm1_b));
    if (config_is_recurrent(cfg, c->l))
        TRY(recur(c, a, normed, summand));
    else
        TRY(attend(c, a, normed, summand));
    TRY(finish_summand(c, summand, after ? lw->norm1_w : lw->post1_w));

    /* Residual: sum = x + attention, in f32.  The MLP's input is the norm of sum, or of x in
     * parallel blocks, or sum itself. */
    if (cfg->block == BLOCK_SEQUENTIAL && !after) {
        TRY(op->add_norm(s, normed, sum, c->x, summand, lw->norm2_w,
                         cfg->norm == NORM_LAYER ? lw->norm2_b : NULL, cfg->norm_eps));
    } else {
        TRY(op->add(s, sum, c->x, summand));
        if (cfg->block == BLOCK_PARALLEL_NORM2)
            TRY(norm(m, s, normed, c->x, lw->norm2_w, lw->norm2_b));
        if (after)
            TRY(op->convert(s, normed, sum));
    }
    TRY(mlp(c, a, normed, summand));
    TRY(finish_summand(c, summand, after ? lw->norm2_w : lw->post2_w));

    if (cfg->n_layer_embd > 0) {
        TRY(op->add(s, sum, sum, summand));
        TRY(add_layer_embd(c, a, sum, summand));
    }

    /* Residual: out = sum + MLP, rounded to the state dtype. */
    if (!cfg->out_scaled)
        return op->add(s, c->out, sum, summand);
    TRY(op->add(s, sum, sum, summand));
    for (int i = 0; i < n; i++)
        c->w->ids[i] = i;
    return op->embed(s, c->out, sum, c->w->ids, *lw->out_scale);
}

/* Runs a layer. A device may record the layer and replay it. The key covers everything that the
 * layer's operations read or write besides the batch. */
int layer_forward(struct layer_call *c)
{
    const struct ops *op = c->m->dev->ops;
    const void *const operands[] = {c->m,
                                    (void *)(intptr_t)c->l,
                                    c->lw->wkv.mem.ptr,
                                    c->lw->wq.mem.ptr,
                                    c->w,
                                    c->x.data,
                                    c->out.data,
                                    c->kv->blocks};
    CHECK(c->r->n_rows <= c->w->max_rows);
    CHECK(c->x.rows == c->r->n_rows && c->out.rows == c->r->n_rows);
    if (op->record == NULL)
        return layer(c);
    return op->record(c->s, c->r, checksum64(operands, sizeof operands), c->x.data, layer,
                      c);
}

/* --- head ------------------------------------------------------------------------------------- */

bool model_head_is_fine(const struct model *m)
{
    return m->w.head.dtype == DTYPE_Q8 && m->dev->ops->round_rest != NULL;
}

/* Sets out [n] to the logits of the first n rows of a->norm; out may be the first rows of a->head.
 * The head multiplies the rows and what rounding leaves out of them, and reads its weights once for
 * both.  Without the rest the perplexity of SmolLM2 is 0.13 % higher (docs/perf/2026-12-01e.md). */
static int fine_product(const struct model *m, struct activations *a, struct stream *s,
                        struct mat out)
{
    const struct ops *op = m->dev->ops;
    int64_t n = out.rows;
    struct mat bias = mat_of((void *)(uintptr_t)m->w.head_bias, DTYPE_F32, 1, out.cols);
    TRY(op->round_rest(s, mat_rows(a->norm, n, n), first_rows(a->norm, n)));
    TRY(op->matmul(s, first_rows(a->head, 2 * n), first_rows(a->norm, 2 * n), &m->w.head,
                   NULL));
    TRY(op->add(s, out, first_rows(a->head, n), mat_rows(a->head, n, n)));
    for (int64_t i = 0; bias.data != NULL && i < n; i++)
        TRY(op->add(s, mat_rows(out, i, 1), mat_rows(out, i, 1), bias));
    return 0;
}

/* Computes the logits of x by pieces of rows, in a->head.  Of several ranks each computes its run
 * of the vocabulary, and the ranks gather them. */
static int head_by_pieces(const struct model *m, struct activations *a, struct stream *s,
                          struct mat x, struct mat logits)
{
    const struct ops *op = m->dev->ops;
    bool fine = model_head_is_fine(m);
    int64_t most = fine ? a->head.rows / 2 : a->head.rows;
    for (int64_t row = 0, n; row < x.rows; row += n) {
        n = MIN(x.rows - row, most);
        struct mat normed = first_rows(a->norm, n), out = mat_rows(logits, row, n);
        bool cut = a->head.cols < out.cols;
        struct mat own = cut ? first_rows(a->head, n) : out;
        TRY(norm(m, s, normed, mat_rows(x, row, n), m->w.final_norm_w, m->w.final_norm_b));
        TRY(fine ? fine_product(m, a, s, own)
                 : op->matmul(s, own, normed, &m->w.head, m->w.head_bias));
        if (cut)
            TRY(all_gather(s, out, own));
    }
    return 0;
}

/* Computes the logits of x at once. */
static int head_at_once(const struct model *m, struct activations *a, struct stream *s,
                        struct mat x, struct mat logits)
{
    struct mat normed = first_rows(a->norm, x.rows);
    TRY(norm(m, s, normed, x, m->w.final_norm_w, m->w.final_norm_b));
    return m->dev->ops->matmul(s, logits, normed, &m->w.head, m->w.head_bias);
}

int model_final_norm(const struct model *m, struct model_work *w, struct stream *s,
                     struct mat x, struct mat out)
{
    struct mat normed = first_rows(w->at[model_last_stage(m)].norm, x.rows);
    TRY(norm(m, s, normed, x, m->w.final_norm_w, m->w.final_norm_b));
    return m->dev->ops->convert(s, out, normed);
}

int model_dense(const struct model *m, struct stream *s, struct mat pooled, struct mat *out)
{
    *out = pooled;
    for (int i = 0; i < m->cfg.n_behind; i++) {
        const struct weight *w = &m->w.dense[i];
        struct mat next = mat_of((float *)out->data + out->cols, DTYPE_F32, 1, w->n);
        TRY(m->dev->ops->matmul(s, next, *out, w, NULL));
        *out = next;
    }
    return 0;
}

int model_head(const struct model *m, struct model_work *w, struct stream *s, struct mat x,
               struct mat logits)
{
    struct activations *a = &w->at[model_last_stage(m)];
    TRY((a->head.rows > 0 ? head_by_pieces : head_at_once)(m, a, s, x, logits));
    if (m->cfg.logit_cap > 0) {
        TRY(scale_rows(m, w, s, logits, 1 / m->cfg.logit_cap));
        TRY(m->dev->ops->act(s, logits, ACTIVATION_TANH));
    }
    TRY(scale_rows(m, w, s, logits,
                   m->cfg.logit_cap > 0 ? m->cfg.logit_cap : m->cfg.logit_scale));
    return weights_check(&m->w);
}
