/* save_down.h - stage one of saving where the device has memory of its own (HCache §4.2.2).
 *
 *   compute stream  [ layer n ][ layer n+1 ][ layer n+2 ]
 *   copy stream                [ n down    ][ n+1 down  ]
 *   sorter thread                           [ rows of n into their chunks ] ...
 *
 * A layer of the whole batch comes down in one copy per matrix, into a ring of pinned memory,
 * behind an event of the compute stream; a thread of its own then copies rows to where the saver's
 * writer reads them.  The compute thread queues and goes on: it waits only where the ring is full
 * of layers that the device or the sorter have not done.
 *
 * The sorter's thread is a loop around a step (base/step.h).  save_down_has_sorted and
 * save_down_await may be called by any thread, all other functions by the compute thread alone. */
#ifndef STATE_SAVE_DOWN_H
#define STATE_SAVE_DOWN_H

#include <stdatomic.h>
#include <stdbool.h>

#include "tensor/tensor.h"

struct save_down;

struct save_down_opts {
    struct device *dev;
    size_t ring_bytes; /* at least three layers of the largest batch */
    int max_moves;     /* of one layer */
};
int save_down_create(const struct save_down_opts *o, struct save_down **out,
                     struct err *err);
/* Waits for what is queued. NULL is allowed. */
void save_down_destroy(struct save_down *d);
size_t save_down_bytes(const struct save_down *d);

/* One layer: begin, then a copy of each matrix that is wanted and the moves out of it, then
 * end.  A fault of the device on the way is told by end, which then has queued nothing. */
void save_down_begin(struct save_down *d);
/* Where rows [row, row + n) of m will be in host memory: rank 0's or, of each rank's
 * own, all ranks' side by side. */
const uint8_t *save_down_rows(struct save_down *d, struct mat m, bool is_rank_own,
                              int64_t row, int64_t n);
/* n_bytes from there to `to`.  *lost becomes true where the copy fails. */
void save_down_move(struct save_down *d, uint8_t *to, const uint8_t *from, size_t n_bytes,
                    atomic_bool *lost);
/* `s` computed the matrices.  It may overwrite them once it has been given the layer after the
 * next: what it gets from the next save_down_end on waits for this copy. */
int save_down_end(struct save_down *d, struct stream *s);
/* What s gets from now on may overwrite all of them. */
int save_down_join(struct save_down *d, struct stream *s);

/* Returns how many layers were queued so far. */
uint64_t save_down_queued(const struct save_down *d);
/* Returns whether the rows of the first n layers are in their chunks. Any thread. */
bool save_down_has_sorted(struct save_down *d, uint64_t n);
/* Waits for that. Any thread. */
void save_down_await(struct save_down *d, uint64_t n);

#endif
