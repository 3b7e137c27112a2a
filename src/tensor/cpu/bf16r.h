/* bf16r.h - bf16 weights with rounded activations; private to src/tensor/cpu.
 *
 * A panel is a sequence of blocks of 32 along k, each
 *
 *     [16 pairs][16 columns][2]   bf16: two neighbours in k share a 32-bit lane
 *
 * which is a tile of AMX.  Rounded activations are [k-blocks][rows][256] bf16.  In both, zeros fill
 * up the last block.  ops.h has the arithmetic, which is that of AMX's instruction; the other
 * kernels compute its steps one by one.  A product is cut into tiles like one with 8-bit weights
 * (quant.h). */
#ifndef TENSOR_BF16R_H
#define TENSOR_BF16R_H

#include "tensor/cpu/quant.h"

#define BF16R_BLOCK       32
#define BF16R_BLOCK_BYTES (BF16R_BLOCK * PANEL * 2)

extern const struct quant_kernels bf16r_kernels_portable;
#if defined(__x86_64__)
extern const struct quant_kernels bf16r_kernels_avx2;
extern const struct quant_kernels bf16r_kernels_avx512;
extern const struct quant_kernels bf16r_kernels_amx;
#endif
/* All tables, the best first; NULL ends the list. */
extern const struct quant_kernels *const bf16r_all_kernels[];

/* Returns the number of blocks of 32 in the k-block at k. */
static inline int bf16r_blocks_at(int64_t k, int64_t all)
{
    int64_t left = MIN(all - k, MATMUL_K_BLOCK);
    return (int)((left + BF16R_BLOCK - 1) / BF16R_BLOCK);
}

int cpu_bf16r_pack(struct stream *s, struct weight *w, int64_t row, const uint16_t *src,
                   int64_t n_rows);
int cpu_bf16r_rows(struct stream *s, struct mat out, const struct weight *w,
                   const int32_t *ids);

#endif
