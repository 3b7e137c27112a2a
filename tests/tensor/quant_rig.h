/* quant_rig.h - shared by the tests of 8-bit and 4-bit weights: two labs (rig.h), and products
 * by every kernel that this CPU can run. */
#ifndef TESTS_TENSOR_QUANT_RIG_H
#define TESTS_TENSOR_QUANT_RIG_H

#include "rig.h"
#include "tensor/cpu/quant.h"

/* The reference device, and the CPU's portable kernels on two threads. */
extern struct lab ref, cpu;

/* Setup and teardown for cmocka's groups. */
int quant_setup(void **state);
int quant_teardown(void **state);

/* Returns all kernels of a type; the array ends with NULL. Those for AMX occur twice: with its
 * instructions, and with stand-ins for these (standin_amx.h), which other CPUs run, too. */
const struct quant_kernels *const *quant_all(enum dtype t);
#define EACH_KERNELS(t, i)                                                                 \
    for (int i = 0; quant_all(t)[i] != NULL; i++)                                          \
        if (quant_all(t)[i]->runs_here())

/* Checks that every kernel's product of `a` and n rows of weights has the bits of `ref`. `ref`
 * computes row by row, so this also shows that a row's bits do not depend on its neighbours. */
void quant_check_product(enum dtype t, struct mat a, int64_t n, const void *rows,
                         const float *bias);
/* Runs quant_check_product with random weights on all shapes of cases.h, with k rounded up to whole
 * blocks. */
void quant_check_cases(enum dtype t);
/* Multiplies a, with values in [-1, 1], by w. Returns the largest difference from the product in
 * f64, relative to the root of the sum of its squared terms. *kept gets the weights as w holds
 * them, [w.n][w.k]; the caller frees them. */
double quant_worst_product(const struct weight *w, struct mat a, struct mat *kept);

#endif
