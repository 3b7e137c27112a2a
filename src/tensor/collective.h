/* collective.h - the exchange between the ranks of a device group.
 *
 * A *group* (group.h) is several devices, each with a share of one model.  Between operations that
 * a rank does alone, ranks gather each other's results.  The exchange is queued on the ranks'
 * streams, like an operation.  Numbers are moved and never added, so every number of ranks gives
 * the bits of one.  On a device that is not a group all_gather does nothing and need not be called.
 *
 * There are two implementations.  collective_memory.c is for ranks that can reach each other's
 * memory (the ranks of a CPU, or several on one GPU); cuda/untried/nccl.c uses NCCL, with one rank
 * per GPU. */
#ifndef TENSOR_COLLECTIVE_H
#define TENSOR_COLLECTIVE_H

#include "tensor/tensor.h"

/* Sets out [n][n_ranks * c] on every rank to the `in` [n][c] of all ranks, side by side.
 * ld == cols, and both have the same type; of one row, `in` may be the rank's own part of out.
 * Returns 0 or the stream's sticky error. */
int all_gather(struct stream *s, struct mat out, struct mat in);

#endif
