/* zigzag.h - one forward pass over more rows than a layer's activations hold; private
 * to src/engine.
 *
 *   ordinary   [layer 0][layer 1] .. of rows 0..511,  [layer 0][layer 1] .. of rows 512..1023
 *   zig-zag    layer 0 [rows 0..511][rows 512..1023]  layer 1 [rows 0..511][rows 512..1023] ..
 *
 * The rows of a step are cut into *mini-batches*.  Each layer is acquired once, all mini-batches
 * pass it one after the other, and it is released.  So streamed weights are read once a step,
 * however many mini-batches there are (FlexGen; HybridServe, section 2.4).
 *
 * The residual stream of all rows is kept between two layers.  Its memory is counted among the
 * activations.  A step takes as long as all of its mini-batches: this is for jobs without readers,
 * never for interactive requests.
 *
 * Mini-batches are pieces of a pass (pass.h), so they change no bits. */
#ifndef ENGINE_ZIGZAG_H
#define ENGINE_ZIGZAG_H

#include "engine/flight.h"
#include "model/pass.h"

struct zigzag {
    const struct model *model;
    int max_rows;   /* of a step; 0: zig-zag is off */
    int piece_rows; /* of a mini-batch */
    struct buf mem[MAX_STAGES];
    struct residual x;     /* [max_rows] rows on each stage */
    struct flight *pieces; /* [n_pieces] the present step's mini-batches */
    int n_pieces, cap_pieces;
    int layer, piece; /* of a pass that failed: where */
};

struct zigzag_opts {
    const struct model *model;
    int max_rows;   /* of a step */
    int piece_rows; /* that a layer's activations hold */
    int max_seqs;   /* of a step */
    /* Mini-batches are cut for other reasons than their rows: at most one for each sequence. */
    bool by_sequence;
};

/* Bytes of the residual stream on one stage. 0: zig-zag is off, since every step is
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
/* The same by hand: no mini-batches; rows [begin, end) are the next ones. */
void zigzag_clear(struct zigzag *z);
void zigzag_add(struct zigzag *z, const struct step_batch *b, int begin, int end);

/* A code other than 0 ends the pass. */
struct zigzag_calls {
    int (*before)(void *arg, int layer,
                  int piece); /* the piece is about to pass the layer */
    int (*behind)(void *arg, int layer, int piece); /* it has passed */
    void *arg;
};
/* All mini-batches pass all layers. *x [o->n_rows][d]: the last layer's output, valid until the
 * next pass.  o->x is set here. */
int zigzag_run(struct zigzag *z, struct model_pass_opts *o, const struct zigzag_calls *c,
               struct mat *x);

/* The rows [max_rows] of a layer's input, and of its output, on its stage: valid
 * while pieces pass the layer. */
struct mat zigzag_input(const struct zigzag *z, int layer);
struct mat zigzag_output(const struct zigzag *z, int layer);

#endif
