/* group.h - several devices as one: tensor parallelism, below everything that knows a model.
 *
 *                       group (a struct device)
 *   operation  ------>  rank 0: the same operation on rank 0's memory
 *                       rank 1: the same operation on rank 1's memory      ... one caller queues them all
 *   all_reduce ------>  the ranks meet (collective.h)
 *
 * Memory of kind MEM_DEVICE exists once on every rank, and is named by rank 0's address: an operation of
 * the group is the operation of every rank on that rank's copy.  What makes the ranks differ is only what
 * was put there: each rank's share of the weights (rank_stream, rank_address) and so of heads, keys and
 * values.  Host memory exists once, and every rank sees it.
 *
 *   stream_copy   device <- device: every rank in its own memory;  host <- device: from rank 0
 *                 device <- host: to every rank; a large copy to devices with memory of their own goes up
 *                 in disjoint shares, a share a rank, which are then gathered (paper section 5), so that
 *                 each rank's bus carries a share
 *   kv_load       the chunk is the ranks' chunks one behind the other: each takes its own heads
 *   kv_pack       makes such a chunk, from rows that hold the ranks' [K, V] one beside the other
 *   kv_fill       takes rows of a rank's own width, or such rows: then each rank takes its columns
 *   kv_read       gives such rows
 *   all_finite, weight_bytes: rank 0 answers for all
 *
 * One thread runs the ranks: on CPUs one after the other, each with all the workers; on GPUs each rank's
 * work is queued, so that they run beside each other.  Nothing is recorded (ops.record): a decode on
 * several GPUs is queued kernel by kernel.
 *
 * A fault of one rank is the group's: its stream fails, and what the others have computed is not used. */
#ifndef TENSOR_GROUP_H
#define TENSOR_GROUP_H

#include "tensor/ops.h"
#include "tensor/tensor.h"

enum { MAX_RANKS = 16 };

/* Opens n_ranks (1 to MAX_RANKS) devices of this name as one; of one, that device itself. */
int group_open(const char *name, int n_ranks, struct pool *pool, struct device **out,
               struct err *err);

/* What differs from rank to rank is said to each of them: its stream, whose device has its operations,
 * and its address of device memory that the group has (host memory: the same).  Rank 0 of a device that is
 * no group is the device.  Work queued here is ordered with the group's. */
struct stream *rank_stream(struct stream *s, int rank);
void *rank_address(const struct device *d, const void *p, int rank);

#endif
