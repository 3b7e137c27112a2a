/* collective.h - exchanges between the ranks of a device group.
 *
 * A *group* (group.h) is several devices, each with a share of one model.  Between operations that
 * a rank does alone, ranks meet in one of two exchanges, which have their usual names and meanings.
 * Each is queued on the ranks' streams, like an operation.  On a device that is not a group both do
 * nothing and need not be called.
 *
 * There are two implementations.  collective_memory.c is for ranks that can reach each other's
 * memory (the ranks of a CPU, or several on one GPU); its sum runs over the ranks in ascending
 * order, so a row's bits depend only on the number of ranks.  cuda/untried/nccl.c uses NCCL, with
 * one rank per GPU; NCCL chooses the order. */
#ifndef TENSOR_COLLECTIVE_H
#define TENSOR_COLLECTIVE_H

#include "tensor/tensor.h"

/* Both return 0 or the stream's sticky error. */

/* Sets x [n][d] on every rank to the sum of all ranks' x, added as by ops.add. ld == cols. */
int all_reduce(struct stream *s, struct mat x);

/* Sets out [n_ranks * n][c] on every rank to the `in` [n][c] of all ranks, one after another. ld ==
 * cols, and both have the same type; `in` may be the rank's own part of out. */
int all_gather(struct stream *s, struct mat out, struct mat in);

#endif
