/* weights_slots.h - finds each slot (weights_names.h) in struct weights.  Private to src/model. */
#ifndef MODEL_WEIGHTS_SLOTS_H
#define MODEL_WEIGHTS_SLOTS_H

#include "base/check.h"
#include "model/weights.h"
#include "model/weights_names.h"

#include <stddef.h>

/* The place of each slot: in struct weights for those outside of the layers, else in struct
 * layer_weights. */
static const struct slot_at {
    bool is_in_layer;
    size_t offset;
} slots_at[N_SLOTS] = {
#define MODEL(member)                false, offsetof(struct weights, member)
#define LAYER(member)                true, offsetof(struct layer_weights, member)
#define SLOT_AT(name, owner, member) [SLOT_##name] = {owner(member)},
    SLOTS(SLOT_AT)
#undef SLOT_AT
#undef LAYER
#undef MODEL
};

/* Returns whether each layer has its own slot of this kind. */
static inline bool slot_is_in_layer(enum slot s)
{
    return slots_at[s].is_in_layer;
}

static inline void *slot_place(struct weights *w, struct layer_weights *l, enum slot s)
{
    return (char *)(slot_is_in_layer(s) ? (void *)l : (void *)w) + slots_at[s].offset;
}

/* Return the matrix of a slot, the place of the pointer to its vector, or its table.  l holds the
 * layer's weights; it is ignored for slots outside of the layers. */
static inline struct weight *slot_matrix(struct weights *w, struct layer_weights *l,
                                         enum slot s)
{
    CHECK(slot_is_matrix(s));
    return slot_place(w, l, s);
}
static inline const float **slot_vector(struct weights *w, struct layer_weights *l,
                                        enum slot s)
{
    CHECK(slot_is_vector(s));
    return slot_place(w, l, s);
}
static inline struct mat *slot_table(struct weights *w, enum slot s)
{
    CHECK(slot_is_table(s));
    return slot_place(w, NULL, s);
}

#endif
