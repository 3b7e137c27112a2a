/* shaping.c - see shaping.h. */
#include "engine/shaping.h"

#include <stddef.h>

bool shaping_stops(const struct hcache_shaping *g, int32_t id)
{
    for (int i = 0; g != NULL && i < g->n_stop_ids; i++) {
        if (g->stop_ids[i] == id)
            return true;
    }
    return false;
}

static bool penalises_repetition(const struct hcache_shaping *g)
{
    return g->repetition_penalty != 0 && g->repetition_penalty != 1;
}

bool shaping_changes(const struct hcache_shaping *g)
{
    return g != NULL && (g->frequency_penalty != 0 || g->presence_penalty != 0 ||
                         penalises_repetition(g) || g->n_bias > 0 || g->min_tokens > 0);
}

/* Applies the repetition penalty. counts[id] is 1 for each id that occurs. Each id is visited once,
 * and its count is then reset to 0. */
static void repetition(const struct hcache_shaping *g, const struct shaping_place *at,
                       int32_t *counts, float *logits)
{
    for (int i = 0; i < at->n_tokens; i++)
        counts[at->tokens[i]] = 1;
    for (int i = 0; i < at->n_tokens; i++) {
        float *l = &logits[at->tokens[i]];
        if (counts[at->tokens[i]] == 0)
            continue;
        counts[at->tokens[i]] = 0;
        *l = *l > 0 ? *l / g->repetition_penalty : *l * g->repetition_penalty;
    }
}

static void frequency(const struct hcache_shaping *g, const struct shaping_place *at,
                      int32_t *counts, float *logits)
{
    for (int i = at->n_prompt; i < at->n_tokens; i++)
        counts[at->tokens[i]]++;
    for (int i = at->n_prompt; i < at->n_tokens; i++) {
        int32_t *n = &counts[at->tokens[i]];
        if (*n == 0)
            continue;
        logits[at->tokens[i]] -= (float)*n * g->frequency_penalty + g->presence_penalty;
        *n = 0;
    }
}

void shaping_apply(const struct hcache_shaping *g, const struct shaping_place *at,
                   int n_vocab, int32_t *counts, float *logits)
{
    if (penalises_repetition(g))
        repetition(g, at, counts, logits);
    if (g->frequency_penalty != 0 || g->presence_penalty != 0)
        frequency(g, at, counts, logits);
    for (int i = 0; i < g->n_bias; i++)
        logits[g->bias[i].id] += g->bias[i].bias;
    if (at->n_tokens - at->n_prompt >= g->min_tokens)
        return;
    for (int i = 0; i < at->n_end_ids; i++)
        if (at->end_ids[i] >= 0 && at->end_ids[i] < n_vocab)
            logits[at->end_ids[i]] = SHAPING_NEVER;
    for (int i = 0; i < g->n_stop_ids; i++)
        if (g->stop_ids[i] < n_vocab)
            logits[g->stop_ids[i]] = SHAPING_NEVER;
}
