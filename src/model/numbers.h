/* numbers.h - checks that all elements of a tensor are finite.  Private to src/model.
 *
 * safetensors files have no checksums, so a NaN or an infinity among weights is a sign that a file
 * (or a training run) is damaged. */
#ifndef MODEL_NUMBERS_H
#define MODEL_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>

#include "tensor/tensor.h"

/* Returns whether all n elements (f32, bf16 or f16, at any address) are finite numbers.  Pure. */
bool numbers_only(const void *p, size_t n, enum dtype t);

#endif
