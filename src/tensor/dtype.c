/* dtype.c - names of element types, and conversions of single numbers (tensor.h). */
#include <math.h>
#include <string.h>

#include "tensor/tensor.h"

const char *dtype_name(enum dtype t)
{
    static const char *const names[] = {"f32",    "f16",   "bf16", "q8",    "q4_0",
                                        "q4_1",   "q4_k",  "q6_k", "mxfp4", "iq4_nl",
                                        "iq4_xs", "bf16r", "q4"};
    return (unsigned)t <= DTYPE_Q4 ? names[t] : "?";
}

int dtype_parse(const char *name, enum dtype *out)
{
    for (int t = DTYPE_F32; t <= DTYPE_BF16; t++) {
        if (strcmp(name, dtype_name((enum dtype)t)) == 0) {
            *out = (enum dtype)t;
            return 0;
        }
    }
    return ERR_USAGE;
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float bf16_to_f32(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

void floats_narrow(uint16_t *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u = bits_of(src[i]);
        uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
        dst[i] = (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? u >> 16 | 0x40 : rounded);
    }
}

uint16_t f32_to_bf16(float f)
{
    uint32_t u = bits_of(f);
    if (isnan(f))
        return (uint16_t)(u >> 16 | 0x40); /* a quiet NaN with a shortened payload */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = h >> 10 & 0x1f, mantissa = h & 0x3ff;
    if (exponent == 0x1f) /* infinity, or a NaN made quiet as the hardware does */
        return float_of(sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0));
    if (exponent == 0) { /* zero or subnormal: mantissa * 2^-24 */
        float f = (float)mantissa * 0x1p-24f;
        return sign ? -f : f;
    }
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t f32_to_f16(float f)
{
    uint32_t u = bits_of(f);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    u &= 0x7fffffff;
    if (u > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (u >> 13 & 0x3ff));
    if (u >= 0x477ff000) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (u < 0x38800000) { /* below 2^-14: let the adder round to a multiple of 2^-24 */
        uint32_t r = bits_of(float_of(u) + 0.5f) - bits_of(0.5f);
        return (uint16_t)(sign | r);
    }
    u += 0xfff + (u >> 13 & 1);
    return (uint16_t)(sign | ((u >> 13) - (112 << 10)));
}
