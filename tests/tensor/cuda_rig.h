/* cuda_rig.h - shared by the tests of device "cuda": labs (rig.h) of the device, and copies to and
 * from it. */
#ifndef TESTS_TENSOR_CUDA_RIG_H
#define TESTS_TENSOR_CUDA_RIG_H

#include "rig.h"

struct lab lab_cuda(const char *math); /* math: the value of --cuda-math */

/* Returns a device copy of the `bytes` bytes at src. */
struct buf up(const struct lab *l, const void *src, size_t bytes);
void down(const struct lab *l, void *dst, const void *src, size_t bytes);

struct gmat {
    struct mat m;
    struct buf mem;
};
struct gmat up_mat(const struct lab *l, struct mat host);
/* Copies the result to the host and frees the device's copy. */
struct mat take(const struct lab *l, struct gmat *g);

/* Like cache_make, in device memory: slots hold NaN. */
struct cache cache_on(const struct lab *l, enum dtype t, int n_kv, int d_head, int n_seqs,
                      int max_tokens);

#endif
