/* q4_make.h - makes rows of 4-bit weights from f32. */
#ifndef TENSOR_Q4_MAKE_H
#define TENSOR_Q4_MAKE_H

#include "tensor/q4_blocks.h"

/* Sums of squares; the relative error is sqrt(of_error / of_weights). */
struct q4_error {
    double of_error, of_weights;
};

/* out [q4_row_bytes(DTYPE_Q4_1, k)] = the row w [k] in blocks of q4_1, which has the smallest
 * error of the 4-bit types.  k is a multiple of 32.  Adds to *error.  False: an infinity, a
 * NaN, or a number that f16 cannot hold is among the weights. */
bool q4_make_row(const float *w, int64_t k, uint8_t *out, struct q4_error *error);

#endif
