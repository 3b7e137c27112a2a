/* q4_vnni.c - the kernels of 4-bit weights for AVX-512 with VNNI, which multiplies groups of four
 * bytes and adds them to a sum in one instruction; see quant.h. */
#include "tensor/cpu/q4.h"

#include "tensor/cpu/vec_avx512.h"

#define Q4_NAME  "vnni"
#define Q4_TABLE q4_kernels_vnni
#define Q4_RUNS                                                                            \
    (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&            \
     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&           \
     __builtin_cpu_supports("avx512vnni"))

#define I_SUMS_16 false
static inline __m512i i_dot4_512(__m512i sum, __m512i w, __m512i x)
{
    return _mm512_dpbusd_epi32(sum, w, x);
}
static inline __m512i i_dot2_512(__m512i sum, __m512i w, __m512i z)
{
    return _mm512_dpwssd_epi32(sum, w, z);
}

#include "tensor/cpu/vec_nib_avx512.h"

#include "tensor/cpu/kern_math.h"
#include "tensor/cpu/kern_q4.h"
#include "tensor/cpu/kern_q4_blocked.h"
#include "tensor/cpu/kern_q4_table.h"
