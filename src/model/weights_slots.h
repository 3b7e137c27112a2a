/* weights_slots.h - finds each slot (weights_names.h) in struct weights.  Private to src/model. */
#ifndef MODEL_WEIGHTS_SLOTS_H
#define MODEL_WEIGHTS_SLOTS_H

#include "base/check.h"
#include "model/weights.h"
#include "model/weights_names.h"

#include <stddef.h>

/* The place of each slot: in struct weights for those outside of the layers, else in struct
 * layer_weights. */
static const size_t slot_offsets[N_SLOTS] = {
    [SLOT_EMBED] = offsetof(struct weights, embed),
    [SLOT_POSITIONS] = offsetof(struct weights, pos_embed),
    [SLOT_HEAD] = offsetof(struct weights, head),
    [SLOT_DENSE_1] = offsetof(struct weights, dense[0]),
    [SLOT_DENSE_2] = offsetof(struct weights, dense[1]),
    [SLOT_WQ] = offsetof(struct layer_weights, wq),
    [SLOT_WKV] = offsetof(struct layer_weights, wkv),
    [SLOT_WV] = offsetof(struct layer_weights, wv),
    [SLOT_WO] = offsetof(struct layer_weights, wo),
    [SLOT_UP] = offsetof(struct layer_weights, w_up),
    [SLOT_DOWN] = offsetof(struct layer_weights, w_down),
    [SLOT_MIX] = offsetof(struct layer_weights, mix),
    [SLOT_MIX_OUT] = offsetof(struct layer_weights, mix_out),
    [SLOT_SHARED_UP] = offsetof(struct layer_weights, shared_up),
    [SLOT_SHARED_DOWN] = offsetof(struct layer_weights, shared_down),
    [SLOT_DENSE_UP] = offsetof(struct layer_weights, dense_up),
    [SLOT_DENSE_DOWN] = offsetof(struct layer_weights, dense_down),
    [SLOT_LAYER_GATE] = offsetof(struct layer_weights, layer_gate),
    [SLOT_LAYER_OUT] = offsetof(struct layer_weights, layer_out),
    [SLOT_QA] = offsetof(struct layer_weights, w_qa),
    [SLOT_UK] = offsetof(struct layer_weights, w_uk),
    [SLOT_UV] = offsetof(struct layer_weights, w_uv),
    [SLOT_LAYER_IN] = offsetof(struct weights, layer_in),
    [SLOT_LAYER_IN_NORM] = offsetof(struct weights, layer_in_norm),
    [SLOT_LAYER_NORM] = offsetof(struct layer_weights, layer_norm),
    [SLOT_DENSE_POST_W] = offsetof(struct layer_weights, dense_post_w),
    [SLOT_EXPERTS_W] = offsetof(struct layer_weights, experts_w),
    [SLOT_EXPERTS_POST_W] = offsetof(struct layer_weights, experts_post_w),
    [SLOT_ROUTER_SCALE] = offsetof(struct layer_weights, router_scale),
    [SLOT_EXPERT_SCALE] = offsetof(struct layer_weights, expert_scale),
    [SLOT_OUT_SCALE] = offsetof(struct layer_weights, out_scale),
    [SLOT_ROUTER] = offsetof(struct layer_weights, router),
    [SLOT_MIX_BA] = offsetof(struct layer_weights, mix_ba),
    [SLOT_SHARED_GATE] = offsetof(struct layer_weights, shared_gate),
    [SLOT_HEAD_BIAS] = offsetof(struct weights, head_bias),
    [SLOT_FINAL_NORM_W] = offsetof(struct weights, final_norm_w),
    [SLOT_FINAL_NORM_B] = offsetof(struct weights, final_norm_b),
    [SLOT_NORM1_W] = offsetof(struct layer_weights, norm1_w),
    [SLOT_NORM1_B] = offsetof(struct layer_weights, norm1_b),
    [SLOT_NORM2_W] = offsetof(struct layer_weights, norm2_w),
    [SLOT_NORM2_B] = offsetof(struct layer_weights, norm2_b),
    [SLOT_POST1_W] = offsetof(struct layer_weights, post1_w),
    [SLOT_POST2_W] = offsetof(struct layer_weights, post2_w),
    [SLOT_BQ] = offsetof(struct layer_weights, bq),
    [SLOT_BKV] = offsetof(struct layer_weights, bkv),
    [SLOT_Q_NORM] = offsetof(struct layer_weights, q_norm),
    [SLOT_K_NORM] = offsetof(struct layer_weights, k_norm),
    [SLOT_BO] = offsetof(struct layer_weights, bo),
    [SLOT_B_UP] = offsetof(struct layer_weights, b_up),
    [SLOT_B_DOWN] = offsetof(struct layer_weights, b_down),
    [SLOT_B_ROUTER] = offsetof(struct layer_weights, b_router),
    [SLOT_SINKS] = offsetof(struct layer_weights, sinks),
    [SLOT_CONV] = offsetof(struct layer_weights, conv),
    [SLOT_A_LOG] = offsetof(struct layer_weights, a_log),
    [SLOT_DT] = offsetof(struct layer_weights, dt),
    [SLOT_MIX_NORM] = offsetof(struct layer_weights, mix_norm),
    [SLOT_CONV_B] = offsetof(struct layer_weights, conv_b),
    [SLOT_SKIP] = offsetof(struct layer_weights, skip),
};

static inline void *slot_place(struct weights *w, struct layer_weights *l, enum slot s)
{
    return (char *)(slot_is_in_layer(s) ? (void *)l : (void *)w) + slot_offsets[s];
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
