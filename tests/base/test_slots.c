/* test_slots.c - a map of 32-bit slots to indices of an array that has the keys. */

#include "tests/unit.h"
#include "base/rng.h"
#include "bpe/slots.h"

/* Finds key k, whose index is k, by a hash that other keys may have. */
static uint32_t *slot_of(const struct slots *m, uint64_t hash, int64_t k)
{
    uint32_t *s = slots_next(m, hash, NULL);
    while (*s != 0 && slots_index(m, *s) != k)
        s = slots_next(m, hash, s);
    return s;
}

/* Every key is found, and no other one, also where all hashes are equal, end in the last slot, or
 * differ in their low bits only. */
TEST(every_key_is_found)
{
    static const uint64_t masks[] = {UINT64_MAX, UINT32_MAX, 0, 0xFFFFFFFF00000000u, 7};
    for (size_t max = 0; max <= 300; max += max < 20 ? 1 : 93)
        for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
            struct slots m;
            slots_init(&m, max, i % 2 == 0 ? 301 : 1 << 22);
            assert_true(m.n > 2 * max); /* at most half full */
            for (size_t k = 0; k <= max; k++) {
                uint64_t hash = i == 4 ? UINT64_MAX : rng_mix(k) & masks[i];
                uint32_t *s = slot_of(&m, hash, (int64_t)k);
                assert_int_equal(*s, 0);
                if (k < max)
                    slots_set(&m, s, hash, k);
            }
            assert_int_equal(m.count, max);
            for (size_t k = 0; k <= max; k++) {
                uint64_t hash = i == 4 ? UINT64_MAX : rng_mix(k) & masks[i];
                assert_int_equal(slots_index(&m, *slot_of(&m, hash, (int64_t)k)),
                                 k < max ? (int64_t)k : -1);
            }
            slots_deinit(&m);
            slots_deinit(&m); /* also accepts a zeroed map */
        }
}
