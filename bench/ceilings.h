/* ceilings.h - what this machine can do at most: FMA rate, memory bandwidth, OpenBLAS.
 *
 * Every result of the kernel benchmark is a share of one of these, measured in the same run. */
#ifndef BENCH_CEILINGS_H
#define BENCH_CEILINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"

/* min, median and max over the repetitions of one measurement. */
struct spread {
    double min, median, max;
};

/* Repeats fn(arg) for about `seconds` (at least 3 times, at most 1000) and gives the spread of its
 * time in seconds; the first, cold call is not counted. */
struct spread time_spread(void (*fn)(void *arg), void *arg, double seconds);

/* f32 fused multiply-adds in registers alone, in flop/s, over all threads of the pool. `isa` as in
 * struct device; 0 where this file has no loop for it. */
double ceiling_fma(struct pool *pool, const char *isa, double seconds);
/* Bytes per second read from a buffer much larger than the caches (of `bytes`), and copied. */
double ceiling_read(struct pool *pool, const void *buffer, size_t bytes, double seconds);
double ceiling_copy(struct pool *pool, void *dst, const void *src, size_t bytes,
                    double seconds);

/* libopenblas.so.0 where it is installed. */
bool blas_open(void);
const char *blas_core(void); /* the kernels it chose; OPENBLAS_CORETYPE overrides */
/* c [m][n] = a [m][k] . b [n][k]^T */
void blas_sgemm(int n_threads, int m, int n, int k, const float *a, const float *b,
                float *c);

/* Waits until this process's threads leave the processors alone, two seconds at most:
 * OpenBLAS's spin for a while in case another product comes, and whoever is measured then has
 * one core less. False where they do not stop. */
bool threads_rest(void);

#endif
