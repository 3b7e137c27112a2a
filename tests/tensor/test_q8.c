/* test_q8.c - 8-bit weights. Packing keeps the values to within half a step. Every kernel's product
 * equals that of `ref`, also for extreme activations. The error against f64 is bounded. */
#include "quant_rig.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* --- the product ------------------------------------------------------------------------------ */

TEST(test_every_kernel)
{
    quant_check_cases(DTYPE_Q8);
}

/* The largest sum of integers, blocks of zeros, tiny and huge numbers, infinities and NaN. */
TEST(test_extremes)
{
    enum { M = 14, N = 20, K = 600 };
    struct mat a = mat_random(DTYPE_F32, M, K, 1);
    float *x = a.data, *rows = random_elems(DTYPE_F32, N * K, 2);
    for (int k = 0; k < K; k++) {
        x[0 * K + k] = 1;       /* row 0 of x and of W give the largest possible sum */
        x[1 * K + k] = 0;       /* all zeros */
        x[2 * K + k] *= 1e-38f; /* so small that the value counts as zero */
        x[3 * K + k] *= 1e-29f; /* just large enough to be represented */
        x[4 * K + k] *= 1e30f;
        x[7 * K + k] = k < 256 ? x[7 * K + k] : 0;
        rows[0 * K + k] = 1;
        rows[1 * K + k] = 0;
        rows[2 * K + k] *= 1e-6f; /* the blocks' scales are subnormal in f16 */
        rows[3 * K + k] *= 8e6f;
        rows[4 * K + k] = k < 32 ? 0 : rows[4 * K + k];
    }
    x[5 * K + 300] = INFINITY;
    x[6 * K + 599] = NAN;
    x[8 * K + 10] = 1e6f; /* an outlier */
    quant_check_product(DTYPE_Q8, a, N, rows, NULL);
    struct weight w = weight_make(&cpu, DTYPE_Q8, N, K, rows);
    struct mat c = mat_alloc(DTYPE_F32, M, N);
    assert_int_equal(cpu.ops->matmul(cpu.stream, c, a, &w, NULL), 0);
    const float *y = c.data;
    assert_true(fabs((double)y[0] - K) < K / 1000.0); /* the scale is rounded up */
    assert_true(y[1 * N + 5] == 0 && y[2 * N + 5] == 0 && y[3 * N + 5] != 0);
    assert_true(isnan(y[5 * N + 9]) && isnan(y[6 * N + 1]) && !isnan(y[7 * N]));
    weight_free(&cpu, &w);
    mat_free(&c);
    mat_free(&a);
    free(rows);
}

/* Rounding to 8 bits changes a weight by at most half a step. A step is 1/127 of the block's
 * largest value, or up to 2^-10 more, because the scale is an f16. Activations are rounded by at
 * most 1/254 of their block's largest value, as in test_q4.c. */
TEST(test_error)
{
    enum { M = 2, N = 20, K = 2048 };
    struct mat a = mat_random(DTYPE_F32, M, K, 5), kept;
    float *rows = random_elems(DTYPE_F32, N * K, 6);
    struct weight w = weight_make(&cpu, DTYPE_Q8, N, K, rows);
    double worst = quant_worst_product(&w, a, &kept);
    assert_true(worst < 5 * 0.004);
    assert_true(worst > 1e-5); /* shows that activations were rounded */
    for (int64_t i = 0; i < (int64_t)N * K; i += Q8_BLOCK) {
        const float *q = (const float *)kept.data + i;
        float largest = 0;
        for (int k = 0; k < Q8_BLOCK; k++)
            largest = fmaxf(largest, fabsf(rows[i + k]));
        for (int k = 0; k < Q8_BLOCK; k++)
            assert_true(fabsf(q[k] - rows[i + k]) <= 0.5005f * largest / 127);
    }
    free(rows);
    weight_free(&cpu, &w);
    mat_free(&kept);
    mat_free(&a);
}

/* Sets rows of x [9][k] to every kind: random, zero, tiny, huge, with an outlier, an infinity, a
 * NaN. */
static void rows_of_every_kind(float *x, int64_t k)
{
    for (int64_t i = 0; i < k; i++) {
        x[0 * k + i] = 0;
        x[1 * k + i] *= 1e-38f; /* counts as zero */
        x[2 * k + i] *= 1e-29f; /* just large enough */
        x[3 * k + i] *= 1e32f;
        x[4 * k + i] *= 1e36f; /* too large: e is NaN */
        x[5 * k + i] *= i % 40 == 0 ? 1e6f : 1;
    }
    x[6 * k + k / 2] = INFINITY;
    x[7 * k + k - 1] = NAN;
}

/* What rounding leaves out is at most half a step, a 1/254 of the k-block's largest value, and has
 * the bits of `ref` with every instruction set and whatever number of threads. */
TEST(test_rest_of_rounding)
{
    enum { M = 9 };
    static const int64_t widths[] = {1, 31, 33, 256, 288, 301, 2048};
    for (size_t c = 0; c < sizeof widths / sizeof widths[0]; c++) {
        int64_t k = widths[c];
        struct mat a = mat_random(DTYPE_F32, M, k, 12), want = mat_alloc(DTYPE_F32, M, k);
        rows_of_every_kind(a.data, k);
        assert_int_equal(ref.ops->round_rest(ref.stream, want, a), 0);
        const float *x = a.data, *rest = want.data;
        for (int64_t i = 0; i < k; i++) {
            assert_true(rest[k + i] == x[k + i] && fabsf(rest[8 * k + i]) <= 1.001f / 254);
            assert_true(isnan(rest[4 * k + i]) || fabsf(x[4 * k + i]) < 0x1p110f);
        }
        assert_true(isnan(rest[6 * k + k / 2]) && isnan(rest[7 * k + k - 1]));
        for (int isa = 0; isa < ISA_COUNT; isa++)
            for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
                struct lab l = lab_cpu(isa_names[isa], n_threads);
                if (l.device == NULL)
                    continue;
                struct mat got = mat_random(DTYPE_F32, M, k, 99);
                assert_int_equal(l.ops->round_rest(l.stream, got, a), 0);
                assert_same_bits(got, want);
                mat_free(&got);
                lab_close(&l);
            }
        mat_free(&want);
        mat_free(&a);
    }
}

/* An outlier coarsens its own block of 32 only: the k-block's other blocks halve the steps. */
TEST(test_an_outlier_stays_alone)
{
    enum { M = 2, N = 20, K = 256 };
    struct mat a = mat_random(DTYPE_F32, M, K, 5), kept;
    float *rows = random_elems(DTYPE_F32, N * K, 6);
    for (int r = 0; r < M; r++)
        ((float *)a.data)[r * K + 40] = 1000;
    for (int i = 0; i < N * K; i++)
        rows[i] = i % K / Q8_BLOCK == 1 ? 0 : rows[i];
    struct weight w = weight_make(&cpu, DTYPE_Q8, N, K, rows);
    assert_true(quant_worst_product(&w, a, &kept) < 5 * 0.008);
    free(rows);
    weight_free(&cpu, &w);
    mat_free(&kept);
    mat_free(&a);
}

/* --- packing ---------------------------------------------------------------------------------- */

/* Packing piece by piece, at any row, equals packing at once. Unpacked rows equal those of `ref`.
 * */
TEST(test_pack)
{
    enum { N = 45, K = 300 };
    const int32_t ids[] = {0, 44, 16, 15, 16};
    float *rows = random_elems(DTYPE_F32, N * K, 4);
    struct weight whole = weight_make(&cpu, DTYPE_Q8, N, K, rows), parts = whole;
    size_t bytes = whole.mem.bytes;
    assert_int_equal(buf_alloc(cpu.device, MEM_DEVICE, bytes, &parts.mem, NULL), 0);
    for (int64_t r = 0, n = 1; r < N; r += n, n = r + 7 < N ? 7 : N - r)
        cpu.ops->weight_pack(cpu.stream, &parts, r, rows + r * K, n);
    assert_memory_equal(whole.mem.ptr, parts.mem.ptr, bytes);
    struct weight rw = weight_make(&ref, DTYPE_Q8, N, K, rows);
    for (enum dtype t = DTYPE_F32; t <= DTYPE_BF16; t++) {
        struct mat got = mat_alloc(t, 5, K), want = mat_alloc(t, 5, K);
        assert_int_equal(cpu.ops->weight_rows(cpu.stream, got, &whole, ids), 0);
        assert_int_equal(ref.ops->weight_rows(ref.stream, want, &rw, ids), 0);
        assert_same_bits(got, want);
        mat_free(&got);
        mat_free(&want);
    }
    weight_free(&ref, &rw);
    weight_free(&cpu, &whole);
    weight_free(&cpu, &parts);
    free(rows);
}

/* Blocks of q8_0 become the bytes that their decoded numbers become: blocks as programs quantise
 * them (the largest number is 127), and others; with scales of 0, and packed piece by piece. */
TEST(test_blocks_of_q8_0)
{
    enum { N = 45, K = 288, BLOCK = 34, ROW = K / 32 * BLOCK };
    uint8_t *blocks = random_elems(DTYPE_F32, N * ROW / 4 + 4, 8);
    float *rows = xmalloc(sizeof *rows * N * K);
    for (int64_t i = 0; i < (int64_t)N * K / 32; i++) {
        uint8_t *b = blocks + i * BLOCK;
        uint16_t d = i % 11 == 0 ? 0 : i % 7 == 0 ? 0x9c00 : (uint16_t)(0x1400 + i);
        memcpy(b, &d, 2);
        for (int k = 0; k < 32; k++)
            if (i % 5 != 0 && b[2 + k] == 128)
                b[2 + k] = 1;
        b[2 + i % 32] = i % 3 != 0 ? 127 : i % 2 == 0 ? 129 : 5;
        for (int k = 0; k < 32; k++)
            rows[i * 32 + k] = f16_to_f32(d) * (float)(int8_t)b[2 + k];
    }
    struct weight want = weight_make(&cpu, DTYPE_Q8, N, K, rows), got = want;
    assert_int_equal(buf_alloc(cpu.device, MEM_DEVICE, want.mem.bytes, &got.mem, NULL), 0);
    for (int64_t r = 0, n = 1; r < N; r += n, n = r + 23 < N ? 23 : N - r)
        assert_int_equal(
            cpu.ops->weight_pack_q8_0(cpu.stream, &got, r, blocks + r * ROW, n), 0);
    assert_memory_equal(want.mem.ptr, got.mem.ptr, want.mem.bytes);
    blocks[1] = 0x7c; /* an infinite scale */
    blocks[2] = 127;
    assert_int_equal(cpu.ops->weight_pack_q8_0(cpu.stream, &got, 0, blocks, 1), -ERANGE);
    weight_free(&cpu, &want);
    weight_free(&cpu, &got);
    free(blocks);
    free(rows);
}

/* Values that 8 bits and an f16 scale cannot represent are refused, never approximated. */
TEST(test_refused)
{
    const float bad[] = {INFINITY, -INFINITY, NAN, 1e7f, -1e30f};
    enum { N = 3, K = 70 };
    float *rows = random_elems(DTYPE_F32, N * K, 4);
    const struct lab *lab[] = {&ref, &cpu};
    for (int l = 0; l < 2; l++) {
        struct weight w = weight_make(lab[l], DTYPE_Q8, N, K, rows);
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            float keep = rows[2 * K + 69];
            rows[2 * K + 69] = bad[i];
            assert_int_equal(lab[l]->ops->weight_pack(lab[l]->stream, &w, 0, rows, N),
                             -ERANGE);
            rows[2 * K + 69] = keep;
        }
        rows[0] = 8.3e6f;
        assert_int_equal(lab[l]->ops->weight_pack(lab[l]->stream, &w, 0, rows, N), 0);
        weight_free(lab[l], &w);
    }
    free(rows);
}

int main(void)
{
    return unit_run(quant_setup, quant_teardown);
}
