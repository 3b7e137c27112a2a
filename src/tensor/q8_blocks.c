/* q8_blocks.c - see q8_blocks.h. */
#include "tensor/q8_blocks.h"

#include <math.h>
#include <string.h>

bool q8_round(const float *w, int64_t n, uint16_t *d, int8_t q[Q8_BLOCK])
{
    float largest = 0;
    *d = 0;
    memset(q, 0, Q8_BLOCK);
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(w[i]))
            return false;
        largest = fmaxf(largest, fabsf(w[i]));
    }
    if (largest == 0)
        return true;
    float want = largest / 127.0f;
    *d = f32_to_f16(want);
    if (f16_to_f32(*d) < want)
        (*d)++; /* the next larger f16, because the sign is plus */
    float scale = f16_to_f32(*d);
    for (int64_t i = 0; i < n && isfinite(scale); i++)
        q[i] = (int8_t)rintf(w[i] / scale);
    return isfinite(scale);
}
