/* vec_nib_avx2.h - 16 lanes of four 8-bit numbers in two AVX2 registers.
 *
 * The sums of a block of 32 fit 16 bits, two sums per lane: at most 8 x 2 x 15 x 127 = 30480.  For
 * 6-bit numbers, half a block takes two parts: 2 x 2 x 63 x 127 = 32004. */
#ifndef TENSOR_NIB_H
#define TENSOR_NIB_H

#include <immintrin.h>
#include <string.h>

#include "tensor/cpu/vec_avx2.h"

#define Q4_NAME   "avx2"
#define Q4_TABLE  q4_kernels_avx2
#define Q4_ROWS   4
#define Q4_PANELS 1
#define Q4_WIDE_1 4
#define Q4_WIDE_2 1
#define Q4_WIDE_4 1
#define Q4_DIRECT 4
#define Q4_STRIPS 128
#define Q4_UNROLL _Pragma("GCC unroll 8")
#define Q4_RUNS   (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))

typedef struct {
    __m256i lo, hi;
} i8x4;
typedef i8x4 i_part;
typedef i8x4 i_start; /* what a sum begins at (q4.h) */

static inline i8x4 i_load4(const void *p)
{
    return (i8x4){_mm256_loadu_si256(p), _mm256_loadu_si256((const __m256i *)p + 1)};
}
static inline void i_store4(void *p, i8x4 a)
{
    _mm256_storeu_si256(p, a.lo);
    _mm256_storeu_si256((__m256i *)p + 1, a.hi);
}
/* Returns the four bytes at p in every lane. */
static inline i8x4 i_set4(const void *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    __m256i v = _mm256_set1_epi32(four);
    return (i8x4){v, v};
}
/* Splits 64 bytes into their low and their high halves. */
static inline void i_nibbles(const uint8_t *p, i8x4 *low, i8x4 *high)
{
    const __m256i mask = _mm256_set1_epi8(15);
    i8x4 v = i_load4(p);
    low->lo = _mm256_and_si256(v.lo, mask);
    low->hi = _mm256_and_si256(v.hi, mask);
    high->lo = _mm256_and_si256(_mm256_srli_epi16(v.lo, 4), mask);
    high->hi = _mm256_and_si256(_mm256_srli_epi16(v.hi, 4), mask);
}
/* The number that i_bytes adds to each number of q8. */
#define I_BYTE_BIAS 0
/* Returns table[n] for each byte n of a, from 0 to 15. */
static inline i8x4 i_table(const uint8_t table[16], i8x4 a)
{
    __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    return (i8x4){_mm256_shuffle_epi8(t, a.lo), _mm256_shuffle_epi8(t, a.hi)};
}
/* Returns sum + w . x, lane by lane. w is from 0 to 63, x from -127 to 127. */
static inline i_part i_dot4(i_part sum, i8x4 w, i8x4 x)
{
    sum.lo = _mm256_add_epi16(sum.lo, _mm256_maddubs_epi16(w.lo, x.lo));
    sum.hi = _mm256_add_epi16(sum.hi, _mm256_maddubs_epi16(w.hi, x.hi));
    /* Otherwise gcc computes the products of a whole block first, and keeps them on the stack. */
    __asm__("" : "+x"(sum.lo), "+x"(sum.hi));
    return sum;
}
/* Returns the whole number of 32 bits at p in every lane. */
static inline i_start i_start_at(const void *p)
{
    return i_set4(p);
}
/* Numbers of q8: i_byte_dot returns sum + w . x of the bytes that i_bytes reads and that are from
 * -127 to 127, if the sum began at start_of its block.  Two products of |w|
 * and +-x fit 16 bits.  i_bits returns the bits of a sum as floats. */
static inline i8x4 i_bytes(const uint8_t *p)
{
    return i_load4(p);
}
static inline __m256i i_byte_dot8(__m256i sum, __m256i w, __m256i x)
{
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
static inline i_start i_byte_dot(i_start sum, i8x4 w, i8x4 x)
{
    sum.lo = i_byte_dot8(sum.lo, w.lo, x.lo);
    sum.hi = i_byte_dot8(sum.hi, w.hi, x.hi);
    __asm__("" : "+x"(sum.lo), "+x"(sum.hi)); /* as in i_dot4 */
    return sum;
}
static inline v16 i_bits(i_start sum)
{
    return v_pair(_mm256_castsi256_ps(sum.lo), _mm256_castsi256_ps(sum.hi));
}
#define I_PAIRS false
/* Returns sum + w . z, lane by lane: w has pairs of 16-bit numbers, z is one pair for all lanes. */
static inline i_start i_pairs(i_start sum, const void *w, const void *z)
{
    i8x4 a = i_load4(w), b = i_set4(z);
    sum.lo = _mm256_add_epi32(sum.lo, _mm256_madd_epi16(a.lo, b.lo));
    sum.hi = _mm256_add_epi32(sum.hi, _mm256_madd_epi16(a.hi, b.hi));
    return sum;
}
static inline v16 i_floats(i_start sum)
{
    return v_pair(_mm256_cvtepi32_ps(sum.lo), _mm256_cvtepi32_ps(sum.hi));
}
/* i_begin returns the sum of a block before its products; i_end adds `start` to the sum, unless
 * i_begin has, and returns its bits as floats. */
static inline i_part i_begin(i_start start)
{
    (void)start;
    return (i_part){_mm256_setzero_si256(), _mm256_setzero_si256()};
}
static inline i_start i_whole(i_part a, i_start start)
{
    const __m256i ones = _mm256_set1_epi16(1);
    return (i_start){_mm256_add_epi32(_mm256_madd_epi16(a.lo, ones), start.lo),
                     _mm256_add_epi32(_mm256_madd_epi16(a.hi, ones), start.hi)};
}
static inline v16 i_end(i_part sum, i_start start)
{
    return i_bits(i_whole(sum, start));
}
/* Sums over half a block of 6-bit numbers, in four steps v.  i_half_begin returns a sum that begins
 * at `start`; i_half_end returns the bits of the sum as floats. */
typedef struct {
    i_start whole; /* over the steps before, two at a time */
    i_part part;
} i_half_sum;
static inline i_half_sum i_half_begin(i8x4 start)
{
    return (i_half_sum){start, i_begin(start)};
}
static inline i_half_sum i_half_dot(i_half_sum s, i8x4 w, i8x4 x, int v)
{
    s.part = i_dot4(s.part, w, x);
    if (v % 2 == 1)
        s = i_half_begin(i_whole(s.part, s.whole));
    return s;
}
static inline v16 i_half_end(i_half_sum s)
{
    return i_bits(s.whole);
}
static inline __m256i i_six(__m256i n, __m256i h, int half, int v)
{
    const __m256i low = _mm256_set1_epi8(15), high = _mm256_set1_epi8(48);
    n = half == 0 ? n : _mm256_srli_epi16(n, 4);
    h = v == 0   ? _mm256_slli_epi16(h, 4)
        : v == 1 ? _mm256_slli_epi16(h, 2)
        : v == 2 ? h
                 : _mm256_srli_epi16(h, 2);
    return _mm256_or_si256(_mm256_and_si256(n, low), _mm256_and_si256(h, high));
}
/* Sets q to the 6-bit numbers of half a block (q4.h), in order of k. */
static inline void i_sixes(const uint8_t *p, int half, i8x4 q[4])
{
    i8x4 h = i_load4(p + 256 + 64 * half);
    for (int v = 0; v < 4; v++) {
        i8x4 n = i_load4(p + 64 * v);
        q[v] = (i8x4){i_six(n.lo, h.lo, half, v), i_six(n.hi, h.hi, half, v)};
    }
}
/* Rounds 16 numbers from -127 to 127, halves to even, and stores them as bytes. */
static inline void i_store_bytes(int8_t *p, v16 a)
{
    /* 0-3, 8-11, 4-7, 12-15 */
    __m256i n = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
    n = _mm256_permute4x64_epi64(n, 0xd8);
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi16(_mm256_castsi256_si128(n),
                                                   _mm256_extracti128_si256(n, 1)));
}
static inline v16 v_load_i8(const uint8_t *p)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return v_pair(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                  _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))));
}
static inline __m256 v_power(__m128i bytes)
{
    const __m256i one = _mm256_set1_epi32(1);
    __m256i e = _mm256_cvtepu8_epi32(bytes);
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23),
            small = _mm256_slli_epi32(_mm256_add_epi32(e, one), 21);
    return _mm256_castsi256_ps(_mm256_max_epi32(normal, small));
}
/* Returns 2^(p[i] - 128) in each lane: the bits of a normal number for p[i] >= 2. */
static inline v16 v_load_power(const uint8_t *p)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return v_pair(v_power(bytes), v_power(_mm_srli_si128(bytes, 8)));
}
static inline v16 v_load_u8(const uint8_t *p)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return v_pair(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
                  _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))));
}

#endif
