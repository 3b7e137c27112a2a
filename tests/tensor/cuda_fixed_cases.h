/* cuda_fixed_cases.h - fixed math (--cuda-math fixed) on whatever GPU device "cuda" finds:
 * every row has the same bits alone, in batches of every size, at every place in them, as a
 * decode or as part of a prefill. */
#ifndef TESTS_TENSOR_CUDA_FIXED_CASES_H
#define TESTS_TENSOR_CUDA_FIXED_CASES_H

#include <stdbool.h>

/* `small`: only shapes that an emulation can afford, which on a GPU of 4 multiprocessors have
 * every size of tile; on a real one the others are needed for that.  Returns how many failed. */
int cuda_fixed_cases_run(const char *name, bool small);

#endif
