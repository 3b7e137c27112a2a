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

enum slot {
    /* Tables, in which rows are looked up, in the checkpoint's own type. */
    SLOT_EMBED,
    SLOT_POSITIONS, /* or the tokens' embeddings of all layers, one behind another */
    /* Matrices, which are packed. */
    SLOT_HEAD,
    SLOT_WQ,
    SLOT_WKV,
    SLOT_WV, /* the V rows of SLOT_WKV, if they differ in type from its K rows (matrix_types.h) */
    SLOT_WO,
    SLOT_UP, /* with experts: those of all experts, one behind another, and so SLOT_DOWN */
    SLOT_DOWN,
    /* Recurrent layers have these two. MIX has q, k, v and z, or LFM2's B, x and C. */
    SLOT_MIX,
    SLOT_MIX_OUT,
    SLOT_SHARED_UP, /* of the expert that every token uses: gate and up */
    SLOT_SHARED_DOWN,
    SLOT_DENSE_UP, /* of a layer without experts among layers with them: gate and up */
    SLOT_DENSE_DOWN,
    SLOT_LAYER_GATE, /* of each layer's own embeddings (config.h, n_layer_embd): in; out */
    SLOT_LAYER_OUT,
    SLOT_QA, /* of latent attention (weights.h) */
    SLOT_UK,
    SLOT_UV,
    /* Always f32 (slot_is_f32). */
    SLOT_ROUTER,
    SLOT_MIX_BA, /* of recurrent layers: beta and a */
    SLOT_SHARED_GATE,
    SLOT_LAYER_IN, /* from a token's embedding to those of all layers, one behind another */
    SLOT_DENSE_1,  /* linear layers behind the pooling of embeddings (config.h, n_behind) */
    SLOT_DENSE_2,
    /* Vectors, in f32. */
    SLOT_HEAD_BIAS,
    SLOT_FINAL_NORM_W,
    SLOT_FINAL_NORM_B,
    SLOT_LAYER_IN_NORM,
    SLOT_NORM1_W,
    SLOT_NORM1_B,
    SLOT_NORM2_W,
    SLOT_NORM2_B,
    SLOT_POST1_W, /* norms of what attention and MLP add (NORMS_AROUND) */
    SLOT_POST2_W,
    SLOT_LAYER_NORM,   /* of the result of SLOT_LAYER_OUT */
    SLOT_DENSE_POST_W, /* of the results of an MLP beside experts */
    SLOT_EXPERTS_W,    /* of the experts' inputs, and of their results */
    SLOT_EXPERTS_POST_W,
    SLOT_ROUTER_SCALE, /* factors of the router's input, and of each expert's share */
    SLOT_EXPERT_SCALE,
    SLOT_OUT_SCALE, /* factor of the layer's result */
    SLOT_BQ,
    SLOT_BKV,
    SLOT_Q_NORM,
    SLOT_K_NORM,
    SLOT_BO,
    SLOT_B_UP, /* with experts: those of all experts, and so SLOT_B_DOWN */
    SLOT_B_DOWN,
    SLOT_B_ROUTER,
    SLOT_SINKS, /* scores of attention that only enter the sum, one of each head */
    /* Of recurrent layers (ops.h, struct delta_rule), and the norm of their heads of V. */
    SLOT_CONV,
    SLOT_A_LOG,
    SLOT_DT,
    SLOT_MIX_NORM,
    SLOT_CONV_B, /* of Mamba-2: the convolution's bias, and the factor of v */
    SLOT_SKIP,
    N_SLOTS,
};

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

/* Returns whether each layer has its own slot of this kind. */
static inline bool slot_is_in_layer(enum slot s)
{
    return s != SLOT_EMBED && s != SLOT_POSITIONS && s != SLOT_HEAD && s != SLOT_DENSE_1 &&
           s != SLOT_DENSE_2 && s != SLOT_HEAD_BIAS && s != SLOT_FINAL_NORM_W &&
           s != SLOT_FINAL_NORM_B && s != SLOT_LAYER_IN && s != SLOT_LAYER_IN_NORM;
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

/* Makes the list of all tensors that a checkpoint of this model must have; it may have no others.
 */
void tensor_list_make(struct tensor_list *out, const struct model_config *c);
void tensor_list_free(struct tensor_list *l);

/* Returns the name of the output head, which a checkpoint with tied embeddings may repeat. */
const char *tensor_head_name(void);
/* Returns whether a tensor is a buffer that some checkpoints carry and no result depends on. */
bool tensor_is_ignored(const char *name);

#endif
