/* vec_avx2.h - a vector of 16 floats in two AVX2 registers. */
#ifndef TENSOR_VEC_H
#define TENSOR_VEC_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "tensor/cpu/transpose_avx2.h"
#include "tensor/tensor.h"

#define VEC_ISA   "avx2"
#define VEC_TABLE cpu_kernels_avx2
/* 6 rows x 1 panel: 12 of the 16 registers are sums. */
#define MM_ROWS   6
#define MM_PANELS 1
#define MM_WIDE_1 4
#define MM_WIDE_2 2
#define MM_WIDE_4 1
/* Rows of a strip when bf16 is converted in registers: with 6 rows the compiler keeps some sums in
 * memory. */
#define MM_BF16_ROWS 5
/* For more than MM_CONVERT_ROWS rows weights are converted beforehand; for more than MM_ALONG_ROWS
 * rows the product proceeds over the columns of a k-block, not along panels (kern_matmul.h). */
#define MM_CONVERT_ROWS 15
#define MM_ALONG_ROWS   20
/* From this many queries on, K and V are converted beforehand. */
#define ATTN_CONVERT_QUERIES 32

typedef struct {
    __m256 lo, hi;
} v16;

static inline v16 v_pair(__m256 lo, __m256 hi)
{
    return (v16){lo, hi};
}
static inline v16 v_set1(float x)
{
    return v_pair(_mm256_set1_ps(x), _mm256_set1_ps(x));
}
static inline v16 v_zero(void)
{
    return v_pair(_mm256_setzero_ps(), _mm256_setzero_ps());
}
static inline v16 v_load(const float *p)
{
    return v_pair(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
static inline void v_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
static inline v16 v_add(v16 a, v16 b)
{
    return v_pair(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi));
}
static inline v16 v_sub(v16 a, v16 b)
{
    return v_pair(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi));
}
static inline v16 v_mul(v16 a, v16 b)
{
    return v_pair(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi));
}
static inline v16 v_div(v16 a, v16 b)
{
    return v_pair(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi));
}
/* Returns a * b + c, rounded once. */
static inline v16 v_fma(v16 a, v16 b, v16 c)
{
    return v_pair(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}
/* Returns b if either is NaN. */
static inline v16 v_max(v16 a, v16 b)
{
    return v_pair(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi));
}
static inline v16 v_min(v16 a, v16 b)
{
    return v_pair(_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi));
}
/* Returns x < limit ? a : b, lane by lane; b where x is NaN. */
static inline v16 v_select_less(v16 x, v16 limit, v16 a, v16 b)
{
    return v_pair(_mm256_blendv_ps(b.lo, a.lo, _mm256_cmp_ps(x.lo, limit.lo, _CMP_LT_OQ)),
                  _mm256_blendv_ps(b.hi, a.hi, _mm256_cmp_ps(x.hi, limit.hi, _CMP_LT_OQ)));
}
/* Returns x < limit ? 0 : a, lane by lane; a where x is NaN. */
static inline v16 v_zero_below(v16 x, v16 limit, v16 a)
{
    return v_pair(_mm256_andnot_ps(_mm256_cmp_ps(x.lo, limit.lo, _CMP_LT_OQ), a.lo),
                  _mm256_andnot_ps(_mm256_cmp_ps(x.hi, limit.hi, _CMP_LT_OQ), a.hi));
}
static inline bool v_any_differs(v16 a, v16 b)
{
    return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_NEQ_UQ),
                                           _mm256_cmp_ps(a.hi, b.hi, _CMP_NEQ_UQ))) != 0;
}
/* Shifts the bits of each lane to the left by 23. */
static inline v16 v_shift23(v16 a)
{
    return v_pair(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.lo), 23)),
                  _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.hi), 23)));
}
/* Returns a in the lanes below n, and b in the others. */
static inline v16 v_first(int n, v16 a, v16 b)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i lo = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
    __m256i hi = _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lane);
    return v_pair(_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(lo)),
                  _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(hi)));
}
/* Returns the sum of the lanes: 16 -> 8 -> 4 -> 2 -> 1, each step adding lane i + half to lane i.
 */
static inline float v_sum(v16 a)
{
    __m256 s8 = _mm256_add_ps(a.lo, a.hi);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
static inline float v_max_lane(v16 a)
{
    __m256 s8 = _mm256_max_ps(a.lo, a.hi);
    __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

static inline __m256 bf16_half(const uint16_t *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
static inline v16 v_load_bf16(const uint16_t *p)
{
    return v_pair(bf16_half(p), bf16_half(p + 8));
}
/* Loads 16 bf16 with one shuffle per 8 elements, where v_load_bf16 needs a shuffle and a shift. The
 * lanes are 0-3, 8-11, 4-7, 12-15. */
static inline v16 v_load_bf16_split(const uint16_t *p)
{
    __m256i x = _mm256_loadu_si256((const __m256i *)p), zero = _mm256_setzero_si256();
    return v_pair(_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, x)),
                  _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, x)));
}
static inline v16 v_reorder_bf16(v16 a)
{
    return v_pair(_mm256_permute2f128_ps(a.lo, a.hi, 0x20),
                  _mm256_permute2f128_ps(a.lo, a.hi, 0x31));
}
static inline v16 v_load_f16(const uint16_t *p)
{
    return v_pair(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                  _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}
/* Rounds to nearest even; NaN keeps its upper payload and becomes quiet. */
static inline __m256i bf16_bits(__m256 x)
{
    __m256i u = _mm256_castps_si256(x);
    __m256i high = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i sum = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), quiet, nan);
}
static inline void v_store_bf16(uint16_t *p, v16 a)
{
    __m256i both = _mm256_packus_epi32(bf16_bits(a.lo), bf16_bits(a.hi));
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(both, 0xd8));
}
static inline v16 v_round_bf16(v16 a)
{
    return v_pair(_mm256_castsi256_ps(_mm256_slli_epi32(bf16_bits(a.lo), 16)),
                  _mm256_castsi256_ps(_mm256_slli_epi32(bf16_bits(a.hi), 16)));
}
static inline void v_store_f16(uint16_t *p, v16 a)
{
    _mm_storeu_si128((__m128i *)p,
                     _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *)(p + 8),
                     _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#endif
