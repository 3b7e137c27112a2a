/* gguf_types.c - see gguf_types.h.  The layouts are those of ggml's block formats.
 *
 *     Q4_0  d f16 | 32 x 4 bits             d * (q - 8)
 *     Q4_1  d, m f16 | 32 x 4 bits          d * q + m
 *     Q5_0  d f16 | 32 high bits | 32 x 4   d * (q - 16)
 *     Q5_1  d, m f16 | 32 high bits | 32 x 4    d * q + m
 *     Q8_0  d f16 | 32 x i8                 d * q
 *     Q4_K  d, dmin f16 | 8 x (6-bit scale, 6-bit min) | 256 x 4      d * s * q - dmin * m
 *     Q5_K  the same, then 256 high bits before the 256 x 4
 *     Q6_K  256 x 4 low bits | 256 x 2 high bits | 16 x i8 scale | d f16    d * s * (q - 32)
 *     Q2_K  16 x (4-bit scale, 4-bit min) | 256 x 2 bits | d, dmin f16      d * s * q - dmin * m
 *     Q3_K  256 high bits | 256 x 2 | 16 x 6-bit scale | d f16    d * (s - 32) * (q - 4)
 *     IQ4_NL  d f16 | 32 x 4 bits           d * value[q]
 *     IQ4_XS  d f16 | 8 x 6-bit scale | 256 x 4 bits              d * (s - 32) * value[q]
 *     MXFP4   exponent u8 | 32 x 4 bits     2^(exponent - 128) * value[q]
 *
 * In IQ2 an index stands for 8 values, in IQ3 for 4 (gguf_grids.h).  8 bits are the signs of 8
 * values; where 7 are stored, the last one makes the number of minus signs even.
 *
 *     IQ2_XXS  d f16 | 8 x (4 x u8 index | 4 x 7 signs, 4-bit scale)
 *     IQ2_XS   d f16 | 32 x (9-bit index, 7 signs) | 16 x 4-bit scale
 *     IQ2_S    d f16 | 32 x u8 index | 32 x 8 signs | 32 x 2 high bits of the index | 16 x 4
 *     IQ3_XXS  d f16 | 64 x u8 index | 8 x (4 x 7 signs, 4-bit scale)
 *     IQ3_S    d f16 | 64 x u8 index | 64 high bits | 32 x 8 signs | 8 x 4-bit scale
 *     the numbers are d * (s + 1/2) / 4 * value in IQ2, d * (s + 1/2) / 2 * value in IQ3_XXS and
 *     d * (2 s + 1) * value in IQ3_S
 *
 * In blocks of 32, byte i holds elements i (low half) and i + 16 (high half). */
#include "checkpoint/gguf_types.h"

#include "base/bytes.h"
#include "checkpoint/gguf_grids.h"

#include <math.h>
#include <string.h>

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Converts f16 to f32, which is exact. */
static float half(const uint8_t *p)
{
    uint32_t h = get_u16(p), sign = (h & 0x8000) << 16, em = h & 0x7fff;
    if (em < 0x400) {
        float f = (float)em * 0x1p-24f;
        return sign != 0 ? -f : f;
    }
    /* Infinities and NaNs stay infinities and NaNs. */
    uint32_t exponent = em < 0x7c00 ? 112u << 23 : 224u << 23;
    return float_of(sign | ((em << 13) + exponent));
}

static void decode_f32(const uint8_t *src, float *dst, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = float_of(get_u32(src + 4 * i));
}

static void decode_f16(const uint8_t *src, float *dst, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = half(src + 2 * i);
}

static void decode_bf16(const uint8_t *src, float *dst, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = float_of((uint32_t)get_u16(src + 2 * i) << 16);
}

static void decode_q4_0(const uint8_t *b, float *y, size_t n)
{
    for (; n > 0; n--, b += 18, y += 32) {
        float d = half(b);
        for (int i = 0; i < 16; i++) {
            y[i] = d * (float)((b[2 + i] & 15) - 8);
            y[i + 16] = d * (float)((b[2 + i] >> 4) - 8);
        }
    }
}

static void decode_q4_1(const uint8_t *b, float *y, size_t n)
{
    for (; n > 0; n--, b += 20, y += 32) {
        float d = half(b), m = half(b + 2);
        for (int i = 0; i < 16; i++) {
            y[i] = d * (float)(b[4 + i] & 15) + m;
            y[i + 16] = d * (float)(b[4 + i] >> 4) + m;
        }
    }
}

/* Returns element i of 32 five-bit elements: four bits at q, the fifth in `high`. */
static int five_bits(const uint8_t *q, uint32_t high, int i)
{
    int low = i < 16 ? q[i] & 15 : q[i - 16] >> 4;
    return low | (int)(high >> i & 1) << 4;
}

static void decode_q5_0(const uint8_t *b, float *y, size_t n)
{
    for (; n > 0; n--, b += 22, y += 32) {
        float d = half(b);
        uint32_t high = get_u32(b + 2);
        for (int i = 0; i < 32; i++)
            y[i] = d * (float)(five_bits(b + 6, high, i) - 16);
    }
}

static void decode_q5_1(const uint8_t *b, float *y, size_t n)
{
    for (; n > 0; n--, b += 24, y += 32) {
        float d = half(b), m = half(b + 2);
        uint32_t high = get_u32(b + 4);
        for (int i = 0; i < 32; i++)
            y[i] = d * (float)five_bits(b + 8, high, i) + m;
    }
}

static void decode_q8_0(const uint8_t *b, float *y, size_t n)
{
    for (; n > 0; n--, b += 34, y += 32) {
        float d = half(b);
        for (int i = 0; i < 32; i++)
            y[i] = d * (float)(int8_t)b[2 + i];
    }
}

/* Unpacks the scale and the minimum of part j. The eight parts' scales and minima have six bits
 * each and are packed into twelve bytes. */
static void scale_min(const uint8_t *s, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

/* Decodes 256 elements. high: 32 bytes with the fifth bits; NULL: elements have four bits. */
static void decode_k(const uint8_t *b, const uint8_t *high, const uint8_t *q, float *y)
{
    float d = half(b), dmin = half(b + 2);
    for (int j = 0; j < 8; j++) {
        int scale, min;
        scale_min(b + 4, j, &scale, &min);
        float ds = d * (float)scale, m = dmin * (float)min;
        const uint8_t *part = q + 32 * (j / 2);
        int shift = j % 2 * 4, v[32];
        for (int i = 0; i < 32; i++)
            v[i] = part[i] >> shift & 15;
        for (int i = 0; i < 32 && high != NULL; i++)
            v[i] |= (high[i] >> j & 1) << 4;
        for (int i = 0; i < 32; i++)
            y[32 * j + i] = ds * (float)v[i] - m;
    }
}

static void decode_q4_k(const uint8_t *b, float *y, size_t n)
{
    for (; n > 0; n--, b += 144, y += 256)
        decode_k(b, NULL, b + 16, y);
}

static void decode_q5_k(const uint8_t *b, float *y, size_t n)
{
    for (; n > 0; n--, b += 176, y += 256)
        decode_k(b, b + 16, b + 48, y);
}

static void decode_q6_k(const uint8_t *b, float *y, size_t n)
{
    for (; n > 0; n--, b += 210, y += 256) {
        const uint8_t *low = b, *high = b + 128, *scales = b + 192;
        float d = half(b + 208);
        /* Each half of the block has 64 bytes of low bits, and 32 of high bits. */
        for (int s = 0; s < 16; s++) { /* 16 numbers with the same scale */
            const uint8_t *lo = low + s / 8 * 64 + s % 4 * 16,
                          *hi = high + s / 8 * 32 + s % 2 * 16;
            int to_low = s % 8 / 4 * 4, to_high = s % 8 / 2 * 2;
            float ds = d * (float)(int8_t)scales[s];
            int v[16];
            for (int i = 0; i < 16; i++)
                v[i] = (lo[i] >> to_low & 15) | (hi[i] >> to_high & 3) << 4;
            for (int i = 0; i < 16; i++)
                y[16 * s + i] = ds * (float)(v[i] - 32);
        }
    }
}

/* Of 256 two-bit elements, element i is in bits 2 * (i / 32 % 4) of byte 32 * (i / 128) + i %
 * 32. */
static int two_bits(const uint8_t *q, int i)
{
    return q[32 * (i / 128) + i % 32] >> 2 * (i / 32 % 4) & 3;
}

static void decode_q2_k(const uint8_t *b, float *y, size_t n)
{
    for (; n > 0; n--, b += 84, y += 256) {
        float d = half(b + 80), dmin = half(b + 82);
        for (int i = 0; i < 256; i++) {
            uint8_t scale = b[i / 16];
            y[i] = d * (float)(scale & 15) * (float)two_bits(b + 16, i) -
                   dmin * (float)(scale >> 4);
        }
    }
}

/* Returns one of Q3_K's 16 scales: 6 bits each, packed into twelve bytes. */
static int q3_scale(const uint8_t *s, int j)
{
    int low = s[j % 8] >> (j < 8 ? 0 : 4) & 15;
    return (low | (s[8 + j % 4] >> 2 * (j / 4) & 3) << 4) - 32;
}

static void decode_q3_k(const uint8_t *b, float *y, size_t n)
{
    for (; n > 0; n--, b += 110, y += 256) {
        float d = half(b + 108);
        for (int i = 0; i < 256; i++) {
            int high = b[i % 32] >> (i / 32) & 1;
            float ds = d * (float)q3_scale(b + 96, i / 16);
            y[i] = ds * (float)(two_bits(b + 32, i) + (high ? 0 : -4));
        }
    }
}

/* Sets y to 32 elements of four bits, by a table of their values. */
static void decode_by_table(const int8_t value[16], float d, const uint8_t *q, float *y)
{
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)value[q[i] & 15];
        y[i + 16] = d * (float)value[q[i] >> 4];
    }
}

/* What the 4-bit numbers of these types stand for. */
static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
static const int8_t mxfp4_values[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                        0, -1, -2, -3, -4, -6, -8, -12};

static void decode_iq4_nl(const uint8_t *b, float *y, size_t n)
{
    for (; n > 0; n--, b += 18, y += 32)
        decode_by_table(iq4_values, half(b), b + 2, y);
}

static void decode_iq4_xs(const uint8_t *b, float *y, size_t n)
{
    for (; n > 0; n--, b += 136, y += 256) {
        for (int j = 0; j < 8; j++) {
            int low = b[4 + j / 2] >> 4 * (j % 2) & 15;
            int scale = (low | (get_u16(b + 2) >> 2 * j & 3) << 4) - 32;
            decode_by_table(iq4_values, half(b) * (float)scale, b + 8 + 16 * j, y + 32 * j);
        }
    }
}

static void decode_mxfp4(const uint8_t *b, float *y, size_t n)
{
    for (; n > 0; n--, b += 17, y += 32)
        decode_by_table(mxfp4_values, ldexpf(1, b[0] - 128), b + 1, y);
}

static const int8_t iq2_values[] = {8, 25, 43, 0},
                    iq3_xxs_values[] = {4, 12, 20, 28, 36, 44, 52, 62},
                    iq3_s_values[] = {1, 3, 5, 7, 9, 11, 13, 15};

/* Sets y to the numbers of a point, 8 in a grid of 2 bits and 4 in one of 3. The lowest bits of
 * `signs` are theirs. */
static void decode_point(float *y, float d, uint32_t point, int bits, const int8_t *value,
                         uint32_t signs)
{
    for (int i = 0; i < (bits == 2 ? 8 : 4); i++) {
        float x = d * (float)value[point >> bits * i & ((1u << bits) - 1)];
        y[i] = signs >> i & 1 ? -x : x;
    }
}

/* Returns 8 signs of which 7 are stored. */
static uint32_t eight_signs(uint32_t s)
{
    s &= 127;
    return s | (uint32_t)__builtin_parity(s) << 7;
}

static float half_step(const uint8_t *b, uint32_t scale, float unit)
{
    return half(b) * (0.5f + (float)scale) * unit;
}

static void decode_iq2_xxs(const uint8_t *b, float *y, size_t n)
{
    for (; n > 0; n--, b += 66, y += 256)
        for (int i = 0; i < 32; i++) {
            const uint8_t *part = b + 2 + 8 * (i / 4);
            uint32_t more = get_u32(part + 4);
            decode_point(y + 8 * i, half_step(b, more >> 28, 0.25f),
                         gguf_grid_iq2_xxs[part[i % 4]], 2, iq2_values,
                         eight_signs(more >> 7 * (i % 4)));
        }
}

static void decode_iq2_xs(const uint8_t *b, float *y, size_t n)
{
    for (; n > 0; n--, b += 74, y += 256)
        for (int i = 0; i < 32; i++) {
            uint32_t q = get_u16(b + 2 + 2 * i),
                     scale = b[66 + i / 4] >> 4 * (i / 2 % 2) & 15;
            decode_point(y + 8 * i, half_step(b, scale, 0.25f), gguf_grid_iq2_xs[q & 511],
                         2, iq2_values, eight_signs(q >> 9));
        }
}

static void decode_iq2_s(const uint8_t *b, float *y, size_t n)
{
    for (; n > 0; n--, b += 82, y += 256)
        for (int i = 0; i < 32; i++) {
            uint32_t q = b[2 + i] | (uint32_t)(b[66 + i / 4] >> 2 * (i % 4) & 3) << 8;
            uint32_t scale = b[74 + i / 4] >> 4 * (i / 2 % 2) & 15;
            decode_point(y + 8 * i, half_step(b, scale, 0.25f), gguf_grid_iq2_s[q], 2,
                         iq2_values, b[34 + i]);
        }
}

static void decode_iq3_xxs(const uint8_t *b, float *y, size_t n)
{
    for (; n > 0; n--, b += 98, y += 256)
        for (int i = 0; i < 64; i++) {
            uint32_t more = get_u32(b + 66 + 4 * (i / 8));
            decode_point(y + 4 * i, half_step(b, more >> 28, 0.5f),
                         gguf_grid_iq3_xxs[b[2 + i]], 3, iq3_xxs_values,
                         eight_signs(more >> 7 * (i / 2 % 4)) >> 4 * (i % 2));
        }
}

static void decode_iq3_s(const uint8_t *b, float *y, size_t n)
{
    for (; n > 0; n--, b += 110, y += 256)
        for (int i = 0; i < 64; i++) {
            uint32_t q = b[2 + i] | (uint32_t)(b[66 + i / 8] >> i % 8 & 1) << 8;
            uint32_t scale = b[106 + i / 16] >> 4 * (i / 8 % 2) & 15;
            decode_point(y + 4 * i, half(b) * (float)(2 * scale + 1), gguf_grid_iq3_s[q], 3,
                         iq3_s_values, (uint32_t)b[74 + i / 2] >> 4 * (i % 2));
        }
}

static const struct gguf_type types[GGUF_N_TYPES] = {
    [GGUF_TYPE_F32] = {"F32", 1, 4, decode_f32},
    [GGUF_TYPE_F16] = {"F16", 1, 2, decode_f16},
    [GGUF_TYPE_BF16] = {"BF16", 1, 2, decode_bf16},
    [GGUF_TYPE_Q8_0] = {"Q8_0", 32, 34, decode_q8_0},
    [GGUF_TYPE_Q4_0] = {"Q4_0", 32, 18, decode_q4_0},
    [GGUF_TYPE_Q4_1] = {"Q4_1", 32, 20, decode_q4_1},
    [GGUF_TYPE_Q5_0] = {"Q5_0", 32, 22, decode_q5_0},
    [GGUF_TYPE_Q5_1] = {"Q5_1", 32, 24, decode_q5_1},
    [GGUF_TYPE_Q4_K] = {"Q4_K", 256, 144, decode_q4_k},
    [GGUF_TYPE_Q5_K] = {"Q5_K", 256, 176, decode_q5_k},
    [GGUF_TYPE_Q6_K] = {"Q6_K", 256, 210, decode_q6_k},
    [GGUF_TYPE_Q2_K] = {"Q2_K", 256, 84, decode_q2_k},
    [GGUF_TYPE_Q3_K] = {"Q3_K", 256, 110, decode_q3_k},
    [GGUF_TYPE_IQ4_NL] = {"IQ4_NL", 32, 18, decode_iq4_nl},
    [GGUF_TYPE_IQ4_XS] = {"IQ4_XS", 256, 136, decode_iq4_xs},
    [GGUF_TYPE_MXFP4] = {"MXFP4", 32, 17, decode_mxfp4},
    [GGUF_TYPE_IQ2_XXS] = {"IQ2_XXS", 256, 66, decode_iq2_xxs},
    [GGUF_TYPE_IQ2_XS] = {"IQ2_XS", 256, 74, decode_iq2_xs},
    [GGUF_TYPE_IQ2_S] = {"IQ2_S", 256, 82, decode_iq2_s},
    [GGUF_TYPE_IQ3_XXS] = {"IQ3_XXS", 256, 98, decode_iq3_xxs},
    [GGUF_TYPE_IQ3_S] = {"IQ3_S", 256, 110, decode_iq3_s},
    /* Types that cannot be decoded; their sizes are here so that a message can name them. */
    [9] = {"Q8_1", 32, 40, NULL},
    [15] = {"Q8_K", 256, 292, NULL},
    [19] = {"IQ1_S", 256, 50, NULL},
    [24] = {"I8", 1, 1, NULL},
    [25] = {"I16", 1, 2, NULL},
    [26] = {"I32", 1, 4, NULL},
    [27] = {"I64", 1, 8, NULL},
    [28] = {"F64", 1, 8, NULL},
    [29] = {"IQ1_M", 256, 56, NULL},
    [34] = {"TQ1_0", 256, 54, NULL},
    [35] = {"TQ2_0", 256, 66, NULL},
    [40] = {"NVFP4", 64, 36, NULL},
    [41] = {"Q1_0", 128, 18, NULL},
};

const struct gguf_type *gguf_type(uint32_t type)
{
    return type < GGUF_N_TYPES && types[type].name != NULL ? &types[type] : NULL;
}

const char *gguf_types_supported(void)
{
    return "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, "
           "IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS, MXFP4";
}
