/* placement_learn.h - how long the policy `ours` holds items of a class and value without a use.
 *
 * A *class* describes an item at its use: how often it was used, which turn of a conversation
 * used it, whether a tool call is pending, whether its chunk is partial.
 *
 * 1. *Hazards.* For each class and age since the last use: the uses per item and unit of time.
 *    They are counted on a sample of all content, chosen by its id, whether the tier still has
 *    it or not. Otherwise content that the tier evicts early would never be seen to come back.
 * 2. *Index.* For each class and age: the most uses per unit of time that holding the item from
 *    now on can give, over all times to give up (Gittins' index).
 * 3. *Price.* An item's index times its value is the seconds that holding it saves, per unit of
 *    time and byte. The price is the one above which half of the tier is full. The sample shows
 *    how much content of each class and age exists and its mean value, so the price is solved
 *    for, not steered.
 * 4. *Worth.* An item is held until its index times its value falls to the price. An item below
 *    the price from the start is not held: it is evicted before all items that are. Near the
 *    price a share of the requests is held. So a load that does not fit as a whole is held in
 *    part, while LRU would lose all of it.
 *
 * If the hazard only falls with age and all classes are alike, this is LRU.
 *
 * Pure: no clock, no I/O, no allocation. The struct has about 1 MB. */
#ifndef STORE_PLACEMENT_LEARN_H
#define STORE_PLACEMENT_LEARN_H

#include <stdbool.h>
#include <stdint.h>

#include "store/placement_guard.h"
#include "store/placement_trial.h"

/* Bits of a class: 0 and 1 number of uses (set by the policy), 2 partial chunk, 3 tool call
 * pending, 4 and 5 turn of the conversation, 6 and 7 owner. */
#define PLACEMENT_CLASSES 256
/* Ages in steps of a factor of 2^0.5: [0, 1), [1, 1.4), ... up to 2^21 units. */
#define PLACEMENT_AGES 44

#define PLACEMENT_VALUE_ONE 256

struct placement_counts {
    double used[PLACEMENT_AGES]; /* items used again at this age */
    /* Items used again at this age, or observed only up to it. */
    double ended[PLACEMENT_AGES];
    double stay[PLACEMENT_AGES]; /* time that these items spent at this age */
};

struct placement_sample { /* content that is observed */
    uint64_t id;          /* 0: this place is free */
    uint32_t time;        /* time of its last use */
    uint8_t class;        /* class of its last use, with the bits of its uses */
    bool is_there;        /* the tier has it */
    uint16_t value;       /* value in units of 1/PLACEMENT_VALUE_ONE */
};

struct placement_learn {
    struct placement_sample sample[PLACEMENT_SAMPLES]; /* a hash table by id */
    int n_samples, shift;                              /* one id in 2^shift is observed */
    struct placement_counts count[PLACEMENT_CLASSES];
    double index[PLACEMENT_CLASSES][PLACEMENT_AGES];
    bool has_content[PLACEMENT_CLASSES];
    double price;     /* value per item and unit of time; 0: not known yet */
    uint64_t n_items; /* items in the tier */
    double lru_age; /* age at which lru would evict; HUGE_VAL: the tier has room for all */
    struct placement_guard guard;
    struct placement_trial trial;
    bool may_depart;   /* the tier may depart from LRU's order */
    uint32_t time;     /* time of the last use */
    uint32_t n_events; /* uses and evictions since the last update */
    uint64_t n_updates;
};

/* Makes an empty learner: all classes have the same worth until observations differ. */
void placement_learn_init(struct placement_learn *l);

/* Returns the class of a request's items, without the bits of the uses. turn: number of the request
 * in its conversation, from 1; 0: unknown. */
uint8_t placement_class(int turn, bool is_tool_pending, bool is_partial);
/* Returns the class with its owner's bits. Owners share four numbers. They distinguish a tenant
 * whose requests come back sooner than those of other tenants. tag 0 is the first number. */
uint8_t placement_class_owner(uint8_t class, uint64_t tag);
/* Returns the class of an item that has been used n_uses times, the last time in this class. */
uint8_t placement_class_used(uint8_t class, uint32_t n_uses);

struct placement_learn_use {
    uint64_t id;
    uint8_t class; /* class with the bits of its uses */
    uint32_t time; /* the present time */
    uint64_t lot;  /* lot of the request: a number that all its items share */
    double value;  /* seconds saved for each byte (placement_price.h); 0: counts as 1 */
    bool was_there;
};
/* Notes that content was used. */
void placement_learn_used(struct placement_learn *l, const struct placement_learn_use *use);
/* Notes that content was evicted from a tier of n_items items. */
void placement_learn_evicted(struct placement_learn *l, uint64_t id, uint64_t n_items);
/* Returns whether evictions depart from LRU's order now: they do while `ours` has more hits than
 * LRU (placement_trial.h), as far as the bound allows (placement_guard.h). */
bool placement_learn_may_depart(const struct placement_learn *l);

/* Returns how long after its use an item of the class is held; 0: not at all. lot: a number that
 * all items of one request share. value: as placement_learn_use.value. */
uint32_t placement_learn_worth(const struct placement_learn *l, uint8_t class, uint64_t lot,
                               double value);

#endif
