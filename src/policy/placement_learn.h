/* placement_learn.h - how long the policy `ours` keeps items of a class without a use.
 *
 * A *class* is what is known of an item when it is used: how often it was used, which turn of a
 * conversation used it, whether a tool call is pending, whether its chunk is partial.  For each
 * class the policy counts, by the age since the last use, how many items were used again and how
 * long items stood at that age without a use.  Their quotient is the *hazard*: expected uses per
 * item and unit of time.  Items that were evicted count as observed until then (Kaplan and Meier's
 * estimator), so no list of evicted items is needed.
 *
 * From the hazards follows an *index* for each class and age: the most uses per unit of time that
 * keeping the item from now on can give, over all times to give up (Gittins' index).  A tier gives
 * its room to the items of the highest index.  So each class has an age at which its index falls to
 * the *price*, the mean index of what was evicted of late.  This age is the class's *worth*, and the
 * policy evicts the item whose last use + worth is the earliest.  Where all classes have the same
 * hazards that is LRU.
 *
 * Pure: no clock, no I/O, no allocation. */
#ifndef POLICY_PLACEMENT_LEARN_H
#define POLICY_PLACEMENT_LEARN_H

#include <stdbool.h>
#include <stdint.h>

/* Bits of a class: 0 and 1 uses (set by the policy), 2 partial chunk, 3 tool call pending, 4 and 5
 * turn of the conversation. */
#define PLACEMENT_CLASSES 64
/* Ages in steps of a factor of 2^0.5: [0, 1), [1, 1.4), ... up to 2^21 units. */
#define PLACEMENT_AGES 44

struct placement_counts {
    double used[PLACEMENT_AGES];  /* items used again at this age */
    double ended[PLACEMENT_AGES]; /* items used again or evicted at it */
    double stay[PLACEMENT_AGES];  /* time that these stood at it */
};

struct placement_learn {
    struct placement_counts count[PLACEMENT_CLASSES];
    double index[PLACEMENT_CLASSES][PLACEMENT_AGES];
    uint32_t worth[PLACEMENT_CLASSES]; /* in units of time */
    double price;                      /* uses per item and unit of time */
    double sum_evicted, n_evicted;     /* index of what was evicted since the last update */
    uint32_t n_events;                 /* since the last update */
    uint64_t n_updates;
};

/* Before anything is learned, all classes have the same worth. */
void placement_learn_init(struct placement_learn *l);

/* Returns the class of a request's items, without the bits of the uses.  turn: 1 is a
 * conversation's first, 0 is not known. */
uint8_t placement_class(int turn, bool is_tool_pending, bool is_partial);
/* Returns the class of an item that has been used n_uses times, the last time in this class. */
uint8_t placement_class_used(uint8_t class, uint32_t n_uses);

/* An item of the class was used, or evicted, this long after its last use. */
void placement_learn_used(struct placement_learn *l, uint8_t class, uint32_t age);
void placement_learn_evicted(struct placement_learn *l, uint8_t class, uint32_t age);

/* Returns for how long after a use an item of the class is worth its room. */
uint32_t placement_learn_worth(const struct placement_learn *l, uint8_t class);

#endif
