/* cuda_fixed_cases.h - fixed math (--cuda-math fixed) on the GPU that device "cuda" finds.
 *
 * Every row has the same bits alone, in batches of every size, at every place in a batch, as a
 * decode, and as part of a prefill. */
#ifndef TESTS_TENSOR_CUDA_FIXED_CASES_H
#define TESTS_TENSOR_CUDA_FIXED_CASES_H

#include <stdbool.h>

/* Runs the cases. Returns the number of failed tests. With `small`, uses only shapes that an
 * emulation can afford. On an emulated GPU of 4 multiprocessors they use every tile size; a real
 * GPU needs the large shapes for that. */
int cuda_fixed_cases_run(const char *name, bool small);

#endif
