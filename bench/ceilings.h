/* ceilings.h - the limits of this machine: FMA rate, memory bandwidth, OpenBLAS.
 *
 * Every result of the kernel benchmark is a share of one of these limits, measured in the same
 * run. */
#ifndef BENCH_CEILINGS_H
#define BENCH_CEILINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"

/* Min, median and max over the repetitions of one measurement. */
struct spread {
    double min, median, max;
};

/* Repeats fn(arg) for about `seconds` (at least 3 times, at most 1000). Returns the spread of one
 * call's time in seconds, without the first call, which warms up. */
struct spread time_spread(void (*fn)(void *arg), void *arg, double seconds);

/* Returns the rate of f32 fused multiply-adds in registers alone, in flop/s, over all threads of
 * the pool. `isa` is that of struct device. Returns 0 if this file has no loop for it. */
double ceiling_fma(struct pool *pool, const char *isa, double seconds);
/* Returns the same for products of 8-bit numbers, of which a product with its addition counts as
 * two operations: VPDPBUSD if the CPU has it and isa is avx512, else PMADDUBSW with the addition of
 * its sums of 16 bits. */
double ceiling_int8(struct pool *pool, const char *isa, double seconds);
/* Return bytes per second: ceiling_read of reading a buffer, ceiling_copy of copying one. `bytes`
 * must be much larger than the caches. */
double ceiling_read(struct pool *pool, const void *buffer, size_t bytes, double seconds);
double ceiling_copy(struct pool *pool, void *dst, const void *src, size_t bytes,
                    double seconds);

/* Loads libopenblas.so.0. Returns false if it is not installed. */
bool blas_open(void);
/* Returns the name of the kernels that OpenBLAS chose; OPENBLAS_CORETYPE overrides its choice. */
const char *blas_core(void);
/* c [m][n] = a [m][k] . b [n][k]^T. */
void blas_sgemm(int n_threads, int m, int n, int k, const float *a, const float *b,
                float *c);

/* Waits, at most two seconds, until this process's threads stop using the processors. OpenBLAS's
 * threads spin for a while after a product, which takes a core from the next measurement. Returns
 * false if they do not stop. */
bool threads_rest(void);

#endif
