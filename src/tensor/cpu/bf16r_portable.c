/* bf16r_portable.c - the kernels of bf16r.h in plain C. */
#include "tensor/cpu/bf16r.h"

#include "tensor/cpu/vec_portable.h"

#include <math.h>
#include <string.h>

#define BF16R_NAME  "portable"
#define BF16R_TABLE bf16r_kernels_portable

static bool runs_here(void)
{
    return true;
}

static inline v16 v_flush(v16 a)
{
    for (int i = 0; i < 16; i++)
        if (fabsf(a[i]) < 0x1p-126f)
            a[i] = copysignf(0, a[i]);
    return a;
}
/* Returns fma(x, y, acc), or zero if it is subnormal. A result just below 2^-126 is subnormal for
 * the processor although fmaf rounds it up to 2^-126. The scaled fma, which keeps 24 bits there,
 * decides (as in ref_bf16r.c). */
static inline float fma_flush(float x, float y, float acc)
{
    float r = fmaf(x, y, acc), ax = fabsf(x), ay = fabsf(y);
    if (fabsf(r) > 0x1p-126f || isnan(r))
        return r;
    float scaled = fmaf((ax < ay ? x : y) * 0x1p64f, ax < ay ? y : x, acc * 0x1p64f);
    return fabsf(scaled) < 0x1p-62f ? copysignf(0, r) : r;
}
static inline v16 v_fma_flush(v16 a, v16 b, v16 acc)
{
    for (int i = 0; i < 16; i++)
        acc[i] = fma_flush(a[i], b[i], acc[i]);
    return acc;
}
/* Splits 16 pairs of bf16 into the elements of even k and those of odd k. */
static inline void v_pairs(const uint8_t *p, v16 *even, v16 *odd)
{
    v16_bits both;
    memcpy(&both, p, sizeof both);
    *even = v_flush((v16)(both << 16));
    *odd = v_flush((v16)(both & 0xffff0000));
}
static inline unsigned flushing_begin(void)
{
    return 0;
}
static inline void flushing_end(unsigned before)
{
    (void)before;
}

#include "tensor/cpu/kern_math.h"

#include "tensor/cpu/kern_bf16r.h"
