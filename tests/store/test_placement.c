/* test_placement.c - the victims of a full tier, compared with a linear search. */
#include <string.h>

#include "tests/unit.h"
#include "base/rng.h"
#include "store/placement.h"

enum { N = 40 };

enum { PLACES = 256, WAITS = 200 };

static struct placement_item item[N];
static struct placement_slot slot[N];
static struct placement_part part;
static struct placement policy;
static struct placement_window window;
static struct placement_upcoming upcoming[PLACES];
static struct placement_wait wait_of[WAITS];
static struct placement_learn learn;

/* Begins with an empty tier. Item i has the id i + 1. */
static void begin_as(enum placement_kind kind)
{
    memset(upcoming, 0, sizeof upcoming);
    memset(wait_of, 0, sizeof wait_of);
    placement_window_init(&window, upcoming, PLACES, wait_of, WAITS);
    placement_learn_init(&learn);
    placement_init(&policy, kind, &window, kind == PLACEMENT_OURS ? &learn : NULL);
    part = (struct placement_part){0};
    for (int i = 0; i < N; i++)
        item[i] = (struct placement_item){.id = (uint64_t)(1 + i)};
    placement_set_slots(&part, slot, N);
}

static void begin(void)
{
    begin_as(PLACEMENT_LRU);
}

static void touch(struct placement_item *x, uint64_t at)
{
    placement_touch(&policy, &part, x,
                    &(struct placement_use){.at = at, .time = (uint32_t)at});
}

/* Uses the item and inserts it. */
static void add(int i, uint64_t at)
{
    touch(&item[i], at);
    placement_insert(&policy, &part, &item[i]);
}

/* Evicts the victim. Returns its index, or -1 if there is none. */
static int evict(void)
{
    struct placement_item *v = placement_victim(&part);
    if (v == NULL)
        return -1;
    placement_evicted(&policy, v, N);
    placement_remove(&part, v);
    return (int)(v - item);
}

static void expect_use(int i, uint64_t turn)
{
    assert_true(placement_window_add(&window, item[i].id, turn));
    placement_review(&policy, &part, &item[i]);
}

static void expect_no_more(int i, uint64_t turn)
{
    assert_true(placement_window_remove(&window, item[i].id, turn));
    placement_review(&policy, &part, &item[i]);
}

TEST(the_least_recently_used_goes_first)
{
    begin();
    assert_null(placement_victim(&part));
    for (int i = 0; i < 4; i++) {
        touch(&item[i], (uint64_t)(10 + i));
        placement_insert(&policy, &part, &item[i]);
    }
    assert_ptr_equal(placement_victim(&part), &item[0]);
    touch(&item[0], 20);
    assert_ptr_equal(placement_victim(&part), &item[1]);
    placement_remove(&part, &item[1]);
    assert_ptr_equal(placement_victim(&part), &item[2]);
    touch(&item[1], 5); /* a use outside of the tier counts when the item comes back */
    assert_ptr_equal(placement_victim(&part), &item[2]);
    placement_insert(&policy, &part, &item[1]);
    assert_ptr_equal(placement_victim(&part), &item[1]);
}

TEST(a_kept_item_is_the_victim_if_no_other_is_left)
{
    begin();
    for (int i = 0; i < 3; i++) {
        touch(&item[i], (uint64_t)(1 + i));
        placement_insert(&policy, &part, &item[i]);
    }
    placement_keep(&policy, &part, &item[0], true);
    placement_keep(&policy, &part, &item[1], true);
    assert_ptr_equal(placement_victim(&part), &item[2]);
    placement_remove(&part, &item[2]);
    assert_ptr_equal(placement_victim(&part), &item[0]);
    placement_keep(&policy, &part, &item[1], false);
    assert_ptr_equal(placement_victim(&part), &item[1]);
}

/* Returns the victim that a linear search of all items finds. */
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

TEST(random_histories_choose_as_a_search_does)
{
    struct rng r = {1};
    for (int t = 0; t < 300; t++) {
        bool ours = t % 3 == 0; /* it has a second heap, in the order of use */
        begin_as(ours ? PLACEMENT_OURS : PLACEMENT_LRU);
        uint64_t now = 0;
        uint32_t n = 0;
        for (int i = 0; i < N; i++)
            touch(&item[i], ++now); /* no two uses have the same time */
        for (int op = 0; op < 400; op++) {
            struct placement_item *x = &item[rng_below(&r, N)];
            uint64_t what = rng_below(&r, 8);
            if (what < 4) {
                touch(x, ++now);
            } else if (what < 5) {
                placement_keep(&policy, &part, x, rng_below(&r, 2));
            } else if (x->slot == 0) {
                placement_insert(&policy, &part, x);
                n++;
            } else {
                placement_remove(&part, x);
                n--;
            }
            assert_int_equal(part.n, n);
            if (!ours)
                assert_ptr_equal(placement_victim(&part), search());
            for (int i = 0; i < N; i++)
                assert_true(placement_audit(&part, &item[i]));
        }
    }
}

/* While everything is evicted, victims come in the order of their last use. */
TEST(victims_come_in_order)
{
    struct rng r = {2};
    begin();
    for (int i = 0; i < N; i++) {
        touch(&item[i], rng_u64(&r));
        placement_insert(&policy, &part, &item[i]);
    }
    for (uint64_t last = 0; part.n > 0;) {
        struct placement_item *v = placement_victim(&part);
        assert_true(v->used_at >= last);
        last = v->used_at;
        placement_remove(&part, v);
    }
}

TEST(an_audit_sees_what_is_wrong)
{
    begin();
    for (int i = 0; i < 5; i++) {
        touch(&item[i], (uint64_t)(1 + i));
        placement_insert(&policy, &part, &item[i]);
    }
    assert_true(placement_audit(&part, &item[4]));
    item[4].order = 0; /* less than that of an earlier item */
    assert_false(placement_audit(&part, &item[4]));
    item[4].order = 5;
    item[4].slot = 2; /* the slot of another item */
    assert_false(placement_audit(&part, &item[4]));
    item[4].slot = 6; /* beyond the last slot */
    assert_false(placement_audit(&part, &item[4]));
}

/* --- the other policies ----------------------------------------------------------------------- */

TEST(fifo_evicts_by_first_use)
{
    begin_as(PLACEMENT_FIFO);
    for (int i = 0; i < 3; i++)
        add(i, (uint64_t)(1 + i));
    touch(&item[0], 10); /* a second use changes nothing */
    assert_int_equal(evict(), 0);
    assert_int_equal(evict(), 1);
}

TEST(lfu_evicts_the_least_used_and_ages)
{
    begin_as(PLACEMENT_LFU);
    for (int i = 0; i < 3; i++)
        add(i, (uint64_t)(1 + i));
    for (int i = 0; i < 5; i++)
        touch(&item[0], (uint64_t)(10 + i));
    /* six uses, and an age of 0 when the item came in */
    assert_int_equal(item[0].order, 6);
    /* items 1 and 2 have one use each; item 1's is earlier */
    assert_int_equal(evict(), 1);
    assert_int_equal(policy.age, 1);
    add(3, 21);
    /* one use plus the policy's age 1: later than item 2, whose order is 1 */
    assert_int_equal(item[3].order, 2);
    assert_int_equal(evict(), 2);
    /* An item with many old uses is evicted when new items have aged past it. */
    int n_new = 0;
    for (int i = 4; i < N; i++, n_new++) {
        add(i, (uint64_t)(30 + i));
        if (evict() == 0)
            break;
    }
    assert_true(n_new > 4 && n_new < 12);
}

TEST(attentionstore_exempts_the_window_and_evicts_its_tail_first)
{
    begin_as(PLACEMENT_ATTENTIONSTORE);
    for (int i = 0; i < 5; i++)
        add(i, (uint64_t)(1 + i));
    expect_use(0, 100); /* the next request needs item 0 */
    expect_use(1, 101);
    expect_use(2, 102);
    /* the least recently used of the items that no request needs */
    assert_int_equal(evict(), 3);
    assert_int_equal(evict(), 4);
    assert_int_equal(evict(), 2); /* the item that the last waiting request needs */
    expect_no_more(0, 100);       /* item 0 is ordinary again after its request */
    assert_int_equal(evict(), 0);
    assert_int_equal(evict(), 1);
}

/* After its request, an item has the place among the others that its last use gives it. The turns
 * would order the items the other way round. */
TEST(an_item_that_was_needed_goes_back_to_its_place)
{
    static const enum placement_kind kinds[] = {PLACEMENT_ATTENTIONSTORE, PLACEMENT_OURS};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        begin_as(kinds[k]);
        for (int i = 0; i < 4; i++) {
            add(i, (uint64_t)(1 + i));
            expect_use(i, (uint64_t)(100 + i));
        }
        for (int i = 0; i < 4; i++)
            expect_no_more(i, (uint64_t)(100 + i));
        for (int i = 0; i < 4; i++)
            assert_int_equal(evict(), i);
    }
}

TEST(lru_does_not_look_ahead)
{
    begin();
    add(0, 1);
    add(1, 2);
    expect_use(0, 100);
    assert_int_equal(evict(), 0);
}

TEST(an_item_that_several_requests_need_waits_for_the_first)
{
    begin_as(PLACEMENT_ATTENTIONSTORE);
    add(0, 1);
    add(1, 2);
    expect_use(0, 7);
    expect_use(0, 3);
    expect_use(1, 5);
    assert_int_equal(placement_window_count(&window, 1), 2);
    /* item 0 is needed at turn 3, item 1 later */
    assert_ptr_equal(placement_victim(&part), &item[1]);
    expect_no_more(0, 3);
    /* item 0 is now needed at turn 7 only */
    assert_ptr_equal(placement_victim(&part), &item[0]);
    expect_no_more(0, 7);
    assert_int_equal(item[0].rank, PLACEMENT_ORDINARY);
}

/* Of two items the one that more waiting requests need stays, even if a single request needs the
 * other sooner. Twice as many requests count as much as being needed `step` turns sooner. */
TEST(ours_counts_every_waiting_request)
{
    static const struct {
        enum placement_kind kind;
        uint64_t step;
        int victim;
    } cases[] = {
        {PLACEMENT_OURS, 3, 1},
        /* item 0 counts as needed at turn 10 - log2(5) * 1, which is after turn 7 */
        {PLACEMENT_OURS, 1, 0},
        {PLACEMENT_OURS, 0, 0},
        {PLACEMENT_ATTENTIONSTORE, 3, 0}};
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        begin_as(cases[k].kind);
        window.step = cases[k].step;
        add(0, 1);
        add(1, 2);
        expect_use(1, 7);
        for (uint64_t turn = 10; turn < 15; turn++)
            expect_use(0, turn);
        assert_ptr_equal(placement_victim(&part), &item[cases[k].victim]);
        for (uint64_t turn = 11; turn < 15; turn++)
            expect_no_more(0, turn);
        /* now one request waits for each item */
        assert_ptr_equal(placement_victim(&part), &item[0]);
    }
}

TEST(an_item_inserted_later_is_found_in_the_window)
{
    begin_as(PLACEMENT_OURS);
    add(0, 5);
    /* item 1 is not in the tier yet */
    assert_true(placement_window_add(&window, item[1].id, 3));
    add(1, 1);
    assert_int_equal(evict(), 0);
}

TEST(dropped_items_go_first_and_kept_ones_last)
{
    for (int kind = 0; kind < PLACEMENT_KINDS; kind++) {
        begin_as(kind);
        for (int i = 0; i < 4; i++)
            add(i, (uint64_t)(1 + i));
        placement_keep(&policy, &part, &item[0], true);
        expect_use(1, 3);
        placement_drop(&policy, &part, &item[3], true);
        assert_ptr_equal(placement_victim(&part), &item[3]);
        /* a pin protects a dropped item, too */
        placement_keep(&policy, &part, &item[3], true);
        assert_ptr_not_equal(placement_victim(&part), &item[3]);
        placement_keep(&policy, &part, &item[3], false);
        assert_int_equal(evict(), 3);
        evict();
        evict();
        assert_int_equal(evict(), 0);
    }
}

TEST(belady_evicts_the_farthest_next_use)
{
    begin_as(PLACEMENT_BELADY);
    uint64_t next[] = {30, UINT64_MAX, 10, 20};
    for (int i = 0; i < 4; i++) {
        struct placement_use u = {.at = (uint64_t)(1 + i), .next = next[i]};
        placement_touch(&policy, &part, &item[i], &u);
        placement_insert(&policy, &part, &item[i]);
    }
    assert_int_equal(evict(), 1);
    assert_int_equal(evict(), 0);
    assert_int_equal(evict(), 3);
    assert_int_equal(evict(), 2);
}

/* New content is not admitted if it would displace an item that is needed sooner. */
TEST(a_newcomer_is_admitted_where_it_is_needed_sooner)
{
    static const struct {
        enum placement_kind kind;
        /* The newcomer's turn and its next use; turn 0: no waiting request needs the newcomer. */
        uint64_t turn, next;
        bool waits; /* whether a request at turn 10 waits for the victim */
        bool is_admitted;
    } cases[] = {{PLACEMENT_OURS, 0, 0, true, false},
                 {PLACEMENT_OURS, 11, 0, true, false},
                 {PLACEMENT_OURS, 10, 0, true, false},
                 {PLACEMENT_OURS, 9, 0, true, true},
                 {PLACEMENT_OURS, 0, 0, false, true},
                 {PLACEMENT_ATTENTIONSTORE, 0, 0, true, true},
                 {PLACEMENT_LRU, 0, 0, true, true},
                 {PLACEMENT_BELADY, 0, 31, false, false},
                 {PLACEMENT_BELADY, 0, 30, false, false},
                 {PLACEMENT_BELADY, 0, 29, false, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin_as(cases[i].kind);
        struct placement_use use = {.at = 1, .time = 1, .next = 30};
        placement_touch(&policy, &part, &item[0], &use);
        placement_insert(&policy, &part, &item[0]);
        if (cases[i].waits)
            expect_use(0, 10);
        if (cases[i].turn != 0)
            expect_use(1, cases[i].turn);
        assert_int_equal(
            placement_admits(&policy, placement_victim(&part), item[1].id, cases[i].next),
            cases[i].is_admitted);
    }
}

/* Only the eviction of an ordinary item ages the others: a dropped one tells nothing of them. */
TEST(a_dropped_item_ages_no_other)
{
    for (int is_dropped = 0; is_dropped < 2; is_dropped++) {
        begin_as(PLACEMENT_LFU);
        add(0, 1);
        touch(&item[0], 2);
        if (is_dropped)
            placement_drop(&policy, &part, &item[0], true);
        assert_int_equal(evict(), 0);
        assert_int_equal(policy.age, is_dropped ? 0 : 2);
    }
}

/* --- ours ------------------------------------------------------------------------------------- */

/* Records a use. The item was in the tier, or it comes in now. */
static void learn_use(uint64_t id, uint8_t class, uint32_t time)
{
    const struct placement_learn_use use = {
        .id = id, .class = class, .time = time, .lot = id, .was_there = true};
    placement_learn_used(&learn, &use);
}

/* Sets the number of the tier's items. */
static void learn_size(uint64_t n_items)
{
    placement_learn_evicted(&learn, UINT64_MAX, n_items);
}

/* Teaches that every item of class `busy` is used again after 20 units of time, and one item in a
 * hundred of class `idle`. The tier is full with 60 items, so LRU would not hold an item for 20
 * units. */
static void teach(uint8_t busy, uint8_t idle)
{
    uint32_t now = 1000;
    uint64_t id = 1000;
    for (int i = 0; i < 40000; i++) {
        now += i % 4 == 0;
        learn_use(1 + (uint64_t)(i / 4) % 20, busy, now);
        learn_use(i % 100 == 0 && i > 0 ? id - 10 : ++id, idle, now);
        learn_size(60);
    }
}

static const struct placement_sample *sample_of(uint64_t id)
{
    for (int i = 0; i < PLACEMENT_SAMPLES; i++)
        if (learn.sample[i].id == id)
            return &learn.sample[i];
    return NULL;
}

/* An eviction tells the learner which item has left, and the size of the tier. */
TEST(ours_learns_what_was_evicted)
{
    begin_as(PLACEMENT_OURS);
    add(0, 1);
    add(1, 2);
    assert_int_equal(learn.n_items, 0);
    assert_true(sample_of(item[0].id)->is_there);
    assert_int_equal(evict(), 0);
    assert_int_equal(learn.n_items, N);
    assert_false(sample_of(item[0].id)->is_there);
    assert_true(sample_of(item[1].id)->is_there);
}

TEST(ours_holds_longer_what_is_used_again)
{
    uint8_t busy = placement_class(3, true, false), idle = placement_class(1, false, true);
    uint8_t busy1 = placement_class_used(busy, 1), idle1 = placement_class_used(idle, 1);
    begin_as(PLACEMENT_OURS);
    assert_int_equal(placement_learn_worth(&learn, busy1, 0, 1),
                     placement_learn_worth(&learn, idle1, 0, 1)); /* nothing is known yet */
    teach(busy1, idle1);
    assert_true(learn.index[busy1][0] > 10 * learn.index[idle1][0]);
    assert_true(placement_learn_worth(&learn, busy1, 0, 1) >
                placement_learn_worth(&learn, idle1, 0, 1) + 10);
    struct placement_use a = {.at = 1, .time = 50000, .class = busy};
    struct placement_use b = {.at = 2, .time = 50010, .class = idle};
    placement_touch(&policy, &part, &item[0], &a);
    placement_touch(&policy, &part, &item[1], &b);
    placement_insert(&policy, &part, &item[0]);
    placement_insert(&policy, &part, &item[1]);
    assert_int_equal(evict(), 1); /* LRU would evict item 0 */
}

TEST(ours_is_lru_before_it_has_learned)
{
    begin_as(PLACEMENT_OURS);
    for (int i = 0; i < N; i++)
        add((i * 7) % N, (uint64_t)(1000 + i));
    for (int i = 0; i < N; i++)
        assert_int_equal(evict(), (i * 7) % N);
}

/* Where `ours` may not depart from LRU, items that waiting requests need still go in the order of
 * their turns. */
TEST(ours_keeps_the_order_of_turns_where_it_is_bound)
{
    begin_as(PLACEMENT_OURS);
    learn.may_depart = false;
    add(0, 1);
    add(1, 2);
    expect_use(0, 5);
    expect_use(1, 10);
    assert_int_equal(evict(), 1); /* it is needed last, although it was used last */
}

/* The learner gets the class of an item with the number of its uses. */
TEST(uses_are_part_of_a_class)
{
    uint8_t class = placement_class(1, false, true);
    begin_as(PLACEMENT_OURS);
    struct placement_use u = {.at = 1, .time = 1000, .class = class};
    for (int n = 1; n < 3; n++, u.at++, u.time++) {
        placement_touch(&policy, &part, &item[0], &u);
        assert_int_equal(sample_of(item[0].id)->class, placement_class_used(class, n));
    }
    assert_int_not_equal(placement_class_used(class, 1), placement_class_used(class, 2));
}

/* Content that comes back after its eviction, and that LRU would still have, is a loss. */
TEST(content_that_comes_back_was_not_there)
{
    begin_as(PLACEMENT_OURS);
    learn.lru_age = 100;
    touch(&item[0], 1000);
    touch(&item[0], 1001);
    assert_true(learn.guard.regret == 0);
    item[0] = (struct placement_item){.id = item[0].id}; /* it was evicted meanwhile */
    touch(&item[0], 1002);
    assert_true(learn.guard.regret > 0);
}

TEST(ours_believes_a_hint_as_far_as_it_is_worth_the_room)
{
    begin_as(PLACEMENT_OURS);
    learn.price = 0.01; /* the tier's price: a use per hundred units of time */
    struct placement_use u[] = {{.at = 1, .time = 1000, .reuse_in = 50},
                                {.at = 2, .time = 1000, .reuse_in = 101},
                                {.at = 3, .time = 1000}};
    for (int i = 0; i < 3; i++) {
        placement_touch(&policy, &part, &item[i], &u[i]);
        placement_insert(&policy, &part, &item[i]);
    }
    assert_int_equal(evict(), 1); /* the hinted use is too far away to wait for */
    /* the hint counts until twice the hinted time has passed */
    assert_int_equal(item[0].order, 1100);
    touch(&item[0], 1050); /* a use ends the hint */
    assert_int_equal(item[0].due_time, 0);
}

/* The saving per byte of a use multiplies the learned value. An item that is barely worth its room
 * is evicted first if a use saves little, and stays if a use saves much. */
TEST(ours_holds_longer_what_saves_more)
{
    uint8_t busy = placement_class(3, true, false), idle = placement_class(1, false, true);
    uint8_t idle1 = placement_class_used(idle, 1);
    begin_as(PLACEMENT_OURS);
    teach(placement_class_used(busy, 1), idle1);
    /* the value per byte at which the item is just worth its room */
    double least = learn.price / learn.index[idle1][0];
    assert_int_equal(placement_learn_worth(&learn, idle1, 0, least / 2), 0);
    uint32_t worth = placement_learn_worth(&learn, idle1, 0, 4 * least);
    assert_true(worth > 0);
    assert_true(placement_learn_worth(&learn, idle1, 0, 64 * least) >= worth);
    struct placement_use u[] = {
        {.at = 1, .time = 50000, .class = idle, .value = 4 * least},
        {.at = 2, .time = 50000, .class = idle, .value = least / 2},
        {.at = 3, .time = 50000, .reuse_in = 1000, .value = 2000 * learn.price},
        {.at = 4, .time = 50000, .reuse_in = 1000, .value = 500 * learn.price}};
    for (int i = 0; i < 4; i++)
        placement_touch(&policy, &part, &item[i], &u[i]);
    assert_int_equal(item[0].order, 50000 + worth);
    assert_int_equal(item[1].order, 50000);
    assert_int_equal(item[2].order, 52000); /* the hint makes the item worth its room */
    assert_int_equal(item[3].order, 50000);
}

/* At the price, the items that are worth holding fill half of the tier. */
TEST(a_smaller_tier_has_a_higher_price)
{
    double price[2];
    for (int k = 0; k < 2; k++) {
        struct rng r = {4};
        begin_as(PLACEMENT_OURS);
        for (int i = 0; i < 60000; i++) {
            learn_use(1 + rng_below(&r, 1 + rng_below(&r, 3000)), 1,
                      (uint32_t)(1000 + i / 10));
            learn_size(k == 0 ? 200 : 1000);
        }
        price[k] = learn.price;
        assert_true(price[k] > 0 && learn.lru_age > 0);
    }
    assert_true(price[0] > price[1]);
}

/* --- the window ------------------------------------------------------------------------------- */

/* Requests come and go at random, and the window agrees with a plain list of all pairs of request
 * and item. */
TEST(the_window_agrees_with_a_list)
{
    enum { IDS = 60 };
    struct rng r = {7};
    begin();
    static struct {
        uint64_t id, turn;
    } pair[WAITS];
    int n = 0;
    for (int op = 0; op < 20000; op++) {
        uint64_t id = (1 + rng_below(&r, IDS)) << 40, turn = 1 + rng_below(&r, 1000);
        if (rng_below(&r, 9) < 5) {
            bool has_room = n < WAITS;
            assert_int_equal(placement_window_add(&window, id, turn), has_room);
            if (has_room) {
                pair[n].id = id;
                pair[n++].turn = turn;
            }
        } else if (n > 0) {
            int i = (int)rng_below(&r, (uint64_t)n);
            assert_true(placement_window_remove(&window, pair[i].id, pair[i].turn));
            id = pair[i].id;
            pair[i] = pair[--n];
        }
        uint64_t first = PLACEMENT_NO_TURN;
        uint32_t count = 0;
        for (int i = 0; i < n; i++)
            if (pair[i].id == id) {
                first = pair[i].turn < first ? pair[i].turn : first;
                count++;
            }
        assert_int_equal(placement_window_turn(&window, id), first);
        assert_int_equal(placement_window_count(&window, id), count);
        assert_int_equal(window.n_used, n);
    }
    assert_false(placement_window_remove(&window, 999, 1));
    assert_true(window.n_refused > 0);
}
