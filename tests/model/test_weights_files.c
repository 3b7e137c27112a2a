/* test_weights_files.c - files and tensors that make a model's weights, their hash, and warnings of
 * values that are no numbers. */
#include "tests/unit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "checkpoint/safetensors.h"
#include "model/weights.h"
#include "model/weights_names.h"
#include "model/weights_source.h"
#include "sim/checkpoint.h"
#include "tests/base/said.h"
#include "tests/base/tempdir.h"

#define SINGLE "model.safetensors"
#define INDEX  "model.safetensors.index.json"

static struct device *dev;
static struct stream *stream;
static char dir[TEMPDIR_BYTES];
static struct model_config shape; /* tiny-mha */
static struct tensor_list list;   /* its tensors */

static int group_setup(void **state)
{
    if (config_shape(&shape, "tiny-mha", NULL) != 0)
        return -1;
    tensor_list_make(&list, &shape);
    return device_open("ref", NULL, NULL, &dev, NULL) ||
           stream_create(dev, STREAM_COMPUTE, &stream, NULL);
}

static int group_teardown(void **state)
{
    tensor_list_free(&list);
    stream_destroy(stream);
    device_close(dev);
    return 0;
}

static int setup(void **state)
{
    *state = dir;
    tempdir_make(dir, "weights");
    return 0;
}

/* --- folders ------------------------------------------------------------------------------ */

static FILE *create(const char *name)
{
    char path[TEMPDIR_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    return f;
}

static void put_text(const char *name, const char *text)
{
    FILE *f = create(name);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* How a file's tensors differ from the generator's f32 tensors. */
struct change {
    size_t skip;        /* bytes that every name with the prefix "model." loses */
    const char *extra;  /* name of one more tensor, of 4 numbers; NULL: there is none */
    const char *nan[2]; /* tensors with a NaN in row 3, or in the first row of a vector */
};

/* Writes tensors [first, first + n) of the list as one file. */
static void put_tensors(const char *name, size_t first, size_t n, const struct change *c)
{
    struct safetensors_tensor *t = xcalloc(n + 1, sizeof *t);
    size_t count = n + (c->extra != NULL), head_bytes;
    uint8_t *head;
    for (size_t i = 0; i < n; i++) {
        const struct tensor_spec *s = &list.items[first + i];
        bool prefixed = strncmp(s->name, "model.", 6) == 0;
        t[i] = (struct safetensors_tensor){.name = s->name + (prefixed ? c->skip : 0),
                                           .dtype = SAFETENSORS_F32,
                                           .n_dims = s->n_dims,
                                           .shape = {(uint64_t)s->rows, (uint64_t)s->cols}};
    }
    t[n] = (struct safetensors_tensor){
        .name = c->extra, .dtype = SAFETENSORS_F32, .n_dims = 1, .shape = {4}};
    safetensors_write_header(t, count, &head, &head_bytes);
    FILE *f = create(name);
    assert_int_equal(fwrite(head, 1, head_bytes, f), head_bytes);
    for (size_t i = 0; i < count; i++) {
        const struct tensor_spec *s = &list.items[first + i];
        size_t floats = i < n ? (size_t)(s->rows * s->cols) : 4;
        float *x = xcalloc(floats, sizeof *x);
        if (i < n)
            synth_fill(s, DTYPE_F32, false, 0, s->rows, x);
        for (int k = 0; i < n && k < 2; k++)
            if (c->nan[k] != NULL && strcmp(s->name, c->nan[k]) == 0)
                x[s->n_dims == 1 ? 0 : 3 * s->cols] = (float)(0.0 / 0.0);
        assert_int_equal(fwrite(x, sizeof *x, floats, f), floats);
        free(x);
    }
    assert_int_equal(fclose(f), 0);
    free(head);
    free(t);
}

/* --- progress: these functions take the place of src/base/progress.c ---------------------- */

static struct {
    int n_begun, n_ended, n_at;
    enum progress_unit unit;
    uint64_t total, done;
    bool rises;
} shown;

void progress_begin(struct progress *p, const char *label, enum progress_unit unit,
                    uint64_t total)
{
    (void)p;
    (void)label;
    shown.n_begun++;
    shown.unit = unit;
    shown.total = total;
    shown.rises = true;
}

void progress_at(struct progress *p, uint64_t done)
{
    (void)p;
    assert_true(shown.n_begun > shown.n_ended);
    shown.n_at++;
    shown.rises &= done > shown.done;
    shown.done = done;
}

void progress_end(struct progress *p)
{
    (void)p;
    shown.n_ended++;
}

static int load(struct weights *w, const char *source, enum weights_held held,
                struct err *e)
{
    struct weights_opts o = {.dev = dev, .s = stream, .held = held};
    *e = (struct err){0};
    return weights_load(w, source, &shape, &o, e);
}

static void refuse(int code, const char *message)
{
    struct weights w;
    struct err e;
    int rc = load(&w, dir, WEIGHTS_AS_STORED, &e);
    if (rc != code || strstr(e.msg, message) == NULL || strstr(e.msg, dir) == NULL)
        fail_msg("expected %s with '%s', got %s: %s", err_name(code), message, err_name(rc),
                 e.msg);
}

static void expect_hash_of_synth(void)
{
    struct weights a, b;
    struct err e;
    assert_int_equal(load(&a, "synth:tiny-mha", WEIGHTS_AS_STORED, &e), 0);
    if (load(&b, dir, WEIGHTS_AS_STORED, &e) != 0)
        fail_msg("%s", e.msg);
    assert_memory_equal(&a.hash, &b.hash, sizeof a.hash);
    assert_memory_equal(a.layers[1].wq.mem.ptr, b.layers[1].wq.mem.ptr,
                        a.layers[1].wq.mem.bytes);
    weights_unload(&a, dev);
    weights_unload(&b, dev);
}

/* --- names -------------------------------------------------------------------------------- */

/* A checkpoint of the base model has its tensors' names without the prefix. */
TEST_WITH(test_names_without_their_prefix, setup, tempdir_end)
{
    put_tensors(SINGLE, 0, list.n, &(struct change){.skip = 6});
    expect_hash_of_synth();
    put_tensors(SINGLE, 0, list.n, &(struct change){.skip = 5});
    refuse(ERR_MISMATCH, "tensor 'model.embed_tokens.weight' is missing, but config.json "
                         "requires it");
}

/* Only rotations, which the program computes itself, may be ignored. */
TEST_WITH(test_tensors_that_are_ignored, setup, tempdir_end)
{
    static const char *const ignored[] = {
        "a.rotary_emb.inv_freq", "a.rotary_emb.cos_cached", "a.rotary_emb.sin_cached",
        "a.attn.masked_bias",    "a.self_attn.masked_bias", ".rotary_emb.inv_freq"};
    static const char *const used[] = {"rotary_emb.inv_freq", "a.rotary_emb.inv_freqs",
                                       "a.masked_bias", "a.attn.bias"};
    char message[96];
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++) {
        put_tensors(SINGLE, 0, list.n, &(struct change){.extra = ignored[i]});
        expect_hash_of_synth();
    }
    for (size_t i = 0; i < sizeof used / sizeof used[0]; i++) {
        put_tensors(SINGLE, 0, list.n, &(struct change){.extra = used[i]});
        snprintf(message, sizeof message,
                 "tensor '%s' is not part of the llama model of 4 layers", used[i]);
        refuse(ERR_MISMATCH, message);
    }
}

/* --- several files ------------------------------------------------------------------------ */

TEST_WITH(test_shards, setup, tempdir_end)
{
    char index[512];
    snprintf(index, sizeof index,
             "{\"weight_map\": {\"%s\": \"a.safetensors\", \"%s\": \"b.safetensors\"}}",
             list.items[0].name, list.items[5].name);
    put_text(INDEX, index);
    put_tensors("a.safetensors", 0, 5, &(struct change){0});
    put_tensors("b.safetensors", 5, list.n - 5, &(struct change){0});
    expect_hash_of_synth();
    /* a tensor is in two files */
    put_tensors("b.safetensors", 4, list.n - 4, &(struct change){0});
    char message[256];
    snprintf(message, sizeof message, "b.safetensors: tensor '%s' is also in %s/a.safe",
             list.items[4].name, dir);
    struct weights w;
    struct err e;
    assert_int_equal(load(&w, dir, WEIGHTS_AS_STORED, &e), ERR_FORMAT);
    if (strstr(e.msg, message) == NULL) { /* files of equal names come in any order */
        snprintf(message, sizeof message, "a.safetensors: tensor '%s' is also in %s/b.safe",
                 list.items[4].name, dir);
        assert_non_null(strstr(e.msg, message));
    }
    /* the index lists a tensor that its file does not have */
    snprintf(index, sizeof index,
             "{\"weight_map\": {\"%s\": \"a.safetensors\", \"%s\": \"a.safetensors\"}}",
             list.items[0].name, list.items[5].name);
    put_text(INDEX, index);
    snprintf(message, sizeof message,
             "a.safetensors: tensor '%s' is missing, but " INDEX " lists it",
             list.items[5].name);
    refuse(ERR_FORMAT, message);
    put_text(INDEX, "{");
    refuse(ERR_FORMAT, INDEX ":1:");
}

TEST_WITH(test_short_files, setup, tempdir_end)
{
    put_text(SINGLE, "1234567");
    refuse(ERR_FORMAT, "truncated: 7 bytes, a safetensors file begins with 8");
    put_text(SINGLE, "12345678");
    struct weights w;
    struct err e;
    assert_int_equal(load(&w, dir, WEIGHTS_AS_STORED, &e), ERR_FORMAT);
    assert_null(strstr(e.msg, "begins with 8"));
}

TEST_WITH(test_shapes_in_messages, setup, tempdir_end)
{
    put_tensors(SINGLE, 0, list.n, &(struct change){0});
    shape.vocab_size++;
    refuse(ERR_MISMATCH, "tensor 'model.embed_tokens.weight' has shape [512, 64], "
                         "config.json asks for [513, 64]");
    shape.vocab_size--;
    shape.n_ffn++;
    refuse(ERR_MISMATCH, "has shape [176, 64], config.json asks for [177, 64]");
    shape.n_ffn--;
}

/* --- hashes ------------------------------------------------------------------------------- */

static void expect_hash(const char *source, const struct model_config *c, enum dtype t,
                        const char *want)
{
    struct weights w;
    struct err e = {0};
    struct weights_opts o = {.dev = dev, .s = stream, .synth_dtype = t};
    char hex[65];
    if (weights_load(&w, source, c, &o, &e) != 0)
        fail_msg("%s", e.msg);
    for (int i = 0; i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", w.hash.b[i]);
    weights_unload(&w, dev);
    if (strcmp(hex, want) != 0)
        fail_msg("%s: hash %s", source, hex);
}

/* The hash of a model's weights is a part of every key of saved state. If it changes, all saved
 * state is lost. */
TEST(test_hashes_stay_the_same)
{
    static const struct {
        const char *source;
        enum dtype dtype;
        const char *hash;
    } known[] = {
        {"synth:tiny-mha", DTYPE_F32,
         "7dd4f1bed8bf101357b31268d47542a0641ffc9595415d03c6070d95593565bd"},
        {"synth:tiny-gqa", DTYPE_BF16,
         "d4bee70d4ac245329a4953e5fac7d5722043b095641b07ceac4e0dbf0c20f00d"},
        {"synth:tiny-gqa", DTYPE_F16,
         "b9c8cb4492f4f5fbb528cf68ecff379c41a06f9fc328bbb5656ff7560298f2c6"},
        {"tests/model/golden/families/gemma", DTYPE_F32,
         "c7c16d94c283488701dd26ba04ff5477581eb6ac44b5f11755be0f5183cb7cef"},
        {"tests/model/golden/families/opt", DTYPE_F32,
         "7ecdbb57ad828bab24874d50a2c9cbb96b5ac21d2d3df8126fd7ca845bc5ddcd"},
        {"tests/model/golden/families/falcon-40b", DTYPE_F32,
         "6a38ceaa5646a8858a7cf81ff53ea46f9e51c3a350a1fc69cfdb9bcc09308655"},
        {"tests/model/golden/gguf/gemma.gguf", DTYPE_F32,
         "218e5aaed359876bd4bd5d8e2dbae4152fba25ee6b433a4750b64036d0dfb9f6"},
        {"tests/model/golden/gguf/llama.gguf", DTYPE_F32,
         "c9666c7db959ee848de26c9fe44215b0fc0546020507c5ccc47df0b08f45f323"},
        {"tests/model/golden/gguf/mixed.gguf", DTYPE_F32,
         "7c77b946287461d787f3af9704d4a24c83145c69bccdd003d97426c3c5d1e910"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct model_config c;
        if (strncmp(known[i].source, "synth:", 6) == 0)
            assert_int_equal(config_shape(&c, known[i].source + 6, NULL), 0);
        else
            assert_int_equal(config_load(&c, known[i].source, NULL), 0);
        expect_hash(known[i].source, &c, known[i].dtype, known[i].hash);
    }
}

/* --- values that are no numbers ----------------------------------------------------------- */

/* Loads the folder and returns what it logs. */
static const char *logged(void)
{
    struct weights w;
    struct err e = {0};
    said_begin(LOG_WARN);
    int rc = load(&w, dir, WEIGHTS_AS_STORED, &e);
    const char *text = said_end();
    assert_int_equal(rc, 0);
    weights_unload(&w, dev);
    return text;
}

TEST_WITH(test_values_that_are_no_numbers_are_named, setup, tempdir_end)
{
    static const char norm[] = "model.layers.1.input_layernorm.weight",
                      down[] = "model.layers.2.mlp.down_proj.weight";
    put_tensors(SINGLE, 0, list.n, &(struct change){0});
    const char *text = logged();
    assert_null(strstr(text, "no numbers"));
    put_tensors(SINGLE, 0, list.n, &(struct change){.nan = {down}});
    text = logged();
    assert_non_null(strstr(text,
                           "weights: tensor 'model.layers.2.mlp.down_proj.weight' holds "
                           "values that are no numbers (NaN or infinite; row 3)"));
    put_tensors(SINGLE, 0, list.n, &(struct change){.nan = {down, norm}});
    text = logged();
    assert_non_null(strstr(text,
                           "'model.layers.1.input_layernorm.weight' and 1 others hold "
                           "values that are no numbers (NaN or infinite; row 0)"));
}

TEST_WITH(test_small_formats_refuse_them, setup, tempdir_end)
{
    static const struct {
        enum weights_held held;
        const char *message;
    } known[] = {
        {WEIGHTS_Q8, "q8 cannot hold an infinity, a NaN or a number above 8.3e6"},
        {WEIGHTS_Q4, "4 bits cannot hold an infinity, a NaN or a number above 65504"}};
    put_tensors(SINGLE, 0, list.n,
                &(struct change){.nan = {"model.layers.2.mlp.up_proj.weight"}});
    for (int i = 0; i < 2; i++) {
        struct weights w;
        struct err e;
        assert_int_equal(load(&w, dir, known[i].held, &e), ERR_UNSUPPORTED);
        assert_non_null(strstr(e.msg, "tensor 'model.layers.2.mlp.up_proj.weight': "));
        assert_non_null(strstr(e.msg, known[i].message));
    }
}

/* --- files -------------------------------------------------------------------------------- */

/* Returns whether a file of the folder is open or mapped. */
static bool is_in_use(const char *name)
{
    char line[512], link[64];
    bool found = false;
    FILE *f = fopen("/proc/self/maps", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL)
        found |= strstr(line, dir) != NULL && strstr(line, name) != NULL;
    fclose(f);
    for (int fd = 0; fd < 64; fd++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, line, sizeof line - 1);
        line[n > 0 ? n : 0] = 0;
        found |= n > 0 && strstr(line, dir) != NULL && strstr(line, name) != NULL;
    }
    return found;
}

/* After loading, no file is open or mapped: what happens to it changes nothing. */
TEST_WITH(test_files_are_closed_after_loading, setup, tempdir_end)
{
    char index[256];
    struct weights w;
    struct err e;
    snprintf(index, sizeof index,
             "{\"weight_map\": {\"%s\": \"a.safetensors\", \"%s\": \"b.safetensors\"}}",
             list.items[0].name, list.items[5].name);
    put_text(INDEX, index);
    put_tensors("a.safetensors", 0, 5, &(struct change){0});
    put_tensors("b.safetensors", 5, list.n - 5, &(struct change){0});
    assert_int_equal(load(&w, dir, WEIGHTS_AS_STORED, &e), 0);
    assert_false(is_in_use("a.safetensors"));
    assert_false(is_in_use("b.safetensors"));
    weights_unload(&w, dev);
}

/* Progress is shown from the first byte to the last one, also if loading fails. */
TEST_WITH(test_progress_counts_the_bytes_of_all_tensors, setup, tempdir_end)
{
    struct weights w;
    struct err e;
    uint64_t bytes = 0;
    for (size_t i = 0; i < list.n; i++)
        bytes += (uint64_t)(list.items[i].rows * list.items[i].cols) * sizeof(float);
    put_tensors(SINGLE, 0, list.n, &(struct change){0});
    memset(&shown, 0, sizeof shown);
    assert_int_equal(load(&w, dir, WEIGHTS_AS_STORED, &e), 0);
    weights_unload(&w, dev);
    assert_int_equal(shown.n_begun, 1);
    assert_int_equal(shown.n_ended, 1);
    assert_int_equal(shown.unit, PROGRESS_BYTES);
    assert_int_equal(shown.total, bytes);
    assert_int_equal(shown.done, bytes);
    assert_true(shown.rises && shown.n_at >= (int)list.n);

    put_tensors(SINGLE, 0, list.n,
                &(struct change){.nan = {"model.layers.2.mlp.down_proj.weight"}});
    memset(&shown, 0, sizeof shown);
    assert_int_not_equal(load(&w, dir, WEIGHTS_Q8, &e), 0);
    assert_true(shown.n_begun == 1 && shown.n_ended == 1);
}

/* Loading a part of the model, to examine it, shows no progress and warns of no bad values. */
TEST_WITH(test_a_part_is_loaded_in_silence, setup, tempdir_end)
{
    static const char norm[] = "model.layers.1.input_layernorm.weight";
    struct weights w;
    struct err e = {0};
    put_tensors(SINGLE, 0, list.n, &(struct change){.nan = {norm}});
    for (int part = WEIGHTS_OF_LAYER; part <= WEIGHTS_OUTSIDE; part++) {
        struct weights_opts o = {
            .dev = dev, .s = stream, .part = (enum weights_part)part, .layer = 1};
        memset(&shown, 0, sizeof shown);
        said_begin(LOG_WARN);
        int rc = weights_load(&w, dir, &shape, &o, &e);
        assert_string_equal(said_end(), "");
        assert_int_equal(rc, 0);
        assert_int_equal(shown.n_begun + shown.n_at + shown.n_ended, 0);
        weights_unload(&w, dev);
    }
}

int main(void)
{
    return unit_run(group_setup, group_teardown);
}
