/* placement_learn.c - see placement_learn.h. */
#include "policy/placement_learn.h"

#include <math.h>
#include <string.h>

#include "base/check.h"

/* Events between two updates: an update takes about 0.3 ms. */
#define UPDATE_EVENTS 8192
/* Ended items of all classes after which all counts are halved, so that old behaviour fades. */
#define MOST_ENDED 400000.0
/* A class's hazard is mixed with that of all classes together, times the class's factor, which counts
 * as so many uses; so is the factor with 1. */
#define PRIOR_USES 16.0
/* Less than this many uses at an age tell nothing of it. */
#define LEAST_USES 8.0
/* Before the first update; any value does, since all classes have it. */
#define FIRST_WORTH 64

void placement_learn_init(struct placement_learn *l)
{
    memset(l, 0, sizeof *l);
    for (int c = 0; c < PLACEMENT_CLASSES; c++)
        l->worth[c] = FIRST_WORTH;
}

uint8_t placement_class(int turn, bool is_tool_pending, bool is_partial)
{
    int bits = turn <= 1 ? 0 : turn == 2 ? 1 : turn <= 5 ? 2 : 3;
    return (uint8_t)(bits << 4 | is_tool_pending << 3 | is_partial << 2);
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

/* --- hazards and indices ---------------------------------------------------------------------- */

/* Time that all items of the class stood at each age. */
static void exposures(const struct placement_counts *n, double out[PLACEMENT_AGES])
{
    double older = 0;
    for (int a = PLACEMENT_AGES; a-- > 0; older += n->ended[a])
        out[a] = n->stay[a] + older * age_width(a);
}

/* Hazards of all classes together.  Where too little was seen, they fall as 1 / age. */
static void hazards_together(const struct placement_learn *l, double out[PLACEMENT_AGES])
{
    double exposure[PLACEMENT_AGES], used[PLACEMENT_AGES] = {0}, sum[PLACEMENT_AGES] = {0};
    for (int c = 0; c < PLACEMENT_CLASSES; c++) {
        exposures(&l->count[c], exposure);
        for (int a = 0; a < PLACEMENT_AGES; a++) {
            used[a] += l->count[c].used[a];
            sum[a] += exposure[a];
        }
    }
    for (int a = 0; a < PLACEMENT_AGES; a++) {
        double before = a > 0 ? out[a - 1] * age_width(a - 1) / age_width(a) : 1e-3;
        double prior = LEAST_USES / before;
        out[a] = (used[a] + LEAST_USES) / (sum[a] + prior);
    }
}

/* The index of each age from the hazards: the most that [1 - S(end)] / integral of S gives over
 * all ends, S being the share of items not used yet. */
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

/* The greatest age at which the index is above the price. */
static uint32_t worth_of(const double index[PLACEMENT_AGES], double price)
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

/* The class's hazards.  Where it has few observations at an age, they follow those of all classes
 * times the class's factor: its uses at all ages for those expected of a mean class (Cox's model of
 * proportional hazards). */
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

static void update(struct placement_learn *l)
{
    double together[PLACEMENT_AGES], hazard[PLACEMENT_AGES];
    hazards_together(l, together);
    for (int c = 0; c < PLACEMENT_CLASSES; c++) {
        hazards_of(&l->count[c], together, hazard);
        indices(hazard, l->index[c]);
    }
    if (l->n_evicted > 0) {
        double seen = l->sum_evicted / l->n_evicted;
        l->price = l->price > 0 ? (l->price + seen) / 2 : seen;
    }
    l->sum_evicted = l->n_evicted = 0;
    for (int c = 0; c < PLACEMENT_CLASSES && l->price > 0; c++)
        l->worth[c] = worth_of(l->index[c], l->price);
    halve_old(l);
    l->n_updates++;
}

/* --- events ----------------------------------------------------------------------------------- */

static int note_end(struct placement_learn *l, uint8_t class, uint32_t age)
{
    CHECK(class < PLACEMENT_CLASSES);
    int a = age_of(age);
    struct placement_counts *n = &l->count[class];
    double stay = age - age_from(a);
    n->ended[a]++;
    n->stay[a] += stay > 0 ? stay : 0;
    return a;
}

static void event_end(struct placement_learn *l)
{
    if (++l->n_events < UPDATE_EVENTS)
        return;
    l->n_events = 0;
    update(l);
}

void placement_learn_used(struct placement_learn *l, uint8_t class, uint32_t age)
{
    int a = note_end(l, class, age);
    l->count[class].used[a]++;
    event_end(l);
}

void placement_learn_evicted(struct placement_learn *l, uint8_t class, uint32_t age)
{
    int a = note_end(l, class, age);
    if (l->n_updates > 0) { /* else no index is known */
        l->sum_evicted += l->index[class][a];
        l->n_evicted++;
    }
    event_end(l);
}

uint32_t placement_learn_worth(const struct placement_learn *l, uint8_t class)
{
    CHECK(class < PLACEMENT_CLASSES);
    return l->worth[class];
}
