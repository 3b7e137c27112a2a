/* made_gguf.c - see made_gguf.h. */
#include "made_gguf.h"

#include "tests/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "checkpoint/gguf_types.h"
#include "tests/base/tempdir.h"

enum { MAX_BYTES = 1 << 20, N_VALUES = 10, N_TENSORS = 3 };

static const struct made_value values[] = {
    {.key = "block_count", .kind = GGUF_U32, .value = 2},
    {.key = "context_length", .kind = GGUF_U32, .value = 256},
    {.key = "embedding_length", .kind = GGUF_U32, .value = 16},
    {.key = "feed_forward_length", .kind = GGUF_U32, .value = 24},
    {.key = "attention.head_count", .kind = GGUF_U32, .value = 2},
    {.key = "attention.head_count_kv", .kind = GGUF_U32, .value = 1},
    {.key = "attention.layer_norm_rms_epsilon", .kind = GGUF_F32, .value = 0.25},
};

static const struct made_tensor tensors[] = {
    {.name = "token_embd.weight", .n_dims = 2, .dims = {16, 32}},
};

/* The tensors of a layer: names behind "blk.L.", rows and columns. */
static const struct {
    const char *name;
    uint32_t n_dims;
    uint64_t dims[2];
} of_layer[] = {
    {"attn_norm", 1, {16}},    {"attn_q", 2, {16, 16}},      {"attn_k", 2, {16, 8}},
    {"attn_v", 2, {16, 8}},    {"attn_output", 2, {16, 16}}, {"ffn_norm", 1, {16}},
    {"ffn_gate", 2, {16, 24}}, {"ffn_up", 2, {16, 24}},      {"ffn_down", 2, {24, 16}},
};
enum { N_OF_LAYER = sizeof of_layer / sizeof of_layer[0], N_ALL = 3 + 2 * N_OF_LAYER };

struct out {
    uint8_t *bytes;
    size_t n;
};

static uint8_t *take(struct out *o, size_t n)
{
    assert_true(o->n + n <= MAX_BYTES);
    o->n += n;
    return o->bytes + o->n - n;
}

static void put_text(struct out *o, const char *s)
{
    size_t n = strlen(s);
    put_u64(take(o, 8), n);
    memcpy(take(o, n), s, n);
}

/* Puts line i of the text; the last line if there are fewer. */
static void put_line(struct out *o, const char *text, uint64_t i)
{
    const char *end;
    for (; (end = strchr(text, '\n')) != NULL && i > 0; i--)
        text = end + 1;
    size_t n = end != NULL ? (size_t)(end - text) : strlen(text);
    put_u64(take(o, 8), n);
    memcpy(take(o, n), text, n);
}

static void put_number(struct out *o, int kind, double x)
{
    float f = (float)x;
    uint32_t bits32;
    uint64_t bits64;
    memcpy(&bits32, &f, sizeof bits32);
    memcpy(&bits64, &x, sizeof bits64);
    switch (kind) {
    case GGUF_BOOL:
        *take(o, 1) = x != 0;
        break;
    case GGUF_F32:
        put_u32(take(o, 4), bits32);
        break;
    case GGUF_F64:
        put_u64(take(o, 8), bits64);
        break;
    case GGUF_I64:
        put_u64(take(o, 8), (uint64_t)(int64_t)x);
        break;
    default:
        assert_true(kind == GGUF_U32 || kind == GGUF_I32);
        put_u32(take(o, 4), (uint32_t)(int64_t)x);
    }
}

static void put_value(struct out *o, const char *arch, const struct made_value *v)
{
    char key[128];
    bool whole = strncmp(v->key, "general.", 8) == 0 || strncmp(v->key, "split.", 6) == 0 ||
                 strncmp(v->key, "tokenizer.", 10) == 0;
    snprintf(key, sizeof key, "%s%s%s", whole ? "" : arch, whole ? "" : ".", v->key);
    put_text(o, key);
    put_u32(take(o, 4), v->n > 0 ? GGUF_ARRAY : (uint32_t)v->kind);
    if (v->n > 0) {
        put_u32(take(o, 4), (uint32_t)v->kind);
        put_u64(take(o, 8), v->n);
    }
    for (uint64_t i = 0; i < (v->n > 0 ? v->n : 1); i++)
        if (v->kind == GGUF_STRING && v->n > 0)
            put_line(o, v->text, i);
        else if (v->kind == GGUF_STRING)
            put_text(o, v->text);
        else
            put_number(o, v->kind, v->last != 0 && i + 1 == v->n ? v->last : v->value);
}

static uint64_t bytes_of(const struct made_tensor *t)
{
    const struct gguf_type *type = gguf_type(t->type);
    uint64_t n = t->dims[0] * (t->n_dims > 1 ? t->dims[1] : 1);
    return n / type->block * type->bytes;
}

/* Lists the file's own values or tensors, and those of the base that it does not replace. */
static int list_values(const struct made_file *f, struct made_value *out)
{
    int n = 0;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        bool replaced = false;
        for (int k = 0; k < N_VALUES && f->values[k].key != NULL; k++)
            replaced |= strcmp(f->values[k].key, values[i].key) == 0;
        if (!replaced)
            out[n++] = values[i];
    }
    for (int k = 0; k < N_VALUES && f->values[k].key != NULL; k++)
        if (f->values[k].kind != MADE_ABSENT)
            out[n++] = f->values[k];
    return n;
}

static bool is_replaced(const struct made_file *f, const char *name)
{
    for (int k = 0; k < N_TENSORS && f->tensors[k].name != NULL; k++)
        if (strcmp(f->tensors[k].name, name) == 0)
            return true;
    return false;
}

/* names: memory for the names of a whole model's tensors. */
static int list_tensors(const struct made_file *f, struct made_tensor *out,
                        char names[N_ALL][64])
{
    struct made_tensor all[N_ALL] = {tensors[0]};
    int n_all = 1, n = 0;
    if (f->whole) {
        all[n_all++] = (struct made_tensor){"output_norm.weight", 1, {16}, 0, 1};
        all[n_all++] = (struct made_tensor){"output.weight", 2, {16, 32}, 0, 1};
        for (int i = 0; i < 2 * N_OF_LAYER; i++, n_all++) {
            int k = i % N_OF_LAYER;
            snprintf(names[n_all], 64, "blk.%d.%s.weight", i / N_OF_LAYER,
                     of_layer[k].name);
            all[n_all] = (struct made_tensor){names[n_all],
                                              of_layer[k].n_dims,
                                              {of_layer[k].dims[0], of_layer[k].dims[1]},
                                              0,
                                              (float)n_all};
        }
    }
    for (int i = 0; i < n_all; i++)
        if (!is_replaced(f, all[i].name))
            out[n++] = all[i];
    for (int k = 0; k < N_TENSORS && f->tensors[k].name != NULL; k++)
        if (f->tensors[k].n_dims > 0)
            out[n++] = f->tensors[k];
    return n;
}

void made_gguf_write(const char *path, const struct made_file *f)
{
    const char *arch = f->arch != NULL ? f->arch : "llama";
    struct made_value v[20];
    struct made_tensor t[N_ALL + N_TENSORS];
    char names[N_ALL][64];
    struct out o = {.bytes = calloc(1, MAX_BYTES)};
    assert_non_null(o.bytes);
    int n_values = list_values(f, v), n_tensors = list_tensors(f, t, names);
    memcpy(take(&o, 4), "GGUF", 4);
    put_u32(take(&o, 4), 3);
    put_u64(take(&o, 8), (uint64_t)n_tensors);
    put_u64(take(&o, 8), (uint64_t)n_values + 1);
    put_value(&o, arch,
              &(struct made_value){
                  .key = "general.architecture", .kind = GGUF_STRING, .text = arch});
    for (int i = 0; i < n_values; i++)
        put_value(&o, arch, &v[i]);
    uint64_t at = 0;
    for (int i = 0; i < n_tensors; i++) {
        put_text(&o, t[i].name);
        put_u32(take(&o, 4), t[i].n_dims);
        for (uint32_t d = 0; d < t[i].n_dims; d++)
            put_u64(take(&o, 8), t[i].dims[d]);
        put_u32(take(&o, 4), t[i].type);
        put_u64(take(&o, 8), at);
        at += round_up(bytes_of(&t[i]), 32);
    }
    take(&o, (size_t)(round_up(o.n, 32) - o.n));
    for (int i = 0; i < n_tensors; i++) {
        size_t n = (size_t)bytes_of(&t[i]);
        uint8_t *p = take(&o, (size_t)round_up(n, 32));
        for (size_t k = 0; t[i].type == GGUF_TYPE_F32 && k < n; k += 4)
            memcpy(p + k, &t[i].value, 4);
    }
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(o.bytes, 1, o.n, out), o.n);
    assert_int_equal(fclose(out), 0);
    free(o.bytes);
}

/* --- a temporary folder ----------------------------------------------------------------------- */

static char dir[TEMPDIR_BYTES];
char made_gguf_path[TEMPDIR_BYTES + 16];

int made_gguf_setup(void **state)
{
    tempdir_make(dir, "gguf");
    snprintf(made_gguf_path, sizeof made_gguf_path, "%s/m.gguf", dir);
    return 0;
}

int made_gguf_teardown(void **state)
{
    tempdir_remove(dir);
    return 0;
}
