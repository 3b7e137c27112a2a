/* standin_amx.h - plain C in place of AMX's instructions, so that any CPU with AVX-512 and VNNI
 * runs the kernels written for AMX. The file of the kernels is included behind this header. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "tensor/cpu/amx.h"

static _Thread_local struct amx_config tiles;
static _Thread_local uint8_t tile[8][16][64];

static void tile_load(int t, const void *base, size_t stride)
{
    for (size_t r = 0; r < tiles.rows[t]; r++)
        memcpy(tile[t][r], (const uint8_t *)base + r * stride, tiles.bytes[t]);
}

static void tile_store(int t, void *base, size_t stride)
{
    for (size_t r = 0; r < tiles.rows[t]; r++)
        memcpy((uint8_t *)base + r * stride, tile[t][r], tiles.bytes[t]);
}

/* Returns f, or zero if f is subnormal. */
static inline float tile_flush(float f)
{
    return fabsf(f) < 0x1p-126f ? copysignf(0, f) : f;
}

/* Rounds to 24 bits before it flushes, as the instruction does. */
static inline float tile_fma(uint16_t a, uint16_t b, float sum)
{
    const uint32_t bits[2] = {(uint32_t)a << 16, (uint32_t)b << 16};
    float x, y;
    memcpy(&x, &bits[0], sizeof x);
    memcpy(&y, &bits[1], sizeof y);
    x = tile_flush(x);
    y = tile_flush(y);
    double exact = (double)x * (double)y + (double)sum;
    return fabs(exact) < 0x1p-126 - 0x1p-151 ? copysignf(0, (float)exact) : fmaf(x, y, sum);
}

/* Adds the products of pairs of bf16 to sums of f32: even and odd places first, then both. */
static inline void tile_dpbf16ps(int to, int a, int b)
{
    for (int m = 0; m < tiles.rows[to]; m++)
        for (int n = 0; n < tiles.bytes[to] / 4; n++) {
            float part[2] = {0}, sum;
            for (int k = 0; k < tiles.bytes[a] / 2; k++) {
                uint16_t x, y;
                memcpy(&x, tile[a][m] + 2 * k, 2);
                memcpy(&y, tile[b][k / 2] + 4 * n + 2 * (k % 2), 2);
                part[k % 2] = tile_fma(x, y, part[k % 2]);
            }
            memcpy(&sum, tile[to][m] + 4 * n, 4);
            sum = tile_flush(sum + tile_flush(part[0] + part[1]));
            memcpy(tile[to][m] + 4 * n, &sum, 4);
        }
}

/* Adds the products of signed by unsigned bytes to sums of 32 bits. */
static inline void tile_dpbsud(int to, int a, int b)
{
    for (int m = 0; m < tiles.rows[to]; m++)
        for (int n = 0; n < tiles.bytes[to] / 4; n++) {
            int32_t sum;
            memcpy(&sum, tile[to][m] + 4 * n, 4);
            for (int k = 0; k < tiles.bytes[a]; k++)
                sum += (int8_t)tile[a][m][k] * tile[b][k / 4][4 * n + k % 4];
            memcpy(tile[to][m] + 4 * n, &sum, 4);
        }
}

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbsud
#define _tile_zero(t)                       memset(tile[t], 0, sizeof tile[t])
#define _tile_loadd(t, base, stride)        tile_load(t, base, stride)
#define _tile_stored(t, base, stride)       tile_store(t, base, stride)
#define _tile_dpbf16ps(to, a, b)            tile_dpbf16ps(to, a, b)
#define _tile_dpbsud(to, a, b)              tile_dpbsud(to, a, b)
#define _tile_release()                     memset(&tiles, 0, sizeof tiles)
#define amx_configure(c)                    (tiles = *(c))
#define amx_runs_here()                     true
#define __get_cpuid_count(l, s, a, b, c, d) (*(a) = *(b) = *(c) = *(d) = UINT32_MAX)
