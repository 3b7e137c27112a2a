/* bf16r_avx512.c - the kernels of bf16r.h compiled for one instruction set. */
#include "tensor/cpu/bf16r.h"

#include "tensor/cpu/vec_avx512.h"

#include "tensor/cpu/flush_x86.h"

#define BF16R_NAME  "avx512"
#define BF16R_TABLE bf16r_kernels_avx512

static bool runs_here(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

/* Splits 16 pairs of bf16 into the elements of even k and those of odd k. */
static inline void v_pairs(const uint8_t *p, v16 *even, v16 *odd)
{
    __m512i both = _mm512_loadu_si512(p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000)));
}

#include "tensor/cpu/kern_math.h"

#include "tensor/cpu/kern_bf16r.h"
