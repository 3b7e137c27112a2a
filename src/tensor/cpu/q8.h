/* q8.h - 8-bit weights; private to src/tensor/cpu.
 *
 * A panel is a sequence of k-blocks.  Each has the form
 *
 *     [n_blocks][8 groups][16 columns][4 numbers]  8 bits: 4 neighbours in k share a 32-bit lane
 *     [n_blocks][16 columns]                       the scales, f16
 *
 * n_blocks is 8, or less in the last k-block.  Numbers beyond k are zero.
 *
 * Rounded activations are [k-blocks][rows][256] 16-bit numbers, in each group of four in the order
 * 0 2 1 3: sign-extending the even and the odd bytes of a lane of weights gives the pairs (0, 2)
 * and (1, 3). */
#ifndef TENSOR_Q8_H
#define TENSOR_Q8_H

#include "tensor/cpu/quant.h"

#define Q8_GROUPS      (Q8_BLOCK / 4)
#define Q8_BLOCK_BYTES (Q8_BLOCK * PANEL)
#define Q8_SCALE_BYTES (2 * PANEL)

extern const struct quant_kernels q8_kernels_portable;
#if defined(__x86_64__)
extern const struct quant_kernels q8_kernels_avx2;
extern const struct quant_kernels q8_kernels_avx512;
extern const struct quant_kernels q8_kernels_vnni;
extern const struct quant_kernels q8_kernels_amx;
#endif

/* Returns the offset of the k-block at k (a multiple of 256) in its panel. */
static inline size_t q8_offset(int64_t k)
{
    return (size_t)(k / Q8_BLOCK) * (Q8_BLOCK_BYTES + Q8_SCALE_BYTES);
}

/* --- the operations of ops.h, for weights of DTYPE_Q8 ----------------------------------------- */

int cpu_q8_pack(struct stream *s, struct weight *w, int64_t row, const float *src,
                int64_t n_rows);
int cpu_q8_pack_blocks(struct stream *s, struct weight *w, int64_t row, const uint8_t *src,
                       int64_t n_rows);
int cpu_q8_rows(struct stream *s, struct mat out, const struct weight *w,
                const int32_t *ids);

#endif
