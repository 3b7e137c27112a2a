/* test_gguf_model.c - a GGUF file gives the same model as the folder from which it was made.
 *
 * tests/model/golden/gguf/NAME.gguf was made from families/NAME (tools/golden/hf_to_gguf.py), with
 * rows permuted and stacked, norms changed and names as in llama.cpp. */
#include "tests/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/gguf_types.h"
#include "base/json.h"
#include "model/pass.h"
#include "model/weights_choose.h"
#include "solo.h"
#include "table_file.h"
#include "tests/base/tempdir.h"

#define FAMILIES "tests/model/golden/families/"
#define GGUF     "tests/model/golden/gguf/"

enum { VOCAB = 128, N_IDS = 70 };

static void logits_of(const char *source, const char *dtype, float *out,
                      struct sha256 *hash)
{
    struct solo t;
    int32_t ids[N_IDS];
    solo_open(&t, source, "cpu", dtype, 2);
    assert_int_equal(t.m->cfg.vocab_size, VOCAB);
    for (int i = 0; i < N_IDS; i++)
        ids[i] = (i * 37 + 5) % VOCAB;
    solo_feed(&t, ids, N_IDS, out);
    *hash = t.m->w.hash;
    solo_close(&t);
}

static float folder[N_IDS * VOCAB], gguf[N_IDS * VOCAB];

/* Sets the logits and hashes of a family's folder and of its GGUF file. */
static void read_both(const char *name, const char *dtype, struct sha256 *of_folder,
                      struct sha256 *of_gguf)
{
    char path[128];
    snprintf(path, sizeof path, FAMILIES "%s", name);
    logits_of(path, dtype, folder, of_folder);
    snprintf(path, sizeof path, GGUF "%s.gguf", name);
    logits_of(path, dtype, gguf, of_gguf);
}

static void test_family_is_the_folder_bit_for_bit(void **state)
{
    struct sha256 ha, hb;
    const char *name = *state;
    read_both(name, NULL, &ha, &hb); /* state gets the folder's dtype */
    assert_memory_equal(folder, gguf, sizeof folder);
    /* Only llama.gguf holds every tensor in the folder's type. So only its weights may have the
     * folder's hash, which lets both share saved state. */
    assert_int_equal(memcmp(&ha, &hb, sizeof ha) == 0, strcmp(name, "llama") == 0);
}

/* Files of models with recurrent layers hold -exp(A_log), whose logarithm is rounded, and qwen35's
 * heads of V lie in another order, in which their products are added up.  qwen3.5.gguf has a layer
 * that guesses tokens, too. */
static void test_hybrid_is_the_folder(void **state)
{
    struct sha256 ha, hb;
    read_both(*state, "f32", &ha, &hb);
    for (int i = 0; i < N_IDS; i++) {
        int best[2] = {0, 0};
        for (int k = 0; k < VOCAB; k++) {
            const float *x = folder + i * VOCAB, *y = gguf + i * VOCAB;
            assert_true(fabsf(x[k] - y[k]) < 1e-4f);
            best[0] = x[k] > x[best[0]] ? k : best[0];
            best[1] = y[k] > y[best[1]] ? k : best[1];
        }
        assert_int_equal(best[0], best[1]);
    }
    assert_memory_not_equal(&ha, &hb, sizeof ha); /* their states are not interchangeable */
}

/* A requested state dtype is used, whatever types the file has. */
TEST(test_asked_dtype)
{
    static const char *const names[] = {"f32", "bf16", "f16"};
    static const enum dtype want[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (int i = 0; i < 3; i++) {
        struct solo t;
        solo_open(&t, GGUF "llama.gguf", "cpu", names[i], 2);
        assert_int_equal(t.m->dtype, want[i]);
        solo_close(&t);
    }
}

/* The file has a factor for each frequency, where the folder has Llama 3.1's formula. Both are one
 * model: same logits, same state. */
TEST(test_rope_factors_are_the_formula)
{
    static float split[N_IDS * VOCAB];
    struct sha256 h, of_folder, of_split;
    logits_of(FAMILIES "llama3", "f32", folder, &of_folder);
    logits_of(GGUF "llama3.gguf", "f32", gguf, &h);
    logits_of(GGUF "split-00001-of-00003.gguf", "f32", split, &of_split);
    assert_memory_equal(folder, gguf, sizeof gguf);
    /* a model split into several files gives the same bits */
    assert_memory_equal(gguf, split, sizeof gguf);
    assert_memory_equal(&h, &of_split, sizeof h);
}

/* --- quantised files ---------------------------------------------------------------------- */

/* llama.cpp's quantiser made NAME.gguf. NAME.json has the logits that llama.cpp computes in f32
 * from the file's decoded values (tools/golden/make_gguf_mixed.py). */
static void gives_the_oracles_logits(const char *name)
{
    char path[128];
    static float got[N_IDS * 64];
    int32_t ids[N_IDS];
    char *text;
    size_t n;
    int64_t first, step;
    struct err e = {0};
    struct json *j;
    struct solo t;
    snprintf(path, sizeof path, GGUF "%s.json", name);
    assert_int_equal(file_read(path, 1 << 20, &text, &n, &e), 0);
    assert_int_equal(json_parse(&j, text, n, path, &e), 0);
    assert_int_equal(json_get_int(j, "first", 0, N_IDS, &first, &e), 0);
    assert_int_equal(json_get_int(j, "step", 1, N_IDS, &step, &e), 0);
    for (size_t i = 0; i < N_IDS; i++) {
        int64_t id = -1;
        assert_true(json_int_of(json_at(json_member(j, "ids"), i), &id));
        ids[i] = (int32_t)id;
    }
    snprintf(path, sizeof path, GGUF "%s.gguf", name);
    solo_open_held(&t, path, "f32", "f32");
    solo_feed(&t, ids, N_IDS, got);
    solo_close(&t);
    const struct json *rows = json_member(j, "logits");
    double off = 0, largest = 0;
    for (size_t r = 0; r < json_count(rows); r++)
        for (size_t k = 0; k < 64; k++) {
            double want = 0;
            assert_true(json_real_of(json_at(json_at(rows, r), k), &want));
            double d = fabs(want -
                            (double)got[((size_t)first + r * (size_t)step) * 64 + k]);
            off = fmax(off, d);
            largest = fmax(largest, fabs(want));
        }
    assert_true(json_count(rows) > 3);
    /* The bound leaves room for llama.cpp's exponentials, which are partly f16 tables: a folder in
     * F32 also differs by 5e-4 of the largest logit. A wrong scale or a wrong row differs by 1e-1
     * and more. */
    if (off > 2e-3 * largest)
        fail_msg("off by %g of %g", off, largest);
    json_free(j);
    free(text);
}

TEST(test_quantised_types_give_the_oracles_logits)
{
    gives_the_oracles_logits("mixed"); /* has tensors of nine types */
    gives_the_oracles_logits("bf16");
}

static struct weights_choice choose(const char *source, enum weights_smallest smallest)
{
    struct solo t;
    struct weights_choice c;
    struct err e = {0};
    solo_open_held(&t, source, NULL, "f32");
    if (weights_choose(t.m, smallest, &c, &e) != 0)
        fail_msg("%s", e.msg);
    solo_close(&t);
    return c;
}

TEST(test_auto_takes_the_smallest_format_that_is_good_enough)
{
    struct weights_choice c = choose(GGUF "llama3.gguf", WEIGHTS_DOWN_TO_BF16);
    assert_int_equal(c.n_tried, 1);
    assert_int_equal(c.tried[0].held, WEIGHTS_BF16);
    assert_true(c.tried[0].kl == 0); /* the file's values are bf16, so nothing is lost */
    assert_int_equal(c.held, WEIGHTS_BF16);

    /* q8 changes this model's predictions too much */
    c = choose("models/demo", WEIGHTS_DOWN_TO_Q8);
    assert_int_equal(c.n_tried, 2);
    assert_int_equal(c.tried[0].held, WEIGHTS_Q8); /* the smallest is tried first */
    assert_true(c.tried[0].kl > WEIGHTS_MAX_KL);
    assert_true(c.tried[1].kl == 0);
    assert_int_equal(c.held, WEIGHTS_BF16);

    c = choose(GGUF "phi.gguf", WEIGHTS_DOWN_TO_Q8);
    assert_true(c.tried[0].kl > 0 && c.tried[0].kl <= WEIGHTS_MAX_KL);
    assert_int_equal(c.held, WEIGHTS_Q8);
    assert_int_equal(c.n_tried, 1); /* larger formats are not tried */

    /* the 4-bit tensors of this file are used as they are */
    c = choose(GGUF "mixed.gguf", WEIGHTS_DOWN_TO_Q4);
    assert_true(c.tried[0].kl > 0 && c.tried[0].kl <= WEIGHTS_MAX_KL_Q4);
    assert_int_equal(c.held, WEIGHTS_Q4);
    assert_int_equal(c.n_tried, 1);
}

/* Returns rows [n][k] f32 of a matrix. */
static float *rows_of(const struct solo *t, const struct weight *w)
{
    float *out = malloc((size_t)(w->n * w->k) * sizeof *out);
    int32_t *ids = malloc((size_t)w->n * sizeof *ids);
    for (int i = 0; i < w->n; i++)
        ids[i] = i;
    assert_int_equal(
        t->m->dev->ops->weight_rows(t->s, mat_of(out, DTYPE_F32, w->n, w->k), w, ids), 0);
    free(ids);
    return out;
}

/* Checks that `part`, held in the file's own format, has exactly the values of rows [row, row + n)
 * of `all`, held in f32. */
static void expect_rows(const struct solo *a, const struct weight *all, int64_t row,
                        const struct solo *b, const struct weight *part)
{
    float *want = rows_of(a, all), *got = rows_of(b, part);
    assert_true(row + part->n <= all->n && part->k == all->k);
    for (int64_t i = 0; i < part->n * part->k; i++)
        assert_true(got[i] == want[row * all->k + i]);
    free(want);
    free(got);
}

/* 4-bit tensors keep their type and exactly the file's values, in the order of the model's rows. A
 * matrix of which even a part has another type is held in 8 bits. */
TEST(test_4_bit_tensors_are_held_as_they_are)
{
    struct solo a, b;
    solo_open_held(&a, GGUF "mixed.gguf", NULL, "f32");
    solo_open_held(&b, GGUF "mixed.gguf", NULL, "q4");
    const struct layer_weights *la = a.m->w.layers, *lb = b.m->w.layers;
    assert_int_equal(lb->wq.dtype, DTYPE_Q4_K);
    assert_int_equal(lb->wo.dtype, DTYPE_Q4_0);
    assert_int_equal(lb->wkv.dtype, DTYPE_Q8); /* W_k is Q5_K in the file */
    assert_int_equal(lb->wv.dtype, DTYPE_Q6_K);
    assert_int_equal(lb->w_up.dtype, DTYPE_Q8);   /* Q4_1 and Q5_0 in the file */
    assert_int_equal(lb->w_down.dtype, DTYPE_Q8); /* Q5_1 in the file */
    assert_int_equal(b.m->w.head.dtype, DTYPE_Q8);
    expect_rows(&a, &la->wq, 0, &b, &lb->wq);
    expect_rows(&a, &la->wo, 0, &b, &lb->wo);
    expect_rows(&a, &la->wkv, lb->wkv.n, &b, &lb->wv);
    solo_close(&a);
    solo_close(&b);
}

/* 6-bit tensors are held as they are too, also the embedding table that serves as the head.  W_k
 * and W_v are one matrix if they have one type; W_k of 4 bits and W_v of 6 bits are two.  So the
 * weights take hardly more memory than the file. */
TEST(test_6_bit_tensors_are_held_as_they_are)
{
    struct solo a, b;
    struct stat file;
    assert_int_equal(stat(GGUF "six.gguf", &file), 0);
    solo_open_held(&a, GGUF "six.gguf", NULL, "f32");
    solo_open_held(&b, GGUF "six.gguf", NULL, "q4");
    const struct layer_weights *la = a.m->w.layers, *lb = b.m->w.layers;
    assert_int_equal(lb[0].wq.dtype, DTYPE_Q4_K);
    assert_int_equal(b.m->w.head.dtype, DTYPE_Q6_K);
    assert_int_equal(lb[0].wkv.dtype, DTYPE_Q6_K);
    assert_int_equal(lb[0].w_down.dtype, DTYPE_Q6_K);
    assert_int_equal(lb[0].wv.n, 0);
    assert_int_equal(lb[1].wkv.dtype, DTYPE_Q4_K);
    assert_int_equal(lb[1].wv.dtype, DTYPE_Q6_K);
    assert_int_equal(lb[1].wkv.n, la[1].wkv.n / 2);
    assert_int_equal(lb[1].wv.n, la[1].wkv.n / 2);
    assert_int_equal(lb[1].w_down.dtype, DTYPE_Q4_K);
    expect_rows(&a, &a.m->w.head, 0, &b, &b.m->w.head);
    expect_rows(&a, &la[0].wkv, 0, &b, &lb[0].wkv);
    expect_rows(&a, &la[0].w_down, 0, &b, &lb[0].w_down);
    expect_rows(&a, &la[1].wkv, 0, &b, &lb[1].wkv);
    expect_rows(&a, &la[1].wkv, lb[1].wkv.n, &b, &lb[1].wv);
    assert_true((double)b.m->w.bytes < 1.03 * (double)file.st_size);
    solo_close(&a);
    solo_close(&b);
}

/* --- embedding tables in blocks -------------------------------------------------------------- */

static const uint32_t table_types[] = {GGUF_TYPE_Q4_0,  GGUF_TYPE_Q4_1,  GGUF_TYPE_Q4_K,
                                       GGUF_TYPE_Q6_K,  GGUF_TYPE_MXFP4, GGUF_TYPE_IQ4_NL,
                                       GGUF_TYPE_IQ4_XS};
enum { N_TABLE_TYPES = sizeof table_types / sizeof table_types[0] };
enum { TABLE_ROWS = 64, TABLE_COLS = 256, TABLE_IDS = 70 };

static void table_logits(struct solo *t, float *out)
{
    int32_t ids[TABLE_IDS];
    for (int i = 0; i < TABLE_IDS; i++)
        ids[i] = (i * 37 + 5) % TABLE_ROWS;
    solo_forget(t);
    solo_feed(t, ids, TABLE_IDS, out);
}

/* An untied embedding table of 4 or 6 bits is held as it is in the file, and its rows have exactly
 * the file's values. */
TEST(test_a_table_of_blocks_is_held_as_it_is)
{
    char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 16];
    static float want[TABLE_ROWS * TABLE_COLS], got[TABLE_ROWS * TABLE_COLS];
    int32_t ids[TABLE_ROWS];
    tempdir_make(dir, "table");
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    for (int i = 0; i < TABLE_ROWS; i++)
        ids[i] = TABLE_ROWS - 1 - i;
    for (int i = 0; i < N_TABLE_TYPES; i++) {
        struct solo a, b;
        table_file_write(path, table_types[i]);
        solo_open_held(&a, path, NULL, "f32");
        solo_open_held(&b, path, NULL, "q4");
        assert_int_equal(a.m->w.embed.dtype, DTYPE_F32);
        assert_int_equal(b.m->w.embed.dtype, DTYPE_Q4_0 + i);
        assert_true(b.m->w.bytes + sizeof want / 4 < a.m->w.bytes);
        struct mat x = mat_of(want, DTYPE_F32, TABLE_ROWS, TABLE_COLS),
                   y = mat_of(got, DTYPE_F32, TABLE_ROWS, TABLE_COLS);
        assert_int_equal(a.dev->ops->embed(a.s, x, a.m->w.embed, ids, 1), 0);
        assert_int_equal(b.dev->ops->embed(b.s, y, b.m->w.embed, ids, 1), 0);
        for (int k = 0; k < TABLE_ROWS * TABLE_COLS; k++) /* 0 and -0 count as equal */
            assert_true(want[k] == got[k] && isfinite(got[k]));
        solo_close(&a);
        solo_close(&b);
    }
    /* a table of a type without a layout of its own is held as bf16 */
    struct solo t;
    table_file_write(path, GGUF_TYPE_Q5_K);
    solo_open_held(&t, path, NULL, "q4");
    assert_int_equal(t.m->w.embed.dtype, DTYPE_BF16);
    solo_close(&t);
    tempdir_remove(dir);
}

/* State in bf16 has the bits that the same table, held as bf16, gives: with and without a factor
 * for embeddings.  So such state that was saved before tables were used in blocks stays valid. */
TEST(test_a_table_of_blocks_gives_the_bits_of_bf16)
{
    char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 16];
    static float want[TABLE_IDS * TABLE_ROWS], got[TABLE_IDS * TABLE_ROWS];
    static float values[TABLE_ROWS * TABLE_COLS];
    static uint16_t rounded[TABLE_ROWS * TABLE_COLS];
    int32_t ids[TABLE_ROWS];
    tempdir_make(dir, "table");
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    for (int i = 0; i < TABLE_ROWS; i++)
        ids[i] = i;
    for (int i = 0; i < 2 * N_TABLE_TYPES; i++) {
        struct solo t;
        table_file_write(path, table_types[i / 2]);
        solo_open_held(&t, path, NULL, "q4");
        assert_int_equal(t.m->dtype, DTYPE_BF16);
        t.m->cfg.embed_scale = i % 2 == 0 ? 1.0f : 1.7f;
        table_logits(&t, got);
        struct mat all = mat_of(values, DTYPE_F32, TABLE_ROWS, TABLE_COLS),
                   blocks = t.m->w.embed;
        assert_int_equal(t.dev->ops->embed(t.s, all, blocks, ids, 1), 0);
        for (int k = 0; k < TABLE_ROWS * TABLE_COLS; k++)
            rounded[k] = f32_to_bf16(values[k]);
        t.m->w.embed = mat_of(rounded, DTYPE_BF16, TABLE_ROWS, TABLE_COLS);
        table_logits(&t, want);
        t.m->w.embed = blocks;
        assert_memory_equal(got, want, sizeof got);
        solo_close(&t);
    }
    tempdir_remove(dir);
}

/* Each of two ranks reads the whole table. */
TEST(test_ranks_read_a_table_of_blocks)
{
    char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 16];
    static uint16_t want[TABLE_ROWS * TABLE_COLS], got[TABLE_ROWS * TABLE_COLS];
    int32_t ids[TABLE_ROWS];
    struct solo a, b;
    tempdir_make(dir, "table");
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    table_file_write(path, GGUF_TYPE_Q4_K);
    for (int i = 0; i < TABLE_ROWS; i++)
        ids[i] = i;
    solo_open_held(&a, path, NULL, "q4");
    solo_open_as(&b, path, "cpu", 2, 1, &(struct model_opts){.weights = "q4"});
    struct mat x = mat_of(want, DTYPE_BF16, TABLE_ROWS, TABLE_COLS), y = x;
    assert_int_equal(a.dev->ops->embed(a.s, x, a.m->w.embed, ids, 1), 0);
    y.data = got;
    for (int rank = 0; rank < 2; rank++) {
        struct mat table = b.m->w.embed;
        assert_int_equal(table.dtype, DTYPE_Q4_K);
        table.data = rank_address(b.dev, table.data, rank);
        memset(got, 0, sizeof got);
        assert_int_equal(a.dev->ops->embed(a.s, y, table, ids, 1), 0);
        assert_memory_equal(got, want, sizeof got);
    }
    solo_close(&a);
    solo_close(&b);
    tempdir_remove(dir);
}

/* Each of two ranks has its own rows of W_o, with whole rows of quantised blocks. */
TEST(test_ranks_have_their_rows)
{
    enum { D = 256, OWN = D / 2 };
    struct solo a, b;
    float *got = malloc(D * OWN * sizeof *got);
    int32_t ids[OWN];
    for (int i = 0; i < OWN; i++)
        ids[i] = i;
    solo_open_held(&a, GGUF "mixed.gguf", NULL, "q4");
    solo_open_as(&b, GGUF "mixed.gguf", "cpu", 2, 1, &(struct model_opts){.weights = "q4"});
    float *want = rows_of(&a, &a.m->w.layers[0].wo);
    for (int rank = 0; rank < 2; rank++) {
        struct weight own = b.m->w.layers[0].wo;
        assert_int_equal(own.dtype, DTYPE_Q4_0);
        assert_int_equal(own.n, OWN);
        assert_int_equal(own.k, D);
        own.mem.ptr = rank_address(b.dev, own.mem.ptr, rank);
        assert_int_equal(
            a.dev->ops->weight_rows(a.s, mat_of(got, DTYPE_F32, OWN, D), &own, ids), 0);
        assert_memory_equal(got, want + rank * OWN * D, OWN * D * sizeof *got);
    }
    free(want);
    free(got);
    solo_close(&a);
    solo_close(&b);
}

/* Layers of one file may differ in the types of their tensors. */
TEST(test_layers_differ)
{
    struct solo t;
    solo_open_held(&t, GGUF "layers.gguf", NULL, "q4");
    for (int l = 0; l < 4; l++) {
        const struct layer_weights *w = &t.m->w.layers[l];
        bool more = l == 0 || l == 3; /* W_v and W_down have 8 bits */
        assert_int_equal(w->wq.dtype, DTYPE_Q4_1);
        assert_int_equal(w->wkv.dtype, DTYPE_Q4_1);
        assert_int_equal(w->wv.n, more ? w->wkv.n : 0);
        assert_int_equal(w->wv.dtype, more ? DTYPE_Q8 : DTYPE_Q4_1);
        assert_int_equal(w->w_down.dtype, more ? DTYPE_Q8 : DTYPE_Q4_1);
    }
    solo_close(&t);
}

/* Without an option a quantised file is held as it is, and no pass runs. With "auto" it is held in
 * the format that is measured to be good enough. Other options name a format. State is bf16 in each
 * case. */
TEST(test_quantised_files_are_held_as_they_are)
{
    static const struct {
        const char *weights;
        enum dtype held;
    } asked[] = {
        {"f32", DTYPE_F32}, {"bf16", DTYPE_BF16}, {"q8", DTYPE_Q8}, {"q4", DTYPE_Q4}};
    struct weights_choice c = choose(GGUF "mixed.gguf", WEIGHTS_DOWN_TO_Q4);
    struct sha256 hashes[4];
    struct solo t;
    for (int i = 0; i < 4; i++) {
        solo_open_held(&t, GGUF "mixed.gguf", NULL, asked[i].weights);
        assert_int_equal(t.m->w.dtype, asked[i].held);
        assert_int_equal(t.m->dtype, DTYPE_BF16);
        assert_string_equal(t.m->note, "");
        hashes[i] = t.m->w.hash;
        solo_close(&t);
    }
    /* the hash is over the decoded values, so the format does not change it */
    for (int i = 1; i < 4; i++)
        assert_memory_equal(&hashes[0], &hashes[i], sizeof hashes[0]);
    for (int i = 0; i < 2; i++) {
        int64_t n_passes = model_passes();
        enum weights_held held = i == 0 ? WEIGHTS_Q4 : c.held;
        solo_open_held(&t, GGUF "mixed.gguf", NULL, i == 0 ? NULL : "auto");
        assert_int_equal(model_passes() > n_passes, i == 1);
        for (int k = 0; k < 4; k++)
            if (held == (enum weights_held)(WEIGHTS_F32 + k))
                assert_int_equal(t.m->w.dtype, asked[k].held);
        assert_non_null(strstr(t.m->note, "Q4_K (1")); /* the note names every type */
        assert_non_null(strstr(t.m->note, weights_held_name(held)));
        assert_null(strstr(t.m->note, "F16"));
        solo_close(&t);
    }
}

/* --- refusals ---------------------------------------------------------------------------- */

/* Writes a copy of a golden file with `from` replaced by `to`, which has the same length. */
static void write_changed(const char *path, const char *name, const char *from,
                          const char *to)
{
    char source[128], *bytes;
    size_t n, len = strlen(from), n_found = 0;
    struct err e = {0};
    assert_int_equal(strlen(to), len);
    snprintf(source, sizeof source, GGUF "%s", name);
    assert_int_equal(file_read(source, 1 << 24, &bytes, &n, &e), 0);
    for (size_t i = 0; i + len <= n; i++)
        if (memcmp(bytes + i, from, len) == 0) {
            memcpy(bytes + i, to, len);
            n_found++;
        }
    assert_true(n_found > 0);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    free(bytes);
}

static void expect(const char *path, int code, const char *message)
{
    struct err e = {0};
    struct model_config c;
    struct weights_info w = {0};
    int rc = config_load(&c, path, &e);
    if (rc == 0) {
        rc = weights_describe(&w, path, &c, DTYPE_F32, &e);
        weights_info_deinit(&w);
    }
    assert_int_equal(rc, code);
    if (strstr(e.msg, message) == NULL)
        fail_msg("'%s' does not say '%s'", e.msg, message);
}

TEST(test_unknown_things_are_refused_by_name)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/hcache-gguf-%d.gguf", (int)getpid());
    static const struct {
        const char *file, *from, *to;
        int code;
        const char *message;
    } bad[] = {
        {"qwen2.gguf", "qwen2", "mamba", ERR_UNSUPPORTED,
         "architecture 'mamba' is not supported; supported are llama"},
        {"llama.gguf", "llama.block_count", "llama.black_count", ERR_FORMAT,
         "'llama.block_count' is missing"},
        {"llama.gguf", "llama.vocab_size", "llama.vocal_size", ERR_UNSUPPORTED,
         "'llama.vocal_size': this value is not known in llama models"},
        {"llama.gguf", "blk.1.attn_v.weight", "blk.1.attn_w.weight", ERR_MISMATCH,
         "tensor 'blk.1.attn_v.weight' is missing"},
        {"llama3.gguf", "rope_freqs.weight", "rope_froqs.weight", ERR_MISMATCH,
         "tensor 'rope_froqs.weight' is not part of the llama model"},
        {"phi.gguf", "blk.0.ffn_up.weight", "blk.0.ffn_up.waight", ERR_MISMATCH,
         "tensor 'blk.0.ffn_up.weight' is missing"},
        {"qwen3.5.gguf", "blk.1.ssm_alpha.weight", "blk.1.ssm_olpha.weight", ERR_MISMATCH,
         "tensor 'blk.1.ssm_alpha.weight' is missing"},
        {"qwen3.5.gguf", "qwen35.nextn_predict_layers", "qwen35.nextn_predict_loyers",
         ERR_UNSUPPORTED, "'qwen35.nextn_predict_loyers': this value is not known"},
        {"qwen3.5.gguf", "blk.4.nextn.enorm", "blk.5.nextn.enorm", ERR_MISMATCH,
         "tensor 'blk.5.nextn.enorm.weight' is not part of the qwen3_5_text model"},
        {"qwen3.5.gguf", "qwen35.ssm.conv_kernel", "qwen35.ssm.conv_karnel", ERR_FORMAT,
         "'qwen35.ssm.conv_kernel' is missing"},
        {"qwen3.5.gguf", "qwen35.full_attention_interval", "qwen35.full_attention_intarval",
         ERR_UNSUPPORTED, "this value is not known in qwen35 models"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_changed(path, bad[i].file, bad[i].from, bad[i].to);
        expect(path, bad[i].code, bad[i].message);
    }
    unlink(path);
    expect(GGUF "split-00002-of-00003.gguf", ERR_USAGE,
           "is file 2 of 3 of a model: give the first");
}

/* An additional entry with a key that the reader does not know. GGUF's type numbers: f32 6, u32 4,
 * bool 7. */
struct extra {
    const char *key;
    uint32_t type;
    double value;
    bool is_array; /* whether the value is wrapped in an array of one element */
    bool passes;
};

static size_t put_le(uint8_t *p, uint64_t x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)(x >> 8 * i);
    return n;
}

static size_t put_key(uint8_t *p, const char *key, uint32_t type)
{
    size_t len = strlen(key);
    put_le(p, len, 8);
    memcpy(p + 8, key, len);
    return 8 + len + put_le(p + 8 + len, type, 4);
}

/* Writes the entry, and a padding entry that keeps the tensors aligned. Returns the bytes of both,
 * a multiple of 32. */
static size_t put_extra(uint8_t *p, const struct extra *x)
{
    size_t n = put_key(p, x->key, x->is_array ? 9 : x->type);
    if (x->is_array) {
        n += put_le(p + n, x->type, 4);
        n += put_le(p + n, 1, 8);
    }
    float f = (float)x->value;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    n += put_le(p + n, x->type == 6 ? bits : (uint64_t)x->value, x->type == 7 ? 1 : 4);
    n += put_key(p + n, "pad", 8);
    size_t len = 32 - (n + 8) % 32;
    n += put_le(p + n, len, 8);
    memset(p + n, '.', len);
    return n + len;
}

/* Writes a copy of the llama file with one more entry in front of its own. */
static void write_with(const char *path, const struct extra *x)
{
    /* bytes of magic, version, number of tensors and number of entries */
    enum { HEAD = 24 };
    char *bytes;
    size_t n;
    uint8_t head[HEAD], more[256];
    struct err e = {0};
    assert_int_equal(file_read(GGUF "llama.gguf", 1 << 24, &bytes, &n, &e), 0);
    memcpy(head, bytes, HEAD);
    assert_true(head[16] < 254);
    head[16] = (uint8_t)(head[16] + 2);
    size_t n_more = put_extra(more, x);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(head, 1, HEAD, f), HEAD);
    assert_int_equal(fwrite(more, 1, n_more, f), n_more);
    assert_int_equal(fwrite(bytes + HEAD, 1, n - HEAD, f), n - HEAD);
    assert_int_equal(fclose(f), 0);
    free(bytes);
}

/* A key that the reader does not know is accepted only with a value that changes no result. */
TEST(test_values_that_change_nothing_pass)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/hcache-gguf-%d.gguf", (int)getpid());
    static const struct extra extras[] = {
        {"llama.logit_scale", 6, 1, false, true},
        {"llama.logit_scale", 6, 0.5, false, false},
        {"llama.logit_scale", 6, 1, true, false},
        {"llama.expert_count", 4, 0, false, true},
        {"llama.expert_shared_count", 4, 1, false, false},
        {"llama.attention.causal", 7, 1, false, true},
        {"llama.attention.causal", 7, 0, false, false},
        {"llama.rope.scaling.original_context_length", 4, 4096, false, true},
        {"llama.rope.scaling.finetuned", 7, 1, true, true},
        {"llama.no_such_thing", 4, 0, false, false},
        {"other.no_such_thing", 4, 7, false, true},
    };
    for (size_t i = 0; i < sizeof extras / sizeof extras[0]; i++) {
        write_with(path, &extras[i]);
        expect(path, extras[i].passes ? 0 : ERR_UNSUPPORTED,
               extras[i].passes ? "" : extras[i].key);
    }
    unlink(path);
}

TEST(test_a_missing_part_is_named)
{
    char dir[64], path[128];
    snprintf(dir, sizeof dir, "/tmp/hcache-gguf-%d", (int)getpid());
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/m-00001-of-00003.gguf", dir);
    write_changed(path, "split-00001-of-00003.gguf", "GGUF", "GGUF");
    expect(path, -ENOENT, "m-00002-of-00003.gguf");
    unlink(path);
    snprintf(path, sizeof path, "%s/other.gguf", dir);
    write_changed(path, "split-00001-of-00003.gguf", "GGUF", "GGUF");
    expect(path, ERR_MISMATCH, "names must end with -00001-of-00003.gguf");
    unlink(path);
    rmdir(dir);
}

int main(void)
{
    static char *const names[] = {"llama",         "mistral",
                                  "qwen2",         "qwen3",
                                  "phi",           "phi3",
                                  "gemma",         "falcon-7b",
                                  "falcon-11b",    "falcon-40b",
                                  "qwen3-moe",     "mixtral",
                                  "gemma3",        "olmo2",
                                  "granite",       "qwen3-yarn",
                                  "phi3-long",     "phi3-short",
                                  "olmo3",         "gpt-oss",
                                  "gpt-oss-mxfp4", "gemma2",
                                  "cohere2",       "ministral3",
                                  "glm4-moe",      "glm4-moe-groups",
                                  "gemma4",        "gemma4-layers",
                                  "gemma4-moe",    "lfm2",
                                  "lfm2-untied",   "deepseek-v2",
                                  "glm4-lite",     "granite-h-dense",
                                  "granite-h"};
    static char *const hybrids[] = {"qwen3.5", "qwen3.5-moe", "qwen3-next"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unit_case(names[i], test_family_is_the_folder_bit_for_bit, names[i]);
    for (size_t i = 0; i < sizeof hybrids / sizeof hybrids[0]; i++)
        unit_case(hybrids[i], test_hybrid_is_the_folder, hybrids[i]);
    return unit_run(NULL, NULL);
}
