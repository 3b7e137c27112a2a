/* vec_nib_avx512.h - 16 lanes of four 8-bit numbers in one AVX-512 register.  The including file
 * defines i_dot4_512, i_dot2_512 and I_SUMS_16: some CPUs add products to sums of 32 bits in one
 * instruction; on others the sums of a block are kept in 16 bits (I_SUMS_16), as vec_nib_avx2.h
 * does. */
#ifndef TENSOR_NIB_H
#define TENSOR_NIB_H

#include <immintrin.h>
#include <string.h>

#include "tensor/cpu/vec_avx512.h"

/* 6 rows x 2 panels: 12 sums of integers and 12 of floats. */
#define Q4_ROWS   6
#define Q4_PANELS 2
#define Q4_WIDE_1 4
#define Q4_WIDE_2 4
#define Q4_WIDE_4 2
/* Seven and eight rows take one panel, 8 sums of integers and 8 of floats, or two of types without
 * minimums. */
#define Q4_DIRECT 8
#define Q4_STRIPS 24
/* The steps of a block: in a loop gcc copies all sums at every step. */
#define Q4_UNROLL _Pragma("GCC unroll 8")

typedef __m512i i8x4;
typedef __m512i i_part;
typedef __m512i i_start; /* the first value of a sum (q4.h) */

static inline i8x4 i_load4(const void *p)
{
    return _mm512_loadu_si512(p);
}
static inline void i_store4(void *p, i8x4 a)
{
    _mm512_storeu_si512(p, a);
}
/* Returns the four bytes at p in every lane. */
static inline i8x4 i_set4(const void *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}
/* Splits 64 bytes into their low and their high halves. */
static inline void i_nibbles(const uint8_t *p, i8x4 *low, i8x4 *high)
{
    const __m512i mask = _mm512_set1_epi8(15);
    __m512i v = _mm512_loadu_si512(p);
    *low = _mm512_and_si512(v, mask);
    *high = _mm512_and_si512(_mm512_srli_epi16(v, 4), mask);
}
/* The number that i_bytes adds to each number of q8. */
#define I_BYTE_BIAS (I_SUMS_16 ? 0 : 128)
/* Returns table[n] for each byte n of a, from 0 to 15. */
static inline i8x4 i_table(const uint8_t table[16], i8x4 a)
{
    __m128i t = _mm_loadu_si128((const __m128i *)table);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), a);
}
/* Returns sum + w . x, lane by lane. w is from 0 to 63, x from -127 to 127. */
static inline i_part i_dot4(i_part sum, i8x4 w, i8x4 x)
{
    return i_dot4_512(sum, w, x);
}
/* Returns the whole number of 32 bits at p in every lane. */
static inline i_start i_start_at(const void *p)
{
    return i_set4(p);
}
/* Numbers of q8: i_byte_dot returns sum + w . x of the bytes that i_bytes reads and that are from
 * -127 to 127, if the sum began at start_of its block.  VNNI multiplies
 * numbers without a sign, q + 128, and the sum begins that much lower.  Otherwise two products of
 * |w| and +-x fit 16 bits.  i_bits returns the bits of a sum as floats. */
static inline i8x4 i_bytes(const uint8_t *p)
{
    i8x4 w = i_load4(p);
    return I_SUMS_16 ? w : _mm512_xor_si512(w, _mm512_set1_epi8(-128));
}
static inline i_start i_byte_dot(i_start sum, i8x4 w, i8x4 x)
{
    if (!I_SUMS_16)
        return i_dot4(sum, w, x);
    x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
    __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(w), x);
    return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
static inline v16 i_bits(i_start sum)
{
    return _mm512_castsi512_ps(sum);
}
/* Whether i_pairs is one instruction, and faster than sums of floats. */
#define I_PAIRS (!I_SUMS_16)
/* Returns sum + w . z, lane by lane: w has pairs of 16-bit numbers, z is one pair for all lanes. */
static inline i_start i_pairs(i_start sum, const void *w, const void *z)
{
    return i_dot2_512(sum, i_load4(w), i_set4(z));
}
static inline v16 i_floats(i_start sum)
{
    return _mm512_cvtepi32_ps(sum);
}
/* i_begin returns the sum of a block before its products; i_end adds `start` to the sum, unless
 * i_begin has, and returns its bits as floats. */
static inline i_part i_begin(i_start start)
{
    return I_SUMS_16 ? _mm512_setzero_si512() : start;
}
static inline i_start i_whole(i_part sum, i_start start)
{
    return I_SUMS_16 ? _mm512_add_epi32(_mm512_madd_epi16(sum, _mm512_set1_epi16(1)), start)
                     : sum;
}
static inline v16 i_end(i_part sum, i_start start)
{
    return i_bits(i_whole(sum, start));
}
/* Sums over half a block of 6-bit numbers, in four steps v.  i_half_begin returns a sum that begins
 * at `start`; i_half_end returns the bits of the sum as floats. */
typedef struct {
    i_start whole; /* over the steps before, two at a time; all steps unless I_SUMS_16 */
    i_part part;
} i_half_sum;
static inline i_half_sum i_half_begin(i8x4 start)
{
    return (i_half_sum){start, i_begin(start)};
}
static inline i_half_sum i_half_dot(i_half_sum s, i8x4 w, i8x4 x, int v)
{
    s.part = i_dot4(s.part, w, x);
    if (!I_SUMS_16)
        s.whole = s.part;
    else if (v % 2 == 1)
        s = i_half_begin(i_whole(s.part, s.whole));
    return s;
}
static inline v16 i_half_end(i_half_sum s)
{
    return i_bits(s.whole);
}
/* Sets q to the 6-bit numbers of half a block (q4.h), in order of k. */
static inline void i_sixes(const uint8_t *p, int half, i8x4 q[4])
{
    const __m512i low = _mm512_set1_epi8(15), high = _mm512_set1_epi8(48);
    __m512i h = _mm512_loadu_si512(p + 256 + 64 * half);
    __m512i bits[4] = {_mm512_slli_epi16(h, 4), _mm512_slli_epi16(h, 2), h,
                       _mm512_srli_epi16(h, 2)};
    for (int v = 0; v < 4; v++) {
        __m512i n = _mm512_loadu_si512(p + 64 * v);
        n = half == 0 ? n : _mm512_srli_epi16(n, 4);
        q[v] = _mm512_or_si512(_mm512_and_si512(n, low), _mm512_and_si512(bits[v], high));
    }
}
/* Rounds 16 numbers from -127 to 127, halves to even, and stores them as bytes. */
static inline void i_store_bytes(int8_t *p, v16 a)
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}
static inline v16 v_load_i8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
/* Returns 2^(p[i] - 128) in each lane: the bits of a normal number for p[i] >= 2. */
static inline v16 v_load_power(const uint8_t *p)
{
    __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    const __m512i one = _mm512_set1_epi32(1);
    __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23),
            small = _mm512_slli_epi32(_mm512_add_epi32(e, one), 21);
    return _mm512_castsi512_ps(_mm512_max_epi32(normal, small));
}
static inline v16 v_load_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

#endif
