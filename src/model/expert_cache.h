/* expert_cache.h - which expert leaves a cache when another one comes.  Private to src/model.
 *
 * A pass goes through the layers in ascending order and uses some experts of each, and the next
 * pass begins again.  So two things are known of an expert: how often passes have used it, and how
 * many layers away its next possible use is.  The expert that was used least leaves; of equals, the
 * one whose layer is farthest away.  A prompt uses all experts, and with this rule a part of them
 * stays.  If the expert unused for longest left, each would leave just before its next use.  Counts
 * are halved each EXPERT_CACHE_AGE passes, so that the uses of an earlier text are forgotten.
 *
 * All functions are pure; one thread at a time.  An expert is layer * n_experts + its number. */
#ifndef MODEL_EXPERT_CACHE_H
#define MODEL_EXPERT_CACHE_H

#include <stdbool.h>
#include <stdint.h>

enum { EXPERT_CACHE_AGE = 64 };

struct expert_cache {
    int n_layers, n_experts, n_slots;
    int32_t *slot_of; /* [n_layers * n_experts] the expert's slot, or -1 */
    int32_t *held;    /* [n_slots] the slot's expert, or -1 */
    bool *reading;    /* [n_slots] the slot's expert is being read: it stays */
    bool *pinned;     /* [n_slots] the slot's expert stays until the next call of unpin */
    uint16_t *uses;   /* [n_layers * n_experts] */
    int layer;        /* the layer that was used last; -1: none */
    int n_passes;
};

void expert_cache_init(struct expert_cache *c, int n_layers, int n_experts, int n_slots);
void expert_cache_deinit(struct expert_cache *c);
/* Counts a use.  A layer that is not behind the one before begins a pass. */
void expert_cache_use(struct expert_cache *c, int32_t expert);
void expert_cache_unpin(struct expert_cache *c);
/* Returns whether an expert is in its slot. */
static inline bool expert_cache_has(const struct expert_cache *c, int32_t expert)
{
    return c->slot_of[expert] >= 0 && !c->reading[c->slot_of[expert]];
}
/* Returns a slot for another expert, an empty one first; -1: all are pinned or being read. */
int expert_cache_victim(const struct expert_cache *c);
/* Puts an expert into a slot, whose expert leaves; -1 empties the slot. */
void expert_cache_put(struct expert_cache *c, int slot, int32_t expert);

#endif
