/* test_numbers.c - the search for NaNs and infinities finds one at any position, and takes no
 * finite number for one. */
#include "tests/unit.h"

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "model/numbers.h"

static const struct {
    enum dtype t;
    /* not finite: infinities, and NaNs with only the highest or the lowest bit of the mantissa */
    uint32_t none[4];
    uint32_t all[3]; /* finite: the largest numbers of both signs, and a tiny number */
} kind[] = {
    {DTYPE_F32,
     {0x7f800000, 0xff800000, 0xffffffff, 0x7f800001},
     {0x7f7fffff, 0xff7fffff, 0x00000001}},
    {DTYPE_BF16, {0x7f80, 0xff80, 0xffff, 0x7f81}, {0x7f7f, 0xff7f, 0x0001}},
    {DTYPE_F16, {0x7c00, 0xfc00, 0xffff, 0x7c01}, {0x7bff, 0xfbff, 0x0001}},
};

TEST(each_place_is_looked_at)
{
    for (size_t k = 0; k < 3; k++) {
        size_t e = dtype_bytes(kind[k].t);
        for (size_t n = 0; n <= 600; n += n < 10 ? 1 : 59) {
            uint8_t *p = malloc(n * e + 1 + e), *at = p + 1; /* deliberately unaligned */
            struct rng rng = {n};
            for (size_t i = 0; i < n; i++)
                memcpy(at + i * e, &kind[k].all[rng_below(&rng, 3)], e);
            /* lies beyond the end, so it must not count */
            memcpy(at + n * e, &kind[k].none[0], e);
            assert_true(numbers_only(at, n, kind[k].t));
            for (size_t i = 0; i < n; i++) {
                uint8_t was[4];
                memcpy(was, at + i * e, e);
                memcpy(at + i * e, &kind[k].none[i % 4], e);
                assert_false(numbers_only(at, n, kind[k].t));
                memcpy(at + i * e, was, e);
            }
            free(p);
        }
    }
}
