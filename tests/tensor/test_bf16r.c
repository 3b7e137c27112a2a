/* Products of bf16 weights with rounded activations. They equal `ref` with every kernel that this
 * CPU runs, for few and many rows. Also numbers that AMX takes for zero, packing, and the error
 * against f64. */
#include "quant_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "tensor/cpu/bf16r.h"

TEST(test_every_kernel)
{
    quant_check_cases(DTYPE_BF16R);
}

/* Every number of rows up to the widths of tiles and strips, and rows and columns that end inside a
 * tile. */
TEST(test_every_number_of_rows)
{
    enum { K = 300, N = 150 };
    void *rows = random_elems(DTYPE_BF16, N * K, 2);
    float *bias = random_elems(DTYPE_F32, N, 3);
    for (int64_t m = 1; m <= 70; m += m < 18 ? 1 : 13) {
        struct mat a = mat_random(DTYPE_F32, m, K, (uint64_t)m);
        quant_check_product(DTYPE_BF16R, a, N, rows, bias);
        mat_free(&a);
    }
    free(bias);
    free(rows);
}

/* Random bits without infinities and NaNs: subnormal operands, products and sums are zero. */
TEST(test_subnormal_numbers)
{
    enum { M = 20, N = 40, K = 512 };
    struct mat a = mat_random(DTYPE_F32, M, K, 1);
    uint16_t *rows = random_elems(DTYPE_BF16, N * K, 2);
    struct rng r = {3};
    bool seen = false;
    for (int i = 0; i < M * K; i++) {
        uint32_t u = (uint32_t)rng_u64(&r) & 0x807fffff;
        u |= (uint32_t)(i % 3 == 0 ? rng_u64(&r) % 4 : 50 + rng_u64(&r) % 30) << 23;
        memcpy((float *)a.data + i, &u, sizeof u);
    }
    for (int i = 0; i < N * K; i++) {
        uint32_t exponent = i % 5 == 0 ? (uint32_t)(rng_u64(&r) % 3)
                                       : (uint32_t)(45 + rng_u64(&r) % 40);
        rows[i] = (uint16_t)((rng_u64(&r) & 0x807f) | exponent << 7);
    }
    quant_check_product(DTYPE_BF16R, a, N, rows, NULL);
    struct weight w = weight_make(&ref, DTYPE_BF16R, N, K, rows);
    struct mat c = mat_alloc(DTYPE_F32, M, N), exact = mat_alloc(DTYPE_F32, M, N);
    ref.ops->matmul(ref.stream, c, a, &w, NULL);
    w.dtype = DTYPE_BF16;
    ref.ops->matmul(ref.stream, exact, a, &w, NULL);
    for (int i = 0; i < M * N; i++) {
        float f = ((float *)c.data)[i];
        assert_true(f == 0 || fabsf(f) >= 0x1p-126f);
        seen = seen || f != ((float *)exact.data)[i];
    }
    assert_true(seen); /* some products were flushed to zero */
    weight_free(&ref, &w);
    mat_free(&c);
    mat_free(&exact);
    mat_free(&a);
    free(rows);
}

/* The kernels' sum is zero if it lies just below the smallest normal number, although fmaf rounds
 * it up to that number. 2^-126 - 2^-150 counts as zero; 2^-126 - 2^-151 rounds to 2^-126 with 24
 * bits. Tested for both signs. */
TEST(test_just_below_the_smallest)
{
    enum { M = 2, N = 2, K = 4 };
    struct mat a = mat_alloc(DTYPE_F32, M, K), c = mat_alloc(DTYPE_F32, M, N);
    const float x[M][K] = {{0x1p-63f, 0, -0x1p-75f, 0}, {-0x1p-63f, 0, 0x1p-75f, 0}},
                y[N][K] = {{0x1p-63f, 0, 0x1p-75f, 0}, {0x1p-63f, 0, 0x1p-76f, 0}};
    uint16_t rows[N * K];
    memcpy(a.data, x, sizeof x);
    for (int i = 0; i < N * K; i++)
        rows[i] = f32_to_bf16(y[i / K][i % K]);
    quant_check_product(DTYPE_BF16R, a, N, rows, NULL);
    struct weight w = weight_make(&ref, DTYPE_BF16R, N, K, rows);
    assert_int_equal(ref.ops->matmul(ref.stream, c, a, &w, NULL), 0);
    const float *z = c.data;
    assert_true(z[0] == 0 && z[1] == 0x1p-126f && z[2] == 0 && z[3] == -0x1p-126f);
    weight_free(&ref, &w);
    mat_free(&a);
    mat_free(&c);
}

/* An infinity or a NaN changes the result of its own row only. */
TEST(test_no_numbers)
{
    enum { M = 3, N = 33, K = 64 };
    struct mat a = mat_random(DTYPE_F32, M, K, 1), c = mat_alloc(DTYPE_F32, M, N);
    void *rows = random_elems(DTYPE_BF16, N * K, 2);
    ((float *)a.data)[5] = NAN;
    ((float *)a.data)[K + 7] = INFINITY;
    struct weight w = weight_make(&cpu, DTYPE_BF16R, N, K, rows);
    EACH_KERNELS(DTYPE_BF16R, i)
    {
        const float *y = c.data;
        assert_int_equal(
            quant_matmul_by(quant_all(DTYPE_BF16R)[i], cpu.stream, c, a, &w, NULL), 0);
        assert_true(isnan(y[0]) && !isfinite(y[N + 1]) && isfinite(y[2 * N]));
    }
    weight_free(&cpu, &w);
    mat_free(&a);
    mat_free(&c);
    free(rows);
}

/* Packing in pieces, at any row, gives the bytes of packing all rows at once. Unpacking packed rows
 * gives the original rows. */
TEST(test_pack)
{
    enum { N = 37, K = 70 };
    int32_t ids[N];
    uint16_t *rows = random_elems(DTYPE_BF16, N * K, 4);
    struct weight whole = weight_make(&cpu, DTYPE_BF16R, N, K, rows), parts = whole;
    struct mat got = mat_alloc(DTYPE_BF16, N, K);
    assert_int_equal(whole.mem.bytes, 48 * 96 * 2);
    assert_int_equal(buf_alloc(cpu.device, MEM_DEVICE, whole.mem.bytes, &parts.mem, NULL),
                     0);
    for (int64_t r = 0, n = 1; r < N; r += n, n = r + 7 < N ? 7 : N - r)
        cpu.ops->weight_pack(cpu.stream, &parts, r, rows + r * K, n);
    assert_memory_equal(whole.mem.ptr, parts.mem.ptr, whole.mem.bytes);
    for (int i = 0; i < N; i++)
        ids[i] = i;
    cpu.ops->weight_rows(cpu.stream, got, &parts, ids);
    assert_memory_equal(got.data, rows, N * K * 2);
    weight_free(&cpu, &whole);
    weight_free(&cpu, &parts);
    mat_free(&got);
    free(rows);
}

/* The only error is the rounding of activations, at most 2^-9 of each. */
TEST(test_error)
{
    enum { M = 2, N = 20, K = 2048 };
    struct mat a = mat_random(DTYPE_F32, M, K, 5), kept;
    void *rows = random_elems(DTYPE_BF16, N * K, 6);
    struct weight w = weight_make(&cpu, DTYPE_BF16R, N, K, rows);
    double worst = quant_worst_product(&w, a, &kept);
    print_message("the worst product of %d is off by %.2f %% of its terms' sum\n", M * N,
                  100 * worst);
    assert_true(worst < 0.02 && worst > 1e-5);
    free(rows);
    weight_free(&cpu, &w);
    mat_free(&kept);
    mat_free(&a);
}

int main(void)
{
    return unit_run(quant_setup, quant_teardown);
}
