/* test_config_gguf.c - the metadata of a GGUF file gives exactly one description, or an error that
 * names the entry. */
#include "tests/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/gguf_types.h"
#include "made_gguf.h"
#include "model/config.h"

static struct model_config load(const struct made_file *f)
{
    struct model_config c;
    struct err e = {0};
    made_gguf_write(made_gguf_path, f);
    if (config_load(&c, made_gguf_path, &e) != 0)
        fail_msg("%s", e.msg);
    return c;
}

static void refuse(const struct made_file *f, int code, const char *message)
{
    struct model_config c;
    struct err e = {0};
    made_gguf_write(made_gguf_path, f);
    int rc = config_load(&c, made_gguf_path, &e);
    if (rc != code || strstr(e.msg, message) == NULL ||
        strstr(e.msg, made_gguf_path) != e.msg)
        fail_msg("expected %s with '%s', got %s: %s", err_name(code), message, err_name(rc),
                 e.msg);
}

#define FILE_OF(...) (&(struct made_file){__VA_ARGS__})
#define U32(k, x)                                                                          \
    {                                                                                      \
        .key = k, .kind = GGUF_U32, .value = x                                             \
    }
#define I32(k, x)                                                                          \
    {                                                                                      \
        .key = k, .kind = GGUF_I32, .value = x                                             \
    }
#define F32(k, x)                                                                          \
    {                                                                                      \
        .key = k, .kind = GGUF_F32, .value = x                                             \
    }
#define TEXT(k, s)                                                                         \
    {                                                                                      \
        .key = k, .kind = GGUF_STRING, .text = s                                           \
    }
#define NO(k)                                                                              \
    {                                                                                      \
        .key = k, .kind = MADE_ABSENT                                                      \
    }

/* --- descriptions ------------------------------------------------------------------------- */

TEST(test_every_size_comes_from_its_own_entry)
{
    struct model_config c = load(FILE_OF(0));
    assert_int_equal(c.family, FAMILY_LLAMA);
    assert_int_equal(c.n_layers, 2);
    assert_int_equal(c.max_ctx, 256);
    assert_int_equal(c.n_embd, 16);
    assert_int_equal(c.n_ffn, 24);
    assert_int_equal(c.n_heads, 2);
    assert_int_equal(c.n_kv_heads, 1);
    assert_int_equal(c.d_head, 8);
    assert_int_equal(c.d_rope, 8);
    assert_int_equal(c.vocab_size, 32);
    assert_true(c.norm_eps == 0.25f);
    assert_true(c.rope_theta == 10000);
    assert_int_equal(c.rope_scaling.kind, ROPE_SCALING_NONE);
    assert_int_equal(c.sliding_window, 0);
    assert_true(c.tie_word_embeddings);
    assert_int_equal(c.bos_id, -1);
    assert_int_equal(c.n_eos, 0);

    c = load(
        FILE_OF(.values = {U32("attention.key_length", 6), U32("attention.value_length", 6),
                           F32("rope.freq_base", 7), NO("attention.head_count_kv")},
                .tensors = {{"output.weight", 2, {16, 32}, 0, 0}}));
    assert_int_equal(c.d_head, 6);
    assert_int_equal(c.d_rope, 6);
    assert_true(c.rope_theta == 7);
    assert_int_equal(c.n_kv_heads, 2);
    assert_false(c.tie_word_embeddings);
}

TEST(test_each_architecture_is_its_family)
{
    static const struct {
        const char *arch;
        enum model_family family;
        const char *eps;
    } known[] = {
        {"llama", FAMILY_LLAMA, "attention.layer_norm_rms_epsilon"},
        {"qwen2", FAMILY_QWEN2, "attention.layer_norm_rms_epsilon"},
        {"qwen3", FAMILY_QWEN3, "attention.layer_norm_rms_epsilon"},
        {"phi2", FAMILY_PHI, "attention.layer_norm_epsilon"},
        {"phi3", FAMILY_PHI3, "attention.layer_norm_rms_epsilon"},
        {"gemma", FAMILY_GEMMA, "attention.layer_norm_rms_epsilon"},
        {"falcon", FAMILY_FALCON, "attention.layer_norm_epsilon"},
        {"gemma3", FAMILY_GEMMA3, "attention.layer_norm_rms_epsilon"},
        {"olmo2", FAMILY_OLMO2, "attention.layer_norm_rms_epsilon"},
        {"granite", FAMILY_GRANITE, "attention.layer_norm_rms_epsilon"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        bool falcon = known[i].family == FAMILY_FALCON,
             layer = strstr(known[i].eps, "rms") == NULL;
        struct made_file f = {
            .arch = known[i].arch,
            .values = {{.key = known[i].eps, .kind = GGUF_F64, .value = 0.5},
                       U32("feed_forward_length", falcon ? 64 : 24),
                       {.key = layer ? "attention.layer_norm_rms_epsilon" : NULL,
                        .kind = MADE_ABSENT}}};
        struct model_config c = load(&f);
        assert_int_equal(c.family, known[i].family);
        assert_true(c.norm_eps == 0.5f);
        bool gemma = known[i].family == FAMILY_GEMMA || known[i].family == FAMILY_GEMMA3;
        assert_true(c.embed_scale == (gemma ? 4.0f : 1.0f));
        if (falcon)
            assert_int_equal(c.block, BLOCK_PARALLEL);
        f.values[0].kind = MADE_ABSENT;
        char message[96];
        snprintf(message, sizeof message, "'%s.%s' is missing", known[i].arch,
                 known[i].eps);
        refuse(&f, ERR_UNSUPPORTED, message);
    }
    struct model_config c = load(
        FILE_OF(.arch = "falcon",
                .values = {U32("feed_forward_length", 64),
                           F32("attention.layer_norm_epsilon", 0.5),
                           NO("attention.layer_norm_rms_epsilon")},
                .tensors = {{"blk.0.attn_norm_2.weight", 1, {16}, 0, 0}}));
    assert_int_equal(c.block, BLOCK_PARALLEL_NORM2);
    refuse(FILE_OF(.arch = "mamba"), ERR_UNSUPPORTED,
           "architecture 'mamba' is not supported; supported are llama (Mistral and "
           "Mixtral too)");
}

TEST(test_a_window_is_for_some_architectures_only)
{
    struct model_config c = load(FILE_OF(.values = {U32("attention.sliding_window", 9)}));
    assert_int_equal(c.family, FAMILY_MISTRAL);
    assert_int_equal(c.sliding_window, 9);
    c = load(FILE_OF(.values = {U32("attention.sliding_window", 1)}));
    assert_int_equal(c.family, FAMILY_MISTRAL);
    c = load(FILE_OF(.values = {U32("attention.sliding_window", 0)}));
    assert_int_equal(c.family, FAMILY_LLAMA);
    c = load(FILE_OF(.arch = "phi3", .values = {U32("attention.sliding_window", 9)}));
    assert_int_equal(c.family, FAMILY_PHI3);
    assert_int_equal(c.sliding_window, 9);
    refuse(FILE_OF(.arch = "qwen2", .values = {U32("attention.sliding_window", 9)}),
           ERR_UNSUPPORTED,
           "'qwen2.attention.sliding_window' is not supported in this architecture");
}

#define GEMMA3(...)                                                                        \
    FILE_OF(.arch = "gemma3", .values = {U32("attention.sliding_window", 9),               \
                                         U32("block_count", 8), __VA_ARGS__})

TEST(test_which_layers_of_gemma3_have_a_window)
{
    struct model_config c = load(GEMMA3(NO("unused")));
    assert_int_equal(c.windowed.word[0], 0xff & ~(1 << 5)); /* every sixth sees all */
    assert_true(c.rope_local_theta == 10000);
    c = load(
        GEMMA3(U32("attention.sliding_window_pattern", 2), F32("rope.freq_base_swa", 7)));
    assert_int_equal(c.windowed.word[0], 0x55);
    assert_true(c.rope_local_theta == 7);
    c = load(GEMMA3({.key = "attention.sliding_window_pattern",
                     .kind = GGUF_BOOL,
                     .value = 1,
                     .n = 8}));
    assert_int_equal(c.windowed.word[0], 0xff);
    refuse(GEMMA3({.key = "attention.sliding_window_pattern",
                   .kind = GGUF_BOOL,
                   .value = 1,
                   .n = 7}),
           ERR_UNSUPPORTED, "must have one entry per layer");
    refuse(GEMMA3(U32("attention.sliding_window_pattern", 0)), ERR_UNSUPPORTED,
           "must be a number of layers");
    refuse(GEMMA3(TEXT("attention.sliding_window_pattern", "six")), ERR_UNSUPPORTED,
           "must be a number of layers");
}

TEST(test_experts)
{
    struct model_config c = load(
        FILE_OF(.values = {U32("expert_count", 8), U32("expert_used_count", 2)}));
    assert_int_equal(c.family, FAMILY_MIXTRAL);
    assert_int_equal(c.n_experts, 8);
    assert_int_equal(c.n_experts_used, 2);
    assert_true(c.experts_normed);
    c = load(FILE_OF(.arch = "qwen3moe",
                     .values = {U32("expert_count", 8), U32("expert_used_count", 8),
                                U32("expert_feed_forward_length", 48)}));
    assert_int_equal(c.family, FAMILY_QWEN3_MOE);
    assert_int_equal(c.n_ffn, 48);
    refuse(FILE_OF(.values = {U32("expert_count", 8)}), ERR_FORMAT,
           "'llama.expert_used_count' is missing");
    refuse(FILE_OF(.values = {U32("expert_count", 8), U32("expert_used_count", 9)}),
           ERR_FORMAT, "'num_experts_per_tok' is 9, and the model has 8 experts");
    refuse(FILE_OF(.arch = "qwen3",
                   .values = {U32("expert_count", 8), U32("expert_used_count", 2)}),
           ERR_UNSUPPORTED, "'qwen3.expert_count' is not supported in this architecture");
}

/* --- numbers ------------------------------------------------------------------------------ */

TEST(test_an_integer_lies_in_its_range)
{
    static const char *const required[] = {"block_count", "context_length",
                                           "embedding_length", "feed_forward_length",
                                           "attention.head_count"};
    char message[128];
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        snprintf(message, sizeof message, "'llama.%s' is missing", required[i]);
        refuse(FILE_OF(.values = {NO(required[i])}), ERR_FORMAT, message);
        snprintf(message, sizeof message,
                 "'llama.%s' must be a number from 0 to 2147483647", required[i]);
        refuse(FILE_OF(.values = {I32(required[i], -1)}), ERR_FORMAT, message);
        refuse(FILE_OF(.values = {U32(required[i], 2147483648.0)}), ERR_FORMAT, message);
        refuse(FILE_OF(.values = {F32(required[i], 2)}), ERR_FORMAT, message);
    }
    /* the largest number passes here, and config.json's reader refuses it */
    refuse(FILE_OF(.values = {U32("context_length", 2147483647)}), ERR_FORMAT,
           "its metadata, as a config.json: 'max_position_embeddings' is 2147483647");
    refuse(FILE_OF(.values = {U32("block_count", 0)}), ERR_FORMAT,
           "'num_hidden_layers' is 0, it must lie in 1..256");
}

/* One number per layer is accepted if all are equal. */
TEST(test_layers_have_equal_sizes)
{
#define LAYERS(last_one)                                                                   \
    FILE_OF(.values = {{.key = "feed_forward_length",                                      \
                        .kind = GGUF_I32,                                                  \
                        .value = 24,                                                       \
                        .n = 2,                                                            \
                        .last = last_one}})
    assert_int_equal(load(LAYERS(0)).n_ffn, 24);
    refuse(LAYERS(25), ERR_UNSUPPORTED,
           "'llama.feed_forward_length' differs from layer to layer");
    /* the number of the first layer is missing */
    refuse(FILE_OF(.values = {{.key = "feed_forward_length",
                               .kind = GGUF_STRING,
                               .text = "24",
                               .n = 2}}),
           ERR_FORMAT, "'llama.feed_forward_length' must be a number from 0 to");
}

TEST(test_a_real_number_is_one_finite_number)
{
    static const struct made_value bad[] = {
        {.key = "rope.freq_base", .kind = GGUF_U32, .value = 10000},
        {.key = "rope.freq_base", .kind = GGUF_F32, .value = INFINITY},
        {.key = "rope.freq_base", .kind = GGUF_F64, .value = NAN},
        {.key = "rope.freq_base", .kind = GGUF_F32, .value = 10000, .n = 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refuse(FILE_OF(.values = {bad[i]}), ERR_FORMAT,
               "'llama.rope.freq_base' must be a real number");
    refuse(FILE_OF(.values = {F32("rope.freq_base", 0)}), ERR_FORMAT,
           "'rope_theta' must be positive");
}

TEST(test_heads_fit)
{
    static const char positive[] = "'llama.attention.head_count' and the width must be";
    refuse(FILE_OF(.values = {U32("attention.head_count", 0)}), ERR_UNSUPPORTED, positive);
    refuse(FILE_OF(.values = {U32("attention.head_count_kv", 0)}), ERR_UNSUPPORTED,
           positive);
    refuse(FILE_OF(.values = {U32("embedding_length", 0)}), ERR_UNSUPPORTED, positive);
    refuse(FILE_OF(.values = {U32("attention.key_length", 0)}), ERR_UNSUPPORTED,
           "'llama.attention.key_length' must be positive");
    refuse(FILE_OF(.values = {U32("attention.value_length", 6)}), ERR_UNSUPPORTED,
           "'llama.attention.value_length' differs from 'attention.key_length'");
    refuse(FILE_OF(.values = {U32("attention.head_count", 3)}), ERR_FORMAT,
           "dimensions of a head are rotated");
    /* a family whose config.json has no size of a head */
    refuse(FILE_OF(.arch = "phi2", .values = {U32("attention.key_length", 6),
                                              U32("attention.value_length", 6),
                                              NO("attention.layer_norm_rms_epsilon"),
                                              F32("attention.layer_norm_epsilon", 0.5)}),
           ERR_UNSUPPORTED,
           "'phi2.attention.key_length' is not the width divided by the heads");
}

/* --- positions ---------------------------------------------------------------------------- */

TEST(test_the_rotated_part_of_a_head)
{
#define PHI(n)                                                                             \
    FILE_OF(.arch = "phi2", .values = {U32("rope.dimension_count", n),                     \
                                       NO("attention.layer_norm_rms_epsilon"),             \
                                       F32("attention.layer_norm_epsilon", 0.5)})
    static const char range[] = "'phi2.rope.dimension_count' must be from 2 to the";
    assert_int_equal(load(PHI(2)).d_rope, 2);
    assert_int_equal(load(PHI(6)).d_rope, 6);
    assert_int_equal(load(PHI(8)).d_rope, 8);
    refuse(PHI(0), ERR_UNSUPPORTED, range);
    refuse(PHI(1), ERR_UNSUPPORTED, range);
    refuse(PHI(9), ERR_UNSUPPORTED, range);
    /* rows of whole heads are permuted */
    refuse(FILE_OF(.values = {U32("rope.dimension_count", 6)}), ERR_UNSUPPORTED,
           "'llama.rope.dimension_count' differs from the size of a head");
#define HEADS_OF(n)                                                                        \
    FILE_OF(.values = {U32("attention.key_length", n), U32("attention.value_length", n)})
    assert_int_equal(load(HEADS_OF(256)).d_rope, 256);
    refuse(HEADS_OF(578), ERR_UNSUPPORTED,
           "'llama.rope.dimension_count' must be from 2 to the dimensions of a head, which "
           "are at most 576");
}

TEST(test_linear_scaling_stretches_every_wavelength)
{
    struct model_config c = load(FILE_OF(.values = {TEXT("rope.scaling.type", "linear"),
                                                    F32("rope.scaling.factor", 4)}));
    assert_int_equal(c.rope_scaling.kind, ROPE_SCALING_FACTORS);
    for (int i = 0; i < c.d_rope / 2; i++)
        assert_true(c.rope_scaling.factors[i] == 4);
    assert_true(c.rope_scaling.factors[c.d_rope / 2] == 0);
    /* without a type, a factor means the same, as in llama.cpp */
    c = load(FILE_OF(.values = {F32("rope.scaling.factor", 4)}));
    assert_int_equal(c.rope_scaling.kind, ROPE_SCALING_FACTORS);
    assert_true(c.rope_scaling.factors[0] == 4);
    c = load(FILE_OF(.values = {TEXT("rope.scaling.type", "linear"),
                                F32("rope.scaling.factor", 1)}));
    assert_int_equal(c.rope_scaling.kind, ROPE_SCALING_NONE);
    c = load(FILE_OF(.values = {TEXT("rope.scaling.type", "linear")}));
    assert_int_equal(c.rope_scaling.kind, ROPE_SCALING_NONE);
    c = load(FILE_OF(.values = {TEXT("rope.scaling.type", "none"),
                                F32("rope.scaling.factor", 4)}));
    assert_int_equal(c.rope_scaling.kind, ROPE_SCALING_NONE);
    refuse(FILE_OF(.values = {TEXT("rope.scaling.type", "linear"),
                              F32("rope.scaling.factor", 0.5)}),
           ERR_UNSUPPORTED, "'llama.rope.scaling.factor' must be at least 1");
}

TEST(test_other_scalings_are_refused)
{
    static const char *const names[] = {"yarm", "nope", "lineal", "longropes", ""};
    char message[128];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(message, sizeof message,
                 "'llama.rope.scaling.type': '%s' is not supported; none, linear, yarn and",
                 names[i]);
        refuse(FILE_OF(.values = {TEXT("rope.scaling.type", names[i])}), ERR_UNSUPPORTED,
               message);
    }
    refuse(FILE_OF(.values = {TEXT("rope.scaling.type", "longrope")}), ERR_UNSUPPORTED,
           "is longrope, and its tensors of factors are missing");
    struct model_config c = load(
        FILE_OF(.values = {TEXT("rope.scaling.type", "yarn"), F32("rope.scaling.factor", 4),
                           U32("rope.scaling.original_context_length", 64)}));
    assert_true(c.rope_scaling.factors[0] == 1 && c.rope_scaling.factors[3] == 4);
    assert_true(c.rope_magnitude == (float)(0.1 * log(4) + 1));
    refuse(FILE_OF(.values = {TEXT("rope.scaling.type", "yarn"),
                              F32("rope.scaling.factor", 0.5)}),
           ERR_UNSUPPORTED, "make no YaRN scaling");
    /* 40 bytes of a longer name are shown */
    refuse(FILE_OF(.values = {TEXT("rope.scaling.type",
                                   "0123456789012345678901234567890123456789x")}),
           ERR_UNSUPPORTED, "'0123456789012345678901234567890123456789' is not supported");
    refuse(FILE_OF(.values = {U32("rope.scaling.type", 1)}), ERR_FORMAT,
           "'llama.rope.scaling.type' is not a string");
}

TEST(test_factors_of_frequencies)
{
#define FACTORS(...)                                                                       \
    {                                                                                      \
        "rope_freqs.weight", __VA_ARGS__                                                   \
    }
    struct model_config c = load(FILE_OF(.tensors = {FACTORS(1, {4}, 0, 8)}));
    assert_int_equal(c.rope_scaling.kind, ROPE_SCALING_FACTORS);
    for (int i = 0; i < 4; i++)
        assert_true(c.rope_scaling.factors[i] == 8);
    static const char must[] =
        "tensor 'rope_freqs.weight' must hold 4 F32 numbers, beside no other scaling";
    refuse(FILE_OF(.tensors = {FACTORS(1, {3}, 0, 8)}), ERR_UNSUPPORTED, must);
    refuse(FILE_OF(.tensors = {FACTORS(1, {5}, 0, 8)}), ERR_UNSUPPORTED, must);
    refuse(FILE_OF(.tensors = {FACTORS(1, {4}, GGUF_TYPE_F16, 8)}), ERR_UNSUPPORTED, must);
    refuse(FILE_OF(.tensors = {FACTORS(2, {1, 4}, 0, 8)}), ERR_UNSUPPORTED, must);
    refuse(FILE_OF(.values = {F32("rope.scaling.factor", 4)},
                   .tensors = {FACTORS(1, {4}, 0, 8)}),
           ERR_UNSUPPORTED, must);
    refuse(FILE_OF(.tensors = {FACTORS(1, {4}, 0, 0)}), ERR_FORMAT,
           "'factors' must be numbers from 0.001 to 1000000");
}

/* --- tokens ------------------------------------------------------------------------------- */

TEST(test_the_embedding_table_is_a_matrix)
{
    static const char missing[] =
        "the tensor 'token_embd.weight' is missing or not a matrix";
    refuse(FILE_OF(.tensors = {{.name = "token_embd.weight"}}), ERR_FORMAT, missing);
    refuse(FILE_OF(.tensors = {{"token_embd.weight", 1, {16}, 0, 0}}), ERR_FORMAT, missing);
}

TEST(test_special_tokens)
{
#define ID(name, x)                                                                        \
    {                                                                                      \
        .key = "tokenizer.ggml." name "_token_id", .kind = GGUF_I32, .value = x            \
    }
    struct model_config c = load(
        FILE_OF(.values = {ID("bos", 0), ID("eos", 31), ID("eot", 5), ID("eom", 31)}));
    assert_int_equal(c.bos_id, 0);
    assert_int_equal(c.n_eos, 2); /* one id counts once */
    assert_int_equal(c.eos_ids[0], 31);
    assert_int_equal(c.eos_ids[1], 5);
    static const char *const bad[] = {
        "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    for (int i = 0; i < 4; i++) {
        char message[80];
        snprintf(message, sizeof message, "'%s' is none of the 32 tokens", bad[i]);
        refuse(FILE_OF(.values = {I32(bad[i], 32)}), ERR_FORMAT, message);
        refuse(FILE_OF(.values = {I32(bad[i], -1)}), ERR_FORMAT, message);
        refuse(FILE_OF(.values = {F32(bad[i], 1)}), ERR_FORMAT, message);
        refuse(FILE_OF(.values = {{.key = bad[i], .kind = GGUF_U32, .value = 1, .n = 1}}),
               ERR_FORMAT, message);
    }
}

/* --- other entries ------------------------------------------------------------------------ */

TEST(test_other_architectures_entries_are_ignored)
{
    load(FILE_OF(.values = {U32("general.llama.scale", 3)}));
    refuse(FILE_OF(.values = {U32("scale", 3)}), ERR_UNSUPPORTED,
           "'llama.scale': this value is not known in llama models, and might change");
    refuse(FILE_OF(.values = {TEXT("logit_scale", "1")}), ERR_UNSUPPORTED,
           "'llama.logit_scale'");
    refuse(FILE_OF(.values = {F32("logit_scale", 0)}), ERR_UNSUPPORTED,
           "'llama.logit_scale'");
    refuse(FILE_OF(.arch = ""), ERR_FORMAT,
           "'general.architecture' is missing or not a name");
    /* 63 bytes are the longest name; it is complete in the message */
    static const char longest[] =
        "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijk";
    char message[128];
    assert_int_equal(strlen(longest), 63);
    snprintf(message, sizeof message, "architecture '%s' is not supported", longest);
    refuse(FILE_OF(.arch = longest), ERR_UNSUPPORTED, message);
    refuse(FILE_OF(.arch = "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz"
                           "abcdefghijkl"),
           ERR_FORMAT, "'general.architecture' is missing or not a name");
}

/* The key has llama.cpp's numbers. */
TEST(test_the_pooling_is_that_of_the_key)
{
    static const enum pooling want[] = {POOLING_NONE, POOLING_MEAN, POOLING_CLS,
                                        POOLING_LAST, POOLING_RANK, POOLING_OTHER};
    assert_int_equal(load(FILE_OF(0)).pooling, POOLING_NONE);
    for (int i = 0; i < 6; i++)
        assert_int_equal(load(FILE_OF(.values = {U32("pooling_type", i)})).pooling,
                         want[i]);
    refuse(FILE_OF(.values = {TEXT("pooling_type", "mean")}), ERR_FORMAT, "pooling_type");
}

int main(void)
{
    return unit_run(made_gguf_setup, made_gguf_teardown);
}
