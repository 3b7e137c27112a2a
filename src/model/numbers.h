/* numbers.h - whether all elements of a tensor are numbers.  Private to src/model.
 *
 * safetensors have no checksums: a NaN or an infinity among weights is what shows that a file
 * is damaged (or that a training was). */
#ifndef MODEL_NUMBERS_H
#define MODEL_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>

#include "tensor/tensor.h"

/* Whether none of n elements (f32, bf16 or f16, at any address) is a NaN or an infinity.  Pure. */
bool numbers_only(const void *p, size_t n, enum dtype t);

#endif
