/* vec_portable.h - a vector of 16 floats in plain C: it runs on every CPU, and tests compare the
 * other two with it.  A fused step calls the C library's fmaf, because the compiler may not fuse
 * products and sums itself (-ffp-contract=off). */
#ifndef TENSOR_VEC_H
#define TENSOR_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "tensor/tensor.h"

#define VEC_ISA   "portable"
#define VEC_TABLE cpu_kernels_portable
/* One row and one panel at a time: two rows of 16 lanes would not fit in registers. */
#define MM_ROWS         1
#define MM_PANELS       1
#define MM_WIDE_1       1
#define MM_WIDE_2       1
#define MM_WIDE_4       1
#define MM_BF16_ROWS    1
#define MM_CONVERT_ROWS 0
#define MM_ALONG_ROWS   0
/* from this many queries on, K and V are converted beforehand */
#define ATTN_CONVERT_QUERIES 0

/* The compiler splits it into vectors that the machine has, in half of the time that it needs for
 * loops over 16 elements. */
typedef float v16 __attribute__((vector_size(64)));
typedef uint32_t v16_bits __attribute__((vector_size(64)));

#define V_EACH(i) for (int i = 0; i < 16; i++)

static inline v16 v_set1(float x)
{
    return (v16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}
static inline v16 v_zero(void)
{
    return v_set1(0);
}
static inline v16 v_load(const float *p)
{
    v16 r;
    memcpy(&r, p, sizeof r);
    return r;
}
static inline void v_store(float *p, v16 a)
{
    memcpy(p, &a, sizeof a);
}
static inline v16 v_add(v16 a, v16 b)
{
    return a + b;
}
static inline v16 v_sub(v16 a, v16 b)
{
    return a - b;
}
static inline v16 v_mul(v16 a, v16 b)
{
    return a * b;
}
static inline v16 v_div(v16 a, v16 b)
{
    return a / b;
}
/* v_fma returns a * b + c, rounded once. 16 calls of fmaf take 2.6 times as long as one call that
 * has the processor's instruction for 16 lanes. Inlined, they would be slow to compile. */
#if defined(__x86_64__) && !defined(__FP_FAST_FMAF)
#include <immintrin.h>
static __attribute__((noinline, target("fma"))) void fma_x86(float *acc, const float *a,
                                                             const float *b)
{
    for (int i = 0; i < 16; i += 4)
        _mm_storeu_ps(acc + i, _mm_fmadd_ps(_mm_loadu_ps(a + i), _mm_loadu_ps(b + i),
                                            _mm_loadu_ps(acc + i)));
}
static __attribute__((noinline)) void fma_lanes(float *acc, const float *a, const float *b)
{
    if (__builtin_cpu_supports("fma"))
        fma_x86(acc, a, b);
    else
        V_EACH(i) acc[i] = fmaf(a[i], b[i], acc[i]);
}
static inline v16 v_fma(v16 a, v16 b, v16 c)
{
    fma_lanes((float *)&c, (float *)&a, (float *)&b);
    return c;
}
#else
static inline v16 v_fma(v16 a, v16 b, v16 c)
{
    V_EACH(i) c[i] = fmaf(a[i], b[i], c[i]);
    return c;
}
#endif
/* Returns b if either is NaN, as the vector instructions do. */
static inline v16 v_max(v16 a, v16 b)
{
    V_EACH(i) a[i] = a[i] > b[i] ? a[i] : b[i];
    return a;
}
static inline v16 v_min(v16 a, v16 b)
{
    V_EACH(i) a[i] = a[i] < b[i] ? a[i] : b[i];
    return a;
}
/* Returns x < limit ? a : b, lane by lane; b where x is NaN. */
static inline v16 v_select_less(v16 x, v16 limit, v16 a, v16 b)
{
    V_EACH(i) b[i] = x[i] < limit[i] ? a[i] : b[i];
    return b;
}
/* Returns x < limit ? 0 : a, lane by lane; a where x is NaN. */
static inline v16 v_zero_below(v16 x, v16 limit, v16 a)
{
    V_EACH(i) a[i] = x[i] < limit[i] ? 0 : a[i];
    return a;
}
static inline bool v_any_differs(v16 a, v16 b)
{
    bool any = false;
    V_EACH(i) any |= !(a[i] == b[i]);
    return any;
}
/* Shifts the bits of each lane to the left by 23. */
static inline v16 v_shift23(v16 a)
{
    return (v16)((v16_bits)a << 23);
}
/* Returns a in the lanes below n, and b in the others. */
static inline v16 v_first(int n, v16 a, v16 b)
{
    V_EACH(i) a[i] = i < n ? a[i] : b[i];
    return a;
}
/* Returns the sum of the lanes: 16 -> 8 -> 4 -> 2 -> 1, each step adding lane i + half to lane i.
 */
static inline float v_sum(v16 a)
{
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            a[i] = a[i] + a[i + half];
    return a[0];
}
static inline float v_max_lane(v16 a)
{
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            a[i] = a[i] > a[i + half] ? a[i] : a[i + half];
    return a[0];
}

static inline v16 v_load_bf16(const uint16_t *p)
{
    v16 r;
    V_EACH(i) r[i] = bf16_to_f32(p[i]);
    return r;
}
static inline v16 v_load_bf16_split(const uint16_t *p)
{
    return v_load_bf16(p);
}
static inline v16 v_reorder_bf16(v16 a)
{
    return a;
}
static inline v16 v_load_f16(const uint16_t *p)
{
    v16 r;
    V_EACH(i) r[i] = f16_to_f32(p[i]);
    return r;
}
static inline void v_store_bf16(uint16_t *p, v16 a)
{
    V_EACH(i) p[i] = f32_to_bf16(a[i]);
}
static inline v16 v_round_bf16(v16 a)
{
    V_EACH(i) a[i] = bf16_to_f32(f32_to_bf16(a[i]));
    return a;
}
static inline void v_store_f16(uint16_t *p, v16 a)
{
    V_EACH(i) p[i] = f32_to_f16(a[i]);
}

static inline v16 v_flush(v16 a)
{
    for (int i = 0; i < 16; i++)
        if (fabsf(a[i]) < 0x1p-126f)
            a[i] = copysignf(0, a[i]);
    return a;
}
/* Returns r = fma(x, y, acc), or zero if it is subnormal. A result just below 2^-126 is subnormal
 * for the processor although fmaf rounds it up to 2^-126. The scaled fma, which keeps 24 bits
 * there, decides (as in ref.h). */
static inline float flush_fma(float r, float x, float y, float acc)
{
    float ax = fabsf(x), ay = fabsf(y);
    float scaled = fmaf((ax < ay ? x : y) * 0x1p64f, ax < ay ? y : x, acc * 0x1p64f);
    return fabsf(scaled) < 0x1p-62f ? copysignf(0, r) : r;
}
static inline v16 v_fma_flush(v16 a, v16 b, v16 acc)
{
    v16 r = v_fma(a, b, acc);
    for (int i = 0; i < 16; i++)
        if (fabsf(r[i]) <= 0x1p-126f && r[i] != 0)
            r[i] = flush_fma(r[i], a[i], b[i], acc[i]);
    return r;
}
static inline unsigned flushing_begin(void)
{
    return 0;
}
static inline void flushing_end(unsigned before)
{
    (void)before;
}

/* Sets dst[j][i] = src[i][j] for 16 by 16 elements. Strides are in elements. */
static inline void transpose16_u16(uint16_t *dst, int dst_stride, const uint16_t *src,
                                   int src_stride)
{
    V_EACH(i)
    for (int j = 0; j < 16; j++)
        dst[j * dst_stride + i] = src[i * src_stride + j];
}

/* Copies n bytes. In the other instruction sets the write bypasses the caches if dst is aligned to
 * lines of 64 bytes and n is a whole number of lines: half the memory traffic, because the lines
 * are not read first. stream_end orders these writes before later ones. */
static inline void stream_lines(void *dst, const void *src, size_t n)
{
    memcpy(dst, src, n);
}
static inline void stream_end(void)
{
}

#endif
