/* vec_nib_portable.h - 16 lanes of four 8-bit numbers, in plain C. */
#ifndef TENSOR_NIB_H
#define TENSOR_NIB_H

#include <stdint.h>
#include <string.h>

#include "tensor/cpu/vec_portable.h"

#define Q4_NAME   "portable"
#define Q4_TABLE  q4_kernels_portable
#define Q4_ROWS   1 /* rows x panels of the blocked kernel: more would not fit in registers */
#define Q4_PANELS 1
#define Q4_DIRECT 1 /* rows and panels walked at once by the direct kernel */
#define Q4_UNROLL _Pragma("GCC unroll 2")
#define Q4_RUNS   true

typedef struct {
    uint8_t of[16][4];
} i8x4;
typedef struct {
    int32_t lane[16];
} i_part;
typedef i_part i_start; /* what a sum begins at (q4.h) */

static inline i8x4 i_load4(const void *p)
{
    i8x4 r;
    memcpy(&r, p, sizeof r);
    return r;
}
static inline void i_store4(void *p, i8x4 a)
{
    memcpy(p, &a, sizeof a);
}
/* Returns the four bytes at p in every lane. */
static inline i8x4 i_set4(const void *p)
{
    i8x4 r;
    for (int i = 0; i < 16; i++)
        memcpy(r.of[i], p, sizeof r.of[i]);
    return r;
}
/* Splits 64 bytes into their low and their high halves. */
static inline void i_nibbles(const uint8_t *p, i8x4 *low, i8x4 *high)
{
    for (int i = 0; i < 64; i++) {
        low->of[i / 4][i % 4] = p[i] & 15;
        high->of[i / 4][i % 4] = p[i] >> 4;
    }
}
/* The number that i_bytes adds to each number of q8. */
#define I_BYTE_BIAS 0
/* Returns table[n] for each byte n of a, from 0 to 15. */
static inline i8x4 i_table(const uint8_t table[16], i8x4 a)
{
    for (int i = 0; i < 64; i++)
        a.of[i / 4][i % 4] = table[a.of[i / 4][i % 4]];
    return a;
}
/* Returns sum + w . x, lane by lane. w is from 0 to 63, x from -127 to 127. */
static inline i_part i_dot4(i_part sum, i8x4 w, i8x4 x)
{
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 4; j++)
            sum.lane[i] += w.of[i][j] * (int8_t)x.of[i][j];
    return sum;
}
/* Returns the whole number of 32 bits at p in every lane. */
static inline i_start i_start_at(const void *p)
{
    int32_t n;
    i_start r;
    memcpy(&n, p, sizeof n);
    V_EACH(i) r.lane[i] = n;
    return r;
}
/* Numbers of q8: i_byte_dot returns sum + w . x of the bytes that i_bytes reads and that are from
 * -127 to 127, if the sum began at start_of its block.  i_bits returns the
 * bits of a sum as floats. */
static inline i8x4 i_bytes(const uint8_t *p)
{
    return i_load4(p);
}
static inline i_start i_byte_dot(i_start sum, i8x4 w, i8x4 x)
{
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 4; j++)
            sum.lane[i] += (int8_t)w.of[i][j] * (int8_t)x.of[i][j];
    return sum;
}
static inline v16 i_bits(i_start sum)
{
    v16 r;
    memcpy(&r, &sum, sizeof r);
    return r;
}
#define I_PAIRS false
/* Returns sum + w . z, lane by lane: w has pairs of 16-bit numbers, z is one pair for all lanes. */
static inline i_start i_pairs(i_start sum, const void *w, const void *z)
{
    int16_t a[16][2], b[2];
    memcpy(a, w, sizeof a);
    memcpy(b, z, sizeof b);
    V_EACH(i) sum.lane[i] += a[i][0] * b[0] + a[i][1] * b[1];
    return sum;
}
static inline v16 i_floats(i_start sum)
{
    v16 r;
    V_EACH(i) r[i] = (float)sum.lane[i];
    return r;
}
/* i_begin returns the sum of a block before its products; i_end adds `start` to the sum, unless
 * i_begin has, and returns its bits as floats. */
static inline i_part i_begin(i_start start)
{
    return start;
}
static inline v16 i_end(i_part sum, i_start start)
{
    (void)start;
    return i_bits(sum);
}
/* Sums over half a block of 6-bit numbers, in four steps v.  i_half_begin returns a sum that begins
 * at `start`; i_half_end returns the bits of the sum as floats. */
typedef i_part i_half_sum;
static inline i_half_sum i_half_begin(i8x4 start)
{
    i_half_sum s;
    memcpy(&s, &start, sizeof s);
    return s;
}
static inline i_half_sum i_half_dot(i_half_sum s, i8x4 w, i8x4 x, int v)
{
    (void)v;
    return i_dot4(s, w, x);
}
static inline v16 i_half_end(i_half_sum s)
{
    return i_end(s, s);
}
/* Sets q to the 6-bit numbers of half a block (q4.h), in order of k. */
static inline void i_sixes(const uint8_t *p, int half, i8x4 q[4])
{
    const uint8_t *high = p + 256 + 64 * half;
    for (int v = 0; v < 4; v++)
        for (int i = 0; i < 64; i++)
            q[v].of[i / 4][i % 4] = (uint8_t)((p[64 * v + i] >> 4 * half & 15) |
                                              (high[i] >> 2 * v & 3) << 4);
}
/* Rounds 16 numbers from -127 to 127, halves to even, and stores them as bytes. */
static inline void i_store_bytes(int8_t *p, v16 a)
{
    V_EACH(i) p[i] = (int8_t)rintf(a[i]);
}
static inline v16 v_load_i8(const uint8_t *p)
{
    v16 r;
    for (int i = 0; i < 16; i++)
        r[i] = (float)(int8_t)p[i];
    return r;
}
/* Returns 2^(p[i] - 128) in each lane: the bits of a normal number for p[i] >= 2. */
static inline v16 v_load_power(const uint8_t *p)
{
    v16_bits r;
    for (int i = 0; i < 16; i++)
        r[i] = p[i] < 2 ? 0x00200000u << p[i] : (p[i] - 1u) << 23;
    return (v16)r;
}
static inline v16 v_load_u8(const uint8_t *p)
{
    v16 r;
    for (int i = 0; i < 16; i++)
        r[i] = (float)p[i];
    return r;
}

#endif
