/* test_copy.c - copies past the caches: every length at every alignment, and no byte outside is
 * written. */

#include "tests/unit.h"

#include <string.h>

#include "base/copy.h"

enum { MOST = 4 * 64 + 9, ROOM = MOST + 3 * 64 };

TEST(every_length_and_alignment)
{
    static uint8_t from[ROOM];
    static _Alignas(64) uint8_t to[ROOM];
    for (int i = 0; i < ROOM; i++)
        from[i] = (uint8_t)(i * 7 + 1);
    for (size_t align = 0; align < 64; align++)
        for (size_t n = 0; n <= MOST; n += n < 70 || n > 250 ? 1 : 13) {
            memset(to, 0, sizeof to);
            copy_past_caches(to + 64 + align, from + (align * 3) % 64, n);
            copy_past_caches_end();
            assert_memory_equal(to + 64 + align, from + (align * 3) % 64, n);
            for (size_t i = 0; i < ROOM; i++)
                if (i < 64 + align || i >= 64 + align + n)
                    assert_int_equal(to[i], 0);
        }
}
