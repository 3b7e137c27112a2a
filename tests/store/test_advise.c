/* test_advise.c - contexts and bytes that were used within a time. */

#include "tests/unit.h"
#include "base/clock.h"
#include "store/advise.h"
#include "storetest.h"

enum { HOUR_S = 3600, DAY_S = 24 * HOUR_S };

static void assert_row(const struct store_advice *a, uint64_t contexts, uint64_t bytes)
{
    assert_int_equal(a->contexts, contexts);
    assert_int_equal(a->bytes, bytes);
}

/* Two contexts share three chunks and end differently. They count as two contexts, and the bytes of
 * the shared chunks count once. As they get older, they drop out of the rows of shorter times. */
TEST(shared_chunks_count_once_and_ends_are_contexts)
{
    struct st_place p;
    static const char *const names[] = {"hour", "day", "week", "30 days", "all time"};
    static const int64_t hours[] = {1, 24, 7 * 24, 30 * 24, 0};
    struct store_advice a[STORE_ADVICES];
    struct sha256 keys[8];
    struct store_erased gone;
    const struct st_ctx one = {.base = 1, .own = 1, .branch = 3},
                        two = {.base = 1, .own = 2, .branch = 3};
    struct store *s = st_begin(&p, "sim", 1);
    store_advise(s, clock_wall_s(), a);
    for (int i = 0; i < STORE_ADVICES; i++) {
        assert_row(&a[i], 0, 0);
        assert_string_equal(a[i].within, names[i]);
        assert_int_equal(a[i].seconds, hours[i] * HOUR_S);
    }
    st_must_save(s, &one, 5);
    st_must_save(s, &two, 4);
    int64_t now_s = clock_wall_s();
    uint64_t all = st_context_bytes(6);
    store_advise(s, now_s, a);
    for (int i = 0; i < STORE_ADVICES; i++)
        assert_row(&a[i], 2, all);
    store_advise(s, now_s + HOUR_S + 60, a);
    assert_row(&a[0], 0, 0);
    assert_row(&a[1], 2, all);
    store_advise(s, now_s + 8 * DAY_S, a);
    assert_row(&a[2], 0, 0);
    assert_row(&a[3], 2, all);
    store_advise(s, now_s + 1000 * DAY_S, a);
    assert_row(&a[3], 0, 0);
    assert_row(&a[4], 2, all);
    /* One context now ends at an earlier chunk. It still counts as a context. */
    st_keys(&one, 5, keys);
    assert_int_equal(store_erase(s, &keys[4], 1, &gone, NULL), 0);
    store_advise(s, now_s, a);
    assert_row(&a[0], 2, st_context_bytes(5));
    st_close(s, &p);
}
