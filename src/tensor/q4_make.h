/* q4_make.h - converts rows of f32 weights to 4 bits. */
#ifndef TENSOR_Q4_MAKE_H
#define TENSOR_Q4_MAKE_H

#include "tensor/q4_blocks.h"

/* Sums of squares; the relative error is sqrt(of_error / of_weights). */
struct q4_error {
    double of_error, of_weights;
};

/* Converts the row w [k] to out [q4_row_bytes(DTYPE_Q4_1, k)], in blocks of q4_1, the 4-bit type
 * with the smallest error.  k is a multiple of 32.  Adds to *error.  Returns false if a weight is
 * infinite, a NaN, or too large for f16. */
bool q4_make_row(const float *w, int64_t k, uint8_t *out, struct q4_error *error);

#endif
