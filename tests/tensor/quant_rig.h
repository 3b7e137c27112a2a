/* quant_rig.h - what the tests of 8-bit and 4-bit weights share: two lanes, and products by
 * every kernel that this CPU runs. */
#ifndef TESTS_TENSOR_QUANT_RIG_H
#define TESTS_TENSOR_QUANT_RIG_H

#include "rig.h"
#include "tensor/cpu/quant.h"

/* The reference, and the CPU's portable kernels on two threads. */
extern struct lane ref, cpu;

/* For cmocka's groups. */
int quant_setup(void **state);
int quant_teardown(void **state);

/* Returns all kernels of a type, NULL behind the last. */
const struct quant_kernels *const *quant_all(enum dtype t);
#define EACH_KERNELS(t, i)                                                                 \
    for (int i = 0; quant_all(t)[i] != NULL; i++)                                          \
        if (quant_all(t)[i]->runs_here())

/* Every kernel's product of a and n rows of weights has the bits of `ref`, which computes row
 * by row: so a row's bits do not depend on its neighbours either. */
void quant_check_product(enum dtype t, struct mat a, int64_t n, const void *rows,
                         const float *bias);
/* The same for all shapes of cases.h with random weights; k is rounded up to whole blocks. */
void quant_check_cases(enum dtype t);
/* Multiplies a, in [-1, 1], by w, whose weights are *kept then ([w.n][w.k], the caller frees it).
 * Returns the largest difference from the product in f64, as a share of the root of
 * its squared terms' sum. */
double quant_worst_product(const struct weight *w, struct mat a, struct mat *kept);

#endif
