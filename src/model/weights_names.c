/* weights_names.c - see weights_names.h.  Only this file knows the families' names of tensors. */
#include "model/weights_names.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "tensor/ops.h"

/* How a family stores queries, keys and values: several tensors may make one matrix of this
 * program, and one tensor may make several. */
enum qkv_layout {
    QKV_SEPARATE,
    QKV_STACKED, /* one tensor has all rows of q, then all of k, then all of v (phi3) */
    /* grouped by KV head: its query heads, then k, then v.  Falcon's three layouts are all of this
     * kind: one KV head (7b), groups (40b), as many KV heads as query heads (rw) */
    QKV_GROUPED,
};

/* Names without ".weight" and ".bias"; NULL: the family has no such tensor. */
struct names {
    const char *prefix, *embed, *positions, *final_norm;
    /* names inside a layer: "LAYER.0.NORM1" */
    const char *layer, *norm1, *norm2;
    const char *post1, *post2; /* in NORMS_AROUND */
    enum qkv_layout layout;
    const char *qkv[3]; /* three for QKV_SEPARATE, else only the first */
    const char *out;
    const char *q_norm, *k_norm;
    const char *gate; /* NULL: `up` holds gate and up if the MLP is gated (phi3) */
    const char *up, *down;
    const char *router, *expert; /* "EXPERT.0.GATE"; NULL: no experts */
};

/* Names that are the same in every family that has the tensor. */
#define HEAD_NAME  "lm_head"
#define SINKS_NAME "self_attn.sinks"
/* of a router whose bias only chooses */
#define ROUTER_BIAS_NAME "mlp.gate.e_score_correction_bias"

static const struct names llama_names = {
    .prefix = "model.",
    .embed = "model.embed_tokens",
    .final_norm = "model.norm",
    .layer = "model.layers",
    .norm1 = "input_layernorm",
    .norm2 = "post_attention_layernorm",
    .layout = QKV_SEPARATE,
    .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
    .out = "self_attn.o_proj",
    .q_norm = "self_attn.q_norm",
    .k_norm = "self_attn.k_norm",
    .gate = "mlp.gate_proj",
    .up = "mlp.up_proj",
    .down = "mlp.down_proj",
};

static const struct names opt_names = {
    .prefix = "model.",
    .embed = "model.decoder.embed_tokens",
    .positions = "model.decoder.embed_positions",
    .final_norm = "model.decoder.final_layer_norm",
    .layer = "model.decoder.layers",
    .norm1 = "self_attn_layer_norm",
    .norm2 = "final_layer_norm",
    .layout = QKV_SEPARATE,
    .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
    .out = "self_attn.out_proj",
    .up = "fc1",
    .down = "fc2",
};

static const struct names falcon_names = {
    .prefix = "transformer.",
    .embed = "transformer.word_embeddings",
    .final_norm = "transformer.ln_f",
    .layer = "transformer.h",
    .norm1 = "input_layernorm",
    .norm2 = "post_attention_layernorm",
    .layout = QKV_GROUPED,
    .qkv = {"self_attention.query_key_value"},
    .out = "self_attention.dense",
    .up = "mlp.dense_h_to_4h",
    .down = "mlp.dense_4h_to_h",
};

static struct names names_of(const struct model_config *c)
{
    struct names n = llama_names;
    switch (c->family) {
    case FAMILY_QWEN3_MOE:
    case FAMILY_QWEN3_5_MOE:
    case FAMILY_QWEN3_NEXT:
    case FAMILY_GLM4_MOE:
    case FAMILY_GLM4_LITE:
    case FAMILY_DEEPSEEK2:
    case FAMILY_GPT_OSS: /* folders have one tensor of all experts (weights_files.c) */
        n.router = c->family == FAMILY_GPT_OSS ? "mlp.router" : "mlp.gate";
        n.expert = "mlp.experts";
        n.gate = "gate_proj";
        n.up = "up_proj";
        n.down = "down_proj";
        return n;
    case FAMILY_MIXTRAL:
        n.router = "block_sparse_moe.gate";
        n.expert = "block_sparse_moe.experts";
        n.gate = "w1";
        n.up = "w3";
        n.down = "w2";
        return n;
    case FAMILY_GEMMA4:
        n.positions = "model.embed_tokens_per_layer";
        n.router = "router.proj";
        n.expert = "experts";
        if (c->n_experts > 0) {
            n.gate = "gate_proj";
            n.up = "up_proj";
            n.down = "down_proj";
        }
    /* fallthrough */
    case FAMILY_GEMMA2:
    case FAMILY_GEMMA3:
        n.post1 = "post_attention_layernorm";
        n.norm2 = "pre_feedforward_layernorm";
        n.post2 = "post_feedforward_layernorm";
        return n;
    case FAMILY_OLMO2:
    case FAMILY_OLMO3:
        n.norm1 = "post_attention_layernorm";
        n.norm2 = "post_feedforward_layernorm";
        return n;
    case FAMILY_LFM2:
        n.final_norm = "model.embedding_norm";
        n.norm1 = "operator_norm";
        n.norm2 = "ffn_norm";
        n.out = "self_attn.out_proj";
        n.q_norm = "self_attn.q_layernorm";
        n.k_norm = "self_attn.k_layernorm";
        n.gate = "feed_forward.w1";
        n.up = "feed_forward.w3";
        n.down = "feed_forward.w2";
        return n;
    case FAMILY_GRANITE_HYBRID: /* folders have gate and up in one tensor (weights_files.c) */
        n.router = "block_sparse_moe.router.layer";
        n.expert = "block_sparse_moe.experts";
        n.gate = c->n_experts > 0 ? "gate_proj" : "shared_mlp.gate_proj";
        n.up = c->n_experts > 0 ? "up_proj" : "shared_mlp.up_proj";
        n.down = c->n_experts > 0 ? "down_proj" : "shared_mlp.down_proj";
        return n;
    case FAMILY_OPT:
        return opt_names;
    case FAMILY_PHI:
        n.final_norm = "model.final_layernorm";
        n.norm2 = n.gate = NULL;
        n.out = "self_attn.dense";
        n.up = "mlp.fc1";
        n.down = "mlp.fc2";
        return n;
    case FAMILY_PHI3:
        n.layout = QKV_STACKED;
        n.qkv[0] = "self_attn.qkv_proj";
        n.gate = NULL;
        n.up = "mlp.gate_up_proj";
        return n;
    case FAMILY_FALCON:
        n = falcon_names;
        if (c->block == BLOCK_PARALLEL_NORM2) {
            n.norm1 = "ln_attn";
            n.norm2 = "ln_mlp";
        }
        return n;
    default:
        return n;
    }
}

/* --- sizes ------------------------------------------------------------------------------------ */

static int64_t q_dim(const struct model_config *c, int l)
{
    return (int64_t)c->n_heads * config_d_head(c, l);
}

static int64_t kv_dim(const struct model_config *c, int l)
{
    return (int64_t)config_kv_heads(c, l) * config_d_head(c, l);
}

/* Returns the width of all heads of V in a recurrent layer. */
static int64_t mix_dim(const struct model_config *c)
{
    return (int64_t)c->recurrence.n_v * c->recurrence.d_v;
}

static int64_t mix_q_dim(const struct model_config *c)
{
    return (int64_t)c->recurrence.n_k * c->recurrence.d_k;
}

int64_t slot_rows(const struct model_config *c, int l, enum slot s)
{
    switch (s) {
    case SLOT_EMBED:
    case SLOT_HEAD:
    case SLOT_HEAD_BIAS:
        return c->vocab_size;
    case SLOT_POSITIONS:
        return c->n_layer_embd > 0 ? c->vocab_size
                                   : (int64_t)c->max_ctx + c->position_offset;
    case SLOT_LAYER_IN:
        return (int64_t)c->n_layers * c->n_layer_embd;
    case SLOT_LAYER_GATE:
    case SLOT_LAYER_IN_NORM:
        return c->n_layer_embd;
    case SLOT_EXPERT_SCALE:
        return c->n_experts;
    case SLOT_OUT_SCALE:
        return 1;
    case SLOT_WQ:
        if (config_is_latent(c))
            return config_latent_q_dim(c);
        return c->attn_gated ? 2 * q_dim(c, l) : q_dim(c, l);
    case SLOT_BQ:
        return q_dim(c, l);
    case SLOT_MIX: /* q is of no width where there are three runs as wide as v */
        return 2 * mix_q_dim(c) +
               (c->recurrence.kind == DELTA_SHORT_CONV ? 3 : 2) * mix_dim(c);
    case SLOT_MIX_BA:
        return (c->recurrence.kind == DELTA_MAMBA2 ? 1 : (int64_t)2) * c->recurrence.n_v;
    case SLOT_CONV:
        return c->recurrence.n_conv * slot_rows(c, l, SLOT_CONV_B);
    case SLOT_CONV_B:
        return 2 * mix_q_dim(c) + mix_dim(c);
    case SLOT_A_LOG:
    case SLOT_DT:
    case SLOT_SKIP:
        return c->recurrence.n_v;
    case SLOT_MIX_NORM:
        return c->recurrence.kind == DELTA_MAMBA2 ? mix_dim(c) : c->recurrence.d_v;
    case SLOT_SHARED_UP:
        return (int64_t)2 * c->n_shared_ffn;
    case SLOT_DENSE_UP:
        return (int64_t)2 * c->n_dense_ffn;
    case SLOT_SHARED_GATE:
        return 1;
    case SLOT_QA:
        return c->latent.q_rank;
    case SLOT_UK:
        return (int64_t)c->n_heads * config_kv_rank(c);
    case SLOT_UV:
        return (int64_t)c->n_heads * c->latent.d_v;
    case SLOT_WKV:
    case SLOT_BKV:
        return config_kv_width(c, l);
    case SLOT_WV:
        return kv_dim(c, l);
    case SLOT_UP:
    case SLOT_B_UP:
        return (int64_t)MAX(c->n_experts, 1) * config_ffn(c, l) * (c->mlp_gated ? 2 : 1);
    case SLOT_DOWN:
    case SLOT_B_DOWN:
        return (int64_t)MAX(c->n_experts, 1) * c->n_embd;
    case SLOT_ROUTER:
    case SLOT_B_ROUTER:
        return c->n_experts;
    case SLOT_SINKS:
        return c->n_heads;
    case SLOT_DENSE_1:
        return c->dense[0];
    case SLOT_DENSE_2:
        return c->dense[1];
    case SLOT_Q_NORM:
        if (config_is_latent(c))
            return c->latent.q_rank;
        return c->qk_norm == QK_NORM_ALL ? q_dim(c, l) : config_d_head(c, l);
    case SLOT_K_NORM:
        if (config_is_latent(c))
            return config_kv_rank(c);
        return c->qk_norm == QK_NORM_ALL ? kv_dim(c, l) : config_d_head(c, l);
    default:
        return c->n_embd;
    }
}

int64_t slot_cols(const struct model_config *c, int l, enum slot s)
{
    if (slot_is_vector(s))
        return 1;
    switch (s) {
    case SLOT_WO:
        return config_is_latent(c) ? (int64_t)c->n_heads * c->latent.d_v : q_dim(c, l);
    case SLOT_WQ:
        return c->latent.q_rank > 0 ? c->latent.q_rank : c->n_embd;
    case SLOT_UK:
        return c->latent.d_nope;
    case SLOT_UV:
        return config_kv_rank(c);
    case SLOT_MIX_OUT:
        return mix_dim(c);
    case SLOT_SHARED_DOWN:
        return c->n_shared_ffn;
    case SLOT_DENSE_DOWN:
        return c->n_dense_ffn;
    case SLOT_DOWN:
        return config_ffn(c, l);
    case SLOT_POSITIONS:
        return c->n_layer_embd > 0 ? (int64_t)c->n_layers * c->n_layer_embd : c->n_embd;
    case SLOT_LAYER_OUT:
        return c->n_layer_embd;
    case SLOT_DENSE_2:
        return c->dense[0];
    default:
        return c->n_embd;
    }
}

/* --- the list of tensors ---------------------------------------------------------------------- */

struct builder {
    const struct model_config *c;
    struct tensor_list *list;
    size_t room;
    const char *layer_name; /* NULL outside of the layers */
    int layer;
};

static struct tensor_spec *add_spec(struct builder *b, const char *stem, const char *suffix)
{
    struct tensor_list *l = b->list;
    GROW(l->items, l->n, b->room);
    struct tensor_spec *t = &l->items[l->n++];
    *t = (struct tensor_spec){.layer = b->layer};
    int n = b->layer_name == NULL ? snprintf(t->name, sizeof t->name, "%s%s", stem, suffix)
                                  : snprintf(t->name, sizeof t->name, "%s.%d.%s%s",
                                             b->layer_name, b->layer, stem, suffix);
    CHECK(n > 0 && (size_t)n < sizeof t->name);
    return t;
}

static void add_part(struct tensor_spec *t, struct tensor_part p)
{
    CHECK(t->n_parts < TENSOR_MAX_PARTS);
    t->parts[t->n_parts++] = p;
    t->rows += p.n_rows * p.n_groups;
}

static struct tensor_part whole(enum slot s, int64_t dst_row, int64_t n_rows)
{
    return (struct tensor_part){
        .slot = s, .dst_row = dst_row, .n_rows = n_rows, .n_groups = 1};
}

static void finish(struct builder *b, struct tensor_spec *t, enum tensor_kind kind)
{
    t->kind = kind;
    t->n_dims = kind == TENSOR_MATRIX ? 2 : 1;
    t->cols = slot_cols(b->c, b->layer, t->parts[0].slot);
}

static bool slot_has(const struct model_config *c, enum slot bias)
{
    switch (bias) {
    case SLOT_BQ:
    case SLOT_BKV:
        return c->qkv_bias;
    case SLOT_BO:
        return c->attn_out_bias;
    case SLOT_HEAD_BIAS:
        return c->head_bias;
    case SLOT_B_ROUTER:
        return c->router_bias;
    default:
        return c->mlp_bias;
    }
}

static void add_bias(struct builder *b, const char *stem, enum slot s, int64_t dst_row,
                     int64_t n_rows)
{
    struct tensor_spec *t = add_spec(b, stem, ".bias");
    add_part(t, whole(s, dst_row, n_rows));
    finish(b, t, TENSOR_BIAS);
}

/* Adds a tensor that is all of slot s. */
static struct tensor_spec *add_all(struct builder *b, const char *stem, const char *suffix,
                                   enum slot s, enum tensor_kind kind)
{
    struct tensor_spec *t = add_spec(b, stem, suffix);
    add_part(t, whole(s, 0, slot_rows(b->c, b->layer, s)));
    finish(b, t, kind);
    return t;
}

static void add_matrix(struct builder *b, const char *stem, enum slot s)
{
    add_all(b, stem, ".weight", s, TENSOR_MATRIX);
}

/* Adds a weight whose rows go to [dst_row, + n_rows) of slot w, and a bias for the same rows, if
 * any. */
static void add_linear(struct builder *b, const char *stem, enum slot w, enum slot bias,
                       int64_t dst_row, int64_t n_rows)
{
    struct tensor_spec *t = add_spec(b, stem, ".weight");
    add_part(t, whole(w, dst_row, n_rows));
    finish(b, t, TENSOR_MATRIX);
    if (bias != N_SLOTS && slot_has(b->c, bias))
        add_bias(b, stem, bias, dst_row, n_rows);
}

static void add_norm(struct builder *b, const char *stem, enum slot w, enum slot bias)
{
    add_all(b, stem, ".weight", w, TENSOR_NORM);
    if (b->c->norm == NORM_LAYER && bias != N_SLOTS)
        add_all(b, stem, ".bias", bias, TENSOR_BIAS);
}

static void split_stacked(const struct model_config *c, struct tensor_spec *t, enum slot q,
                          enum slot kv)
{
    add_part(t, whole(q, 0, q_dim(c, 0)));
    struct tensor_part rest = whole(kv, 0, 2 * kv_dim(c, 0));
    rest.src_row = q_dim(c, 0);
    add_part(t, rest);
}

static void split_grouped(const struct model_config *c, struct tensor_spec *t, enum slot q,
                          enum slot kv)
{
    int64_t per_group = (int64_t)c->n_heads / c->n_kv_heads;
    struct tensor_part p = {.slot = q,
                            .src_stride = (per_group + 2) * c->d_head,
                            .n_rows = per_group * c->d_head,
                            .n_groups = c->n_kv_heads};
    add_part(t, p);
    p.slot = kv;
    p.src_row = per_group * c->d_head;
    p.n_rows = c->d_head;
    add_part(t, p);
    p.src_row += c->d_head;
    p.dst_row = kv_dim(c, 0);
    add_part(t, p);
}

static void add_fused(struct builder *b, enum qkv_layout layout, const char *stem,
                      bool bias)
{
    struct tensor_spec *t = add_spec(b, stem, bias ? ".bias" : ".weight");
    enum slot q = bias ? SLOT_BQ : SLOT_WQ, kv = bias ? SLOT_BKV : SLOT_WKV;
    if (layout == QKV_STACKED)
        split_stacked(b->c, t, q, kv);
    else
        split_grouped(b->c, t, q, kv);
    finish(b, t, bias ? TENSOR_BIAS : TENSOR_MATRIX);
}

/* Adds a tensor of n_groups groups of rows, each of which has a run for each of n slots.  The runs
 * of a slot follow one another, from its row first[i] on. */
static struct tensor_spec *add_groups(struct builder *b, const char *stem, int n_groups,
                                      int n, const enum slot *slot, const int64_t *n_rows,
                                      const int64_t *first)
{
    struct tensor_spec *t = add_spec(b, stem, ".weight");
    int64_t at = 0, stride = 0;
    for (int i = 0; i < n; i++)
        stride += n_rows[i];
    for (int i = 0; i < n; at += n_rows[i++])
        add_part(t, (struct tensor_part){.slot = slot[i],
                                         .src_row = at,
                                         .src_stride = stride,
                                         .dst_row = first[i],
                                         .n_rows = n_rows[i],
                                         .n_groups = n_groups});
    finish(b, t, TENSOR_MATRIX);
    return t;
}

/* Adds the rows of Q, each head's before those of its gate. */
static void add_gated_q(struct builder *b, const char *stem)
{
    const struct model_config *c = b->c;
    add_groups(b, stem, c->n_heads, 2, (const enum slot[]){SLOT_WQ, SLOT_WQ},
               (const int64_t[]){c->d_head, c->d_head}, (const int64_t[]){0, q_dim(c, 0)});
}

static void add_conv(struct builder *b, const char *stem)
{
    struct tensor_spec *t = add_all(b, stem, "", SLOT_CONV, TENSOR_MATRIX);
    t->n_dims = 3;
    t->n_conv = b->c->recurrence.n_conv;
}

/* Adds the tensors of a layer that is a short convolution.  B, C and x follow one another in the
 * tensor; here C is the last, so that a replay leaves it out. */
static void add_short_conv(struct builder *b)
{
    int64_t v = mix_dim(b->c);
    add_groups(b, "conv.in_proj", 1, 3, (const enum slot[]){SLOT_MIX, SLOT_MIX, SLOT_MIX},
               (const int64_t[]){v, v, v}, (const int64_t[]){0, 2 * v, v});
    add_conv(b, "conv.conv.weight");
    add_matrix(b, "conv.out_proj", SLOT_MIX_OUT);
}

/* Adds the tensors of a layer of Mamba-2.  The files have x before B and C, which are v, k and q
 * here, and z before all of them. */
static void add_mamba(struct builder *b)
{
    const struct recurrence *r = &b->c->recurrence;
    const int64_t q = mix_q_dim(b->c), v = mix_dim(b->c), n = r->n_conv;
    static const enum slot conv[] = {SLOT_CONV, SLOT_CONV, SLOT_CONV},
                           bias[] = {SLOT_CONV_B, SLOT_CONV_B, SLOT_CONV_B};
    add_groups(b, "mamba.in_proj", 1, 5,
               (const enum slot[]){SLOT_MIX, SLOT_MIX, SLOT_MIX, SLOT_MIX, SLOT_MIX_BA},
               (const int64_t[]){v, v, q, q, r->n_v},
               (const int64_t[]){2 * q + v, 2 * q, q, 0, 0});
    struct tensor_spec *t = add_groups(b, "mamba.conv1d", 1, 3, conv,
                                       (const int64_t[]){v * n, q * n, q * n},
                                       (const int64_t[]){2 * q * n, q * n, 0});
    t->n_dims = 3;
    t->n_conv = r->n_conv;
    t = add_groups(b, "mamba.conv1d", 1, 3, bias, (const int64_t[]){v, q, q},
                   (const int64_t[]){2 * q, q, 0});
    finish(b, t, TENSOR_BIAS);
    snprintf(strrchr(t->name, '.'), sizeof ".weight", ".bias");
    add_all(b, "mamba.A_log", "", SLOT_A_LOG, TENSOR_RATE);
    add_all(b, "mamba.D", "", SLOT_SKIP, TENSOR_FACTOR);
    add_all(b, "mamba.dt_bias", "", SLOT_DT, TENSOR_BIAS);
    add_all(b, "mamba.norm.weight", "", SLOT_MIX_NORM, TENSOR_FACTOR);
    add_matrix(b, "mamba.out_proj", SLOT_MIX_OUT);
}

/* Adds a recurrent layer's own tensors.  qwen3_next has those of beta and a in one, by heads of Q,
 * and in folders those of q, k, v and z, too. */
static void add_recurrence(struct builder *b)
{
    const struct model_config *c = b->c;
    const struct recurrence *r = &c->recurrence;
    int64_t q = mix_q_dim(c), v = mix_dim(c), per = r->n_v / r->n_k;
    if (c->family == FAMILY_QWEN3_NEXT && !r->is_split) {
        add_groups(b, "linear_attn.in_proj_qkvz", r->n_k, 4,
                   (const enum slot[]){SLOT_MIX, SLOT_MIX, SLOT_MIX, SLOT_MIX},
                   (const int64_t[]){r->d_k, r->d_k, per * r->d_v, per * r->d_v},
                   (const int64_t[]){0, q, 2 * q, 2 * q + v});
    } else {
        add_linear(b, "linear_attn.in_proj_qkv", SLOT_MIX, N_SLOTS, 0, 2 * q + v);
        add_linear(b, "linear_attn.in_proj_z", SLOT_MIX, N_SLOTS, 2 * q + v, v);
    }
    if (c->family == FAMILY_QWEN3_NEXT) {
        add_groups(b, "linear_attn.in_proj_ba", r->n_k, 2,
                   (const enum slot[]){SLOT_MIX_BA, SLOT_MIX_BA},
                   (const int64_t[]){per, per}, (const int64_t[]){0, r->n_v});
    } else {
        add_linear(b, "linear_attn.in_proj_b", SLOT_MIX_BA, N_SLOTS, 0, r->n_v);
        add_linear(b, "linear_attn.in_proj_a", SLOT_MIX_BA, N_SLOTS, r->n_v, r->n_v);
    }
    add_conv(b, "linear_attn.conv1d.weight");
    add_all(b, "linear_attn.A_log", "", SLOT_A_LOG, TENSOR_RATE);
    add_all(b, "linear_attn.dt_bias", "", SLOT_DT, TENSOR_BIAS);
    add_all(b, "linear_attn.norm.weight", "", SLOT_MIX_NORM, TENSOR_FACTOR);
    add_matrix(b, "linear_attn.out_proj", SLOT_MIX_OUT);
}

/* Adds W_k, whose rows are also those of W_v. */
static void add_k_as_v(struct builder *b, const char *stem, int64_t n_rows)
{
    struct tensor_spec *t = add_spec(b, stem, ".weight");
    add_part(t, whole(SLOT_WKV, 0, n_rows));
    add_part(t, whole(SLOT_WKV, n_rows, n_rows));
    finish(b, t, TENSOR_MATRIX);
    t->rows = n_rows;
}

/* Adds the tensors of latent attention.  Folders have W_k and W_v of all heads in one. */
static void add_latent(struct builder *b)
{
    const struct model_config *c = b->c;
    int64_t rope = c->d_rope, rank = config_kv_rank(c);
    bool of_low = c->latent.q_rank > 0;
    if (of_low) {
        add_matrix(b, "self_attn.q_a_proj", SLOT_QA);
        add_norm(b, "self_attn.q_a_layernorm", SLOT_Q_NORM, N_SLOTS);
    }
    add_groups(b, of_low ? "self_attn.q_b_proj" : "self_attn.q_proj", c->n_heads, 2,
               (const enum slot[]){SLOT_WQ, SLOT_WQ},
               (const int64_t[]){c->latent.d_nope, rope},
               (const int64_t[]){c->n_heads * rope, 0});
    add_groups(b, "self_attn.kv_a_proj_with_mqa", 1, 2,
               (const enum slot[]){SLOT_WKV, SLOT_WKV}, (const int64_t[]){rank, rope},
               (const int64_t[]){rope, 0});
    add_norm(b, "self_attn.kv_a_layernorm", SLOT_K_NORM, N_SLOTS);
    add_matrix(b, "self_attn.k_b_proj", SLOT_UK);
    add_matrix(b, "self_attn.v_b_proj", SLOT_UV);
}

static void add_qkv(struct builder *b, const struct names *n)
{
    const struct model_config *c = b->c;
    int64_t q = q_dim(c, b->layer), kv = kv_dim(c, b->layer);
    bool reads = b->layer >= config_n_keeping(c);
    if (n->layout == QKV_SEPARATE) {
        if (c->attn_gated)
            add_gated_q(b, n->qkv[0]);
        else
            add_linear(b, n->qkv[0], SLOT_WQ, SLOT_BQ, 0, q);
        if (!reads && c->v_is_k && !layer_set_has(&c->windowed, b->layer)) {
            add_k_as_v(b, n->qkv[1], kv);
        } else if (!reads) {
            add_linear(b, n->qkv[1], SLOT_WKV, SLOT_BKV, 0, kv);
            add_linear(b, n->qkv[2], SLOT_WKV, SLOT_BKV, kv, kv);
        }
    } else {
        add_fused(b, n->layout, n->qkv[0], false);
        if (c->qkv_bias)
            add_fused(b, n->layout, n->qkv[0], true);
    }
    if (c->qk_norm) {
        add_norm(b, n->q_norm, SLOT_Q_NORM, N_SLOTS);
        if (!reads)
            add_norm(b, n->k_norm, SLOT_K_NORM, N_SLOTS);
    }
    if (c->attn_sinks)
        add_all(b, SINKS_NAME, "", SLOT_SINKS, TENSOR_BIAS);
}

/* Adds a matrix of expert e, whose rows go to [dst_row, + n_rows) of slot w. */
static void add_expert_matrix(struct builder *b, const struct names *n, int e,
                              const char *stem, enum slot w, int64_t dst_row,
                              int64_t n_rows)
{
    char name[TENSOR_NAME_BYTES];
    snprintf(name, sizeof name, "%s.%d.%s", n->expert, e, stem);
    add_linear(b, name, w, w == SLOT_UP ? SLOT_B_UP : SLOT_B_DOWN, dst_row, n_rows);
}

/* Adds the three matrices of an MLP of n_ffn columns without biases. */
static void add_gated(struct builder *b, const char *stem, enum slot up, enum slot down,
                      int64_t n_ffn)
{
    char name[TENSOR_NAME_BYTES];
    snprintf(name, sizeof name, "%s.gate_proj", stem);
    add_linear(b, name, up, N_SLOTS, 0, n_ffn);
    snprintf(name, sizeof name, "%s.up_proj", stem);
    add_linear(b, name, up, N_SLOTS, n_ffn, n_ffn);
    snprintf(name, sizeof name, "%s.down_proj", stem);
    add_matrix(b, name, down);
}

static void add_experts(struct builder *b, const struct names *n)
{
    const struct model_config *c = b->c;
    add_linear(b, n->router, SLOT_ROUTER, c->router_sigmoid ? N_SLOTS : SLOT_B_ROUTER, 0,
               c->n_experts);
    if (c->router_sigmoid)
        add_all(b, ROUTER_BIAS_NAME, "", SLOT_B_ROUTER, TENSOR_BIAS);
    for (int e = 0; e < c->n_experts; e++) {
        int64_t first = (int64_t)e * 2 * c->n_ffn;
        add_expert_matrix(b, n, e, n->gate, SLOT_UP, first, c->n_ffn);
        add_expert_matrix(b, n, e, n->up, SLOT_UP, first + c->n_ffn, c->n_ffn);
        add_expert_matrix(b, n, e, n->down, SLOT_DOWN, (int64_t)e * c->n_embd, c->n_embd);
    }
    if (c->n_shared_ffn == 0)
        return;
    add_gated(b,
              c->shared_is_gated                   ? "mlp.shared_expert"
              : c->family == FAMILY_GRANITE_HYBRID ? "shared_mlp"
                                                   : "mlp.shared_experts",
              SLOT_SHARED_UP, SLOT_SHARED_DOWN, c->n_shared_ffn);
    if (c->shared_is_gated)
        add_matrix(b, "mlp.shared_expert_gate", SLOT_SHARED_GATE);
}

static void add_mlp(struct builder *b, const struct names *n)
{
    const struct model_config *c = b->c;
    bool has_experts = config_has_experts(c, b->layer);
    if (has_experts)
        add_experts(b, n);
    if (c->dense_beside) {
        add_all(b, "router.scale", "", SLOT_ROUTER_SCALE, TENSOR_FACTOR);
        add_all(b, "router.per_expert_scale", "", SLOT_EXPERT_SCALE, TENSOR_FACTOR);
        add_norm(b, "post_feedforward_layernorm_1", SLOT_DENSE_POST_W, N_SLOTS);
        add_norm(b, "pre_feedforward_layernorm_2", SLOT_EXPERTS_W, N_SLOTS);
        add_norm(b, "post_feedforward_layernorm_2", SLOT_EXPERTS_POST_W, N_SLOTS);
    }
    if (c->n_experts > 0 && (!has_experts || c->dense_beside))
        add_gated(b, "mlp", SLOT_DENSE_UP, SLOT_DENSE_DOWN, c->n_dense_ffn);
    if (c->n_experts > 0)
        return;
    if (n->gate != NULL && c->mlp_gated) {
        int64_t n_ffn = config_ffn(c, b->layer);
        add_linear(b, n->gate, SLOT_UP, SLOT_B_UP, 0, n_ffn);
        add_linear(b, n->up, SLOT_UP, SLOT_B_UP, n_ffn, n_ffn);
    } else {
        add_linear(b, n->up, SLOT_UP, SLOT_B_UP, 0, slot_rows(c, b->layer, SLOT_UP));
    }
    add_linear(b, n->down, SLOT_DOWN, SLOT_B_DOWN, 0, c->n_embd);
}

static void add_layer(struct builder *b, const struct names *n)
{
    add_norm(b, n->norm1, SLOT_NORM1_W, SLOT_NORM1_B);
    if (config_is_recurrent(b->c, b->layer) && b->c->family == FAMILY_LFM2) {
        add_short_conv(b);
    } else if (config_is_recurrent(b->c, b->layer) &&
               b->c->family == FAMILY_GRANITE_HYBRID) {
        add_mamba(b);
    } else if (config_is_recurrent(b->c, b->layer)) {
        add_recurrence(b);
    } else {
        if (config_is_latent(b->c))
            add_latent(b);
        else
            add_qkv(b, n);
        add_linear(b, n->out, SLOT_WO, SLOT_BO, 0, b->c->n_embd);
    }
    if (n->post1 != NULL)
        add_norm(b, n->post1, SLOT_POST1_W, N_SLOTS);
    if (b->c->block != BLOCK_PARALLEL)
        add_norm(b, n->norm2, SLOT_NORM2_W, SLOT_NORM2_B);
    add_mlp(b, n);
    if (n->post2 != NULL)
        add_norm(b, n->post2, SLOT_POST2_W, N_SLOTS);
    if (b->c->n_layer_embd > 0) {
        add_matrix(b, "per_layer_input_gate", SLOT_LAYER_GATE);
        add_matrix(b, "per_layer_projection", SLOT_LAYER_OUT);
        add_norm(b, "post_per_layer_input_norm", SLOT_LAYER_NORM, N_SLOTS);
    }
    if (b->c->out_scaled)
        add_all(b, "layer_scalar", "", SLOT_OUT_SCALE, TENSOR_FACTOR);
}

void tensor_list_make(struct tensor_list *out, const struct model_config *c)
{
    struct names n = names_of(c);
    *out = (struct tensor_list){.prefix = n.prefix};
    struct builder b = {.c = c, .list = out};
    /* A tied embedding table is the packed head, from which embedding rows are also read. */
    add_matrix(&b, n.embed, c->tie_word_embeddings ? SLOT_HEAD : SLOT_EMBED);
    if (n.positions != NULL && (c->position == POSITION_LEARNED || c->n_layer_embd > 0))
        add_matrix(&b, n.positions, SLOT_POSITIONS);
    if (c->n_layer_embd > 0) {
        add_matrix(&b, "model.per_layer_model_projection", SLOT_LAYER_IN);
        add_norm(&b, "model.per_layer_projection_norm", SLOT_LAYER_IN_NORM, N_SLOTS);
    }
    b.layer_name = n.layer;
    for (b.layer = 0; b.layer < c->n_layers; b.layer++)
        add_layer(&b, &n);
    b.layer_name = NULL;
    b.layer = 0;
    add_norm(&b, n.final_norm, SLOT_FINAL_NORM_W, SLOT_FINAL_NORM_B);
    if (!c->tie_word_embeddings)
        add_linear(&b, HEAD_NAME, SLOT_HEAD, SLOT_HEAD_BIAS, 0, c->vocab_size);
    else if (c->head_bias)
        add_bias(&b, HEAD_NAME, SLOT_HEAD_BIAS, 0, c->vocab_size);
    for (int i = 0; i < c->n_behind; i++) {
        enum slot s = i == 0 ? SLOT_DENSE_1 : SLOT_DENSE_2;
        /* the names of GGUF files; a folder has each in a folder of its own, as "linear" */
        add_matrix(&b, i == 0 ? "dense_2" : "dense_3", s);
    }
}

void tensor_list_free(struct tensor_list *l)
{
    free(l->items);
    *l = (struct tensor_list){0};
}

const char *tensor_head_name(void)
{
    return HEAD_NAME ".weight";
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* Returns whether a tensor is ignored: it holds rotations or a mask, which are computed here. */
bool tensor_is_ignored(const char *name)
{
    static const char *const ends[] = {".rotary_emb.inv_freq", ".rotary_emb.cos_cached",
                                       ".rotary_emb.sin_cached", ".attn.masked_bias",
                                       ".self_attn.masked_bias"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (ends_with(name, ends[i]))
            return true;
    return false;
}
