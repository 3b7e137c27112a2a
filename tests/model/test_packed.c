/* test_packed.c - a packed file gives the model from which it was made, and a damaged one is
 * refused. */
#include "tests/unit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../base/tempdir.h"
#include "base/bytes.h"
#include "base/file.h"
#include "checkpoint/gguf_types.h"
#include "model/pack_file.h"
#include "apps/pack_write.h"
#include "model/share.h"
#include "text/tokenizer.h"
#include "solo.h"
#include "table_file.h"
#include "tensor/group.h"
#include "tests/tensor/peer_threads.h"

#define FAMILIES "tests/model/golden/families/"
#define GGUF     "tests/model/golden/gguf/"

enum { N_IDS = 70, MAX_VOCAB = 512 };

static char dir[TEMPDIR_BYTES];

/* Returns DIR/name; the last four results stay valid. */
static const char *path_of(const char *name)
{
    static char path[4][TEMPDIR_BYTES + 64];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static int pack_for(const char *source, const char *path, const char *device, int n_ranks,
                    const char *weights, struct err *err)
{
    struct device *d;
    struct pack_result r = {0};
    assert_int_equal(group_open(device, NULL, n_ranks, 1, NULL, &d, err), 0);
    int rc = pack_write(source, path, d, weights, &r, err);
    free(r.errors.of);
    device_close(d);
    return rc;
}

static const char *pack(const char *source, const char *weights)
{
    struct err err = {0};
    const char *path = path_of("model.packed");
    unlink(path);
    if (pack_for(source, path, "cpu", 1, weights, &err) != 0)
        fail_msg("%s", err.msg);
    return path;
}

struct outcome {
    float logits[N_IDS * MAX_VOCAB];
    struct sha256 hash;
    enum dtype state, held;
    struct weights_types types;
    char names[16][16]; /* of the types: their own end with the model */
    int vocab;
};

static void compute(const char *source, const char *weights, struct outcome *out)
{
    struct solo t;
    int32_t ids[N_IDS];
    solo_open_held(&t, source, NULL, weights);
    out->vocab = t.m->cfg.vocab_size;
    assert_true(out->vocab <= MAX_VOCAB);
    for (int i = 0; i < N_IDS; i++)
        ids[i] = (i * 37 + 5) % out->vocab;
    solo_feed(&t, ids, N_IDS, out->logits);
    out->hash = t.m->w.hash;
    out->state = t.m->dtype;
    out->held = t.m->w.dtype;
    out->types = t.m->w.types;
    for (int i = 0; i < out->types.n; i++)
        snprintf(out->names[i], sizeof out->names[i], "%s", out->types.of[i].name);
    solo_close(&t);
}

/* Checks that logits, the weights' hash (which lets saved state be shared) and types equal those of
 * the source. */
static void expect_same(const char *source, const char *weights)
{
    static struct outcome a, b;
    compute(source, weights, &a);
    compute(pack(source, weights), NULL, &b);
    assert_memory_equal(a.logits, b.logits, sizeof(float) * (size_t)(N_IDS * a.vocab));
    assert_memory_equal(a.hash.b, b.hash.b, sizeof a.hash.b);
    assert_int_equal(a.state, b.state);
    assert_int_equal(a.held, b.held);
    assert_true(a.types.n > 0);
    assert_int_equal(a.types.n, b.types.n);
    for (int i = 0; i < a.types.n; i++) {
        assert_string_equal(a.names[i], b.names[i]);
        assert_int_equal(a.types.of[i].n_tensors, b.types.of[i].n_tensors);
        assert_int_equal(a.types.of[i].quantised, b.types.of[i].quantised);
    }
}

static void a_packed_family_is_the_model(void **state)
{
    expect_same(*state, NULL);
    expect_same(*state, "bf16");
}

/* auto measures once, when packing; the file keeps the choice. */
TEST(a_packed_gguf_file_is_the_model)
{
    expect_same(GGUF "llama3.gguf", NULL);
    expect_same(GGUF "falcon-40b.gguf", NULL);
    expect_same(GGUF "lfm2.gguf", "q8");
    expect_same(GGUF "granite-h-dense.gguf", "q8");
    expect_same(GGUF "qwen3.5.gguf", NULL); /* its heads lie in another order */
    expect_same(GGUF "split-00001-of-00003.gguf", "q8");
    expect_same("synth:tiny-mha", "q8");
    expect_same("synth:tiny-mha", "bf16r");
    /* q4_1, and q8 for matrices whose rows are not whole blocks */
    expect_same("synth:tiny-mha", "q4");
    expect_same(FAMILIES "deepseek-v2", "q4"); /* matrices that only some models have */
    expect_same(GGUF "mixed.gguf", NULL);
    expect_same(GGUF "mixed.gguf", "q4");  /* has q4_k, q4_0 and q8 */
    expect_same(GGUF "layers.gguf", "q4"); /* its layers differ in types and sizes */
    expect_same(GGUF "six.gguf", "q4");    /* has q4_k and q6_k */
}

static uint32_t version_of(const char *path)
{
    uint8_t head[16];
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(head, 1, sizeof head, f), sizeof head);
    assert_int_equal(fclose(f), 0);
    return get_u32(head + 8);
}

/* The embedding table keeps its blocks. Only a file with blocks there needs version 2. */
TEST(a_packed_table_of_blocks_is_the_files)
{
    static const uint32_t types[] = {GGUF_TYPE_Q4_0, GGUF_TYPE_Q4_1, GGUF_TYPE_Q4_K,
                                     GGUF_TYPE_Q6_K};
    char source[TEMPDIR_BYTES + 64];
    struct solo t;
    snprintf(source, sizeof source, "%s/table.gguf", dir);
    for (int i = 0; i < 4; i++) {
        table_file_write(source, types[i]);
        expect_same(source, "q4");
        solo_open_held(&t, path_of("model.packed"), NULL, NULL);
        assert_int_equal(t.m->w.embed.dtype, DTYPE_Q4_0 + i);
        solo_close(&t);
        assert_int_equal(version_of(path_of("model.packed")), 2);
        expect_same(source, "bf16");
        assert_int_equal(version_of(path_of("model.packed")), 1);
    }
}

/* Tokenizer and template are stored in the file.  (tests/e2e/test_packed.py covers GGUF files.) */
TEST(text_travels_with_the_weights)
{
    static const char text[] = "<|user|>The lighthouse keeper said: 42 ships!<|end|>";
    struct tokenizer *a = NULL, *b = NULL;
    struct err err = {0};
    int32_t *ia, *ib;
    size_t na, nb;
    assert_int_equal(tokenizer_open(&a, "models/demo", &err), 0);
    assert_int_equal(tokenizer_open(&b, pack("models/demo", NULL), &err), 0);
    assert_int_equal(
        tokenizer_encode(a, text, sizeof text - 1, TOKENIZER_PARSE_SPECIAL, &ia, &na, &err),
        0);
    assert_int_equal(
        tokenizer_encode(b, text, sizeof text - 1, TOKENIZER_PARSE_SPECIAL, &ib, &nb, &err),
        0);
    assert_int_equal(na, nb);
    assert_memory_equal(ia, ib, na * sizeof *ia);
    assert_non_null(tokenizer_chat_template(a));
    assert_string_equal(tokenizer_chat_template(a), tokenizer_chat_template(b));
    free(ia);
    free(ib);
    tokenizer_close(a);
    tokenizer_close(b);
    /* A packed model without a tokenizer gives the same error as its folder. */
    assert_int_equal(tokenizer_open(&a, pack("synth:tiny-mha", NULL), &err), -ENOENT);
}

/* --- unusable files ------------------------------------------------------------------------ */

static void flip(const char *path, uint64_t at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    int c = fgetc(f);
    assert_true(c >= 0);
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    fputc(c ^ 0x10, f);
    assert_int_equal(fclose(f), 0);
}

static int try_open(const char *path, const char *device, int n_ranks, const char *weights,
                    struct err *err)
{
    struct device *d;
    struct model *m = NULL;
    *err = (struct err){0};
    assert_int_equal(group_open(device, NULL, n_ranks, 1, NULL, &d, err), 0);
    int rc = model_open(path, &(struct model_opts){.dev = d, .weights = weights}, &m, err);
    if (rc == 0)
        model_close(m);
    device_close(d);
    return rc;
}

static void expect_fault(const char *path, int code, const char *says)
{
    struct err err;
    assert_int_equal(try_open(path, "cpu", 1, NULL, &err), code);
    assert_int_equal(err.code, code);
    assert_non_null(strstr(err.msg, says));
    assert_non_null(strstr(err.msg, path));
}

/* One bit is flipped in each part of the file that is read: the header, the description, the
 * configuration, the table of checksums, and the first and last byte of every part. Each flip is
 * detected when the model is opened. */
TEST(a_flipped_bit_is_found_before_it_is_used)
{
    const char *path = pack(FAMILIES "qwen3", NULL);
    struct pack_file f;
    struct err err = {0};
    assert_int_equal(pack_file_open(&f, path, &err), 0);
    assert_int_equal(try_open(path, "cpu", 1, NULL, &err), 0);
    uint64_t at[64] = {
        16, 100, 4000, 4088, 4096, f.members[0].at + 5, f.parts[0].at - 4096};
    size_t n = 7;
    for (size_t i = 0; i < f.n_parts && n + 2 < 64; i++) {
        if (f.parts[i].bytes == 0)
            continue;
        at[n++] = f.parts[i].at;
        at[n++] = f.parts[i].at + f.parts[i].bytes - 1;
    }
    assert_true(f.n_parts >= 6);
    for (size_t i = 0; i < n; i++) {
        flip(path, at[i]);
        expect_fault(path, ERR_CORRUPT, "damaged");
        flip(path, at[i]);
    }
    assert_int_equal(try_open(path, "cpu", 1, NULL, &err), 0);
    pack_file_close(&f);
}

TEST(a_file_that_is_cut_short_is_damaged)
{
    const char *path = pack("synth:tiny-mha", NULL);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size - 4096), 0);
    expect_fault(path, ERR_CORRUPT, "cut short");
    assert_int_equal(truncate(path, 100), 0);
    expect_fault(path, ERR_CORRUPT, "cut short");
}

/* A file of another version, or packed for another device, another number of ranks or another type,
 * is refused. Each error says what to do. */
TEST(a_stale_file_says_why)
{
    const char *path = pack("synth:tiny-mha", NULL);
    char version[12], *bytes;
    size_t n;
    struct err err;
    assert_int_equal(try_open(path, "ref", 1, NULL, &err), ERR_MISMATCH);
    assert_non_null(strstr(err.msg, "'cpu 1'"));
    assert_non_null(strstr(err.msg, "'ref 1'"));
    assert_int_equal(try_open(path, "cpu", 2, NULL, &err), ERR_MISMATCH);
    assert_non_null(strstr(err.msg, "'cpu 1, rows of 2 ranks'"));
    assert_int_equal(try_open(path, "cpu", 1, "q8", &err), ERR_MISMATCH);
    assert_non_null(strstr(err.msg, "packed as f32"));
    /* A file of a later version has a correct checksum, so the version itself must be checked. */
    assert_int_equal(file_read(path, 1 << 26, &bytes, &n, &err), 0);
    put_u32((uint8_t *)bytes + 8, PACK_VERSION + 1);
    put_u64((uint8_t *)bytes + 4088, checksum64(bytes, 4088));
    FILE *out = fopen(path, "wb");
    assert_int_equal(fwrite(bytes, 1, n, out), n);
    assert_int_equal(fclose(out), 0);
    free(bytes);
    snprintf(version, sizeof version, "version %d", PACK_VERSION + 1);
    expect_fault(path, ERR_UNSUPPORTED, version);
}

/* Replaces `from` in a file's description with `to`, of the same length, and makes its checksums
 * right again. */
static void change_description(const char *path, const char *from, const char *to)
{
    char *bytes;
    size_t n;
    struct err err;
    assert_int_equal(strlen(from), strlen(to));
    assert_int_equal(file_read(path, 1 << 26, &bytes, &n, &err), 0);
    size_t n_text = (size_t)get_u64((uint8_t *)bytes + 24);
    char *at = memmem(bytes + 4096, n_text, from, strlen(from));
    assert_non_null(at);
    memcpy(at, to, strlen(to));
    put_u64((uint8_t *)bytes + 32, checksum64(bytes + 4096, n_text));
    put_u64((uint8_t *)bytes + 4088, checksum64(bytes, 4088));
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, n, out), n);
    assert_int_equal(fclose(out), 0);
    free(bytes);
}

/* A description whose embeddings have blocks is refused if the matrices are not held in 4 bits, or
 * if rows are not whole blocks. */
TEST(a_table_of_blocks_must_fit)
{
    static const struct {
        const char *source, *weights, *from, *to;
        int code;
        const char *says;
    } bad[] = {
        {FAMILIES "mistral", "bf16", "\"embeddings\": \"bf16\"", "\"embeddings\": \"q4_k\"",
         ERR_CORRUPT, "damaged"},
        {FAMILIES "mistral", "q4", "\"embeddings\": \"bf16\"", "\"embeddings\": \"q4_k\"",
         ERR_MISMATCH, "do not fit"},
        {FAMILIES "opt", "q4", "\"positions\": \"f16\",\n", "\"positions\": \"q4_k\",",
         ERR_CORRUPT, "damaged"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *path = pack(bad[i].source, bad[i].weights);
        change_description(path, bad[i].from, bad[i].to);
        expect_fault(path, bad[i].code, bad[i].says);
    }
}

TEST(packing_never_replaces_a_file)
{
    const char *path = pack("synth:tiny-mha", NULL);
    struct stat before, after;
    struct err err = {0};
    assert_int_equal(stat(path, &before), 0);
    assert_int_equal(pack_for("synth:tiny-gqa", path, "cpu", 1, NULL, &err), -EEXIST);
    assert_int_equal(pack_for(path, path_of("again"), "cpu", 1, NULL, &err), ERR_USAGE);
    assert_int_equal(access(path_of("again"), F_OK), -1);
    assert_int_equal(stat(path_of("model.packed"), &after), 0);
    assert_true(before.st_ino == after.st_ino && before.st_size == after.st_size);
    /* Packing a source that fails leaves no file. */
    assert_int_not_equal(
        pack_for("tests/model/golden", path_of("none"), "cpu", 1, NULL, &err), 0);
    assert_int_equal(access(path_of("none"), F_OK), -1);
    assert_int_equal(access(path_of("none.tmp"), F_OK), -1);
}

static void expect_shares(const char *source, const char *weights)
{
    struct err err = {0};
    struct device *d;
    struct model *a, *b;
    const char *path = path_of("ranks.packed");
    unlink(path);
    assert_int_equal(pack_for(source, path, "cpu", 2, weights, &err), 0);
    assert_int_equal(group_open("cpu", NULL, 2, 1, NULL, &d, &err), 0);
    assert_int_equal(
        model_open(source, &(struct model_opts){.dev = d, .weights = weights}, &a, &err),
        0);
    assert_int_equal(model_open(path, &(struct model_opts){.dev = d}, &b, &err), 0);
    for (int l = 0; l < a->cfg.n_layers; l++)
        for (int rank = 0; rank < 2; rank++) {
            const struct layer_weights *x = &a->w.layers[l], *y = &b->w.layers[l];
            const struct weight *mx[] = {&x->wq, &x->wkv,  &x->wv,
                                         &x->wo, &x->w_up, &x->w_down};
            const struct weight *my[] = {&y->wq, &y->wkv,  &y->wv,
                                         &y->wo, &y->w_up, &y->w_down};
            for (int i = 0; i < 6; i++) {
                assert_int_equal(mx[i]->n, my[i]->n);
                if (mx[i]->n == 0)
                    continue;
                assert_int_equal(mx[i]->k, my[i]->k);
                assert_int_equal(mx[i]->dtype, my[i]->dtype);
                size_t bytes = d->ops->weight_bytes(mx[i]->dtype, mx[i]->n, mx[i]->k);
                assert_memory_equal(rank_address(d, mx[i]->mem.ptr, rank),
                                    rank_address(d, my[i]->mem.ptr, rank), bytes);
            }
        }
    model_close(a);
    model_close(b);
    device_close(d);
}

/* Each rank has its share of every slot, also where W_k and W_v differ in type and so have a slot
 * each. */
TEST(ranks_have_their_shares)
{
    expect_shares("synth:tiny-mha", NULL);
    expect_shares(GGUF "six.gguf", "q4");
}

/* In a layer whose W_v has another type than W_k, the description of the packed file has the type
 * of W_v, too. */
TEST(a_description_has_both_types_of_k_and_v)
{
    static const struct {
        const char *name, *type;
    } want[] = {{"model.layers.0.self_attn.k_proj.weight", "q6_k"},
                {"model.layers.0.self_attn.v_proj.weight", "q6_k"},
                {"model.layers.1.self_attn.k_proj.weight", "q4_k"},
                {"model.layers.1.self_attn.v_proj.weight", "q6_k"}};
    struct weights_info info;
    struct model_config cfg;
    struct err err = {0};
    int n_found = 0;
    const char *path = pack(GGUF "six.gguf", "q4");
    assert_int_equal(config_load(&cfg, path, &err), 0);
    assert_int_equal(weights_describe(&info, path, &cfg, DTYPE_BF16, &err), 0);
    for (size_t i = 0; i < info.n_tensors; i++)
        for (int w = 0; w < 4; w++)
            if (strcmp(info.tensors[i].name, want[w].name) == 0) {
                assert_string_equal(info.tensors[i].type, want[w].type);
                n_found++;
            }
    assert_int_equal(n_found, 4);
    weights_info_deinit(&info);
}

/* The result of packing is the description of the file that it made. */
TEST(the_result_describes_the_file)
{
    static const struct {
        const char *source, *weights;
        enum dtype dtype;
        const char *layout;
        int n_ranks;
        bool has_note;
    } cases[] = {
        {"synth:tiny-gqa", NULL, DTYPE_F32, "cpu 1", 1, false},
        {"synth:tiny-gqa", "bf16", DTYPE_BF16, "cpu 1, rows of 2 ranks", 2, false},
        {"synth:tiny-gqa", "bf16r", DTYPE_BF16R, "cpu 1", 1, false},
        {"synth:tiny-gqa", "q8", DTYPE_Q8, "cpu 1", 1, false},
        {"synth:tiny-gqa", "q4", DTYPE_Q4, "cpu 1", 1, true},
        {"models/demo", NULL, DTYPE_BF16, "cpu 1", 1, false},
        {GGUF "mixed.gguf", NULL, DTYPE_Q4, "cpu 1", 1, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct device *d;
        struct pack_result r = {0};
        struct pack_file f;
        struct err err = {0};
        struct stat st;
        const char *path = path_of("result.packed");
        unlink(path);
        assert_int_equal(group_open("cpu", NULL, cases[i].n_ranks, 1, NULL, &d, &err), 0);
        assert_int_equal(pack_write(cases[i].source, path, d, cases[i].weights, &r, &err),
                         0);
        device_close(d);
        assert_int_equal(pack_file_open(&f, path, &err), 0);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(r.bytes, st.st_size);
        assert_int_equal(r.n_layers, f.n_layers);
        assert_int_equal(r.dtype, cases[i].dtype);
        assert_int_equal(f.dtype, cases[i].dtype);
        assert_memory_equal(&r.hash, &f.hash, sizeof r.hash);
        assert_string_equal(r.layout, cases[i].layout);
        assert_string_equal(f.layout, cases[i].layout);
        assert_string_equal(r.note, f.note);
        assert_int_equal(r.note[0] != 0, cases[i].has_note);
        assert_string_equal(f.source, cases[i].source);
        assert_int_equal(f.any_context, strncmp(cases[i].source, "synth:", 6) == 0);
        assert_int_equal(r.errors.n > 0, strcmp(cases[i].source, "synth:tiny-gqa") == 0 &&
                                             cases[i].dtype == DTYPE_Q4);
        assert_int_equal(access(path_of("result.packed.tmp"), F_OK), -1);
        free(r.errors.of);
        pack_file_close(&f);
    }
}

static void expect_pack_error(const char *source, const char *path, int n_ranks,
                              const char *weights, int code, const char *says)
{
    struct err err = {0};
    assert_int_equal(pack_for(source, path, "cpu", n_ranks, weights, &err), code);
    if (strstr(err.msg, says) == NULL)
        fail_msg("'%s' does not say '%s'", err.msg, says);
}

TEST(what_cannot_be_packed)
{
    expect_pack_error("synth:tiny-mha", path_of("no/such.packed"), 1, NULL, -ENOENT,
                      "no/such.packed.tmp: No such file or directory");
    expect_pack_error("synth:tiny-mha", path_of("odd.packed"), 3, NULL, ERR_UNSUPPORTED,
                      "tensor parallelism over 3 ranks");
    expect_pack_error("synth:no-such", path_of("odd.packed"), 1, NULL, ERR_NOT_FOUND,
                      "unknown shape 'no-such'");
    expect_pack_error("synth:tiny-mha", path_of("odd.packed"), 1, "q7", ERR_USAGE,
                      "weights 'q7'");
    assert_int_equal(access(path_of("odd.packed"), F_OK), -1);
    assert_int_equal(access(path_of("odd.packed.tmp"), F_OK), -1);
    /* the file may lie in the present folder */
    char *cwd = getcwd(NULL, 0);
    struct err err = {0};
    assert_non_null(cwd);
    assert_int_equal(chdir(dir), 0);
    int rc = pack_for("synth:tiny-mha", "here.packed", "cpu", 1, NULL, &err);
    assert_int_equal(chdir(cwd), 0);
    free(cwd);
    assert_int_equal(rc, 0);
    assert_int_equal(access(path_of("here.packed"), F_OK), 0);
    expect_pack_error("synth:tiny-mha", path_of("here.packed"), 1, NULL, -EEXIST,
                      "here.packed: already exists; choose another name");
}

static int none_stays(void *arg, const struct model *m, const struct weights_sizes *sizes,
                      int *n_resident, struct err *err)
{
    (void)arg, (void)m, (void)sizes, (void)err;
    *n_resident = 0;
    return 0;
}

/* A replay of saved inputs needs a layer's matrices at any time. */
TEST(recurrent_layers_are_not_streamed)
{
    struct device *d;
    struct model *m = NULL;
    struct err err = {0};
    const char *path = pack(FAMILIES "lfm2", NULL);
    assert_int_equal(group_open("cpu", NULL, 1, 1, NULL, &d, &err), 0);
    const struct model_opts o = {.dev = d, .share = none_stays};
    assert_int_equal(model_open(path, &o, &m, &err), ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "remove --weights-memory"));
    device_close(d);
}

static int set_up(void **state)
{
    tempdir_make_on_disk(dir, "packed");
    peer_threads_use();
    return 0;
}

static int tear_down(void **state)
{
    tempdir_remove(dir);
    return 0;
}

int main(void)
{
    static char *const families[] = {
        FAMILIES "cohere2",      FAMILIES "deepseek-v2",   FAMILIES "falcon-11b",
        FAMILIES "falcon-40b",   FAMILIES "falcon-7b",     FAMILIES "falcon-rw",
        FAMILIES "gemma",        FAMILIES "gemma4-layers", FAMILIES "gemma4-moe",
        FAMILIES "glm4-lite",    FAMILIES "glm4-moe",      FAMILIES "granite-h",
        FAMILIES "lfm2",         FAMILIES "llama",         FAMILIES "llama3",
        FAMILIES "ministral3",   FAMILIES "mistral",       FAMILIES "opt",
        FAMILIES "phi",          FAMILIES "phi3",          FAMILIES "qwen2",
        FAMILIES "qwen2-window", FAMILIES "qwen3",         FAMILIES "qwen3-next",
        FAMILIES "qwen3.5"};
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        unit_case(families[i], a_packed_family_is_the_model, families[i]);
    return unit_run(set_up, tear_down);
}
