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
        if (fabsf(a.f[i]) < 0x1p-126f)
            a.f[i] = copysignf(0, a.f[i]);
    return a;
}
/* 16 pairs of bf16, those of even and of odd k. */
static inline void v_pairs(const uint8_t *p, v16 *even, v16 *odd)
{
    for (int i = 0; i < 16; i++) {
        uint32_t both, high;
        memcpy(&both, p + 4 * i, sizeof both);
        high = both & 0xffff0000;
        both <<= 16;
        memcpy(&even->f[i], &both, sizeof both);
        memcpy(&odd->f[i], &high, sizeof high);
    }
    *even = v_flush(*even);
    *odd = v_flush(*odd);
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
