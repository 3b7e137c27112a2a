/* test_placement.c - what a full tier evicts, against a list that is searched. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "policy/placement.h"

enum { N = 40 };

static struct placement_item item[N], *slot[N];
static struct placement place;

static void begin(void)
{
    place = (struct placement){0};
    for (int i = 0; i < N; i++)
        item[i] = (struct placement_item){0};
    placement_set_slots(&place, slot, N);
}

static void the_least_recently_used_goes_first(void **state)
{
    (void)state;
    begin();
    assert_null(placement_victim(&place));
    for (int i = 0; i < 4; i++) {
        placement_touch(&place, &item[i], (uint64_t)(10 + i));
        placement_insert(&place, &item[i]);
    }
    assert_ptr_equal(placement_victim(&place), &item[0]);
    placement_touch(&place, &item[0], 20);
    assert_ptr_equal(placement_victim(&place), &item[1]);
    placement_remove(&place, &item[1]);
    assert_ptr_equal(placement_victim(&place), &item[2]);
    placement_touch(&place, &item[1], 5); /* out of the tier: it counts when it is back */
    assert_ptr_equal(placement_victim(&place), &item[2]);
    placement_insert(&place, &item[1]);
    assert_ptr_equal(placement_victim(&place), &item[1]);
}

static void kept_items_go_last_and_no_later(void **state)
{
    (void)state;
    begin();
    for (int i = 0; i < 3; i++) {
        placement_touch(&place, &item[i], (uint64_t)(1 + i));
        placement_insert(&place, &item[i]);
    }
    placement_keep(&place, &item[0], true);
    placement_keep(&place, &item[1], true);
    assert_ptr_equal(placement_victim(&place), &item[2]);
    placement_remove(&place, &item[2]);
    assert_ptr_equal(placement_victim(&place), &item[0]);
    placement_keep(&place, &item[1], false);
    assert_ptr_equal(placement_victim(&place), &item[1]);
}

/* The item that a search of all finds. */
static const struct placement_item *search(void)
{
    const struct placement_item *best = NULL;
    for (int i = 0; i < N; i++) {
        const struct placement_item *x = &item[i];
        if (x->slot == 0)
            continue;
        if (best == NULL || (best->is_kept && !x->is_kept) ||
            (best->is_kept == x->is_kept && x->used_at < best->used_at))
            best = x;
    }
    return best;
}

static void random_histories_choose_as_a_search_does(void **state)
{
    (void)state;
    struct rng r = {1};
    for (int t = 0; t < 300; t++) {
        begin();
        uint64_t now = 0;
        uint32_t n = 0;
        for (int i = 0; i < N; i++)
            placement_touch(&place, &item[i], ++now); /* no two uses are at once */
        for (int op = 0; op < 400; op++) {
            struct placement_item *x = &item[rng_below(&r, N)];
            uint64_t what = rng_below(&r, 8);
            if (what < 4) {
                placement_touch(&place, x, ++now);
            } else if (what < 5) {
                placement_keep(&place, x, rng_below(&r, 2));
            } else if (x->slot == 0) {
                placement_insert(&place, x);
                n++;
            } else {
                placement_remove(&place, x);
                n--;
            }
            assert_int_equal(place.n, n);
            assert_ptr_equal(placement_victim(&place), search());
            for (int i = 0; i < N; i++)
                assert_true(placement_audit(&place, &item[i]));
        }
    }
}

/* The victims of a history in which everything goes come in the order of use. */
static void victims_come_in_order(void **state)
{
    (void)state;
    struct rng r = {2};
    begin();
    for (int i = 0; i < N; i++) {
        placement_touch(&place, &item[i], rng_u64(&r));
        placement_insert(&place, &item[i]);
    }
    for (uint64_t last = 0; place.n > 0;) {
        struct placement_item *v = placement_victim(&place);
        assert_true(v->used_at >= last);
        last = v->used_at;
        placement_remove(&place, v);
    }
}

static void an_audit_sees_what_is_wrong(void **state)
{
    (void)state;
    begin();
    for (int i = 0; i < 5; i++) {
        placement_touch(&place, &item[i], (uint64_t)(1 + i));
        placement_insert(&place, &item[i]);
    }
    assert_true(placement_audit(&place, &item[4]));
    item[4].used_at = 0; /* stands below a later one */
    assert_false(placement_audit(&place, &item[4]));
    item[4].used_at = 5;
    item[4].slot = 2; /* says that it is elsewhere */
    assert_false(placement_audit(&place, &item[4]));
    item[4].slot = 6; /* behind the end */
    assert_false(placement_audit(&place, &item[4]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_recently_used_goes_first),
        cmocka_unit_test(kept_items_go_last_and_no_later),
        cmocka_unit_test(random_histories_choose_as_a_search_does),
        cmocka_unit_test(victims_come_in_order),
        cmocka_unit_test(an_audit_sees_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
