/* test_placement_guard.c - the room that the guard leaves for losses, compared with the definition
 * in its header. The definition is computed from a log of all events. */
#include "tests/unit.h"

#include <math.h>

#include "base/rng.h"
#include "store/placement_guard.h"

enum {
    EPOCH = (PLACEMENT_GUARD_REQUESTS + PLACEMENT_GUARD_EPOCHS - 1) / PLACEMENT_GUARD_EPOCHS
};
enum { MOST_EPOCHS = 200 };

/* The bound is 1 % of the references. The guard itself keeps to this share; the rest allows for
 * errors of the sample. */
static const double SHARE = 0.0082;

struct log {
    int n_requests;
    double regret, debt;
    double least[MOST_EPOCHS]; /* the least regret in each epoch */
    double uses[MOST_EPOCHS];
};

static void log_regret(struct log *g, double regret)
{
    int epoch = (g->n_requests - 1) / EPOCH;
    g->regret = regret;
    if (g->n_requests > 0 && regret < g->least[epoch])
        g->least[epoch] = regret;
}

static double log_room(const struct log *g)
{
    if (g->n_requests == 0)
        return 0;
    int now = (g->n_requests - 1) / EPOCH, first = now - PLACEMENT_GUARD_EPOCHS + 1;
    first = first > 0 ? first : 0;
    double least = g->regret, uses = 0;
    for (int e = first; e <= now; e++) {
        least = fmin(least, g->least[e]);
        uses += g->uses[e];
    }
    double per_request = uses / (g->n_requests - first * EPOCH);
    return SHARE * per_request * PLACEMENT_GUARD_REQUESTS - g->debt - (g->regret - least);
}

static void expect_room(const struct placement_guard *g, const struct log *log)
{
    double want = log_room(log), got = placement_guard_room(g);
    if (fabs(got - want) > 1e-9 * (1 + fabs(want)))
        fail_msg("request %d: room for %.12g, not %.12g", log->n_requests, got, want);
}

/* Requests have 1 to 20 references, and some references are hits of one of the two caches only. The
 * rates of these hits change, so that the regret rises and falls for more than an epoch. */
TEST(the_room_is_the_bound_less_debt_and_fall)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct placement_guard g = {0};
        struct log log = {0};
        struct rng r = {seed};
        expect_room(&g, &log);
        for (int i = 0; i < 15000; i++) {
            uint64_t lot = seed == 1 ? (uint64_t)i : rng_u64(&r);
            if (log.n_requests++ % EPOCH == 0)
                log.least[i / EPOCH] = log.regret;
            for (uint64_t n = 1 + rng_below(&r, 20); n > 0; n--) {
                double weight = (double)((uint64_t)1 << rng_below(&r, 3));
                uint64_t what = rng_below(&r, 40), worse = (uint64_t)(i / 3000 % 2) * 4;
                placement_guard_used(&g, lot);
                log.uses[i / EPOCH]++;
                if (what < 2 + worse) {
                    placement_guard_lost(&g, weight);
                    log.debt = fmax(log.debt - weight, 0);
                    log_regret(&log, log.regret + weight);
                } else if (what < 8) {
                    placement_guard_gained(&g, weight);
                    log_regret(&log, log.regret - weight);
                } else if (what < 12) {
                    placement_guard_departed(&g, weight);
                    log.debt += weight;
                } else if (what == 12) {
                    placement_guard_set_debt(&g, weight * 10);
                    log.debt = weight * 10;
                }
                expect_room(&g, &log);
            }
        }
    }
}

/* A reference that comes with the same request number as the reference before it belongs to the
 * same request. */
TEST(references_of_a_request_belong_together)
{
    struct placement_guard g = {0};
    for (int i = 0; i < 50; i++)
        placement_guard_used(&g, 0);
    assert_true(fabs(placement_guard_room(&g) - SHARE * 50 * PLACEMENT_GUARD_REQUESTS) <
                1e-6);
    placement_guard_used(&g, 1);
    placement_guard_used(&g, 0);
    assert_true(fabs(placement_guard_room(&g) - SHARE * 52 / 3 * PLACEMENT_GUARD_REQUESTS) <
                1e-6);
}
