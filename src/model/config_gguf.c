/* config_gguf.c - a GGUF file's metadata to struct model_config.
 *
 * The description is filled from keys like "llama.embedding_length".  It is then written as a
 * config.json and parsed again, so that every check of config.c applies.  A key of the architecture
 * that no reader asked for is refused unless it changes no result, as in config_fields.c.
 *
 * The tensors tell whether the embeddings are tied, and how many rows the embedding table has. */
#include "model/config_gguf.h"

#include "base/check.h"
#include "base/file.h"
#include "base/minmax.h"
#include "checkpoint/gguf.h"
#include "model/config_family.h"
#include "tensor/ops.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUPPORTED                                                                          \
    "llama (Mistral and Mixtral too), qwen2, qwen3, qwen3moe, phi2, phi3, gemma, gemma2, " \
    "gemma3, gemma-embedding, olmo2, granite, falcon, gpt-oss, qwen35, qwen35moe, "        \
    "qwen3next, cohere2, "                                                                 \
    "mistral3, glm4moe, lfm2, gemma4, granitehybrid, deepseek2 (GLM-4.7-Flash too)"

const char *config_gguf_families(void)
{
    return SUPPORTED;
}

/* Keys that change no result, or whose value must be the one that has no effect. */
static const struct {
    const char *key;
    bool any;     /* every value is accepted */
    double value; /* else the only value that is accepted */
} neutral[] = {
    {"vocab_size", true, 0}, /* the number of rows of the embedding table decides */
    {"tensor_data_layout", true, 0},
    {"rope.scaling.finetuned", true, 0},
    {"rope.scaling.original_context_length", true, 0},
    {"expert_count", false, 0},
    {"expert_used_count", false, 0},
    {"attention.causal", false, 1},
    {"attention.clamp_kqv", false, 0},
    {"attention.max_alibi_bias", false, 0},
    {"attention.scale", false, 0},
    {"attn_logit_softcapping", false, 0},
    {"final_logit_softcapping", false, 0},
    {"logit_scale", false, 1},
    {"embedding_scale", false, 1},
    {"residual_scale", false, 1},
    {"rope.scaling.attn_factor", false, 1},
    {"rope.scale_linear", false, 1},
};

struct meta {
    const struct gguf_files *files;
    const struct gguf *g;
    char arch[64];
    const char *read[48];
    int n_read;
    struct err *err;
    int rc;
};

/* --- values; the first error is kept ------------------------------------------------------ */

static const struct gguf_value *look(struct meta *m, const char *key)
{
    char full[160];
    snprintf(full, sizeof full, "%s.%s", m->arch, key);
    for (int i = 0; i < m->n_read; i++)
        if (strcmp(m->read[i], key) == 0)
            return gguf_find(m->g, full);
    CHECK((size_t)m->n_read < sizeof m->read / sizeof m->read[0]);
    m->read[m->n_read++] = key;
    return gguf_find(m->g, full);
}

static void refuse(struct meta *m, const char *key, const char *why)
{
    if (m->rc == 0)
        m->rc = err_set(m->err, ERR_UNSUPPORTED, "'%s.%s' %s", m->arch, key, why);
}

/* Reads an integer, or an array of equal integers, one per layer. dflt below 0: it is required. */
static int32_t integer(struct meta *m, const char *key, int32_t dflt)
{
    const struct gguf_value *v = look(m, key);
    int64_t n = dflt, other;
    if (m->rc != 0 || (v == NULL && dflt >= 0))
        return dflt;
    if (v == NULL)
        m->rc = err_set(m->err, ERR_FORMAT, "'%s.%s' is missing", m->arch, key);
    else if (!gguf_int(v, 0, &n) || n < 0 || n > INT32_MAX)
        m->rc = err_set(m->err, ERR_FORMAT, "'%s.%s' must be a number from 0 to %d",
                        m->arch, key, INT32_MAX);
    for (uint64_t i = 1; m->rc == 0 && i < v->n; i++)
        if (!gguf_int(v, i, &other) || other != n)
            refuse(m, key, "differs from layer to layer, which is not supported");
    return (int32_t)n;
}

/* Reads the integer of layer l from an array with one for each layer, or the only one. */
static int32_t integer_of(struct meta *m, const char *key, int l, int32_t dflt)
{
    const struct gguf_value *v = look(m, key);
    int64_t n = dflt;
    if (m->rc == 0 && v != NULL &&
        ((v->is_array && v->n <= (uint64_t)l) ||
         !gguf_int(v, v->is_array ? (uint64_t)l : 0, &n) || n < 0 || n > INT32_MAX))
        m->rc = err_set(m->err, ERR_FORMAT, "'%s.%s' must be numbers from 0 to %d", m->arch,
                        key, INT32_MAX);
    return (int32_t)n;
}

static double real(struct meta *m, const char *key, double dflt)
{
    const struct gguf_value *v = look(m, key);
    double x = dflt;
    if (m->rc == 0 && v != NULL && (v->is_array || !gguf_real(v, 0, &x) || !isfinite(x)))
        m->rc = err_set(m->err, ERR_FORMAT, "'%s.%s' must be a real number", m->arch, key);
    return x;
}

/* --- positions ---------------------------------------------------------------------------- */

/* Stretches every wavelength by `factor` ("linear" scaling). */
static void stretch_all(struct meta *m, struct model_config *c, double factor)
{
    if (m->rc == 0 && !(factor >= 1))
        refuse(m, "rope.scaling.factor", "must be at least 1");
    if (m->rc != 0 || factor == 1)
        return;
    c->rope_scaling.kind = ROPE_SCALING_FACTORS;
    for (int i = 0; i < c->d_rope / 2; i++)
        c->rope_scaling.factors[i] = (float)factor;
}

/* Reads YaRN's scaling. llama.cpp ignores yarn_attn_factor, where its converter writes the folder's
 * attention_factor. */
static void read_yarn(struct meta *m, struct model_config *c, double factor)
{
    struct yarn y = {
        .factor = factor,
        .original_ctx = integer(m, "rope.scaling.original_context_length", c->max_ctx),
        .beta_fast = real(m, "rope.scaling.yarn_beta_fast", 32),
        .beta_slow = real(m, "rope.scaling.yarn_beta_slow", 1),
        /* Files do not state it: gpt-oss has a ramp that begins and ends between dimensions. */
        .whole = c->family != FAMILY_GPT_OSS};
    if (real(m, "rope.scaling.yarn_ext_factor", 1) != 1)
        refuse(m, "rope.scaling.yarn_ext_factor", "other than 1 is not supported");
    if (m->rc == 0 && !(factor >= 1 && y.original_ctx > 0 && y.beta_slow > 0 &&
                        y.beta_fast >= y.beta_slow))
        refuse(m, "rope.scaling.factor", "and its parameters make no YaRN scaling");
    if (m->rc != 0)
        return;
    config_yarn_factors(c, &y);
    bool latent = family_is_latent(c->family);
    double of_all = c->family == FAMILY_MINISTRAL3 || latent
                        ? real(m, "rope.scaling.yarn_log_multiplier", 0)
                        : 0;
    /* Files of deepseek2 have a tenth of mscale_all_dim, and mscale is taken to be equal to it. */
    if (latent)
        c->attn_scale = config_latent_scale(c, factor, 10 * of_all);
    double magnitude = latent && of_all != 0 ? 1
                                             : config_yarn_magnitude(factor, 1) /
                                                   config_yarn_magnitude(factor, of_all);
    c->rope_magnitude = (float)(real(m, "rope.scaling.yarn_attn_factor", magnitude) *
                                real(m, "rope.scaling.attn_factor", 1));
}

/* Reads the kind of scaling. As in llama.cpp, a factor without a kind is linear. */
static void read_scaling(struct meta *m, struct model_config *c)
{
    const struct gguf_value *v = look(m, "rope.scaling.type");
    double factor = real(m, "rope.scaling.factor", 1);
    const char *s = "linear";
    size_t n = 6;
    if (m->rc == 0 && v != NULL && !gguf_string(v, &s, &n))
        m->rc = err_set(m->err, ERR_FORMAT, "'%s.rope.scaling.type' is not a string",
                        m->arch);
    bool is_long = n == 8 && memcmp(s, "longrope", 8) == 0;
    if (n == 6 && memcmp(s, "linear", 6) == 0)
        stretch_all(m, c, factor);
    else if (n == 4 && memcmp(s, "yarn", 4) == 0)
        read_yarn(m, c, factor);
    else if (is_long && gguf_files_find(m->files, ROPE_LONG_NAME, NULL) == NULL)
        refuse(m, "rope.scaling.type",
               "is longrope, and its tensors of factors are missing");
    else if (m->rc == 0 && !is_long && !(n == 4 && memcmp(s, "none", 4) == 0))
        m->rc = err_set(
            m->err, ERR_UNSUPPORTED,
            "'%s.rope.scaling.type': '%.*s' is not supported; none, linear, yarn "
            "and longrope are",
            m->arch, (int)MIN(n, 40), s);
}

/* Reads a tensor of factors: each frequency is divided by its own number. Returns whether the file
 * has it. */
static bool read_factors(struct meta *m, struct model_config *c, const char *name,
                         float *out)
{
    const struct gguf_file *in = NULL;
    const struct gguf_tensor *t = gguf_files_find(m->files, name, &in);
    if (m->rc != 0 || t == NULL)
        return false;
    if (t->type != GGUF_TYPE_F32 || t->n_dims != 1 ||
        t->shape[0] != (uint64_t)(c->d_rope / 2) || c->rope_scaling.kind != 0) {
        m->rc = err_set(m->err, ERR_UNSUPPORTED,
                        "tensor '%s' must hold %d F32 numbers, beside no other scaling",
                        name, c->d_rope / 2);
        return false;
    }
    uint8_t bytes[sizeof c->rope_scaling.factors];
    int rc = file_read_at(in->fd, bytes, (size_t)t->shape[0] * sizeof(float), t->begin);
    if (rc != 0)
        m->rc = err_set(m->err, rc, "tensor '%s': %s", name, strerror(-rc));
    else
        gguf_type(t->type)->decode(bytes, out, (size_t)t->shape[0]);
    return rc == 0;
}

/* Reads the tensors of factors: one set (Llama 3.1), or one for contexts up to the original one and
 * one for longer ones (LongRoPE). */
static void read_all_factors(struct meta *m, struct model_config *c)
{
    struct rope_scaling *s = &c->rope_scaling;
    bool one = read_factors(m, c, ROPE_FACTORS_NAME, s->factors);
    bool of_short = read_factors(m, c, ROPE_SHORT_NAME, s->short_factors);
    bool of_long = read_factors(m, c, ROPE_LONG_NAME, s->factors);
    if (m->rc == 0 && (of_short != of_long || (one && of_long)))
        m->rc = err_set(m->err, ERR_UNSUPPORTED, "'%s' needs '%s', and no '%s' beside it",
                        ROPE_LONG_NAME, ROPE_SHORT_NAME, ROPE_FACTORS_NAME);
    if (m->rc != 0 || !(one || of_long))
        return;
    s->kind = ROPE_SCALING_FACTORS;
    if (of_long) {
        s->short_ctx = integer(m, "rope.scaling.original_context_length", -1);
        c->rope_magnitude = (float)real(m, "rope.scaling.attn_factor", 1);
    }
}

static void read_positions(struct meta *m, struct model_config *c)
{
    c->rope_theta = real(m, "rope.freq_base", 10000);
    c->d_rope = integer(m, "rope.dimension_count", c->d_head);
    if (m->rc == 0 &&
        (c->d_rope < 2 || c->d_rope > c->d_head || c->d_head > ATTENTION_MAX_D_HEAD))
        refuse(m, "rope.dimension_count",
               "must be from 2 to the dimensions of a head, which are at most 576");
    /* The converter that makes GGUF files permutes the rows of whole heads. This cannot be undone
     * for heads of which only a part is rotated. */
    if (m->rc == 0 && c->family == FAMILY_LLAMA && c->d_rope != c->d_head)
        refuse(m, "rope.dimension_count", "differs from the size of a head");
    read_scaling(m, c);
    read_all_factors(m, c);
}

/* --- families ----------------------------------------------------------------------------- */

/* Reads the KV heads of each layer.  In files of lfm2 and granitehybrid a layer without any is
 * recurrent. */
static void read_kv_heads(struct meta *m, struct model_config *c)
{
    const struct gguf_value *v = look(m, "attention.head_count_kv");
    int64_t n = 0;
    if ((c->family != FAMILY_LFM2 && c->family != FAMILY_GRANITE_HYBRID) || v == NULL ||
        !v->is_array) {
        c->n_kv_heads = integer(m, "attention.head_count_kv", c->n_heads);
        return;
    }
    c->n_kv_heads = 0;
    for (int l = 0; m->rc == 0 && l < c->n_layers; l++) {
        if (!gguf_int(v, (uint64_t)l, &n) || n < 0 || n > INT32_MAX ||
            (n > 0 && c->n_kv_heads > 0 && n != c->n_kv_heads))
            refuse(m, "attention.head_count_kv",
                   "must be an array with 0 or an equal number for each layer");
        if (n == 0)
            layer_set_add(&c->recurrent, l);
        else
            c->n_kv_heads = (int32_t)n;
    }
}

/* Reads the sizes of latent attention. */
static void read_latent(struct meta *m, struct model_config *c)
{
    int32_t rank = integer(m, "attention.kv_lora_rank", -1);
    int32_t rope = integer(m, "rope.dimension_count", -1);
    int32_t k = integer(m, "attention.key_length_mla", 0);
    c->latent.d_v = integer(m, "attention.value_length_mla", 0);
    c->latent.q_rank = integer(m, "attention.q_lora_rank", 0);
    look(m, "attention.value_length");
    if (m->rc == 0 && (k <= rope || c->latent.d_v < 1))
        refuse(
            m, "attention.key_length_mla",
            "is missing or too small: an older converter made the file; convert the model "
            "again");
    if (m->rc == 0 && (c->n_kv_heads != 1 || (int64_t)rank + rope != c->d_head))
        refuse(m, "attention.key_length",
               "is not the latent and what is rotated, in one head");
    c->latent.d_nope = k - rope;
    c->attn_scale = config_latent_scale(
        &(struct model_config){.d_rope = rope, .latent = c->latent}, 1, 0);
}

static void read_sizes(struct meta *m, struct model_config *c)
{
    c->n_layers = integer(m, "block_count", -1);
    if (family_is_hybrid(c->family) || c->family == FAMILY_GLM4_MOE ||
        family_is_latent(c->family))
        c->n_guessing = integer(m, "nextn_predict_layers", 0);
    c->n_layers -= c->n_guessing;
    c->n_embd = integer(m, "embedding_length", -1);
    c->n_heads = integer(m, "attention.head_count", -1);
    bool of_experts = c->family == FAMILY_QWEN3_5_MOE || c->family == FAMILY_QWEN3_NEXT;
    if (c->family == FAMILY_GEMMA4) { /* read_gemma4 checks the other layers */
        c->n_kv_heads = integer_of(m, "attention.head_count_kv", c->n_layers - 1,
                                   c->n_heads);
        c->n_ffn = integer_of(m, "feed_forward_length", 0, 0);
    } else {
        read_kv_heads(m, c);
        c->n_ffn = integer(m, "feed_forward_length", of_experts ? 0 : -1);
    }
    c->max_ctx = integer(m, "context_length", -1);
    if (m->rc == 0 && (c->n_heads < 1 || c->n_kv_heads < 1 || c->n_embd < 1))
        refuse(m, "attention.head_count", "and the width must be positive");
    if (m->rc != 0)
        return;
    c->d_head = integer(m, "attention.key_length", c->n_embd / c->n_heads);
    if (m->rc == 0 && c->d_head < 1)
        refuse(m, "attention.key_length", "must be positive");
    if (family_is_latent(c->family))
        read_latent(m, c);
    else if (integer(m, "attention.value_length", c->d_head) != c->d_head)
        refuse(m, "attention.value_length", "differs from 'attention.key_length'");
}

static void read_embeddings(struct meta *m, struct model_config *c)
{
    const struct gguf_tensor *t = gguf_files_find(m->files, "token_embd.weight", NULL);
    if (m->rc == 0 && (t == NULL || t->n_dims != 2 || t->shape[0] > INT32_MAX))
        m->rc = err_set(m->err, ERR_FORMAT,
                        "the tensor 'token_embd.weight' is missing or not a matrix");
    else if (m->rc == 0)
        c->vocab_size = (int32_t)t->shape[0];
    c->tie_word_embeddings = gguf_files_find(m->files, "output.weight", NULL) == NULL;
}

/* Reads which layers have the window. The file has an array with a value per layer, or a number n:
 * every n-th layer sees all tokens, and the others have the window. If the file does not say, n is
 * `apart`. */
static void read_window_layers(struct meta *m, struct model_config *c, int64_t apart)
{
    const struct gguf_value *v = look(m, "attention.sliding_window_pattern");
    bool per_layer = v != NULL && v->is_array;
    int64_t on = 0;
    bool flag;
    if (m->rc == 0 && per_layer && v->n != (uint64_t)c->n_layers)
        refuse(m, "attention.sliding_window_pattern", "must have one entry per layer");
    if (m->rc == 0 && v != NULL && !per_layer &&
        (!gguf_int(v, 0, &apart) || apart < 1 || apart > LAYER_SET_MAX))
        refuse(m, "attention.sliding_window_pattern", "must be a number of layers");
    for (int l = 0; m->rc == 0 && l < c->n_layers && l < LAYER_SET_MAX; l++) {
        if (per_layer && gguf_bool(v, (uint64_t)l, &flag))
            on = flag;
        else if (per_layer && !gguf_int(v, (uint64_t)l, &on))
            refuse(m, "attention.sliding_window_pattern", "must be an array of booleans");
        if (per_layer ? on != 0 : (l + 1) % apart != 0)
            layer_set_add(&c->windowed, l);
    }
}

/* Reads the layers without experts, whose MLP has n_mlp columns, and the router.  Files state the
 * biases and norms of attention by having their tensors. */
static void read_glm4_moe(struct meta *m, struct model_config *c, int32_t n_mlp)
{
    char name[64];
    c->qkv_bias = gguf_files_find(m->files, "blk.0.attn_q.bias", NULL) != NULL;
    if (gguf_files_find(m->files, "blk.0.attn_q_norm.weight", NULL) != NULL)
        c->qk_norm = QK_NORM_HEADS;
    c->n_dense_layers = integer(m, "leading_dense_block_count", 0);
    c->n_dense_ffn = n_mlp;
    int32_t n_shared = integer(m, "expert_shared_count", 0);
    if (c->n_ffn < 1 || n_shared > MATMUL_MAX_K / MAX(c->n_ffn, 1))
        refuse(m, "expert_feed_forward_length", "and 'expert_shared_count' make no width");
    else
        c->n_shared_ffn = n_shared * c->n_ffn;
    const struct gguf_value *normed = look(m, "expert_weights_norm");
    if (family_is_latent(c->family))
        c->experts_normed = false;
    if (normed != NULL && !gguf_bool(normed, 0, &c->experts_normed))
        refuse(m, "expert_weights_norm", "must be a boolean");
    c->experts_scale = (float)real(m, "expert_weights_scale", 1);
    c->expert_groups.n = integer(m, "expert_group_count", 0);
    c->expert_groups.used = integer(m, "expert_group_used_count", 0);
    bool latent = family_is_latent(c->family);
    /* Older files of latent attention do not say; the bias tells that there are sigmoids. */
    snprintf(name, sizeof name, "blk.%d.exp_probs_b.bias", c->n_layers - 1);
    bool has_bias = gguf_files_find(m->files, name, NULL) != NULL;
    int32_t of_shares = integer(m, "expert_gating_func", latent && !has_bias ? 1 : 2);
    if (latent && of_shares == 2)
        c->family = FAMILY_GLM4_LITE;
    else if (of_shares != (latent ? 1 : 2))
        refuse(m, "expert_gating_func",
               "only 2 (sigmoid) is supported, and 1 (softmax) with latent attention");
}

/* Reads Gemma 4, whose layers with a window have heads of their own.  In layers without one W_k is
 * W_v if the file has no W_v. */
static void read_gemma4(struct meta *m, struct model_config *c, int32_t n_mlp)
{
    char name[64];
    int local = 0, full;
    c->embed_scale = sqrtf((float)c->n_embd);
    c->rope_local_theta = real(m, "rope.freq_base_swa", 10000);
    c->logit_cap = (float)real(m, "final_logit_softcapping", 0);
    read_window_layers(m, c, 6);
    c->local_d_head = integer(m, "attention.key_length_swa", -1);
    if (integer(m, "attention.value_length_swa", c->local_d_head) != c->local_d_head ||
        integer(m, "rope.dimension_count_swa", c->local_d_head) != c->local_d_head)
        refuse(m, "attention.key_length_swa", "differs from V's, or from what is rotated");
    c->n_reading = integer(m, "attention.shared_kv_layers", 0);
    c->n_layer_embd = integer(m, "embedding_length_per_layer_input", 0);
    if (m->rc != 0 || c->n_layers < 1 || c->n_layers > LAYER_SET_MAX)
        return;
    while (local + 1 < c->n_layers && !layer_set_has(&c->windowed, local))
        local++;
    c->local_kv_heads = integer_of(m, "attention.head_count_kv", local, c->n_heads);
    full = layer_set_last_out(&c->windowed, config_n_keeping(c));
    snprintf(name, sizeof name, "blk.%d.attn_v.weight", full);
    c->v_is_k = gguf_files_find(m->files, name, NULL) == NULL;
    c->dense_beside = c->n_experts > 0;
    c->n_dense_ffn = c->dense_beside ? n_mlp : 0;
    int32_t last = integer_of(m, "feed_forward_length", c->n_layers - 1, n_mlp);
    c->wide_reading = c->n_reading > 0 && last == 2 * n_mlp;
    for (int l = 0; m->rc == 0 && l < c->n_layers; l++) {
        int32_t ffn = c->wide_reading && l >= config_n_keeping(c) ? 2 * n_mlp : n_mlp;
        if (integer_of(m, "attention.head_count_kv", l, c->n_heads) !=
            config_kv_heads(c, l))
            refuse(m, "attention.head_count_kv", "differs among layers of one kind");
        if (integer_of(m, "feed_forward_length", l, n_mlp) != ffn)
            refuse(m, "feed_forward_length", "differs among layers of one kind");
    }
}

/* Reads the experts, which make a llama file one of Mixtral. */
static void read_experts(struct meta *m, struct model_config *c)
{
    bool own_width = c->family == FAMILY_QWEN3_MOE || c->family == FAMILY_GPT_OSS ||
                     c->family == FAMILY_GLM4_MOE || family_is_latent(c->family) ||
                     c->family == FAMILY_QWEN3_5_MOE || c->family == FAMILY_QWEN3_NEXT ||
                     (c->family == FAMILY_GEMMA4 && integer(m, "expert_count", 0) > 0);
    c->n_experts = integer(m, "expert_count", 0);
    c->n_experts_used = integer(m, "expert_used_count", c->n_experts > 0 ? -1 : 0);
    if (c->n_experts > 0 && c->family == FAMILY_LLAMA)
        c->family = FAMILY_MIXTRAL;
    int32_t n_mlp = c->n_ffn;
    if (own_width)
        c->n_ffn = integer(m, "expert_feed_forward_length", -1);
    c->experts_normed = c->n_experts > 0;
    if (c->n_experts > 0 && c->family != FAMILY_MIXTRAL &&
        c->family != FAMILY_GRANITE_HYBRID && !own_width)
        refuse(m, "expert_count", "is not supported in this architecture");
    if (c->family == FAMILY_GLM4_MOE || family_is_latent(c->family))
        read_glm4_moe(m, c, n_mlp);
    if (c->family == FAMILY_GEMMA4)
        read_gemma4(m, c, n_mlp);
}

static void read_gemma(struct meta *m, struct model_config *c)
{
    (void)m;
    c->embed_scale = sqrtf((float)c->n_embd);
}

static void read_gemma3(struct meta *m, struct model_config *c)
{
    read_gemma(m, c);
    c->rope_local_theta = real(m, "rope.freq_base_swa", 10000);
    /* The files do not state the factor of scores.  It is 1 / sqrt(d_head) in all sizes but 27B,
     * whose files llama.cpp knows by the number of layers. */
    if (m->rc == 0 && c->n_layers == 62)
        c->attn_scale = (float)(1.0 / sqrt((double)c->n_embd / c->n_heads));
}

/* Reads EmbeddingGemma.  The layers behind the pooling are there if the file's converter was asked
 * for them: their tensors tell. */
static void read_gemma_embedding(struct meta *m, struct model_config *c)
{
    static const char *const dense[] = {"dense_2.weight", "dense_3.weight"};
    read_gemma3(m, c);
    c->both_ways = true;
    if (c->sliding_window > 0)
        c->sliding_window = c->sliding_window / 2 + 1;
    look(m, "attention.causal");
    look(m, "dense_2_feat_in");
    look(m, "dense_2_feat_out");
    look(m, "dense_3_feat_in");
    look(m, "dense_3_feat_out");
    for (int i = 0; m->rc == 0 && i < CONFIG_MAX_DENSE; i++) {
        const struct gguf_tensor *t = gguf_files_find(m->files, dense[i], NULL);
        if (t == NULL || t->n_dims != 2 || t->shape[0] > INT32_MAX)
            break;
        c->dense[c->n_behind++] = (int32_t)t->shape[0];
    }
}

static void read_gemma2(struct meta *m, struct model_config *c)
{
    read_gemma(m, c);
    c->attn_cap = (float)real(m, "attn_logit_softcapping", 50);
    c->logit_cap = (float)real(m, "final_logit_softcapping", 30);
    /* As for Gemma 3: files do not state the factor of scores, which differs in 27B alone. */
    if (m->rc == 0 && c->n_layers == 46)
        c->attn_scale = (float)(1.0 / sqrt((double)c->n_embd / c->n_heads));
}

/* Makes an olmo2 file with windows one of OLMo 3, whose layers with a window rotate without the
 * scaling of the others. */
static void read_olmo(struct meta *m, struct model_config *c)
{
    if (c->sliding_window == 0)
        return;
    c->family = FAMILY_OLMO3;
    double local = real(m, "rope.freq_base_swa", c->rope_theta);
    if (c->rope_scaling.kind != ROPE_SCALING_NONE || local != c->rope_theta)
        c->rope_local_theta = local;
}

/* Reads the growth of queries, and the context by which YaRN's positions count. */
static void read_ministral3(struct meta *m, struct model_config *c)
{
    c->query_growth = (float)real(m, "attention.temperature_scale", 0);
    c->query_ctx = integer(m, "rope.scaling.original_context_length", c->max_ctx);
}

static void read_cohere2(struct meta *m, struct model_config *c)
{
    c->logit_scale = (float)real(m, "logit_scale", 0.0625);
}

static void read_granite(struct meta *m, struct model_config *c)
{
    c->embed_scale = (float)real(m, "embedding_scale", 1);
    c->residual_scale = (float)real(m, "residual_scale", 1);
    c->attn_scale = (float)real(m, "attention.scale", 1);
    c->logit_scale = (float)(1.0 / real(m, "logit_scale", 1));
}

/* Reads which layers are recurrent: an array with an entry per layer, those that guess included,
 * or the distance between the layers of attention. */
static void read_recurrent_layers(struct meta *m, struct model_config *c)
{
    const struct gguf_value *v = look(m, "attention.recurrent_layers");
    int32_t apart = integer(m, "full_attention_interval", 4);
    bool on = false;
    if (m->rc == 0 && v != NULL && (!v->is_array || v->n < (uint64_t)c->n_layers))
        refuse(m, "attention.recurrent_layers", "must have one entry per layer");
    if (m->rc == 0 && apart < 1)
        refuse(m, "full_attention_interval", "must be positive");
    for (int l = 0; m->rc == 0 && l < c->n_layers && l < LAYER_SET_MAX; l++) {
        if (v != NULL && !gguf_bool(v, (uint64_t)l, &on))
            refuse(m, "attention.recurrent_layers", "must be an array of booleans");
        if (v != NULL ? on : (l + 1) % apart != 0)
            layer_set_add(&c->recurrent, l);
    }
}

/* Reads the sizes of recurrent layers. */
static void read_recurrence(struct meta *m, struct recurrence *r)
{
    r->d_k = integer(m, "ssm.state_size", -1);
    r->n_k = integer(m, "ssm.group_count", -1);
    r->n_v = integer(m, "ssm.time_step_rank", -1);
    int32_t inner = integer(m, "ssm.inner_size", -1);
    if (m->rc == 0 && (r->n_v < 1 || inner % r->n_v != 0))
        refuse(m, "ssm.inner_size", "must be a multiple of 'ssm.time_step_rank'");
    if (m->rc == 0)
        r->d_v = inner / r->n_v;
    r->n_conv = integer(m, "ssm.conv_kernel", -1);
}

/* Reads a model with recurrent layers.  block_count counts the layers that guess tokens, too. All
 * coordinates of a token of text are its position, so their sections change nothing. */
static void read_hybrid(struct meta *m, struct model_config *c)
{
    struct recurrence *r = &c->recurrence;
    read_recurrence(m, r);
    look(m, "rope.dimension_sections");
    read_recurrent_layers(m, c);
    if (c->n_experts > 0)
        c->n_shared_ffn = integer(m, "expert_shared_feed_forward_length", -1);
    r->tiled = c->family != FAMILY_QWEN3_NEXT && r->n_v != r->n_k;
    r->is_split = c->family == FAMILY_QWEN3_NEXT;
}

static void read_lfm2(struct meta *m, struct model_config *c)
{
    c->recurrence = config_short_conv(c->n_embd, integer(m, "shortconv.l_cache", -1));
}

/* Reads Granite 4, whose attention rotates nothing if "rope.scaling.finetuned" says so. */
static void read_granite_hybrid(struct meta *m, struct model_config *c)
{
    const struct gguf_value *rotates = look(m, "rope.scaling.finetuned");
    bool on = true;
    read_granite(m, c);
    read_recurrence(m, &c->recurrence);
    c->recurrence.kind = DELTA_MAMBA2;
    int32_t shared = integer(m, "expert_shared_feed_forward_length", 0);
    c->n_shared_ffn = c->n_experts > 0 ? shared : 0;
    if (m->rc == 0 && rotates != NULL && !gguf_bool(rotates, 0, &on))
        refuse(m, "rope.scaling.finetuned", "must be a boolean");
    c->rope_local_only = !on;
}

static void read_falcon(struct meta *m, struct model_config *c)
{
    if (gguf_files_find(m->files, "blk.0.attn_norm_2.weight", NULL) != NULL)
        c->block = BLOCK_PARALLEL_NORM2;
}

/* Each row has an architecture's name in files. `apart` is the distance between layers without a
 * window if a file with windows does not state it. `read` reads what only this architecture has. */
static const struct arch {
    const char *name;
    enum model_family family;
    int apart;
    void (*read)(struct meta *m, struct model_config *c);
} archs[] = {
    {"llama", FAMILY_LLAMA, 0, NULL},
    {"qwen2", FAMILY_QWEN2, 0, NULL},
    {"qwen3", FAMILY_QWEN3, 0, NULL},
    {"phi2", FAMILY_PHI, 0, NULL},
    {"phi3", FAMILY_PHI3, 0, NULL},
    {"gemma", FAMILY_GEMMA, 0, read_gemma},
    {"falcon", FAMILY_FALCON, 0, read_falcon},
    {"qwen3moe", FAMILY_QWEN3_MOE, 0, NULL},
    {"gemma3", FAMILY_GEMMA3, 6, read_gemma3},
    {"gemma-embedding", FAMILY_GEMMA3, 6, read_gemma_embedding},
    {"olmo2", FAMILY_OLMO2, 4, read_olmo},
    {"granite", FAMILY_GRANITE, 0, read_granite},
    {"gemma2", FAMILY_GEMMA2, 2, read_gemma2},
    {"gpt-oss", FAMILY_GPT_OSS, 2, NULL},
    {"qwen35", FAMILY_QWEN3_5, 0, read_hybrid},
    {"qwen35moe", FAMILY_QWEN3_5_MOE, 0, read_hybrid},
    {"qwen3next", FAMILY_QWEN3_NEXT, 0, read_hybrid},
    {"cohere2", FAMILY_COHERE2, 4, read_cohere2},
    {"mistral3", FAMILY_MINISTRAL3, 0, read_ministral3},
    {"glm4moe", FAMILY_GLM4_MOE, 0, NULL},
    {"lfm2", FAMILY_LFM2, 0, read_lfm2},
    {"gemma4", FAMILY_GEMMA4, 6, NULL},
    {"deepseek2", FAMILY_DEEPSEEK2, 0, NULL},
    {"granitehybrid", FAMILY_GRANITE_HYBRID, 0, read_granite_hybrid},
};

/* Reads what depends on the family: experts, windows, and the architecture's own fields. A model
 * with experts or a window may get another family (c->family). */
static void read_family(struct meta *m, const struct arch *a, struct model_config *c)
{
    c->sliding_window = integer(m, "attention.sliding_window",
                                c->family == FAMILY_GEMMA2 ? 4096 : 0);
    bool windows = c->sliding_window > 0;
    read_experts(m, c);
    if (windows && c->family == FAMILY_LLAMA)
        c->family = FAMILY_MISTRAL;
    else if (windows && a->apart == 0 && c->family != FAMILY_PHI3 &&
             c->family != FAMILY_MIXTRAL)
        refuse(m, "attention.sliding_window", "is not supported in this architecture");
    if (windows && a->apart > 0)
        read_window_layers(m, c, a->apart);
    else if (windows)
        c->windowed = layer_set_run(0, c->n_layers);
    if (a->read != NULL)
        a->read(m, c);
}

/* --- tokens that end a text --------------------------------------------------------------- */

static int32_t special_id(struct meta *m, const struct model_config *c, const char *name)
{
    char key[64];
    int64_t id = -1;
    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", name);
    const struct gguf_value *v = gguf_find(m->g, key);
    if (v == NULL || m->rc != 0)
        return -1;
    if (v->is_array || !gguf_int(v, 0, &id) || id < 0 || id >= c->vocab_size) {
        m->rc = err_set(m->err, ERR_FORMAT, "'%s' is none of the %d tokens", key,
                        c->vocab_size);
        return -1;
    }
    return (int32_t)id;
}

static void read_special(struct meta *m, struct model_config *c)
{
    static const char *const ends[] = {"eos", "eot", "eom"};
    c->bos_id = special_id(m, c, "bos");
    for (int i = 0; i < 3; i++) {
        int32_t id = special_id(m, c, ends[i]);
        if (m->rc == 0 && id >= 0)
            m->rc = config_add_eos(c, id, m->err);
    }
}

/* Reads how embeddings are pooled. A reranker's head has the rows of "no" and "yes" of the model's
 * own, so its labels are not needed. */
static void read_pooling(struct meta *m, struct model_config *c)
{
    int32_t n = integer(m, "pooling_type", POOLING_NONE);
    look(m, "classifier.output_labels");
    c->pooling = n < POOLING_OTHER ? (enum pooling)n : POOLING_OTHER;
}

/* --- keys that were not read -------------------------------------------------------------- */

static bool may_pass(const struct meta *m, const char *key, const struct gguf_value *v)
{
    int64_t n;
    bool on;
    double x = NAN;
    for (int i = 0; i < m->n_read; i++)
        if (strcmp(m->read[i], key) == 0)
            return true;
    if (gguf_int(v, 0, &n))
        x = (double)n;
    else if (gguf_bool(v, 0, &on))
        x = on;
    else
        gguf_real(v, 0, &x);
    for (size_t i = 0; i < sizeof neutral / sizeof neutral[0]; i++)
        if (strcmp(neutral[i].key, key) == 0)
            return neutral[i].any || (!v->is_array && x == neutral[i].value);
    return false;
}

static void refuse_unread(struct meta *m)
{
    size_t k = strlen(m->arch);
    for (size_t i = 0; m->rc == 0 && i < m->g->n_values; i++) {
        const struct gguf_value *v = &m->g->values[i];
        if (strncmp(v->key, m->arch, k) == 0 && v->key[k] == '.' &&
            !may_pass(m, v->key + k + 1, v))
            m->rc = err_set(m->err, ERR_UNSUPPORTED,
                            "'%.120s': this value is not known in %s models, and might "
                            "change results",
                            v->key, m->arch);
    }
}

/* --- the whole file ----------------------------------------------------------------------- */

static const struct arch *find_arch(struct meta *m)
{
    if (gguf_files_arch(m->files, m->arch, sizeof m->arch, m->err) == NULL) {
        m->rc = ERR_FORMAT;
        return NULL;
    }
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++)
        if (strcmp(archs[i].name, m->arch) == 0)
            return &archs[i];
    m->rc = err_set(m->err, ERR_UNSUPPORTED,
                    "architecture '%s' is not supported; supported are " SUPPORTED,
                    m->arch);
    return NULL;
}

/* Runs config.json's own reader, which checks every size. */
static void check_as_config_json(struct meta *m, struct model_config *c)
{
    if (m->rc != 0)
        return;
    char *text = config_write(c);
    int32_t d_head = c->d_head, n_guessing = c->n_guessing;
    struct recurrence r = c->recurrence; /* a config.json cannot say all of it */
    m->rc = config_parse(c, text, strlen(text), "its metadata, as a config.json", m->err);
    if (m->rc == 0 && c->d_head != d_head)
        refuse(m, "attention.key_length", "is not the width divided by the heads");
    c->recurrence = r;
    c->n_guessing = n_guessing;
    free(text);
}

int config_from_gguf(struct model_config *out, const struct gguf_files *files,
                     struct err *err)
{
    struct meta m = {.files = files, .g = &files->files[0].g, .err = err};
    const struct arch *a = find_arch(&m);
    config_family_init(out, a != NULL ? a->family : FAMILY_LLAMA);
    if (m.rc == 0) {
        read_sizes(&m, out);
        const char *key = out->norm < NORM_LAYER ? "attention.layer_norm_rms_epsilon"
                                                 : "attention.layer_norm_epsilon";
        double eps = real(&m, key, -1);
        out->norm_eps = (float)eps;
        if (m.rc == 0 && eps < 0)
            refuse(&m, key, "is missing");
        read_embeddings(&m, out);
        read_positions(&m, out);
        read_family(&m, a, out);
        read_special(&m, out);
        read_pooling(&m, out);
        refuse_unread(&m);
        check_as_config_json(&m, out);
    }
    if (m.rc != 0)
        err_wrap(err, "%s", files->files[0].path);
    return m.rc;
}

int config_load_gguf(struct model_config *out, const char *path, struct err *err)
{
    struct gguf_files files;
    int rc = gguf_files_open(&files, path, true, err);
    if (rc == 0)
        rc = config_from_gguf(out, &files, err);
    gguf_files_close(&files);
    return rc;
}
