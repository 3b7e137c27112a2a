/* q8_vnni.c - the kernels of 8-bit weights for AVX-512 with VNNI, which multiplies pairs and adds
 * them to a sum in one instruction; see q8.h. */
#include "tensor/cpu/q8.h"

#include "tensor/cpu/vec_avx512.h"

#define Q8_NAME  "vnni"
#define Q8_TABLE q8_kernels_vnni
#define Q8_RUNS                                                                            \
    (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&            \
     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&           \
     __builtin_cpu_supports("avx512vnni"))

static inline __m512i i_dot_512(__m512i sum, __m512i a, __m512i b)
{
    return _mm512_dpwssd_epi32(sum, a, b);
}

#include "tensor/cpu/vec_int_avx512.h"

#include "tensor/cpu/kern_math.h"
#include "tensor/cpu/kern_q8.h"
#include "tensor/cpu/kern_q8_blocked.h"
#include "tensor/cpu/kern_q8_table.h"
