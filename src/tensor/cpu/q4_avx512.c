/* q4_avx512.c - the kernels of 4-bit weights compiled for one instruction set; see quant.h. */
#include "tensor/cpu/q4.h"

#include "tensor/cpu/vec_avx512.h"

#define Q4_NAME  "avx512"
#define Q4_TABLE q4_kernels_avx512
#define Q4_RUNS                                                                            \
    (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&            \
     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))

#define I_SUMS_16 true
static inline __m512i i_dot4_512(__m512i sum, __m512i w, __m512i x)
{
    sum = _mm512_add_epi16(sum, _mm512_maddubs_epi16(w, x));
    __asm__("" : "+v"(sum)); /* as in vec_nib_avx2.h */
    return sum;
}
static inline __m512i i_dot2_512(__m512i sum, __m512i w, __m512i z)
{
    return _mm512_add_epi32(sum, _mm512_madd_epi16(w, z));
}

#include "tensor/cpu/vec_nib_avx512.h"

#include "tensor/cpu/kern_math.h"
#include "tensor/cpu/kern_q4.h"
#include "tensor/cpu/kern_q4_blocked.h"
#include "tensor/cpu/kern_q4_table.h"
