/* test_model.c - opening a model: options, state dtype, context, rotation tables, announced memory,
 * activations, and the format of its weights. */
#include "tests/unit.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/pool.h"
#include "model/weights_choose.h"
#include "model/work.h"
#include "packed_file.h"
#include "solo.h"
#include "tensor/device.h"
#include "tests/tensor/peer_threads.h"
#include "tests/base/tempdir.h"
#include "text/tokenizer.h"

#define FAMILIES "tests/model/golden/families/"
#define GGUF     "tests/model/golden/gguf/"

static struct device *open_device(int n_ranks, int n_stages)
{
    struct device *d;
    struct err e = {0};
    peer_threads_use();
    if (group_open("cpu", NULL, n_ranks, n_stages, NULL, &d, &e) != 0)
        fail_msg("%s", e.msg);
    return d;
}

static struct model *open_on(struct device *d, const char *source, struct model_opts o)
{
    struct model *m = NULL;
    struct err e = {0};
    o.dev = d;
    o.probe_ids = tokenizer_first_ids;
    if (model_open(source, &o, &m, &e) != 0)
        fail_msg("%s: %s", source, e.msg);
    return m;
}

static void refuse(const char *source, struct model_opts o, int code, const char *message)
{
    struct device *d = open_device(1, 1);
    struct model *m = NULL;
    struct err e = {0};
    o.dev = d;
    int rc = model_open(source, &o, &m, &e);
    assert_null(m);
    device_close(d);
    if (rc != code || strstr(e.msg, message) == NULL)
        fail_msg("%s: expected %s with '%s', got %s: %s", source, err_name(code), message,
                 err_name(rc), e.msg);
}

#define OPTS(...) ((struct model_opts){__VA_ARGS__})

/* --- options ------------------------------------------------------------------------------ */

TEST(test_the_state_has_the_checkpoints_type_or_the_wanted_one)
{
    static const struct {
        const char *source, *dtype;
        enum dtype want;
    } known[] = {
        {"synth:tiny-mha", NULL, DTYPE_F32},    {"synth:bench-220m", NULL, DTYPE_BF16},
        {"synth:llama-2-7b", NULL, DTYPE_F16},  {"synth:tiny-mha", "bf16", DTYPE_BF16},
        {"synth:llama-2-7b", "f32", DTYPE_F32}, {"models/demo", NULL, DTYPE_BF16},
        {GGUF "llama3.gguf", NULL, DTYPE_BF16}, {GGUF "llama.gguf", "f16", DTYPE_F16},
        {FAMILIES "llama", "bf16", DTYPE_BF16},
    };
    struct device *d = open_device(1, 1);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct model *m = NULL;
        enum weights_held held;
        struct err e = {0};
        struct model_opts o = {.dev = d, .dtype = known[i].dtype};
        assert_int_equal(model_describe(known[i].source, &o, &m, &held, &e), 0);
        if (strncmp(known[i].source, GGUF, strlen(GGUF)) == 0 && known[i].dtype == NULL) {
            model_close(m); /* only the weights tell */
            m = open_on(d, known[i].source, OPTS(0));
        }
        assert_int_equal(m->dtype, known[i].want);
        model_close(m);
    }
    device_close(d);
    refuse("synth:tiny-mha", OPTS(.dtype = "q8"), ERR_USAGE,
           "state dtype 'q8': must be f32, f16 or bf16");
}

static int context(struct device *d, const char *source, int max_ctx)
{
    struct model *m = NULL;
    enum weights_held held;
    struct err e = {0};
    struct model_opts o = {.dev = d, .max_ctx = max_ctx};
    assert_int_equal(model_describe(source, &o, &m, &held, &e), 0);
    int got = m->max_ctx;
    model_close(m);
    return got;
}

TEST(test_which_context_is_allowed)
{
    struct device *d = open_device(1, 1);
    assert_int_equal(context(d, "synth:tiny-mha", 0), 2048);
    assert_int_equal(context(d, "synth:tiny-mha", 100), 100);
    assert_int_equal(context(d, "synth:tiny-mha", 5000), 5000); /* random weights */
    assert_int_equal(context(d, "synth:opt-6.7b", 5000), 2048); /* a table of positions */
    assert_int_equal(context(d, "synth:opt-6.7b", 2047), 2047);
    assert_int_equal(context(d, FAMILIES "llama", 0), 256);
    assert_int_equal(context(d, FAMILIES "llama", 255), 255);
    assert_int_equal(context(d, FAMILIES "llama", 257), 256);
    device_close(d);
    /* the tables' memory is checked before it is taken */
    refuse("synth:tiny-mha", OPTS(.max_ctx = 1 << 30), -ENOMEM,
           "rotation tables for a context of 1073741824 tokens take");
}

TEST(test_formats_of_weights)
{
    static const struct {
        const char *source, *weights;
        enum weights_held held;
    } known[] = {
        {"synth:tiny-mha", NULL, WEIGHTS_AS_STORED},
        {"synth:tiny-mha", "checkpoint", WEIGHTS_AS_STORED},
        {"synth:tiny-mha", "f32", WEIGHTS_F32},
        {"synth:tiny-mha", "bf16", WEIGHTS_BF16},
        {"synth:tiny-mha", "q8", WEIGHTS_Q8},
        {"synth:tiny-mha", "bf16r", WEIGHTS_BF16R},
        {"synth:tiny-mha", "q4", WEIGHTS_Q4},
        {GGUF "llama.gguf", NULL, WEIGHTS_AS_STORED}, /* not quantised: nothing is chosen */
        {GGUF "mixed.gguf", NULL, WEIGHTS_Q4},
        {GGUF "mixed.gguf", "bf16", WEIGHTS_BF16},
        {FAMILIES "llama3", "auto", WEIGHTS_BF16},
    };
    struct device *d = open_device(1, 1);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct model *m = NULL;
        enum weights_held held;
        struct err e = {0};
        struct model_opts o = {.dev = d, .weights = known[i].weights};
        if (model_describe(known[i].source, &o, &m, &held, &e) != 0)
            fail_msg("%s", e.msg);
        assert_int_equal(held, known[i].held);
        model_close(m);
    }
    device_close(d);
    refuse("synth:tiny-mha", OPTS(.weights = "q5"), ERR_USAGE,
           "weights 'q5': must be checkpoint, auto, f32, bf16, q8, q4 or bf16r");
    refuse("synth:no-such", OPTS(0), ERR_NOT_FOUND, "unknown shape 'no-such'");
}

/* The note says how a quantised file is held, and what was measured, if something was. */
TEST(test_notes)
{
    struct device *d = open_device(1, 1);
    struct model *m = open_on(d, FAMILIES "llama3", OPTS(.weights = "auto"));
    assert_non_null(
        strstr(m->note, "weights: matrices are held as bf16; q8 differs from f32 by "));
    assert_non_null(strstr(m->note, "(limit 1e-03), bf16 differs from f32 by 0.0e+00 nats "
                                    "per token (limit 1e-03)"));
    model_close(m);
    m = open_on(d, GGUF "mixed.gguf", OPTS(0));
    assert_int_equal(strncmp(m->note, "weights: ", 9), 0);
    assert_non_null(strstr(m->note, " tensors), "));
    assert_non_null(strstr(m->note, " held as q4; Q5_"));
    assert_non_null(strstr(m->note, " have no kernels and are converted to q8"));
    assert_null(strstr(m->note, "nats per token")); /* nothing is measured */
    assert_null(strstr(m->note, "F32"));            /* only quantised types are listed */
    model_close(m);
    m = open_on(d, GGUF "mixed.gguf", OPTS(.weights = "auto"));
    assert_non_null(strstr(m->note, " held as q4; q4 differs from f32 by "));
    model_close(m);
    m = open_on(d, "synth:tiny-gqa", OPTS(.weights = "q4"));
    assert_non_null(strstr(m->note, "weights: converted to q4; they differ from f32 by "));
    assert_non_null(strstr(m->note, "a short text has perplexity "));
    model_close(m);
    m = open_on(d, GGUF "mixed.gguf", OPTS(.weights = "q4"));
    assert_string_equal(m->note, ""); /* the file's own blocks are used */
    model_close(m);
    m = open_on(d, "synth:tiny-gqa", OPTS(.weights = "q8"));
    assert_string_equal(m->note, "");
    model_close(m);
    device_close(d);
}

TEST(test_formats_of_sources)
{
    char dir[TEMPDIR_BYTES], path[PATH_MAX];
    struct device *d = open_device(1, 1);
    tempdir_make_on_disk(dir, "model");
    packed_file_make(dir, "synth:tiny-mha", "cpu", 1, "bf16", path);
    const struct {
        const char *source, *format;
        bool any_context;
    } known[] = {{"synth:tiny-mha", "synth", false},
                 {GGUF "llama.gguf", "gguf", false},
                 {FAMILIES "llama", "safetensors", false},
                 {path, "packed", true}};
    for (int i = 0; i < 4; i++) {
        struct model *m = open_on(d, known[i].source, OPTS(.max_ctx = 4096));
        assert_string_equal(m->format, known[i].format);
        assert_string_equal(m->source, known[i].source);
        assert_int_equal(m->is_packed, i == 3);
        assert_int_equal(m->any_context, known[i].any_context);
        assert_int_equal(m->max_ctx, i == 1 || i == 2 ? 256 : 4096);
        if (i == 3)
            assert_int_equal(m->packed_held, DTYPE_BF16);
        model_close(m);
    }
    device_close(d);
    /* the type was chosen when the file was written */
    refuse(path, OPTS(.weights = "f32"), ERR_MISMATCH,
           "is packed as bf16: remove --weights f32, or pack the model again with it");
    d = open_device(1, 1);
    static const char *const same[] = {"checkpoint", "auto", "bf16"};
    for (int i = 0; i < 3; i++)
        model_close(open_on(d, path, OPTS(.weights = same[i])));
    device_close(d);
    tempdir_remove(dir);
}

TEST(test_which_contexts_can_be_truncated)
{
    static const struct {
        const char *source;
        int code;
        const char *message;
    } known[] = {{FAMILIES "llama", 0, ""},
                 {FAMILIES "mistral", ERR_UNSUPPORTED, "sliding window of 16 tokens"},
                 {FAMILIES "opt", ERR_UNSUPPORTED, "it has learned positions"}};
    struct device *d = open_device(1, 1);
    for (int i = 0; i < 3; i++) {
        struct err e = {0};
        struct model *m = open_on(d, known[i].source, OPTS(0));
        assert_int_equal(model_check_truncation(m, &e), known[i].code);
        assert_non_null(strstr(e.msg, known[i].message));
        model_close(m);
    }
    device_close(d);
}

/* --- rotation tables ---------------------------------------------------------------------- */

/* The definition: angles of a position. */
static double angle(const struct model_config *c, int pos, int i)
{
    const struct rope_scaling *s = &c->rope_scaling;
    double freq = pow(c->rope_theta, -2.0 * i / c->d_rope);
    if (s->kind == ROPE_SCALING_FACTORS)
        freq /= (double)s->factors[i];
    return pos * freq;
}

static void expect_rows(const struct model_config *c, const int32_t *pos, int n,
                        const float *cos_rows, const float *sin_rows)
{
    int half = c->d_rope / 2;
    for (int r = 0; r < n; r++)
        for (int i = 0; i < half; i++) {
            double a = angle(c, pos[r], i);
            assert_true(fabs((double)cos_rows[r * half + i] - cos(a)) < 1e-6);
            assert_true(fabs((double)sin_rows[r * half + i] - sin(a)) < 1e-6);
        }
}

TEST(test_rotations_of_every_kind)
{
    static float cos_rows[4 * 128], sin_rows[4 * 128];
    static const int32_t pos[4] = {0, 1, 63, 4097};
    struct model_config c;
    assert_int_equal(config_shape(&c, "llama-3-8b", NULL), 0);
    model_rope_rows(&c, ROPE_GLOBAL, pos, 4, cos_rows, sin_rows);
    expect_rows(&c, pos, 4, cos_rows, sin_rows);
    c.rope_scaling = (struct rope_scaling){.kind = ROPE_SCALING_FACTORS};
    for (int i = 0; i < 64; i++)
        c.rope_scaling.factors[i] = 1 + (float)i / 8;
    model_rope_rows(&c, ROPE_GLOBAL, pos, 4, cos_rows, sin_rows);
    expect_rows(&c, pos, 4, cos_rows, sin_rows);
}

/* Checks the rows of block b, and that the block's own table has the same values. */
static void expect_block(const struct model *m, const struct rope *r, int b)
{
    int half = m->cfg.d_rope / 2, first = b * KV_BLOCK_TOKENS, at = first * half;
    int32_t pos[KV_BLOCK_TOKENS];
    for (int i = 0; i < KV_BLOCK_TOKENS; i++)
        pos[i] = first + i;
    expect_rows(&m->cfg, pos, KV_BLOCK_TOKENS, r->cos + at, r->sin + at);
    for (int p = 0; p < KV_BLOCK_TOKENS; p++)
        for (int i = 0; i < half; i++) {
            int row = at + p * half + i, column = at + i * KV_BLOCK_TOKENS + p;
            assert_true(r->cos_t[column] == r->cos[row] && r->sin_t[column] == r->sin[row]);
        }
}

/* Tables have whole blocks of positions, one copy per stage. */
TEST(test_rotation_tables_of_stages)
{
    for (int n_stages = 1; n_stages <= 2; n_stages++) {
        struct device *d = open_device(1, n_stages);
        struct model *m = open_on(d, "synth:tiny-mha", OPTS(.max_ctx = 2049));
        assert_int_equal(model_rope_bytes(m),
                         2112 * 2 * (size_t)m->cfg.d_rope * sizeof(float));
        for (int k = 0; k < n_stages; k++) {
            const struct rope *r = &m->rope[ROPE_GLOBAL][k];
            assert_int_equal(r->max_pos, 2112);
            assert_int_equal(r->d_rot, m->cfg.d_rope);
            assert_int_equal(m->rope_mem[k].bytes, model_rope_bytes(m));
            for (int b = 0; b < 33; b++) {
                model_rope_reach(m, b * KV_BLOCK_TOKENS);
                expect_block(m, r, b);
            }
        }
        model_close(m);
        device_close(d);
    }
    struct device *d = open_device(1, 1);
    struct model *m = open_on(d, FAMILIES "opt", OPTS(0));
    assert_int_equal(model_rope_bytes(m), 0);
    assert_null(m->rope_mem[0].ptr);
    assert_int_equal(m->rope[ROPE_GLOBAL][0].max_pos % KV_BLOCK_TOKENS, 0);
    assert_true(m->rope[ROPE_GLOBAL][0].max_pos >= m->max_ctx);
    model_close(m);
    device_close(d);
}

/* A position that no row has used takes no memory: a context of 128k tokens would take 256 MiB. */
TEST(test_rotations_of_used_positions_alone)
{
    struct device *d = open_device(1, 1);
    struct model *m = open_on(d, "synth:tiny-mha", OPTS(.max_ctx = 8192));
    const struct rope *r = &m->rope[ROPE_GLOBAL][0];
    size_t n = (size_t)8192 * (size_t)m->cfg.d_rope / 2;
    model_rope_reach(m, 5000);
    model_rope_reach(m, 5001);
    expect_block(m, r, 78);
    size_t made = 0;
    for (size_t i = 0; i < n; i++)
        made += r->cos[i] != 0;
    assert_in_range(made, 1, (size_t)KV_BLOCK_TOKENS * (size_t)m->cfg.d_rope / 2);
    model_close(m);
    device_close(d);
}

/* --- memory ------------------------------------------------------------------------------- */

struct told {
    struct model_need need;
    enum dtype dtype;
    int n_calls, code;
};

static int reserve(void *arg, const struct model *m, const struct model_need *need,
                   struct err *err)
{
    struct told *t = arg;
    t->need = *need;
    t->dtype = m->dtype;
    t->n_calls++;
    assert_null(m->w.layers[0].wq.mem.ptr); /* nothing is allocated yet */
    return t->code == 0 ? 0 : err_set(err, t->code, "no room");
}

static size_t weights_bytes(const struct model *m, int stage)
{
    size_t n = 0;
    for (int l = 0; l < m->cfg.n_layers; l++) {
        const struct layer_weights *w = &m->w.layers[l];
        if (model_stage(m, l) == stage)
            n += w->wq.mem.bytes + w->wkv.mem.bytes + w->wv.mem.bytes + w->wo.mem.bytes +
                 w->w_up.mem.bytes + w->w_down.mem.bytes;
    }
    return n;
}

/* A model announces exactly the memory of its matrices, vectors, tables and rotations. */
TEST(test_the_announced_memory)
{
    static const char *const formats[] = {"f32", "bf16", "q8", "q4"};
    for (int i = 0; i < 8; i++) {
        struct told told = {0};
        struct device *d = open_device(1, 1 + i / 4);
        struct model *m = open_on(
            d, "synth:tiny-gqa",
            OPTS(.weights = formats[i % 4], .reserve = reserve, .reserve_arg = &told));
        const struct model_config *c = &m->cfg;
        size_t all = 0;
        assert_int_equal(told.n_calls, 1);
        /* a tensor each, one for vectors and one for rotations */
        assert_int_equal(told.need.n_parts, 9 * c->n_layers + 3 + 2);
        assert_int_equal(told.dtype, m->dtype);
        for (int k = 0; k < d->n_stages; k++) {
            int n_layers = 0;
            for (int l = 0; l < c->n_layers; l++)
                n_layers += model_stage(m, l) == k;
            size_t vectors = (size_t)(2 * n_layers * c->n_embd) * sizeof(float);
            size_t want = weights_bytes(m, k) + vectors + model_rope_bytes(m);
            if (k == 0)
                want += (size_t)(c->vocab_size * c->n_embd) * dtype_bytes(m->w.embed.dtype);
            if (k == d->n_stages - 1)
                want += m->w.head.mem.bytes + (size_t)c->n_embd * sizeof(float);
            assert_int_equal(told.need.bytes[k], want);
            all += want - model_rope_bytes(m);
        }
        assert_int_equal(m->w.bytes, all);
        model_close(m);
        device_close(d);
    }
    struct told told = {.code = ERR_LIMIT};
    refuse("synth:tiny-gqa", OPTS(.reserve = reserve, .reserve_arg = &told), ERR_LIMIT,
           "no room");
    assert_int_equal(told.n_calls, 1);
}

static size_t lines(int64_t rows, int64_t cols, size_t element)
{
    return ((size_t)rows * (size_t)cols * element + 63) / 64 * 64;
}

/* Activations take exactly their matrices, each in whole cache lines. */
TEST(test_the_memory_of_activations)
{
    static const char *const sources[] = {"synth:tiny-gqa", FAMILIES "phi"};
    for (int i = 0; i < 4; i++) {
        int ranks = 1 + i / 2, rows = i % 2 == 0 ? 3 : 40;
        struct device *d = open_device(ranks, 1);
        struct model *m = open_on(d, sources[i % 2], OPTS(.dtype = "bf16"));
        const struct model_config *c = &m->cfg;
        int64_t q = (int64_t)c->n_heads * c->d_head / ranks,
                kv = model_rank_kv_dim(m, 0) * 2, ffn = c->n_ffn / ranks;
        size_t act = dtype_bytes(d->act_dtype);
        /* while a layer's rows come down from ranks, the next layers use others */
        int n_x = ranks > 1 ? 3 : 2, n_kv = ranks > 1 ? 2 : 1;
        size_t want = (size_t)n_x * lines(rows, c->n_embd, 2) +
                      (size_t)n_kv * lines(rows, kv, 2) + 2 * lines(rows, c->n_embd, act) +
                      lines(rows, c->n_embd, 4) + 2 * lines(rows, q, act) +
                      lines(rows, kv, act) +
                      lines(rows, c->mlp_gated ? 2 * ffn : ffn, act) +
                      lines(rows, ffn, act);
        if (ranks > 1) {
            int n = rows < 32 ? rows : 32;
            int64_t wide = ffn > q ? ffn : q;
            want += lines(n, c->vocab_size / ranks, 4) + lines(rows, wide * ranks, act) +
                    lines(rows, c->n_embd / ranks, act);
        }
        assert_int_equal(model_work_bytes(m, rows), want);
        struct model_work *w;
        struct err e = {0};
        assert_int_equal(model_work_create(m, rows, &w, &e), 0);
        assert_int_equal(model_work_rows(w), rows);
        assert_int_equal(w->mem[0].bytes, want);
        assert_int_equal(w->x.n, n_x);
        const struct activations *a = &w->at[0];
        const struct mat *last = &a->ffn;
        assert_int_equal((uint8_t *)last->data - (uint8_t *)w->mem[0].ptr,
                         want - lines(rows, ffn, act));
        assert_int_equal(a->head.rows, ranks > 1 ? (rows < 32 ? rows : 32) : 0);
        model_work_destroy(w);
        model_close(m);
        device_close(d);
    }
}

/* --- devices with fewer abilities --------------------------------------------------------- */

/* Formats for which a device has no kernels are refused, and never chosen. */
TEST(test_formats_without_kernels)
{
    char dir[TEMPDIR_BYTES], path[PATH_MAX];
    struct device *d = open_device(1, 1);
    tempdir_make_on_disk(dir, "model");
    packed_file_make(dir, "synth:tiny-gqa", "cpu", 1, "q4", path);
    static const struct {
        const char *weights;
        bool q8, quantised, accepted;
    } known[] = {{"q8", false, false, false},       {"q8", true, false, true},
                 {"q8", false, true, true},         {"q4", true, false, false},
                 {"bf16r", true, false, false},     {"bf16r", false, true, true},
                 {"bf16", false, false, true},      {"f32", false, false, true},
                 {"checkpoint", false, false, true}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct model *m = NULL;
        enum weights_held held;
        struct err e = {0};
        struct model_opts o = {.dev = d, .weights = known[i].weights};
        char message[96];
        d->q8 = known[i].q8;
        d->quantised = known[i].quantised;
        int rc = model_describe("synth:tiny-gqa", &o, &m, &held, &e);
        assert_int_equal(rc, known[i].accepted ? 0 : ERR_UNSUPPORTED);
        snprintf(message, sizeof message,
                 "weights %s: device cpu has no kernels for them: use --weights bf16",
                 known[i].weights);
        assert_string_equal(e.msg, rc == 0 ? "" : message);
        model_close(m);
    }
    d->q8 = d->quantised = false;
    struct model *m = NULL;
    enum weights_held held;
    struct err e = {0};
    struct model_opts o = {.dev = d};
    assert_int_equal(model_describe(GGUF "mixed.gguf", &o, &m, &held, &e), 0);
    assert_true(held == WEIGHTS_BF16 || held == WEIGHTS_F32);
    assert_null(strstr(m->note, "q8"));
    assert_null(strstr(m->note, "q4"));
    model_close(m);
    m = NULL;
    assert_int_equal(model_describe(path, &o, &m, &held, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.msg,
                           "is packed as q4, for which device cpu has no kernels: pack "
                           "it as bf16"));
    d->q8 = true; /* 8 bits are not enough for a file of 4 bits */
    assert_int_equal(model_describe(path, &o, &m, &held, &e), ERR_UNSUPPORTED);
    d->quantised = true;
    assert_int_equal(model_describe(path, &o, &m, &held, &e), 0);
    model_close(m);
    device_close(d);
    tempdir_remove(dir);
}

static size_t unused_bytes;

static void little_memory(struct device *d, size_t *unused, size_t *total)
{
    (void)d;
    *unused = unused_bytes;
    *total = 8000000000;
}

/* On a device with memory of its own, weights and tables must fit into its unused memory. */
TEST(test_a_device_with_memory_of_its_own)
{
    static const char *const sources[] = {"synth:tiny-gqa", FAMILIES "llama",
                                          GGUF "llama3.gguf"};
    for (int i = 0; i < 3; i++) {
        struct device *a = open_device(1, 1), *b = open_device(1, 1);
        struct device_vtable v = *b->v;
        b->unified = false;
        b->v = &v;
        v.memory = little_memory;
        unused_bytes = 1000000000;
        struct model *x = open_on(a, sources[i], OPTS(0)),
                     *y = open_on(b, sources[i], OPTS(0));
        const struct model_config *c = &x->cfg;
        assert_int_equal(x->rope_mem[0].bytes, y->rope_mem[0].bytes);
        for (int pos = 0; pos < x->rope[0][0].max_pos; pos += KV_BLOCK_TOKENS)
            model_rope_reach(x, pos);
        assert_memory_equal(x->rope_mem[0].ptr, y->rope_mem[0].ptr, x->rope_mem[0].bytes);
        assert_memory_equal(x->w.embed.data, y->w.embed.data,
                            (size_t)(c->vocab_size * c->n_embd) *
                                dtype_bytes(x->w.embed.dtype));
        assert_memory_equal(x->w.layers[1].w_down.mem.ptr, y->w.layers[1].w_down.mem.ptr,
                            x->w.layers[1].w_down.mem.bytes);
        assert_memory_equal(x->w.final_norm_w, y->w.final_norm_w,
                            (size_t)c->n_embd * sizeof(float));
        assert_int_equal(y->w.bytes, x->w.bytes);
        /* a third buffer of the residual stream, and a second of K and V */
        size_t more = lines(7, c->n_embd, dtype_bytes(x->dtype)) +
                      lines(7, 2 * model_kv_dim(x, 0), dtype_bytes(x->dtype));
        assert_int_equal(model_work_bytes(y, 7), model_work_bytes(x, 7) + more);
        unused_bytes = y->w.bytes;
        model_close(open_on(b, sources[i], OPTS(0)));
        unused_bytes = y->w.bytes - 1;
        struct model *m = NULL;
        struct err e = {0};
        struct model_opts o = {.dev = b};
        assert_int_equal(model_open(sources[i], &o, &m, &e), -ENOMEM);
        assert_non_null(strstr(e.msg, "GB are needed on device cpu"));
        assert_non_null(strstr(e.msg, "of 8.00 GB are free: choose a smaller model"));
        model_close(y);
        model_close(x);
        device_close(b);
        device_close(a);
    }
}

/* --- comparing formats -------------------------------------------------------------------- */

enum { PROBE = 128, MAX_VOCAB = 512 };

static void logits_of(const char *source, const char *weights, float *logits, int32_t *ids)
{
    struct solo t;
    solo_open_held(&t, source, "f32", weights);
    assert_true(t.m->cfg.vocab_size <= MAX_VOCAB);
    for (int i = 0; i < PROBE; i++)
        ids[i] = (i * 7919 + 13) % t.m->cfg.vocab_size;
    for (int at = 0; at < PROBE; at += 32) /* a batch changes no bit */
        solo_feed(&t, ids + at, 32, logits + (size_t)(at * t.m->cfg.vocab_size));
    solo_close(&t);
}

static double log_p(const float *row, int vocab, int id)
{
    double sum = 0;
    for (int i = 0; i < vocab; i++)
        sum += exp((double)row[i]);
    return (double)row[id] - log(sum);
}

/* A comparison reports the divergence and the perplexities that follow from the logits of whole
 * models, on a text of 128 tokens. */
TEST(test_a_comparison_measures_logits)
{
    static float exact[PROBE * MAX_VOCAB], other[PROBE * MAX_VOCAB];
    int32_t ids[PROBE];
    struct weights_choice c;
    struct err e = {0};
    struct device *d = open_device(1, 1);
    struct model *m = open_on(d, "synth:tiny-gqa", OPTS(0));
    assert_int_equal(weights_compare(m, WEIGHTS_Q8, &c, &e), 0);
    assert_int_equal(c.held, WEIGHTS_Q8);
    assert_int_equal(c.n_tried, 1);
    int vocab = m->cfg.vocab_size;
    logits_of("synth:tiny-gqa", "f32", exact, ids);
    logits_of("synth:tiny-gqa", "q8", other, ids);
    double kl = 0, nll[2] = {0, 0};
    for (int r = 0; r < PROBE; r++) {
        const float *a = exact + r * vocab, *b = other + r * vocab;
        for (int i = 0; i < vocab; i++)
            kl += exp(log_p(a, vocab, i)) * (log_p(a, vocab, i) - log_p(b, vocab, i));
        if (r + 1 < PROBE) {
            nll[0] -= log_p(a, vocab, ids[r + 1]);
            nll[1] -= log_p(b, vocab, ids[r + 1]);
        }
    }
    assert_true(kl > 0);
    assert_true(fabs(c.tried[0].kl / (kl / PROBE) - 1) < 1e-6);
    assert_true(fabs(c.perplexity / exp(nll[0] / (PROBE - 1)) - 1) < 1e-9);
    assert_true(fabs(c.tried[0].perplexity / exp(nll[1] / (PROBE - 1)) - 1) < 1e-9);
    model_close(m);
    device_close(d);
}

enum { FINE_ROWS = 40 };

/* Returns the largest difference of a row's logits from products in f64 with the head's weights,
 * relative to the root of the sum of the squared terms. */
static double worst_logit(const struct solo *t, const float *normed, const float *logits,
                          const float *head)
{
    double worst = 0;
    int d = t->m->cfg.n_embd;
    for (int j = 0; j < t->m->cfg.vocab_size; j++) {
        double size = 0,
               want = t->m->w.head_bias != NULL ? (double)t->m->w.head_bias[j] : 0;
        for (int k = 0; k < d; k++) {
            double term = (double)normed[k] * (double)head[j * d + k];
            want += term;
            size += term * term;
        }
        worst = fmax(worst, fabs((double)logits[j] - want) / sqrt(size));
    }
    return worst;
}

/* A head of 8 bits also multiplies what rounding leaves out of a row: the row rounded to 8 bits
 * alone exceeds this bound.  The bits are those of each row alone. */
TEST(test_a_head_of_8_bits_rounds_twice)
{
    static const char *const sources[] = {"synth:tiny-gqa", FAMILIES "phi",
                                          FAMILIES "qwen3"};
    for (int i = 0; i < 3; i++) {
        struct solo t;
        solo_open_held(&t, sources[i], "f32", "q8");
        const struct model *m = t.m;
        int64_t d = m->cfg.n_embd, vocab = m->cfg.vocab_size;
        assert_int_equal(m->w.head.dtype, DTYPE_Q8);
        float *x = xcalloc((size_t)(FINE_ROWS * d), sizeof *x),
              *normed = xcalloc((size_t)(FINE_ROWS * d), sizeof *x),
              *head = xcalloc((size_t)(vocab * d), sizeof *x),
              *all = xcalloc((size_t)(FINE_ROWS * vocab), sizeof *x),
              *one = xcalloc((size_t)vocab, sizeof *x);
        int32_t *ids = xcalloc((size_t)vocab, sizeof *ids);
        for (int r = 0; r < FINE_ROWS * d; r++)
            x[r] = (float)(r * 7919 % 23 - 11);
        for (int32_t id = 0; id < vocab; id++)
            ids[id] = id;
        struct mat rows = mat_of(x, DTYPE_F32, FINE_ROWS, d);
        assert_int_equal(
            model_final_norm(m, t.work, t.s, rows, mat_of(normed, DTYPE_F32, FINE_ROWS, d)),
            0);
        assert_int_equal(t.dev->ops->weight_rows(t.s, mat_of(head, DTYPE_F32, vocab, d),
                                                 &m->w.head, ids),
                         0);
        assert_int_equal(
            model_head(m, t.work, t.s, rows, mat_of(all, DTYPE_F32, FINE_ROWS, vocab)), 0);
        for (int r = 0; r < FINE_ROWS; r++) {
            assert_true(worst_logit(&t, normed + r * d, all + r * vocab, head) < 2e-4);
            assert_int_equal(model_head(m, t.work, t.s, mat_rows(rows, r, 1),
                                        mat_of(one, DTYPE_F32, 1, vocab)),
                             0);
            assert_memory_equal(one, all + r * vocab, (size_t)vocab * sizeof *one);
        }
        free(x);
        free(normed);
        free(head);
        free(all);
        free(one);
        free(ids);
        solo_close(&t);
    }
}

TEST(test_limits_of_a_choice)
{
    assert_true(weights_max_kl(WEIGHTS_Q4) == WEIGHTS_MAX_KL_Q4);
    assert_true(weights_max_kl(WEIGHTS_Q8) == WEIGHTS_MAX_KL);
    assert_true(weights_max_kl(WEIGHTS_BF16) == WEIGHTS_MAX_KL);
}
