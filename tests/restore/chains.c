/* chains.c - see chains.h.
 *
 * Costs lie within three decades of each other, as on real machines. About half of the chains are
 * bound by compute. Records were saved under one policy or several. A policy is one kind of record,
 * a boundary between layers of hidden states and layers of KV, random records, or a layer without
 * any record. */
#include "tests/restore/chains.h"

#include <math.h>
#include <string.h>

static double between(struct rng *r, double least, double most)
{
    return least * exp(rng_unit(r) * log(most / least));
}

static bool one_in(struct rng *r, uint64_t n)
{
    return rng_below(r, n) == 0;
}

static void random_platform(struct rng *r, int n_layers, struct platform *p)
{
    platform_init(p);
    double flop_s = between(r, 2e-7, 2e-3); /* seconds to project one token of one layer */
    p->n_layers = n_layers;
    p->n_ranks = p->n_stages = 1;
    p->h_bytes = 2048;
    p->kv_bytes = one_in(r, 3)   ? 4096
                  : one_in(r, 2) ? 1024
                                 : 2048 * (0.25 + 2 * rng_unit(r));
    p->c_h = (struct cost_curve){flop_s * 20 * rng_unit(r), flop_s, 0};
    p->c_kv = (struct cost_curve){0, flop_s * 0.2 * rng_unit(r), 0};
    p->c_tok = (struct cost_curve){flop_s * 50 * rng_unit(r),
                                   flop_s * (2 + 8 * rng_unit(r)),
                                   flop_s * 1e-3 * rng_unit(r)};
    p->embed_s = flop_s * 0.1;
    p->head_s = flop_s * 50;
    p->tile_tokens = one_in(r, 2) ? 1 : 128;
    p->piece_tokens = one_in(r, 2) ? 0 : 512;
    if (!one_in(r, 3)) {
        p->io_overlap = 1 + 0.5 * rng_unit(r);
        p->comp_overlap = 1 + 0.5 * rng_unit(r);
    }
    p->n_tiers = 1 + (int)rng_below(r, 3);
    for (int t = 0; t < p->n_tiers; t++) {
        struct platform_tier *tier = &p->tier[t];
        /* Reading a token's hidden states takes 1/30 to 30 times as long as projecting them. */
        tier->bytes_per_s = p->h_bytes / (flop_s * between(r, 1.0 / 30, 30));
        tier->latency_s = one_in(r, 2) ? 1e-4 : 0;
        tier->request_s = one_in(r, 2) ? 1e-5 : 0;
    }
}

/* Draws the records of one saving policy. */
static void policy_mask(struct rng *r, int n_layers, uint8_t *mask)
{
    enum { H = PLAN_HAS_H, KV = PLAN_HAS_KV };
    const uint8_t kinds[] = {H, KV, H | KV};
    uint8_t first = kinds[rng_below(r, 3)], second = kinds[rng_below(r, 3)];
    int boundary = (int)rng_below(r, (uint64_t)n_layers + 1);
    bool random = one_in(r, 4);
    for (int i = 0; i < n_layers; i++)
        mask[i] = random ? kinds[rng_below(r, 3)] : i < boundary ? first : second;
}

static void random_masks(struct rng *r, struct random_chain *x)
{
    int n_layers = x->platform.n_layers;
    uint8_t policy[4][PLAN_MAX_LAYERS];
    int n_policies = 1 + (int)rng_below(r, 4);
    bool all_differ = one_in(r, 3), holes = one_in(r, 3);
    for (int i = 0; i < n_policies; i++)
        policy_mask(r, n_layers, policy[i]);
    for (int g = 0; g < x->n_ranges; g++) {
        memcpy(x->mask[g], policy[rng_below(r, (uint64_t)n_policies)], (size_t)n_layers);
        if (all_differ)
            policy_mask(r, n_layers, x->mask[g]);
        if (holes && one_in(r, (uint64_t)x->n_ranges / 2 + 1))
            x->mask[g][rng_below(r, 1 + rng_below(r, (uint64_t)n_layers))] = 0;
    }
}

void random_chain(struct rng *r, int n_layers, int n_ranges, struct random_chain *x)
{
    memset(x, 0, sizeof *x);
    random_platform(r, n_layers, &x->platform);
    x->n_ranges = n_ranges;
    x->can_recompute = !one_in(r, 8);
    random_masks(r, x);
    int n_tiers = x->platform.n_tiers, tier = 0;
    bool long_ranges = one_in(r, 2);
    for (int g = 0; g < n_ranges; g++) {
        int64_t chunks = 1 + (long_ranges ? (int64_t)between(r, 1, 64) : 0);
        if (one_in(r, 4))
            tier = (int)rng_below(r, (uint64_t)n_tiers);
        x->range[g] = (struct plan_range){
            .n_tokens = 64 * chunks, .tier = tier, .mask = x->mask[g]};
    }
    x->n_new = (int64_t)between(r, 1, 4096);
    x->req = (struct plan_request){.n_layers = n_layers,
                                   .fused = !one_in(r, 3),
                                   .fused_tokens = one_in(r, 2) ? 512 : 0};
    if (one_in(r, 5)) {
        x->req.comp_slow = 33;
        x->req.prefill_slow = 5.0 / 3;
    }
    if (one_in(r, 6)) {
        int first = (int)rng_below(r, (uint64_t)n_layers);
        x->req.window = (struct plan_window){layer_set_run(first, n_layers),
                                             (int64_t)between(r, 100, 4096)};
    }
}

int random_chain_plan(struct random_chain *x, struct plan *out, int *n_used, struct err *e)
{
    return plan_best_prefix(&x->platform, x->range, x->n_ranges, x->n_new, x->can_recompute,
                            x->layer, x->prefill_s, &x->req, out, n_used, e);
}

double random_chain_full_s(struct random_chain *x, int *n_used)
{
    static struct plan plan;
    int n;
    double best = INFINITY;
    /* a copy without ranges, whose plan is a plain prefill */
    struct random_chain none = *x;
    *n_used = 0;
    for (int g = 0; g < x->n_ranges; g++)
        none.n_new += x->range[g].n_tokens;
    none.n_ranges = 0;
    if (x->can_recompute && random_chain_plan(&none, &plan, &n, NULL) == 0)
        best = plan.predicted_s;
    struct stored_ranges c = {.platform = &x->platform,
                              .range = x->range,
                              .n_ranges = x->n_ranges,
                              .n_tokens = none.n_new - x->n_new,
                              .n_new = x->n_new,
                              .can_recompute = x->can_recompute,
                              .window = x->req.window,
                              .layer = x->layer,
                              .prefill_s = x->prefill_s};
    for (int g = 1; g <= x->n_ranges; g++)
        if (plan_at_cut(&c, g, &plan_effort_full, &x->req, &plan, NULL) == 0 &&
            plan.predicted_s <= best) {
            best = plan.predicted_s;
            *n_used = g;
        }
    return best;
}
