/* work.h - the activations of a forward pass, private to src/model.  All have max_rows rows. */
#ifndef MODEL_WORK_H
#define MODEL_WORK_H

#include "tensor/tensor.h"

struct model_work {
    struct device *dev;
    int max_rows;
    struct buf mem;
    int32_t *ids; /* row indices into the table of learned positions */

    struct mat x[2];    /* T: the residual stream, in and out of a layer by turns */
    struct mat kv_rows; /* T: K before RoPE, and V */
    struct mat norm;    /* input of the projections */
    struct mat norm2;   /* input of the MLP */
    struct mat sum;     /* the residual stream inside a layer, not rounded */
    struct mat q, att;
    struct mat kv;      /* kv_rows before rounding */
    struct mat up, ffn; /* gate and up; their product */
};

#endif
