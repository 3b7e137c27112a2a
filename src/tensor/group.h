/* group.h - several devices used as one: tensor and pipeline parallelism, below all code that knows
 * a model.  Each device is a process (peers.h): the first one is this.
 *
 *                       group (a struct device)
 *   operation on        stage 0:  rank 0  rank 1        each rank of the stage that has the operands
 *   a stage's   ----->  stage 1:  rank 0  rank 1        does the operation on its own copy of them
 *   memory              ...       ... one caller queues them all
 *   all_gather  ----->  the ranks of a stage meet
 *   stream_copy between the memory of two stages: each rank copies to its counterpart
 *
 * A *stage* has some of the model's layers; a *rank* has a share of each of its stage's layers.
 * Memory of kind MEM_DEVICE lies on one stage, with a copy on each of its ranks, and is named by
 * rank 0's address.  So an address tells the stage, and thereby where an operation runs.  All
 * operands of an operation must lie on one stage (anything else is a bug), or in host memory, which
 * exists once and which all ranks see.  The ranks of a stage differ only in the contents of their
 * memory: each has its share of the weights (rank_stream, rank_address), and so of heads, keys and
 * values.
 *
 *   stream_copy   device <- device: every rank in its own memory
 *                 host <- device: from rank 0
 *                 device <- host: to every rank of the stage. A large copy goes up in disjoint
 *                 shares, one per rank, which are then gathered (HCache paper, section 5), so that
 *                 each rank's link carries only its share. K and V go up by heads, see
 *                 kv_chunks_up.
 *                 stage <- another stage: after the work queued on both, before later work
 *   kv_load       takes the chunks of one device: each rank loads its own heads
 *   kv_pack       makes the chunk that one device makes
 *   kv_fill       takes rows of a rank's own width, or those of one device: each rank then takes its
 *                 heads
 *   kv_read       returns rows of either kind
 *   all_finite, weight_bytes: rank 0 answers for all ranks
 *
 * A stream runs in order within a stage.  Between stages only copies impose an order; other work
 * runs concurrently.  Events mark and wait for all stages.
 *
 * One thread queues the work of all ranks, and they compute at the same time.
 *
 * A fault of one rank is a fault of the group: its stream fails, and the results of the other ranks
 * are not used. */
#ifndef TENSOR_GROUP_H
#define TENSOR_GROUP_H

#include "base/hash.h"
#include "base/run.h"
#include "tensor/ops.h"
#include "tensor/tensor.h"

enum {
    MAX_RANKS = 16, /* devices of a group, all stages together */
    MAX_STAGES = MAX_RANKS,
};

/* Opens n_stages times n_ranks (1 to MAX_RANKS) devices of this name as a group; if the product is
 * 1, the device itself. Rank r of stage k is device and process number k * n_ranks + r.
 * ERR_UNSUPPORTED: the device is a GPU, or the processes do not exist. */
int group_open(const char *name, const struct device_opts *o, int n_ranks, int n_stages,
               struct pool *pool, struct device **out, struct err *err);

/* Returns the stage of the i-th of n things: stages have runs whose lengths differ by at most one.
 */
static inline int stage_of(int i, int n, int n_stages)
{
    return run_of(i, n, n_stages);
}

/* Allocate device memory on one stage, or the same amount on each (out[0] to out[n_stages - 1]).
 * buf_alloc allocates on stage 0. A device that is not a group is stage 0.  buf_free frees either.
 */
int stage_alloc(struct device *d, int stage, size_t bytes, struct buf *out,
                struct err *err);
int stages_alloc(struct device *d, size_t bytes, struct buf out[MAX_STAGES],
                 struct err *err);
void stages_free(struct device *d, struct buf b[MAX_STAGES]);
/* Reserves bytes[0] of a GPU's memory; later allocations are cut from it. Does nothing on a CPU and
 * for a group. Call it once. */
int stages_reserve(struct device *d, const size_t bytes[MAX_STAGES], struct err *err);

/* For work that differs between ranks.  rank_stream returns a rank's own stream, whose device has
 * the rank's operations; work queued on it is ordered with the group's.  rank_address returns a
 * rank's own address of device memory of its stage; for host memory the same address.  A device
 * that is not a group is its own rank 0. */
struct stream *rank_stream(struct stream *s, int stage, int rank);
void *rank_address(const struct device *d, const void *p, int rank);

/* Sets out [n][n_ranks * c] on every rank to the `in` [n][c] of all ranks, side by side. Numbers
 * are moved and never added, so every number of ranks gives the bits of one. Both matrices have ld
 * == cols and one type. If n is 1, `in` may be the rank's own part of `out`. With one rank it does
 * nothing and need not be called. Returns 0 or the stream's sticky error. */
int all_gather(struct stream *s, struct mat out, struct mat in);

/* Returns whether every rank of another process has the same files as `source`, which have
 * n_tensors tensors and this hash (model/weights_rows.h). If not, says why in the log. */
bool ranks_have_file(struct device *d, const char *source, int n_tensors,
                     const struct sha256 *hash);
/* Has a rank of another process read rows [row, row + n) of the number-th tensor of that file and
 * pack them as rows from dst_row on of w. */
int rank_read_rows(struct stream *s, const struct weight *w, int64_t dst_row, int number,
                   int64_t row, int64_t n);

/* Copies n whole chunks of `bytes`, `stride` apart on both sides, from the host to a stage, as
 * kv_load takes them.  Each rank takes only its own heads (HCache paper, section 5), so each bus
 * carries a share and nothing is gathered; memory for the other heads is not written. A device that
 * is not a group copies everything, including the bytes between chunks. */
int kv_chunks_up(struct stream *s, void *dst, const void *src, int n, size_t stride,
                 size_t bytes);
/* Copies rows [K, V] from a stage to the host: fills host rows [own.rows][n_ranks * own.cols] from
 * the ranks' own rows: all heads of K, then all heads of V. */
int kv_rows_down(struct stream *s, void *dst, struct mat own);

#endif
