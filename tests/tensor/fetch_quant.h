/* fetch_quant.h - shared by the tests of what the kernels of quantised weights prefetch. A test
 * includes it before those kernels; see fetch_log.h. */
#ifndef TESTS_TENSOR_FETCH_QUANT_H
#define TESTS_TENSOR_FETCH_QUANT_H

#include "fetch_log.h"

#include <stdlib.h>

#include "tensor/cpu/quant.h"

enum { N_PANELS = 8, MAX_K = 768, STREAM_AHEAD = 4736 };
static _Alignas(64) const uint8_t weights[N_PANELS * PANEL * MAX_K];

/* Runs a kernel for few rows on m rows by some panels of k weights. */
static void product(void (*kernel)(const struct quant_tile *t), enum dtype dtype, int m,
                    int64_t k, int n_panels, bool into_l2)
{
    int64_t k_blocks = (k + MATMUL_K_BLOCK - 1) / MATMUL_K_BLOCK;
    int16_t *x = calloc((size_t)(k_blocks * m), MATMUL_K_BLOCK * sizeof *x);
    float *c = calloc((size_t)m, N_PANELS * PANEL * sizeof *c);
    struct quant_tile t = {.x = x,
                           .x_rows = m,
                           .m = m,
                           .k = k,
                           .dtype = dtype,
                           .w = weights,
                           .panel_bytes = quant_panel_bytes(dtype, k),
                           .fetch_into_l2 = into_l2,
                           .n_panels = n_panels,
                           .c = c,
                           .ldc = N_PANELS * PANEL,
                           .n_cols = n_panels * PANEL};
    assert_true(x != NULL && c != NULL);
    assert_true(N_PANELS * t.panel_bytes <= sizeof weights);
    kernel(&t);
    free(c);
    free(x);
}

/* Returns the address that is prefetched while offset `at` of a panel is read, n_panels at a time:
 * 3072 or 4352 bytes on, in the panel or else in the one that is read after it. */
static const uint8_t *ahead_of(int panel, size_t at, size_t panel_bytes, int m,
                               int n_panels)
{
    at += m <= 2 ? 3072 : 4352;
    return at < panel_bytes
               ? weights + (size_t)panel * panel_bytes + at
               : weights + (size_t)(panel + n_panels) * panel_bytes + at - panel_bytes;
}

/* Checks that a kernel that reads panel by panel prefetches all lines of whole k-blocks once, in
 * order, at a fixed distance. */
static void check_stream(void (*kernel)(const struct quant_tile *t), enum dtype dtype,
                         int m)
{
    product(kernel, dtype, m, 512, N_PANELS, true);
    for (size_t at = 0; at < N_PANELS * quant_panel_bytes(dtype, 512); at += 64)
        fetch_want(weights + STREAM_AHEAD + at, 3);
    fetch_check(weights);
}

#endif
