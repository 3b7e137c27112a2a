/* bf16r_portable.c - the kernels of bf16r.h in plain C. */
#include "tensor/cpu/bf16r.h"

#include "tensor/cpu/vec_portable.h"

#include <string.h>

#define BF16R_NAME  "portable"
#define BF16R_TABLE bf16r_kernels_portable

static bool runs_here(void)
{
    return true;
}

/* Splits 16 pairs of bf16 into the elements of even k and those of odd k. */
static inline void v_pairs(const uint8_t *p, v16 *even, v16 *odd)
{
    v16_bits both;
    memcpy(&both, p, sizeof both);
    *even = v_flush((v16)(both << 16));
    *odd = v_flush((v16)(both & 0xffff0000));
}

#include "tensor/cpu/kern_math.h"

#include "tensor/cpu/kern_bf16r.h"
