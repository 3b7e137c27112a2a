/* weights_slots.h - finds each slot (weights_names.h) in struct weights.  Private to src/model. */
#ifndef MODEL_WEIGHTS_SLOTS_H
#define MODEL_WEIGHTS_SLOTS_H

#include "base/check.h"
#include "model/weights.h"
#include "model/weights_names.h"

/* Returns the matrix of a slot; `l` is its layer's weights and is ignored for the head. */
static inline struct weight *slot_matrix(struct weights *w, struct layer_weights *l,
                                         enum slot s)
{
    switch (s) {
    case SLOT_HEAD:
        return &w->head;
    case SLOT_WQ:
        return &l->wq;
    case SLOT_WKV:
        return &l->wkv;
    case SLOT_WV:
        return &l->wv;
    case SLOT_WO:
        return &l->wo;
    case SLOT_UP:
        return &l->w_up;
    case SLOT_MIX:
        return &l->mix;
    case SLOT_MIX_OUT:
        return &l->mix_out;
    case SLOT_SHARED_UP:
        return &l->shared_up;
    case SLOT_SHARED_DOWN:
        return &l->shared_down;
    case SLOT_ROUTER:
        return &l->router;
    case SLOT_MIX_BA:
        return &l->mix_ba;
    case SLOT_SHARED_GATE:
        return &l->shared_gate;
    default:
        CHECK(s == SLOT_DOWN);
        return &l->w_down;
    }
}

/* Returns the place of the pointer to a slot's vector. */
static inline const float **slot_vector(struct weights *w, struct layer_weights *l,
                                        enum slot s)
{
    switch (s) {
    case SLOT_HEAD_BIAS:
        return &w->head_bias;
    case SLOT_FINAL_NORM_W:
        return &w->final_norm_w;
    case SLOT_FINAL_NORM_B:
        return &w->final_norm_b;
    case SLOT_NORM1_W:
        return &l->norm1_w;
    case SLOT_NORM1_B:
        return &l->norm1_b;
    case SLOT_NORM2_W:
        return &l->norm2_w;
    case SLOT_NORM2_B:
        return &l->norm2_b;
    case SLOT_POST1_W:
        return &l->post1_w;
    case SLOT_POST2_W:
        return &l->post2_w;
    case SLOT_BQ:
        return &l->bq;
    case SLOT_BKV:
        return &l->bkv;
    case SLOT_Q_NORM:
        return &l->q_norm;
    case SLOT_K_NORM:
        return &l->k_norm;
    case SLOT_BO:
        return &l->bo;
    case SLOT_B_UP:
        return &l->b_up;
    case SLOT_B_DOWN:
        return &l->b_down;
    case SLOT_B_ROUTER:
        return &l->b_router;
    case SLOT_SINKS:
        return &l->sinks;
    case SLOT_CONV:
        return &l->conv;
    case SLOT_A_LOG:
        return &l->a_log;
    case SLOT_DT:
        return &l->dt;
    default:
        CHECK(s == SLOT_MIX_NORM);
        return &l->mix_norm;
    }
}

static inline struct mat *slot_table(struct weights *w, enum slot s)
{
    return s == SLOT_EMBED ? &w->embed : &w->pos_embed;
}

#endif
