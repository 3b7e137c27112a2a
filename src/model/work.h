/* work.h - the activations of a forward pass, private to src/model.  All have max_rows rows. */
#ifndef MODEL_WORK_H
#define MODEL_WORK_H

#include "tensor/group.h"
#include "tensor/tensor.h"

/* Of the layers of one stage. */
struct activations {
    /* What a tap is shown is overwritten a layer later where memory is unified; else by the layer after
     * that, so that it can be copied from beside the next one (model_tap). */
    int n_x, n_kv_rows;
    struct mat x[3];       /* T: the residual stream, in and out of a layer by turns */
    struct mat kv_rows[2]; /* T: K before RoPE, and V, by layers; a rank's own */
    /* f32: logits of a rank's run of the vocabulary, and of all ranks, a rank behind the other; no rows: each
     * computes all. */
    struct mat head, head_all;
    struct mat norm;  /* input of the projections */
    struct mat norm2; /* input of the MLP */
    struct mat sum;   /* the residual stream inside a layer, not rounded */
    struct mat q, att;
    struct mat kv;      /* kv_rows before rounding */
    struct mat up, ffn; /* gate and up; their product */
};

struct model_work {
    struct device *dev;
    int max_rows;
    int32_t *ids; /* row indices into the table of learned positions */
    struct buf mem[MAX_STAGES];
    struct activations at[MAX_STAGES];
};

#endif
