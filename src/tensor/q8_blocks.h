/* q8_blocks.h - rounds numbers to 8 bits, as ops.h says, for backends without kernels for it. */
#ifndef TENSOR_Q8_BLOCKS_H
#define TENSOR_Q8_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor/ops.h"

static inline int64_t q8_blocks(int64_t k)
{
    return (k + Q8_BLOCK - 1) / Q8_BLOCK;
}

/* Sets q to the n <= Q8_BLOCK rounded numbers of a block, followed by zeros, and *d to their scale,
 * an f16. Returns false if 8 bits cannot hold a number: an infinity, a NaN or one above 8.3e6. */
bool q8_round(const float *w, int64_t n, uint16_t *d, int8_t q[Q8_BLOCK]);

#endif
