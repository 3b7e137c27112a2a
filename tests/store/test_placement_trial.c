/* test_placement_trial.c - the miniature caches of LRU and of `ours`, and the judgement between
 * them, on loads for which the better policy is known. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/rng.h"
#include "store/placement_trial.h"

enum { ROOM = 50 };

static struct placement_trial *t;
static bool known[PLACEMENT_SAMPLES];
static uint64_t lot;

static int begin(void **state)
{
    t = malloc(sizeof *t);
    placement_trial_init(t);
    memset(known, 0, sizeof known);
    lot = 0;
    return 0;
}

static int end(void **state)
{
    free(t);
    return 0;
}

static void use(uint32_t slot, uint32_t until)
{
    placement_trial_sampled(t, slot, known[slot], until, ROOM);
    known[slot] = true;
}

/* A request that uses slots [first, first + n). `ours` holds them until the time `until`. */
static void ask(uint32_t first, uint32_t n, uint32_t until)
{
    lot++;
    for (uint32_t i = 0; i < n; i++) {
        placement_trial_use(t, lot);
        use(first + i, until);
    }
}

static bool is_sound(const struct placement_mini *m)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < PLACEMENT_SAMPLES; s++)
        n += m->place[s] != 0 && m->heap[m->place[s] - 1u] == s;
    for (uint32_t i = 1; i < m->n; i++)
        if (m->key[m->heap[i]] < m->key[m->heap[(i - 1) / 2]])
            return false;
    return n == m->n;
}

/* Uses 80 slots in a loop, which do not fit into 50 places. LRU never hits. If `holds`, `ours`
 * holds 40 of the slots and hits these. */
static void loop(uint32_t n, bool holds)
{
    for (uint32_t i = 0; i < n; i++)
        ask(i % 80, 1, holds && i % 80 < 40 ? UINT32_MAX : (uint32_t)lot);
}

TEST_WITH(holding_a_part_of_a_loop_pays, begin, end)
{
    loop(2000, true);
    assert_true(placement_trial_pays(t));
    assert_true(t->gain > 0.4 * t->n_uses);
    assert_true(is_sound(&t->lru) && is_sound(&t->ours));
    assert_int_equal(t->lru.n, ROOM);
    assert_int_equal(t->ours.n, ROOM);
}

/* `ours` holds slots that are used once, and so loses slots that are used again soon. */
static void hold_the_useless(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        ask(1000 + i % 5000, 1, UINT32_MAX);
        ask(i % 20, 1, 0);
    }
}

TEST_WITH(holding_what_is_used_once_does_not_pay, begin, end)
{
    hold_the_useless(200);
    assert_false(placement_trial_pays(t));
    assert_true(t->gain < 0);
}

/* Without uses that tell the two policies apart there is no evidence, so the tier follows LRU. */
TEST_WITH(without_a_difference_lru_is_followed, begin, end)
{
    loop(2000, false);
    assert_true(t->gain == 0);
    assert_false(placement_trial_pays(t));
}

/* A few requests are too little evidence: until there are enough, `ours` is followed. */
TEST_WITH(the_first_requests_are_not_judged, begin, end)
{
    assert_true(placement_trial_pays(t));
    hold_the_useless(10);
    assert_true(placement_trial_pays(t));
}

/* Until the tier is full, both caches hold everything and no request is judged. */
TEST_WITH(a_tier_with_room_is_not_judged, begin, end)
{
    for (uint32_t i = 0; i < 500; i++) {
        placement_trial_use(t, i);
        placement_trial_sampled(t, i % 100, i >= 100, 0, HUGE_VAL);
    }
    assert_true(placement_trial_pays(t));
    assert_int_equal(t->lru.n, 100);
    assert_true(t->n_uses == 0);
}

/* Old gains fade, so the judgement follows a load that changes in either direction. */
TEST_WITH(the_judgement_follows_the_load, begin, end)
{
    loop(2000, true);
    assert_true(placement_trial_pays(t));
    hold_the_useless(3000);
    assert_false(placement_trial_pays(t));
    loop(8000, true);
    assert_true(placement_trial_pays(t));
}

/* Gains and losses of requests that cancel each other out leave a sum within its spread, which is
 * no evidence. */
TEST_WITH(a_gain_within_its_spread_is_no_evidence, begin, end)
{
    hold_the_useless(200);
    assert_false(placement_trial_pays(t));
    t->gain = 0.9 * sqrt(t->squares);
    t->n_uses = 1;
    ask(9000, 1, 0); /* a new slot: neither cache hits */
    assert_false(placement_trial_pays(t));
    t->gain = 1.1 * sqrt(t->squares);
    t->n_uses = 1;
    ask(9001, 1, 0);
    assert_true(placement_trial_pays(t));
}

/* `ours` stays in use only while its gain exceeds the gain's spread, and is used again only when it
 * does. For the return the gain must also be a minimum share of the uses; for staying any share
 * suffices. */
TEST_WITH(ours_ends_once_its_gain_is_within_the_spread, begin, end)
{
    loop(2000, true);
    assert_true(placement_trial_pays(t));
    t->squares = 1e6;
    t->gain = 1100;
    t->n_uses = 1e9;
    ask(9000, 1, 0); /* a new slot: neither cache hits */
    assert_true(placement_trial_pays(t));
    t->gain = 900;
    ask(9001, 1, 0);
    assert_false(placement_trial_pays(t));
    t->gain = 1100;
    ask(9002, 1, 0);
    assert_false(placement_trial_pays(t));
}

/* A path of slots ends at its first miss. Slots after the miss cannot be restored, so they do not
 * count as hits. */
TEST_WITH(a_path_ends_at_its_first_miss, begin, end)
{
    ask(0, 10, UINT32_MAX);
    for (uint32_t i = 0; i < 41; i++) /* LRU loses the last of the ten slots */
        ask(100 + i, 1, 0);
    assert_true(t->lru.place[9] == 0 && t->lru.place[8] != 0);
    double before = t->gain;
    /* slot 8 hits in both caches, slot 9 in that of `ours` alone, slot 10 is new */
    ask(8, 3, UINT32_MAX);
    assert_true(fabs(t->gain - before * exp2(-0.001) - 1) < 1e-6);
    for (uint32_t i = 0; i < 60; i++)
        ask(200 + i, 1, 0);
    ask(10, 1, UINT32_MAX);
    assert_true(t->lru.place[0] == 0 && t->lru.place[10] != 0);
    before = t->gain;
    lot++;
    placement_trial_use(t, lot);
    use(0, UINT32_MAX); /* only `ours` has slot 0, so LRU's path ends here */
    placement_trial_use(t, lot);
    /* LRU has slot 10, but after the end of its path this is no hit */
    use(10, UINT32_MAX);
    assert_true(t->gain > before * exp2(-0.001) + 1.9);
}

TEST_WITH(a_forgotten_slot_is_in_neither_cache, begin, end)
{
    struct rng r = {5};
    for (int i = 0; i < 20000; i++) {
        uint32_t slot = (uint32_t)rng_below(&r, 200);
        if (rng_below(&r, 5) == 0) {
            placement_trial_forget(t, slot);
            known[slot] = false;
            assert_true(t->lru.place[slot] == 0 && t->ours.place[slot] == 0);
        } else {
            ask(slot, 1, (uint32_t)rng_below(&r, 1000));
        }
        assert_true(t->lru.n <= ROOM && t->ours.n <= ROOM);
    }
    assert_true(is_sound(&t->lru) && is_sound(&t->ours));
}
