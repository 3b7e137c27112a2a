/* config_fields.c - the fields of a config.json that may be ignored.
 *
 * A field that no reader asked for is refused unless it is listed here as one that changes no
 * result. New variants of a family come with new fields, and running a variant as if it were the
 * old model would give wrong output silently.  The lists contain the fields that transformers
 * library writes, in all versions, and other fields that published checkpoints of these families
 * carry.  A field that is null is accepted. */
#include "model/config_family.h"

#include "base/json.h"

#include <string.h>

/* Fields about training, generation, the library itself, and text. */
static const char *const harmless[] = {
    "eos_token_id", /* config.c reads it, without marking it as read */
    /* transformers' own settings */
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "attn_implementation",
    "auto_map",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    /* training */
    "activation_dropout",
    "attention_dropout",
    "chunk_size_feed_forward",
    "dropout",
    "embd_pdrop",
    "gradient_checkpointing",
    "hidden_dropout",
    "init_std",
    "initializer_range",
    "layerdrop",
    "output_router_logits",
    "pretraining_tp",
    "resid_pdrop",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "tf_legacy_loss",
    /* texts and their tokens, and heads for other tasks than language modelling */
    "decoder_start_token_id",
    "finetuning_task",
    "id2label",
    "label2id",
    "num_labels",
    "pad_token_id",
    "prefix",
    "problem_type",
    "sep_token_id",
    "task_specific_params",
    "tokenizer_class",
    /* defaults of generation; here the request states them */
    "bad_words_ids",
    "begin_suppress_tokens",
    "cache_implementation",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
};

/* Fields without effect unless the family's own reader has asked for them. */
static const struct {
    enum model_family family;
    const char *key;
} unread[] = {
    {FAMILY_LLAMA, "is_llama_config"},
    {FAMILY_QWEN2, "max_window_layers"},
    {FAMILY_QWEN2, "sliding_window"}, /* unused if use_sliding_window is false */
    {FAMILY_QWEN3, "max_window_layers"},
    {FAMILY_QWEN3, "sliding_window"},
    /* Has an effect with long-RoPE only. */
    {FAMILY_PHI3, "original_max_position_embeddings"},
    {FAMILY_GEMMA, "hidden_act"},    /* has no effect if hidden_activation is present */
    {FAMILY_FALCON, "num_kv_heads"}, /* unused if new_decoder_architecture is false */
    {FAMILY_QWEN3_MOE, "max_window_layers"},
    {FAMILY_QWEN3_MOE, "sliding_window"},
    /* The same as other fields, for other programs. */
    {FAMILY_GPT_OSS, "experts_per_token"},
    {FAMILY_GPT_OSS, "initial_context_length"},
    /* Layers that guess the tokens behind the next one, which are not used here. */
    {FAMILY_QWEN3_5, "mtp_num_hidden_layers"},
    {FAMILY_QWEN3_5, "mtp_use_dedicated_embeddings"},
    {FAMILY_QWEN3_5, "mlp_only_layers"}, /* none has experts */
    {FAMILY_QWEN3_5_MOE, "mtp_num_hidden_layers"},
    {FAMILY_QWEN3_5_MOE, "mtp_use_dedicated_embeddings"},
    {FAMILY_COHERE2, "order_of_interleaved_layers"}, /* as layer_types say */
    {FAMILY_COHERE2, "position_embedding_type"},
    {FAMILY_COHERE2, "use_parallel_embedding"},
    /* older names of other fields, and how weights were drawn */
    {FAMILY_DEEPSEEK2, "aux_loss_alpha"}, /* training */
    {FAMILY_DEEPSEEK2, "ep_size"},
    {FAMILY_DEEPSEEK2, "seq_aux"},
    {FAMILY_LFM2, "block_dim"},
    {FAMILY_LFM2, "block_mlp_init_scale"},
    {FAMILY_LFM2, "block_norm_eps"},
    {FAMILY_LFM2, "block_out_init_scale"},
    {FAMILY_LFM2, "block_use_swiglu"},
    {FAMILY_LFM2, "block_use_xavier_init"},
    {FAMILY_LFM2, "conv_dim"},
    {FAMILY_LFM2, "conv_dim_out"},
    {FAMILY_LFM2, "conv_use_xavier_init"},
    {FAMILY_LFM2, "num_heads"},
    {FAMILY_LFM2, "use_pos_enc"},
    {FAMILY_GRANITE_HYBRID, "init_method"}, /* how weights were drawn */
    {FAMILY_GRANITE_HYBRID, "mamba_chunk_size"},
    {FAMILY_GEMMA2, "hidden_act"},
    {FAMILY_GEMMA3, "hidden_act"},
};

static bool may_pass(enum model_family family, const char *key)
{
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++)
        if (strcmp(harmless[i], key) == 0)
            return true;
    for (size_t i = 0; i < sizeof unread / sizeof unread[0]; i++)
        if (unread[i].family == family && strcmp(unread[i].key, key) == 0)
            return true;
    return false;
}

bool config_was_read(const struct fields_read *read, const char *key)
{
    for (int i = 0; i < read->n; i++)
        if (strcmp(read->keys[i], key) == 0)
            return true;
    return false;
}

int config_fields_check(const struct json *o, const struct fields_read *read,
                        enum model_family family, struct err *err)
{
    struct json_iter it = json_begin(o);
    while (json_next(&it)) {
        if (json_kind(it.value) == JSON_KIND_NULL || config_was_read(read, it.key) ||
            may_pass(family, it.key))
            continue;
        return err_set(err, ERR_UNSUPPORTED,
                       "'%.80s': this field is not known in %s models, and might change "
                       "results; if it does not, remove it from the file",
                       it.key, family_name(family));
    }
    return 0;
}
