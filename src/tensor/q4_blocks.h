/* q4_blocks.h - blocks of 4-bit and 6-bit weights, as in GGUF files and as the input of
 * weight_pack.
 *
 *     q4_0  18 bytes    32 weights: d f16 | 32 x 4 bits
 *     q4_1  20 bytes    32 weights: d f16, m f16 | 32 x 4 bits
 *     q4_k  144 bytes  256 weights: D f16, M f16 | 12 bytes: 8 times s and t, 6 bits each | 256 x 4 bits
 *     q6_k  210 bytes  256 weights: 256 x 4 low bits | 256 x 2 high bits | 16 x i8: s | D f16
 *     mxfp4  17 bytes   32 weights: exponent E 8 bits | 32 x 4 bits
 *     iq4_nl 18 bytes   32 weights: d f16 | 32 x 4 bits
 *     iq4_xs 136 bytes 256 weights: D f16 | 8 x 2 high bits of s | 8 x 4 low bits of s | 256 x 4 bits
 *
 * q4_0, q4_1, q4_k: every 32 weights are d * q + m with whole numbers q from 0 to 15.  For q4_0, m
 * is -8 d.  For q4_k, d = D * s and m = -(M * t), both exact in f32.  So d * q + m rounded to f32
 * is the value that the format defines.
 *
 * q6_k: every 16 weights are (D * s) * (q - 32), rounded to f32, with whole numbers q from 0 to 63.
 * D * s is exact.
 *
 * mxfp4: every 32 weights are d * v(q), with d = 2^(E - 128) and v twice the value of the 4-bit
 * floating-point number q (E2M1): q4_mxfp4_values.
 *
 * iq4_nl, iq4_xs: every 32 weights are d * v(q), with v of q4_iq4_values; for iq4_xs d = D * (s -
 * 32), which is exact. */
#ifndef TENSOR_Q4_BLOCKS_H
#define TENSOR_Q4_BLOCKS_H

#include "tensor/tensor.h"

/* q4_block_weights returns the number of weights in a block; q4_block_bytes returns a block's
 * bytes. */
static inline int64_t q4_block_weights(enum dtype t)
{
    return t == DTYPE_Q4_K || t == DTYPE_Q6_K || t == DTYPE_IQ4_XS ? 256 : 32;
}
static inline size_t q4_block_bytes(enum dtype t)
{
    return t == DTYPE_MXFP4                       ? 17
           : t == DTYPE_Q4_0 || t == DTYPE_IQ4_NL ? 18
           : t == DTYPE_Q4_1                      ? 20
           : t == DTYPE_IQ4_XS                    ? 136
           : t == DTYPE_Q4_K                      ? 144
                                                  : 210;
}
/* Returns the bytes of a row of k weights; k must be a multiple of the block. */
static inline size_t q4_row_bytes(enum dtype t, int64_t k)
{
    return (size_t)(k / q4_block_weights(t)) * q4_block_bytes(t);
}

/* 32 weights of a row, with their scale and minimum. */
struct q4_part {
    /* f16 numbers. For q4_k, q6_k and iq4_xs: those of the whole block (for q4_k, m is the file's
     * M). Types without a minimum of their own have an m of 0; for mxfp4, d is the exponent. */
    uint16_t d, m;
    /* q4_k: the file's s and t; q6_k: s of the two halves, as the bits of signed numbers; iq4_xs: s
     * - 32, in the same way */
    uint8_t s, t;
    /* byte i has the low 4 bits of weight i in its low half, of weight i + 16 in its high half */
    uint8_t q[16];
    /* q6_k: bits 2 v and 2 v + 1 of byte i are the high bits of weight 4 v + i of a half */
    uint8_t high[2][4];
};
/* Reads part `part` (32 weights) of a row of blocks. */
struct q4_part q4_part_read(enum dtype t, const uint8_t *row, int64_t part);

static const int8_t q4_mxfp4_values[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                           0, -1, -2, -3, -4, -6, -8, -12};
static const int8_t q4_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};
/* Returns the table in which the numbers of a type are places, or NULL. */
static inline const int8_t *q4_values(enum dtype t)
{
    return t == DTYPE_MXFP4                         ? q4_mxfp4_values
           : t == DTYPE_IQ4_NL || t == DTYPE_IQ4_XS ? q4_iq4_values
                                                    : NULL;
}
/* Returns s - 32 of part j of a block of iq4_xs. */
static inline int8_t q4_xs_scale(const uint8_t *block, int j)
{
    int low = block[4 + j / 2] >> 4 * (j % 2) & 15,
        high = block[2 + j / 4] >> 2 * (j % 4) & 3;
    return (int8_t)((low | high << 4) - 32);
}
/* Returns whether parts of a type have a minimum of their own. */
static inline bool q4_has_minimum(enum dtype t)
{
    return t == DTYPE_Q4_1 || t == DTYPE_Q4_K;
}

/* Computes the f32 values d and m of a part.  Not for q6_k, whose parts have two d. */
void q4_part_scales(enum dtype t, const struct q4_part *p, float *d, float *m);
static inline int q4_part_q(const struct q4_part *p, int i)
{
    int low = i < 16 ? p->q[i] & 15 : p->q[i - 16] >> 4;
    return low | (p->high[i / 16][i % 4] >> 2 * (i % 16 / 4) & 3) << 4;
}
/* Returns weight i of a part; sets out [32] to all of them, with the same bits. */
float q4_part_value(enum dtype t, const struct q4_part *p, int i);
void q4_part_values(enum dtype t, const struct q4_part *p, float *out);
/* Sets out [32] to the weights of part `part` of a row of blocks. */
void q4_part_decode(enum dtype t, const uint8_t *row, int64_t part, float *out);

/* Returns the address of a row of a table of blocks, whose rows follow one another. */
static inline const uint8_t *q4_table_row(struct mat table, int64_t row)
{
    return (const uint8_t *)table.data +
           (size_t)row * q4_row_bytes(table.dtype, table.cols);
}

#endif
