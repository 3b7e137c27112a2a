/* numbers.c - see numbers.h. */
#include "model/numbers.h"
#include "base/minmax.h"

#include <stdint.h>
#include <string.h>

/* The compiler vectorizes loops of a fixed length at -O2. */
enum { RUN_BYTES = 512 };
union run {
    uint16_t half[RUN_BYTES / 2];
    uint32_t word[RUN_BYTES / 4];
};

/* Returns whether any element of r is NaN or infinite: all its exponent bits are set. */
static bool is_bad16(const union run *r, uint16_t exponent)
{
    uint16_t bad = 0;
    for (int i = 0; i < RUN_BYTES / 2; i++)
        bad |= (uint16_t)((r->half[i] & exponent) == exponent);
    return bad != 0;
}

static bool is_bad32(const union run *r, uint32_t exponent)
{
    uint32_t bad = 0;
    for (int i = 0; i < RUN_BYTES / 4; i++)
        bad |= (uint32_t)((r->word[i] & exponent) == exponent);
    return bad != 0;
}

bool numbers_only(const void *p, size_t n, enum dtype t)
{
    const uint8_t *bytes = p;
    union run r = {{0}};
    bool bad = false;
    for (size_t left = n * dtype_bytes(t), now; left > 0 && !bad; left -= now) {
        now = MIN(left, RUN_BYTES);
        if (now < RUN_BYTES)
            memset(&r, 0, sizeof r);
        memcpy(&r, bytes, now);
        bytes += now;
        bad = t == DTYPE_F32 ? is_bad32(&r, 0x7f800000)
                             : is_bad16(&r, t == DTYPE_F16 ? 0x7c00 : 0x7f80);
    }
    return !bad;
}
