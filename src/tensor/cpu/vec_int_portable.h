/* vec_int_portable.h - 16 lanes of two 16-bit numbers, in plain C. */
#ifndef TENSOR_INT_H
#define TENSOR_INT_H

#include <stdint.h>
#include <string.h>

#include "tensor/cpu/vec_portable.h"

#define Q8_NAME   "portable"
#define Q8_TABLE  q8_kernels_portable
#define Q8_ROWS   4 /* rows x panels of the blocked kernel */
#define Q8_PANELS 1
/* panels walked at once by the direct kernel, for 1, 2 and up to 4 rows */
#define Q8_WIDE_1 1
#define Q8_WIDE_2 1
#define Q8_WIDE_4 1
#define Q8_DIRECT 4
#define Q8_UNROLL _Pragma("GCC unroll 2")
#define Q8_RUNS   true

typedef struct {
    int16_t pair[16][2];
} i16x2;
typedef struct {
    int32_t lane[16];
} i32;

static inline i32 i_zero(void)
{
    i32 r;
    memset(&r, 0, sizeof r);
    return r;
}
static inline i16x2 i_load(const void *p)
{
    i16x2 r;
    memcpy(&r, p, sizeof r);
    return r;
}
static inline void i_store(void *p, i16x2 a)
{
    memcpy(p, &a, sizeof a);
}
/* Returns the pair at p in every lane. */
static inline i16x2 i_set1(const int16_t *p)
{
    i16x2 r;
    for (int i = 0; i < 16; i++)
        memcpy(r.pair[i], p, sizeof r.pair[i]);
    return r;
}
/* Sign-extends the even and the odd bytes of 16 lanes of four bytes. */
static inline void i_widen(const uint8_t *p, i16x2 *even, i16x2 *odd)
{
    const int8_t *b = (const int8_t *)p;
    for (int i = 0; i < 16; i++) {
        even->pair[i][0] = b[4 * i];
        even->pair[i][1] = b[4 * i + 2];
        odd->pair[i][0] = b[4 * i + 1];
        odd->pair[i][1] = b[4 * i + 3];
    }
}
/* Returns sum + a[0] * b[0] + a[1] * b[1], lane by lane. */
static inline i32 i_dot(i32 sum, i16x2 a, i16x2 b)
{
    for (int i = 0; i < 16; i++)
        sum.lane[i] += a.pair[i][0] * b.pair[i][0] + a.pair[i][1] * b.pair[i][1];
    return sum;
}
static inline v16 i_float(i32 a)
{
    v16 r;
    for (int i = 0; i < 16; i++)
        r[i] = (float)a.lane[i];
    return r;
}

#endif
