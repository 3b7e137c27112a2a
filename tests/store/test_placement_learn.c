/* test_placement_learn.c - the policy `ours` learns the rates of seeded loads, and finds a price at
 * which the items worth holding fill half of the tier.
 *
 * The loads have exponential times between uses. Then the rate of a class equals its index at every
 * age, so the right answers are known without the policy's arithmetic. Counts taken from the sample
 * are compared with counts over all items. */
#include "tests/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "store/placement_learn.h"

static struct placement_learn *l;

static int begin(void **state)
{
    l = xcalloc(1, sizeof *l);
    placement_learn_init(l);
    return 0;
}

static int end(void **state)
{
    free(l);
    return 0;
}

/* --- classes ---------------------------------------------------------------------------------- */

TEST(each_turn_has_its_class)
{
    static const int bits[] = {0, 0, 1, 2, 2, 2, 3, 3, 3};
    for (int turn = 0; turn < 9; turn++)
        for (int flags = 0; flags < 4; flags++)
            assert_int_equal(placement_class(turn, flags & 1, flags & 2),
                             bits[turn] << 4 | (flags & 1) << 3 | (flags & 2) << 1);
}

TEST(each_number_of_uses_has_its_class)
{
    static const int bits[] = {0, 0, 1, 2, 3, 3, 3};
    for (int class = 0; class < PLACEMENT_CLASSES; class ++)
        for (uint32_t n = 0; n < 7; n++)
            assert_int_equal(placement_class_used((uint8_t) class, n),
                             (class & ~3) | bits[n]);
}

/* An owner has one of four numbers. Setting it leaves the other bits of the class unchanged. */
TEST(each_owner_has_its_number)
{
    int n[4] = {0};
    assert_int_equal(placement_class_owner(0xff, 0), 0x3f);
    for (uint64_t tag = 1; tag <= 400; tag++) {
        uint8_t class = placement_class_owner(0xff, tag);
        assert_int_equal(class & 0x3f, 0x3f);
        assert_int_equal(placement_class_owner(0x05, tag), (class & 0xc0) | 5);
        n[class >> 6]++;
    }
    for (int i = 0; i < 4; i++)
        assert_in_range(n[i], 60, 140);
}

/* --- loads ------------------------------------------------------------------------------------ */

/* Number of items of a load. Items belong to two classes by turns, and each is used again after an
 * exponentially distributed time. */
enum { ITEMS = 3000 };

struct load {
    uint8_t class[2];
    double rate[2], value[2];
    uint32_t next[ITEMS], last[ITEMS];
    struct rng rng;
};

static uint32_t gap(struct load *x, int i)
{
    double t = -log(1 - rng_unit(&x->rng)) / x->rate[i % 2];
    return (uint32_t)fmin(t, 1e6);
}

static void use(struct load *x, int i, uint32_t now)
{
    struct placement_learn_use u = {.id = (uint64_t)i + 1,
                                    .class = x->class[i % 2],
                                    .time = now,
                                    .lot = now,
                                    .value = x->value[i % 2],
                                    .was_there = true};
    placement_learn_used(l, &u);
    x->last[i] = now;
    x->next[i] = now + 1 + gap(x, i);
}

/* Runs the load until `until`. Every 16 units of time an item that is not in the sample is evicted,
 * which tells the policy the tier's size, n_items. */
static void run(struct load *x, uint32_t until, uint64_t n_items)
{
    for (int i = 0; i < ITEMS; i++)
        x->next[i] = 1 + gap(x, i);
    for (uint32_t now = 1; now < until; now++) {
        for (int i = 0; i < ITEMS; i++)
            if (x->next[i] == now)
                use(x, i, now);
        if (now % 16 == 0)
            placement_learn_evicted(l, UINT64_MAX - now, n_items);
    }
}

static struct load load_of(double rate_0, double rate_1, double value_0, double value_1)
{
    return (struct load){
        .class = {placement_class(1, false, false), placement_class(2, true, false)},
        .rate = {rate_0, rate_1},
        .value = {value_0, value_1},
        .rng = {17}};
}

/* Times are whole numbers, so uses come one unit late on average. A rate r is therefore seen as 1 /
 * (1 / r + 1). */
TEST_WITH(the_index_is_the_rate, begin, end)
{
    struct load x = load_of(1.0 / 40, 1.0 / 400, 1, 1);
    run(&x, 3000, 1000);
    assert_true(l->n_updates > 20);
    for (int k = 0; k < 2; k++) {
        double want = 1 / (1 / x.rate[k] + 1);
        for (int a = 8; a < 16; a++) { /* 11 to 181 units; younger ages are too coarse */
            double got = l->index[x.class[k]][a];
            if (fabs(got / want - 1) > 0.15)
                fail_msg("class %d, age %d: %.4g is learned, the rate is %.4g", k, a, got,
                         want);
        }
    }
    assert_true(l->has_content[x.class[0]] && l->has_content[x.class[1]]);
    assert_false(l->has_content[placement_class(7, false, true)]);
}

/* A class of which hardly anything was observed has the index of all classes together. So has a
 * class without content. */
TEST_WITH(a_new_class_is_like_all, begin, end)
{
    enum { NOW = 3000 };
    struct load x = load_of(1.0 / 40, 1.0 / 400, 1, 1);
    run(&x, NOW, 1000);
    uint8_t new = placement_class(3, true, true), unseen = placement_class(7, false, true);
    const struct placement_learn_use u = {.id = UINT64_C(1) << 40,
                                          .class = new,
                                          .time = NOW,
                                          .lot = NOW,
                                          .value = 1,
                                          .was_there = true};
    placement_learn_used(l, &u);
    for (uint64_t n = l->n_updates; l->n_updates == n;)
        use(&x, 0, NOW);
    assert_true(l->has_content[new] && !l->has_content[unseen]);
    for (int a = 0; a < PLACEMENT_AGES; a++)
        if (fabs(l->index[new][a] / l->index[unseen][a] - 1) > 0.02)
            fail_msg("age %d: %.4g, all classes together %.4g", a, l->index[new][a],
                     l->index[unseen][a]);
}

/* A small load is observed as a whole. */
TEST_WITH(the_sample_is_all_content, begin, end)
{
    struct load x = load_of(1.0 / 40, 1.0 / 400, 1, 1);
    run(&x, 1000, 1000);
    int n = 0;
    for (int i = 0; i < PLACEMENT_SAMPLES; i++) {
        const struct placement_sample *s = &l->sample[i];
        if (s->id == 0)
            continue;
        n++;
        assert_int_equal(s->class, x.class[(s->id - 1) % 2]);
        assert_int_equal(s->time, x.last[s->id - 1]);
        assert_true(s->is_there);
        assert_int_equal(s->value, PLACEMENT_VALUE_ONE);
    }
    assert_int_equal(n, l->n_samples);
    assert_int_equal(l->shift, 0);
    assert_true(n > ITEMS / 2);
}

static int by_age(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* LRU would hold the n youngest items. So its age is the age of the n-th youngest item, rounded to
 * the steps of ages. */
TEST_WITH(lru_holds_the_youngest, begin, end)
{
    static const uint64_t sizes[] = {200, 700, 1500};
    for (int k = 0; k < 3; k++) {
        static uint32_t age[PLACEMENT_SAMPLES];
        int n = 0;
        placement_learn_init(l);
        struct load x = load_of(1.0 / 40, 1.0 / 400, 1, 1);
        run(&x, 1500, sizes[k]);
        for (int i = 0; i < PLACEMENT_SAMPLES; i++)
            if (l->sample[i].id != 0)
                age[n++] = l->time - l->sample[i].time;
        qsort(age, (size_t)n, sizeof *age, by_age);
        double want = age[sizes[k]];
        if (fabs(l->lru_age - want) > 0.2 * want + 2)
            fail_msg("%d items: %.4g, not %.4g", (int)sizes[k], l->lru_age, want);
    }
    placement_learn_init(l); /* with room for all, LRU evicts nothing */
    struct load x = load_of(1.0 / 40, 1.0 / 400, 1, 1);
    run(&x, 1500, 2 * ITEMS);
    assert_true(isinf(l->lru_age));
}

/* Returns how many of the sampled items are held. An item is held if its age is below the time for
 * which its class and value are worth holding, averaged over random requests. */
static double held(const struct load *x)
{
    struct rng r = {5};
    double n = 0;
    for (int i = 0; i < PLACEMENT_SAMPLES; i++) {
        const struct placement_sample *s = &l->sample[i];
        for (int k = 0; s->id != 0 && k < 8; k++)
            n += placement_learn_worth(l, s->class, rng_u64(&r),
                                       x->value[(s->id - 1) % 2]) > l->time - s->time;
    }
    return n / 8;
}

/* For any size of the tier and any values, the items worth holding fill half of the tier. */
TEST_WITH(the_price_fills_half_of_the_tier, begin, end)
{
    static const struct {
        uint64_t n_items;
        double value[2];
    } cases[] = {
        {400, {1, 1}}, {1000, {1, 1}}, {2000, {1, 1}}, {1000, {4, 1}}, {1000, {1, 8}}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        placement_learn_init(l);
        struct load x = load_of(1.0 / 40, 1.0 / 400, cases[k].value[0], cases[k].value[1]);
        run(&x, 2500, cases[k].n_items);
        double want = 0.5 * (double)cases[k].n_items, got = held(&x);
        if (fabs(got / want - 1) > 0.15)
            fail_msg("case %d: %.4g items are held, not %.4g", (int)k, got, want);
    }
}

/* Content that saves more, or is used again sooner, is held by more requests and for longer. */
TEST_WITH(worth_rises_with_value_and_rate, begin, end)
{
    struct load x = load_of(1.0 / 40, 1.0 / 400, 1, 1);
    run(&x, 2500, 1000);
    struct rng r = {9};
    for (int k = 0; k < 300; k++) {
        uint64_t lot = rng_u64(&r);
        double value = exp(4 * rng_unit(&r) - 2);
        uint32_t often = placement_learn_worth(l, x.class[0], lot, value);
        uint32_t rarely = placement_learn_worth(l, x.class[1], lot, value);
        assert_true(often >= rarely);
        assert_true(placement_learn_worth(l, x.class[1], lot, 2 * value) >= rarely);
    }
    assert_int_equal(placement_learn_worth(l, x.class[1], 1, 0),
                     placement_learn_worth(l, x.class[1], 1, 1));
    assert_int_equal(placement_learn_worth(l, x.class[1], 1, 1e-6), 0);
}

/* --- bounds of memory ------------------------------------------------------------------------- */

/* When half of the table is full, only one id in two is observed, then one in four, and so on. The
 * id alone decides. */
TEST_WITH(much_content_is_sampled, begin, end)
{
    uint32_t now = 0;
    for (uint64_t id = 1; id <= 60000; id++) {
        placement_learn_used(l, &(struct placement_learn_use){
                                    .id = id, .time = now += id % 64 == 0, .lot = now});
        if (id % 64 == 0)
            placement_learn_evicted(l, id, 50000);
    }
    int n = 0;
    assert_in_range(l->shift, 2, 4);
    for (int i = 0; i < PLACEMENT_SAMPLES; i++) {
        if (l->sample[i].id == 0)
            continue;
        n++;
        assert_int_equal(rng_mix(l->sample[i].id) & (((uint64_t)1 << l->shift) - 1), 0);
    }
    assert_int_equal(n, l->n_samples);
    assert_true(n > PLACEMENT_SAMPLES / 8);
}

static double all_ended(void)
{
    double sum = 0;
    for (int c = 0; c < PLACEMENT_CLASSES; c++)
        for (int a = 0; a < PLACEMENT_AGES; a++) {
            assert_true(l->count[c].used[a] <= l->count[c].ended[a]);
            sum += l->count[c].ended[a];
        }
    return sum;
}

/* Old observations fade: at most 100,000 of them count, and those since the last update. */
TEST_WITH(old_behaviour_fades, begin, end)
{
    struct load x = load_of(1.0 / 10, 1.0 / 20, 1, 1);
    double before = 0;
    int n_fallen = 0;
    for (int i = 0; i < ITEMS; i++)
        x.next[i] = 1 + gap(&x, i);
    for (uint32_t now = 1; now < 1200; now++) {
        for (int i = 0; i < ITEMS; i++)
            if (x.next[i] == now)
                use(&x, i, now);
        double sum = all_ended();
        assert_true(sum <= 100000 + 2048 + 600);
        n_fallen += sum < 0.6 * before;
        before = sum;
    }
    assert_in_range(n_fallen, 1, 6);
}

/* Evicting an item that LRU would hold makes a debt. Using that item later is a lost hit. Using an
 * item that only LRU would have evicted is a gained hit. */
TEST_WITH(the_guard_is_told_where_lru_differs, begin, end)
{
    struct load x = load_of(1.0 / 40, 1.0 / 400, 1, 1);
    run(&x, 1500, 700);
    assert_true(l->lru_age > 10 && l->lru_age < 1000);
    struct placement_sample *young = NULL, *old = NULL;
    for (int i = 0; i < PLACEMENT_SAMPLES; i++) {
        struct placement_sample *s = &l->sample[i];
        if (s->id != 0 && l->time - s->time < l->lru_age / 2)
            young = s;
        if (s->id != 0 && l->time - s->time > 2 * l->lru_age)
            old = s;
    }
    assert_non_null(young);
    assert_non_null(old);
    /* so few events follow that the policy neither updates its index nor counts debts meanwhile */
    l->n_events = 1;
    double debt = l->guard.debt, regret = l->guard.regret;
    placement_learn_evicted(l, old->id, 700);
    assert_false(old->is_there);
    assert_true(l->guard.debt == debt);
    placement_learn_evicted(l, young->id, 700);
    assert_false(young->is_there);
    assert_true(l->guard.debt == debt + 1);
    uint32_t now = l->time;
    struct placement_learn_use u = {.id = young->id, .class = 1, .time = now, .lot = 1};
    placement_learn_used(l, &u);
    assert_true(l->guard.regret == regret + 1 && l->guard.debt == debt);
    assert_true(young->is_there);
    assert_int_equal(young->class, 1);
    u = (struct placement_learn_use){
        .id = old->id, .time = now, .lot = 1, .was_there = true};
    placement_learn_used(l, &u);
    assert_true(l->guard.regret == regret);
    /* both orders hold this item, so its use is neither a lost nor a gained hit */
    u.id = young->id;
    placement_learn_used(l, &u);
    assert_true(l->guard.regret == regret);
    l->trial.pays = true;
    assert_true(placement_guard_room(&l->guard) > 0);
    assert_true(placement_learn_may_depart(l));
    l->trial.pays = false;
    assert_false(placement_learn_may_depart(l));
    l->trial.pays = true;
    placement_guard_departed(&l->guard, 1e9);
    placement_learn_used(l, &u);
    assert_false(placement_learn_may_depart(l));
}
