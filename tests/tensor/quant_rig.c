/* quant_rig.c - see quant_rig.h. */
#include "quant_rig.h"

#include <math.h>
#include <stdlib.h>

#include "cases.h"
#include "tensor/cpu/bf16r.h"
#include "tensor/q4_blocks.h"

struct lab ref, cpu;

enum { MOST_KERNELS = 8 };
static const struct quant_kernels *all_bf16r[MOST_KERNELS], *all_q4[MOST_KERNELS];

/* Sets `to` to the list of all kernels, with those for AMX over stand-ins for its instructions. */
static void list_all(const struct quant_kernels *to[MOST_KERNELS],
                     const struct quant_kernels *const *all,
                     const struct quant_kernels *standin)
{
    int n = 0;
    for (; all[n] != NULL; n++)
        to[n] = all[n];
    to[n] = standin;
    assert_true(n < MOST_KERNELS - 1);
}

int quant_setup(void **state)
{
#if defined(__x86_64__)
    extern const struct quant_kernels bf16r_kernels_standin, q4_kernels_standin;
    static struct quant_kernels bf16r, q4;
    bf16r = bf16r_kernels_standin;
    q4 = q4_kernels_standin;
    bf16r.name = q4.name = "amx by stand-ins";
    list_all(all_bf16r, bf16r_all_kernels, &bf16r);
    list_all(all_q4, q4_all_kernels, &q4);
#else
    list_all(all_bf16r, bf16r_all_kernels, NULL);
    list_all(all_q4, q4_all_kernels, NULL);
#endif
    ref = lab_ref();
    cpu = lab_cpu("portable", 2); /* each test names the kernels that it uses */
    return 0;
}

int quant_teardown(void **state)
{
    lab_close(&ref);
    lab_close(&cpu);
    return 0;
}

const struct quant_kernels *const *quant_all(enum dtype t)
{
    return t == DTYPE_BF16R ? all_bf16r : all_q4;
}

void quant_check_product(enum dtype t, struct mat a, int64_t n, const void *rows,
                         const float *bias)
{
    struct weight w = weight_make(&cpu, t, n, a.cols, rows);
    struct weight rw = weight_make(&ref, t, n, a.cols, rows);
    struct mat want = mat_alloc(DTYPE_F32, a.rows, n);
    assert_int_equal(ref.ops->matmul(ref.stream, want, a, &rw, bias), 0);
    EACH_KERNELS(t, i)
    for (int swapped = 0; swapped < 2; swapped++) {
        struct quant_kernels k = *quant_all(t)[i];
        if (swapped && k.direct_stream == NULL)
            continue;
        if (swapped) { /* the loop for few rows that this CPU does not choose */
            k.direct = quant_all(t)[i]->direct_stream;
            k.direct_stream = quant_all(t)[i]->direct;
        }
        struct mat got = mat_random(DTYPE_F32, a.rows, n, 99);
        assert_int_equal(quant_matmul_by(&k, cpu.stream, got, a, &w, bias), 0);
        assert_same_bits(got, want);
        mat_free(&got);
    }
    mat_free(&want);
    weight_free(&cpu, &w);
    weight_free(&ref, &rw);
}

void quant_check_cases(enum dtype t)
{
    int64_t block = dtype_has_blocks(t) ? q4_block_weights(t) : 1;
    EACH_KERNELS(t, i) print_message("%s, %s\n", dtype_name(t), quant_all(t)[i]->name);
    for (size_t c = 0; c < N_CASES(matmul_cases); c++) {
        const struct matmul_case *mc = &matmul_cases[c];
        int64_t k = (mc->k + block - 1) / block * block;
        if (mc->bench)
            continue;
        struct mat a = mat_random(DTYPE_F32, mc->m, k, 1);
        void *rows = dtype_has_blocks(t)
                         ? random_q4(t, mc->n, k, 2)
                         : random_elems(t == DTYPE_Q8 ? DTYPE_F32 : DTYPE_BF16, mc->n * k,
                                        2);
        float *bias = random_elems(DTYPE_F32, mc->n, 3);
        quant_check_product(t, a, mc->n, rows, c % 2 == 0 ? bias : NULL);
        free(rows);
        free(bias);
        mat_free(&a);
    }
}

double quant_worst_product(const struct weight *w, struct mat a, struct mat *kept)
{
    int64_t n = w->n, k = w->k;
    struct mat c = mat_alloc(DTYPE_F32, a.rows, n);
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    double worst = 0;
    assert_non_null(ids);
    *kept = mat_alloc(DTYPE_F32, n, k);
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)i;
    assert_int_equal(cpu.ops->weight_rows(cpu.stream, *kept, w, ids), 0);
    assert_int_equal(cpu.ops->matmul(cpu.stream, c, a, w, NULL), 0);
    const float *x = a.data, *weights = kept->data, *y = c.data;
    for (int64_t i = 0; i < a.rows; i++)
        for (int64_t j = 0; j < n; j++) {
            double want = 0, size = 0;
            for (int64_t l = 0; l < k; l++) {
                double term = (double)x[i * k + l] * (double)weights[j * k + l];
                want += term;
                size += term * term;
            }
            worst = fmax(worst, fabs((double)y[i * n + j] - want) / sqrt(size));
        }
    free(ids);
    mat_free(&c);
    return worst;
}
