/* weights_names.h - the tensors of a checkpoint, and the destinations of their rows.  Private to
 * src/model.
 *
 * A *slot* is a place in struct weights.  A *tensor spec* is one tensor of the checkpoint: its
 * name, its shape, and one to five *parts*, each a regular set of its rows that goes to one slot:
 *
 *     part {slot, src_row, src_stride, dst_row, n_rows, n_groups}
 *     for g < n_groups: rows [src_row + g * src_stride, + n_rows) of the tensor
 *                       become rows [dst_row + g * n_rows, + n_rows) of the slot
 *
 * With parts the loader treats separate q, k and v (llama), stacked ones (phi3) and ones
 * interleaved per group of heads (falcon) alike.  A vector is a matrix of one column. */
#ifndef MODEL_WEIGHTS_NAMES_H
#define MODEL_WEIGHTS_NAMES_H

#include "model/config.h"

#include <stddef.h>

/* All slots: its name, whether the model has one or each layer, and the member of struct weights or
 * struct layer_weights. */
/* clang-format off */
#define SLOTS(X) \
    /* Tables, in which rows are looked up, in the checkpoint's own type. */ \
    X(EMBED, MODEL, embed) \
    /* or the tokens' embeddings of all layers, one behind another */ \
    X(POSITIONS, MODEL, pos_embed) \
    /* Matrices, which are packed. */ \
    X(HEAD, MODEL, head) \
    X(WQ, LAYER, wq) \
    X(WKV, LAYER, wkv) \
    /* the V rows of SLOT_WKV, if they differ in type from its K rows (matrix_types.h) */ \
    X(WV, LAYER, wv) \
    X(WO, LAYER, wo) \
    /* with experts: those of all experts, one behind another, and so SLOT_DOWN */ \
    X(UP, LAYER, w_up) \
    X(DOWN, LAYER, w_down) \
    /* Recurrent layers have these two. MIX has q, k, v and z, or LFM2's B, x and C. */ \
    X(MIX, LAYER, mix) \
    X(MIX_OUT, LAYER, mix_out) \
    X(SHARED_UP, LAYER, shared_up) /* of the expert that every token uses: gate and up */ \
    X(SHARED_DOWN, LAYER, shared_down) \
    /* of a layer without experts among layers with them: gate and up */ \
    X(DENSE_UP, LAYER, dense_up) \
    X(DENSE_DOWN, LAYER, dense_down) \
    /* of each layer's own embeddings (config.h, n_layer_embd): in; out */ \
    X(LAYER_GATE, LAYER, layer_gate) \
    X(LAYER_OUT, LAYER, layer_out) \
    X(QA, LAYER, w_qa) /* of latent attention (weights.h) */ \
    X(UK, LAYER, w_uk) \
    X(UV, LAYER, w_uv) \
    /* Always f32 (slot_is_f32). */ \
    X(ROUTER, LAYER, router) \
    X(MIX_BA, LAYER, mix_ba) /* of recurrent layers: beta and a */ \
    X(SHARED_GATE, LAYER, shared_gate) \
    /* from a token's embedding to those of all layers, one behind another */ \
    X(LAYER_IN, MODEL, layer_in) \
    /* linear layers behind the pooling of embeddings (config.h, n_behind) */ \
    X(DENSE_1, MODEL, dense[0]) \
    X(DENSE_2, MODEL, dense[1]) \
    /* Vectors, in f32. */ \
    X(HEAD_BIAS, MODEL, head_bias) \
    X(FINAL_NORM_W, MODEL, final_norm_w) \
    X(FINAL_NORM_B, MODEL, final_norm_b) \
    X(LAYER_IN_NORM, MODEL, layer_in_norm) \
    X(NORM1_W, LAYER, norm1_w) \
    X(NORM1_B, LAYER, norm1_b) \
    X(NORM2_W, LAYER, norm2_w) \
    X(NORM2_B, LAYER, norm2_b) \
    X(POST1_W, LAYER, post1_w) /* norms of the outputs of attention and MLP */ \
    X(POST2_W, LAYER, post2_w) \
    X(LAYER_NORM, LAYER, layer_norm) /* of the result of SLOT_LAYER_OUT */ \
    X(DENSE_POST_W, LAYER, dense_post_w) /* of the results of an MLP beside experts */ \
    X(EXPERTS_W, LAYER, experts_w) /* of the experts' inputs, and of their results */ \
    X(EXPERTS_POST_W, LAYER, experts_post_w) \
    /* factors of the router's input, and of each expert's share */ \
    X(ROUTER_SCALE, LAYER, router_scale) \
    X(EXPERT_SCALE, LAYER, expert_scale) \
    X(OUT_SCALE, LAYER, out_scale) /* factor of the layer's result */ \
    X(BQ, LAYER, bq) \
    X(BKV, LAYER, bkv) \
    X(Q_NORM, LAYER, q_norm) \
    X(K_NORM, LAYER, k_norm) \
    X(BO, LAYER, bo) \
    X(B_UP, LAYER, b_up) /* with experts: those of all experts, and so SLOT_B_DOWN */ \
    X(B_DOWN, LAYER, b_down) \
    X(B_ROUTER, LAYER, b_router) \
    X(SINKS, LAYER, sinks) /* scores of attention that only enter the sum, one of each head */ \
    /* Of recurrent layers (ops.h, struct delta_rule), and the norm of their heads of V. */ \
    X(CONV, LAYER, conv) \
    X(A_LOG, LAYER, a_log) \
    X(DT, LAYER, dt) \
    X(MIX_NORM, LAYER, mix_norm) \
    X(CONV_B, LAYER, conv_b) /* of Mamba-2: the convolution's bias, and the factor of v */ \
    X(SKIP, LAYER, skip)

enum slot {
#define SLOT_NAME(name, owner, member) SLOT_##name,
    SLOTS(SLOT_NAME)
#undef SLOT_NAME
    N_SLOTS,
};
/* clang-format on */

#define SLOT_LAST_IN_BLOCKS SLOT_UV /* the last one that may have 4 bits */

static inline bool slot_is_table(enum slot s)
{
    return s <= SLOT_POSITIONS;
}
static inline bool slot_is_matrix(enum slot s)
{
    return s >= SLOT_HEAD && s <= SLOT_DENSE_2;
}
static inline bool slot_is_vector(enum slot s)
{
    return s > SLOT_DENSE_2;
}

/* Returns whether a matrix is f32 in every format: its products decide which experts are used, what
 * a state forgets, or are an embedding. */
static inline bool slot_is_f32(enum slot s)
{
    return s >= SLOT_ROUTER && s <= SLOT_DENSE_2;
}

/* Returns whether a slot holds the numbers of all experts, if there are any. */
static inline bool slot_is_of_experts(enum slot s)
{
    return s == SLOT_UP || s == SLOT_DOWN || s == SLOT_B_UP || s == SLOT_B_DOWN;
}

/* Return the rows and columns of layer l's slot; a vector has one column. */
int64_t slot_rows(const struct model_config *c, int l, enum slot s);
int64_t slot_cols(const struct model_config *c, int l, enum slot s);

/* No part names SLOT_WV: rows of W_v go to SLOT_WKV, behind those of W_k. */
struct tensor_part {
    enum slot slot;
    int64_t src_row, src_stride, dst_row, n_rows, n_groups;
};

enum {
    TENSOR_NAME_BYTES = 96,
    TENSOR_MAX_PARTS = 5,
};

/* Kind of a tensor, for the generator of random weights and for adding 1 to norms. */
enum tensor_kind {
    TENSOR_MATRIX,
    TENSOR_NORM, /* weight of a norm: near one, or near zero if 1 is added to it */
    TENSOR_BIAS,
    TENSOR_FACTOR, /* near one; nothing is added */
    TENSOR_RATE,   /* logarithm of a rate: near -4 */
};

struct tensor_spec {
    char name[TENSOR_NAME_BYTES];
    enum tensor_kind kind;
    int layer;  /* 0 for tensors outside of the layers */
    int n_dims; /* 1 or 2; 3: a convolution's [rows / n_conv][1][n_conv] */
    int n_conv;
    int64_t rows; /* shape[0] */
    int64_t cols; /* shape[1], 1 for vectors */
    int n_parts;
    struct tensor_part parts[TENSOR_MAX_PARTS];
};

struct tensor_list {
    size_t n;
    struct tensor_spec *items; /* [n] in the order of the forward pass */
    /* "model.": a checkpoint of the bare base model leaves this prefix out */
    const char *prefix;
};

/* Makes the list of all tensors of a checkpoint of this model: it must have these and no others. */
void tensor_list_make(struct tensor_list *out, const struct model_config *c);
void tensor_list_free(struct tensor_list *l);

/* Returns the name of the output head, which a checkpoint with tied embeddings may repeat. */
const char *tensor_head_name(void);
/* Returns whether a tensor is a buffer that some checkpoints carry and no result depends on. */
bool tensor_is_ignored(const char *name);

#endif
