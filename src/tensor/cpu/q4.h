/* q4.h - weights in blocks of 4, 6 and 8 bits; private to src/tensor/cpu.
 *
 * A panel is a sequence of k-blocks.  Each has the form
 *
 *     [n_blocks][4 quarters][16 columns][4 bytes]  byte i of quarter v has number 4 v + i of the
 *                                                  block in its low half, number 16 + 4 v + i in
 *                                                  its high half
 *     q6_k: [2 halves][16 columns][4 bytes]        after the quarters of each block: bits 2 v and
 *                                                  2 v + 1 of byte i of half h are the high bits
 *                                                  of number 16 h + 4 v + i
 *     q8: [8 groups][16 columns][4 numbers]        instead: numbers of 8 bits, 4 neighbours in k
 *     scales:
 *       q4_0   [n_blocks][16 columns]              d, f16
 *       q4_1   [n_blocks][2][16 columns]           d, m, f16
 *       q4_k   [2][16 columns]                     D, -M, f16
 *              [n_blocks][2][16 columns]           s, t, 8 bits
 *       q8     [n_blocks][16 columns]              d, f16
 *       mxfp4  [n_blocks][16 columns]              exponents, 8 bits
 *       iq4_nl [n_blocks][16 columns]              d, f16
 *       iq4_xs [16 columns], 32 bytes unused       D, f16
 *              [n_blocks][16 columns]              s - 32, 8 bits, signed
 *       q6_k   [16 columns], 32 bytes unused       D, f16
 *              [n_blocks][2][16 columns]           s of each half, 8 bits, signed
 *
 * n_blocks is 8, or less in the last k-block of types whose blocks have 32 weights; q8's numbers
 * beyond k are zero.  A weight takes 0.5625, 0.625, 0.578, 0.828, 0.531, 0.5625, 0.547 and 1.0625
 * bytes (q4_0, q4_1, q4_k, q6_k, mxfp4, iq4_nl, iq4_xs, q8).  The 32 unused bytes keep all vectors
 * of 64 bytes within cache lines.
 *
 * Rounded activations are [k-blocks][rows][512] bytes.  A row has x [256] of 8 bits, of f32 z [8],
 * `base` [8] and e, of whole numbers with 32 bits `zero` [8], h [8][2], `twelve` [8] and `half`
 * [8], and of 16 bits `pairs` [8] = 8 z.  The kernels for few and for many rows read the same form.
 *
 * A block of x counts in steps of 2^-i (ops.h), and its base is 1.5 * 2^(23 - i): adding a whole
 * number s below 2^22 in size to the bits of a base adds s * 2^-i to the number.  A sum of integers
 * begins at the bits of the base, or at `zero` = these bits - 8 (sum of x), for q6_k at h = these
 * bits - 32 (sum of 16 numbers x), or for mxfp4, whose numbers are widened to v(q) + 12, at
 * `twelve` = these bits - 12 (sum of x).  iq4_nl and iq4_xs are widened to v(q), as q8.  For q8 an
 * instruction of VNNI multiplies q + 128, and the sum begins at `half` = these bits - 128 (sum of
 * x).  So one subtraction of the base converts and scales a sum, exactly.  On Zen 4 and 5
 * subtractions do not compete with products, but multiplications do. */
#ifndef TENSOR_Q4_H
#define TENSOR_Q4_H

#include "tensor/cpu/quant.h"
#include "tensor/q4_blocks.h"

#define Q4_QUARTER_BYTES (4 * PANEL)
#define Q4_BLOCK_BYTES   (4 * Q4_QUARTER_BYTES)
#define Q4_ROW_BYTES     512 /* bytes of a row of rounded activations in a k-block */
/* offsets of z, `base` and so on in a row of activations, in numbers of 32 bits */
#define Q4_Z      (MATMUL_K_BLOCK / 4)
#define Q4_BASES  (Q4_Z + QUANT_PER_K_BLOCK)
#define Q4_ZERO   (Q4_BASES + QUANT_PER_K_BLOCK)
#define Q4_H      (Q4_ZERO + QUANT_PER_K_BLOCK)
#define Q4_TWELVE (Q4_H + 2 * QUANT_PER_K_BLOCK)
#define Q4_HALF   (Q4_TWELVE + QUANT_PER_K_BLOCK)
#define Q4_PAIRS  (Q4_HALF + QUANT_PER_K_BLOCK)
#define Q4_E      (Q4_PAIRS + QUANT_PER_K_BLOCK / 2)
/* the bits of 1.5 * 2^23 */
#define Q4_BASE_BITS 0x4b400000

extern const struct quant_kernels q4_kernels_portable;
#if defined(__x86_64__)
extern const struct quant_kernels q4_kernels_avx2;
extern const struct quant_kernels q4_kernels_avx512;
extern const struct quant_kernels q4_kernels_vnni;
extern const struct quant_kernels q4_kernels_amx;
#endif

/* Return the bytes of a block's numbers, of a block's scales, and of the scales that a whole
 * k-block shares. */
static inline size_t q4_number_bytes(enum dtype t)
{
    return t == DTYPE_Q8     ? Q8_BLOCK * PANEL
           : t == DTYPE_Q6_K ? Q4_BLOCK_BYTES + 2 * Q4_QUARTER_BYTES
                             : Q4_BLOCK_BYTES;
}
static inline size_t q4_scale_bytes(enum dtype t)
{
    return t == DTYPE_Q4_1                         ? 4 * PANEL
           : t == DTYPE_MXFP4 || t == DTYPE_IQ4_XS ? PANEL
                                                   : 2 * PANEL;
}
static inline size_t q4_shared_bytes(enum dtype t)
{
    return q4_block_weights(t) == MATMUL_K_BLOCK ? 4 * PANEL : 0;
}
/* Returns the offset of the k-block at k in its panel; k is a multiple of 256, or the whole row. */
static inline size_t q4_offset(enum dtype t, int64_t k)
{
    return (size_t)(k / Q4_BLOCK) * (q4_number_bytes(t) + q4_scale_bytes(t)) +
           (size_t)(k / MATMUL_K_BLOCK) * q4_shared_bytes(t);
}

/* --- the operations of ops.h ------------------------------------------------------------------ */

int cpu_q4_pack(struct stream *s, struct weight *w, int64_t row, const uint8_t *src,
                int64_t n_rows);
int cpu_q4_rows(struct stream *s, struct mat out, const struct weight *w,
                const int32_t *ids);
int cpu_q8_pack(struct stream *s, struct weight *w, int64_t row, const float *src,
                int64_t n_rows);
int cpu_q8_pack_blocks(struct stream *s, struct weight *w, int64_t row, const uint8_t *src,
                       int64_t n_rows);
int cpu_q8_rows(struct stream *s, struct mat out, const struct weight *w,
                const int32_t *ids);

#endif
