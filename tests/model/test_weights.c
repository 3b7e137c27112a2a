/* test_weights.c - loads checkpoints: the generator, files, shards, types, bad input. */
#include "tests/unit.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/rng.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "model/weights.h"
#include "model/weights_choose.h"
#include "model/weights_names.h"
#include "tests/base/tempdir.h"
#include "sim/checkpoint.h"

static struct pool *pool;
static struct device *dev;
static struct stream *stream;
static char dir[TEMPDIR_BYTES]; /* a fresh folder per test */

static int group_setup(void **state)
{
    struct err e;
    return pool_create(2, &pool, &e) || device_open("ref", NULL, pool, &dev, &e) ||
           stream_create(dev, STREAM_COMPUTE, &stream, &e);
}

static int group_teardown(void **state)
{
    stream_destroy(stream);
    device_close(dev);
    pool_destroy(pool);
    return 0;
}

static int setup(void **state)
{
    *state = dir;
    tempdir_make(dir, "weights");
    return 0;
}

static char *at(const char *name)
{
    static char path[8][512];
    static int i;
    i = (i + 1) % 8;
    snprintf(path[i], sizeof path[i], "%s/%s", dir, name);
    return path[i];
}

/* --- a checkpoint in memory that tests can damage --------------------------------------------- */

enum { MAX_TENSORS = 128 };

struct image {
    size_t n;
    struct safetensors_tensor t[MAX_TENSORS];
    uint8_t *data[MAX_TENSORS];
};

static struct model_config shape(const char *name)
{
    struct model_config c;
    struct err e;
    assert_int_equal(config_shape(&c, name, &e), 0);
    return c;
}

static void write_synth(const char *name, enum dtype t)
{
    struct err e = {0};
    struct model_config c = shape(name);
    int rc = checkpoint_write(dir, &c, t, &e);
    if (rc != 0)
        fail_msg("%s", e.msg);
}

static void image_read(struct image *im, const char *path)
{
    struct err e;
    char *bytes;
    size_t n;
    struct safetensors s;
    assert_int_equal(file_read(path, (size_t)1 << 30, &bytes, &n, &e), 0);
    assert_int_equal(safetensors_parse(&s, bytes, n, n, path, &e), 0);
    assert_true(s.n_tensors <= MAX_TENSORS);
    im->n = s.n_tensors;
    for (size_t i = 0; i < s.n_tensors; i++) {
        im->t[i] = s.tensors[i];
        im->t[i].name = xstrdup(s.tensors[i].name);
        size_t len = s.tensors[i].end - s.tensors[i].begin;
        im->data[i] = memcpy(xmalloc(len), bytes + s.tensors[i].begin, len);
    }
    safetensors_deinit(&s);
    free(bytes);
}

static size_t image_find(const struct image *im, const char *name)
{
    for (size_t i = 0; i < im->n; i++)
        if (strcmp(im->t[i].name, name) == 0)
            return i;
    fail_msg("no tensor %s", name);
    return 0;
}

static void image_add(struct image *im, const char *name, enum safetensors_dtype t,
                      uint64_t rows, uint64_t cols)
{
    size_t bytes = rows * cols * 4; /* both types, F32 and I32, have 4 bytes */
    im->t[im->n] = (struct safetensors_tensor){
        .name = xstrdup(name), .dtype = t, .n_dims = 2, .shape = {rows, cols}};
    im->data[im->n++] = memset(xmalloc(bytes), 0, bytes);
}

static void image_remove(struct image *im, const char *name)
{
    size_t i = image_find(im, name);
    free(im->data[i]);
    free((void *)im->t[i].name);
    im->n--;
    im->t[i] = im->t[im->n];
    im->data[i] = im->data[im->n];
}

/* Writes tensors [first, first + n); the header gets `pad` more bytes, to shift all alignments. */
static void image_write(struct image *im, size_t first, size_t n, const char *path,
                        size_t pad)
{
    uint8_t *head;
    size_t head_bytes;
    safetensors_write_header(im->t + first, n, &head, &head_bytes);
    put_u64(head, head_bytes - 8 + pad);
    unlink(path); /* earlier mappings keep the old file */
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(head, 1, head_bytes, f);
    for (size_t i = 0; i < pad; i++)
        fputc(' ', f);
    for (size_t i = first; i < first + n; i++)
        fwrite(im->data[i], 1, im->t[i].end - im->t[i].begin, f);
    assert_int_equal(fclose(f), 0);
    free(head);
}

static void image_free(struct image *im)
{
    for (size_t i = 0; i < im->n; i++) {
        free(im->data[i]);
        free((void *)im->t[i].name);
    }
}

/* --- comparing -------------------------------------------------------------------------------- */

static int load(struct weights *w, const char *source, const struct model_config *c,
                enum dtype t, struct err *e)
{
    memset(e, 0, sizeof *e);
    struct weights_opts o = {.dev = dev, .s = stream, .synth_dtype = t};
    return weights_load(w, source, c, &o, e);
}

static int load_q4(struct weights *w, const char *source, const struct model_config *c,
                   struct weights_errors *errors, struct err *e)
{
    memset(e, 0, sizeof *e);
    struct weights_opts o = {.dev = dev, .s = stream, .held = WEIGHTS_Q4, .errors = errors};
    return weights_load(w, source, c, &o, e);
}

static int load_q8(struct weights *w, const char *source, const struct model_config *c,
                   struct err *e)
{
    memset(e, 0, sizeof *e);
    struct weights_opts o = {.dev = dev, .s = stream, .held = WEIGHTS_Q8};
    return weights_load(w, source, c, &o, e);
}

static void load_ok(struct weights *w, const char *source, const struct model_config *c,
                    enum dtype t)
{
    struct err e;
    if (load(w, source, c, t, &e) != 0)
        fail_msg("%s: %s", source, e.msg);
}

static void same_weight(const struct weight *a, const struct weight *b)
{
    assert_int_equal(a->dtype, b->dtype);
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->k, b->k);
    assert_int_equal(a->mem.bytes, b->mem.bytes);
    if (a->mem.bytes > 0)
        assert_memory_equal(a->mem.ptr, b->mem.ptr, a->mem.bytes);
}

static void same_vector(const float *a, const float *b, int64_t n)
{
    assert_int_equal(a == NULL, b == NULL);
    if (a != NULL)
        assert_memory_equal(a, b, (size_t)n * sizeof *a);
}

static void same_table(struct mat a, struct mat b)
{
    assert_int_equal(a.data == NULL, b.data == NULL);
    if (a.data != NULL)
        assert_memory_equal(a.data, b.data,
                            (size_t)(a.rows * a.cols) * dtype_bytes(a.dtype));
}

static void same_tensors(const struct weights *a, const struct weights *b,
                         const struct model_config *c)
{
    same_weight(&a->head, &b->head);
    same_table(a->embed, b->embed);
    same_table(a->pos_embed, b->pos_embed);
    same_vector(a->head_bias, b->head_bias, c->vocab_size);
    same_vector(a->final_norm_w, b->final_norm_w, c->n_embd);
    same_vector(a->final_norm_b, b->final_norm_b, c->n_embd);
    for (int i = 0; i < c->n_layers; i++) {
        const struct layer_weights *x = &a->layers[i], *y = &b->layers[i];
        same_weight(&x->wq, &y->wq);
        same_weight(&x->wkv, &y->wkv);
        same_weight(&x->wo, &y->wo);
        same_weight(&x->w_up, &y->w_up);
        same_weight(&x->w_down, &y->w_down);
        same_vector(x->norm1_w, y->norm1_w, c->n_embd);
        same_vector(x->norm1_b, y->norm1_b, c->n_embd);
        same_vector(x->norm2_w, y->norm2_w, c->n_embd);
        same_vector(x->norm2_b, y->norm2_b, c->n_embd);
        same_vector(x->bq, y->bq, c->n_heads * c->d_head);
        same_vector(x->bkv, y->bkv, 2 * c->n_kv_heads * c->d_head);
        same_vector(x->q_norm, y->q_norm, c->d_head);
        same_vector(x->bo, y->bo, c->n_embd);
        same_vector(x->b_up, y->b_up, slot_rows(c, 0, SLOT_B_UP));
        same_vector(x->b_down, y->b_down, c->n_embd);
    }
}

static bool same_hash(const struct weights *a, const struct weights *b)
{
    return memcmp(&a->hash, &b->hash, sizeof a->hash) == 0;
}

/* --- good input ------------------------------------------------------------------------------- */

static void check_written(const char *name, enum dtype t)
{
    struct err e;
    struct model_config c = shape(name), read;
    write_synth(name, t);
    assert_int_equal(config_load(&read, dir, &e), 0);
    char source[64];
    snprintf(source, sizeof source, "synth:%s", name);
    struct weights a, b;
    load_ok(&a, source, &c, t);
    load_ok(&b, dir, &read, DTYPE_F32);
    assert_int_equal(a.dtype, t);
    assert_true(same_hash(&a, &b));
    same_tensors(&a, &b, &c);
    weights_unload(&a, dev);
    weights_unload(&b, dev);
    unlink(at("model.safetensors"));
    unlink(at("config.json"));
}

TEST_WITH(test_synth_equals_written, setup, tempdir_end)
{
    for (int t = DTYPE_F32; t <= DTYPE_BF16; t++) {
        check_written("tiny-mha", (enum dtype)t);
        check_written("tiny-gqa", (enum dtype)t);
    }
}

TEST_WITH(test_writing_refuses, setup, tempdir_end)
{
    struct err e;
    struct model_config c = shape("tiny-mha");
    write_synth("tiny-mha", DTYPE_F32);
    assert_int_equal(checkpoint_write(dir, &c, DTYPE_F32, &e), -EEXIST);
    assert_int_equal(checkpoint_write("/nonexistent/x", &c, DTYPE_F32, &e), -ENOENT);
    assert_non_null(strstr(e.msg, "/nonexistent/x"));
}

/* Synthetic values are independent and have about the wanted spread. They are the same in every
 * type up to rounding. */
TEST_WITH(test_synth_values, setup, tempdir_end)
{
    struct model_config c = shape("tiny-mha");
    struct weights a, b;
    load_ok(&a, "synth:tiny-mha", &c, DTYPE_F32);
    load_ok(&b, "synth:tiny-mha", &c, DTYPE_BF16);
    int64_t n = a.embed.rows * a.embed.cols;
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        float x = ((float *)a.embed.data)[i];
        sum += (double)x;
        squares += (double)x * (double)x;
        assert_int_equal(f32_to_bf16(x), ((uint16_t *)b.embed.data)[i]);
    }
    double std = sqrt(squares / (double)n), want = 1 / sqrt((double)c.n_embd);
    assert_true(fabs(std / want - 1) < 0.05);
    assert_true(fabs(sum / (double)n) < 4 * want / sqrt((double)n));
    for (int i = 0; i < c.n_embd; i++)
        assert_true(fabsf(a.final_norm_w[i] - 1) < 0.3f);
    assert_memory_not_equal(a.layers[0].wq.mem.ptr, a.layers[1].wq.mem.ptr, 64);
    assert_false(same_hash(&a, &b));
    weights_unload(&a, dev);
    weights_unload(&b, dev);
}

static void write_index(const struct image *im, size_t split)
{
    FILE *f = fopen(at("model.safetensors.index.json"), "w");
    fprintf(f, "{\"weight_map\": {");
    for (size_t i = 0; i < im->n; i++)
        fprintf(f, "%s\"%s\": \"%s.safetensors\"", i > 0 ? "," : "", im->t[i].name,
                i < split ? "b" : "a");
    fprintf(f, "}}");
    fclose(f);
}

/* Shards, another order of tensors, another alignment and additional entries give the same weights
 * and hash. */
TEST_WITH(test_sharded_and_misaligned, setup, tempdir_end)
{
    struct model_config c = shape("tiny-gqa");
    struct weights a, b;
    struct image im;
    write_synth("tiny-gqa", DTYPE_BF16);
    load_ok(&a, dir, &c, DTYPE_F32);
    image_read(&im, at("model.safetensors"));
    for (size_t pad = 0; pad < 4; pad++) {
        image_write(&im, 0, im.n, at("model.safetensors"), pad);
        load_ok(&b, dir, &c, DTYPE_F32);
        assert_true(same_hash(&a, &b));
        same_tensors(&a, &b, &c);
        weights_unload(&b, dev);
    }
    image_add(&im, "model.layers.0.self_attn.rotary_emb.inv_freq", SAFETENSORS_F32, 1, 8);
    unlink(at("model.safetensors"));
    write_index(&im, 5);
    image_write(&im, 0, 5, at("b.safetensors"), 1);
    image_write(&im, 5, im.n - 5, at("a.safetensors"), 0);
    load_ok(&b, dir, &c, DTYPE_F32);
    assert_true(same_hash(&a, &b));
    same_tensors(&a, &b, &c);
    weights_unload(&a, dev);
    weights_unload(&b, dev);
    image_free(&im);
}

/* Returns rows of the packed weight as f32. The caller frees them. */
static float *rows_of(const struct weight *w)
{
    int32_t *ids = xcalloc((size_t)w->n, sizeof *ids);
    float *out = xcalloc((size_t)(w->n * w->k), sizeof *out);
    for (int32_t i = 0; i < w->n; i++)
        ids[i] = i;
    struct mat rows = mat_of(out, DTYPE_F32, w->n, w->k);
    assert_int_equal(dev->ops->weight_rows(stream, rows, w, ids), 0);
    free(ids);
    return out;
}

/* Checks that each value is within half a step of its block of 32 values. */
static void near_q8(const struct weight *exact, const struct weight *q8)
{
    assert_int_equal(q8->dtype, DTYPE_Q8);
    float *a = rows_of(exact), *b = rows_of(q8);
    for (int64_t row = 0; row < exact->n; row++) {
        for (int64_t k = 0; k < exact->k; k++) {
            const float *block = a + row * exact->k + k / Q8_BLOCK * Q8_BLOCK;
            float largest = 0, off = a[row * exact->k + k] - b[row * exact->k + k];
            for (int64_t j = 0; j < Q8_BLOCK && k / Q8_BLOCK * Q8_BLOCK + j < exact->k; j++)
                largest = fmaxf(largest, fabsf(block[j]));
            assert_true(fabsf(off) <= 0.5005f * largest / 127);
        }
    }
    free(a);
    free(b);
}

/* 8-bit weights are made from every type of checkpoint. Matrices are close to the exact ones;
 * everything else is equal, including the hash. */
TEST_WITH(test_q8, setup, tempdir_end)
{
    struct model_config c = shape("tiny-gqa");
    for (int t = DTYPE_F32; t <= DTYPE_BF16; t++) {
        struct weights a, b;
        struct err e;
        write_synth("tiny-gqa", (enum dtype)t);
        load_ok(&a, dir, &c, DTYPE_F32);
        if (load_q8(&b, dir, &c, &e) != 0)
            fail_msg("%s", e.msg);
        assert_int_equal(b.file_dtype, t);
        assert_true(same_hash(&a, &b));
        assert_true(b.bytes < a.bytes);
        near_q8(&a.head, &b.head);
        near_q8(&a.layers[1].wkv, &b.layers[1].wkv);
        near_q8(&a.layers[0].w_up, &b.layers[0].w_up);
        near_q8(&a.layers[0].w_down, &b.layers[0].w_down);
        same_table(a.embed, b.embed);
        same_vector(a.layers[0].norm1_w, b.layers[0].norm1_w, c.n_embd);
        weights_unload(&a, dev);
        weights_unload(&b, dev);
        unlink(at("config.json"));
    }
}

static double relative_error(const struct weight *exact, const struct weight *held)
{
    float *a = rows_of(exact), *b = rows_of(held);
    double error = 0, size = 0;
    for (int64_t i = 0; i < exact->n * exact->k; i++) {
        error += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)a[i] * (double)a[i];
    }
    free(a);
    free(b);
    return sqrt(error / size);
}

/* 4-bit weights are made from every type of checkpoint. Each matrix of a layer becomes q4_1, the
 * head q8. The reported error of a matrix is its real error. */
TEST_WITH(test_q4, setup, tempdir_end)
{
    struct model_config c = shape("tiny-gqa");
    int n_checked = 0;
    for (int t = DTYPE_F32; t <= DTYPE_BF16; t++) {
        struct weights a, b;
        struct weights_errors errors = {0};
        struct err e;
        write_synth("tiny-gqa", (enum dtype)t);
        load_ok(&a, dir, &c, DTYPE_F32);
        if (load_q4(&b, dir, &c, &errors, &e) != 0)
            fail_msg("%s", e.msg);
        assert_int_equal(b.dtype, DTYPE_Q4);
        assert_true(same_hash(&a, &b));
        assert_int_equal(b.layers[1].wkv.dtype, DTYPE_Q4_1);
        assert_int_equal(b.layers[0].w_down.dtype, DTYPE_Q4_1);
        near_q8(&a.head, &b.head);
        assert_int_equal(errors.n, 7 * c.n_layers);
        for (size_t i = 0; i < errors.n; i++)
            if (strcmp(errors.of[i].name, "model.layers.2.self_attn.o_proj.weight") == 0) {
                double off = relative_error(&a.layers[2].wo, &b.layers[2].wo);
                assert_true(fabs(errors.of[i].relative - off) < 1e-5);
                /* Rounding normally distributed values to the 16 steps of their block's range:
                 * about 7 % of error. */
                assert_true(off > 0.02 && off < 0.09);
                n_checked++;
            }
        same_table(a.embed, b.embed);
        weights_unload(&a, dev);
        weights_unload(&b, dev);
        free(errors.of);
        unlink(at("config.json"));
    }
    assert_int_equal(n_checked, 3);
}

TEST_WITH(test_q8_refuses, setup, tempdir_end)
{
    struct model_config c = shape("tiny-mha");
    struct weights w;
    struct image im;
    struct err e;
    write_synth("tiny-mha", DTYPE_BF16);
    image_read(&im, at("model.safetensors"));
    size_t i = image_find(&im, "model.layers.1.mlp.down_proj.weight");
    put_u16(im.data[i] + 100, 0x7f80); /* infinity */
    image_write(&im, 0, im.n, at("model.safetensors"), 0);
    assert_int_equal(load_q8(&w, dir, &c, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "model.layers.1.mlp.down_proj.weight"));
    assert_non_null(strstr(e.msg, "q8 cannot hold"));
    image_free(&im);
}

/* If one matrix is f32 and the others are bf16, all become f32 with the same values. */
TEST_WITH(test_mixed_types, setup, tempdir_end)
{
    struct model_config c = shape("tiny-mha");
    struct weights a, b;
    struct image im;
    write_synth("tiny-mha", DTYPE_BF16);
    load_ok(&a, dir, &c, DTYPE_F32);
    image_read(&im, at("model.safetensors"));
    size_t i = image_find(&im, "model.layers.1.self_attn.k_proj.weight");
    size_t n = im.t[i].shape[0] * im.t[i].shape[1];
    float *wide = xmalloc(n * sizeof *wide);
    for (size_t k = 0; k < n; k++)
        wide[k] = bf16_to_f32(((uint16_t *)im.data[i])[k]);
    free(im.data[i]);
    im.data[i] = (uint8_t *)wide;
    im.t[i].dtype = SAFETENSORS_F32;
    image_write(&im, 0, im.n, at("model.safetensors"), 3);
    load_ok(&b, dir, &c, DTYPE_F32);
    assert_int_equal(b.dtype, DTYPE_F32);
    assert_int_equal(b.embed.dtype, DTYPE_BF16);
    int32_t row = 7;
    float x[256], y[256];
    assert_true(c.n_embd <= 256);
    for (int l = 0; l < c.n_layers; l++) {
        dev->ops->weight_rows(stream, mat_of(x, DTYPE_F32, 1, c.n_embd), &a.layers[l].wkv,
                              &row);
        dev->ops->weight_rows(stream, mat_of(y, DTYPE_F32, 1, c.n_embd), &b.layers[l].wkv,
                              &row);
        assert_memory_equal(x, y, (size_t)c.n_embd * sizeof *x);
    }
    assert_false(same_hash(&a, &b));
    weights_unload(&a, dev);
    weights_unload(&b, dev);
    image_free(&im);
}

/* The tensors that each family lists have together the family's number of parameters. */
TEST_WITH(test_lists_count_parameters, setup, tempdir_end)
{
    for (int i = 0; config_shape_name(i) != NULL; i++) {
        struct model_config c = shape(config_shape_name(i));
        struct tensor_list l;
        int64_t n = 0;
        tensor_list_make(&l, &c);
        for (size_t k = 0; k < l.n; k++)
            n += l.items[k].rows * l.items[k].cols;
        if (n != config_params(&c))
            fail_msg("%s: %lld parameters in tensors, %lld in config", config_shape_name(i),
                     (long long)n, (long long)config_params(&c));
        tensor_list_free(&l);
    }
}

/* Falcon's interleaved rows of Q, K and V, checked against the definition of the layout. */
TEST_WITH(test_grouped_qkv, setup, tempdir_end)
{
    struct model_config c = shape("tiny-gqa");
    c.family = FAMILY_FALCON;
    c.mlp_gated = false;
    struct tensor_list l;
    tensor_list_make(&l, &c);
    const struct tensor_spec *t = NULL;
    for (size_t i = 0; i < l.n && t == NULL; i++)
        if (l.items[i].n_parts == 3)
            t = &l.items[i];
    assert_non_null(t);
    int64_t per = c.n_heads / c.n_kv_heads, kv = (int64_t)c.n_kv_heads * c.d_head;
    assert_int_equal(t->rows, (per + 2) * kv);
    int seen_q = 0, seen_kv = 0;
    for (int p = 0; p < 3; p++)
        for (int64_t g = 0; g < t->parts[p].n_groups; g++)
            for (int64_t i = 0; i < t->parts[p].n_rows; i++) {
                const struct tensor_part *x = &t->parts[p];
                int64_t src = x->src_row + g * x->src_stride + i;
                int64_t dst = x->dst_row + g * x->n_rows + i;
                int64_t head = src / c.d_head, in_group = head % (per + 2),
                        group = head / (per + 2);
                int64_t want = src % c.d_head;
                want += in_group < per ? (group * per + in_group) * c.d_head
                                       : group * c.d_head + (in_group == per ? 0 : kv);
                assert_int_equal(dst, want);
                assert_int_equal(x->slot, in_group < per ? SLOT_WQ : SLOT_WKV);
                *(x->slot == SLOT_WQ ? &seen_q : &seen_kv) += 1;
            }
    assert_int_equal(seen_q, per * kv);
    assert_int_equal(seen_kv, 2 * kv);
    tensor_list_free(&l);
}

/* --- bad input -------------------------------------------------------------------------------- */

/* Checks that loading fails with this code and a message that contains both texts. */
static void refused(const struct model_config *c, int code, const char *a, const char *b)
{
    struct weights w;
    struct err e;
    int rc = load(&w, dir, c, DTYPE_F32, &e);
    if (rc != code || strstr(e.msg, a) == NULL || strstr(e.msg, b) == NULL)
        fail_msg("code %d (%s): %s; wanted %d, '%s', '%s'", rc, err_name(rc), e.msg, code,
                 a, b);
    assert_null(w.impl);
}

TEST_WITH(test_missing_files, setup, tempdir_end)
{
    struct model_config c = shape("tiny-mha");
    refused(&c, -ENOENT, "model.safetensors", "converted");
    FILE *f = fopen(at("model.safetensors.index.json"), "w");
    fputs("{\"weight_map\": {\"x\": \"gone.safetensors\"}}", f);
    fclose(f);
    refused(&c, -ENOENT, "gone.safetensors: No such file", "incomplete download");
    f = fopen(at("model.safetensors.index.json"), "w");
    fputs("{\"weight_map\": {\"x\": \"../m.safetensors\"}}", f);
    fclose(f);
    refused(&c, ERR_FORMAT, "index.json", "plain file name");
    assert_int_equal(mkfifo(at("model.safetensors"), 0600), 0);
    /* a pipe is refused without waiting for its writer */
    refused(&c, ERR_FORMAT, "model.safetensors", "not a regular file");
}

TEST_WITH(test_tensors_that_do_not_fit, setup, tempdir_end)
{
    struct model_config c = shape("tiny-mha");
    struct image im;
    write_synth("tiny-mha", DTYPE_F32);
    char *path = at("model.safetensors");

    image_read(&im, path);
    image_remove(&im, "model.layers.1.mlp.up_proj.weight");
    image_write(&im, 0, im.n, path, 0);
    refused(&c, ERR_MISMATCH, "model.safetensors",
            "'model.layers.1.mlp.up_proj.weight' is missing");
    image_add(&im, "model.layers.1.mlp.up_proj.weight", SAFETENSORS_F32,
              (uint64_t)c.n_ffn + 1, (uint64_t)c.n_embd);
    image_write(&im, 0, im.n, path, 0);
    refused(&c, ERR_MISMATCH, "'model.layers.1.mlp.up_proj.weight'", "shape [");
    image_remove(&im, "model.layers.1.mlp.up_proj.weight");
    image_add(&im, "model.layers.1.mlp.up_proj.weight", SAFETENSORS_I32, (uint64_t)c.n_ffn,
              (uint64_t)c.n_embd);
    image_write(&im, 0, im.n, path, 0);
    refused(&c, ERR_UNSUPPORTED, "'model.layers.1.mlp.up_proj.weight'", "I32");
    im.t[im.n - 1].dtype = SAFETENSORS_F32;
    image_add(&im, "model.layers.0.self_attn.q_proj.bias", SAFETENSORS_F32, 1, 4);
    image_write(&im, 0, im.n, path, 0);
    refused(&c, ERR_MISMATCH, "'model.layers.0.self_attn.q_proj.bias'",
            "would change results");
    image_free(&im);
}

/* A quantized folder without quantization_config is reported as quantized, not as an incomplete
 * download. */
TEST_WITH(test_quantized_folders_are_named, setup, tempdir_end)
{
    static const struct {
        const char *tensor, *kind;
    } cases[] = {
        {"model.layers.1.mlp.up_proj.qweight", "GPTQ or AWQ"},
        {"model.layers.1.mlp.up_proj.g_idx", "GPTQ"},
        {"model.layers.1.mlp.up_proj.weight_packed", "compressed-tensors"},
        {"model.layers.1.mlp.up_proj.SCB", "bitsandbytes"},
    };
    struct model_config c = shape("tiny-mha");
    write_synth("tiny-mha", DTYPE_F32);
    char *path = at("model.safetensors"), *kept = xasprintf("%s.kept", path);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct image im;
        image_read(&im, path);
        image_remove(&im, "model.layers.1.mlp.up_proj.weight");
        image_add(&im, cases[i].tensor, SAFETENSORS_I32, 8, (uint64_t)c.n_ffn);
        assert_int_equal(rename(path, kept), 0);
        image_write(&im, 0, im.n, path, 0);
        refused(&c, ERR_UNSUPPORTED, cases[i].tensor, cases[i].kind);
        image_free(&im);
        assert_int_equal(rename(kept, path), 0);
    }
    free(kept);
}

TEST_WITH(test_wrong_layer_count, setup, tempdir_end)
{
    struct model_config c = shape("tiny-mha");
    write_synth("tiny-mha", DTYPE_F32);
    c.n_layers--;
    refused(&c, ERR_MISMATCH, "is not part of the llama model", "layers");
    c.n_layers += 2;
    refused(&c, ERR_MISMATCH, "is missing", "model.safetensors");
    c = shape("tiny-mha");
    c.vocab_size++;
    refused(&c, ERR_MISMATCH, "embed_tokens", "shape");
}

TEST_WITH(test_tied_head, setup, tempdir_end)
{
    struct model_config c = shape("tiny-mha");
    struct image im;
    struct weights w;
    write_synth("tiny-mha", DTYPE_F32);
    c.tie_word_embeddings = true;
    refused(&c, ERR_MISMATCH, "lm_head.weight", "tie_word_embeddings");
    image_read(&im, at("model.safetensors"));
    size_t head = image_find(&im, "lm_head.weight");
    size_t embed = image_find(&im, "model.embed_tokens.weight");
    memcpy(im.data[head], im.data[embed], im.t[head].end - im.t[head].begin);
    image_write(&im, 0, im.n, at("model.safetensors"), 0);
    load_ok(&w, dir, &c, DTYPE_F32);
    assert_null(w.embed.data);
    weights_unload(&w, dev);
    image_free(&im);
}

static void truncate_to(const char *path, long keep, long grow)
{
    struct err e;
    char *bytes;
    size_t n;
    assert_int_equal(file_read(path, (size_t)1 << 30, &bytes, &n, &e), 0);
    assert_int_equal(truncate(path, keep >= 0 ? keep : (long)n + grow), 0);
    free(bytes);
}

TEST_WITH(test_damaged_files, setup, tempdir_end)
{
    struct model_config c = shape("tiny-mha");
    char *path = at("model.safetensors");
    write_synth("tiny-mha", DTYPE_F32);
    truncate_to(path, -1, -1);
    refused(&c, ERR_FORMAT, "model.safetensors", "outside of the file");
    truncate_to(path, 100, 0);
    refused(&c, ERR_FORMAT, "model.safetensors", "header");
    truncate_to(path, 5, 0);
    refused(&c, ERR_FORMAT, "model.safetensors", "truncated");
    truncate_to(path, 0, 0);
    refused(&c, ERR_FORMAT, "model.safetensors", "truncated");
}

static void write_raw(const char *header)
{
    FILE *f = fopen(at("model.safetensors"), "wb");
    uint8_t le[8];
    put_u64(le, strlen(header));
    fwrite(le, 1, 8, f);
    fputs(header, f);
    for (int i = 0; i < 64; i++)
        fputc(0, f);
    fclose(f);
}

TEST_WITH(test_hostile_headers, setup, tempdir_end)
{
    struct model_config c = shape("tiny-mha");
    write_raw("{\"a\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]},"
              "\"b\":{\"dtype\":\"F32\",\"shape\":[12],\"data_offsets\":[16,64]}}");
    refused(&c, ERR_FORMAT, "'a' and 'b' overlap", "model.safetensors");
    write_raw("{\"a\":{\"dtype\":\"Q4\",\"shape\":[16],\"data_offsets\":[0,64]}}");
    refused(&c, ERR_UNSUPPORTED, "unknown dtype 'Q4'", "model.safetensors");
    write_raw("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],"
              "\"data_offsets\":[0,64]}}");
    refused(&c, ERR_FORMAT, "overflows", "'a'");
    write_raw("{}");
    refused(&c, ERR_FORMAT, "model.safetensors", "");
}

/* Any bytes in the header give an error with a message, or weights; never a crash. */
TEST_WITH(test_random_damage, setup, tempdir_end)
{
    struct model_config c = shape("tiny-mha");
    struct rng r = {2024};
    char *path = at("model.safetensors"), *bytes;
    size_t n;
    struct err e;
    int n_refused = 0;
    write_synth("tiny-mha", DTYPE_BF16);
    assert_int_equal(file_read(path, (size_t)1 << 30, &bytes, &n, &e), 0);
    size_t header = (size_t)get_u64((uint8_t *)bytes) + 8;
    for (int round = 0; round < 400; round++) {
        char *copy = memcpy(xmalloc(n), bytes, n);
        static const char digits[] = "0123456789-\"[]{},:.eBF";
        for (uint64_t k = rng_below(&r, 3) + 1; k > 0; k--)
            copy[rng_below(&r, header)] = rng_below(&r, 2)
                                              ? digits[rng_below(&r, sizeof digits - 1)]
                                              : (char)rng_u64(&r);
        size_t keep = rng_below(&r, 8) == 0 ? rng_below(&r, n) : n;
        unlink(path);
        FILE *f = fopen(path, "wb");
        fwrite(copy, 1, keep, f);
        fclose(f);
        free(copy);
        struct weights w;
        if (load(&w, dir, &c, DTYPE_F32, &e) == 0) {
            weights_unload(&w, dev); /* the flip hit white space or the metadata */
        } else {
            n_refused++;
            assert_non_null(strstr(e.msg, "model.safetensors"));
        }
    }
    assert_in_range(n_refused, 200, 400);
    free(bytes);
}

/* --- limits ----------------------------------------------------------------------------------- */

static size_t count_files(void)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

/* A write that fails in the middle leaves nothing behind. */
TEST_WITH(test_disk_full, setup, tempdir_end)
{
    struct model_config c = shape("tiny-gqa");
    struct rlimit old, small;
    struct err e;
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 300000;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    int rc = checkpoint_write(dir, &c, DTYPE_F32, &e);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(rc, -EFBIG);
    assert_non_null(strstr(e.msg, dir));
    assert_int_equal(count_files(), 0);
}

static long peak_kb(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_maxrss;
}

/* In a child: compares the growth of the peak of resident memory while loading with the weights'
 * size. Returns 0 if it is small enough, 3 if not, 2 if loading fails. */
static int measure_peak(const struct model_config *c)
{
    struct weights w;
    struct err e;
    long before = peak_kb();
    if (load(&w, dir, c, DTYPE_BF16, &e) != 0)
        return 2;
    long added = peak_kb() - before, packed = (long)(w.bytes / 1024);
    fprintf(stderr, "packed %ld kB, peak + %ld kB\n", packed, added);
    return added > packed + 20000 ? 3 : 0; /* room for a batch of 16 MiB */
}

/* While a model loads, no weight is in memory twice, as it is in the file and packed. */
TEST_WITH(test_peak_memory, setup, tempdir_end)
{
#ifdef __SANITIZE_ADDRESS__
    print_message("skipped: the sanitizer's own memory is counted\n");
    skip();
#endif
    struct err e;
    struct model_config c = shape("bench-220m");
    c.n_layers = 3;
    c.vocab_size = 4000;
    assert_int_equal(checkpoint_write(dir, &c, DTYPE_BF16, &e), 0);
    pid_t child = fork();
    if (child == 0) { /* the child has no threads, so it needs a device of its own */
        int rc = device_open("ref", NULL, NULL, &dev, &e);
        rc = rc != 0 ? rc : stream_create(dev, STREAM_COMPUTE, &stream, &e);
        _exit(rc != 0 ? 1 : measure_peak(&c));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Tables stay in the checkpoint's type; a table that a model lacks has the type in which rows of
 * that device's matrices are computed. */
TEST(tables_have_the_types_of_their_rows)
{
    static const struct {
        enum dtype held, table;
    } cases[] = {{DTYPE_F32, DTYPE_F32}, {DTYPE_BF16, DTYPE_BF16},
                 {DTYPE_F16, DTYPE_F16}, {DTYPE_BF16R, DTYPE_BF16},
                 {DTYPE_Q8, DTYPE_F32},  {DTYPE_Q4, DTYPE_F32}};
    struct model_config c = {0};
    struct weights_info info;
    struct err err = {0};
    assert_int_equal(config_shape(&c, "tiny-gqa", &err),
                     0); /* it has no learned positions */
    assert_int_equal(weights_describe(&info, "synth:tiny-gqa", &c, DTYPE_F16, &err), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        enum dtype got[2];
        weights_table_types(&info, cases[i].held, got);
        assert_int_equal(got[1], cases[i].table);
    }
    weights_info_deinit(&info);
}

TEST(formats_have_names)
{
    static const struct {
        enum weights_held held;
        const char *name;
    } cases[] = {{WEIGHTS_AS_STORED, "checkpoint"},
                 {WEIGHTS_F32, "f32"},
                 {WEIGHTS_BF16, "bf16"},
                 {WEIGHTS_Q8, "q8"},
                 {WEIGHTS_Q4, "q4"},
                 {WEIGHTS_BF16R, "bf16r"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(weights_held_name(cases[i].held), cases[i].name);
}

int main(void)
{
    return unit_run(group_setup, group_teardown);
}
