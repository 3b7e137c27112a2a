/* test_config_fields.c - every field of a config.json: its default, its bounds, the values that are
 * refused, and the description that a family's file gives. */
#include "model/config.h"

#include "base/err.h"
#include "tests/base/quotes.h"
#include "tests/base/tempdir.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "tests/unit.h"

/* The smallest file of each family: the fields without a default. Width 64, 5 layers, 8 heads. */
#define SIZES                                                                              \
    "'hidden_size': 64, 'num_hidden_layers': 5, 'num_attention_heads': 8, 'vocab_size': "  \
    "512"
#define LLAMA_SIZES SIZES ", 'intermediate_size': 172, 'max_position_embeddings': 256"

static const struct family {
    const char *type, *sizes;
} llama = {"llama", LLAMA_SIZES},
  mistral = {"mistral", LLAMA_SIZES ", 'num_key_value_heads': 2"},
  qwen2 = {"qwen2", LLAMA_SIZES ", 'num_key_value_heads': 2"},
  qwen3 = {"qwen3", LLAMA_SIZES ", 'num_key_value_heads': 2"},
  opt = {"opt", SIZES ", 'ffn_dim': 172, 'max_position_embeddings': 256"},
  phi = {"phi", LLAMA_SIZES}, phi3 = {"phi3", LLAMA_SIZES},
  gemma = {"gemma", LLAMA_SIZES ", 'head_dim': 32"}, falcon = {"falcon", SIZES},
  granite_hybrid =
      {"granitemoehybrid", LLAMA_SIZES
       ", 'shared_intermediate_size': 96, 'mamba_n_heads': 8, 'mamba_d_state': 32"},
  lfm2 = {"lfm2", SIZES ", 'num_key_value_heads': 2, 'max_position_embeddings': 256"};

static int parse(struct model_config *c, const char *text, const char *name, struct err *e)
{
    const char *json = quotes(text);
    return config_parse(c, json, strlen(json), name, e);
}

static int parse_with(struct model_config *c, const struct family *f, const char *more,
                      struct err *e)
{
    char text[4096];
    int n = snprintf(text, sizeof text, "{'model_type': '%s', %s%s%s}", f->type, f->sizes,
                     more[0] != 0 ? ", " : "", more);
    assert_in_range(n, 1, sizeof text - 1);
    return parse(c, text, "config.json", e);
}

static struct model_config with(const struct family *f, const char *more)
{
    struct model_config c;
    struct err e = {0};
    if (parse_with(&c, f, more, &e) != 0)
        fail_msg("%s", e.msg);
    return c;
}

static void refuse(const struct family *f, const char *more, int code, const char *message)
{
    struct model_config c;
    struct err e = {0};
    int rc = parse_with(&c, f, more, &e);
    if (rc != code || strstr(e.msg, message) == NULL ||
        strstr(e.msg, "config.json: ") != e.msg)
        fail_msg("%s: expected %s with '%s', got %s: %s", more, err_name(code), message,
                 err_name(rc), e.msg);
}

/* --- a family's description --------------------------------------------------------------- */

/* The text of every field that determines a state's bits. The fingerprint contains it, so a change
 * here makes saved state useless. */
TEST(test_a_minimal_file_gives_the_whole_description)
{
    static const struct {
        const struct family *f;
        const char *text;
    } known[] = {
        {&llama, "family llama; layers 5; width 64; heads 8; kv heads 8; head 8; ffn 172; "
                 "vocabulary 512; block 0; norm 0; eps 0x1.0c6f7ap-20; act 0; gated 1; "
                 "biases 0 0 0 0; qk norm 0; position 0; theta 0x1.388p+13; rotated 8; "
                 "scaling 0 0x0p+0 0x0p+0 0x0p+0 0; context 0; offset 0; window 0 from "
                 "layer 0; embedding 0x1p+0; tied 0; factors"},
        {&mistral, "family mistral; layers 5; width 64; heads 8; kv heads 2; head 8; ffn "
                   "172; vocabulary 512; block 0; norm 0; eps 0x1.0c6f7ap-20; act 0; gated "
                   "1; biases 0 0 0 0; qk norm 0; position 0; theta 0x1.388p+13; rotated "
                   "8; scaling 0 0x0p+0 0x0p+0 0x0p+0 0; context 0; offset 0; window 4096 "
                   "from layer 0; embedding 0x1p+0; tied 0; factors"},
        {&qwen2, "family qwen2; layers 5; width 64; heads 8; kv heads 2; head 8; ffn 172; "
                 "vocabulary 512; block 0; norm 0; eps 0x1.0c6f7ap-20; act 0; gated 1; "
                 "biases 1 0 0 0; qk norm 0; position 0; theta 0x1.388p+13; rotated 8; "
                 "scaling 0 0x0p+0 0x0p+0 0x0p+0 0; context 0; offset 0; window 0 from "
                 "layer 0; embedding 0x1p+0; tied 0; factors"},
        {&qwen3, "family qwen3; layers 5; width 64; heads 8; kv heads 2; head 8; ffn 172; "
                 "vocabulary 512; block 0; norm 0; eps 0x1.0c6f7ap-20; act 0; gated 1; "
                 "biases 0 0 0 0; qk norm 1; position 0; theta 0x1.388p+13; rotated 8; "
                 "scaling 0 0x0p+0 0x0p+0 0x0p+0 0; context 0; offset 0; window 0 from "
                 "layer 0; embedding 0x1p+0; tied 0; factors"},
        {&opt,
         "family opt; layers 5; width 64; heads 8; kv heads 8; head 8; ffn 172; vocabulary "
         "512; block 0; norm 2; eps 0x1.4f8b58p-17; act 3; gated 0; biases 1 1 1 0; qk "
         "norm 0; position 1; theta 0x0p+0; rotated 0; scaling 0 0x0p+0 0x0p+0 0x0p+0 0; "
         "context 0; offset 2; window 0 from layer 0; embedding 0x1p+0; tied 1; factors"},
        {&phi, "family phi; layers 5; width 64; heads 8; kv heads 8; head 8; ffn 172; "
               "vocabulary 512; block 1; norm 2; eps 0x1.4f8b58p-17; act 2; gated 0; "
               "biases 1 1 1 1; qk norm 0; position 0; theta 0x1.388p+13; rotated 4; "
               "scaling 0 0x0p+0 0x0p+0 0x0p+0 0; context 0; offset 0; window 0 from layer "
               "0; embedding 0x1p+0; tied 0; factors"},
        {&phi3, "family phi3; layers 5; width 64; heads 8; kv heads 8; head 8; ffn 172; "
                "vocabulary 512; block 0; norm 0; eps 0x1.4f8b58p-17; act 0; gated 1; "
                "biases 0 0 0 0; qk norm 0; position 0; theta 0x1.388p+13; rotated 8; "
                "scaling 0 0x0p+0 0x0p+0 0x0p+0 0; context 0; offset 0; window 0 from "
                "layer 0; embedding 0x1p+0; tied 0; factors"},
        {&gemma, "family gemma; layers 5; width 64; heads 8; kv heads 8; head 32; ffn 172; "
                 "vocabulary 512; block 0; norm 1; eps 0x1.0c6f7ap-20; act 2; gated 1; "
                 "biases 0 0 0 0; qk norm 0; position 0; theta 0x1.388p+13; rotated 32; "
                 "scaling 0 0x0p+0 0x0p+0 0x0p+0 0; context 0; offset 0; window 0 from "
                 "layer 0; embedding 0x1p+3; tied 1; factors"},
        {&falcon, "family falcon; layers 5; width 64; heads 8; kv heads 1; head 8; ffn "
                  "256; vocabulary 512; block 1; norm 2; eps 0x1.4f8b58p-17; act 1; gated "
                  "0; biases 0 0 0 0; qk norm 0; position 0; theta 0x1.388p+13; rotated 8; "
                  "scaling 0 0x0p+0 0x0p+0 0x0p+0 0; context 0; offset 0; window 0 from "
                  "layer 0; embedding 0x1p+0; tied 1; factors"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct model_config c = with(known[i].f, "");
        char *text = config_state_text(&c);
        assert_string_equal(text, known[i].text);
        assert_int_equal(c.max_ctx, known[i].f == &falcon ? 2048 : 256);
        assert_int_equal(c.weight_type, WEIGHT_UNSPECIFIED);
        assert_int_equal(c.bos_id, -1);
        assert_int_equal(c.n_eos, 0);
        free(text);
    }
}

/* The factors of rotations are part of the state; the context is not. */
TEST(test_scalings_are_part_of_the_state)
{
    struct model_config c = with(
        &llama,
        "'rope_scaling': {'rope_type': 'llama3', 'factor': 8, 'low_freq_factor': 1, "
        "'high_freq_factor': 4, 'original_max_position_embeddings': 8192}");
    char *text = config_state_text(&c);
    assert_non_null(strstr(text, "; scaling 2 0x0p+0 0x0p+0 0x0p+0 0; context 0;"));
    free(text);
    c = with(&llama, "'rope_scaling': {'rope_type': 'factors', 'factors': [1, 2, 3, 4]}");
    text = config_state_text(&c);
    assert_non_null(strstr(text, "; scaling 2 0x0p+0 0x0p+0 0x0p+0 0; context 0;"));
    assert_non_null(strstr(text, "; factors 0x1p+0 0x1p+1 0x1.8p+1 0x1p+2"));
    assert_string_equal(strrchr(text, ' '), " 0x1p+2");
    free(text);
}

/* --- switches ----------------------------------------------------------------------------- */

/* Fields for which one value is supported: that value is accepted, and another is refused. */
TEST(test_switches)
{
    static const struct {
        const struct family *f;
        const char *good, *bad, *message;
    } known[] = {
        {&llama, "'attention_bias': false", "'attention_bias': true",
         "'attention_bias': true is not supported"},
        {&llama, "'mlp_bias': false", "'mlp_bias': true", "'mlp_bias': true"},
        {&gemma, "'attention_bias': false", "'attention_bias': true",
         "'attention_bias': true"},
        {&mistral, "'rope_interleaved': false", "'rope_interleaved': true",
         "'rope_interleaved': true"},
        {&qwen2, "'use_mrope': false", "'use_mrope': true", "'use_mrope': true"},
        {&phi3, "'lm_head_bias': false", "'lm_head_bias': true", "'lm_head_bias': true"},
        {&phi3, "'full_attn_mod': 1", "'full_attn_mod': 2",
         "'full_attn_mod': only 1 is supported"},
        {&phi3, "'interpolate_factor': 1", "'interpolate_factor': 0",
         "'interpolate_factor': only 1 is supported"},
        {&opt, "'do_layer_norm_before': true", "'do_layer_norm_before': false",
         "'do_layer_norm_before': false is not supported"},
        {&opt, "'_remove_final_layer_norm': false", "'_remove_final_layer_norm': true",
         "'_remove_final_layer_norm': true"},
        {&opt, "'layer_norm_elementwise_affine': true",
         "'layer_norm_elementwise_affine': false",
         "'layer_norm_elementwise_affine': false"},
        {&opt, "'enable_bias': true", "'enable_bias': false", "'enable_bias': false"},
        {&opt, "'word_embed_proj_dim': 64", "'word_embed_proj_dim': 32",
         "'word_embed_proj_dim': other than hidden_size is not supported"},
        {&phi, "'qk_layernorm': false", "'qk_layernorm': true", "'qk_layernorm': true"},
        {&falcon, "'alibi': false", "'alibi': true", "'alibi': true"},
        {&falcon, "'apply_residual_connection_post_layernorm': false",
         "'apply_residual_connection_post_layernorm': true",
         "'apply_residual_connection_post_layernorm': true"},
        {&falcon, "'ff_factor': 4", "'ff_factor': 5", "'ff_factor': only 4"},
        {&falcon, "'bias': false", "'bias': true", "'bias': true"},
        {&falcon, "'num_ln_in_parallel_attn': 1", "'num_ln_in_parallel_attn': 2",
         "'num_ln_in_parallel_attn': 2 needs new_decoder_architecture"},
        {&falcon, "'new_decoder_architecture': true, 'parallel_attn': true",
         "'new_decoder_architecture': true, 'parallel_attn': false",
         "'parallel_attn': false with new_decoder_architecture is not supported"},
        {&llama, "'is_encoder_decoder': false", "'is_encoder_decoder': true",
         "'is_encoder_decoder': true"},
        {&llama, "'add_cross_attention': false", "'add_cross_attention': true",
         "'add_cross_attention': true"},
        {&llama, "'use_bidirectional_attention': false",
         "'use_bidirectional_attention': true", "'use_bidirectional_attention': true"},
        {&llama, "'pruned_heads': {}", "'pruned_heads': {'0': [1]}",
         "'pruned_heads': pruned models are not supported"},
        {&llama, "'quantization_config': null", "'quantization_config': {}",
         "'quantization_config': quantized checkpoints are not supported"},
        {&llama, "'is_decoder': true", "'is_decoders': true", "'is_decoders'"},
        {&llama, "'tie_encoder_decoder': true", "'tie_encoder': true", "'tie_encoder'"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        with(known[i].f, known[i].good);
        refuse(known[i].f, known[i].bad, ERR_UNSUPPORTED, known[i].message);
    }
}

/* Fields of related families pass with the value that has no effect. */
TEST(test_fields_of_related_families)
{
    static const struct {
        const char *key;
        int neutral;
    } known[] = {{"attention_multiplier", 1},
                 {"embedding_multiplier", 1},
                 {"residual_multiplier", 1},
                 {"logits_scaling", 1},
                 {"logit_scale", 1},
                 {"query_pre_attn_scalar", 0},
                 {"num_local_experts", 0},
                 {"num_experts", 0},
                 {"n_routed_experts", 0},
                 {"attn_logit_softcapping", 0},
                 {"final_logit_softcapping", 0}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        char field[80], message[96];
        snprintf(field, sizeof field, "'%s': %d", known[i].key, known[i].neutral);
        with(&llama, field);
        snprintf(field, sizeof field, "'%s': null", known[i].key);
        with(&llama, field);
        snprintf(field, sizeof field, "'%s': %d", known[i].key, 1 - known[i].neutral);
        snprintf(message, sizeof message, "'%s': models of this family do not have it",
                 known[i].key);
        refuse(&llama, field, ERR_UNSUPPORTED, message);
    }
}

TEST(test_activations)
{
    with(&llama, "'hidden_act': 'silu'");
    with(&llama, "'hidden_act': 'swish'");
    refuse(&llama, "'hidden_act': 'relu'", ERR_UNSUPPORTED,
           "'hidden_act': activation 'relu' is not supported in llama");
    refuse(&llama, "'hidden_act': ''", ERR_UNSUPPORTED, "activation '' is not");
    with(&opt, "'activation_function': 'relu'");
    refuse(&opt, "'activation_function': 'gelu'", ERR_UNSUPPORTED,
           "'activation_function': activation 'gelu' is not supported in opt");
    with(&phi, "'hidden_act': 'gelu_new'");
    with(&phi, "'hidden_act': 'gelu_pytorch_tanh'");
    refuse(&phi, "'hidden_act': 'gelu'", ERR_UNSUPPORTED, "activation 'gelu'");
    with(&falcon, "'activation': 'gelu'");
    refuse(&falcon, "'activation': 'gelu_new'", ERR_UNSUPPORTED, "'gelu_new'");
    with(&gemma, "'hidden_act': 'gelu_pytorch_tanh'");
    with(&gemma, "'hidden_act': 'relu', 'hidden_activation': 'gelu_new'");
    refuse(&gemma, "'hidden_act': 'gelu'", ERR_UNSUPPORTED,
           "'hidden_act': activation 'gelu' is not supported in gemma");
    refuse(&gemma, "'hidden_activation': 'silu'", ERR_UNSUPPORTED,
           "'hidden_activation': activation 'silu' is not supported in gemma");
}

/* --- numbers ------------------------------------------------------------------------------ */

/* The least and the largest value of each integer; the values beyond them name the range. */
TEST(test_bounds_of_integers)
{
    static const struct {
        const struct family *f;
        const char *key;
        long long min, max;
    } known[] = {
        {&llama, "head_dim", 1, 65536},
        {&llama, "num_key_value_heads", 1, 65536},
        {&mistral, "sliding_window", 1, 1 << 30},
        {&phi, "num_key_value_heads", 1, 65536},
        {&phi3, "sliding_window", 1, 1 << 30},
        {&opt, "word_embed_proj_dim", 1, 65536},
        {&falcon, "ffn_hidden_size", 1, 65536},
        {&falcon, "max_position_embeddings", 1, 1 << 30},
        {&falcon, "num_ln_in_parallel_attn", 1, 2},
        {&llama, "bos_token_id", -1, 4194304},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        for (int above = 0; above < 2; above++) {
            char field[80], message[96];
            long long x = above ? known[i].max + 1 : known[i].min - 1;
            snprintf(field, sizeof field, "'%s': %lld", known[i].key, x);
            snprintf(message, sizeof message, "'%s' is %lld, it must lie in %lld..%lld",
                     known[i].key, x, known[i].min, known[i].max);
            refuse(known[i].f, field, ERR_FORMAT, message);
        }
    assert_int_equal(with(&mistral, "'sliding_window': 1").sliding_window, 1);
    assert_int_equal(with(&mistral, "'sliding_window': 1073741824").sliding_window,
                     1 << 30);
    assert_int_equal(with(&falcon, "'max_position_embeddings': 1").max_ctx, 1);
    assert_int_equal(with(&falcon, "'ffn_hidden_size': 65536, 'ff_factor': 1024").n_ffn,
                     65536);
}

/* The limits of heads, each at its last good value and at the next. */
TEST(test_limits_of_heads)
{
    static const char form[] =
        "{'model_type': 'llama', 'hidden_size': %d, 'num_hidden_layers': "
        "1, 'num_attention_heads': %d, 'num_key_value_heads': %d, 'head_dim': "
        "%d,'vocab_size': 4, 'intermediate_size': 4, 'max_position_embeddings': 4}";
    static const struct {
        int width, heads, kv, dim, code;
        const char *message;
    } known[] = {
        {65536, 256, 256, 256, 0, ""}, /* 65536 in all, 256 a head */
        {64, 258, 258, 256, ERR_FORMAT, "258 heads of 256 dimensions are more than 65536"},
        {64, 1, 1, 576, 0, ""},
        {64, 1, 1, 578, ERR_UNSUPPORTED, "heads of 578 dimensions: at most 576"},
        {64, 96, 1, 8, 0, ""},
        {64, 97, 1, 8, ERR_UNSUPPORTED, "97 attention heads for each KV head: at most 96"},
        {64, 4, 4, 2, 0, ""},
        {64, 4, 4, 1, ERR_FORMAT, "1 dimensions of a head are rotated; the number must be"},
        {64, 4, 4, 3, ERR_FORMAT, "3 dimensions of a head are rotated"},
        {64, 4, 3, 8, ERR_FORMAT, "4 attention heads are not a multiple of 3 KV heads"},
        {64, 4, 8, 8, ERR_FORMAT, "4 attention heads are not a multiple of 8 KV heads"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        char text[512];
        struct model_config c;
        struct err e = {0};
        snprintf(text, sizeof text, form, known[i].width, known[i].heads, known[i].kv,
                 known[i].dim);
        int rc = parse(&c, text, "config.json", &e);
        assert_int_equal(rc, known[i].code);
        if (strstr(e.msg, known[i].message) == NULL)
            fail_msg("'%s' does not say '%s'", e.msg, known[i].message);
    }
    refuse(
        &(struct family){
            "llama",
            "'hidden_size': 64, 'num_hidden_layers': 5, 'num_attention_heads': 7, "
            "'vocab_size': 512, 'intermediate_size': 172, 'max_position_embeddings': 256"},
        "", ERR_FORMAT,
        "'hidden_size' is 64, which is not a multiple of 7 'num_attention_heads'");
    refuse(&falcon, "'new_decoder_architecture': true, 'num_kv_heads': 3", ERR_FORMAT,
           "8 attention heads are not a multiple of 3 KV heads");
}

TEST(test_eps)
{
    static const char between[] = "'rms_norm_eps' must lie between 0 and 1";
    assert_true(with(&llama, "'rms_norm_eps': 0.5").norm_eps == 0.5f);
    assert_true(with(&phi, "'layer_norm_eps': 0.5").norm_eps == 0.5f);
    assert_true(with(&falcon, "'layer_norm_epsilon': 0.5").norm_eps == 0.5f);
    refuse(&llama, "'rms_norm_eps': 0", ERR_FORMAT, between);
    refuse(&llama, "'rms_norm_eps': 1", ERR_FORMAT, between);
    refuse(&llama, "'rms_norm_eps': 1e-60", ERR_FORMAT, between); /* 0 as f32 */
    refuse(&llama, "'rms_norm_eps': 'small'", ERR_FORMAT, "'rms_norm_eps'");
}

/* --- positions ---------------------------------------------------------------------------- */

TEST(test_the_rotated_share_of_a_head)
{
    static const char share[] = "'partial_rotary_factor' must lie in (0, 1]";
    assert_int_equal(with(&phi, "'partial_rotary_factor': 1").d_rope, 8);
    assert_int_equal(with(&phi, "'partial_rotary_factor': 0.25").d_rope, 2);
    refuse(&phi, "'partial_rotary_factor': 0", ERR_FORMAT, share);
    refuse(&phi, "'partial_rotary_factor': -0.5", ERR_FORMAT, share);
    refuse(&phi, "'partial_rotary_factor': 1.25", ERR_FORMAT, share);
    refuse(&phi, "'partial_rotary_factor': 0.1", ERR_FORMAT,
           "0 dimensions of a head are rotated");
    refuse(&phi, "'partial_rotary_factor': 0.15", ERR_FORMAT,
           "1 dimensions of a head are rotated");
    refuse(&phi, "'partial_rotary_factor': 0.4", ERR_FORMAT,
           "3 dimensions of a head are rotated");
    assert_true(with(&llama, "'rope_theta': 0.5").rope_theta == 0.5);
    refuse(&llama, "'rope_theta': 0", ERR_FORMAT, "'rope_theta' must be positive");
    refuse(&llama, "'rope_theta': -1", ERR_FORMAT, "'rope_theta' must be positive");
}

#define LLAMA3(factor, low, high)                                                          \
    "'rope_scaling': {'rope_type': 'llama3', 'factor': " factor                            \
    ", 'low_freq_factor': " low ", 'high_freq_factor': " high                              \
    ", 'original_max_position_embeddings': 1}"

TEST(test_scaling_of_llama3)
{
    static const char needs[] =
        "'rope_scaling': needs factor >= 1 and 0 < low_freq_factor < high_freq_factor";
    struct model_config c = with(&llama, LLAMA3("1", "0.5", "0.75"));
    assert_int_equal(c.rope_scaling.kind, ROPE_SCALING_FACTORS);
    for (int i = 0; i < c.d_rope / 2; i++)
        assert_true(c.rope_scaling.factors[i] == 1);
    refuse(&llama, LLAMA3("0.5", "0.5", "0.75"), ERR_FORMAT, needs);
    refuse(&llama, LLAMA3("2", "0", "0.75"), ERR_FORMAT, needs);
    refuse(&llama, LLAMA3("2", "0.75", "0.75"), ERR_FORMAT, needs);
    refuse(&llama, LLAMA3("2", "'a'", "0.75"), ERR_FORMAT,
           "'rope_scaling': 'low_freq_factor'");
    /* the first error is reported */
    refuse(&llama, LLAMA3("'a'", "'b'", "0.75"), ERR_FORMAT, "'factor'");
}

/* Lists `n` factors, each 2. */
static const char *factors(int n, const char *last)
{
    static char text[2048];
    size_t at = (size_t)snprintf(text, sizeof text,
                                 "'rope_scaling': {'type': 'factors', 'factors': [");
    for (int i = 0; i + 1 < n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "2, ");
    snprintf(text + at, sizeof text - at, "%s]}", last);
    return text;
}

TEST(test_scaling_by_factors)
{
    static const char range[] = "'factors' must be numbers from 0.001 to 1000000";
    struct model_config c = with(&llama, factors(4, "3.5"));
    assert_int_equal(c.rope_scaling.kind, ROPE_SCALING_FACTORS);
    assert_true(c.rope_scaling.factors[0] == 2 && c.rope_scaling.factors[3] == 3.5f);
    assert_true(with(&llama, factors(4, "0.001")).rope_scaling.factors[3] == 0.001f);
    assert_true(with(&llama, factors(4, "1000000")).rope_scaling.factors[3] == 1e6f);
    refuse(&llama, factors(4, "0.0009"), ERR_FORMAT, range);
    refuse(&llama, factors(4, "1000001"), ERR_FORMAT, range);
    refuse(&llama, factors(4, "'2'"), ERR_FORMAT, range);
    refuse(&llama, factors(3, "2"), ERR_FORMAT, "'factors' has fewer entries than 4");
    const struct family wide = {"llama", LLAMA_SIZES ", 'head_dim': 512"};
    assert_true(with(&wide, factors(256, "3")).rope_scaling.factors[255] == 3);
    refuse(&wide, factors(257, "2"), ERR_FORMAT, "'factors' has more than 256 entries");
    refuse(&wide, factors(255, "2"), ERR_FORMAT, "'factors' has fewer entries than 256");
    refuse(&llama, "'rope_scaling': {'type': 'factors'}", ERR_FORMAT,
           "'rope_scaling': 'factors' is missing");
}

TEST(test_the_object_of_rotations)
{
    struct model_config c = with(
        &llama, "'rope_parameters': {'rope_type': 'default', 'rope_theta': "
                "7, 'original_max_position_embeddings': 4096}");
    assert_int_equal(c.rope_scaling.kind, ROPE_SCALING_NONE);
    assert_true(c.rope_theta == 7);
    /* rope_type counts before type */
    with(&llama, "'rope_scaling': {'rope_type': 'default', 'type': 'yarn'}");
    refuse(&llama, "'rope_scaling': {'rope_type': 'dynamic', 'type': 'default'}",
           ERR_UNSUPPORTED, "'rope_scaling': RoPE scaling of type 'dynamic'");
    refuse(&llama, "'rope_scaling': {'rope_theta': 'x', 'type': 'llama3'}", ERR_FORMAT,
           "'rope_scaling': 'rope_theta' must be");
    refuse(&llama, "'rope_scaling': 5", ERR_FORMAT, "'rope_scaling'");
    assert_int_equal(
        with(&phi, "'rope_scaling': {'type': 'default', 'partial_rotary_factor': 0.25}")
            .d_rope,
        2);
}

/* --- windows ------------------------------------------------------------------------------ */

#define WINDOW "'use_sliding_window': true, 'sliding_window': 64"
#define FULL   "'full_attention'"
#define SLIDES "'sliding_attention'"

static void expect_window(const char *more, int window, int layer)
{
    struct model_config c = with(&qwen2, more);
    struct layer_set want = layer_set_run(layer, window > 0 ? c.n_layers : 0);
    assert_int_equal(c.sliding_window, window);
    assert_memory_equal(&c.windowed, &want, sizeof want);
}

TEST(test_windows_of_some_layers)
{
    expect_window(WINDOW, 0, 0); /* from layer 28 on */
    expect_window(WINDOW ", 'max_window_layers': 5", 0, 0);
    expect_window(WINDOW ", 'max_window_layers': 4", 64, 4);
    expect_window(WINDOW ", 'max_window_layers': 0", 64, 0);
    expect_window(
        "'use_sliding_window': true, 'sliding_window': null, 'max_window_layers': 3", 0, 0);
    struct model_config c = with(
        &(struct family){
            "qwen2", "'hidden_size': 64, 'num_hidden_layers': 30, 'num_attention_heads': "
                     "8, 'vocab_size': 512, 'num_key_value_heads': "
                     "2, 'intermediate_size': 172, 'max_position_embeddings': 256"},
        WINDOW);
    assert_int_equal(config_window(&c, 27), 0);
    assert_int_equal(config_window(&c, 28), 64);

    static const char any[] = ", 'max_window_layers': 1, 'layer_types': [";
    char more[512];
#define TYPES(list) (snprintf(more, sizeof more, "%s%s%s]", WINDOW, any, list), more)
    expect_window(TYPES(FULL "," FULL "," FULL "," FULL "," FULL), 0, 0);
    expect_window(TYPES(FULL "," FULL "," SLIDES "," SLIDES "," SLIDES), 64, 2);
    expect_window(TYPES(FULL "," FULL "," FULL "," FULL "," SLIDES), 64, 4);
    expect_window(TYPES(SLIDES "," SLIDES "," SLIDES "," SLIDES "," SLIDES), 64, 0);
    c = with(&qwen2, TYPES(FULL "," SLIDES "," FULL "," SLIDES "," FULL));
    assert_int_equal(c.windowed.word[0], 1 << 1 | 1 << 3);
    refuse(&qwen2, TYPES(FULL "," FULL "," FULL "," FULL), ERR_UNSUPPORTED,
           "'layer_types': must have one entry per layer");
    refuse(&qwen2, TYPES(FULL "," FULL "," FULL "," FULL "," FULL "," FULL),
           ERR_UNSUPPORTED, "'layer_types': must have one entry per layer");
    refuse(&qwen2, TYPES(FULL "," FULL "," FULL "," FULL ", 'linear'"), ERR_UNSUPPORTED,
           "'layer_types': only full_attention and sliding_attention are supported");
    refuse(&qwen2, TYPES(FULL "," FULL "," FULL "," FULL ", 5"), ERR_UNSUPPORTED,
           "'layer_types': only full_attention and sliding_attention are supported");
    refuse(&qwen2, "'layer_types': [" FULL "," FULL "," FULL "," FULL "," SLIDES "]",
           ERR_UNSUPPORTED, "'layer_types': sliding_attention without a sliding window");
    refuse(&qwen2, "'layer_types': 5", ERR_FORMAT, "'layer_types'");
}

TEST(test_missing_fields_of_a_family)
{
    const struct family bare_mistral = {"mistral", LLAMA_SIZES},
                        bare_qwen = {"qwen3", LLAMA_SIZES},
                        bare_gemma = {"gemma", LLAMA_SIZES};
    refuse(&bare_mistral, "", ERR_UNSUPPORTED, "'num_key_value_heads': is missing");
    refuse(&bare_qwen, "", ERR_UNSUPPORTED, "'num_key_value_heads': is missing");
    refuse(&bare_gemma, "", ERR_UNSUPPORTED, "'head_dim': is missing");
    const struct family odd = {
        "opt", "'hidden_size': 56, 'num_hidden_layers': 5, 'num_attention_heads': 8, "
               "'vocab_size': 512, 'ffn_dim': 172, 'max_position_embeddings': 256"};
    refuse(&odd, "", ERR_UNSUPPORTED, "heads of 7 dimensions: the number must be even");
    assert_true(with(&gemma, "").tie_word_embeddings);
    assert_false(with(&gemma, "'tie_word_embeddings': false").tie_word_embeddings);
    assert_false(with(&opt, "'tie_word_embeddings': false").tie_word_embeddings);
    assert_true(with(&phi, "'tie_word_embeddings': true").tie_word_embeddings);
    assert_false(with(&falcon, "'tie_word_embeddings': false").tie_word_embeddings);
}

/* Fields of Cohere 2 and Ministral 3 that would change results. */
TEST(test_fixed_fields_of_families)
{
    const struct family cohere2 = {"cohere2", LLAMA_SIZES},
                        ministral3 = {"ministral3", LLAMA_SIZES};
    struct model_config c = with(&cohere2, "'layer_switch': 2, 'rotary_pct': 1.0");
    assert_true(config_window(&c, 0) == 4096 && config_window(&c, 1) == 0);
    assert_true(c.logit_scale == 0.0625f && c.tie_word_embeddings);
    refuse(&cohere2, "'use_qk_norm': true", ERR_UNSUPPORTED, "'use_qk_norm'");
    refuse(&cohere2, "'rotary_pct': 0.5", ERR_UNSUPPORTED, "only 1 is supported");
    refuse(&cohere2, "'rope_scaling': {'rope_type': 'linear', 'factor': 2}",
           ERR_UNSUPPORTED, "'rope_scaling'");
    refuse(&ministral3, "'rope_theta': 5", ERR_UNSUPPORTED,
           "'rope_parameters': is missing");
    refuse(&ministral3, "'rope_parameters': {'rope_theta': 5}", ERR_FORMAT,
           "'llama_4_scaling_beta'");
    const struct family glm = {
        "glm4_moe", LLAMA_SIZES
        ", 'moe_intermediate_size': 32, 'n_routed_experts': 12, 'num_experts_per_tok': 4"};
    c = with(&glm, "'n_shared_experts': 3, 'first_k_dense_replace': 2");
    assert_true(c.n_dense_layers == 2 && c.n_dense_ffn == 172 && c.n_ffn == 32);
    assert_true(c.n_shared_ffn == 96 && c.router_sigmoid && c.experts_normed &&
                !c.qkv_bias);
    assert_true(c.d_rope == c.d_head / 2 && !config_has_experts(&c, 1) &&
                config_has_experts(&c, 2));
    refuse(&glm, "'n_group': 5", ERR_FORMAT, "do not fit 12 experts");
    refuse(&glm, "'n_group': 12", ERR_FORMAT, "do not fit 12 experts");
    refuse(&glm, "'n_group': 4", ERR_FORMAT, "of which 4 are used");
    refuse(&glm, "'topk_group': 2", ERR_FORMAT, "'n_group' 1 and 'topk_group' 2");
    refuse(&glm, "'first_k_dense_replace': 6", ERR_FORMAT, "'first_k_dense_replace'");
    refuse(&glm, "'routed_scaling_factor': 0", ERR_FORMAT, "must be a positive number");
}

#define GEMMA4(types)                                                                      \
    {                                                                                      \
        "gemma4_text",                                                                     \
            LLAMA_SIZES ", 'num_key_value_heads': 4, 'head_dim': 8, 'global_head_dim': "   \
                        "16, 'sliding_window': 6, 'layer_types': [" types                  \
                        "], 'rope_parameters': {'sliding_attention': {'rope_type': "       \
                        "'default'}, 'full_attention': {'rope_type': 'proportional', "     \
                        "'rope_theta': 1e6, 'partial_rotary_factor': 0.25}}"               \
    }
#define LOCAL "'sliding_attention'"
#define FULL  "'full_attention'"

/* Layers with a window and those without have heads and rotations of their own. */
TEST(test_layers_of_gemma4)
{
    const struct family f = GEMMA4(LOCAL "," FULL "," LOCAL "," LOCAL "," FULL);
    struct model_config c = with(&f, "'num_kv_shared_layers': 2");
    assert_true(config_d_head(&c, 0) == 8 && config_d_head(&c, 1) == 16 && c.d_rope == 16);
    assert_true(config_kv_heads(&c, 0) == 4 && config_kv_heads(&c, 1) == 4);
    assert_true(c.rope_scaling.factors[1] == 1 && c.rope_scaling.factors[2] == ROPE_STILL);
    assert_true(c.rope_local_theta == 10000 && c.rope_theta == 1e6);
    assert_true(config_n_keeping(&c) == 3 && config_kv_layer(&c, 3) == 2 &&
                config_kv_layer(&c, 4) == 1 && config_kv_layer(&c, 2) == 2);
    assert_true(c.n_layer_embd == 256 && !c.v_is_k && c.attn_scale == 1);
    /* the heads of layers without a window count only if their K is their V */
    assert_int_equal(with(&f, "'num_global_key_value_heads': 1").n_kv_heads, 4);
    c = with(&f, "'num_global_key_value_heads': 1, 'attention_k_eq_v': true");
    assert_true(c.n_kv_heads == 1 && c.v_is_k && config_most_kv_dim(&c) == 32);
    c = with(&f, "'per_layer_config': {'1': {'head_dim': 32}, '4': {'head_dim': 32}}");
    assert_true(config_d_head(&c, 4) == 32 && config_d_head(&c, 3) == 8);
    refuse(&f, "'per_layer_config': {'1': {'head_dim': 32}}", ERR_UNSUPPORTED,
           "'per_layer_config': heads that differ");
    refuse(&f, "'num_kv_shared_layers': 4", ERR_UNSUPPORTED,
           "'num_kv_shared_layers': leaves layers without K and V to read");
    refuse(&f, "'vocab_size_per_layer_input': 511", ERR_UNSUPPORTED,
           "'vocab_size_per_layer_input': only 512");
    refuse(&f, "'use_bidirectional_attention': 'all'", ERR_UNSUPPORTED, "only vision");
    refuse(&f,
           "'enable_moe_block': true, 'num_experts': 4, 'top_k_experts': "
           "5, 'moe_intermediate_size': 8",
           ERR_UNSUPPORTED, "'top_k_experts': is more than the experts");
    const struct family ends = GEMMA4(LOCAL "," FULL "," LOCAL "," FULL "," LOCAL);
    refuse(&ends, "", ERR_UNSUPPORTED, "the last layer must see all tokens");
}

TEST(test_blocks_of_falcon)
{
    static const char grouped[] = "'new_decoder_architecture': true";
    char more[160];
    assert_int_equal(with(&falcon, "'multi_query': false").n_kv_heads, 8);
    assert_int_equal(with(&falcon, "'parallel_attn': false").block, BLOCK_SEQUENTIAL);
    assert_int_equal(with(&falcon, grouped).block, BLOCK_PARALLEL_NORM2);
    assert_int_equal(with(&falcon, grouped).n_kv_heads, 8);
    snprintf(more, sizeof more, "%s, 'num_ln_in_parallel_attn': 1, 'num_kv_heads': 4",
             grouped);
    assert_int_equal(with(&falcon, more).block, BLOCK_PARALLEL);
    assert_int_equal(with(&falcon, more).n_kv_heads, 4);
}

/* --- families and types of weights -------------------------------------------------------- */

static void parse_family(const char *text, enum model_family want)
{
    struct model_config c;
    struct err e = {0};
    char all[1024];
    snprintf(all, sizeof all, "{%s, %s}", text, qwen2.sizes);
    assert_int_equal(parse(&c, all, "config.json", &e), 0);
    assert_int_equal(c.family, want);
}

TEST(test_which_family)
{
    struct model_config c;
    struct err e = {0};
    parse_family("'architectures': ['Qwen3ForCausalLM']", FAMILY_QWEN3);
    parse_family("'model_type': 'qwen2', 'architectures': ['Qwen2ForCausalLM']",
                 FAMILY_QWEN2);
    parse_family("'model_type': 'llama', 'architectures': []", FAMILY_LLAMA);
    static const char mixed[] =
        "{'model_type': 'llama', 'architectures': ['MistralForCausalLM']}";
    assert_int_equal(parse(&c, mixed, "f", &e), ERR_UNSUPPORTED);
    assert_string_equal(
        e.msg, "f: model_type 'llama' with architecture 'MistralForCausalLM' is not "
               "supported; these are: llama, mistral, qwen2, qwen3, opt, phi, phi3, gemma, "
               "falcon, qwen3_moe, mixtral, gemma3_text, olmo2, olmo3, granite, gpt_oss, "
               "gemma2, qwen3_5_text, qwen3_5_moe_text, qwen3_next, cohere2, ministral3, "
               "glm4_moe, lfm2, gemma4_text, deepseek_v2, glm4_moe_lite, granitemoehybrid "
               "(see hcache model --families)");
    static const char alone[] = "{'architectures': ['MambaForCausalLM']}";
    assert_int_equal(parse(&c, alone, "f", &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "'(none)' with architecture 'MambaForCausalLM'"));
    static const char type[] = "{'model_type': 'mamba'}";
    assert_int_equal(parse(&c, type, "f", &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "'mamba' with architecture '(none)'"));
    static const char bad[] = "{'model_type': 'llama', 'architectures': 5}";
    assert_int_equal(parse(&c, bad, "f", &e), ERR_FORMAT);

    const char *name = NULL, *architecture = NULL;
    assert_false(family_at(-1, &name, &architecture));
    assert_false(family_at(FAMILY_GRANITE_HYBRID + 1, &name, &architecture));
    assert_null(name);
    assert_true(family_at(0, &name, &architecture));
    assert_string_equal(name, "llama");
    assert_string_equal(architecture, "LlamaForCausalLM");
    assert_true(family_at(8, &name, &architecture));
    assert_string_equal(name, "falcon");
    assert_string_equal(architecture, "FalconForCausalLM");
    assert_string_equal(family_name(FAMILY_FALCON), "falcon");
    assert_string_equal(family_name(FAMILY_GRANITE_HYBRID + 1), "unknown");
}

/* Older files of LFM2 name the layers of attention, and their width before it is made smaller. */
TEST(test_lfm2)
{
#define OLD "'full_attn_idxs': [1, 4], 'block_ff_dim': 1000"
    struct model_config c = with(&lfm2, OLD);
    assert_int_equal(c.n_ffn, 768);
    assert_int_equal(with(&lfm2, OLD ", 'block_ffn_dim_multiplier': 1.5").n_ffn, 1024);
    assert_int_equal(with(&lfm2, OLD ", 'block_auto_adjust_ff_dim': false").n_ffn, 1000);
    assert_true(c.tie_word_embeddings && c.rope_theta == 1e6 && c.norm_eps == 1e-5f);
    assert_false(with(&lfm2, OLD ", 'tie_embedding': false").tie_word_embeddings);
    for (int l = 0; l < 5; l++)
        assert_int_equal(config_is_recurrent(&c, l), l != 1 && l != 4);
    assert_int_equal(c.recurrence.n_conv, 3);
    assert_int_equal(c.recurrence.n_v * c.recurrence.d_v, 64);
    refuse(&lfm2, OLD ", 'conv_L_cache': 5", ERR_FORMAT, "'conv_L_cache'");
    refuse(&lfm2, OLD ", 'conv_bias': true", ERR_UNSUPPORTED, "'conv_bias': true");
    refuse(&lfm2, OLD ", 'block_ffn_dim_multiplier': 1e9", ERR_UNSUPPORTED, "no supported");
    refuse(&lfm2, "'intermediate_size': 96", ERR_UNSUPPORTED, "'layer_types': is missing");
    refuse(&lfm2, "'block_ff_dim': 96, 'full_attn_idxs': [5]", ERR_UNSUPPORTED,
           "'full_attn_idxs': must be numbers of layers");
    refuse(&lfm2, OLD ", 'layer_types': ['conv', 'mamba', 'conv', 'conv', 'conv']",
           ERR_UNSUPPORTED, "only full_attention and conv are supported");
    refuse(&lfm2, "'block_ff_dim': 96, 'full_attn_idxs': []", ERR_UNSUPPORTED,
           "a model without a layer of attention");
}

/* Published files of Granite 4 name layers as older ones do. */
TEST(test_granite_hybrid)
{
#define DENSE         ", 'num_local_experts': 0"
#define MAMBA(first)  "'layer_types': ['" first "', 'attention', 'mamba', 'mamba', 'mamba']"
#define OF(kind)      "'" kind "', '" kind "', '" kind "', '" kind "', '" kind "'"
#define ALL_ATTENTION "'layer_types': [" OF("attention") "]"
    struct model_config c = with(&granite_hybrid,
                                 MAMBA("mamba") DENSE ", 'mamba_d_head': 'auto'");
    for (int l = 0; l < 5; l++)
        assert_int_equal(config_is_recurrent(&c, l), l != 1);
    assert_true(c.n_ffn == 96 && c.n_experts == 0 && c.rope_local_only);
    assert_true(c.recurrence.n_k == 1 && c.recurrence.n_v == 8 && c.recurrence.d_v == 16);
    c = with(&granite_hybrid,
             MAMBA("mamba") ", 'num_local_experts': 8, 'num_experts_per_tok': 3, "
                            "'time_step_limit': [0.0, {'__float__': 'Infinity'}]");
    assert_true(c.n_ffn == 172 && c.n_shared_ffn == 96 && c.n_experts_used == 3 &&
                c.experts_normed);
    c = with(&granite_hybrid, ALL_ATTENTION DENSE ", 'position_embedding_type': 'rope'");
    assert_true(!config_is_hybrid(&c) && !c.rope_local_only);
    refuse(&granite_hybrid, "'mamba_d_conv': 4", ERR_UNSUPPORTED,
           "'layer_types': is missing");
    refuse(&granite_hybrid, MAMBA("conv") DENSE, ERR_UNSUPPORTED, "'layer_types': only");
    refuse(&granite_hybrid, MAMBA("mamba") DENSE ", 'mamba_d_conv': 5", ERR_FORMAT,
           "'mamba_d_conv'");
    refuse(&granite_hybrid, MAMBA("mamba") DENSE ", 'mamba_conv_bias': false",
           ERR_UNSUPPORTED, "'mamba_conv_bias'");
    refuse(&granite_hybrid, MAMBA("mamba") DENSE ", 'mamba_d_head': 32", ERR_UNSUPPORTED,
           "times 'mamba_n_heads'");
    refuse(&granite_hybrid, MAMBA("mamba") DENSE ", 'mamba_n_groups': 3", ERR_UNSUPPORTED,
           "'mamba_n_groups'");
    refuse(&granite_hybrid, MAMBA("mamba") DENSE ", 'time_step_limit': [0.0, 1.0]",
           ERR_UNSUPPORTED, "only 0 and infinity");
    refuse(&granite_hybrid, MAMBA("mamba") DENSE ", 'time_step_limit': [0.1, null]",
           ERR_UNSUPPORTED, "only 0 and infinity");
    refuse(&granite_hybrid, MAMBA("mamba") DENSE ", 'normalization_function': 'layernorm'",
           ERR_UNSUPPORTED, "only rmsnorm");
}

TEST(test_types_of_weights)
{
    assert_int_equal(with(&llama, "'torch_dtype': 'float32'").weight_type, WEIGHT_F32);
    assert_int_equal(with(&llama, "'torch_dtype': 'float16'").weight_type, WEIGHT_F16);
    assert_int_equal(with(&llama, "'dtype': 'bfloat16'").weight_type, WEIGHT_BF16);
    assert_int_equal(
        with(&llama, "'dtype': 'float16', 'torch_dtype': 'float32'").weight_type,
        WEIGHT_F32);
    refuse(&llama, "'dtype': 'int8'", ERR_UNSUPPORTED,
           "'torch_dtype': 'int8' is not supported");
    assert_int_equal(weight_type_bytes(WEIGHT_F32), 4);
    assert_int_equal(weight_type_bytes(WEIGHT_F16), 2);
    assert_int_equal(weight_type_bytes(WEIGHT_BF16), 2);
    assert_int_equal(weight_type_bytes(WEIGHT_UNSPECIFIED), 4);
}

/* --- tokens that begin and end a text ----------------------------------------------------- */

TEST(test_special_ids)
{
    assert_int_equal(with(&llama, "'bos_token_id': -1").bos_id, -1);
    assert_int_equal(with(&llama, "'bos_token_id': 0").bos_id, 0);
    assert_int_equal(with(&llama, "'bos_token_id': 511").bos_id, 511);
    refuse(&llama, "'bos_token_id': 512", ERR_FORMAT,
           "'bos_token_id' 512 is outside the vocabulary of 512");
    struct model_config c = with(&llama, "'eos_token_id': [0, 511, -1, 0]");
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos_ids[0], 0);
    assert_int_equal(c.eos_ids[1], 511);
    assert_true(config_is_eos(&c, 0) && config_is_eos(&c, 511) && !config_is_eos(&c, 1));
    assert_int_equal(with(&llama, "'eos_token_id': []").n_eos, 0);
    assert_int_equal(with(&llama, "'eos_token_id': null").n_eos, 0);
    assert_int_equal(with(&llama, "'eos_token_id': -1").n_eos, 0);
    refuse(&llama, "'eos_token_id': -2", ERR_FORMAT,
           "'eos_token_id' -2 is outside the vocabulary of 512");
    refuse(&llama, "'eos_token_id': 512", ERR_FORMAT, "'eos_token_id' 512 is outside");
    refuse(&llama, "'eos_token_id': [512, 1]", ERR_FORMAT, "'eos_token_id' 512");
    refuse(&llama, "'eos_token_id': [1.5]", ERR_FORMAT,
           "'eos_token_id' must be an integer or a list of integers");
    char list[512] = "'eos_token_id': [0";
    for (int i = 1; i < CONFIG_MAX_EOS; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), ",%d", i);
    snprintf(list + strlen(list), sizeof list - strlen(list), "]");
    c = with(&llama, list);
    assert_int_equal(c.n_eos, CONFIG_MAX_EOS);
    assert_int_equal(c.eos_ids[CONFIG_MAX_EOS - 1], CONFIG_MAX_EOS - 1);
    snprintf(list + strlen(list) - 1, 8, ",500]");
    refuse(&llama, list, ERR_UNSUPPORTED, "'eos_token_id' has more than 64 entries");
}

static int generation(struct model_config *c, const char *text, struct err *e)
{
    return config_parse_generation(c, quotes(text), strlen(text), "g", e);
}

TEST(test_ids_of_generation_config)
{
    struct err e = {0};
    struct model_config c = with(&llama, "'eos_token_id': [4, 5]");
    assert_int_equal(generation(&c, "{'eos_token_id': null}", &e), 0);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(generation(&c, "{}", &e), 0);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(generation(&c, "{'eos_token_id': [7]}", &e), 0);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos_ids[0], 7);
    assert_int_equal(c.eos_ids[1], 0); /* the old id is gone */
    assert_int_equal(generation(&c, "{'eos_token_id': []}", &e), 0);
    assert_int_equal(c.n_eos, 0);
    assert_int_equal(generation(&c, "{", &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "g:1:"));
}

static void put_file(const char *dir, const char *name, const char *text)
{
    char path[TEMPDIR_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(quotes(text), f);
    assert_int_equal(fclose(f), 0);
}

/* A generation_config.json may be absent. One that cannot be read is an error. */
TEST(test_a_folder_whose_generation_config_cannot_be_read)
{
    char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 64];
    struct model_config c;
    struct err e = {0};
    tempdir_make(dir, "config");
    put_file(dir, "config.json",
             "{'model_type': 'llama', " LLAMA_SIZES ", 'eos_token_id': 3}");
    assert_int_equal(config_load(&c, dir, &e), 0);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(e.msg[0], 0); /* its absence leaves no message */
    put_file(dir, "generation_config.json", "{");
    assert_int_equal(config_load(&c, dir, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "generation_config.json:1:"));
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    assert_int_equal(remove(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(config_load(&c, dir, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "generation_config.json: not a regular file"));
    assert_int_equal(config_load(&c, dir, NULL), ERR_FORMAT);
    tempdir_remove(dir);
}

/* --- writing ------------------------------------------------------------------------------ */

/* Everything that a file can say is written and read back: the state's fields, the ids, the type of
 * the weights, and the context. */
TEST(test_what_is_written_is_read_back)
{
    static const struct {
        const struct family *f;
        const char *more;
    } known[] = {
        {&llama, "'bos_token_id': 1, 'eos_token_id': 2, 'torch_dtype': 'float16', "
                 "'rms_norm_eps': 0.125, 'rope_theta': 7, 'head_dim': "
                 "32, 'num_key_value_heads': 4, 'tie_word_embeddings': true"},
        {&llama, LLAMA3("2", "0.5", "0.75")},
        {&mistral, "'sliding_window': null"},
        {&mistral, "'sliding_window': 33, 'eos_token_id': [2, 1, 3]"},
        {&qwen2, WINDOW ", 'max_window_layers': 3"},
        {&qwen3, "'head_dim': 16, 'torch_dtype': 'bfloat16'"},
        {&opt, "'tie_word_embeddings': false"},
        {&phi, "'partial_rotary_factor': 1, 'layer_norm_eps': 0.25"},
        {&phi, "'partial_rotary_factor': 0.25, 'num_key_value_heads': 2"},
        {&phi, "'rope_parameters': {'partial_rotary_factor': 0.75}"},
        {&phi3, "'sliding_window': 33, 'partial_rotary_factor': 0.5"},
        {&gemma, "'num_key_value_heads': 1, 'tie_word_embeddings': false"},
        {&falcon, "'multi_query': false"},
        {&falcon, "'parallel_attn': false, 'layer_norm_epsilon': 0.25"},
        {&falcon, "'new_decoder_architecture': true"},
        {&falcon, "'new_decoder_architecture': true, 'num_kv_heads': 1"},
        {&falcon, "'new_decoder_architecture': true, 'num_kv_heads': "
                  "2, 'num_ln_in_parallel_attn': 1"},
        {&falcon, "'ffn_hidden_size': 128, 'ff_factor': 2"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct model_config a = with(known[i].f, known[i].more), b;
        struct err e = {0};
        char *text = config_write(&a);
        if (config_parse(&b, text, strlen(text), "written", &e) != 0)
            fail_msg("%s: %s", known[i].more, e.msg);
        char *x = config_state_text(&a), *y = config_state_text(&b);
        assert_string_equal(x, y);
        assert_int_equal(a.weight_type, b.weight_type);
        assert_int_equal(a.max_ctx, b.max_ctx);
        assert_int_equal(a.bos_id, b.bos_id);
        assert_int_equal(a.n_eos, b.n_eos);
        assert_memory_equal(a.eos_ids, b.eos_ids, sizeof a.eos_ids);
        free(text);
        free(x);
        free(y);
    }
    struct model_config c = with(&falcon, "'new_decoder_architecture': true");
    char *text = config_write(&c);
    assert_non_null(strstr(text, "\"FalconForCausalLM\""));
    assert_null(strstr(text, "torch_dtype")); /* the file does not say one either */
    free(text);
}

/* --- shapes ------------------------------------------------------------------------------- */

/* Every named shape: its number of parameters, which all sizes and flags decide, and the rest. */
TEST(test_shapes)
{
    static const struct {
        const char *name;
        int64_t n_params;
        enum weight_type type;
        int32_t max_ctx, bos_id, eos_id;
    } known[] = {
        {"llama-2-7b", 6738415616, WEIGHT_F16, 4096, 1, 2},
        {"llama-2-13b", 13015864320, WEIGHT_F16, 4096, 1, 2},
        {"llama-2-70b", 68976648192, WEIGHT_F16, 4096, 1, 2},
        {"llama-3-8b", 8030261248, WEIGHT_BF16, 8192, 128000, 128001},
        {"mistral-7b", 7241732096, WEIGHT_BF16, 32768, 1, 2},
        {"opt-6.7b", 6658473984, WEIGHT_F16, 2048, 2, 2},
        {"opt-13b", 12853473280, WEIGHT_F16, 2048, 2, 2},
        {"opt-30b", 29974540288, WEIGHT_F16, 2048, 2, 2},
        {"opt-66b", 65719701504, WEIGHT_F16, 2048, 2, 2},
        {"falcon-40b", 41303293952, WEIGHT_BF16, 2048, 11, 11},
        {"qwen3-0.6b", 596049920, WEIGHT_BF16, 40960, 151643, 151645},
        {"qwen2.5-0.5b", 494032768, WEIGHT_BF16, 32768, 151643, 151643},
        {"qwen3-30b-a3b", 30532122624, WEIGHT_BF16, 40960, 151643, 151645},
        {"gemma-3-4b", 3880263168, WEIGHT_BF16, 131072, 2, 1},
        {"gpt-oss-20b", 20914757184, WEIGHT_BF16, 131072, 199998, 200002},
        {"qwen3.5-0.8b", 752393024, WEIGHT_BF16, 262144, 248044, 248046},
        {"qwen3.6-35b-a3b", 34660610688, WEIGHT_BF16, 262144, 248044, 248046},
        {"bench-220m", 219702272, WEIGHT_BF16, 8192, 1, 2},
        {"tiny-mha", 266816, WEIGHT_F32, 2048, 1, 2},
        {"tiny-hybrid", 264200, WEIGHT_F32, 2048, 1, 2},
        {"tiny-conv", 169120, WEIGHT_F32, 2048, 1, 2},
        {"tiny-mamba", 249188, WEIGHT_F32, 2048, 1, 2},
        {"tiny-gqa", 836736, WEIGHT_F32, 2048, 1, 2},
    };
    int n = sizeof known / sizeof known[0];
    for (int i = 0; i < n; i++) {
        struct model_config c;
        assert_string_equal(config_shape_name(i), known[i].name);
        assert_int_equal(config_shape(&c, known[i].name, NULL), 0);
        if (config_params(&c) != known[i].n_params)
            fail_msg("%s: %lld parameters", known[i].name, (long long)config_params(&c));
        assert_int_equal(c.weight_type, known[i].type);
        assert_int_equal(c.max_ctx, known[i].max_ctx);
        assert_int_equal(c.bos_id, known[i].bos_id);
        assert_int_equal(c.n_eos, 1);
        assert_int_equal(c.eos_ids[0], known[i].eos_id);
    }
    assert_null(config_shape_name(n));
    assert_null(config_shape_name(-1));
    /* fields that change no number of parameters */
    struct model_config c;
    assert_int_equal(config_shape(&c, "mistral-7b", NULL), 0);
    assert_int_equal(c.sliding_window, 4096);
    assert_int_equal(c.d_rope, 128);
    assert_true(c.rope_theta == 1e4 && c.norm_eps == 1e-5f);
    assert_int_equal(config_shape(&c, "qwen3-0.6b", NULL), 0);
    assert_int_equal(c.d_head, 128);
    assert_int_equal(c.d_rope, 128);
    assert_true(c.rope_theta == 1e6 && c.norm_eps == 1e-6f);
    assert_int_equal(config_shape(&c, "opt-6.7b", NULL), 0);
    assert_int_equal(c.d_rope, 0);
    assert_true(c.rope_theta == 0);
    assert_int_equal(config_shape(&c, "falcon-40b", NULL), 0);
    assert_int_equal(c.block, BLOCK_PARALLEL_NORM2);
    struct err e = {0};
    assert_int_equal(config_shape(&c, "tiny", &e), ERR_NOT_FOUND);
    assert_string_equal(
        e.msg,
        "unknown shape 'tiny'; known are: llama-2-7b llama-2-13b llama-2-70b llama-3-8b "
        "mistral-7b opt-6.7b opt-13b opt-30b opt-66b falcon-40b qwen3-0.6b qwen2.5-0.5b "
        "qwen3-30b-a3b gemma-3-4b gpt-oss-20b qwen3.5-0.8b qwen3.6-35b-a3b bench-220m "
        "tiny-mha tiny-hybrid tiny-conv tiny-mamba tiny-gqa");
}

/* Biases, shared tables and norms are counted where a family has them. */
TEST(test_parameters_of_families)
{
    /* embeddings 512 * 64; a layer of llama has 4 * 64 * 64 + 3 * 64 * 172 + 2 * 64 */
    static const struct {
        const struct family *f;
        const char *more;
        int64_t n;
    } known[] = {
        {&llama, "", 2 * 32768 + 64 + 5 * (16384 + 33024 + 128)},
        {&llama, "'tie_word_embeddings': true", 32768 + 64 + 5 * (16384 + 33024 + 128)},
        /* K and V of 16; biases of 64 + 2 * 16 */
        {&qwen2, "", 2 * 32768 + 64 + 5 * (8192 + 2048 + 96 + 33024 + 128)},
        /* K and V of 16; norms of 8 for q and k */
        {&qwen3, "", 2 * 32768 + 64 + 5 * (8192 + 2048 + 16 + 33024 + 128)},
        /* one norm of two vectors; biases of 4 * 64, 172 and 64, and of the head */
        {&phi, "", 2 * 32768 + 512 + 128 + 5 * (16384 + 256 + 22016 + 172 + 64 + 128)},
        /* tied, and a table of 258 positions */
        {&opt, "", 32768 + 258 * 64 + 128 + 5 * (16384 + 256 + 22016 + 172 + 64 + 256)},
        {&falcon, "", 32768 + 128 + 5 * (8192 + 1024 + 32768 + 128)},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct model_config c = with(known[i].f, known[i].more);
        assert_int_equal(config_params(&c), known[i].n);
    }
}
