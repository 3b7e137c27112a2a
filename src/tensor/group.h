/* group.h - several devices as one: tensor and pipeline parallelism, below everything
 * that knows a model.
 *
 *                       group (a struct device)
 *   operation on        stage 0:  rank 0  rank 1        the operation, by each rank of the stage that has the
 *   a stage's   ----->  stage 1:  rank 0  rank 1        operands, on the rank's own copy of them
 *   memory              ...       ... one caller queues them all
 *   all_reduce  ----->  the ranks of a stage meet (collective.h)
 *   stream_copy from a stage's memory to another's: each rank hands over to its counterpart
 *
 * A *stage* has some of the model's layers, a *rank* a share of each of its stage's.  Memory of
 * kind MEM_DEVICE lies on one stage, once on every rank of it, and is named by the address that
 * rank 0 has: an address says its stage, and so where what is done with it is done.  All operands
 * of an operation are one stage's (a bug, else), or host memory, which exists once and which
 * everybody sees.  What makes the ranks of a stage differ is only what was put there: each rank's
 * share of the weights (rank_stream, rank_address) and so of heads, keys and values.
 *
 *   stream_copy   device <- device: every rank in its own memory;  host <- device: from rank 0
 *                 device <- host: to every rank of the stage; a large copy to devices with memory
 *                 of their own goes up in disjoint shares, a share a rank, which are then gathered
 *                 (paper section 5), so that each rank's bus carries a share; K and V by heads,
 *                 see kv_chunks_up stage <- another stage: after what is queued for both, and
 *                 before what follows
 *   kv_load       the chunk is the ranks' chunks one behind the other: each takes its own heads
 *   kv_pack       makes such a chunk, from rows that hold the ranks' [K, V] one beside the other
 *   kv_fill       takes rows of a rank's own width, or such rows: then each rank takes its columns
 *   kv_read       gives such rows
 *   all_finite, weight_bytes: rank 0 answers for all
 *
 * A stream is in order within a stage, and between stages where something is copied from one to
 * the other: else they run beside each other.  Events mark and wait for all stages.
 *
 * One thread runs the ranks: on CPUs one after the other, each with all the workers; on GPUs each
 * rank's work is queued, so that they run beside each other.  What is recorded (ops.record) each
 * rank records by itself, between exchanges.
 *
 * A fault of one rank is the group's: its stream fails, and what the others have
 * computed is not used. */
#ifndef TENSOR_GROUP_H
#define TENSOR_GROUP_H

#include "base/run.h"
#include "tensor/ops.h"
#include "tensor/tensor.h"

enum {
    MAX_RANKS = 16, /* devices of a group, in all its stages */
    MAX_STAGES = MAX_RANKS,
};

/* Opens n_stages times n_ranks (1 to MAX_RANKS) devices of this name as one; of one, that
 * device itself. Rank r of stage k is device k * n_ranks + r of its kind. */
int group_open(const char *name, const struct device_opts *o, int n_ranks, int n_stages,
               struct pool *pool, struct device **out, struct err *err);

/* Which stage has the i-th of n things: runs of equal length, or one more. */
static inline int stage_of(int i, int n, int n_stages)
{
    return run_of(i, n, n_stages);
}

/* Device memory on one stage, or as much on each (out[0] to out[n_stages - 1]); buf_alloc's is
 * on stage 0. A device that is no group is stage 0.  buf_free takes either. */
int stage_alloc(struct device *d, int stage, size_t bytes, struct buf *out,
                struct err *err);
int stages_alloc(struct device *d, size_t bytes, struct buf out[MAX_STAGES],
                 struct err *err);
void stages_free(struct device *d, struct buf b[MAX_STAGES]);
/* Takes bytes[k] of the memory of each rank of stage k at once: what is allocated
 * from then on is cut from that. For devices with memory of their own; nothing
 * where memory is unified. Once. */
int stages_reserve(struct device *d, const size_t bytes[MAX_STAGES], struct err *err);

/* What differs from rank to rank is said to each of them: its stream, whose device
 * has its operations, and its address of device memory that its stage has (host
 * memory: the same).  Rank 0 of a device that is no group is the device.  Work queued
 * here is ordered with the group's. */
struct stream *rank_stream(struct stream *s, int stage, int rank);
void *rank_address(const struct device *d, const void *p, int rank);

/* n chunks of `bytes`, `stride` apart on both sides, from the host to a stage: as kv_load takes
 * them, whole.  Each rank takes its own heads of each (paper section 5), so each bus carries a
 * share and nothing is gathered: of the others' heads nothing is written. A device that is no
 * group takes all, with what lies between them. */
int kv_chunks_up(struct stream *s, void *dst, const void *src, int n, size_t stride,
                 size_t bytes);
/* The way back: host rows [own.rows][n_ranks * own.cols] of the ranks' own, side by side. */
int kv_rows_down(struct stream *s, void *dst, struct mat own);

#endif
