/* q8_blocks.c - see q8_blocks.h. */
#include "tensor/q8_blocks.h"

#include "base/minmax.h"

#include <math.h>
#include <string.h>

/* 1.5 * 2^23: after adding it, the low bits hold the whole number, rounded to nearest even. */
#define ROUNDER      12582912.0f
#define ROUNDER_BITS 0x4b400000

bool q8_round(const float *w, int64_t n, uint16_t *d, int8_t q[Q8_BLOCK])
{
    uint32_t top = 0; /* magnitudes are ordered like their bits; NaN comes last */
    float largest;
    *d = 0;
    memset(q, 0, Q8_BLOCK);
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, w + i, sizeof bits);
        top = MAX(bits & 0x7fffffff, top);
    }
    if (top == 0)
        return true;
    memcpy(&largest, &top, sizeof largest);
    float want = largest / 127.0f;
    *d = f32_to_f16(want);
    if (f16_to_f32(*d) < want)
        (*d)++; /* the next larger f16, because the sign is plus */
    float scale = f16_to_f32(*d);
    for (int64_t i = 0; i < n && isfinite(scale); i++) {
        float whole = w[i] / scale + ROUNDER;
        int32_t bits;
        memcpy(&bits, &whole, sizeof bits);
        q[i] = (int8_t)(bits - ROUNDER_BITS);
    }
    return isfinite(scale);
}
