/* collective.h - what the ranks of a device group say to each other.
 *
 * A *group* (group.h) is several devices that hold a share each of one model.  Between the
 * operations that a rank does on its own, ranks meet in one of two exchanges, the names and the
 * meaning of which are the field's.  Each is queued on the ranks' streams as operations are; on a
 * device that is no group both do nothing, and need not be called.
 *
 * Two forms: one for ranks that can reach each other's memory (the ranks of a CPU, or several
 * on one GPU; collective_memory.c), whose sum runs over the ranks in ascending order, so that
 * a row's bits depend on the number of ranks alone; and NCCL's (cuda/untried/nccl.c), one rank
 * a GPU, whose order is its own. */
#ifndef TENSOR_COLLECTIVE_H
#define TENSOR_COLLECTIVE_H

#include "tensor/tensor.h"

/* x [n][d] of every rank = the sum of x over all ranks, added as ops.add does. ld == cols. */
int all_reduce(struct stream *s, struct mat x);

/* out [n_ranks * n][c] of every rank = the ranks' in [n][c], one behind the other. ld == cols,
 * both of one type; in may be a rank's own part of out. */
int all_gather(struct stream *s, struct mat out, struct mat in);

#endif
