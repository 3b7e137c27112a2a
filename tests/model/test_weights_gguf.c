/* test_weights_gguf.c - which tensors of a GGUF file make a model's weights, and how a source that
 * does not fit is described. */
#include "tests/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/gguf_types.h"
#include "made_gguf.h"
#include "model/weights.h"
#include "model/weights_names.h"

static int describe(const struct made_file *f, struct weights_info *info, struct err *e)
{
    struct model_config c;
    made_gguf_write(made_gguf_path, f);
    if (config_load(&c, made_gguf_path, e) != 0)
        fail_msg("%s", e->msg);
    return weights_describe(info, made_gguf_path, &c, DTYPE_F32, e);
}

static void refuse(const struct made_tensor *t, int code, const char *message)
{
    struct weights_info info;
    struct err e = {0};
    struct made_file f = {.whole = true, .tensors = {*t}};
    int rc = describe(&f, &info, &e);
    if (rc != code || strstr(e.msg, message) == NULL ||
        strstr(e.msg, made_gguf_path) != e.msg)
        fail_msg("expected %s with '%s', got %s: %s", err_name(code), message, err_name(rc),
                 e.msg);
    assert_null(info.impl);
}

/* The names in files, in the order of the model's tensors, and their shapes. */
static const struct {
    const char *model, *file;
    int n_dims, rows, cols;
} all[] = {
    {"model.embed_tokens.weight", "token_embd.weight", 2, 32, 16},
    {"model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight", 1, 16, 1},
    {"model.layers.0.self_attn.q_proj.weight", "blk.0.attn_q.weight", 2, 16, 16},
    {"model.layers.0.self_attn.k_proj.weight", "blk.0.attn_k.weight", 2, 8, 16},
    {"model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight", 2, 8, 16},
    {"model.layers.0.self_attn.o_proj.weight", "blk.0.attn_output.weight", 2, 16, 16},
    {"model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight", 1, 16, 1},
    {"model.layers.0.mlp.gate_proj.weight", "blk.0.ffn_gate.weight", 2, 24, 16},
    {"model.layers.0.mlp.up_proj.weight", "blk.0.ffn_up.weight", 2, 24, 16},
    {"model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight", 2, 16, 24},
    {"model.norm.weight", "output_norm.weight", 1, 16, 1},
    {"lm_head.weight", "output.weight", 2, 32, 16},
};
enum { N = sizeof all / sizeof all[0] };

TEST(test_a_description_lists_every_tensor)
{
    struct weights_info info;
    struct err e = {0};
    struct made_file f = {
        .whole = true, .tensors = {{"blk.0.ffn_up.weight", 2, {16, 24}, GGUF_TYPE_F16, 0}}};
    assert_int_equal(describe(&f, &info, &e), 0);
    assert_int_equal(info.n_tensors, 1 + 2 * 9 + 2);
    uint64_t bytes = 0;
    for (int i = 0; i < N; i++) {
        const struct tensor_info *t = &info.tensors[i < N - 2 ? i : i + 9];
        bool half = strcmp(all[i].file, "blk.0.ffn_up.weight") == 0;
        assert_string_equal(t->name, all[i].model);
        assert_string_equal(t->file, made_gguf_path);
        assert_string_equal(t->type, half ? "F16" : "F32");
        assert_int_equal(t->n_dims, all[i].n_dims);
        assert_int_equal(t->rows, all[i].rows);
        assert_int_equal(t->cols, all[i].cols);
        assert_int_equal(t->bytes, all[i].rows * all[i].cols * (half ? 2 : 4));
    }
    for (size_t i = 0; i < info.n_tensors; i++)
        bytes += info.tensors[i].bytes;
    assert_int_equal(info.bytes, bytes);
    assert_int_equal(info.dtype, DTYPE_F32); /* two types are mixed */
    assert_false(info.quantised);
    assert_int_equal(info.types.n, 2);
    assert_string_equal(info.types.of[0].name, "F32");
    assert_int_equal(info.types.of[0].n_tensors, 20);
    assert_int_equal(info.types.of[1].n_tensors, 1);
    assert_false(info.types.of[0].quantised || info.types.of[1].quantised);
    enum dtype tables[2];
    weights_table_types(&info, DTYPE_Q8, tables);
    assert_int_equal(tables[0], DTYPE_F32);
    weights_info_deinit(&info);
    assert_null(info.tensors);
}

TEST(test_every_tensor_is_needed_in_its_shape)
{
    for (int i = 1; i < N; i++) {
        char message[256];
        uint64_t rows = (uint64_t)all[i].rows, cols = (uint64_t)all[i].cols;
        bool vector = all[i].n_dims == 1;
        if (strcmp(all[i].file, "output.weight") !=
            0) { /* without it, the table is the head */
            snprintf(message, sizeof message,
                     "tensor '%s' is missing, but the metadata requires it", all[i].file);
            refuse(&(struct made_tensor){.name = all[i].file}, ERR_MISMATCH, message);
        }
        snprintf(
            message, sizeof message,
            "tensor '%s' has %d dimensions of %d and %d elements; the metadata asks for "
            "%d rows of %d",
            all[i].file, all[i].n_dims, all[i].rows + 1, all[i].cols, all[i].rows,
            all[i].cols);
        struct made_tensor t = {
            all[i].file, (uint32_t)all[i].n_dims, {cols, rows + 1}, 0, 0};
        if (vector)
            t.dims[0] = rows + 1;
        refuse(&t, ERR_MISMATCH, message);
        t.dims[vector ? 0 : 1] = rows - 1;
        refuse(&t, ERR_MISMATCH, "the metadata asks for");
        t = (struct made_tensor){all[i].file, 2, {cols + 1, rows}, 0, 0};
        refuse(&t, ERR_MISMATCH, "the metadata asks for");
        t = (struct made_tensor){
            all[i].file, vector ? 2 : 1, {vector ? 1 : rows, rows}, 0, 0};
        refuse(&t, ERR_MISMATCH, "the metadata asks for");
    }
}

TEST(test_types_and_other_tensors)
{
    enum { I16 = 25 };
    const struct gguf_type *t = gguf_type(I16);
    assert_true(t != NULL && t->decode == NULL);
    refuse(
        &(struct made_tensor){"blk.1.attn_q.weight", 2, {16, 16}, I16, 0}, ERR_UNSUPPORTED,
        "tensor 'blk.1.attn_q.weight' has type I16, which is not supported; supported are "
        "F32");
    refuse(&(struct made_tensor){"blk.2.attn_q.weight", 2, {16, 16}, 0, 0}, ERR_MISMATCH,
           "tensor 'blk.2.attn_q.weight' is not part of the llama model of 2 layers");
    /* factors of frequencies belong to the positions, not to the weights */
    struct weights_info info;
    struct err e = {0};
    struct made_file f = {.whole = true, .tensors = {{"rope_freqs.weight", 1, {4}, 0, 2}}};
    assert_int_equal(describe(&f, &info, &e), 0);
    assert_int_equal(info.n_tensors, 21);
    weights_info_deinit(&info);
}

int main(void)
{
    return unit_run(made_gguf_setup, made_gguf_teardown);
}
