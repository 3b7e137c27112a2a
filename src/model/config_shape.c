/* config_shape.c - the fields that each family fixes, the named shapes, and the count of
 * parameters. */
#include "model/config_family.h"

#include "tensor/ops.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void config_family_init(struct model_config *c, enum model_family family)
{
    /* The base is Llama; the cases below set the differences of other families. */
    *c = (struct model_config){
        .family = family,
        .weight_type = WEIGHT_UNSPECIFIED,
        .block = BLOCK_SEQUENTIAL,
        .norm = NORM_RMS,
        .act = ACT_SILU,
        .mlp_gated = true,
        .position = POSITION_ROPE,
        .embed_scale = 1,
        .residual_scale = 1,
        .rope_magnitude = 1,
        .experts_scale = 1,
        .logit_scale = 1,
        .bos_id = -1,
    };
    switch (family) {
    case FAMILY_QWEN2:
        c->qkv_bias = true;
        break;
    case FAMILY_GPT_OSS:
        c->act = ACT_SWIGLU_CLAMPED;
        c->qkv_bias = c->attn_out_bias = c->mlp_bias = c->router_bias = true;
        c->attn_sinks = c->experts_normed = true;
        break;
    case FAMILY_QWEN3:
    case FAMILY_QWEN3_MOE:
        c->qk_norm = QK_NORM_HEADS;
        break;
    case FAMILY_QWEN3_5:
    case FAMILY_QWEN3_5_MOE:
    case FAMILY_QWEN3_NEXT:
        c->norm = NORM_RMS_PLUS_ONE;
        c->qk_norm = QK_NORM_HEADS;
        c->attn_gated = true;
        c->experts_normed = c->shared_is_gated = c->family != FAMILY_QWEN3_5;
        break;
    case FAMILY_LFM2:
        c->qk_norm = QK_NORM_HEADS;
        break;
    case FAMILY_GLM4_MOE:
    case FAMILY_GLM4_LITE:
        c->router_sigmoid = c->router_bias = true;
        break;
    case FAMILY_OLMO2:
    case FAMILY_OLMO3:
        c->qk_norm = QK_NORM_ALL;
        c->norm_place = NORMS_AFTER;
        break;
    case FAMILY_GEMMA3:
        c->norm = NORM_RMS_PLUS_ONE;
        c->norm_place = NORMS_AROUND;
        c->qk_norm = QK_NORM_HEADS;
        c->act = ACT_GELU_TANH;
        break;
    case FAMILY_GEMMA4:
        c->norm_place = NORMS_AROUND;
        c->qk_norm = QK_NORM_HEADS;
        c->act = ACT_GELU_TANH;
        c->attn_scale = 1;
        c->v_norm = c->out_scaled = c->experts_normed = true;
        break;
    case FAMILY_GRANITE_HYBRID:
        c->attn_scale = 1; /* the factor where config.json names none */
        break;
    case FAMILY_GEMMA2:
        c->norm_place = NORMS_AROUND;
        c->norm = NORM_RMS_PLUS_ONE;
        c->act = ACT_GELU_TANH;
        break;
    case FAMILY_COHERE2:
        c->norm = NORM_LAYER_PLAIN;
        c->block = BLOCK_PARALLEL;
        c->rope_local_only = true;
        break;
    case FAMILY_GEMMA:
        c->norm = NORM_RMS_PLUS_ONE;
        c->act = ACT_GELU_TANH;
        break;
    case FAMILY_OPT:
        c->norm = NORM_LAYER;
        c->act = ACT_RELU;
        c->mlp_gated = false;
        c->position = POSITION_LEARNED;
        c->position_offset = 2;
        c->qkv_bias = c->attn_out_bias = c->mlp_bias = true;
        break;
    case FAMILY_PHI:
        c->norm = NORM_LAYER;
        c->act = ACT_GELU_TANH;
        c->mlp_gated = false;
        c->block = BLOCK_PARALLEL;
        c->qkv_bias = c->attn_out_bias = c->mlp_bias = c->head_bias = true;
        break;
    case FAMILY_FALCON:
        c->norm = NORM_LAYER;
        c->act = ACT_GELU;
        c->mlp_gated = false;
        c->block = BLOCK_PARALLEL;
        break;
    default:
        break;
    }
}

struct recurrence config_short_conv(int32_t n_embd, int32_t n_conv)
{
    return (struct recurrence){.kind = DELTA_SHORT_CONV,
                               .n_k = n_embd / 16,
                               .n_v = n_embd / 16,
                               .d_v = 16,
                               .n_conv = n_conv};
}

/* --- named shapes ------------------------------------------------------------------------- */

/* A d_head of 0 stands for n_embd / n_heads. Sizes are those of the published config.json files. */
static const struct shape {
    const char *name;
    enum model_family family;
    enum weight_type weight_type;
    int32_t n_layers, n_embd, n_heads, n_kv_heads, d_head, n_ffn, vocab_size, max_ctx;
    double rope_theta;
    float norm_eps;
    int32_t sliding_window;
    bool tied;
    int32_t bos_id, eos_id;
} shapes[] = {
    {"llama-2-7b", FAMILY_LLAMA, WEIGHT_F16, 32, 4096, 32, 32, 0, 11008, 32000, 4096, 1e4,
     1e-5f, 0, false, 1, 2},
    {"llama-2-13b", FAMILY_LLAMA, WEIGHT_F16, 40, 5120, 40, 40, 0, 13824, 32000, 4096, 1e4,
     1e-5f, 0, false, 1, 2},
    {"llama-2-70b", FAMILY_LLAMA, WEIGHT_F16, 80, 8192, 64, 8, 0, 28672, 32000, 4096, 1e4,
     1e-5f, 0, false, 1, 2},
    {"llama-3-8b", FAMILY_LLAMA, WEIGHT_BF16, 32, 4096, 32, 8, 0, 14336, 128256, 8192, 5e5,
     1e-5f, 0, false, 128000, 128001},
    {"mistral-7b", FAMILY_MISTRAL, WEIGHT_BF16, 32, 4096, 32, 8, 0, 14336, 32000, 32768,
     1e4, 1e-5f, 4096, false, 1, 2},
    {"opt-6.7b", FAMILY_OPT, WEIGHT_F16, 32, 4096, 32, 32, 0, 16384, 50272, 2048, 0, 1e-5f,
     0, true, 2, 2},
    {"opt-13b", FAMILY_OPT, WEIGHT_F16, 40, 5120, 40, 40, 0, 20480, 50272, 2048, 0, 1e-5f,
     0, true, 2, 2},
    {"opt-30b", FAMILY_OPT, WEIGHT_F16, 48, 7168, 56, 56, 0, 28672, 50272, 2048, 0, 1e-5f,
     0, true, 2, 2},
    {"opt-66b", FAMILY_OPT, WEIGHT_F16, 64, 9216, 72, 72, 0, 36864, 50272, 2048, 0, 1e-5f,
     0, true, 2, 2},
    {"falcon-40b", FAMILY_FALCON, WEIGHT_BF16, 60, 8192, 128, 8, 0, 32768, 65024, 2048, 1e4,
     1e-5f, 0, true, 11, 11},
    {"qwen3-0.6b", FAMILY_QWEN3, WEIGHT_BF16, 28, 1024, 16, 8, 128, 3072, 151936, 40960,
     1e6, 1e-6f, 0, true, 151643, 151645},
    {"qwen2.5-0.5b", FAMILY_QWEN2, WEIGHT_BF16, 24, 896, 14, 2, 0, 4864, 151936, 32768, 1e6,
     1e-6f, 0, true, 151643, 151643},
    {"qwen3-30b-a3b", FAMILY_QWEN3_MOE, WEIGHT_BF16, 48, 2048, 32, 4, 128, 768, 151936,
     40960, 1e6, 1e-6f, 0, false, 151643, 151645},
    {"gemma-3-4b", FAMILY_GEMMA3, WEIGHT_BF16, 34, 2560, 8, 4, 256, 10240, 262208, 131072,
     1e6, 1e-6f, 1024, true, 2, 1},
    {"gpt-oss-20b", FAMILY_GPT_OSS, WEIGHT_BF16, 24, 2880, 64, 8, 64, 2880, 201088, 131072,
     150000, 1e-5f, 128, false, 199998, 200002},
    {"qwen3.5-0.8b", FAMILY_QWEN3_5, WEIGHT_BF16, 24, 1024, 8, 2, 256, 3584, 248320, 262144,
     1e7, 1e-6f, 0, true, 248044, 248046},
    {"qwen3.6-35b-a3b", FAMILY_QWEN3_5_MOE, WEIGHT_BF16, 40, 2048, 16, 2, 256, 512, 248320,
     262144, 1e7, 1e-6f, 0, false, 248044, 248046},
    /* Shapes of this program: one that a laptop can measure, and two that are cheap enough for
     * tests. */
    {"bench-220m", FAMILY_LLAMA, WEIGHT_BF16, 12, 1024, 16, 16, 0, 2816, 32000, 8192, 1e4,
     1e-5f, 0, false, 1, 2},
    {"tiny-mha", FAMILY_LLAMA, WEIGHT_F32, 4, 64, 4, 4, 0, 176, 512, 2048, 1e4, 1e-5f, 0,
     false, 1, 2},
    {"tiny-hybrid", FAMILY_QWEN3_5, WEIGHT_F32, 4, 64, 4, 2, 16, 96, 512, 2048, 1e4, 1e-6f,
     0, true, 1, 2},
    {"tiny-conv", FAMILY_LFM2, WEIGHT_F32, 4, 64, 4, 2, 16, 96, 512, 2048, 1e4, 1e-5f, 0,
     true, 1, 2},
    {"tiny-mamba", FAMILY_GRANITE_HYBRID, WEIGHT_F32, 4, 64, 4, 2, 16, 96, 512, 2048, 1e4,
     1e-5f, 0, true, 1, 2},
    {"tiny-gqa", FAMILY_LLAMA, WEIGHT_F32, 4, 128, 8, 2, 0, 352, 512, 2048, 1e4, 1e-5f, 0,
     false, 1, 2},
};

enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

/* Every other layer sees all tokens. */
static void fill_gpt_oss(struct model_config *c)
{
    const struct yarn y = {
        .factor = 32, .beta_fast = 32, .beta_slow = 1, .original_ctx = 4096};
    config_yarn_factors(c, &y);
    c->rope_magnitude = (float)config_yarn_magnitude(y.factor, 1);
    c->n_experts = 32;
    c->n_experts_used = 4;
    c->windowed = layer_set_run(0, 0);
    for (int l = 0; l < c->n_layers; l += 2)
        layer_set_add(&c->windowed, l);
}

/* Every sixth layer sees all tokens, and only these layers' rotations are stretched. */
static void fill_gemma3(struct model_config *c)
{
    c->embed_scale = sqrtf((float)c->n_embd);
    c->rope_local_theta = 1e4;
    c->rope_scaling.kind = ROPE_SCALING_FACTORS;
    for (int i = 0; i < c->d_rope / 2; i++)
        c->rope_scaling.factors[i] = 8;
    c->windowed = layer_set_run(0, 0);
    for (int l = 0; l < c->n_layers; l++)
        if ((l + 1) % 6 != 0)
            layer_set_add(&c->windowed, l);
}

/* Every fourth layer has attention. */
static void fill_hybrid(struct model_config *c, struct recurrence r)
{
    c->recurrence = r;
    if (c->attn_gated)
        c->d_rope = c->d_head / 4;
    for (int l = 0; l < c->n_layers; l++)
        if ((l + 1) % 4 != 0)
            layer_set_add(&c->recurrent, l);
}

static void fill(struct model_config *c, const struct shape *s)
{
    config_family_init(c, s->family);
    c->weight_type = s->weight_type;
    c->n_layers = s->n_layers;
    c->n_embd = s->n_embd;
    c->n_heads = s->n_heads;
    c->n_kv_heads = s->n_kv_heads;
    c->d_head = s->d_head != 0 ? s->d_head : s->n_embd / s->n_heads;
    c->n_ffn = s->n_ffn;
    c->vocab_size = s->vocab_size;
    c->max_ctx = s->max_ctx;
    c->norm_eps = s->norm_eps;
    c->sliding_window = s->sliding_window;
    c->windowed = layer_set_run(0, s->sliding_window > 0 ? c->n_layers : 0);
    c->tie_word_embeddings = s->tied;
    c->bos_id = s->bos_id;
    c->eos_ids[0] = s->eos_id;
    c->n_eos = 1;
    if (c->position == POSITION_ROPE) {
        c->rope_theta = s->rope_theta;
        c->d_rope = c->d_head;
    }
    if (c->family == FAMILY_FALCON)
        c->block = BLOCK_PARALLEL_NORM2;
    if (c->family == FAMILY_QWEN3_MOE) {
        c->n_experts = 128;
        c->n_experts_used = 8;
        c->experts_normed = true;
    }
    if (c->family == FAMILY_GEMMA3)
        fill_gemma3(c);
    if (c->family == FAMILY_GPT_OSS)
        fill_gpt_oss(c);
    if (c->family == FAMILY_QWEN3_5_MOE) {
        c->n_experts = 256;
        c->n_experts_used = 8;
        c->n_shared_ffn = 512;
        fill_hybrid(c, (struct recurrence){
                           .n_k = 16, .n_v = 32, .d_k = 128, .d_v = 128, .n_conv = 4});
    }
    if (c->family == FAMILY_LFM2)
        fill_hybrid(c, config_short_conv(c->n_embd, 3));
    if (c->family == FAMILY_GRANITE_HYBRID) {
        c->rope_local_only = true;
        fill_hybrid(c, (struct recurrence){.kind = DELTA_MAMBA2,
                                           .n_k = 2,
                                           .n_v = 4,
                                           .d_k = 64,
                                           .d_v = 32,
                                           .n_conv = 4});
    }
    if (c->family == FAMILY_QWEN3_5)
        fill_hybrid(c, s->n_embd > 64
                           ? (struct recurrence){.n_k = 16,
                                                 .n_v = 16,
                                                 .d_k = 128,
                                                 .d_v = 128,
                                                 .n_conv = 4}
                           : (struct recurrence){
                                 .n_k = 2, .n_v = 4, .d_k = 32, .d_v = 48, .n_conv = 4});
}

const char *config_shape_name(int i)
{
    return i >= 0 && i < N_SHAPES ? shapes[i].name : NULL;
}

int config_shape(struct model_config *out, const char *name, struct err *err)
{
    char known[480] = "";
    for (int i = 0; i < N_SHAPES; i++) {
        if (strcmp(shapes[i].name, name) == 0) {
            fill(out, &shapes[i]);
            return 0;
        }
        size_t len = strlen(known);
        snprintf(known + len, sizeof known - len, " %s", shapes[i].name);
    }
    return err_set(err, ERR_NOT_FOUND, "unknown shape '%s'; known are:%s", name, known);
}

/* --- rotations ---------------------------------------------------------------------------- */

double config_yarn_magnitude(double factor, double mscale)
{
    return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

float config_latent_scale(const struct model_config *c, double factor, double of_all)
{
    double magnitude = of_all != 0 ? config_yarn_magnitude(factor, of_all) : 1;
    return (float)(magnitude * magnitude / sqrt((double)(c->latent.d_nope + c->d_rope)));
}

/* Returns the dimension whose wavelength fits `turns` times into the original context. */
static double dimension_of(const struct model_config *c, const struct yarn *y, double turns)
{
    static const double two_pi = 6.283185307179586;
    return c->d_rope * log(y->original_ctx / (turns * two_pi)) / (2 * log(c->rope_theta));
}

void config_yarn_factors(struct model_config *c, const struct yarn *y)
{
    double low = dimension_of(c, y, y->beta_fast), high = dimension_of(c, y, y->beta_slow);
    low = fmax(y->whole ? floor(low) : low, 0);
    high = fmin(y->whole ? ceil(high) : high, c->d_rope - 1);
    high += low == high ? 0.001 : 0;
    c->rope_scaling.kind = ROPE_SCALING_FACTORS;
    for (int i = 0; i < c->d_rope / 2 && i < ROPE_MAX_FACTORS; i++) {
        double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
        c->rope_scaling.factors[i] = (float)(1 / (ramp / y->factor + (1 - ramp)));
    }
}

void config_fit_context(struct model_config *c, int32_t max_ctx)
{
    struct rope_scaling *s = &c->rope_scaling;
    if (max_ctx <= s->short_ctx)
        memcpy(s->factors, s->short_factors, sizeof s->factors);
    s->short_ctx = 0;
    memset(s->short_factors, 0, sizeof s->short_factors);
}

/* --- queries ------------------------------------------------------------------------------ */

bool config_is_eos(const struct model_config *c, int32_t id)
{
    for (int32_t i = 0; i < c->n_eos; i++)
        if (c->eos_ids[i] == id)
            return true;
    return false;
}

static int64_t linear(int64_t n_in, int64_t n_out, bool bias)
{
    return n_in * n_out + (bias ? n_out : 0);
}

/* Returns the parameters of a recurrent layer without its norms and its MLP: W of q, k, v, z, beta
 * and a, the convolution, the decays, the norm of its heads, and the output. */
static int64_t recurrent_params(const struct model_config *c)
{
    const struct recurrence *r = &c->recurrence;
    int64_t q = (int64_t)r->n_k * r->d_k, v = (int64_t)r->n_v * r->d_v, d = c->n_embd;
    if (r->kind == DELTA_SHORT_CONV)
        return 4 * v * d + r->n_conv * v;
    if (r->kind == DELTA_MAMBA2)
        return d * (2 * q + 2 * v + r->n_v) + (r->n_conv + 1) * (2 * q + v) + 3 * r->n_v +
               v + v * d;
    return d * (2 * q + 2 * v + 2 * r->n_v) + r->n_conv * (2 * q + v) + 2 * r->n_v +
           r->d_v + v * d;
}

/* Returns the parameters of layer l's attention. */
static int64_t attention_params(const struct model_config *c, int l)
{
    const int64_t d = c->n_embd, d_head = config_d_head(c, l), q = c->n_heads * d_head,
                  kv = config_kv_heads(c, l) * d_head;
    bool reads = l >= config_n_keeping(c);
    int n_kv = reads ? 0 : c->v_is_k && !layer_set_has(&c->windowed, l) ? 1 : 2;
    int64_t norms = c->qk_norm == QK_NORM_HEADS ? (reads ? 1 : 2) * d_head
                    : c->qk_norm == QK_NORM_ALL ? q + kv
                                                : 0;
    return linear(d, c->attn_gated ? 2 * q : q, c->qkv_bias) +
           n_kv * linear(d, kv, c->qkv_bias) + linear(q, d, c->attn_out_bias) + norms +
           (c->attn_sinks ? c->n_heads : 0);
}

/* Returns the parameters of layer l's MLPs, with the router. */
static int64_t mlp_params(const struct model_config *c, int l)
{
    const int64_t d = c->n_embd, n_ffn = config_ffn(c, l), dense = 3 * d * c->n_dense_ffn;
    int64_t mlp = (c->mlp_gated ? 2 : 1) * linear(d, n_ffn, c->mlp_bias) +
                  linear(n_ffn, d, c->mlp_bias);
    if (c->n_experts == 0)
        return mlp;
    if (!config_has_experts(c, l))
        return dense;
    mlp = c->n_experts * (mlp + linear(d, 1, c->router_bias)); /* a row of the router */
    mlp += 3 * d * c->n_shared_ffn + (c->shared_is_gated ? d : 0);
    return c->dense_beside ? mlp + dense + 4 * d + c->n_experts : mlp;
}

int64_t config_params(const struct model_config *c)
{
    const int64_t d = c->n_embd, norm = c->norm == NORM_LAYER ? 2 * d : d;
    const int n_norms = c->block == BLOCK_PARALLEL      ? 1
                        : c->norm_place == NORMS_AROUND ? 4
                                                        : 2;
    int64_t total = c->n_layers * n_norms * norm + norm + c->vocab_size * d;
    for (int l = 0; l < c->n_layers; l++)
        total += mlp_params(c, l) +
                 (config_is_recurrent(c, l) ? recurrent_params(c) : attention_params(c, l));
    if (c->n_layer_embd >
        0) /* the table, the products with a token's embedding, and each layer's */
        total += c->n_layers * (c->n_layer_embd * (c->vocab_size + 3 * d) + d) +
                 c->n_layer_embd;
    total += c->out_scaled ? c->n_layers : 0;
    if (!c->tie_word_embeddings)
        total += c->vocab_size * d;
    if (c->head_bias)
        total += c->vocab_size;
    for (int i = 0; i < c->n_behind; i++)
        total += (i == 0 ? d : c->dense[i - 1]) * c->dense[i];
    if (c->position == POSITION_LEARNED)
        total += ((int64_t)c->max_ctx + c->position_offset) * d;
    return total;
}

int weight_type_bytes(enum weight_type t)
{
    return t == WEIGHT_F16 || t == WEIGHT_BF16 ? 2 : 4;
}
