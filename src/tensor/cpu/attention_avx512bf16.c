/* attention_avx512bf16.c - attention with AVX512-BF16, whose instruction takes pairs of bf16: to
 * each lane of the sums it adds the product of the second numbers, then that of the first ones. */
#include "tensor/cpu/cpu.h"

#include "tensor/cpu/vec_avx512.h"

#include "tensor/cpu/flush_x86.h"
#include "tensor/cpu/kern_math.h"
#include "tensor/cpu/kern_rows.h"
#include "tensor/cpu/kern_matmul.h"

#define VEC_PAIRS

INLINE v16 v_dot_pairs(v16 sum, v16 a, v16 b)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

/* Writes 32 numbers as pairs of bf16. None is subnormal. */
INLINE void v_store_pairs(float *p, v16 first, v16 second)
{
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

/* Returns pairs of 16 neighbours: p[i], p[step + i]. */
INLINE v16 v_zip(const uint16_t *p, int64_t step)
{
    const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
                                          15);
    const __m512i order = _mm512_or_si512(
        low, _mm512_slli_epi32(_mm512_add_epi32(low, _mm512_set1_epi32(32)), 16));
    __m512i a = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)p)),
            b = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(p + step)));
    return _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, order, b));
}

/* Does the same for the first n < 16 neighbours, with zeros behind. */
INLINE v16 v_zip_upto(const uint16_t *p, int64_t step, int64_t n)
{
    uint16_t rows[32] = {0};
    if (n >= 16)
        return v_zip(p, step);
    memcpy(rows, p, (size_t)n * sizeof *p);
    memcpy(rows + 16, p + step, (size_t)n * sizeof *p);
    return v_zip(rows, 16);
}

#include "tensor/cpu/kern_attention.h"

void attention_avx512bf16(const struct attn_tile *t)
{
    attention(t);
}
