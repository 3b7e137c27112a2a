/* placement_learn.c - see placement_learn.h. */
#include "store/placement_learn.h"

#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "base/rng.h"

/* Events between two updates: an update takes about 0.2 ms. */
#define UPDATE_EVENTS 2048
/* Events between two counts of the debt, which take about 10 us. Debts also end by themselves,
 * when LRU evicts the content. */
#define DEBT_EVENTS 256
/* A use that the tier missed counts as LRU's hit up to this many times the age at which LRU would
 * evict, by the sample. Without this margin an adversary who asks for the content that LRU is about
 * to evict is not noticed: the tier was 7.8 points behind LRU. With a margin of 1.07 it was 1.14
 * points behind. */
#define LRU_MARGIN 1.1
/* Number of slots in which an id may lie. With one slot, other ids replace up to a third of the
 * sample, and by the remaining sample LRU seems to hold content that it does not hold. */
#define SAMPLE_WAYS 8
/* After this many ended observations of all classes all counts are halved, so that old behaviour
 * fades. */
#define MOST_ENDED 100000.0
/* A class's hazard is mixed with an expected one: the hazard of all classes together, times the
 * class's factor. The expected one counts as this many uses. The factor itself is mixed with 1 in
 * the same way. */
#define PRIOR_USES 16.0
/* An age with fewer uses than this tells nothing. */
#define LEAST_USES 8.0
/* Worth before the first update; any value does, since all classes have it. */
#define FIRST_WORTH 64
/* Half the width of a band around the price: indices from price * (1 - this) to price * (1 + this).
 * If a class's index lies in the band, its items are held for a share of the requests. */
#define PRICE_BAND 0.3
/* Bounds of a price: from one use in ten years to a thousand a second. */
#define LEAST_PRICE 1e-9
#define MOST_PRICE  1e3
/* Content is observed until this many times the age at which lru would evict it. */
#define OBSERVED_LIVES 16
#define LEAST_OBSERVED 256
/* Share of the tier that held items may take, by the sample. Held items must not crowd each other
 * out: the first victims would be items that are about to be used. And a held leaf keeps its whole
 * chain. Hit rates in % by this share, for the first half of Mooncake's trace, 10,000 blocks: share
 * 1: 13.9, 0.9: 17.5, 0.75: 20.0, 0.6: 19.6, 0.45: 20.5; the agents' trace, 30,000 blocks, same
 * shares: 81.3, 83.1, 87.4, 87.8, 87.8. */
#define HELD_SHARE 0.5

void placement_learn_init(struct placement_learn *l)
{
    memset(l, 0, sizeof *l);
    placement_trial_init(&l->trial);
    l->lru_age = HUGE_VAL;
    l->may_depart = true;
}

uint8_t placement_class(int turn, bool is_tool_pending, bool is_partial)
{
    int bits = turn <= 1 ? 0 : turn == 2 ? 1 : turn <= 5 ? 2 : 3;
    return (uint8_t)(bits << 4 | is_tool_pending << 3 | is_partial << 2);
}

uint8_t placement_class_owner(uint8_t class, uint64_t tag)
{
    return (uint8_t)((class & 0x3f) | (tag != 0 ? rng_mix(tag) & 3 : 0) << 6);
}

uint8_t placement_class_used(uint8_t class, uint32_t n_uses)
{
    uint32_t bits = n_uses <= 1 ? 0 : n_uses <= 3 ? n_uses - 1 : 3;
    return (uint8_t)((class & (PLACEMENT_CLASSES - 4)) | bits);
}

/* --- ages ------------------------------------------------------------------------------------- */

static double age_from(int a)
{
    return a == 0 ? 0 : exp2(0.5 * (a - 1));
}

static double age_width(int a)
{
    return age_from(a + 1) - age_from(a);
}

static int age_of(uint32_t age)
{
    if (age == 0)
        return 0;
    int octave = 31 - __builtin_clz(age);
    bool is_upper = (uint64_t)age * age >= (uint64_t)2 << (2 * octave);
    int a = 1 + 2 * octave + is_upper;
    return a < PLACEMENT_AGES ? a : PLACEMENT_AGES - 1;
}

/* --- the sample ------------------------------------------------------------------------------- */

/* Notes that an observation ended at `age`. Returns the number of this age (age_of). */
static int note_end(struct placement_counts *n, uint32_t age)
{
    int a = age_of(age);
    double stay = age - age_from(a);
    n->ended[a]++;
    n->stay[a] += MAX(stay, 0);
    return a;
}

static void note_used(struct placement_counts *n, uint32_t age)
{
    n->used[note_end(n, age)]++;
}

static uint32_t age_at(const struct placement_sample *s, uint32_t time)
{
    return time > s->time ? time - s->time : 0;
}

/* Returns an id's slot. If it has none, returns a free slot, or the slot with the oldest use. */
static struct placement_sample *sample_of(struct placement_learn *l, uint64_t hash,
                                          uint64_t id)
{
    struct placement_sample *way =
        &l->sample[(hash >> 40) & (PLACEMENT_SAMPLES - SAMPLE_WAYS)];
    struct placement_sample *oldest = way;
    for (int i = 0; i < SAMPLE_WAYS; i++) {
        if (way[i].id == id)
            return &way[i];
        bool is_free = way[i].id == 0;
        if (oldest->id != 0 && (is_free || way[i].time < oldest->time))
            oldest = &way[i];
    }
    return oldest;
}

static uint32_t slot_of(const struct placement_learn *l, const struct placement_sample *s)
{
    return (uint32_t)(s - l->sample);
}

static void sample_clear(struct placement_learn *l, struct placement_sample *s)
{
    placement_trial_forget(&l->trial, slot_of(l, s));
    *s = (struct placement_sample){0};
    l->n_samples--;
}

/* Ends observations that have lasted long enough. If the table is still more than half full, half
 * of the ids are no longer observed from now on. */
static void sample_sweep(struct placement_learn *l, uint32_t time)
{
    double longest = OBSERVED_LIVES * l->lru_age;
    longest = MAX(longest, LEAST_OBSERVED);
    for (int i = 0; i < PLACEMENT_SAMPLES; i++) {
        struct placement_sample *s = &l->sample[i];
        if (s->id != 0 && age_at(s, time) > longest) {
            note_end(&l->count[s->class], age_at(s, time));
            sample_clear(l, s);
        }
    }
    if (l->n_samples <= PLACEMENT_SAMPLES / 2)
        return;
    l->shift++;
    for (int i = 0; i < PLACEMENT_SAMPLES; i++)
        if (l->sample[i].id != 0 &&
            (rng_mix(l->sample[i].id) & (((uint64_t)1 << l->shift) - 1)) != 0)
            sample_clear(l, &l->sample[i]);
}

/* --- hazards and indices ---------------------------------------------------------------------- */

/* Fills `out` with the time that all items of the class spent at each age. */
static void exposures(const struct placement_counts *n, double out[PLACEMENT_AGES])
{
    double older = 0;
    for (int a = PLACEMENT_AGES; a-- > 0; older += n->ended[a])
        out[a] = n->stay[a] + older * age_width(a);
}

/* Fills in all classes' hazards together. Ages with too few uses get one that falls as 1 / age. */
static void hazards_together(const struct placement_counts *count,
                             double out[PLACEMENT_AGES])
{
    double exposure[PLACEMENT_AGES], used[PLACEMENT_AGES] = {0}, sum[PLACEMENT_AGES] = {0};
    for (int c = 0; c < PLACEMENT_CLASSES; c++) {
        exposures(&count[c], exposure);
        for (int a = 0; a < PLACEMENT_AGES; a++) {
            used[a] += count[c].used[a];
            sum[a] += exposure[a];
        }
    }
    for (int a = 0; a < PLACEMENT_AGES; a++) {
        double before = a > 0 ? out[a - 1] * age_width(a - 1) / age_width(a) : 1e-3;
        double prior = LEAST_USES / before;
        out[a] = (used[a] + LEAST_USES) / (sum[a] + prior);
    }
}

/* Computes the index of each age from the hazards: the maximum over all ends of [1 - S(end)] /
 * integral of S. S is the share of items not used yet. */
static void indices(const double hazard[PLACEMENT_AGES], double out[PLACEMENT_AGES])
{
    double left[PLACEMENT_AGES], time[PLACEMENT_AGES];
    for (int a = 0; a < PLACEMENT_AGES; a++) {
        left[a] = exp(-hazard[a] * age_width(a));
        time[a] = (1 - left[a]) / hazard[a];
    }
    for (int a = 0; a < PLACEMENT_AGES; a++) {
        double alive = 1, sum = 0, best = 0;
        for (int end = a; end < PLACEMENT_AGES; end++) {
            sum += alive * time[end];
            alive *= left[end];
            if (1 - alive > best * sum)
                best = (1 - alive) / sum;
        }
        out[a] = best;
    }
}

/* Returns the greatest age at which the index is above the price. */
static uint32_t age_of_price(const double index[PLACEMENT_AGES], double price)
{
    int a = PLACEMENT_AGES - 1;
    while (a >= 0 && index[a] < price)
        a--;
    if (a < 0)
        return 0;
    if (a == PLACEMENT_AGES - 1)
        return (uint32_t)age_from(a);
    /* Between the middles of two ages the index falls as a power of the age. */
    double here = age_from(a) + age_width(a) / 2,
           next = age_from(a + 1) + age_width(a + 1) / 2;
    double share = log(index[a] / price) / log(index[a] / index[a + 1]);
    return (uint32_t)(here * pow(next / here, share));
}

static void halve_old(struct placement_learn *l)
{
    double ended = 0;
    for (int c = 0; c < PLACEMENT_CLASSES; c++)
        for (int a = 0; a < PLACEMENT_AGES; a++)
            ended += l->count[c].ended[a];
    if (ended < MOST_ENDED)
        return;
    for (int c = 0; c < PLACEMENT_CLASSES; c++)
        for (int a = 0; a < PLACEMENT_AGES; a++) {
            l->count[c].used[a] /= 2;
            l->count[c].ended[a] /= 2;
            l->count[c].stay[a] /= 2;
        }
}

/* Fills in the class's hazards. Ages with few observations get the hazards of all classes times
 * the class's factor: its uses at all ages over the uses expected of a mean class (Cox's model
 * of proportional hazards). */
static void hazards_of(const struct placement_counts *n,
                       const double together[PLACEMENT_AGES], double out[PLACEMENT_AGES])
{
    double exposure[PLACEMENT_AGES], used = 0, expected = 0;
    exposures(n, exposure);
    for (int a = 0; a < PLACEMENT_AGES; a++) {
        used += n->used[a];
        expected += exposure[a] * together[a];
    }
    double factor = (used + PRIOR_USES) / (expected + PRIOR_USES);
    for (int a = 0; a < PLACEMENT_AGES; a++)
        out[a] = (n->used[a] + PRIOR_USES) /
                 (exposure[a] + PRIOR_USES / (factor * together[a]));
}

/* The amount of sampled content of each class and age, and its mean value. */
struct population {
    double n[PLACEMENT_CLASSES][PLACEMENT_AGES];
    double value[PLACEMENT_CLASSES];
    double all[PLACEMENT_AGES];
};

static void population_count(const struct placement_learn *l, uint32_t time,
                             struct population *p)
{
    double n[PLACEMENT_CLASSES] = {0};
    memset(p, 0, sizeof *p);
    for (int i = 0; i < PLACEMENT_SAMPLES; i++) {
        const struct placement_sample *s = &l->sample[i];
        if (s->id == 0)
            continue;
        int a = age_of(age_at(s, time));
        p->n[s->class][a]++;
        p->all[a]++;
        p->value[s->class] += s->value;
        n[s->class]++;
    }
    for (int c = 0; c < PLACEMENT_CLASSES; c++)
        p->value[c] = n[c] > 0 ? p->value[c] / (n[c] * PLACEMENT_VALUE_ONE) : 1;
}

/* Returns the content younger than `age`; within a step of age it is spread evenly. */
static double younger(const double n[PLACEMENT_AGES], double age)
{
    double sum = 0;
    int a = 0;
    for (; a < PLACEMENT_AGES && age_from(a + 1) <= age; a++)
        sum += n[a];
    return a < PLACEMENT_AGES ? sum + n[a] * (age - age_from(a)) / age_width(a) : sum;
}

/* Returns the age below which there is as much content as the tier holds. */
static double age_of_content(const double n[PLACEMENT_AGES], double content)
{
    double sum = 0;
    for (int a = 0; a < PLACEMENT_AGES; a++) {
        if (sum + n[a] >= content && n[a] > 0)
            return age_from(a) + age_width(a) * (content - sum) / n[a];
        sum += n[a];
    }
    return HUGE_VAL;
}

/* Returns the share of the requests whose items of a class are held, if a use has the value 1. */
static double share_of(const struct placement_learn *l, int class, double price)
{
    double share = (l->index[class][0] / price - (1 - PRICE_BAND)) / (2 * PRICE_BAND);
    return share < 0 ? 0 : MIN(share, 1);
}

/* Returns how long items of a class are held at a price. If the class is worth less than the
 * price, only a share of its items is held (share_of): for the same time as at the highest price
 * at which all items are held. */
static uint32_t worth_at(const struct placement_learn *l, int class, double price)
{
    double index = l->index[class][0];
    return age_of_price(l->index[class], index < price ? index * 0.999 : price);
}

/* Returns the sampled content that is held at a price. A use of value v at a price is like one
 * of value 1 at 1/v of the price. */
static double demand(const struct placement_learn *l, const struct population *p,
                     double price)
{
    double sum = 0;
    for (int c = 0; c < PLACEMENT_CLASSES; c++) {
        double each = price / p->value[c];
        if (l->has_content[c])
            sum += share_of(l, c, each) * younger(p->n[c], worth_at(l, c, each));
    }
    return sum;
}

/* Finds the price at which the held content fills the tier; demand falls with the price. */
static double solve_price(const struct placement_learn *l, const struct population *p,
                          double content)
{
    double low = LEAST_PRICE, high = MOST_PRICE;
    for (int i = 0; i < 24; i++) {
        double mid = sqrt(low * high);
        if (demand(l, p, mid) > content)
            low = mid;
        else
            high = mid;
    }
    return high;
}

/* Learns hazards and indices. Present observations have lasted until now, so their time counts,
 * too. */
static void learn_indices(struct placement_learn *l, uint32_t time)
{
    static const struct placement_counts none;
    double together[PLACEMENT_AGES], hazard[PLACEMENT_AGES], all[PLACEMENT_AGES];
    struct placement_counts count[PLACEMENT_CLASSES];
    memcpy(count, l->count, sizeof count);
    for (int i = 0; i < PLACEMENT_SAMPLES; i++)
        if (l->sample[i].id != 0)
            note_end(&count[l->sample[i].class], age_at(&l->sample[i], time));
    hazards_together(count, together);
    indices(together, all);
    for (int c = 0; c < PLACEMENT_CLASSES; c++) {
        l->has_content[c] = memcmp(&count[c], &none, sizeof none) != 0;
        if (!l->has_content[c]) {
            memcpy(l->index[c], all, sizeof all);
            continue;
        }
        hazards_of(&count[c], together, hazard);
        indices(hazard, l->index[c]);
    }
}

static bool lru_may_have(const struct placement_learn *l, const struct placement_sample *s,
                         uint32_t time)
{
    return age_at(s, time) <= l->lru_age;
}

/* Counts content that LRU would hold and the tier does not. Decides anew whether the tier may
 * depart. */
static void count_debt(struct placement_learn *l, uint32_t time)
{
    uint64_t n = 0;
    for (int i = 0; i < PLACEMENT_SAMPLES; i++) {
        const struct placement_sample *s = &l->sample[i];
        n += s->id != 0 && !s->is_there && lru_may_have(l, s, time);
    }
    placement_guard_set_debt(&l->guard, ldexp((double)n, l->shift));
    l->may_depart = placement_guard_room(&l->guard) > 0;
}

/* Learns hazards, LRU's age, the price and the debt anew from the sample. */
static void update(struct placement_learn *l, uint32_t time)
{
    struct population p;
    sample_sweep(l, time);
    learn_indices(l, time);
    population_count(l, time, &p);
    double content = ldexp((double)l->n_items, -l->shift);
    l->lru_age = l->n_items > 0 ? age_of_content(p.all, content) : HUGE_VAL;
    if (l->n_items > 0)
        l->price = solve_price(l, &p, HELD_SHARE * content);
    count_debt(l, time);
    halve_old(l);
    l->n_updates++;
}

/* --- events ----------------------------------------------------------------------------------- */

static bool is_sampled(const struct placement_learn *l, uint64_t hash)
{
    return (hash & (((uint64_t)1 << l->shift) - 1)) == 0;
}

/* Counts a use that only the tier or only LRU has; LRU has the content used within lru_age. Decides
 * anew whether the tier may depart. */
static void compare(struct placement_learn *l, const struct placement_sample *s,
                    const struct placement_learn_use *use)
{
    bool lru_has = age_at(s, use->time) <= LRU_MARGIN * l->lru_age;
    double weight = ldexp(1, l->shift);
    if (lru_has && !use->was_there)
        placement_guard_lost(&l->guard, weight);
    else if (!lru_has && use->was_there)
        placement_guard_gained(&l->guard, weight);
    l->may_depart = placement_guard_room(&l->guard) > 0;
}

/* Passes the use to the trial's miniature caches. */
static void try_both(struct placement_learn *l, const struct placement_sample *s,
                     const struct placement_learn_use *use)
{
    double room = l->n_items > 0 ? ldexp((double)l->n_items, -l->shift) : HUGE_VAL;
    uint32_t worth = placement_learn_worth(l, use->class, use->lot, use->value);
    uint32_t most = UINT32_MAX - use->time;
    placement_trial_sampled(&l->trial, slot_of(l, s), s->id == use->id,
                            use->time + MIN(worth, most), room);
}

void placement_learn_used(struct placement_learn *l, const struct placement_learn_use *use)
{
    uint64_t hash = rng_mix(use->id);
    l->time = use->time;
    placement_guard_used(&l->guard, use->lot);
    placement_trial_use(&l->trial, use->lot);
    if (++l->n_events >= UPDATE_EVENTS) {
        l->n_events = 0;
        update(l, use->time);
    } else if (l->n_events % DEBT_EVENTS == 0) {
        count_debt(l, use->time);
    }
    if (!is_sampled(l, hash))
        return;
    struct placement_sample *s = sample_of(l, hash, use->id);
    try_both(l, s, use);
    if (s->id == use->id) {
        compare(l, s, use);
        note_used(&l->count[s->class], age_at(s, use->time));
    } else if (s->id != 0) { /* the place belongs to another id */
        note_end(&l->count[s->class], age_at(s, use->time));
    } else {
        l->n_samples++;
    }
    double value = (use->value > 0 ? use->value : 1) * PLACEMENT_VALUE_ONE;
    *s = (struct placement_sample){.id = use->id,
                                   .time = use->time,
                                   .class = use->class,
                                   .is_there = true,
                                   .value = value < UINT16_MAX ? (uint16_t)value
                                                               : UINT16_MAX};
}

void placement_learn_evicted(struct placement_learn *l, uint64_t id, uint64_t n_items)
{
    uint64_t hash = rng_mix(id);
    struct placement_sample *s = sample_of(l, hash, id);
    l->n_items = n_items;
    if (!is_sampled(l, hash) || s->id != id)
        return;
    s->is_there = false;
    if (!lru_may_have(l, s, l->time))
        return;
    placement_guard_departed(&l->guard, ldexp(1, l->shift));
    l->may_depart = placement_guard_room(&l->guard) > 0;
}

bool placement_learn_may_depart(const struct placement_learn *l)
{
    return l->may_depart && placement_trial_pays(&l->trial);
}

uint32_t placement_learn_worth(const struct placement_learn *l, uint8_t class, uint64_t lot,
                               double value)
{
    if (l->price == 0)
        return FIRST_WORTH;
    double each = l->price / (value > 0 ? value : 1);
    bool is_held = (double)(rng_mix(lot) >> 11) * 0x1p-53 < share_of(l, class, each);
    return is_held ? worth_at(l, class, each) : 0;
}
