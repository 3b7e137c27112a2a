/* mixed.h - steps over contexts whose blocks are KV or ACT, on the device or on the host
 * (HybridServe's hybrid cache, section 4.2); private to src/engine.
 *
 * A sequence's block table names blocks of places.h. The rows of a step are cut into
 * mini-batches of whole sequences (engine/minibatch.h). In each layer every mini-batch goes
 * through three parts:
 *
 *   link      [load 1: host KV -> scratch, host ACT -> staging][load 2 ..
 *   compute   [project 0: ACT -> scratch][layer 0, attention over all blocks][store 0][project 1 ..
 *
 * While one mini-batch computes, the blocks of the next one come over the link into the other
 * buffer, also from one layer to the next. *Project* is the restore's projection: norm, W_k W_v,
 * RoPE. So the K and V of an ACT block have the bits of K and V that were never dropped.
 * Attention reads all blocks through a table of block numbers. *Store* takes the layer's results
 * to their place:
 *
 *   a KV block on the device   is written where it lies
 *   another unfinished block   lies in the sequence's tail (places.h); its 64th row finishes it
 *   a finished KV block        goes to the host
 *   the rows of an ACT block   go to its place: the layer's input, unchanged
 *
 * Invariants:
 *  1. A block outside the present mini-batch's rows was stored in an earlier step, so a load never
 *     reads what the step writes.
 *  2. A buffer is loaded again only behind the last operation that used it.
 *  3. The place of a block changes no bits.
 *
 * One device, no group, no store. Everything belongs to the thread that steps. */
#ifndef ENGINE_MIXED_H
#define ENGINE_MIXED_H

#include "engine/zigzag.h"
#include "restore/kvcache.h"
#include "engine/places.h"
#include "engine/minibatch.h"

struct step_batch;

/* Maximum number of blocks of all classes together: their tokens are counted in 31 bits. */
enum { MIXED_MAX_BLOCKS = INT32_MAX / KV_BLOCK_TOKENS };

struct mixed_opts {
    int n[PLACES_CLASSES]; /* blocks of each class, at most MIXED_MAX_BLOCKS together */
    /* HybridServe's equation 11: the ratio of ACT to KV blocks of a sequence, while blocks of both
     * types are left. */
    double act_share, kv_share;
    /* The decision of hybrid_choose (engine/hybrid.h). If split.fits and machine.n_requests is the
     * number of sequences, each sequence has the ratio that hybrid_share_requests gives to its
     * place. */
    struct hybrid_split split;
    /* Blocks of each of the two buffers, at least one context's. 0: as many as needed, at most
     * 64 MiB. */
    int buffer_blocks;
    enum minibatch_method packing;
    /* Costs by which mini-batches are formed. All 0: mini-batches are formed by their numbers of
     * blocks. */
    struct hybrid_machine machine;
    /* Slows the link down to this speed; 0: the link's own speed. */
    double link_bytes_per_s;
    /* For benchmarks: bytes of each layer that come over the link, a part before the blocks of each
     * mini-batch. They stand for the streamed weights of the next layer; nothing reads them. */
    size_t weights_bytes;
    /* For tests: overrides the ratio. Same contract as kv_pool_numbers.order. */
    const int *(*order)(void *arg, const struct kv_table *t);
    void *order_arg;
};

struct mixed_stats {
    uint64_t n_steps, n_minibatches;
    uint64_t up_bytes; /* bytes that came from the host over the link */
    /* Bytes that went to the host over the link: finished KV blocks and rows of ACT blocks. */
    uint64_t down_bytes;
    uint64_t n_projected; /* projected ACT blocks, counted once per layer */
};

/* A sequence of the present step. */
struct mixed_seq {
    /* [n_blocks] the number of each block, which is the same in every layer's view; -1 - i: the
     * block lies in scratch block i. */
    int32_t *where;
    /* [n_blocks] the block table: block numbers in the present layer's view. */
    int32_t *number;
    int n_blocks; /* number of blocks that the sequence's rows attend to */
    /* Index of the block of the first new row; the blocks before it are only read. */
    int first;
};

/* An ACT block. A mini-batch projects its i-th ACT block into its i-th scratch block. */
struct mixed_act {
    int seq;   /* index of the sequence in the batch */
    int block; /* index in the sequence's table */
};

struct mixed_mini {
    int first_seq, end_seq, first_row, first_piece, end_piece;
    /* acts[first_act, first_act + n_act) of struct mixed are this mini-batch's. */
    int first_act, n_act;
    /* Number of scratch blocks: first those of ACT blocks, then those of KV blocks on the host,
     * then those that the step's rows are written to. */
    int n_scratch;
};

struct mixed {
    struct mixed_opts o;
    const struct model *model; /* NULL: the pool's blocks are all KV on the device */
    struct model_work *work;
    struct stream *stream, *link;
    /* For each buffer: the events that were recorded after its last load and after its last use. */
    struct event *loaded[2], *done[2];
    struct places places;
    struct buf weights_host, weights; /* opts.weights_bytes each */
    struct zigzag *zigzag;
    struct step_batch *batch; /* the present step's batch */
    int max_seqs;
    struct mixed_seq *seqs;   /* [max_seqs], in the batch's order */
    struct mixed_mini *minis; /* [max_seqs] */
    struct mixed_act *acts;
    int n_minis, n_acts;
    int now; /* the mini-batch that computes */
    /* Number of mini-batches that have passed a layer in this step, summed over layers. The lowest
     * bit selects the buffer. */
    unsigned turn;
    /* [max_seqs] number of ACT blocks of a full context in each place. NULL: opts.act_share holds
     * for all places. */
    int64_t *share;
    double share_blocks; /* number of blocks of a full context, for `share` */
    int32_t *numbers;    /* memory of `where` and `number` of all sequences */
    /* Memory of one projection: */
    int project_blocks; /* most blocks that one projection takes */
    struct buf kv_mem;
    struct mat kv_rows;
    int32_t *pos, *seq_row;
    const int32_t **tables;
    /* Scratch for forming mini-batches: [max_seqs] */
    struct minibatch_request *requests;
    struct minibatch *bins;
    int *of; /* mini-batch of each sequence, before they are reordered */
    struct mixed_order {
        struct seq *s;
        int n_rows;
        int bin; /* the mini-batch to which s was assigned */
    } * order;
    struct mixed_stats stats;
};

/* Computes the memory that o takes for max_seqs sequences of max_ctx tokens. */
void mixed_places(const struct mixed_opts *o, const struct model *m, int max_seqs,
                  struct places_opts *out);
/* Initialises x and allocates all its memory. Returns ERR_UNSUPPORTED on a device group. */
int mixed_init(struct mixed *x, const struct mixed_opts *o, const struct model *m,
               struct model_work *work, struct stream *s, struct zigzag *z, int max_seqs,
               struct err *err);
void mixed_deinit(struct mixed *x);

static inline bool mixed_is_on(const struct mixed *x)
{
    return x->model != NULL;
}

/* Returns the block numbering for kv_pool_opts. The result points to x. */
struct kv_pool_numbers mixed_numbers(struct mixed *x);

/* Forms mini-batches and puts the batch's sequences into their order. */
void mixed_arrange(struct mixed *x, struct step_batch *b);
/* Functions for struct zigzag_calls, whose arg is x. */
int mixed_before(void *arg, int layer, int piece);
int mixed_behind(void *arg, int layer, int piece);
/* Ends the pass, whose result was rc. No transfer is under way afterwards. */
int mixed_end(struct mixed *x, int rc);

#endif
