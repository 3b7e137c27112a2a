/* q8_avx512.c - the kernels of 8-bit weights compiled for one instruction set; see q8.h. */
#include "tensor/cpu/q8.h"

#include "tensor/cpu/vec_avx512.h"

#define Q8_NAME  "avx512"
#define Q8_TABLE q8_kernels_avx512
#define Q8_RUNS                                                                            \
    (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&            \
     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))

static inline __m512i i_dot_512(__m512i sum, __m512i a, __m512i b)
{
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
}

#include "tensor/cpu/vec_int_avx512.h"

#include "tensor/cpu/kern_math.h"
#include "tensor/cpu/kern_q8.h"
#include "tensor/cpu/kern_q8_blocked.h"
#include "tensor/cpu/kern_q8_table.h"
