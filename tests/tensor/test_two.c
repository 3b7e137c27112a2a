/* test_two.c - two products of the same rows in one operation (ops.h: matmul_two). */
#include "quant_rig.h"

#include <stdlib.h>

enum { K = 512, N_A = 70, N_B = 1000, MOST_ROWS = 9 };

/* Weights that share their rounded rows, and those that do not. */
static const enum dtype pairs[][2] = {
    {DTYPE_Q4_1, DTYPE_Q4_1}, {DTYPE_Q4_K, DTYPE_Q4_0},   {DTYPE_Q8, DTYPE_Q8},
    {DTYPE_Q4_K, DTYPE_Q6_K}, {DTYPE_Q8, DTYPE_Q4_K},     {DTYPE_Q4_1, DTYPE_Q8},
    {DTYPE_BF16, DTYPE_BF16}, {DTYPE_BF16R, DTYPE_BF16R},
};

static struct weight random_weight(const struct lane *l, enum dtype t, int64_t n,
                                   uint64_t seed)
{
    void *rows = dtype_has_blocks(t)
                     ? random_q4(t, n, K, seed)
                     : random_elems(t == DTYPE_Q8 ? DTYPE_F32 : DTYPE_BF16, n * K, seed);
    struct weight w = weight_make(l, t, n, K, rows);
    free(rows);
    return w;
}

static void check_pair(const struct lane *l, const enum dtype t[2], int64_t n_rows)
{
    struct weight w[2] = {random_weight(l, t[0], N_A, 1), random_weight(l, t[1], N_B, 2)};
    struct mat a = mat_random(DTYPE_F32, n_rows, K, 3);
    struct mat want[2], got[2];
    float *bias = random_elems(DTYPE_F32, N_B, 4);
    for (int i = 0; i < 2; i++) {
        want[i] = mat_alloc(DTYPE_F32, n_rows, w[i].n);
        got[i] = mat_random(DTYPE_F32, n_rows, w[i].n, 99);
        assert_int_equal(l->ops->matmul(l->stream, want[i], a, &w[i], i == 1 ? bias : NULL),
                         0);
    }
    const struct product p[2] = {{got[0], &w[0], NULL}, {got[1], &w[1], bias}};
    assert_int_equal(l->ops->matmul_two(l->stream, a, p), 0);
    for (int i = 0; i < 2; i++) {
        assert_same_bits(got[i], want[i]);
        mat_free(&want[i]);
        mat_free(&got[i]);
        weight_free(l, &w[i]);
    }
    free(bias);
    mat_free(&a);
}

/* Few rows (1 to 4) and many; one thread and more of them than the smaller product has tiles. */
static void test_as_two_products(void **state)
{
    (void)state;
    for (int isa = 0; isa < ISA_COUNT; isa++)
        for (int n_threads = 1; n_threads <= 7; n_threads += 3) {
            struct lane l = lane_cpu(isa_names[isa], n_threads);
            for (size_t p = 0; l.device != NULL && p < sizeof pairs / sizeof pairs[0]; p++)
                for (int64_t n_rows = 1; n_rows <= MOST_ROWS; n_rows += 2)
                    check_pair(&l, pairs[p], n_rows);
            lane_close(&l);
        }
}

/* A thread that comes first takes its own stretch, then all others': no item twice, none left. */
static void test_stretches_are_taken_whole(void **state)
{
    (void)state;
    for (long n_items = 0; n_items < 40; n_items++)
        for (int n_threads = 1; n_threads <= MAX_STRETCHES + 3; n_threads++) {
            struct stretches s;
            int seen[40] = {0}, at = n_threads - 1;
            long item;
            stretches_init(&s, n_items, n_threads);
            while (stretch_take(&s, n_threads - 1, &at, &item))
                seen[item]++;
            for (long i = 0; i < n_items; i++)
                assert_int_equal(seen[i], 1);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_two_products),
        cmocka_unit_test(test_stretches_are_taken_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
