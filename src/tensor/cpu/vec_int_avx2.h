/* vec_int_avx2.h - 16 lanes of two 16-bit numbers in two AVX2 registers.  (pmaddubsw would take
 * 8-bit numbers directly, but its sums saturate.) */
#ifndef TENSOR_INT_H
#define TENSOR_INT_H

#include <immintrin.h>
#include <string.h>

#include "tensor/cpu/vec_avx2.h"

#define Q8_NAME   "avx2"
#define Q8_TABLE  q8_kernels_avx2
#define Q8_ROWS   4
#define Q8_PANELS 1
#define Q8_WIDE_1 4
#define Q8_WIDE_2 1
#define Q8_WIDE_4 1
#define Q8_DIRECT 4
#define Q8_STRIPS 16
#define Q8_UNROLL _Pragma("GCC unroll 2")
#define Q8_RUNS   (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))

typedef struct {
    __m256i lo, hi;
} i16x2;
typedef i16x2 i32;

static inline i32 i_zero(void)
{
    return (i32){_mm256_setzero_si256(), _mm256_setzero_si256()};
}
static inline i16x2 i_load(const void *p)
{
    return (i16x2){_mm256_loadu_si256(p), _mm256_loadu_si256((const __m256i *)p + 1)};
}
static inline void i_store(void *p, i16x2 a)
{
    _mm256_storeu_si256(p, a.lo);
    _mm256_storeu_si256((__m256i *)p + 1, a.hi);
}
/* Returns the pair at p in every lane. */
static inline i16x2 i_set1(const int16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    __m256i v = _mm256_set1_epi32(pair);
    return (i16x2){v, v};
}
/* Sign-extends the even and the odd bytes of 16 lanes of four bytes. */
static inline void i_widen(const uint8_t *p, i16x2 *even, i16x2 *odd)
{
    i16x2 v = i_load(p);
    even->lo = _mm256_srai_epi16(_mm256_slli_epi16(v.lo, 8), 8);
    even->hi = _mm256_srai_epi16(_mm256_slli_epi16(v.hi, 8), 8);
    odd->lo = _mm256_srai_epi16(v.lo, 8);
    odd->hi = _mm256_srai_epi16(v.hi, 8);
}
/* Returns sum + a[0] * b[0] + a[1] * b[1], lane by lane. */
static inline i32 i_dot(i32 sum, i16x2 a, i16x2 b)
{
    return (i32){_mm256_add_epi32(sum.lo, _mm256_madd_epi16(a.lo, b.lo)),
                 _mm256_add_epi32(sum.hi, _mm256_madd_epi16(a.hi, b.hi))};
}
static inline v16 i_float(i32 a)
{
    return v_pair(_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi));
}

#endif
