/* chains.h - random stored chains, on which plan_best_prefix is compared and timed. */
#ifndef TESTS_RESTORE_CHAINS_H
#define TESTS_RESTORE_CHAINS_H

#include "base/rng.h"
#include "restore/plan_parts.h"

enum { CHAIN_MAX_RANGES = 512 };

struct random_chain {
    struct platform platform;
    struct plan_range range[CHAIN_MAX_RANGES];
    uint8_t mask[CHAIN_MAX_RANGES][PLAN_MAX_LAYERS];
    int n_ranges;
    int64_t n_new;
    bool can_recompute;
    struct plan_request req; /* mode, window, fused and slow-downs; `layers` is not set */
    struct plan_layer layer[PLAN_MAX_LAYERS];
    double prefill_s[PLAN_MAX_LAYERS];
};

/* Makes a random chain of n_ranges ranges for a model of n_layers layers. */
void random_chain(struct rng *r, int n_layers, int n_ranges, struct random_chain *x);
/* Calls plan_best_prefix for the chain. */
int random_chain_plan(struct random_chain *x, struct plan *out, int *n_used, struct err *e);
/* Returns the least predicted time over all numbers of ranges, with a full search for each. */
double random_chain_full_s(struct random_chain *x, int *n_used);

#endif
