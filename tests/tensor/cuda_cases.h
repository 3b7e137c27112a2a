/* cuda_cases.h - every operation of device "cuda" against `ref`, on whatever GPU that device
 * finds: a real one (test_cuda.c) or the emulated one (test_cuda_emulated.c).
 *
 * Exact math has ref's bits wherever no exponential is involved; fast math is near it. */
#ifndef TESTS_TENSOR_CUDA_CASES_H
#define TESTS_TENSOR_CUDA_CASES_H

int cuda_cases_run(const char *name); /* how many failed */

#endif
