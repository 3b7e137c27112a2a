/* test_families.c - every family gives the reference library's logits.
 *
 * tests/model/golden/families/NAME holds a tiny random checkpoint that the library saved, and the
 * library's float64 results for it (tools/golden/make_families.py). For each state type:
 *   f32   logits of the prefill and of 8 decode steps within 1e-4 of the largest; greedy ids equal
 *   bf16  the error against float64 is no larger than that of the library's own bf16 run
 *   f16   the same bound as bf16 (f16 has 11 bits of mantissa, bf16 has 8)
 *
 * Two promises hold bit for bit in every type: logits do not depend on how the prompt is cut and on
 * the number of threads, and K and V projected from a layer's saved input are those of the forward
 * pass. */
#include "tests/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "solo.h"

#define FAMILIES "tests/model/golden/families/"

enum { VOCAB = 128, N_PROMPT = 70, N_DECODE = 8, MAX_POSITIONS = 16 };
enum { N_ROWS = N_PROMPT + N_DECODE };

struct expected {
    int32_t prompt[N_PROMPT], decode[N_DECODE];
    int n_positions;
    int32_t positions[MAX_POSITIONS];
    /* the logits at `positions`, followed by those of the decode steps */
    double logits[MAX_POSITIONS + N_DECODE][VOCAB];
    double bf16_rms, bf16_max;
};

/* --- reading expected.json -------------------------------------------------------------------- */

static int read_ids(const struct json *root, const char *key, int32_t *out, int max)
{
    const struct json *a = json_member(root, key);
    int n = (int)json_count(a);
    assert_in_range(n, 1, max);
    for (int i = 0; i < n; i++) {
        int64_t v = -1;
        assert_true(json_int_of(json_at(a, (size_t)i), &v));
        out[i] = (int32_t)v;
    }
    return n;
}

static void read_rows(const struct json *root, const char *key, int n, double (*out)[VOCAB])
{
    const struct json *rows = json_member(root, key);
    assert_int_equal(json_count(rows), n);
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < VOCAB; k++)
            assert_true(json_real_of(json_at(json_at(rows, (size_t)i), k), &out[i][k]));
}

static void read_expected(struct expected *x, const char *family)
{
    char path[256], *text;
    size_t n;
    struct err e;
    struct json *root;
    snprintf(path, sizeof path, FAMILIES "%s/expected.json", family);
    if (file_read(path, (size_t)1 << 24, &text, &n, &e) != 0)
        fail_msg("%s", e.msg);
    assert_int_equal(json_parse(&root, text, n, path, &e), 0);
    assert_int_equal(read_ids(root, "prompt_ids", x->prompt, N_PROMPT), N_PROMPT);
    assert_int_equal(read_ids(root, "decode_ids", x->decode, N_DECODE), N_DECODE);
    x->n_positions = read_ids(root, "positions", x->positions, MAX_POSITIONS);
    read_rows(root, "logits", x->n_positions, x->logits);
    read_rows(root, "decode_logits", N_DECODE, x->logits + x->n_positions);
    assert_int_equal(json_get_real(root, "bf16_rms", &x->bf16_rms, &e), 0);
    assert_int_equal(json_get_real(root, "bf16_max", &x->bf16_max, &e), 0);
    json_free(root);
    free(text);
}

/* --- running ---------------------------------------------------------------------------------- */

struct error {
    double rms, max; /* relative to the largest logit */
};

/* Prefills in pieces of `piece` ids, then feeds the expected tokens one by one, so that a different
 * choice does not change the rest. */
static struct error run(struct solo *t, const struct expected *x, int piece, int *n_wrong,
                        float logits[N_ROWS * VOCAB])
{
    solo_forget(t);
    for (int at = 0; at < N_PROMPT; at += piece)
        solo_feed(t, x->prompt + at, at + piece < N_PROMPT ? piece : N_PROMPT - at,
                  logits + at * VOCAB);
    *n_wrong = 0;
    for (int i = 0; i < N_DECODE; i++) {
        float *last = logits + (N_PROMPT + i - 1) * VOCAB;
        *n_wrong += solo_best(t, last) != x->decode[i];
        solo_feed(t, &x->decode[i], 1, last + VOCAB);
    }
    double squares = 0, worst = 0, largest = 0, flipped = 0, flipped_squares = 0;
    int n_rows = x->n_positions + N_DECODE;
    bool routes = t->m->cfg.n_experts > 0 && t->m->dtype != DTYPE_F32;
    for (int r = 0; r < n_rows; r++) {
        int row = r < x->n_positions ? x->positions[r] : N_PROMPT + r - x->n_positions;
        double row_worst = 0, row_squares = 0;
        for (int k = 0; k < VOCAB; k++) {
            double d = fabs((double)logits[row * VOCAB + k] - x->logits[r][k]);
            row_squares += d * d;
            row_worst = fmax(row_worst, d);
            largest = fmax(largest, fabs(x->logits[r][k]));
        }
        /* Rounding may decide a near tie of a router, so the worst row does not count. */
        if (routes && row_worst > flipped) {
            worst = fmax(worst, flipped);
            squares += flipped_squares;
            flipped = row_worst;
            flipped_squares = row_squares;
            continue;
        }
        squares += row_squares;
        worst = fmax(worst, row_worst);
    }
    return (struct error){sqrt(squares / (n_rows * VOCAB)) / largest, worst / largest};
}

/* --- bits ------------------------------------------------------------------------------------- */

static void check_cuts(const char *family, struct solo *t, const struct expected *x,
                       const float *want)
{
    static float logits[N_ROWS * VOCAB];
    static const int pieces[] = {1, 33, 64};
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        int n_wrong;
        run(t, x, pieces[i], &n_wrong, logits);
        if (memcmp(logits, want, sizeof logits) != 0)
            fail_msg("%s on %s in %s: other bits where the prompt is cut in pieces of %d",
                     family, t->dev->name, dtype_name(t->m->dtype), pieces[i]);
    }
}

enum { MAX_LAYERS = 4, MAX_WIDTH = 256 };

struct saved {
    uint8_t hidden[MAX_LAYERS][N_PROMPT * MAX_WIDTH * 4];
    uint8_t kv[MAX_LAYERS][N_PROMPT * MAX_WIDTH * 4];
};

static size_t mat_bytes(struct mat a)
{
    assert_true(a.ld == a.cols && a.cols <= MAX_WIDTH);
    return (size_t)(a.rows * a.cols) * dtype_bytes(a.dtype);
}

static int save_layer(void *arg, int l, struct mat hidden, struct mat kv_rows)
{
    struct saved *s = arg;
    assert_in_range(l, 0, MAX_LAYERS - 1);
    memcpy(s->hidden[l], hidden.data, mat_bytes(hidden));
    memcpy(s->kv[l], kv_rows.data, mat_bytes(kv_rows));
    return 0;
}

/* Checks that a recurrent layer's inputs bring its state to where the pass has brought it, in
 * pieces of any size. */
static void check_replay(const char *family, struct solo *t, int l, struct mat hidden)
{
    static uint8_t want[1 << 16], *have;
    static const int pieces[] = {1, 29, N_PROMPT};
    struct delta_rule d = model_delta_rule(&t->m->cfg, NULL);
    size_t bytes = delta_state_bytes(&d);
    have = t->layers[l].blocks;
    assert_in_range(bytes, 1, sizeof want);
    memcpy(want, have, bytes);
    for (int i = 0; i < 3; i++) {
        memset(have, 0xff, bytes);
        for (int at = 0, n; at < N_PROMPT; at += n) {
            int32_t pos[N_PROMPT];
            n = N_PROMPT - at < pieces[i] ? N_PROMPT - at : pieces[i];
            int32_t seq_row[2] = {0, n};
            for (int k = 0; k < n; k++)
                pos[k] = at + k;
            struct ragged r = {.n_rows = n, .n_seqs = 1, .pos = pos, .seq_row = seq_row};
            assert_int_equal(model_replay(t->m, t->work, t->s, l, mat_rows(hidden, at, n),
                                          (struct mat){0}, &t->layers[l], &r),
                             0);
        }
        assert_int_equal(stream_sync(t->s), 0);
        /* the rest of the header is unused */
        if (memcmp(have, want, sizeof(int64_t)) != 0 ||
            memcmp(have + DELTA_HEADER, want + DELTA_HEADER, bytes - DELTA_HEADER) != 0)
            fail_msg("%s on %s in %s: layer %d replays another state in pieces of %d",
                     family, t->dev->name, dtype_name(t->m->dtype), l, pieces[i]);
    }
}

/* Checks the projection that restores K and V from hidden states, over all rows and over a part of
 * them. */
static void check_projection(const char *family, struct solo *t, const struct expected *x)
{
    static struct saved saved;
    static uint8_t kv[N_PROMPT * MAX_WIDTH * 4];
    enum { FIRST = 5, PART = 29 };
    solo_forget(t);
    solo_feed_tapped(t, x->prompt, N_PROMPT, NULL,
                     &(struct model_tap){.layer = save_layer, .arg = &saved});
    int64_t d = t->m->cfg.n_embd;
    for (int l = 0; l < config_n_keeping(&t->m->cfg); l++) {
        int64_t width = config_kv_width(&t->m->cfg, l);
        struct mat h = mat_of(saved.hidden[l], t->m->dtype, N_PROMPT, d);
        if (config_is_recurrent(&t->m->cfg, l)) {
            check_replay(family, t, l, h);
            continue;
        }
        struct mat want = mat_of(saved.kv[l], t->m->dtype, N_PROMPT, width);
        struct mat have = mat_of(kv, t->m->dtype, N_PROMPT, width);
        for (int part = 0; part < 2; part++) {
            int64_t first = part ? FIRST : 0, n = part ? PART : N_PROMPT;
            struct mat w = mat_rows(want, first, n), k = mat_rows(have, first, n);
            memset(kv, 0xff, sizeof kv);
            assert_int_equal(
                model_kv_project(t->m, t->work, t->s, l, mat_rows(h, first, n), k), 0);
            assert_int_equal(stream_sync(t->s), 0);
            if (memcmp(k.data, w.data, mat_bytes(w)) != 0)
                fail_msg("%s on %s in %s: layer %d restores other K and V from its input",
                         family, t->dev->name, dtype_name(t->m->dtype), l);
        }
    }
}

/* --- the families ----------------------------------------------------------------------------- */

static void check_error(const char *family, const struct solo *t, const struct expected *x,
                        struct error e, int n_wrong)
{
    const char *device = t->dev->name, *dtype = dtype_name(t->m->dtype);
    if (t->m->dtype == DTYPE_F32) {
        if (!(e.max <= 1e-4) || n_wrong > 0)
            fail_msg(
                "%s on %s: f32 logits are off by %.3g of the largest (rms %.3g); %d of %d "
                "greedy ids differ",
                family, device, e.max, e.rms, n_wrong, N_DECODE);
        return;
    }
    print_message("%-13s %s %-4s rms %.2e max %.2e; the library in bf16: %.2e %.2e\n",
                  family, device, dtype, e.rms, e.max, x->bf16_rms, x->bf16_max);
    if (!(e.rms <= x->bf16_rms) || !(e.max <= x->bf16_max))
        fail_msg(
            "%s on %s: the error in %s is rms %.3g, max %.3g; the library's own in bf16 "
            "%.3g, %.3g",
            family, device, dtype, e.rms, e.max, x->bf16_rms, x->bf16_max);
}

/* Opens a folder with its exact numbers: products with blocks would round activations to 8 bits. */
static void open_exactly(struct solo *t, const char *source, const char *device,
                         const char *dtype, int n_threads)
{
    bool has_blocks = strstr(source, "mxfp4") != NULL;
    const struct model_opts o = {.dtype = dtype, .weights = has_blocks ? "f32" : NULL};
    solo_open_as(t, source, device, 1, n_threads, &o);
}

static void check_run(const char *family, const char *device, const char *dtype,
                      const struct expected *x)
{
    static float logits[N_ROWS * VOCAB], again[N_ROWS * VOCAB];
    struct solo t;
    char source[256];
    int n_wrong;
    snprintf(source, sizeof source, FAMILIES "%s", family);
    open_exactly(&t, source, device, dtype, 2);
    struct error e = run(&t, x, N_PROMPT, &n_wrong, logits);
    check_error(family, &t, x, e, n_wrong);
    check_projection(family, &t, x);
    if (strcmp(device, "ref") == 0) { /* it computes each row by itself, in one thread */
        solo_close(&t);
        return;
    }
    check_cuts(family, &t, x, logits);
    solo_close(&t);

    open_exactly(&t, source, device, dtype, 1);
    run(&t, x, N_PROMPT, &n_wrong, again);
    solo_close(&t);
    if (memcmp(logits, again, sizeof logits) != 0)
        fail_msg("%s on %s in %s: other bits with 1 thread than with 2", family, device,
                 dtype);
}

static void test_family(void **state)
{
    const char *family = *state;
    static const char *const devices[] = {"ref", "cpu"}, *const dtypes[] = {"f32", "bf16",
                                                                            "f16"};
    struct expected x;
    read_expected(&x, family);
    /* a state has no f16 */
    int n_dtypes = strstr(family, "qwen3.5") != NULL || strstr(family, "next") != NULL ||
                           strstr(family, "lfm2") != NULL ||
                           strstr(family, "granite-h") != NULL
                       ? 2
                       : 3;
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < n_dtypes; k++)
            check_run(family, devices[i], dtypes[k], &x);
}

/* A residual beyond 65504 is detected in f16, and is fine in the wider types. */
TEST(test_f16_overflow)
{
    static const char *const dtypes[] = {"f16", "bf16", "f32"};
    struct expected x;
    read_expected(&x, "llama");
    for (int i = 0; i < 3; i++) {
        struct solo t;
        solo_open(&t, FAMILIES "llama", "cpu", dtypes[i], 1);
        /* the MLP multiplies two functions of its input, so its output grows with the square of
         * this norm */
        float *norm = (float *)t.m->w.layers[0].norm2_w;
        for (int k = 0; k < t.m->cfg.n_embd; k++)
            norm[k] *= 3000;
        int rc = solo_try(&t, x.prompt, N_PROMPT, NULL, NULL);
        solo_close(&t);
        assert_int_equal(rc, i == 0 ? MODEL_E_OVERFLOW : 0);
    }
}

int main(void)
{
    static char *const names[] = {
        "llama",          "llama3",        "mistral",    "qwen2",
        "qwen2-window",   "qwen3",         "opt",        "phi",
        "phi3",           "gemma",         "falcon-7b",  "falcon-40b",
        "falcon-11b",     "falcon-rw",     "qwen3-moe",  "mixtral",
        "gemma3",         "olmo2",         "granite",    "gemma3-vision",
        "qwen3-yarn",     "phi3-long",     "phi3-short", "olmo3",
        "gpt-oss",        "gpt-oss-mxfp4", "gemma2",     "qwen3.5",
        "qwen3.5-vision", "qwen3.5-moe",   "qwen3-next", "cohere2",
        "ministral3",     "mistral3",      "glm4-moe",   "glm4-moe-groups",
        "gemma4",         "gemma4-layers", "gemma4-moe", "lfm2",
        "lfm2-untied",    "deepseek-v2",   "glm4-lite",  "granite-h-dense",
        "granite-h"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unit_case(names[i], test_family, names[i]);
    return unit_run(NULL, NULL);
}
