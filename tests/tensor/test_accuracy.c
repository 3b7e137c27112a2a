/* test_accuracy.c - compares the reference with an independent computation in f64: plain formulas,
 * no blocks, no online softmax. This also judges all backends that equal the reference. */
#include "rig.h"

#include <math.h>
#include <stdlib.h>

#include "cases.h"

/* the reference, and the CPU's portable kernels, which all other kernels of the CPU equal */
static struct lab lab[2];

static int setup(void **state)
{
    lab[0] = lab_ref();
    lab[1] = lab_cpu("portable", 1);
    return 0;
}

static int teardown(void **state)
{
    lab_close(&lab[0]);
    lab_close(&lab[1]);
    return 0;
}

/* The bound is the rounding of partial sums of 256 terms: sqrt(256) half units of a sum of size 10.
 */
TEST(test_matmul)
{
    enum { M = 3, N = 20, K = 4096 };
    struct mat a = mat_random(DTYPE_F32, M, K, 1), c = mat_alloc(DTYPE_F32, M, N);
    float *rows = random_elems(DTYPE_F32, N * K, 2);
    for (int l = 0; l < 2; l++) {
        struct weight w = weight_make(&lab[l], DTYPE_F32, N, K, rows);
        lab[l].ops->matmul(lab[l].stream, c, a, &w, NULL);
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++) {
                double want = 0;
                for (int k = 0; k < K; k++)
                    want += (double)((float *)a.data)[i * K + k] * (double)rows[j * K + k];
                assert_true(fabs(((float *)c.data)[i * N + j] - want) < 2e-5);
            }
        weight_free(&lab[l], &w);
    }
    free(rows);
    mat_free(&a);
    mat_free(&c);
}

TEST(test_norms)
{
    enum { D = 1000 };
    struct mat x = mat_random(DTYPE_F32, 1, D, 3), out = mat_alloc(DTYPE_F32, 1, D);
    const float *v = x.data, *y = out.data;
    float *w = random_elems(DTYPE_F32, D, 4), *b = random_elems(DTYPE_F32, D, 5);
    double sum = 0, squares = 0, spread = 0;
    for (int i = 0; i < D; i++) {
        sum += (double)v[i];
        squares += (double)v[i] * (double)v[i];
    }
    for (int i = 0; i < D; i++)
        spread += ((double)v[i] - sum / D) * ((double)v[i] - sum / D);
    for (int l = 0; l < 2; l++) {
        lab[l].ops->rmsnorm(lab[l].stream, out, x, w, 1e-5f);
        for (int i = 0; i < D; i++)
            assert_true(fabs((double)y[i] - (double)v[i] / sqrt(squares / D + 1e-5) *
                                                (double)w[i]) < 1e-6);
        lab[l].ops->layernorm(lab[l].stream, out, x, w, b, 1e-5f);
        for (int i = 0; i < D; i++)
            assert_true(fabs((double)y[i] - (((double)v[i] - sum / D) /
                                                 sqrt(spread / D + 1e-5) * (double)w[i] +
                                             (double)b[i])) < 1e-6);
    }
    free(w);
    free(b);
    mat_free(&x);
    mat_free(&out);
}

/* Checks the exponential by way of silu, x / (1 + exp(-x)), over the whole range and at its
 * ends. */
TEST(test_exponential)
{
    enum { N = 40000 };
    struct mat x = mat_alloc(DTYPE_F32, 1, N);
    for (int l = 0; l < 2; l++) {
        float *v = x.data;
        for (int i = 0; i < N; i++)
            v[i] = -80.0f + 160.0f * (float)i / N;
        lab[l].ops->act(lab[l].stream, x, ACTIVATION_SILU);
        for (int i = 0; i < N; i++) {
            double in = (double)(-80.0f + 160.0f * (float)i / N),
                   want = in / (1 + exp(-in));
            assert_true(fabs((double)v[i] - want) <= 4e-7 * fabs(want) + 1e-37);
        }
        v[0] = 1000, v[1] = -1000, v[2] = 0, v[3] = NAN;
        lab[l].ops->act(lab[l].stream, mat_cols(x, 0, 4), ACTIVATION_SILU);
        assert_true(v[0] == 1000 && v[1] <= 0 && v[1] > -1e-30f && v[2] == 0 &&
                    isnan(v[3]));
    }
    mat_free(&x);
}

struct exact {
    const struct attention_case *ac;
    struct mat q, kv; /* kv: rows from position 0 on */
    const struct attention_rule *rule;
};

static double exact_output(const struct exact *e, int row, int pos, int head, int dim,
                           double scale)
{
    int window = e->ac->window, end = e->rule->both_ways ? (int)e->kv.rows : pos + 1;
    int d_head = e->ac->d_head, kv_head = head / (e->ac->heads / e->ac->n_kv);
    double cap = (double)e->rule->cap;
    double total = 0, out = 0;
    for (int p = 0; p < end; p++) {
        double dot = 0;
        if (window > 0 && abs(p - pos) >= window)
            continue;
        for (int d = 0; d < d_head; d++)
            dot += (double)elem_get(e->q.data, DTYPE_F32,
                                    row * e->q.cols + head * d_head + d) *
                   (double)elem_get(e->kv.data, e->kv.dtype,
                                    p * e->kv.cols + kv_head * d_head + d);
        double score = cap > 0 ? cap * tanh(dot * scale / cap) : dot * scale;
        double weight = exp(score);
        total += weight;
        out += weight *
               (double)elem_get(e->kv.data, e->kv.dtype,
                                p * e->kv.cols + (e->ac->n_kv + kv_head) * d_head + dim);
    }
    if (e->rule->sinks != NULL)
        total += exp((double)e->rule->sinks[head]);
    return out / total;
}

static void check_attention(const struct lab *l, const struct attention_case *ac,
                            enum dtype t, float cap, const float *sinks, bool both)
{
    const struct attention_rule rule = {0.4f, cap, ac->window, sinks, both};
    static const struct rope none = {0};
    int start = ac->seq[0].start, n = ac->seq[0].rows, end = start + n;
    struct cache c = cache_make(l, t, ac->n_kv, ac->d_head, 1, end);
    struct test_batch fill = batch_make(&c, 1, (int[]){0}, &end),
                      b = batch_make(&c, 1, &start, &n);
    struct exact e = {ac, mat_random(DTYPE_F32, n, ac->heads * ac->d_head, 8),
                      mat_random(t, end, 2 * ac->n_kv * ac->d_head, 9), &rule};
    struct mat out = mat_alloc(DTYPE_F32, n, ac->heads * ac->d_head);
    l->ops->kv_fill(l->stream, &c.kv, e.kv, &none, &fill.r);
    l->ops->attention(l->stream, out, e.q, &c.kv, &b.r, &rule);
    for (int row = 0; row < n; row += n / 5 + 1)
        for (int head = 0; head < ac->heads; head++)
            for (int dim = 0; dim < ac->d_head; dim += 7) {
                float got = ((float *)out.data)[row * out.cols + head * ac->d_head + dim];
                double want = exact_output(&e, row, start + row, head, dim, (double)0.4f);
                /* with bf16 state, q and the weights are rounded to it */
                assert_true(fabs((double)got - want) < (t == DTYPE_BF16 ? 4e-3 : 2e-6));
            }
    mat_free(&e.q);
    mat_free(&e.kv);
    mat_free(&out);
    batch_free(&fill);
    batch_free(&b);
    cache_free(l, &c);
}

TEST(test_attention)
{
    static const float sinks[64] = {0.5f, -2, 1, 3, -30, 0, 2};
    for (size_t i = 0; i < N_CASES(attention_cases); i++)
        if (!attention_cases[i].bench && attention_cases[i].n_seqs == 1)
            for (int l = 0; l < 4; l++) {
                const struct attention_case *c = &attention_cases[i];
                enum dtype t = l < 2 ? DTYPE_BF16 : DTYPE_F16;
                check_attention(&lab[l % 2], c, t, 0, NULL, false);
                check_attention(&lab[l % 2], c, t, 0.7f, sinks, false);
                check_attention(&lab[l % 2], c, t, 0, NULL, true);
            }
}

int main(void)
{
    return unit_run(setup, teardown);
}
