/* test_stories.c - a trained model gives exactly the texts of an independent reference:
 * models/demo, and if ../shared has them two smaller ones, with and without grouped heads. */
#include "tests/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/json.h"
#include "solo.h"
#include "tests/base/shareddata.h"

enum { MAX_VOCAB = 3072, MAX_ANSWER = 256, EOS = 1 };

static struct json *golden(const char *dir)
{
    char path[SHARED_PATH_BYTES + 16], *text;
    size_t n;
    struct err e;
    struct json *root;
    snprintf(path, sizeof path, "%s/golden.json", dir);
    assert_int_equal(file_read(path, (size_t)1 << 26, &text, &n, &e), 0);
    assert_int_equal(json_parse(&root, text, n, path, &e), 0);
    free(text);
    return root;
}

static int ids_of(const struct json *a, int32_t *out, int max)
{
    int n = (int)json_count(a);
    assert_in_range(n, 1, max);
    for (int i = 0; i < n; i++) {
        int64_t v = -1;
        assert_true(json_int_of(json_at(a, (size_t)i), &v));
        out[i] = (int32_t)v;
    }
    return n;
}

/* Checks that the logits differ by at most 1e-4 of the largest logit. */
static void check_logits(const struct solo *t, const float *have, const struct json *want)
{
    double largest = 0, worst = 0;
    size_t n_vocab = (size_t)t->m->cfg.vocab_size;
    assert_int_equal(json_count(want), n_vocab);
    for (size_t i = 0; i < n_vocab; i++) {
        double v;
        assert_true(json_real_of(json_at(want, i), &v));
        largest = fmax(largest, fabs(v));
        worst = fmax(worst, fabs(v - (double)have[i]));
    }
    if (!(worst <= 1e-4 * largest))
        fail_msg("logits are off by %g, the largest is %g", worst, largest);
}

/* Feeds the prompt in pieces. Returns the logits of its last token. */
static const float *feed(struct solo *t, const int32_t *prompt, int n)
{
    static float logits[SOLO_MAX_ROWS * MAX_VOCAB];
    int rows = 0;
    assert_in_range(t->m->cfg.vocab_size, 1, MAX_VOCAB);
    for (int at = 0; at < n; at += rows) {
        rows = n - at < SOLO_MAX_ROWS ? n - at : SOLO_MAX_ROWS;
        solo_feed(t, prompt + at, rows, logits);
    }
    return logits + (size_t)(rows - 1) * (size_t)t->m->cfg.vocab_size;
}

/* Checks the case's text. Returns whether the case also has logits, which are then compared. */
static bool check_case(struct solo *t, const struct json *c)
{
    int32_t prompt[SOLO_MAX_TOKENS], want[MAX_ANSWER];
    int n_prompt = ids_of(json_member(c, "prompt_ids"), prompt, SOLO_MAX_TOKENS);
    int n_want = ids_of(json_member(c, "greedy_ids"), want, MAX_ANSWER);
    solo_forget(t);
    const float *last = feed(t, prompt, n_prompt);
    const struct json *logits = json_member(c, "last_prompt_logits_f64");
    if (logits == NULL)
        logits = json_member(c, "last_prompt_logits_f32");
    if (logits != NULL)
        check_logits(t, last, logits);
    for (int i = 0; i < n_want; i++) {
        int32_t id = solo_best(t, last);
        if (id != want[i])
            fail_msg("token %d is %d, the reference says %d", i, id, want[i]);
        last = feed(t, &id, 1);
    }
    /* A recorded continuation of fewer than 200 tokens ends because the model ended its text. */
    if (n_want < 200 && want[n_want - 1] != EOS)
        assert_int_equal(solo_best(t, last), EOS);
    return logits != NULL;
}

/* Checks every case whose prompt has at most max_prompt tokens; at least n_logits of them have
 * logits to compare. */
static void check_model(const char *dir, const char *device, int n_threads,
                        size_t max_prompt, int n_logits)
{
    struct solo t;
    solo_open(&t, dir, device, "f32", n_threads);
    struct json *root = golden(dir);
    const struct json *cases = json_member(root, "cases");
    assert_in_range(json_count(cases), 1, 100);
    int n_done = 0;
    for (size_t i = 0; i < json_count(cases); i++) {
        const struct json *c = json_at(cases, i);
        if (json_count(json_member(c, "prompt_ids")) > max_prompt)
            continue;
        n_logits -= check_case(&t, c);
        n_done++;
    }
    assert_true(n_done > 0 && n_logits <= 0);
    json_free(root);
    solo_close(&t);
}

static void check_shared(const char *name, const char *device, int n_threads)
{
    char dir[SHARED_PATH_BYTES];
    assert_true(shared_data(name, dir));
    check_model(dir, device, n_threads, 128, 1);
}

TEST(test_demo_ref)
{
    check_model("models/demo", "ref", 2, 400, 0); /* ref is too slow for longer prompts */
}

TEST(test_demo_cpu)
{
    check_model("models/demo", "cpu", 2, 600, 1);
}

TEST_OF_SHARED(test_gqa_ref, "models/stories260K")
{
    check_shared("models/stories260K", "ref", 1);
}

TEST_OF_SHARED(test_mha_ref, "models/stories260K-mha")
{
    check_shared("models/stories260K-mha", "ref", 2);
}

TEST_OF_SHARED(test_gqa_cpu, "models/stories260K")
{
    check_shared("models/stories260K", "cpu", 2);
}

TEST_OF_SHARED(test_mha_cpu, "models/stories260K-mha")
{
    check_shared("models/stories260K-mha", "cpu", 1);
}
