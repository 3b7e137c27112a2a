/* placement_guard.h - how far a policy may depart from LRU: never more than 1 point of hits behind
 * it over any 10,000 requests.
 *
 * Two caches are compared, the tier and one of the same size under LRU (which is only estimated).
 *
 *     debt     content that LRU would hold and the tier does not: each can cost one hit
 *     regret   hits that LRU had and the tier had not, minus the opposite, since the start
 *     fall     the regret now minus its least value in the last 10,000 requests
 *
 * Take any 10,000 requests. Of the content that LRU holds and the tier lacks, each costs one hit at
 * most, since it comes in then; more debt is made only by evictions that LRU would not do. So if
 *
 *     debt + fall <= 1 % of the references of 10,000 requests                       (1)
 *
 * holds before each such eviction, and an eviction adds 1 to the debt, then (1) holds always: a hit
 * that is lost moves 1 from debt to regret, and a hit that is gained lowers the regret. And the
 * regret of the 10,000 requests that end now is at most the fall. Where (1) leaves no room the tier
 * evicts its least recently used item, so no debt is added.
 *
 * The bound is as good as the estimates of debt and regret, which come from a sample
 * (placement_learn.h), and it assumes that the references per request do not change suddenly.
 * Content that a waiting request needs is kept outside of this bound: its use is known.
 *
 * Pure. Each operation takes O(1). */
#ifndef POLICY_PLACEMENT_GUARD_H
#define POLICY_PLACEMENT_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#define PLACEMENT_GUARD_REQUESTS 10000
#define PLACEMENT_GUARD_EPOCHS   64

struct placement_guard_epoch {
    double least;    /* regret within it */
    uint64_t n_uses; /* references within it */
};

struct placement_guard {
    uint64_t lot; /* of the present request */
    bool has_lot;
    uint32_t n_requests; /* in the present epoch */
    uint32_t n_epochs;   /* begun; the present one is (n_epochs - 1) % EPOCHS */
    struct placement_guard_epoch epoch[PLACEMENT_GUARD_EPOCHS];
    double regret, debt;
};

/* A reference of the request `lot`.  All references of a request come one after the other. */
void placement_guard_used(struct placement_guard *g, uint64_t lot);
/* One tier had it and the other not: weight is the references that this one stands for. */
void placement_guard_lost(struct placement_guard *g, double weight);
void placement_guard_gained(struct placement_guard *g, double weight);
/* The debt is known anew; an eviction that LRU would not do adds to it. */
void placement_guard_set_debt(struct placement_guard *g, double debt);
void placement_guard_departed(struct placement_guard *g, double weight);

/* Returns how many more evictions may depart from LRU's; not above 0: none. */
double placement_guard_room(const struct placement_guard *g);

#endif
