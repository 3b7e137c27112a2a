/* test_sample.c - compares sampling by ops.sample, with the random numbers of model/sample.h, with
 * a naive implementation in double: the set of possible tokens and their frequencies. tests/tensor
 * checks that all backends agree. */
#include "tests/unit.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "model/sample.h"
#include "tensor/ops.h"

enum { N = 50 };

static struct device *device;
static struct stream *stream;

static int setup(void **state)
{
    assert_int_equal(device_open("cpu", NULL, NULL, &device, NULL), 0);
    assert_int_equal(stream_create(device, STREAM_COMPUTE, &stream, NULL), 0);
    return 0;
}

static int teardown(void **state)
{
    stream_destroy(stream);
    device_close(device);
    return 0;
}

static int32_t sample_token(const float *logits, int n, const struct sample_opts *o,
                            int64_t position)
{
    struct sample_row row = sample_row_of(o, position);
    struct mat m = mat_of((void *)(uintptr_t)logits, DTYPE_F32, 1, n);
    int32_t id = INT32_MIN;
    assert_int_equal(device->ops->sample(stream, &id, m, &row), 0);
    return id;
}

static float bell(struct rng *r)
{
    double s = -6;
    for (int i = 0; i < 12; i++)
        s += rng_unit(r);
    return (float)s;
}

/* --- the naive judge: sorts everything, divides everything ------------------------------------ */

struct cand {
    int id;
    double logit, p;
};

static int descending(const void *a, const void *b)
{
    const struct cand *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id - y->id;
}

/* Sets prob[id] to the probability with which ops.sample must choose id. */
static void judge(const float *logits, int n, const struct sample_opts *o, double *prob)
{
    struct cand *c = calloc((size_t)n, sizeof *c);
    int m = 0;
    double total = 0, sum = 0;
    for (int i = 0; i < n; i++)
        if (!isnan(logits[i]))
            c[m++] = (struct cand){i, (double)logits[i], 0};
    qsort(c, (size_t)m, sizeof *c, descending);
    for (int i = 0; i < m; i++)
        c[i].p = exp((c[i].logit - c[0].logit) / (double)o->temperature);
    if (o->top_k > 0 && o->top_k < m)
        m = o->top_k;
    for (int i = 0; i < m; i++)
        total += c[i].p;
    int kept = 0;
    while (kept < m && (kept == 0 || sum < (double)o->top_p * total || o->top_p >= 1.0f))
        sum += c[kept++].p;
    total = 0;
    for (int i = 0; i < kept; i++)
        total += c[i].p >= (double)o->min_p ? c[i].p : 0;
    for (int i = 0; i < n; i++)
        prob[i] = 0;
    for (int i = 0; i < kept; i++)
        prob[c[i].id] = c[i].p >= (double)o->min_p ? c[i].p / total : 0;
    free(c);
}

/* Draws `draws` tokens. All must be in the judge's set, and their frequencies within 5 standard
 * deviations of its probabilities. */
static void check_distribution(const float *logits, int n, const struct sample_opts *o,
                               int draws)
{
    double prob[4096];
    int count[4096] = {0};
    judge(logits, n, o, prob);
    for (int i = 0; i < draws; i++) {
        int32_t id = sample_token(logits, n, o, i);
        assert_in_range(id, 0, n - 1);
        count[id]++;
    }
    for (int i = 0; i < n; i++) {
        if (prob[i] == 0.0)
            assert_int_equal(count[i], 0);
        double sigma = sqrt(draws * prob[i] * (1 - prob[i]));
        assert_true(fabs(count[i] - draws * prob[i]) <= 5 * sigma + 1);
    }
}

TEST(test_greedy)
{
    struct sample_opts o = {.temperature = 0, .top_p = 1};
    const float a[] = {1, 3, 3, 2};
    assert_int_equal(sample_token(a, 4, &o, 0), 1);
    const float b[] = {NAN, -INFINITY, -5, NAN};
    assert_int_equal(sample_token(b, 4, &o, 0), 2);
    const float c[] = {NAN, NAN};
    assert_int_equal(sample_token(c, 2, &o, 0), SAMPLE_NO_TOKEN);
    const float d[] = {NAN, -INFINITY, -INFINITY};
    assert_int_equal(sample_token(d, 3, &o, 0), 1);
}

TEST(test_hostile_logits)
{
    struct sample_opts o = {
        .temperature = 1, .top_p = 0.9f, .top_k = 3, .min_p = 0.1f, .seed = 7};
    const float a[] = {0, INFINITY, NAN, INFINITY};
    assert_int_equal(sample_token(a, 4, &o, 5), 1);
    const float b[] = {NAN, -INFINITY, 0, NAN};
    const float c[] = {NAN, NAN, NAN, NAN};
    const float d[] = {-INFINITY, -INFINITY, NAN};
    for (int64_t pos = 0; pos < 100; pos++) {
        assert_int_equal(sample_token(b, 4, &o, pos), 2);
        assert_int_equal(sample_token(c, 4, &o, pos), SAMPLE_NO_TOKEN);
        assert_int_equal(sample_token(d, 3, &o, pos), 0);
    }
    o = (struct sample_opts){.temperature = NAN, .top_p = 1};
    assert_int_equal(sample_token(b, 4, &o, 0), 2);
}

TEST(test_distribution)
{
    static const struct sample_opts all[] = {
        {.temperature = 1, .top_p = 1, .seed = 1},
        {.temperature = 0.7f, .top_p = 1, .seed = 2},
        {.temperature = 1.5f, .top_p = 0.8f, .seed = 3},
        {.temperature = 1, .top_p = 1, .top_k = 5, .seed = 4},
        {.temperature = 1, .top_p = 1, .min_p = 0.2f, .seed = 5},
        {.temperature = 1.2f, .top_p = 0.7f, .top_k = 12, .min_p = 0.05f, .seed = 6},
        {.temperature = 2, .top_p = 0.95f, .top_k = 1000, .seed = 7},
        {.temperature = 1, .top_p = 1, .top_k = 1, .seed = 8},
        {.temperature = 1, .top_p = 1e-6f, .seed = 9},
    };
    struct rng r = {42};
    float logits[N];
    for (int i = 0; i < N; i++)
        logits[i] = 2 * bell(&r);
    logits[7] = logits[9] = logits[11]; /* equal logits */
    logits[20] = NAN;
    logits[21] = -INFINITY;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        check_distribution(logits, N, &all[i], 40000);
}

/* In many small random cases the chosen token is in the judge's set, for all options. */
TEST(test_support)
{
    struct rng r = {9};
    for (int round = 0; round < 3000; round++) {
        int n = 1 + (int)rng_below(&r, 300);
        float logits[300];
        double prob[300];
        /* few distinct values, so that equal logits are common */
        for (int i = 0; i < n; i++)
            logits[i] = rintf(bell(&r) * 4) / 4;
        struct sample_opts o = {
            .temperature = 0.1f + (float)rng_unit(&r) * 3,
            .top_p = rng_below(&r, 2) ? 1 : 0.05f + (float)rng_unit(&r) * 0.9f,
            .min_p = rng_below(&r, 2) ? 0 : (float)rng_unit(&r) * 0.5f,
            .top_k = rng_below(&r, 2) ? 0 : 1 + (int)rng_below(&r, 20),
            .seed = rng_u64(&r)};
        judge(logits, n, &o, prob);
        int32_t id = sample_token(logits, n, &o, (int64_t)rng_below(&r, 1000000));
        assert_in_range(id, 0, n - 1);
        assert_true(prob[id] > 0);
    }
}

/* Seed and position decide the token: the same pair gives the same token, other pairs give others,
 * and neighbouring seeds show no pattern. */
TEST(test_seed_and_position)
{
    float logits[N];
    for (int i = 0; i < N; i++)
        logits[i] = 0;
    int same_seed = 0, same_position = 0, shifted = 0;
    for (int64_t pos = 0; pos < 2000; pos++) {
        struct sample_opts a = {.temperature = 1, .top_p = 1, .seed = 11}, b = a;
        b.seed = 12;
        int32_t t = sample_token(logits, N, &a, pos);
        assert_int_equal(t, sample_token(logits, N, &a, pos));
        same_seed += t == sample_token(logits, N, &a, pos + 1);
        same_position += t == sample_token(logits, N, &b, pos);
        shifted += t == sample_token(logits, N, &b, pos + 1);
    }
    /* 2000 draws from 50 tokens: 40 equal ones expected, standard deviation 6.3 */
    assert_in_range(same_seed, 8, 72);
    assert_in_range(same_position, 8, 72);
    assert_in_range(shifted, 8, 72);
}

/* Compares with fixed results: any change of them changes every user's seeded output. */
TEST(test_pinned)
{
    float logits[N];
    for (int i = 0; i < N; i++)
        logits[i] = (float)i / 16;
    struct sample_opts o = {.temperature = 1, .top_p = 0.9f, .top_k = 40, .seed = 1234};
    char line[256] = "";
    for (int i = 0; i < 8; i++)
        snprintf(line + strlen(line), sizeof line - strlen(line), "%d ",
                 (int)sample_token(logits, N, &o, i));
    assert_string_equal(line, "39 41 41 35 29 39 46 31 ");
}

int main(void)
{
    return unit_run(setup, teardown);
}
