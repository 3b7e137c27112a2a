/* q4_blocks.c - see q4_blocks.h. */
#include "tensor/q4_blocks.h"

#include "base/bytes.h"

#include <math.h>
#include <string.h>

/* Unpacks s and t of part j of eight: six bits each, packed into twelve bytes. */
static void scale_min(const uint8_t *b, int j, uint8_t *s, uint8_t *t)
{
    if (j < 4) {
        *s = b[j] & 63;
        *t = b[j + 4] & 63;
    } else {
        *s = (uint8_t)((b[j + 4] & 15) | (b[j - 4] >> 6) << 4);
        *t = (uint8_t)(b[j + 4] >> 4 | (b[j] >> 6) << 4);
    }
}

/* Reads the numbers of part j. Two parts share 32 bytes; an even part has the low halves. */
static void k_numbers(const uint8_t *q, int j, uint8_t out[16])
{
    const uint8_t *from = q + 32 * (j / 2);
    int shift = j % 2 * 4;
    for (int i = 0; i < 16; i++)
        out[i] = (uint8_t)((from[i] >> shift & 15) | (from[i + 16] >> shift & 15) << 4);
}

/* Reads part j of a block of q6_k. For every 128 weights the block has 64 bytes of low bits, with
 * weights 64 to 127 in the high halves of the bytes, and 32 bytes of high bits. */
static struct q4_part k6_part(const uint8_t *b, int j)
{
    struct q4_part p = {.d = get_u16(b + 208), .s = b[192 + 2 * j], .t = b[193 + 2 * j]};
    const uint8_t *low = b + 64 * (j / 4) + 32 * (j % 2), *high = b + 128 + 32 * (j / 4);
    int shift = j % 4 / 2 * 4;
    for (int i = 0; i < 16; i++)
        p.q[i] = (uint8_t)((low[i] >> shift & 15) | (low[i + 16] >> shift & 15) << 4);
    for (int i = 0; i < 32; i++)
        p.high[i / 16][i % 4] |= (uint8_t)((high[i] >> 2 * (j % 4) & 3)
                                           << 2 * (i % 16 / 4));
    return p;
}

struct q4_part q4_part_read(enum dtype t, const uint8_t *row, int64_t part)
{
    struct q4_part p = {0};
    if (t == DTYPE_Q6_K)
        return k6_part(row + part / 8 * 210, (int)(part % 8));
    if (t == DTYPE_Q4_K) {
        const uint8_t *b = row + part / 8 * 144;
        p.d = get_u16(b);
        p.m = get_u16(b + 2);
        scale_min(b + 4, (int)(part % 8), &p.s, &p.t);
        k_numbers(b + 16, (int)(part % 8), p.q);
        return p;
    }
    if (t == DTYPE_IQ4_XS) {
        const uint8_t *b = row + part / 8 * 136;
        p.d = get_u16(b);
        p.s = (uint8_t)q4_xs_scale(b, (int)(part % 8));
        memcpy(p.q, b + 8 + 16 * (part % 8), sizeof p.q);
        return p;
    }
    const uint8_t *b = row + (size_t)part * q4_block_bytes(t);
    p.d = get_u16(b);
    if (t == DTYPE_Q4_1)
        p.m = get_u16(b + 2);
    if (t == DTYPE_MXFP4)
        p.d = b[0];
    memcpy(p.q, b + q4_block_bytes(t) - sizeof p.q, sizeof p.q);
    return p;
}

void q4_part_scales(enum dtype t, const struct q4_part *p, float *d, float *m)
{
    float first = t == DTYPE_MXFP4 ? ldexpf(1, p->d - 128) : f16_to_f32(p->d),
          second = f16_to_f32(p->m);
    *d = t == DTYPE_Q4_K     ? first * (float)p->s
         : t == DTYPE_IQ4_XS ? first * (float)(int8_t)p->s
                             : first;
    *m = t == DTYPE_Q4_0 ? -8 * first : t == DTYPE_Q4_K ? -second * (float)p->t : second;
}

float q4_part_value(enum dtype t, const struct q4_part *p, int i)
{
    float d, m;
    if (t == DTYPE_Q6_K)
        return f16_to_f32(p->d) * (float)(int8_t)(i < 16 ? p->s : p->t) *
               (float)(q4_part_q(p, i) - 32);
    q4_part_scales(t, p, &d, &m);
    int q = q4_part_q(p, i);
    return q4_values(t) != NULL ? (float)q4_values(t)[q] * d : fmaf((float)q, d, m);
}

void q4_part_values(enum dtype t, const struct q4_part *p, float *out)
{
    const int8_t *values = q4_values(t);
    float d = f16_to_f32(p->d), m,
          half[2] = {d * (float)(int8_t)p->s, d * (float)(int8_t)p->t};
    if (t != DTYPE_Q6_K)
        q4_part_scales(t, p, &d, &m);
    for (int i = 0; i < 32; i++) {
        int q = q4_part_q(p, i);
        out[i] = t == DTYPE_Q6_K  ? half[i / 16] * (float)(q - 32)
                 : values != NULL ? (float)values[q] * d
                                  : fmaf((float)q, d, m);
    }
}

void q4_part_decode(enum dtype t, const uint8_t *row, int64_t part, float *out)
{
    struct q4_part p = q4_part_read(t, row, part);
    q4_part_values(t, &p, out);
}
