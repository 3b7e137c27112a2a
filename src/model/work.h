/* work.h - the activations of a forward pass, and functions its files share. Private to src/model.
 *
 *   pass.c      takes rows through the layers, one after another
 *   forward.c   the arithmetic of embedding, layer and head
 *   model.c     allocates the activations */
#ifndef MODEL_WORK_H
#define MODEL_WORK_H

#include "model/pass.h"

#define TRY(call)                                                                          \
    do {                                                                                   \
        int rc_ = (call);                                                                  \
        if (rc_ != 0)                                                                      \
            return rc_;                                                                    \
    } while (0)

/* Memory in which a layer computes, on one stage. All matrices but `head` have max_rows rows. */
struct activations {
    /* T: K before RoPE, and V, of a rank's own heads. Layers use the two matrices in turn, so that
     * on a device with memory of its own a tap can copy one while the next layer runs. */
    struct mat kv_rows[2];
    int n_kv_rows;
    /* f32 logits of some rows: of a rank's run of the vocabulary, or of a fine head, which has two
     * rows for each. No rows: the head computes all logits at once, where they belong. */
    struct mat head;
    /* With several ranks: att or ffn of all ranks, and a rank's run of the elements of norm2. */
    struct mat wide, own;
    struct mat norm;  /* normalised input of the projections */
    struct mat norm2; /* output of attention, then of the MLP */
    struct mat sum;   /* f32: the residual stream inside a layer, not rounded */
    /* In gated attention the rows of q have the gates behind them, and then attention's results. */
    struct mat q, att;
    /* In latent attention: the queries, of all heads first the rotated dimensions and then the
     * others, or the results of all heads; behind them the queries' latent. */
    struct mat latent;
    /* Of recurrent layers: beta and a, the channels, z, and the heads' results. */
    struct mat mix;
    struct mat kv;      /* K and V before they are rounded to kv_rows */
    struct mat up, ffn; /* gate and up; their product */
    /* With experts: the rows of one expert, the router's numbers f32, and the chosen experts and
     * their weights (experts.c). */
    struct mat rows, router;
    int32_t *experts;
    struct mat beside; /* results of experts beside an MLP */
    /* With embeddings of each layer: the tokens' own, T; the layer's gate and its embeddings */
    struct mat token_embd, layer_embd;
};

struct model_work {
    struct device *dev;
    int max_rows;
    int32_t *ids; /* row indices into the table of learned positions */
    struct buf mem[MAX_STAGES];
    struct activations at[MAX_STAGES];
    struct residual x; /* residual stream of model_forward */
};

/* Arguments of one layer over the rows of a batch. */
struct layer_call {
    const struct model *m;
    struct model_work *w;
    struct stream *s;
    int l;
    const struct layer_weights *lw;
    const int32_t *ids; /* of the rows; NULL: unknown, and no layer needs them */
    struct mat x, out,
        kv_rows; /* kv_rows is empty if the layer has no K and V of its own */
    const struct kv_layer *kv;
    const struct ragged *r;
};

/* Returns whether the head also multiplies what rounding leaves out of its rows: its weights have 8
 * bits, and the device has round_rest. */
bool model_head_is_fine(const struct model *m);
enum activation model_activation(enum act_kind a);
/* Returns the matrix that is the e-th run of n rows of w; n is a multiple of 16. */
struct weight weight_run(const struct model *m, const struct weight *w, int e, int64_t n);
/* Multiplies rows by a factor, in place. */
int scale_rows(const struct model *m, struct model_work *w, struct stream *s, struct mat x,
               float factor);

/* Queues the layer's operations, or makes the device replay them. */
int layer_forward(struct layer_call *c);
/* Brings a recurrent layer's states, kv, over the rows of its input h, as layer_forward does. */
int layer_advance(const struct model *m, struct model_work *w, struct stream *s, int l,
                  const struct layer_weights *lw, struct mat h, const struct kv_layer *kv,
                  const struct ragged *r);
/* Computes kv_rows = K (before RoPE) and V of layer l's input h. It gives the bits that
 * layer_forward computes from the same rows. */
int layer_kv(const struct model *m, struct model_work *w, struct stream *s, int l,
             const struct layer_weights *lw, struct mat h, struct mat kv_rows);
/* Fills m->rope for m->max_ctx positions; m->rope_mem owns the memory. */
int model_make_rope(struct model *m, struct stream *s, struct err *err);

/* Copies whole rows between two stages of a device group, or within one. */
int copy_to_stage(struct stream *s, struct mat to, struct mat from);

#endif
