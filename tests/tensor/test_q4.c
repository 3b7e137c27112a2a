/* test_q4.c - 4-bit weights. Packed values equal the file's. Every kernel's product equals that of
 * `ref`, also for extreme activations. The error against f64 is bounded. */
#include "quant_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "checkpoint/gguf_types.h"
#include "tensor/cpu/q4.h"
#include "tensor/q4_blocks.h"
#include "tensor/q4_make.h"

#define EACH_TYPE(t) for (enum dtype t = DTYPE_Q4_0; t <= DTYPE_IQ4_XS; t++)

/* --- the product ------------------------------------------------------------------------------ */

TEST(test_every_kernel)
{
    EACH_TYPE(t)
    quant_check_cases(t);
}

/* Columns enough for threads to get the widest tiles, the last one with an edge; more rows than any
 * kernel takes in strips. */
TEST(test_wide_tiles)
{
    enum { M = 130, N = 15 * TILE_COLS + 20, K = 288 };
    struct mat a = mat_random(DTYPE_F32, M, K, 1);
    uint8_t *rows = random_q4(DTYPE_Q4_1, N, K, 2);
    float *bias = random_elems(DTYPE_F32, N, 3);
    quant_check_product(DTYPE_Q4_1, a, N, rows, bias);
    free(rows);
    free(bias);
    mat_free(&a);
}

/* The largest sums of integers of either sign, zeros, tiny and huge numbers, infinities and NaN. */
TEST(test_extremes)
{
    enum { M = 20, N = 20, K = 768 };
    EACH_TYPE(t)
    {
        struct mat a = mat_random(DTYPE_F32, M, K, 1), c = mat_alloc(DTYPE_F32, M, N);
        float *x = a.data;
        uint8_t *rows = random_q4(t, N, K, 2);
        size_t bytes = q4_block_bytes(t), numbers = bytes - (size_t)q4_block_weights(t) / 2;
        for (size_t at = 0; at < q4_row_bytes(t, K); at += bytes) {
            /* q = 0 and s = -128 give the largest sums. */
            if (t == DTYPE_Q6_K) {
                memset(rows + at, 0, 192);
                memset(rows + at + 192, 0x80, 16);
            } else { /* place 0 of the table of iq4 has -127 */
                memset(rows + at + numbers, t >= DTYPE_IQ4_NL ? 0 : 0xff, bytes - numbers);
            }
        }
        for (int k = 0; k < K; k++) {
            x[0 * K + k] = 1; /* row 0 of x and of W give the largest possible sum */
            x[1 * K + k] = 0;
            x[2 * K + k] *= 1e-38f; /* so small that the value counts as zero */
            x[3 * K + k] *= 1e-29f; /* just large enough to be represented */
            x[4 * K + k] *= 1e30f;
            x[7 * K + k] = k < 256 ? x[7 * K + k] : 0;
            x[9 * K + k] = -1;
        }
        x[8 * K + 10] = 1e6f; /* an outlier */
        x[10 * K + 40] =
            0x1.fffffep109f; /* the largest number that does not count as infinite */
        quant_check_product(t, a, N, rows, NULL);
        x[11 * K + 40] = -0x1p110f;
        x[5 * K + 300] = INFINITY;
        x[6 * K + 767] = NAN;
        struct weight w = weight_make(&cpu, t, N, K, rows);
        EACH_KERNELS(t, i)
        {
            const float *y = c.data;
            assert_int_equal(quant_matmul_by(quant_all(t)[i], cpu.stream, c, a, &w, NULL),
                             0);
            assert_true(y[1 * N + 5] == 0 && y[2 * N + 5] == 0 && y[3 * N + 5] != 0);
            assert_true(isnan(y[5 * N + 9]) && isnan(y[6 * N + 1]) && !isnan(y[7 * N]));
            assert_true(!isnan(y[10 * N + 9]) && isnan(y[11 * N + 9]));
        }
        weight_free(&cpu, &w);
        mat_free(&c);
        mat_free(&a);
        free(rows);
    }
}

/* Activations are rounded by at most 1/127 of their block's largest value, and by 1/254 where it is
 * the k-block's. Weights are not rounded. */
TEST(test_error)
{
    enum { M = 2, N = 20, K = 2048 };
    EACH_TYPE(t)
    {
        struct mat a = mat_random(DTYPE_F32, M, K, 5), kept;
        uint8_t *rows = random_q4(t, N, K, 6);
        struct weight w = weight_make(&cpu, t, N, K, rows);
        double worst = quant_worst_product(&w, a, &kept);
        /* One standard deviation is 1 / (254 sqrt(3)) for activations of size 1 / sqrt(3): 0.4
         * %; all blocks have numbers of nearly the largest size. */
        print_message("%s: the worst product of %d is off by %.2f %% of its terms' sum\n",
                      dtype_name(t), M * N, 100 * worst);
        assert_true(worst < 5 * 0.004);
        assert_true(worst > 1e-5); /* shows that activations were rounded */
        free(rows);
        weight_free(&cpu, &w);
        mat_free(&kept);
        mat_free(&a);
    }
}

/* --- packing ---------------------------------------------------------------------------------- */

/* Unpacked rows equal the output of the format's own decoder. */
TEST(test_values_are_the_files)
{
    static const uint32_t of_file[] = {GGUF_TYPE_Q4_0,  GGUF_TYPE_Q4_1,  GGUF_TYPE_Q4_K,
                                       GGUF_TYPE_Q6_K,  GGUF_TYPE_MXFP4, GGUF_TYPE_IQ4_NL,
                                       GGUF_TYPE_IQ4_XS};
    enum { N = 37, K = 768 };
    int32_t ids[N];
    for (int i = 0; i < N; i++)
        ids[i] = (i * 11) % N;
    EACH_TYPE(t)
    {
        const struct gguf_type *g = gguf_type(of_file[t - DTYPE_Q4_0]);
        uint8_t *rows = random_q4(t, N, K, 4);
        assert_int_equal(g->block, q4_block_weights(t));
        assert_int_equal(g->bytes, q4_block_bytes(t));
        struct mat want = mat_alloc(DTYPE_F32, N, K), got = mat_alloc(DTYPE_F32, N, K);
        for (int i = 0; i < N; i++)
            g->decode(rows + (size_t)ids[i] * q4_row_bytes(t, K),
                      (float *)want.data + i * K, K / g->block);
        const struct lab *lab[] = {&ref, &cpu};
        for (int l = 0; l < 2; l++) {
            struct weight w = weight_make(lab[l], t, N, K, rows);
            lab[l]->ops->weight_rows(lab[l]->stream, got, &w, ids);
            for (int i = 0; i < N * K; i++) /* 0 and -0 count as equal */
                assert_true(((float *)got.data)[i] == ((float *)want.data)[i]);
            weight_free(lab[l], &w);
        }
        free(rows);
        mat_free(&want);
        mat_free(&got);
    }
}

/* Packing piece by piece, at any row, equals packing at once, and has the size that q4.h gives. */
TEST(test_pack)
{
    enum { N = 45, K = 512 };
    static const double bytes_a_weight[] = {0.5625,  0.625,  0.578125, 0.828125,
                                            0.53125, 0.5625, 0.546875};
    EACH_TYPE(t)
    {
        uint8_t *rows = random_q4(t, N, K, 4);
        struct weight whole = weight_make(&cpu, t, N, K, rows), parts = whole;
        size_t bytes = whole.mem.bytes;
        assert_true((double)bytes == bytes_a_weight[t - DTYPE_Q4_0] * 48 * K);
        assert_int_equal(buf_alloc(cpu.device, MEM_DEVICE, bytes, &parts.mem, NULL), 0);
        for (int64_t r = 0, n = 1; r < N; r += n, n = r + 7 < N ? 7 : N - r)
            cpu.ops->weight_pack(cpu.stream, &parts, r,
                                 rows + (size_t)r * q4_row_bytes(t, K), n);
        assert_memory_equal(whole.mem.ptr, parts.mem.ptr, bytes);
        weight_free(&cpu, &whole);
        weight_free(&cpu, &parts);
        free(rows);
    }
}

/* --- making 4-bit weights --------------------------------------------------------------------- */

static double square(double x)
{
    return x * x;
}

/* The bytes that a row of random numbers becomes. They decide the bits of all state that is
 * computed with converted weights, so they may only change with the numerics version. */
TEST(test_made_blocks_stay_the_same)
{
    enum { K = 4096 };
    struct mat row = mat_random(DTYPE_F32, 1, K, 12);
    const float *w = row.data;
    uint8_t *out = calloc(1, q4_row_bytes(DTYPE_Q4_1, K) + 1);
    struct q4_error e = {0};
    assert_true(q4_make_row(w, K, out, &e));
    assert_int_equal(out[q4_row_bytes(DTYPE_Q4_1, K)], 0);
    assert_int_equal(checksum64(out, q4_row_bytes(DTYPE_Q4_1, K)), 0xe1f7323c7e245afc);
    /* the reported error is that of the decoded numbers */
    double error = 0, weights = 0;
    for (int part = 0; part < K / Q4_BLOCK; part++) {
        float got[Q4_BLOCK];
        q4_part_decode(DTYPE_Q4_1, out, part, got);
        for (int i = 0; i < Q4_BLOCK; i++) {
            error += square((double)got[i] - (double)w[part * Q4_BLOCK + i]);
            weights += square((double)w[part * Q4_BLOCK + i]);
        }
    }
    assert_true(fabs(e.of_error / error - 1) < 1e-4);
    assert_true(fabs(e.of_weights / weights - 1) < 1e-9);
    free(out);
    mat_free(&row);
}

/* Numbers on a grid of 16 steps are kept exactly, also if all are equal. */
TEST(test_numbers_on_a_grid_are_exact)
{
    static const struct {
        float step, least;
    } grids[] = {{0.25f, -2}, {1, 0}, {0, 3}, {0, 0}, {0.5f, -65504 + 64}, {-0.5f, 4}};
    for (size_t g = 0; g < sizeof grids / sizeof grids[0]; g++) {
        float w[2 * Q4_BLOCK], got[Q4_BLOCK];
        uint8_t out[2 * 20];
        struct q4_error e = {0};
        for (int i = 0; i < 2 * Q4_BLOCK; i++)
            w[i] = grids[g].least + grids[g].step * (float)(i * 7 % 16);
        bool exact = f16_to_f32(f32_to_f16(w[0])) == w[0];
        assert_true(q4_make_row(w, 2 * Q4_BLOCK, out, &e));
        for (int part = 0; part < 2 && exact; part++) {
            q4_part_decode(DTYPE_Q4_1, out, part, got);
            assert_memory_equal(got, w + part * Q4_BLOCK, sizeof got);
        }
    }
}

TEST(test_numbers_that_4_bits_cannot_hold)
{
    static const struct {
        float x;
        bool fits;
    } known[] = {{65504, true},     {-65504, true},     {65504.01f, false}, {-65505, false},
                 {INFINITY, false}, {-INFINITY, false}, {NAN, false},       {0, true}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        for (int at = 0; at < 2 * Q4_BLOCK; at += 21) {
            float w[2 * Q4_BLOCK] = {0};
            uint8_t out[2 * 20];
            struct q4_error e = {0};
            w[at] = known[i].x;
            assert_int_equal(q4_make_row(w, 2 * Q4_BLOCK, out, &e), known[i].fits);
        }
}

int main(void)
{
    return unit_run(quant_setup, quant_teardown);
}
