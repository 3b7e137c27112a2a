/* zigzag.h - one forward pass over more rows than a layer's activations hold; private to
 * src/engine.
 *
 *   ordinary   [layer 0][layer 1] .. of rows 0..511,  [layer 0][layer 1] .. of rows 512..1023
 *   zig-zag    layer 0 [rows 0..511][rows 512..1023]  layer 1 [rows 0..511][rows 512..1023] ..
 *
 * The rows of a step are cut into *mini-batches*. Each layer is acquired once, all mini-batches
 * pass it one after the other, and it is released. So streamed weights are read once a step, for
 * any number of mini-batches (FlexGen; HybridServe, section 2.4).
 *
 * The residual stream of all rows is kept between two layers. Its memory is counted among the
 * activations. A step takes as long as all its mini-batches together, so zig-zag is for batch
 * jobs, never for interactive requests.
 *
 * Mini-batches are pieces of a pass (pass.h), so they change no bits. */
#ifndef ENGINE_ZIGZAG_H
#define ENGINE_ZIGZAG_H

#include "engine/step.h"
#include "model/pass.h"

struct zigzag {
    const struct model *model;
    int max_rows;   /* maximum rows of a step; 0: zig-zag is off */
    int piece_rows; /* most rows of a mini-batch */
    struct buf mem[MAX_STAGES];
    struct residual x;     /* [max_rows] rows on each stage */
    struct flight *pieces; /* [n_pieces] the present step's mini-batches */
    int n_pieces, cap_pieces;
    int layer, piece; /* layer and mini-batch at which a pass failed */
};

struct zigzag_opts {
    const struct model *model;
    int max_rows;   /* most rows of a step */
    int piece_rows; /* rows that a layer's activations hold */
    int max_seqs;   /* most sequences of a step */
    /* Another module cuts the mini-batches, at most one for each sequence. */
    bool by_sequence;
};

/* Returns the bytes of the residual stream on one stage; 0: zig-zag is off, since every step is
 * one mini-batch. */
size_t zigzag_bytes(const struct zigzag_opts *o);
int zigzag_init(struct zigzag *z, const struct zigzag_opts *o, struct err *err);
void zigzag_deinit(struct zigzag *z);

static inline bool zigzag_is_on(const struct zigzag *z)
{
    return z->max_rows > 0;
}

/* Cuts the batch into mini-batches of at most piece_rows rows. */
void zigzag_cut(struct zigzag *z, const struct step_batch *b);
/* For a caller that cuts the batch itself: zigzag_clear drops all mini-batches, and zigzag_add
 * appends one of rows [begin, end). */
void zigzag_clear(struct zigzag *z);
void zigzag_add(struct zigzag *z, const struct step_batch *b, int begin, int end);

/* Calls around each mini-batch in each layer. A code other than 0 ends the pass. */
struct zigzag_calls {
    /* The mini-batch is about to pass the layer. */
    int (*before)(void *arg, int layer, int piece);
    /* The mini-batch has passed the layer. */
    int (*behind)(void *arg, int layer, int piece);
    void *arg;
};
/* Takes all mini-batches through all layers. *x [o->n_rows][d]: the last layer's output, valid
 * until the next pass. Sets o->x. */
int zigzag_run(struct zigzag *z, struct model_pass_opts *o, const struct zigzag_calls *c,
               struct mat *x);

/* Return the rows [max_rows] of a layer's input and output, on the layer's stage. Valid while
 * mini-batches pass the layer. */
struct mat zigzag_input(const struct zigzag *z, int layer);
struct mat zigzag_output(const struct zigzag *z, int layer);

#endif
