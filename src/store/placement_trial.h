/* placement_trial.h - two miniature caches that show whether `ours` would have more hits than LRU.
 *
 * Both caches hold slots of the sample of placement_learn.h, and they have the sample's share of
 * the tier's room. One evicts by LRU's order, the other by the order of `ours`. They run beside the
 * tier, whatever order the tier itself follows, so the test of a bad order costs no hit.
 *
 *     a request's sampled uses      s1   s2   s3   s4
 *     LRU's cache has               yes  yes  no   -       2 hits: none counts after the first miss
 *     the cache of `ours` has       yes  yes  yes  yes     4 hits: this request's gain is 2
 *
 * The gains of former requests fade. `ours` pays while their sum is above its spread: gains of
 * single requests vary much, and a sum within its spread is no evidence. It pays again once the sum
 * is above the spread plus a share of the uses.
 *
 * Pure. Each operation takes O(log n). */
#ifndef STORE_PLACEMENT_TRIAL_H
#define STORE_PLACEMENT_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

#define PLACEMENT_SAMPLES 16384 /* number of slots of the sample; a power of two */

struct placement_mini { /* a heap of slots; the lowest key is evicted first */
    uint64_t key[PLACEMENT_SAMPLES];
    uint16_t heap[PLACEMENT_SAMPLES];
    /* 1 + the slot's place in heap; 0: not in the cache */
    uint16_t place[PLACEMENT_SAMPLES];
    uint32_t n;
};

struct placement_trial {
    struct placement_mini lru, ours;
    /* The present request: its lot, its number (from 1), its uses so far, its gain, and whether it
     * has had a miss in each cache. */
    uint64_t lot, n_lots;
    uint32_t n_in_lot;
    double lot_gain;
    bool lru_ended, ours_ended;
    double gain, n_uses; /* faded sums: hits of `ours` minus hits of LRU; sampled uses */
    double squares;      /* faded sum of the squares of former requests' gains */
    double n_judged;     /* faded number of requests since the tier became full */
    bool pays;
};

void placement_trial_init(struct placement_trial *t);
/* Notes a use by the request `lot`, sampled or not. All uses of a request follow one another. */
void placement_trial_use(struct placement_trial *t, uint64_t lot);
/* Notes that the present use is one of the content in `slot`. was_known says whether the slot had
 * this content before, `until` is the time until which `ours` holds it, and `room` the number of
 * slots that a cache holds: HUGE_VAL if the tier has not been full yet. */
void placement_trial_sampled(struct placement_trial *t, uint32_t slot, bool was_known,
                             uint32_t until, double room);
/* Notes that the slot is free now. */
void placement_trial_forget(struct placement_trial *t, uint32_t slot);
/* Returns whether the tier should follow `ours`. True until enough requests were judged. */
bool placement_trial_pays(const struct placement_trial *t);

#endif
