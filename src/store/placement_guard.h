/* placement_guard.h - how far a policy may depart from LRU: never more than 1 point of hits
 * behind LRU over any 10,000 requests.
 *
 * Two caches are compared: the tier, and a cache of the same size under LRU, which is only
 * estimated.
 *
 *     debt     content that LRU would hold and the tier does not: each can cost one hit
 *     regret   hits that LRU had and the tier had not, minus the opposite, since the start
 *     fall     the regret now minus its least value in the last 10,000 requests
 *
 * Take any 10,000 requests. Content that LRU holds and the tier lacks costs at most one hit
 * each, since the tier takes it in at that miss. Only evictions that LRU would not do add debt.
 * Suppose that (1) holds before each such eviction, and that the eviction adds 1 to the debt:
 *
 *     debt + fall <= 1 % of the references of 10,000 requests                       (1)
 *
 * Then (1) holds always: a lost hit moves 1 from debt to regret, and a gained hit lowers the
 * regret. The regret of the 10,000 requests that end now is at most the fall. If (1) leaves no
 * room, the tier evicts its least recently used item, so no debt is added.
 *
 * The bound is as good as the estimates of debt and regret, which come from a sample
 * (placement_learn.h), and it assumes that the references per request do not change suddenly.
 * Content that a waiting request needs is kept outside of this bound: its use is known.
 *
 * Pure. Each operation takes O(1). */
#ifndef STORE_PLACEMENT_GUARD_H
#define STORE_PLACEMENT_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#define PLACEMENT_GUARD_REQUESTS 10000
#define PLACEMENT_GUARD_EPOCHS   64

struct placement_guard_epoch {
    double least;    /* least regret within the epoch */
    uint64_t n_uses; /* references within the epoch */
};

struct placement_guard {
    uint64_t lot; /* lot of the present request */
    bool has_lot;
    uint32_t n_requests; /* requests in the present epoch */
    uint32_t n_epochs;   /* epochs begun; the present one is (n_epochs - 1) % EPOCHS */
    struct placement_guard_epoch epoch[PLACEMENT_GUARD_EPOCHS];
    double regret, debt;
};

/* Notes a reference by the request `lot`. All references of a request follow one another. */
void placement_guard_used(struct placement_guard *g, uint64_t lot);
/* Notes a hit that only LRU had. weight: how many references this one stands for. */
void placement_guard_lost(struct placement_guard *g, double weight);
/* Notes a hit that only the tier had. weight: as in placement_guard_lost. */
void placement_guard_gained(struct placement_guard *g, double weight);
/* Sets the debt to a new estimate. */
void placement_guard_set_debt(struct placement_guard *g, double debt);
/* Adds an eviction that LRU would not make to the debt. weight: how many it stands for. */
void placement_guard_departed(struct placement_guard *g, double weight);

/* Returns how many more evictions may depart from LRU. 0 or less: no eviction may. */
double placement_guard_room(const struct placement_guard *g);

#endif
