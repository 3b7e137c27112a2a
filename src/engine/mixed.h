/* mixed.h - a step over contexts whose blocks are KV or ACT, on the device or on the host
 * (HybridServe's hybrid cache, section 4.2); private to src/engine.
 *
 * A sequence's block table names blocks of places.h.  The rows of a step are cut into mini-batches
 * of whole sequences (policy/minibatch.h).  In each layer each mini-batch takes three ways:
 *
 *   link      [load 1: host KV -> scratch, host ACT -> staging][load 2 ..
 *   compute   [project 0: ACT -> scratch][layer 0, attention over all blocks][store 0][project 1 ..
 *
 * While one mini-batch computes, the blocks of the next one come over the link into the other
 * buffer, also from one layer to the next.  *Project* is the restore's projection: norm, W_k W_v,
 * RoPE, so the K and V of an ACT block have the bits that were never dropped.  Attention reads all
 * blocks through a table of block numbers.  *Store* takes what the layer wrote to its place:
 *
 *   a KV block on the device   is written where it lies
 *   another unfinished block   lies in the sequence's tail; its 64th row finishes it
 *   a finished KV block        goes to the host
 *   the rows of an ACT block   go to its place, the layer's input as it was
 *   a TOKENS block             goes nowhere
 *
 * A TOKENS block has no memory.  Rows up to the last one of a sequence pass the layers again in
 * each step, in front of its new rows, and their K and V lie in scratch blocks meanwhile.
 *
 * Invariants:
 *  1. A block that is not in the present mini-batch's rows was stored in an earlier step: a load
 *     reads nothing that the step writes.
 *  2. A buffer is loaded again only behind the last operation that used it.
 *  3. Where blocks lie changes no bits.
 *
 * One device, no group, no store.  Everything belongs to the thread that steps. */
#ifndef ENGINE_MIXED_H
#define ENGINE_MIXED_H

#include "engine/zigzag.h"
#include "kvcache/kvcache.h"
#include "kvcache/places.h"
#include "policy/minibatch.h"

struct step_batch;

/* Which mini-batch a sequence joins. */
enum mixed_packing {
    MIXED_BALANCED, /* minibatch_form, MINIBATCH_BALANCED */
    MIXED_PAPER,    /* minibatch_form, MINIBATCH_PAPER */
    MIXED_IN_ORDER, /* as they come: to compare */
};

struct mixed_opts {
    int n[PLACES_CLASSES]; /* blocks of each class */
    /* Equation 11: ACT and KV blocks of a sequence stand in this ratio while there
     * are such blocks. */
    double act_share, kv_share;
    int token_blocks; /* of a sequence: its first ones are TOKENS blocks while there are some */
    /* Blocks of one of the two buffers; at least a context's. 0: as many as needed, or 64 MiB. */
    int buffer_blocks;
    enum mixed_packing packing;
    struct hybrid_machine machine; /* costs, for mini-batches; all 0: blocks are counted */
    double
        link_bytes_per_s; /* the link is slowed down to this; 0: it is as fast as it is */
    /* For benchmarks: of each layer, that come over the link before its blocks.  They stand for
     * streamed weights; nothing reads them. */
    size_t weights_bytes;
    /* For tests: overrides the ratio. Same contract as kv_pool_numbers.order. */
    const int *(*order)(void *arg, const struct kv_table *t);
    void *order_arg;
};

struct mixed_stats {
    uint64_t n_steps, n_minibatches;
    uint64_t up_bytes;    /* over the link, from the host */
    uint64_t down_bytes;  /* finished KV blocks and rows of ACT blocks, to the host */
    uint64_t n_projected; /* ACT blocks times layers */
    uint64_t n_again;     /* rows of TOKENS blocks */
};

/* A sequence of the present step. */
struct mixed_seq {
    int32_t
        *where; /* [n_blocks] a number of every layer's view, or -1 - i: scratch block i */
    int32_t *number; /* [n_blocks] in the present layer's view: the block table */
    int n_blocks;    /* that its rows see */
    int first;       /* block of its first row; those before are only read */
    int again; /* of these, the first so many are computed again: up to the last TOKENS block */
};

/* An ACT block that a mini-batch projects into the scratch block of the same index. */
struct mixed_act {
    int seq, block; /* of the batch; of its table */
};

struct mixed_mini {
    int first_seq, end_seq, first_row, first_piece, end_piece;
    int first_act, n_act; /* of mixed.acts */
    int n_scratch;        /* ACT blocks, then KV blocks of the host, then written ones */
};

struct mixed {
    struct mixed_opts o;
    const struct model *model; /* NULL: the pool's blocks are all KV on the device */
    struct model_work *work;
    struct stream *stream, *link;
    struct event *loaded[2], *done[2]; /* of each buffer */
    struct places places;
    struct buf weights_host, weights; /* of weights_bytes */
    struct zigzag *zigzag;
    struct step_batch *batch; /* the present one */
    int max_seqs;
    struct mixed_seq *seqs;   /* [max_seqs], as the batch has them */
    struct mixed_mini *minis; /* [max_seqs] */
    struct mixed_act *acts;
    int n_minis, n_acts;
    int now; /* the mini-batch that computes */
    unsigned
        /* mini-batches times layers so far in this step: the buffer's number is its last bit */
        turn;
    int32_t *numbers; /* room for where and number */
    /* Of a projection: */
    int project_blocks; /* at once */
    struct buf kv_mem;
    struct mat kv_rows;
    int32_t *pos, *seq_row;
    const int32_t **tables;
    /* Of mini-batches being formed: [max_seqs] */
    struct minibatch_request *requests;
    int *of;
    struct seq **order;
    int *order_rows;
    struct mixed_stats stats;
};

/* What o takes for max_seqs sequences of max_ctx tokens. */
void mixed_places(const struct mixed_opts *o, const struct model *m, int max_seqs,
                  struct places_opts *out);
/* ERR_UNSUPPORTED on a device group. */
int mixed_init(struct mixed *x, const struct mixed_opts *o, const struct model *m,
               struct model_work *work, struct stream *s, struct zigzag *z, int max_seqs,
               struct err *err);
void mixed_deinit(struct mixed *x);

static inline bool mixed_is_on(const struct mixed *x)
{
    return x->model != NULL;
}

/* For kv_pool_opts. Points to x. */
struct kv_pool_numbers mixed_numbers(struct mixed *x);

/* Forms mini-batches and puts the batch's sequences into their order. */
void mixed_arrange(struct mixed *x, struct step_batch *b);
/* The calls of zigzag_run, with x as their argument. */
int mixed_before(void *arg, int layer, int piece);
int mixed_behind(void *arg, int layer, int piece);
/* The pass has ended; rc: how.  Afterwards nothing is under way. */
int mixed_end(struct mixed *x, int rc);

#endif
