/* vec_avx512.h - a vector of 16 floats in one AVX-512 register. */
#ifndef TENSOR_VEC_H
#define TENSOR_VEC_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "tensor/cpu/transpose_avx2.h"
#include "tensor/tensor.h"

#define VEC_ISA   "avx512"
#define VEC_TABLE cpu_kernels_avx512
/* 12 rows x 2 panels: 24 of the 32 registers are sums. */
#define MM_ROWS   12
#define MM_PANELS 2
#define MM_WIDE_1 4
#define MM_WIDE_2 4
#define MM_WIDE_4 4
/* See vec_avx2.h. */
#define MM_BF16_ROWS    12
#define MM_CONVERT_ROWS 24
#define MM_ALONG_ROWS   24
/* from this many queries on, K and V are converted beforehand */
#define ATTN_CONVERT_QUERIES 24

typedef __m512 v16;

static inline v16 v_set1(float x)
{
    return _mm512_set1_ps(x);
}
static inline v16 v_zero(void)
{
    return _mm512_setzero_ps();
}
static inline v16 v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline void v_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a);
}
static inline v16 v_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}
static inline v16 v_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}
static inline v16 v_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}
static inline v16 v_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}
/* Returns a * b + c, rounded once. */
static inline v16 v_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}
/* Returns b if either is NaN. */
static inline v16 v_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}
static inline v16 v_min(v16 a, v16 b)
{
    return _mm512_min_ps(a, b);
}
/* Returns x < limit ? a : b, lane by lane; b where x is NaN. */
static inline v16 v_select_less(v16 x, v16 limit, v16 a, v16 b)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), b, a);
}
/* Returns x < limit ? 0 : a, lane by lane; a where x is NaN. */
static inline v16 v_zero_below(v16 x, v16 limit, v16 a)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), a);
}
static inline bool v_any_differs(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ) != 0;
}
/* Shifts the bits of each lane to the left by 23. */
static inline v16 v_shift23(v16 a)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 23));
}
/* Returns a in the lanes below n, and b in the others. */
static inline v16 v_first(int n, v16 a, v16 b)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
                                           15);
    return _mm512_mask_blend_ps(_mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(n)), b, a);
}
/* Returns the sum of the lanes: 16 -> 8 -> 4 -> 2 -> 1, each step adding lane i + half to lane i.
 */
static inline float v_sum(v16 a)
{
    __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
static inline float v_max_lane(v16 a)
{
    __m256 s8 = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

static inline v16 v_load_bf16(const uint16_t *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
/* Loads 16 bf16 with one shuffle, where v_load_bf16 needs a shuffle and a shift. The lanes are in
 * the order 0-3, 8-11, 4-7, 12-15, because a shuffle moves bytes only inside 16 bytes. Loading the
 * same 32 bytes into both halves costs nothing. */
static inline v16 v_load_bf16_split(const uint16_t *p)
{
    const __m512i upper_halves = _mm512_set_epi64(
        0x0f0e80800d0c8080, 0x0b0a808009088080, 0x0f0e80800d0c8080, 0x0b0a808009088080,
        0x0706808005048080, 0x0302808001008080, 0x0706808005048080, 0x0302808001008080);
    __m512i twice = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_shuffle_epi8(twice, upper_halves));
}
static inline v16 v_reorder_bf16(v16 a)
{
    return _mm512_shuffle_f32x4(a, a, _MM_SHUFFLE(3, 1, 2, 0));
}
static inline v16 v_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
/* Rounds to nearest even; NaN keeps its upper payload and becomes quiet. (vcvtneps2bf16 flushes
 * subnormals, which ops.h does not allow.) */
static inline __m512i bf16_bits(v16 a)
{
    __m512i u = _mm512_castps_si512(a);
    __m512i high = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i sum = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    __m512i bits = _mm512_srli_epi32(sum, 16);
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(bits, nan, high, _mm512_set1_epi32(0x40));
}
static inline void v_store_bf16(uint16_t *p, v16 a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(bf16_bits(a)));
}
static inline v16 v_round_bf16(v16 a)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(bf16_bits(a), 16));
}
static inline void v_store_f16(uint16_t *p, v16 a)
{
    _mm256_storeu_si256((__m256i *)p,
                        _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#endif
