/* cuda_cases.h - compares every operation of device "cuda" with `ref`, on the GPU that the device
 * finds: a real one (test_cuda.c) or the emulated one (test_cuda_emulated.c).
 *
 * Exact math has ref's bits where no exponential is involved; fast math is close to it. */
#ifndef TESTS_TENSOR_CUDA_CASES_H
#define TESTS_TENSOR_CUDA_CASES_H

#include <stdbool.h>

/* Runs all cases. With `part`, attention takes one type of three in each case, in turn, since
 * emulating it takes most of the time. Returns the number of failed tests. */
int cuda_cases_run(const char *name, bool part);

#endif
