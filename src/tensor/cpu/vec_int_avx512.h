/* vec_int_avx512.h - 16 lanes of two 16-bit numbers in one AVX-512 register.  The including file
 * defines i_dot_512, the one step for which some CPUs have an instruction. */
#ifndef TENSOR_INT_H
#define TENSOR_INT_H

#include <immintrin.h>
#include <string.h>

#include "tensor/cpu/vec_avx512.h"

/* 6 rows x 2 panels: 12 sums of integers and 12 of floats. */
#define Q8_ROWS   6
#define Q8_PANELS 2
#define Q8_WIDE_1 4
#define Q8_WIDE_2 4
#define Q8_WIDE_4 2
/* Five to eight rows take one panel: three sums a row. */
#define Q8_DIRECT 8
#define Q8_STRIPS 16
/* The steps of a block: in a loop gcc copies all sums at every step. */
#define Q8_UNROLL _Pragma("GCC unroll 16")

typedef __m512i i16x2;
typedef __m512i i32;

static inline i32 i_zero(void)
{
    return _mm512_setzero_si512();
}
static inline i16x2 i_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
static inline void i_store(void *p, i16x2 a)
{
    _mm512_storeu_si512(p, a);
}
/* Returns the pair at p in every lane. */
static inline i16x2 i_set1(const int16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
}
/* Sign-extends the even and the odd bytes of 16 lanes of four bytes. */
static inline void i_widen(const uint8_t *p, i16x2 *even, i16x2 *odd)
{
    __m512i v = _mm512_loadu_si512(p);
    *even = _mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8);
    *odd = _mm512_srai_epi16(v, 8);
}
/* Returns sum + a[0] * b[0] + a[1] * b[1], lane by lane. */
static inline i32 i_dot(i32 sum, i16x2 a, i16x2 b)
{
    return i_dot_512(sum, a, b);
}
static inline v16 i_float(i32 a)
{
    return _mm512_cvtepi32_ps(a);
}

#endif
