/* test_carve.c - compares an allocator of parts of a large piece of memory with a map of its pages.
 */
#include <string.h>

#include "tests/unit.h"
#include "base/rng.h"
#include "cuda/carve.h"

enum { PAGES = 64, PARTS = 200 };

TEST(test_first_fit)
{
    struct carve c;
    size_t a, b, d;
    /* the last bytes are not a whole page and are not used */
    carve_init(&c, 3 * CARVE_ALIGN + 17);
    assert_true(carve_take(&c, 1, &a));
    assert_true(carve_take(&c, CARVE_ALIGN, &b));
    assert_true(a == 0 && b == CARVE_ALIGN);
    assert_false(carve_take(&c, CARVE_ALIGN + 1, &d));
    assert_false(carve_take(&c, SIZE_MAX, &d));
    assert_true(carve_give(&c, a));
    assert_false(carve_give(&c, a));
    assert_int_equal(carve_unused(&c), 2 * CARVE_ALIGN);
    assert_true(carve_take(&c, 7, &d));
    assert_int_equal(d, 0);
    carve_deinit(&c);
}

/* An allocation fails only if no gap is large enough, and never overlaps another allocation. */
TEST(test_random)
{
    struct rng r = {5};
    struct carve c;
    bool used[PAGES] = {false};
    size_t at[PARTS], pages[PARTS] = {0};
    int n_refused = 0;
    carve_init(&c, PAGES * CARVE_ALIGN);
    for (int round = 0; round < 20000; round++) {
        int i = (int)rng_below(&r, PARTS);
        if (pages[i] != 0) {
            assert_true(carve_give(&c, at[i]));
            memset(used + at[i] / CARVE_ALIGN, 0, pages[i]);
            pages[i] = 0;
            continue;
        }
        size_t bytes = 1 + rng_below(&r, 5 * CARVE_ALIGN),
               n = (bytes - 1) / CARVE_ALIGN + 1;
        size_t gap = 0, largest = 0, unused = 0;
        for (int p = 0; p < PAGES; p++) {
            gap = used[p] ? 0 : gap + 1;
            unused += !used[p];
            largest = gap > largest ? gap : largest;
        }
        assert_int_equal(carve_unused(&c), unused * CARVE_ALIGN);
        bool taken = carve_take(&c, bytes, &at[i]);
        assert_int_equal(taken, n <= largest);
        n_refused += !taken;
        for (size_t p = 0; taken && p < n; p++) {
            assert_true(at[i] % CARVE_ALIGN == 0 && at[i] / CARVE_ALIGN + p < PAGES);
            assert_false(used[at[i] / CARVE_ALIGN + p]);
            used[at[i] / CARVE_ALIGN + p] = true;
        }
        pages[i] = taken ? n : 0;
    }
    assert_true(n_refused > 100);
    carve_deinit(&c);
}
