/* config_write.c - writes the config.json of a config, for models that this program makes.
 *
 * Each family gets the keys that transformers reads, so that the folder opens there, too.
 * config_parse of the text gives an equal config. */
#include "model/config_family.h"

#include "base/json.h"
#include "base/minmax.h"
#include "tensor/ops.h"

static void put_common(struct json *o, const struct model_config *c)
{
    static const char *const dtypes[] = {
        [WEIGHT_F32] = "float32", [WEIGHT_F16] = "float16", [WEIGHT_BF16] = "bfloat16"};
    struct json *arch = json_new_array();
    json_push_string(arch, family_architecture(c->family));
    json_put(o, "architectures", arch);
    json_put_string(o, "model_type", family_name(c->family));
    json_put_int(o, "hidden_size", c->n_embd);
    json_put_int(o, "num_hidden_layers", c->n_layers);
    json_put_int(o, "num_attention_heads", c->n_heads);
    json_put_int(o, "vocab_size", c->vocab_size);
    json_put_int(o, "max_position_embeddings", c->max_ctx);
    json_put_bool(o, "tie_word_embeddings", c->tie_word_embeddings);
    if (c->weight_type != WEIGHT_UNSPECIFIED)
        json_put_string(o, "torch_dtype", dtypes[c->weight_type]);
    json_put_int(o, "bos_token_id", c->bos_id);
    if (c->pooling != POOLING_NONE)
        json_put_string(o, "hcache_pooling", pooling_name(c->pooling));
    if (c->has_no_head)
        json_put_bool(o, "hcache_no_head", true);
    if (c->n_behind > 0) {
        struct json *dense = json_new_array();
        for (int i = 0; i < c->n_behind; i++)
            json_push_int(dense, c->dense[i]);
        json_put(o, "hcache_dense", dense);
    }
    if (c->n_eos == 1) {
        json_put_int(o, "eos_token_id", c->eos_ids[0]);
    } else {
        struct json *eos = json_new_array();
        for (int32_t i = 0; i < c->n_eos; i++)
            json_push_int(eos, c->eos_ids[i]);
        json_put(o, "eos_token_id", eos);
    }
}

static void put_rope(struct json *o, const struct model_config *c)
{
    json_put_real(o, "rope_theta", c->rope_theta);
    bool in_part = c->d_rope != c->d_head && !config_is_latent(c);
    if (in_part || c->attn_gated ||
        c->family ==
            FAMILY_GLM4_MOE) /* 0.5 is added so that truncation gives d_rope again */
        json_put_real(o, "partial_rotary_factor",
                      in_part ? (c->d_rope + 0.5) / c->d_head : 1.0);
    if (c->family == FAMILY_GPT_OSS && c->rope_scaling.kind == ROPE_SCALING_NONE) {
        struct json *s = json_new_object(); /* else transformers stretches rotations */
        json_put_string(s, "rope_type", "default");
        json_put(o, "rope_scaling", s);
    }
    if (c->rope_scaling.kind == ROPE_SCALING_FACTORS) {
        struct json *s = json_new_object(), *list = json_new_array();
        for (int i = 0; i < c->d_rope / 2; i++)
            json_push_real(list, (double)c->rope_scaling.factors[i]);
        json_put_string(s, "rope_type", "factors");
        json_put(s, "factors", list);
        json_put_real(s, "attention_factor", (double)c->rope_magnitude);
        if (c->family == FAMILY_MINISTRAL3) {
            json_put_real(s, "llama_4_scaling_beta", (double)c->query_growth);
            json_put_int(s, "original_max_position_embeddings", c->query_ctx);
        }
        if (c->rope_scaling.short_ctx > 0) {
            struct json *of_short = json_new_array();
            for (int i = 0; i < c->d_rope / 2; i++)
                json_push_real(of_short, (double)c->rope_scaling.short_factors[i]);
            json_put_int(s, "short_context", c->rope_scaling.short_ctx);
            json_put(s, "short_factors", of_short);
        }
        json_put(o, "rope_scaling", s);
    }
}

static void put_layer_types(struct json *o, const struct model_config *c)
{
    struct json *list = json_new_array();
    for (int l = 0; l < c->n_layers; l++)
        json_push_string(list, config_is_recurrent(c, l) ? family_recurrent_type(c->family)
                               : layer_set_has(&c->windowed, l) ? "sliding_attention"
                                                                : "full_attention");
    json_put(o, "layer_types", list);
}

static void put_experts(struct json *o, const struct model_config *c)
{
    bool is_glm = c->family == FAMILY_GLM4_MOE || family_is_latent(c->family);
    bool has_ffn = c->family != FAMILY_MIXTRAL && c->family != FAMILY_GPT_OSS &&
                   c->family != FAMILY_GRANITE_HYBRID;
    json_put_int(o,
                 is_glm    ? "n_routed_experts"
                 : has_ffn ? "num_experts"
                           : "num_local_experts",
                 c->n_experts);
    json_put_int(o, "num_experts_per_tok", c->n_experts_used);
    if (c->family == FAMILY_GLM4_MOE) {
        json_put_bool(o, "attention_bias", c->qkv_bias);
        json_put_bool(o, "use_qk_norm", c->qk_norm != QK_NORM_NONE);
    }
    if (is_glm) {
        json_put_int(o, "first_k_dense_replace", c->n_dense_layers);
        json_put_int(o, "n_shared_experts", c->n_shared_ffn / c->n_ffn);
        json_put_int(o, "n_group", MAX(c->expert_groups.n, 1));
        json_put_int(o, "topk_group", MAX(c->expert_groups.used, 1));
        json_put_real(o, "routed_scaling_factor", (double)c->experts_scale);
    }
    if (has_ffn) {
        json_put_int(o, "moe_intermediate_size", c->n_ffn);
        json_put_bool(o, "norm_topk_prob", c->experts_normed);
    }
}

static void put_recurrence(struct json *o, const struct model_config *c)
{
    const struct recurrence *r = &c->recurrence;
    put_layer_types(o, c);
    if (r->kind == DELTA_SHORT_CONV) {
        json_put_int(o, "conv_L_cache", r->n_conv);
        json_put_bool(o, "block_auto_adjust_ff_dim", false);
        return;
    }
    if (r->kind == DELTA_MAMBA2) {
        json_put_int(o, "mamba_d_conv", r->n_conv);
        json_put_int(o, "mamba_n_groups", r->n_k);
        json_put_int(o, "mamba_n_heads", r->n_v);
        json_put_int(o, "mamba_d_state", r->d_k);
        json_put_int(o, "mamba_d_head", r->d_v);
        json_put_int(o, "mamba_expand", r->n_v * r->d_v / c->n_embd);
        return;
    }
    json_put_int(o, "linear_conv_kernel_dim", r->n_conv);
    if (r->tiled)
        json_put_bool(o, "hcache_tiled_heads", true);
    json_put_int(o, "linear_num_key_heads", r->n_k);
    json_put_int(o, "linear_num_value_heads", r->n_v);
    json_put_int(o, "linear_key_head_dim", r->d_k);
    json_put_int(o, "linear_value_head_dim", r->d_v);
    if (c->n_shared_ffn > 0)
        json_put_int(o, "shared_expert_intermediate_size", c->n_shared_ffn);
}

static void put_gemma3(struct json *o, const struct model_config *c)
{
    double scale = (double)c->attn_scale;
    json_put_real(o, "query_pre_attn_scalar", scale > 0 ? 1 / (scale * scale) : c->d_head);
    if (c->both_ways)
        json_put_bool(o, "use_bidirectional_attention", true);
}

static void put_gemma4(struct json *o, const struct model_config *c)
{
    bool two = c->local_d_head > 0;
    json_put_int(o, "num_key_value_heads", two ? c->local_kv_heads : c->n_kv_heads);
    json_put_int(o, "head_dim", two ? c->local_d_head : c->d_head);
    json_put_int(o, "global_head_dim", c->d_head);
    json_put_int(o, "num_global_key_value_heads", c->n_kv_heads);
    json_put_bool(o, "attention_k_eq_v", c->v_is_k);
    json_put_int(o, "num_kv_shared_layers", c->n_reading);
    json_put_bool(o, "use_double_wide_mlp", c->wide_reading);
    json_put_int(o, "hidden_size_per_layer_input", c->n_layer_embd);
    json_put_int(o, "vocab_size_per_layer_input", c->vocab_size);
    json_put_real(o, "final_logit_softcapping", (double)c->logit_cap);
    json_put_bool(o, "enable_moe_block", c->dense_beside);
    if (c->dense_beside) {
        json_put_int(o, "num_experts", c->n_experts);
        json_put_int(o, "top_k_experts", c->n_experts_used);
        json_put_int(o, "moe_intermediate_size", c->n_ffn);
    }
}

static void put_latent(struct json *o, const struct model_config *c)
{
    json_put_int(o, "num_key_value_heads", c->n_heads);
    json_put_int(o, "kv_lora_rank", config_kv_rank(c));
    json_put_int(o, "qk_rope_head_dim", c->d_rope);
    json_put_int(o, "qk_nope_head_dim", c->latent.d_nope);
    json_put_int(o, "v_head_dim", c->latent.d_v);
    json_put_real(o, "hcache_score_scale", (double)c->attn_scale);
    if (c->latent.q_rank > 0)
        json_put_int(o, "q_lora_rank", c->latent.q_rank);
    else
        json_put_null(o, "q_lora_rank");
}

static void put_granite(struct json *o, const struct model_config *c)
{
    json_put_real(o, "embedding_multiplier", (double)c->embed_scale);
    json_put_real(o, "residual_multiplier", (double)c->residual_scale);
    json_put_real(o, "logits_scaling", 1 / (double)c->logit_scale);
    if (c->attn_scale > 0)
        json_put_real(o, "attention_multiplier", (double)c->attn_scale);
}

static void put_llama_like(struct json *o, const struct model_config *c)
{
    bool is_gemma4 = c->family == FAMILY_GEMMA4;
    json_put_int(o, "intermediate_size", c->n_dense_ffn > 0 ? c->n_dense_ffn : c->n_ffn);
    if (is_gemma4) {
        put_gemma4(o, c);
    } else if (config_is_latent(c)) {
        put_latent(o, c);
    } else {
        json_put_int(o, "num_key_value_heads", c->n_kv_heads);
        json_put_int(o, "head_dim", c->d_head);
    }
    json_put_real(o,
                  c->family == FAMILY_LFM2 ? "norm_eps"
                  : c->norm < NORM_LAYER   ? "rms_norm_eps"
                                           : "layer_norm_eps",
                  c->norm_eps);
    json_put_string(o,
                    c->family == FAMILY_GEMMA3 || c->family == FAMILY_GEMMA2 || is_gemma4
                        ? "hidden_activation"
                        : "hidden_act",
                    c->act == ACT_GELU_TANH ? "gelu_pytorch_tanh" : "silu");
    put_rope(o, c);
    if (c->family == FAMILY_QWEN2 || c->family == FAMILY_QWEN3 ||
        c->family == FAMILY_QWEN3_MOE) {
        json_put_bool(o, "use_sliding_window", c->sliding_window != 0);
        json_put_int(o, "max_window_layers", 0);
        if (c->sliding_window != 0)
            put_layer_types(o, c);
    }
    if (c->n_experts > 0 && !is_gemma4)
        put_experts(o, c);
    if (c->family == FAMILY_GEMMA3 || c->family == FAMILY_GEMMA2)
        put_gemma3(o, c);
    if (c->family == FAMILY_GEMMA2) { /* 0: no cap */
        json_put_real(o, "attn_logit_softcapping", (double)c->attn_cap);
        json_put_real(o, "final_logit_softcapping", (double)c->logit_cap);
    }
    if (c->family == FAMILY_GPT_OSS)
        json_put_bool(o, "attention_bias", true);
    if (c->family == FAMILY_GEMMA3 || c->family == FAMILY_OLMO3 ||
        c->family == FAMILY_GPT_OSS || c->family == FAMILY_GEMMA2 ||
        c->family == FAMILY_COHERE2 || is_gemma4) {
        if (c->rope_local_theta > 0 && !c->rope_local_only)
            json_put_real(o, "rope_local_base_freq", c->rope_local_theta);
        if (c->sliding_window != 0)
            put_layer_types(o, c);
    }
    if (c->family == FAMILY_GRANITE || c->family == FAMILY_GRANITE_HYBRID)
        put_granite(o, c);
    if (c->family == FAMILY_GRANITE_HYBRID) {
        json_put_int(o, "shared_intermediate_size",
                     c->n_experts > 0 ? c->n_shared_ffn : c->n_ffn);
        json_put_string(o, "position_embedding_type", c->rope_local_only ? "nope" : "rope");
        if (c->n_experts == 0)
            json_put_int(o, "num_local_experts", 0);
        if (!config_is_hybrid(c))
            put_layer_types(o, c);
    }
    if (c->family == FAMILY_COHERE2)
        json_put_real(o, "logit_scale", (double)c->logit_scale);
    if (config_is_hybrid(c))
        put_recurrence(o, c);
    if (c->sliding_window != 0)
        json_put_int(o, "sliding_window",
                     c->both_ways ? 2 * (c->sliding_window - 1) : c->sliding_window);
    else
        json_put_null(o, "sliding_window");
}

static void put_opt(struct json *o, const struct model_config *c)
{
    json_put_int(o, "ffn_dim", c->n_ffn);
    json_put_int(o, "word_embed_proj_dim", c->n_embd);
    json_put_bool(o, "do_layer_norm_before", true);
    json_put_string(o, "activation_function", "relu");
}

static void put_phi(struct json *o, const struct model_config *c)
{
    json_put_int(o, "intermediate_size", c->n_ffn);
    json_put_int(o, "num_key_value_heads", c->n_kv_heads);
    json_put_real(o, "layer_norm_eps", c->norm_eps);
    json_put_string(o, "hidden_act", "gelu_new");
    put_rope(o, c);
    /* The family's default is one half, so the fraction 1 must be written. */
    if (c->d_rope == c->d_head)
        json_put_real(o, "partial_rotary_factor", 1.0);
}

static void put_falcon(struct json *o, const struct model_config *c)
{
    bool grouped = c->block == BLOCK_PARALLEL_NORM2 ||
                   (c->n_kv_heads != 1 && c->n_kv_heads != c->n_heads);
    json_put_int(o, "ffn_hidden_size", c->n_ffn);
    json_put_bool(o, "new_decoder_architecture", grouped);
    json_put_bool(o, "multi_query", c->n_kv_heads == 1);
    json_put_int(o, "num_kv_heads", c->n_kv_heads);
    json_put_bool(o, "parallel_attn", c->block != BLOCK_SEQUENTIAL);
    if (grouped)
        json_put_int(o, "num_ln_in_parallel_attn",
                     c->block == BLOCK_PARALLEL_NORM2 ? 2 : 1);
    json_put_real(o, "layer_norm_epsilon", c->norm_eps);
    json_put_string(o, "activation", "gelu");
    json_put_bool(o, "alibi", false);
    json_put_bool(o, "bias", false);
    put_rope(o, c);
}

char *config_write(const struct model_config *c)
{
    struct json *o = json_new_object();
    put_common(o, c);
    if (c->family == FAMILY_OPT)
        put_opt(o, c);
    else if (c->family == FAMILY_PHI)
        put_phi(o, c);
    else if (c->family == FAMILY_FALCON)
        put_falcon(o, c);
    else
        put_llama_like(o, c);
    char *text = json_text(o, 2);
    json_free(o);
    return text;
}
