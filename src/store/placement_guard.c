/* placement_guard.c - see placement_guard.h. */
#include "store/placement_guard.h"
#include "base/minmax.h"

/* Limit on debt + fall, as a share of the references of 10,000 requests. It is less than 1 point,
 * to allow for errors of the sample. Against the adversary of tests/sim/test_guard.c the worst
 * 10,000 requests were 0.99 points behind LRU; with a limit of 0.009 they were 1.1 points behind.
 */
#define SHARE 0.0082
#define EPOCH_REQUESTS                                                                     \
    ((PLACEMENT_GUARD_REQUESTS + PLACEMENT_GUARD_EPOCHS - 1) / PLACEMENT_GUARD_EPOCHS)

static struct placement_guard_epoch *epoch_now(struct placement_guard *g)
{
    return &g->epoch[(g->n_epochs - 1) % PLACEMENT_GUARD_EPOCHS];
}

static void epoch_begin(struct placement_guard *g)
{
    g->n_epochs++;
    g->n_requests = 0;
    *epoch_now(g) = (struct placement_guard_epoch){.least = g->regret};
}

void placement_guard_used(struct placement_guard *g, uint64_t lot)
{
    bool is_new = !g->has_lot || lot != g->lot;
    if (g->n_epochs == 0 || (is_new && g->n_requests == EPOCH_REQUESTS))
        epoch_begin(g);
    g->n_requests += is_new;
    g->lot = lot;
    g->has_lot = true;
    epoch_now(g)->n_uses++;
}

void placement_guard_lost(struct placement_guard *g, double weight)
{
    g->regret += weight;
    g->debt = g->debt > weight ? g->debt - weight : 0;
}

void placement_guard_gained(struct placement_guard *g, double weight)
{
    g->regret -= weight;
    if (g->n_epochs > 0 && g->regret < epoch_now(g)->least)
        epoch_now(g)->least = g->regret;
}

void placement_guard_set_debt(struct placement_guard *g, double debt)
{
    g->debt = debt;
}

void placement_guard_departed(struct placement_guard *g, double weight)
{
    g->debt += weight;
}

double placement_guard_room(const struct placement_guard *g)
{
    uint32_t n = MIN(g->n_epochs, PLACEMENT_GUARD_EPOCHS);
    double least = g->regret, n_uses = 0;
    if (n == 0)
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        least = MIN(g->epoch[i].least, least);
        n_uses += (double)g->epoch[i].n_uses;
    }
    double n_requests = (double)(n - 1) * EPOCH_REQUESTS + g->n_requests;
    double bound = SHARE * n_uses / n_requests * PLACEMENT_GUARD_REQUESTS;
    return bound - g->debt - (g->regret - least);
}
