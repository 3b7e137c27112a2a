/* bf16r_avx2.c - the kernels of bf16r.h compiled for one instruction set. */
#include "tensor/cpu/bf16r.h"

#include "tensor/cpu/vec_avx2.h"

#include "tensor/cpu/flush_x86.h"

#define BF16R_NAME  "avx2"
#define BF16R_TABLE bf16r_kernels_avx2

static bool runs_here(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

/* Splits 16 pairs of bf16 into the elements of even k and those of odd k. */
static inline void v_pairs(const uint8_t *p, v16 *even, v16 *odd)
{
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
    __m256i lo = _mm256_loadu_si256((const __m256i *)p),
            hi = _mm256_loadu_si256((const __m256i *)p + 1);
    *even = v_pair(_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
                   _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16)));
    *odd = v_pair(_mm256_castsi256_ps(_mm256_and_si256(lo, upper)),
                  _mm256_castsi256_ps(_mm256_and_si256(hi, upper)));
}

#include "tensor/cpu/kern_math.h"

#include "tensor/cpu/kern_bf16r.h"
