/* expert_cache.c - see expert_cache.h. */
#include "model/expert_cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"

void expert_cache_init(struct expert_cache *c, int n_layers, int n_experts, int n_slots)
{
    size_t n = (size_t)n_layers * (size_t)n_experts, slots = (size_t)n_slots;
    *c = (struct expert_cache){.n_layers = n_layers,
                               .n_experts = n_experts,
                               .n_slots = n_slots,
                               .slot_of = xcalloc(n, sizeof *c->slot_of),
                               .held = xcalloc(slots, sizeof *c->held),
                               .reading = xcalloc(slots, sizeof *c->reading),
                               .pinned = xcalloc(slots, sizeof *c->pinned),
                               .uses = xcalloc(n, sizeof *c->uses),
                               .layer = -1};
    memset(c->slot_of, -1, n * sizeof *c->slot_of);
    memset(c->held, -1, slots * sizeof *c->held);
}

void expert_cache_deinit(struct expert_cache *c)
{
    free(c->slot_of);
    free(c->held);
    free(c->reading);
    free(c->pinned);
    free(c->uses);
    *c = (struct expert_cache){0};
}

static void age(struct expert_cache *c)
{
    for (int i = 0; i < c->n_layers * c->n_experts; i++)
        c->uses[i] /= 2;
}

void expert_cache_use(struct expert_cache *c, int32_t expert)
{
    int layer = expert / c->n_experts;
    if (layer < c->layer && ++c->n_passes % EXPERT_CACHE_AGE == 0)
        age(c);
    c->layer = layer;
    if (c->uses[expert] < UINT16_MAX)
        c->uses[expert]++;
}

void expert_cache_unpin(struct expert_cache *c)
{
    memset(c->pinned, 0, (size_t)c->n_slots * sizeof *c->pinned);
}

/* Returns how many layers from now an expert may be used: 1 for the next layer. */
static int distance(const struct expert_cache *c, int32_t expert)
{
    int d = expert / c->n_experts - c->layer;
    return d <= 0 ? d + c->n_layers : d;
}

/* Returns whether expert a leaves before b. */
static bool leaves_before(const struct expert_cache *c, int32_t a, int32_t b)
{
    if (c->uses[a] != c->uses[b])
        return c->uses[a] < c->uses[b];
    return distance(c, a) > distance(c, b);
}

int expert_cache_victim(const struct expert_cache *c)
{
    int best = -1;
    for (int i = 0; i < c->n_slots; i++) {
        if (c->held[i] < 0)
            return i;
        if (!c->pinned[i] && !c->reading[i] &&
            (best < 0 || leaves_before(c, c->held[i], c->held[best])))
            best = i;
    }
    return best;
}

void expert_cache_put(struct expert_cache *c, int slot, int32_t expert)
{
    CHECK(expert < 0 || c->slot_of[expert] < 0);
    if (c->held[slot] >= 0)
        c->slot_of[c->held[slot]] = -1;
    c->held[slot] = expert;
    if (expert >= 0)
        c->slot_of[expert] = slot;
}
