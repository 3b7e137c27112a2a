/* test_config.c - config.json of every family, refusals, named shapes and their round trip. */
#include "model/config.h"

#include "base/rng.h"
#include "tests/base/quotes.h"
#include "tests/base/tempdir.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "tests/unit.h"

static struct model_config parse(const char *text)
{
    struct model_config c;
    struct err err = {0};
    if (config_parse(&c, quotes(text), strlen(text), "config.json", &err) != 0)
        fail_msg("%s", err.msg);
    return c;
}

static void refuse(const char *text, int code, const char *part)
{
    struct model_config c;
    struct err err = {0};
    int rc = config_parse(&c, quotes(text), strlen(text), "config.json", &err);
    if (rc != code || strstr(err.msg, part) == NULL ||
        strstr(err.msg, "config.json") != err.msg)
        fail_msg("expected %s with '%s', got %s: %s", err_name(code), part, err_name(rc),
                 err.msg);
}

/* --- families ----------------------------------------------------------------------------- */

#define LLAMA_SIZES                                                                        \
    "'hidden_size': 64, 'intermediate_size': 172, 'num_hidden_layers': "                   \
    "5, 'num_attention_heads': 8, 'vocab_size': 512, 'max_position_embeddings': 256"

#define LLAMA(more) "{'model_type': 'llama', " LLAMA_SIZES more "}"

TEST(test_llama)
{
    struct model_config c = parse(
        LLAMA(", 'architectures': ['LlamaForCausalLM'], 'num_key_value_heads': "
              "4, 'rms_norm_eps': 1e-05, 'bos_token_id': 1, 'eos_token_id': "
              "2, 'torch_dtype': 'bfloat16', 'tie_word_embeddings': true"));
    assert_int_equal(c.family, FAMILY_LLAMA);
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.d_head, 8);
    assert_int_equal(c.d_rope, 8);
    assert_int_equal(c.n_ffn, 172);
    assert_true(c.norm_eps == 1e-5f);
    assert_true(c.rope_theta == 10000);
    assert_int_equal(c.weight_type, WEIGHT_BF16);
    assert_true(c.tie_word_embeddings);
    assert_true(c.mlp_gated && !c.qkv_bias && !c.qk_norm);
    assert_int_equal(c.bos_id, 1);
    assert_true(config_is_eos(&c, 2) && !config_is_eos(&c, 1));
    assert_int_equal(config_add_eos(&c, 3, NULL), 0);
    assert_int_equal(config_add_eos(&c, 2, NULL), 0);
    assert_true(config_is_eos(&c, 3) && c.n_eos == 2);

    c = parse(LLAMA(", 'head_dim': 32, 'dtype': 'float16', 'eos_token_id': [3, 4, 3]"));
    assert_int_equal(c.d_head, 32);
    assert_int_equal(c.n_kv_heads, 8);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.bos_id, -1);
}

TEST(test_rope_scaling)
{
    const char *inner =
        "'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': "
        "4.0, 'original_max_position_embeddings': 8192";
    char text[1024];
    snprintf(text, sizeof text, LLAMA(", 'rope_theta': 500000.0, 'rope_scaling': {%s}"),
             inner);
    struct model_config c = parse(text);
    /* two short wavelengths stay, one is blended, the long one is stretched */
    const float *factors = c.rope_scaling.factors;
    assert_int_equal(c.rope_scaling.kind, ROPE_SCALING_FACTORS);
    assert_true(factors[0] == 1 && factors[1] == 1 && factors[3] == 8);
    assert_true(fabs((double)factors[2] - 2.69453001) < 1e-7);
    assert_true(c.rope_theta == 500000);

    snprintf(text, sizeof text, LLAMA(", 'rope_parameters': {'rope_theta': 7, %s}"), inner);
    c = parse(text);
    assert_int_equal(c.rope_scaling.kind, ROPE_SCALING_FACTORS);
    assert_true(c.rope_theta == 7);

    /* linear scaling stretches all wavelengths; a factor of 1 is none */
    c = parse(LLAMA(", 'rope_scaling': {'type': 'linear', 'factor': 2.5}"));
    assert_int_equal(c.rope_scaling.kind, ROPE_SCALING_FACTORS);
    for (int i = 0; i < 4; i++)
        assert_true(c.rope_scaling.factors[i] == 2.5f);
    assert_true(c.rope_scaling.factors[4] == 0);
    c = parse(LLAMA(", 'rope_parameters': {'rope_type': 'linear', 'factor': 1}"));
    assert_int_equal(c.rope_scaling.kind, ROPE_SCALING_NONE);
    refuse(LLAMA(", 'rope_scaling': {'type': 'linear', 'factor': 0.5}"), ERR_FORMAT,
           "'rope_scaling': 'factor' must be a number from 1 to 1000000");
    refuse(LLAMA(", 'rope_scaling': {'type': 'linear'}"), ERR_FORMAT,
           "'rope_scaling': 'factor' is missing");

    assert_int_equal(parse(LLAMA(", 'rope_scaling': null")).rope_scaling.kind,
                     ROPE_SCALING_NONE);
    refuse(LLAMA(", 'rope_scaling': {'type': 'yarn', 'factor': 4}"), ERR_FORMAT,
           "'rope_scaling': 'original_max_position_embeddings' is missing");
    refuse(LLAMA(", 'rope_scaling': {'type': 'yarn', 'factor': "
                 "0.5, 'original_max_position_embeddings': 64}"),
           ERR_FORMAT, "needs factor >= 1");
    c = parse(LLAMA(", 'rope_scaling': {'type': 'yarn', 'factor': "
                    "4, 'original_max_position_embeddings': 64}"));
    assert_true(c.rope_scaling.factors[0] == 1 && c.rope_scaling.factors[3] == 4);
    assert_true(c.rope_magnitude == (float)(0.1 * log(4) + 1));
}

/* LongRoPE has factors for contexts up to the original one and for longer ones; the context that is
 * configured decides. */
TEST(test_longrope)
{
#define LONGROPE(n, more)                                                                  \
    "{'model_type': 'phi3', " LLAMA_SIZES ", 'rope_scaling': {'type': 'longrope'," more    \
    "'short_factor': [1.0, 2.0, 3.0, 4.0], 'long_factor': [" n "5.0, 6.0, 7.0]}}"
    struct model_config c = parse(
        LONGROPE("4.0,", "'original_max_position_embeddings': 64,"));
    assert_int_equal(c.rope_scaling.short_ctx, 64);
    assert_true(c.rope_magnitude == (float)sqrt(1 + log(c.max_ctx / 64.0) / log(64)));
    struct model_config of_short = c, of_long = c;
    config_fit_context(&of_short, 64);
    config_fit_context(&of_long, 65);
    for (int i = 0; i < 4; i++) {
        assert_true(of_short.rope_scaling.factors[i] == (float)(i + 1));
        assert_true(of_long.rope_scaling.factors[i] == (float)(i + 4));
    }
    refuse(LONGROPE("", "'original_max_position_embeddings': 64,"), ERR_FORMAT,
           "'factors' has fewer entries than 4");
    refuse(LONGROPE("4.0,", ""), ERR_FORMAT, "needs 'original_max_position_embeddings'");
}

TEST(test_refused_scalings)
{
    refuse(LLAMA(", 'rope_scaling': {'rope_type': 'default'}, 'rope_parameters': "
                 "{'rope_type': 'default'}"),
           ERR_UNSUPPORTED, "'rope_scaling': stands beside 'rope_parameters'");
    refuse(LLAMA(", 'rope_scaling': {'rope_type': 'llama3', 'factor': 8.0}"), ERR_FORMAT,
           "'rope_scaling': 'original_max_position_embeddings' is missing");
}

TEST(test_mistral_and_qwen)
{
    struct model_config c;
#define MISTRAL(more)                                                                      \
    "{'model_type': 'mistral', " LLAMA_SIZES ", 'num_key_value_heads': 2" more "}"
    assert_int_equal(parse(MISTRAL(", 'sliding_window': 64")).sliding_window, 64);
    assert_int_equal(parse(MISTRAL(", 'sliding_window': null")).sliding_window, 0);
    assert_int_equal(parse(MISTRAL("")).sliding_window, 4096);
#define QWEN(n, more)                                                                      \
    "{'model_type': 'qwen" n "', " LLAMA_SIZES ", 'num_key_value_heads': 2" more "}"
    c = parse(QWEN("2", ", 'sliding_window': 64, 'use_sliding_window': false"));
    assert_true(c.qkv_bias && !c.attn_out_bias && !c.qk_norm);
    assert_int_equal(c.sliding_window, 0);
    c = parse(QWEN("2", ", 'use_sliding_window': true, 'max_window_layers': 3"));
    assert_int_equal(c.sliding_window, 4096);
    c = parse(QWEN("3", ", 'head_dim': 16, 'attention_bias': false"));
    assert_true(c.qk_norm && !c.qkv_bias);
    assert_int_equal(c.d_head, 16);
    refuse(QWEN("3", ", 'attention_bias': true"), ERR_UNSUPPORTED,
           "'attention_bias': true is not supported");
}

/* The published gemma-3-4b-it: most sizes of its text part are the reference's defaults. */
TEST(test_text_part_of_a_model_that_sees)
{
#define GEMMA3_4B(around)                                                                  \
    "{'architectures': ['Gemma3ForConditionalGeneration'], 'model_type': 'gemma3', "       \
    "'eos_token_id': [1, 106], 'torch_dtype': 'bfloat16', 'image_token_index': "           \
    "262144, 'text_config': {'hidden_size': 2560, 'intermediate_size': "                   \
    "10240, 'model_type': 'gemma3_text', 'num_hidden_layers': 34, 'rope_scaling': "        \
    "{'factor': 8.0, 'rope_type': 'linear'}, 'sliding_window': 1024}," around              \
    "'vision_config': {'hidden_size': 1152, 'image_size': 896}}"
    struct model_config c = parse(GEMMA3_4B(""));
    assert_int_equal(c.family, FAMILY_GEMMA3);
    assert_int_equal(c.n_heads, 8);
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.d_head, 256);
    assert_int_equal(c.vocab_size, 262208);
    assert_int_equal(c.max_ctx, 131072);
    assert_int_equal(c.weight_type, WEIGHT_BF16);
    assert_true(c.rope_theta == 1e6 && c.rope_local_theta == 1e4);
    assert_true(c.rope_scaling.factors[0] == 8 && c.attn_scale == 0);
    assert_int_equal(config_window(&c, 4), 1024);
    assert_int_equal(config_window(&c, 5), 0);
    assert_int_equal(config_params(&c), 3880263168); /* of the text part */
    assert_true(config_is_eos(&c, 1) && config_is_eos(&c, 106));
    refuse(GEMMA3_4B("'quantization_config': {'bits': 4},"), ERR_UNSUPPORTED,
           "'quantization_config'");
}

/* --- refusals ----------------------------------------------------------------------------- */

/* Only phi and phi3 rotate a part of a head; in other families the reference ignores the field. */
TEST(test_partial_rotary)
{
    static const char *const whole[] = {"llama", "mistral", "qwen2", "qwen3"};
    static const char *const forms[] = {
        ", 'partial_rotary_factor': %s",
        ", 'rope_parameters': {'rope_type': 'default', 'partial_rotary_factor': %s}"};
    for (int form = 0; form < 2; form++) {
        char text[1024], field[160], message[80];
        for (int i = 0; i < 4; i++) {
            for (int half = 0; half < 2; half++) {
                snprintf(field, sizeof field, forms[form], half ? "0.5" : "1.0");
                snprintf(text, sizeof text,
                         "{'model_type': '%s', " LLAMA_SIZES
                         ", 'num_key_value_heads': 2%s}",
                         whole[i], field);
                snprintf(message, sizeof message, "is 0.5, but %s models", whole[i]);
                if (half)
                    refuse(text, ERR_UNSUPPORTED, message);
                else
                    assert_int_equal(parse(text).d_rope, parse(text).d_head);
            }
        }
        snprintf(field, sizeof field, forms[form], "0.5");
        snprintf(text, sizeof text,
                 "{'model_type': 'gemma', " LLAMA_SIZES
                 ", 'head_dim': 32, 'hidden_activation': 'gelu_pytorch_tanh'%s}",
                 field);
        refuse(text, ERR_UNSUPPORTED, "gemma models rotate whole heads");
        snprintf(text, sizeof text,
                 "{'model_type': 'falcon', 'hidden_size': 64, 'num_hidden_layers': "
                 "2, 'num_attention_heads': 8, 'vocab_size': 512, 'multi_query': true%s}",
                 field);
        refuse(text, ERR_UNSUPPORTED, "falcon models rotate whole heads");
        snprintf(text, sizeof text, "{'model_type': 'phi3', " LLAMA_SIZES "%s}", field);
        assert_int_equal(parse(text).d_rope, parse(text).d_head / 2);
    }
}

TEST(test_refusals)
{
    refuse("{", ERR_FORMAT, "config.json:1:1: ");
    refuse("[]", ERR_FORMAT, "'model_type' and 'architectures' are missing");
    refuse(LLAMA(", 'architectures': ['LlamaForSequenceClassification']"), ERR_UNSUPPORTED,
           "architecture 'LlamaForSequenceClassification' is not supported");
    refuse("{'model_type': 'llama', 'hidden_size': '64'}", ERR_FORMAT,
           "'hidden_size' must be an integer, it is a string");
    refuse("{'model_type': 'llama', 'hidden_size': 0}", ERR_FORMAT,
           "'hidden_size' is 0, it must lie in 1..65536");
    refuse("{'model_type': 'llama', 'hidden_size': 65537}", ERR_FORMAT,
           "'hidden_size' is 65537, it must lie in 1..65536");
    refuse(LLAMA(", 'head_dim': 16384"), ERR_FORMAT, "65536");
    refuse("{'model_type': 'llama', 'hidden_size': 64, 'num_hidden_layers': "
           "5, 'num_attention_heads': 8, 'vocab_size': 512, 'intermediate_size': 65537}",
           ERR_FORMAT, "'intermediate_size' is 65537, it must lie in 1..65536");
    refuse("{'model_type': 'llama', 'hidden_size': 64, 'num_hidden_layers': "
           "5, 'num_attention_heads': 8, 'vocab_size': 4194305}",
           ERR_FORMAT, "'vocab_size' is 4194305, it must lie in 1..4194304");
    refuse("{'model_type': 'llama', 'hidden_size': 4294967360}", ERR_FORMAT,
           "'hidden_size' is 4294967360, it must lie in");
    refuse("{'model_type': 'llama', 'hidden_size': 9223372036854775807}", ERR_FORMAT,
           "'hidden_size' is 9223372036854775807, it must lie in");
    refuse("{'model_type': 'llama', 'hidden_size': 1e30}", ERR_FORMAT,
           "'hidden_size' must be an integer");
    refuse("{'model_type': 'llama', 'hidden_size': 64}", ERR_FORMAT,
           "'num_hidden_layers' is missing");
    refuse(LLAMA(", 'eos_token_id': '</s>'"), ERR_FORMAT, "'eos_token_id' must be");
}

#define OPT_SIZES                                                                          \
    "'hidden_size': 64, 'ffn_dim': 128, 'num_hidden_layers': 2, 'num_attention_heads': "   \
    "4, "                                                                                  \
    "'vocab_size': 512, 'max_position_embeddings': 128"
#define FALCON_SIZES                                                                       \
    "'hidden_size': 64, 'num_hidden_layers': 2, 'num_attention_heads': 8, 'vocab_size': "  \
    "512"

/* Sizes of every family, and other fields of its published files. */
static const struct {
    const char *type, *sizes, *published;
} as_published[] = {
    {"llama", LLAMA_SIZES,
     "'attention_bias': false, 'attention_dropout': 0.0, 'is_llama_config': "
     "true, 'mlp_bias': false, 'pretraining_tp': 1, 'rope_interleaved': "
     "false, 'pad_token_id': 0, 'unsloth_version': '2025.1.1', 'rope_scaling': null"},
    {"mistral", LLAMA_SIZES ", 'num_key_value_heads': 2",
     "'sliding_window': 64, 'attention_dropout': 0.0, 'initializer_range': 0.02"},
    {"qwen2", LLAMA_SIZES ", 'num_key_value_heads': 2",
     "'max_window_layers': 3, 'sliding_window': 64, 'use_sliding_window': "
     "false, 'use_mrope': false, 'attention_dropout': 0.0"},
    {"qwen3", LLAMA_SIZES ", 'num_key_value_heads': 2",
     "'attention_bias': false, 'head_dim': 16, 'max_window_layers': 3, 'sliding_window': "
     "null, 'use_sliding_window': false"},
    {"opt", OPT_SIZES,
     "'_remove_final_layer_norm': false, 'activation_dropout': 0.0, 'dropout': "
     "0.1, 'init_std': 0.02, 'layerdrop': 0.0, 'prefix': '</s>', 'word_embed_proj_dim': "
     "64, "
     "'do_layer_norm_before': true"},
    {"phi", LLAMA_SIZES,
     "'embd_pdrop': 0.0, 'resid_pdrop': 0.1, 'qk_layernorm': "
     "false, 'partial_rotary_factor': 0.5, 'layer_norm_eps': 1e-05"},
    {"phi3", LLAMA_SIZES,
     "'auto_map': {'AutoConfig': 'configuration_phi3.Phi3Config'}, 'embd_pdrop': 0.0, "
     "'resid_pdrop': 0.0, 'original_max_position_embeddings': 4096, 'full_attn_mod': 1, "
     "'interpolate_factor': 1, 'lm_head_bias': false"},
    {"gemma", LLAMA_SIZES ", 'head_dim': 32",
     "'hidden_act': 'gelu', 'hidden_activation': 'gelu_pytorch_tanh', "
     "'use_bidirectional_attention': null, 'attention_bias': false"},
    {"falcon", FALCON_SIZES,
     "'alibi': false, 'apply_residual_connection_post_layernorm': false, 'hidden_dropout': "
     "0.0, 'num_kv_heads': 8, 'ff_factor': 4, 'multi_query': true"},
};

#define EVERYWHERE                                                                         \
    "'_name_or_path': 'x', 'transformers_version': '4.40.2', 'use_cache': "                \
    "true, 'is_encoder_decoder': false, 'pruned_heads': {}, 'temperature': "               \
    "1.0, 'id2label': {'0': 'LABEL_0'}, 'new_and_unset': null"

/* Fields that change no result are accepted; any other is named, at the top level and inside the
 * RoPE object. */
TEST(test_unknown_fields)
{
    for (size_t i = 0; i < sizeof as_published / sizeof as_published[0]; i++) {
        char start[1024], text[2048];
        snprintf(start, sizeof start, "{'model_type': '%s', %s, %s, " EVERYWHERE,
                 as_published[i].type, as_published[i].sizes, as_published[i].published);
        snprintf(text, sizeof text, "%s}", start);
        parse(text);
        snprintf(text, sizeof text, "%s, 'residual_gain': 1}", start);
        refuse(text, ERR_UNSUPPORTED, "'residual_gain': this field is not known in");
        snprintf(text, sizeof text, "%s, 'is_encoder_decoder': true}", start);
        /* the written field occurs twice, so the file is invalid */
        refuse(text, ERR_FORMAT, "is_encoder_decoder");
        snprintf(text, sizeof text, "%s, 'tie_word_embedding': false}", start);
        refuse(text, ERR_UNSUPPORTED, "'tie_word_embedding'");
        if (strcmp(as_published[i].type, "opt") == 0)
            continue;
        snprintf(text, sizeof text,
                 "%s, 'rope_parameters': {'rope_type': 'default', 'scale': 2}}", start);
        refuse(text, ERR_UNSUPPORTED,
               "'rope_parameters': 'scale': this field is not known");
    }
    refuse(LLAMA(", 'sliding_window': 64"), ERR_UNSUPPORTED, "'sliding_window'");
}

/* Truncations and random edits of a good file give an error or a config that meets its invariants.
 */
TEST(test_damage)
{
    char text[512];
    snprintf(
        text, sizeof text, "%s",
        quotes(LLAMA(", 'num_key_value_heads': 4, 'eos_token_id': [1, 2], 'head_dim': 8")));
    const size_t n = strlen(text);
    struct model_config c;
    for (size_t cut = 0; cut < n; cut++)
        assert_true(config_parse(&c, text, cut, "f", NULL) < 0);
    struct rng rng = {.s = 7};
    static const char digits[] = "0123456789-.e\"[]{},:";
    for (int i = 0; i < 20000; i++) {
        size_t at = rng_below(&rng, n);
        char old = text[at];
        text[at] = digits[rng_below(&rng, sizeof digits - 1)];
        if (config_parse(&c, text, n, "f", NULL) == 0) {
            assert_true(c.n_layers > 0 && c.n_embd > 0 && c.n_ffn > 0 && c.d_head > 0);
            assert_int_equal(c.n_heads % c.n_kv_heads, 0);
            for (int e = 0; e < c.n_eos; e++)
                assert_true(c.eos_ids[e] >= 0 && c.eos_ids[e] < c.vocab_size);
        }
        text[at] = old;
    }
}

/* --- shapes and writing ------------------------------------------------------------------- */

/* The text of the state has all fields that change a result. */
static void assert_same(const struct model_config *a, const struct model_config *b)
{
    char *of_a = config_state_text(a), *of_b = config_state_text(b);
    assert_string_equal(of_a, of_b);
    assert_int_equal(a->weight_type, b->weight_type);
    assert_int_equal(a->max_ctx, b->max_ctx);
    assert_memory_equal(a->dense, b->dense, sizeof a->dense);
    assert_int_equal(a->bos_id, b->bos_id);
    assert_int_equal(a->n_eos, b->n_eos);
    assert_memory_equal(a->eos_ids, b->eos_ids, sizeof a->eos_ids);
    free(of_a);
    free(of_b);
}

static void assert_round_trip(const struct model_config *c)
{
    char *text = config_write(c);
    struct model_config back = parse(text);
    assert_same(c, &back);
    free(text);
}

TEST(test_shapes_round_trip)
{
    int n = 0;
    for (const char *name; (name = config_shape_name(n)) != NULL; n++) {
        struct model_config c;
        assert_int_equal(config_shape(&c, name, NULL), 0);
        assert_round_trip(&c);
    }
    assert_int_equal(n, 23);
}

TEST(test_families_round_trip)
{
    static const char *const texts[] = {
        "{'model_type': 'qwen2', " LLAMA_SIZES
        ", 'num_key_value_heads': 2, 'sliding_window': 64, 'use_sliding_window': true, "
        "'layer_types': ['sliding_attention', 'full_attention', 'sliding_attention', "
        "'full_attention', 'full_attention']}",
        "{'model_type': 'qwen3_moe', " LLAMA_SIZES
        ", 'num_key_value_heads': 2, 'num_experts': 16, 'num_experts_per_tok': 4, "
        "'moe_intermediate_size': 48, 'norm_topk_prob': true}",
        "{'model_type': 'mixtral', " LLAMA_SIZES
        ", 'num_local_experts': 8, 'num_experts_per_tok': 2, 'sliding_window': 32}",
        "{'model_type': 'gemma3_text', " LLAMA_SIZES
        ", 'head_dim': 32, 'sliding_window': 16, 'query_pre_attn_scalar': 168, "
        "'rope_theta': 1000000.0, 'rope_scaling': {'factor': 8.0, 'rope_type': 'linear'}}",
        "{'architectures': ['Gemma3TextModel'], " LLAMA_SIZES
        ", 'head_dim': 32, 'sliding_window': 17, 'use_bidirectional_attention': "
        "true, 'hcache_pooling': 'mean', 'hcache_dense': [96, 24]}",
        "{'model_type': 'olmo2', " LLAMA_SIZES "}",
        "{'model_type': 'granite', " LLAMA_SIZES
        ", 'embedding_multiplier': 12, 'residual_multiplier': 0.22, "
        "'attention_multiplier': "
        "0.0078125, 'logits_scaling': 7}",
        "{'model_type': 'cohere2', " LLAMA_SIZES
        ", 'sliding_window': 16, 'logit_scale': 0.25, 'layer_switch': 2}",
        "{'model_type': 'ministral3', " LLAMA_SIZES
        ", 'rope_parameters': {'rope_type': 'yarn', 'factor': 16.0, 'mscale': 1, "
        "'mscale_all_dim': 1, 'original_max_position_embeddings': 64, "
        "'llama_4_scaling_beta': 0.125}}",
        "{'model_type': 'glm4_moe', " LLAMA_SIZES
        ", 'moe_intermediate_size': 32, 'n_routed_experts': 12, 'num_experts_per_tok': 4, "
        "'n_shared_experts': 2, 'first_k_dense_replace': 2, 'n_group': 4, 'topk_group': "
        "3, 'routed_scaling_factor': 2.5, 'use_qk_norm': true, 'attention_bias': "
        "true, 'norm_topk_prob': false}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct model_config c = parse(texts[i]);
        assert_true(!c.both_ways || (c.sliding_window == 9 && c.dense[1] == 24));
        assert_round_trip(&c);
    }
}

/* --- folders ------------------------------------------------------------------------------ */

static void put_file(const char *dir, const char *name, const char *text)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(quotes(text), f);
    fclose(f);
}

TEST(test_load)
{
    char dir[TEMPDIR_BYTES];
    tempdir_make(dir, "config");
    struct model_config c;
    struct tokenizer_config t;
    struct err err = {0};
    assert_int_equal(config_load(&c, dir, &err), -ENOENT);
    assert_non_null(strstr(err.msg, "config.json"));
    assert_int_equal(config_load(&c, "org/no-folder", &err), -ENOENT);
    assert_non_null(
        strstr(err.msg, "org/no-folder: No such file or directory; a model is"));
    assert_int_equal(config_load(&c, "", &err), -ENOENT);
    assert_non_null(strstr(err.msg, "'': "));
    assert_int_equal(config_load(&c, "/dev/null", &err), -ENOTDIR);
    assert_non_null(strstr(err.msg, "/dev/null: is a file; a model is a folder"));
    assert_int_equal(tokenizer_config_load(&t, dir, &err), 0);
    assert_null(t.chat_template);
    assert_int_equal(t.add_bos_token, -1);
    tokenizer_config_deinit(&t);

    char pipe[TEMPDIR_BYTES + 16];
    snprintf(pipe, sizeof pipe, "%s/config.json", dir);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    /* a pipe is refused without waiting for its writer */
    assert_int_equal(config_load(&c, dir, &err), ERR_FORMAT);
    assert_non_null(strstr(err.msg, "config.json: not a regular file"));
    assert_int_equal(unlink(pipe), 0);

    put_file(dir, "config.json", LLAMA(", 'eos_token_id': 2"));
    assert_int_equal(config_load(&c, dir, &err), 0);
    assert_int_equal(c.eos_ids[0], 2);
    put_file(dir, "generation_config.json", "{'eos_token_id': [5, 6]}");
    assert_int_equal(config_load(&c, dir, &err), 0);
    assert_int_equal(c.n_eos, 2);
    assert_true(config_is_eos(&c, 6) && !config_is_eos(&c, 2));
    put_file(dir, "generation_config.json", "{'eos_token_id': 4096}");
    assert_int_equal(config_load(&c, dir, &err), ERR_FORMAT);
    assert_non_null(strstr(err.msg, "generation_config.json: 'eos_token_id' 4096"));

    put_file(dir, "tokenizer_config.json",
             "{'bos_token': {'content': '<s>', 'special': true}, 'eos_token': '</s>', "
             "'add_bos_token': true, 'model_max_length': "
             "1000000000000000019884624838656, 'chat_template': [{'name': 'tool_use', "
             "'template': 'T'}, {'name': 'default', 'template': 'D'}]}");
    assert_int_equal(tokenizer_config_load(&t, dir, &err), 0);
    assert_string_equal(t.bos_token, "<s>");
    assert_string_equal(t.eos_token, "</s>");
    assert_null(t.unk_token);
    assert_string_equal(t.chat_template, "D");
    assert_int_equal(t.add_bos_token, 1);
    assert_int_equal(t.add_eos_token, -1);
    tokenizer_config_deinit(&t);
    put_file(dir, "chat_template.jinja", "{{ bos_token }}");
    assert_int_equal(tokenizer_config_load(&t, dir, &err), 0);
    assert_string_equal(t.chat_template, "{{ bos_token }}");
    tokenizer_config_deinit(&t);
    put_file(dir, "tokenizer_config.json", "{'chat_template': 5}");
    assert_int_equal(tokenizer_config_load(&t, dir, &err), ERR_FORMAT);
    assert_non_null(strstr(err.msg, "'chat_template' must be a string, it is an integer"));
    tokenizer_config_deinit(&t);

    tempdir_remove(dir);
}

TEST(test_real_folder)
{
    struct model_config c;
    struct err err = {0};
    if (config_load(&c, "models/demo", &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(c.n_embd, 256);
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.weight_type, WEIGHT_BF16);
}
