/* test_matmul_many.c - several products of the same rows in one operation (ops.h: matmul_many). */
#include "quant_rig.h"

#include <stdlib.h>

enum { K = 512, MOST_ROWS = 9 };

/* Numbers of rows of the weights: whole panels and tiles, and parts of them. */
static const int64_t sizes[MATMUL_MANY] = {70, 37, 301};

/* Products whose weights share their rounded rows of activations, and products whose weights do
 * not. In each case the first two are like W_k and W_v of different types. */
static const struct {
    int n;
    enum dtype t[MATMUL_MANY];
} cases[] = {
    {3, {DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_Q4_K}},
    {3, {DTYPE_Q4_1, DTYPE_Q8, DTYPE_Q4_1}},
    {3, {DTYPE_Q8, DTYPE_Q6_K, DTYPE_Q4_K}},
    {3, {DTYPE_BF16, DTYPE_Q8, DTYPE_Q8}},
    {2, {DTYPE_Q6_K, DTYPE_Q4_0}},
    {2, {DTYPE_Q8, DTYPE_Q8}},
    {2, {DTYPE_Q8, DTYPE_Q4_K}},
    {2, {DTYPE_BF16, DTYPE_BF16}},
    {2, {DTYPE_BF16R, DTYPE_BF16R}},
    {1, {DTYPE_Q4_1}},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

static void *random_rows(enum dtype t, int64_t n, uint64_t seed)
{
    return dtype_has_blocks(t)
               ? random_q4(t, n, K, seed)
               : random_elems(t == DTYPE_Q8 ? DTYPE_F32 : DTYPE_BF16, n * K, seed);
}

static struct weight weight_of(const struct lab *l, int c, int i)
{
    void *rows = random_rows(cases[c].t[i], sizes[i], (uint64_t)i + 1);
    struct weight w = weight_make(l, cases[c].t[i], sizes[i], K, rows);
    free(rows);
    return w;
}

static int64_t width(int c)
{
    int64_t cols = 0;
    for (int i = 0; i < cases[c].n; i++)
        cols += sizes[i];
    return cols;
}

/* Computes the products of case c side by side in one matrix, as K and V lie. With `many` it uses
 * one operation for all. */
static void products(const struct lab *l, int c, struct mat out, struct mat a,
                     const float *bias, bool many)
{
    struct weight w[MATMUL_MANY];
    struct product p[MATMUL_MANY] = {0};
    int64_t col = 0;
    for (int i = 0; i < cases[c].n; col += sizes[i++]) {
        w[i] = weight_of(l, c, i);
        p[i] = (struct product){mat_cols(out, col, sizes[i]), &w[i], i == 1 ? bias : NULL};
        if (!many)
            assert_int_equal(l->ops->matmul(l->stream, p[i].c, a, p[i].w, p[i].bias), 0);
    }
    if (many)
        assert_int_equal(l->ops->matmul_many(l->stream, a, p, cases[c].n), 0);
    for (int i = 0; i < cases[c].n; i++)
        weight_free(l, &w[i]);
}

static void check_case(const struct lab *lab, int n_labs, int c, int64_t n_rows)
{
    float *bias = random_elems(DTYPE_F32, sizes[1], 4);
    struct mat a = mat_random(DTYPE_F32, n_rows, K, 3);
    struct mat want = mat_alloc(DTYPE_F32, n_rows, width(c));
    products(&ref, c, want, a, bias, false);
    for (int i = 0; i < n_labs; i++) {
        struct mat got = mat_random(DTYPE_F32, n_rows, width(c), 99);
        products(&lab[i], c, got, a, bias, true);
        assert_same_bits(got, want);
        mat_free(&got);
    }
    mat_free(&want);
    mat_free(&a);
    free(bias);
}

/* Few rows (1 to 4) and many, with one thread, and with more threads than the smaller products have
 * tiles. */
TEST(test_as_the_reference)
{
    struct lab lab[ISA_COUNT * 3];
    int n_labs = 0;
    for (int isa = 0; isa < ISA_COUNT; isa++)
        for (int n_threads = 1; n_threads <= 7; n_threads += 3) {
            struct lab l = lab_cpu(isa_names[isa], n_threads);
            if (l.device != NULL)
                lab[n_labs++] = l;
        }
    for (int c = 0; c < N_CASES; c++)
        for (int64_t n_rows = 1; n_rows <= MOST_ROWS; n_rows += 2)
            check_case(lab, n_labs, c, n_rows);
    for (int i = 0; i < n_labs; i++)
        lab_close(&lab[i]);
}

/* A thread takes its own stretch of items first, then items of the others. No item is taken twice,
 * and none is left. A take is a quarter of what is left of a stretch, or `least` items, or all. */
TEST(test_stretches_are_taken_whole)
{
    for (long n_items = 0; n_items < 40; n_items++)
        for (int n_threads = 1; n_threads <= MAX_STRETCHES + 3; n_threads++)
            for (long least = 1; least <= 3; least++) {
                struct stretches s;
                int seen[40] = {0}, at = n_threads - 1, before = at;
                long item, n, left = 0;
                stretches_init(&s, n_items, least, n_threads);
                while ((n = stretch_take(&s, n_threads - 1, &at, &item)) > 0) {
                    if (left == 0 || at != before)
                        left = s.of[at % s.n].end - item;
                    long quarter = left / 4 > least ? left / 4 : least;
                    assert_int_equal(n, quarter < left ? quarter : left);
                    before = at;
                    left -= n;
                    for (long i = item; i < item + n; i++)
                        seen[i]++;
                }
                for (long i = 0; i < n_items; i++)
                    assert_int_equal(seen[i], 1);
            }
}

int main(void)
{
    return unit_run(quant_setup, quant_teardown);
}
