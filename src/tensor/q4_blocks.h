/* q4_blocks.h - the blocks of 4-bit and 6-bit weights, as GGUF files have them and as weight_pack
 * takes them.
 *
 *     q4_0  18 bytes    32 weights: d f16 | 32 x 4 bits
 *     q4_1  20 bytes    32 weights: d f16, m f16 | 32 x 4 bits
 *     q4_k  144 bytes  256 weights: D f16, M f16 | 12 bytes: 8 times s and t, 6 bits each | 256 x 4 bits
 *     q6_k  210 bytes  256 weights: 256 x 4 low bits | 256 x 2 high bits | 16 x i8: s | D f16
 *
 * Every 32 weights are d * q + m with whole numbers q from 0 to 15.  q4_0: m = -8 d.
 * q4_k: d = D * s and m = -(M * t), both exact in f32.  So d * q + m rounded to f32 is the
 * value that the format defines.
 *
 * Of q6_k every 16 weights are (D * s) * (q - 32), rounded to f32, with whole numbers q from 0 to
 * 63; D * s is exact. */
#ifndef TENSOR_Q4_BLOCKS_H
#define TENSOR_Q4_BLOCKS_H

#include "tensor/tensor.h"

/* Weights in a block, and its bytes. */
static inline int64_t q4_block_weights(enum dtype t)
{
    return t == DTYPE_Q4_K || t == DTYPE_Q6_K ? 256 : 32;
}
static inline size_t q4_block_bytes(enum dtype t)
{
    return t == DTYPE_Q4_0 ? 18 : t == DTYPE_Q4_1 ? 20 : t == DTYPE_Q4_K ? 144 : 210;
}
/* A row of k weights, which must be whole blocks. */
static inline size_t q4_row_bytes(enum dtype t, int64_t k)
{
    return (size_t)(k / q4_block_weights(t)) * q4_block_bytes(t);
}

/* 32 weights of a row. */
struct q4_part {
    uint16_t d,
        m; /* f16: of q4_k those of the whole block (m: the file's M), of q4_0 m is 0 */
    uint8_t s, t; /* q4_k; q6_k: the two halves' s, as bits of a signed number */
    uint8_t
        q[16]; /* byte i has weight i in its low half and weight i + 16 in its high half */
    /* q6_k: bits 2 v and 2 v + 1 of byte i are the high ones of weight 4 v + i of a half */
    uint8_t high[2][4];
};
/* Part `part` (32 weights) of a row of blocks. */
struct q4_part q4_part_read(enum dtype t, const uint8_t *row, int64_t part);

/* d and m of a part; not of q6_k, which has two d. */
void q4_part_scales(enum dtype t, const struct q4_part *p, float *d, float *m);
static inline int q4_part_q(const struct q4_part *p, int i)
{
    int low = i < 16 ? p->q[i] & 15 : p->q[i - 16] >> 4;
    return low | (p->high[i / 16][i % 4] >> 2 * (i % 16 / 4) & 3) << 4;
}
/* Weight i of a part. */
float q4_part_value(enum dtype t, const struct q4_part *p, int i);

#endif
