/* test_fingerprint.c - the fingerprint covers everything that determines a state's bits, and
 * nothing else. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "model/matrix_types.h"
#include "base/pool.h"
#include "checkpoint/gguf_types.h"
#include "save/fingerprint.h"
#include "tests/base/tempdir.h"
#include "tests/model/table_file.h"

struct place {
    struct pool *pool;
    struct device *dev;
    struct model *m;
    struct model_work *w;
    struct stream *s;
};

/* options of the device of the next place that is opened */
static struct device_opts device_opts;

/* dtype: the state's type; "q8", "q4" and "bf16r" mean bf16 with weights of that format. */
static void place_open_context(struct place *p, const char *device, const char *model,
                               const char *dtype, int threads, int max_ctx)
{
    bool quantised = dtype[0] == 'q' || strcmp(dtype, "bf16r") == 0;
    assert_int_equal(pool_create(threads, &p->pool, NULL), 0);
    assert_int_equal(device_open(device, &device_opts, p->pool, &p->dev, NULL), 0);
    struct model_opts o = {.dev = p->dev,
                           .dtype = quantised ? "bf16" : dtype,
                           .weights = quantised ? dtype : NULL,
                           .max_ctx = max_ctx};
    assert_int_equal(model_open(model, &o, &p->m, NULL), 0);
    assert_int_equal(model_work_create(p->m, 128, &p->w, NULL), 0);
    assert_int_equal(stream_create(p->dev, STREAM_COMPUTE, &p->s, NULL), 0);
}

static void place_open(struct place *p, const char *device, const char *model,
                       const char *dtype, int threads)
{
    place_open_context(p, device, model, dtype, threads, 256);
}

/* Computes the model's rotation tables again. */
static void model_rope_reset(struct place *p)
{
    int n = (int)p->m->rope[ROPE_GLOBAL][0].max_pos;
    int32_t *pos = calloc((size_t)n, sizeof *pos);
    assert_non_null(pos);
    for (int i = 0; i < n; i++)
        pos[i] = i;
    model_rope_rows(&p->m->cfg, ROPE_GLOBAL, pos, n,
                    (float *)(uintptr_t)p->m->rope[ROPE_GLOBAL][0].cos,
                    (float *)(uintptr_t)p->m->rope[ROPE_GLOBAL][0].sin);
    for (int i = 0; i < n; i++)
        model_rope_reach(p->m, i);
    free(pos);
}

static void place_close(struct place *p)
{
    stream_destroy(p->s);
    model_work_destroy(p->w);
    model_close(p->m);
    device_close(p->dev);
    pool_destroy(p->pool);
}

static struct sha256 fingerprint_of(struct place *p)
{
    struct sha256 f;
    assert_int_equal(fingerprint_make(p->m, p->w, p->s, &f, NULL), 0);
    return f;
}

static struct sha256 make(const char *device, const char *model, const char *dtype,
                          int threads)
{
    struct place p;
    place_open(&p, device, model, dtype, threads);
    struct sha256 f = fingerprint_of(&p);
    place_close(&p);
    return f;
}

static bool same(struct sha256 a, struct sha256 b)
{
    return memcmp(a.b, b.b, sizeof a.b) == 0;
}

TEST(models_and_dtypes_differ)
{
    struct sha256 f[] = {
        make("cpu", "synth:tiny-mha", "f32", 1),   make("cpu", "synth:tiny-mha", "bf16", 1),
        make("cpu", "synth:tiny-mha", "f16", 1),   make("cpu", "synth:tiny-gqa", "f32", 1),
        make("cpu", "synth:tiny-gqa", "bf16", 1),  make("cpu", "synth:tiny-mha", "q8", 1),
        make("cpu", "synth:tiny-gqa", "q8", 1),    make("cpu", "synth:tiny-gqa", "q4", 1),
        make("cpu", "synth:tiny-gqa", "bf16r", 1),
    };
    for (int i = 0; i < 9; i++)
        for (int j = 0; j < i; j++)
            assert_false(same(f[i], f[j]));
}

TEST(threads_do_not_matter)
{
    for (int threads = 2; threads <= 3; threads++)
        assert_true(same(make("cpu", "synth:tiny-gqa", "bf16", 1),
                         make("cpu", "synth:tiny-gqa", "bf16", threads)));
}

/* All instruction sets of the CPU backend compute equal bits, so they share state. That holds with
 * q8 and bf16r weights (AMX, VNNI), too. */
TEST(instruction_sets_share_state)
{
    static const char *const isas[] = {"avx512", "avx2", "portable"};
    static const char *const dtypes[] = {"f32", "bf16", "q8", "q4", "bf16r"};
    int n = 0;
    for (int d = 0; d < 5; d++) {
        struct sha256 best = make("cpu", "synth:tiny-gqa", dtypes[d], 1);
        for (int i = 0; i < 3; i++) {
            struct device *dev;
            device_opts.isa = isas[i];
            if (device_open("cpu", &device_opts, NULL, &dev, NULL) == 0) {
                assert_string_equal(dev->isa, isas[i]);
                device_close(dev);
                assert_true(same(best, make("cpu", "synth:tiny-gqa", dtypes[d], 2)));
                n++;
            }
            device_opts.isa = NULL;
        }
    }
    assert_true(n >= 3);
}

/* Two backends never share state, even if a short run gives equal bits. */
TEST(backends_differ)
{
    static const char *const families[] = {
        "llama", "llama3", "mistral",   "qwen2",      "qwen2-window", "qwen3",     "gemma",
        "opt",   "phi",    "falcon-7b", "falcon-11b", "falcon-40b",   "falcon-rw", "phi3"};
    static const char *const dtypes[] = {"f32", "bf16", "f16", "q8"};
    enum { N = 14 * 4 };
    static struct sha256 all[2 * N];
    for (int i = 0; i < N; i++) {
        char model[96];
        snprintf(model, sizeof model, "tests/model/golden/families/%s", families[i / 4]);
        all[i] = make("cpu", model, dtypes[i % 4], 1);
        all[N + i] = make("ref", model, dtypes[i % 4], 1);
    }
    for (int i = 0; i < 2 * N; i++)
        for (int j = 0; j < i; j++)
            assert_false(same(all[i], all[j]));
}

/* The declared versions and the class are part of the fingerprint even if no computed bit changes.
 */
TEST(declarations_count)
{
    struct place p;
    place_open(&p, "cpu", "synth:tiny-mha", "bf16", 1);
    struct sha256 f = fingerprint_of(&p);
    p.dev->numerics_version++;
    assert_false(same(f, fingerprint_of(&p)));
    p.dev->numerics_version--;
    p.dev->numerics = "ref";
    assert_false(same(f, fingerprint_of(&p)));
    p.dev->numerics = "cpu";
    p.m->w.hash.b[0] ^= 1;
    assert_false(same(f, fingerprint_of(&p)));
    p.m->w.hash.b[0] ^= 1;
    assert_true(same(f, fingerprint_of(&p)));
    place_close(&p);
}

/* Simulates builds whose rotations differ from some position to the end of the context: from 128,
 * from the middle, or for the last positions only. The last build differs in a single dimension. */
TEST(rotation_tables_count)
{
    enum { MAX_CTX = 4096 };
    struct place p;
    place_open_context(&p, "cpu", "synth:tiny-mha", "bf16", 1, MAX_CTX);
    model_rope_reset(&p);
    struct sha256 f = fingerprint_of(&p);
    static const int from[] = {70, 127, 128, 129, 1000, 2047, 2048, 3000, MAX_CTX - 1};
    int half = p.m->cfg.d_rope / 2;
    for (size_t i = 0; i < sizeof from / sizeof from[0]; i++) {
        for (int table = 0; table < 2; table++) {
            float *t = (float *)(uintptr_t)(table ? p.m->rope[ROPE_GLOBAL][0].sin
                                                  : p.m->rope[ROPE_GLOBAL][0].cos);
            for (int pos = from[i]; pos < MAX_CTX; pos++)
                t[pos * half + half - 1] += 1e-6f;
            assert_false(same(f, fingerprint_of(&p)));
            model_rope_reset(&p);
            assert_true(same(f, fingerprint_of(&p)));
        }
    }
    place_close(&p);
}

/* Fields that may change without changing the fingerprint: where a text ends, the maximum context,
 * and the checkpoint's type as the config gives it. */
TEST(eos_ids_and_the_maximum_do_not_matter)
{
    struct sha256 f = make("cpu", "synth:tiny-gqa", "bf16", 1);
    static const int contexts[] = {1, 63, 64, 65, 128, 1980, 1989, 1990, 2048, 5000};
    for (size_t i = 0; i < sizeof contexts / sizeof contexts[0]; i++) {
        struct place p;
        place_open_context(&p, "cpu", "synth:tiny-gqa", "bf16", 1, contexts[i]);
        p.m->cfg.max_ctx = contexts[i];
        p.m->cfg.n_eos = 2;
        p.m->cfg.eos_ids[1] = 7;
        p.m->cfg.bos_id = 5;
        if (!same(f, fingerprint_of(&p)))
            fail_msg("a context of %d tokens has another fingerprint", contexts[i]);
        place_close(&p);
    }
}

/* Fields that determine a state's bits change the fingerprint, each by itself. */
TEST(fields_of_the_config_count)
{
    struct model_config c;
    assert_int_equal(config_shape(&c, "tiny-gqa", NULL), 0);
    c.rope_scaling = (struct rope_scaling){.kind = ROPE_SCALING_FACTORS, .factors = {1, 8}};
    char *text = config_state_text(&c);
#define DIFFERS(change)                                                                    \
    do {                                                                                   \
        struct model_config d = c;                                                         \
        change;                                                                            \
        char *other = config_state_text(&d);                                               \
        assert_string_not_equal(text, other);                                              \
        free(other);                                                                       \
    } while (0)
    DIFFERS(d.norm_eps = 1e-6f);
    DIFFERS(d.rope_theta = 5e5);
    DIFFERS(d.d_rope /= 2);
    DIFFERS(d.rope_scaling.factors[1] = 32);
    DIFFERS(d.rope_scaling.kind = ROPE_SCALING_NONE);
    DIFFERS(d.sliding_window = 4096);
    DIFFERS(d.sliding_window = 9; d.windowed = layer_set_run(1, 4));
    DIFFERS(d.sliding_window = 9; d.windowed.word[0] = 5);
    DIFFERS(d.norm_place = NORMS_AFTER);
    DIFFERS(d.n_experts = 8);
    DIFFERS(d.n_experts_used = 2);
    DIFFERS(d.experts_normed = true);
    DIFFERS(d.residual_scale = 0.5f);
    DIFFERS(d.attn_scale = 0.5f);
    DIFFERS(d.rope_local_theta = 1e4);
    DIFFERS(d.rope_magnitude = 1.5f);
    DIFFERS(d.act = ACT_GELU);
    DIFFERS(d.norm = NORM_RMS_PLUS_ONE);
    DIFFERS(d.block = BLOCK_PARALLEL);
    DIFFERS(d.embed_scale = 2);
    DIFFERS(d.n_heads = 4);
    DIFFERS(d.qk_norm = true);
    DIFFERS(d.qkv_bias = true);
#undef DIFFERS
    c.max_ctx = 1 << 20;
    c.eos_ids[0] = 99;
    char *edited = config_state_text(&c);
    assert_string_equal(text, edited);
    free(edited);
    free(text);
}

/* The probe also runs a layer whose kind differs from that of layer 0. */
TEST(every_kind_of_layer_is_probed)
{
    struct place p;
    place_open(&p, "cpu", "tests/model/golden/families/qwen2-window", "f32", 1);
    int l = 1;
    assert_true(config_window(&p.m->cfg, l) > 0 && config_window(&p.m->cfg, 0) == 0);
    struct sha256 f = fingerprint_of(&p);
    /* no projection reads these weights */
    float *norm = (float *)(uintptr_t)p.m->w.layers[l].norm2_w;
    norm[3] *= 1.01f;
    assert_false(same(f, fingerprint_of(&p)));
    place_close(&p);
}

/* A probe alone would not notice this: the weights are exactly representable in 8 bits. */
TEST(the_kind_of_weights_counts)
{
    struct place p;
    place_open(&p, "cpu", "synth:tiny-mha", "q8", 1);
    struct sha256 f = fingerprint_of(&p);
    p.m->w.dtype = DTYPE_BF16;
    assert_false(same(f, fingerprint_of(&p)));
    place_close(&p);

    /* With 4-bit weights every matrix counts. The changed matrix is in a layer that no probe
     * computes. */
    place_open(&p, "cpu", "synth:tiny-gqa", "q4", 1);
    f = fingerprint_of(&p);
    enum dtype *w_down = matrix_type_at(p.m->w.matrices, 3, SLOT_DOWN);
    assert_int_equal(*w_down, DTYPE_Q4_1);
    *w_down = DTYPE_Q8;
    assert_false(same(f, fingerprint_of(&p)));
    *w_down = DTYPE_Q4_1;
    assert_true(same(f, fingerprint_of(&p)));
    *matrix_type_at(p.m->w.matrices, 3, SLOT_WV) = DTYPE_Q8;
    assert_false(same(f, fingerprint_of(&p)));
    place_close(&p);
}

/* A table held as bf16 gives bf16 state the bits of a table of blocks, so they share state.  It
 * gives f32 state other bits.  So the type of blocks counts there, even for a table whose values
 * are equal. */
TEST(a_table_of_blocks_counts_where_bits_differ)
{
    char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 16];
    static float other[64 * 256];
    struct place p;
    tempdir_make(dir, "table");
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    table_file_write(path, GGUF_TYPE_Q4_K);
    for (int wide = 0; wide < 2; wide++) {
        place_open(&p, "cpu", path, "q4", 1);
        struct mat blocks = p.m->w.embed;
        assert_int_equal(blocks.dtype, DTYPE_Q4_K);
        if (wide) {
            p.m->dtype = DTYPE_F32;
            model_work_destroy(p.w);
            assert_int_equal(model_work_create(p.m, 128, &p.w, NULL), 0);
        }
        struct sha256 f = fingerprint_of(&p);
        int32_t ids[64];
        for (int i = 0; i < 64; i++)
            ids[i] = i;
        struct mat table = mat_of(other, p.m->dtype, 64, 256);
        assert_int_equal(p.dev->ops->embed(p.s, table, blocks, ids, 1), 0);
        p.m->w.embed = table;
        assert_int_equal(same(f, fingerprint_of(&p)), !wide);
        p.m->w.embed = blocks;
        place_close(&p);
    }
    tempdir_remove(dir);
}

/* Each field counts by itself: the hash of the weights, the config, and what the kernels compute.
 */
TEST(each_field_counts)
{
    struct place p;
    place_open(&p, "cpu", "synth:tiny-mha", "f32", 1);
    struct sha256 f = fingerprint_of(&p);
    assert_true(same(f, fingerprint_of(&p)));

    p.m->w.hash.b[31] ^= 1;
    assert_false(same(f, fingerprint_of(&p)));
    p.m->w.hash.b[31] ^= 1;

    /* the window stays longer than the probe, so none of the probe's bits changes */
    int window = p.m->cfg.sliding_window;
    p.m->cfg.sliding_window = 4096;
    assert_false(same(f, fingerprint_of(&p)));
    p.m->cfg.sliding_window = window;

    float *norm = (float *)(uintptr_t)p.m->w.layers[0].norm1_w, one = norm[3];
    norm[3] = one * 1.0000002f; /* as if a kernel rounded differently */
    assert_false(same(f, fingerprint_of(&p)));
    norm[3] = one;

    /* the probe reads layer 1's norm1_w only in the projection that restores */
    norm = (float *)(uintptr_t)p.m->w.layers[1].norm1_w;
    one = norm[3];
    norm[3] = one * 1.01f;
    assert_false(same(f, fingerprint_of(&p)));
    norm[3] = one;
    assert_true(same(f, fingerprint_of(&p)));
    place_close(&p);
}

/* State that an earlier build has saved is found under its fingerprint. If one of these values
 * changes although no declared version does, all saved state is lost without need. */
TEST(fingerprints_stay_the_same)
{
    static const struct {
        const char *model, *dtype, *hex;
    } cases[] = {
        {"synth:tiny-gqa", "f32", "c6941ddbe032290e"},
        {"synth:tiny-gqa", "q4", "9c8f5956a0821180"},
        {"synth:tiny-mha", "bf16r", "fbd45495af33d184"},
        {"tests/model/golden/families/qwen2-window", "bf16", "df0217c591ceebf4"},
        {"tests/model/golden/families/opt", "f16", "1abf09486f2b1951"},
        {"tests/model/golden/families/phi", "f32", "f9f8a8aacc3ec672"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char hex[65];
        struct sha256 f = make("cpu", cases[i].model, cases[i].dtype, 1);
        sha256_hex(&f, hex);
        if (strncmp(hex, cases[i].hex, 16) != 0)
            fail_msg("%s in %s: %.16s", cases[i].model, cases[i].dtype, hex);
    }
}
