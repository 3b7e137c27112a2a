/* test_stories.c - a real trained model says exactly what its fp64 reference says.
 *
 * Needs the models under ../shared (or $HCACHE_SHARED); skipped where they are absent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "format/json.h"
#include "talk.h"

enum { VOCAB = 512 };

static char dir[512];

static bool find_model(const char *name)
{
    const char *shared = getenv("HCACHE_SHARED");
    snprintf(dir, sizeof dir, "%s/models/%s", shared != NULL ? shared : "../shared", name);
    return access(dir, R_OK) == 0;
}

static struct json *golden(void)
{
    char path[600], *text;
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

/* |a - b| <= 1e-4 of the largest logit. */
static void check_logits(const float *have, const struct json *want)
{
    double largest = 0, worst = 0;
    assert_int_equal(json_count(want), VOCAB);
    for (size_t i = 0; i < VOCAB; i++) {
        double v;
        assert_true(json_real_of(json_at(want, i), &v));
        largest = fmax(largest, fabs(v));
        worst = fmax(worst, fabs(v - (double)have[i]));
    }
    if (!(worst <= 1e-4 * largest))
        fail_msg("logits are off by %g, the largest is %g", worst, largest);
}

static void check_case(struct talk *t, const struct json *c)
{
    static float logits[TALK_MAX_ROWS * VOCAB];
    int32_t prompt[TALK_MAX_ROWS], want[256];
    int n_prompt = ids_of(json_member(c, "prompt_ids"), prompt, TALK_MAX_ROWS);
    int n_want = ids_of(json_member(c, "greedy_ids"), want, 256);
    talk_forget(t);
    talk_feed(t, prompt, n_prompt, logits);
    const float *last = logits + (size_t)(n_prompt - 1) * VOCAB;
    check_logits(last, json_member(c, "last_prompt_logits_f64"));
    for (int i = 0; i < n_want; i++) {
        int32_t id = talk_best(t, last);
        if (id != want[i])
            fail_msg("token %d is %d, the reference says %d", i, id, want[i]);
        talk_feed(t, &id, 1, logits);
        last = logits;
    }
    /* Continuations shorter than 200 tokens end where the model ends its text. */
    if (n_want < 200)
        assert_int_equal(talk_best(t, last), 1);
}

static void check_model(const char *name, const char *device, int n_threads)
{
    if (!find_model(name)) {
        print_message("skipped: %s is not there (set HCACHE_SHARED)\n", dir);
        skip();
    }
    struct talk t;
    talk_open(&t, dir, device, "f32", n_threads);
    struct json *root = golden();
    const struct json *cases = json_member(root, "cases");
    assert_in_range(json_count(cases), 1, 100);
    for (size_t i = 0; i < json_count(cases); i++)
        check_case(&t, json_at(cases, i));
    json_free(root);
    talk_close(&t);
}

static void test_gqa_ref(void **state)
{
    (void)state;
    check_model("stories260K", "ref", 1);
}

static void test_mha_ref(void **state)
{
    (void)state;
    check_model("stories260K-mha", "ref", 2);
}

static void test_gqa_cpu(void **state)
{
    (void)state;
    check_model("stories260K", "cpu", 2);
}

static void test_mha_cpu(void **state)
{
    (void)state;
    check_model("stories260K-mha", "cpu", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gqa_ref),
        cmocka_unit_test(test_mha_ref),
        cmocka_unit_test(test_gqa_cpu),
        cmocka_unit_test(test_mha_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
