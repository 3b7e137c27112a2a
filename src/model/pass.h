/* pass.h - one pass of rows through the layers: begin, one layer at a time, end.
 *
 *   begin    rows and their tokens are given; nothing is computed
 *   layer l  acquire weights | embed or cross stages | the layer, check of its range, tap | release
 *   kv l     acquire weights | embed or cross stages | K and V only                       | release
 *   end      releases the weights that an unfinished layer holds
 *
 * All code that computes layers drives a pass: the forward pass of a batch (model_forward), the
 * recomputation of a restore, the prefill that follows a restore layer by layer, the profile and
 * the fingerprint's probe.  Other work may use the same model_work and stream between two calls: a
 * pass keeps its state between layers in its residual stream alone.
 *
 * Invariants:
 *  1. Layers run in ascending order, each once.  A layer's weights are acquired before its first
 *     rows and released after its last (weights_use.h).
 *  2. The rows of a pass may go through a layer in pieces, in ascending order.  Pieces change no
 *     bits. */
#ifndef MODEL_PASS_H
#define MODEL_PASS_H

#include "model/model.h"
#include "model/weights_use.h"

/* The residual stream of a pass, on each stage: layer l reads buffer l % n and writes buffer (l +
 * 1) % n. With one buffer a layer overwrites its input. */
struct residual {
    int n;
    struct mat x[MAX_STAGES][3]; /* [at least n_rows][d] T */
};

struct model_pass_opts {
    const struct model *model;
    struct model_work *work;
    struct stream *stream;
    int n_rows;
    int first_layer; /* layer at which the pass begins; its input is in x, on its stage */
    /* [n_rows] token ids for layer 0, and for embeddings of each layer. NULL: the first layer's
     * input is already in x, as it is if it is not layer 0. */
    const int32_t *ids;
    const struct residual *x;  /* the pass uses rows [0, n_rows) */
    const struct kv_layer *kv; /* [n_layers] */
    /* Receives each layer's input, K and V. With one buffer the layer has already overwritten its
     * input. */
    const struct model_tap *tap; /* NULL: there is no tap */
    bool checks_range; /* returns MODEL_E_OVERFLOW if an f16 output left f16's range */
};

/* A pass. It lies in the caller's memory. Everything that o points to must outlive the pass. */
struct model_pass {
    struct model_pass_opts o;
    int layer;                      /* the next layer, or the one that rows are passing */
    int row;                        /* rows [0, row) have passed the layer */
    const struct layer_weights *lw; /* the layer's weights; NULL: not acquired */
};

/* Returns how many passes this process has begun. Any thread. */
int64_t model_passes(void);

void model_pass_begin(struct model_pass *p, const struct model_pass_opts *o);

/* Takes the next r->n_rows rows through the present layer; r has their positions and tables.  After
 * the last row the pass moves to the next layer.  After an error only model_pass_end may follow. */
int model_pass_layer(struct model_pass *p, const struct ragged *r);

/* Computes only kv_rows [n_rows][2 * model_rank_kv_dim] T = K (before RoPE) and V of the present
 * layer, instead of model_pass_layer, for the last layer that is wanted.  It takes all rows at once
 * and completes the pass. */
int model_pass_kv(struct model_pass *p, const struct ragged *r, struct mat kv_rows);

static inline bool model_pass_is_done(const struct model_pass *p)
{
    return p->layer == p->o.model->cfg.n_layers;
}

/* Returns the output [n_rows][d] T of the last layer that all rows have passed, on its stage. */
struct mat model_pass_output(const struct model_pass *p);

/* Releases weights that are still held. It may be called in any state, also twice. */
void model_pass_end(struct model_pass *p);

#endif
