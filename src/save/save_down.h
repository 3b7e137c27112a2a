/* save_down.h - stage one of saving on a device that has memory of its own (HCache §4.2.2).
 *
 *   compute stream  [ layer n ][ layer n+1 ][ layer n+2 ]
 *   copy stream                [ n down    ][ n+1 down  ]
 *   sorter thread                           [ rows of n into their chunks ] ...
 *
 * A layer of the whole batch comes down in one copy per matrix, into a ring of pinned memory,
 * behind an event of the compute stream. The sorter thread then copies the rows into the chunks,
 * where the saver's writer reads them. The compute thread queues and goes on. It waits only if
 * the ring is full of layers that the device or the sorter has not done.
 *
 * The sorter's thread is a loop around a step (base/step.h). Any thread may call
 * save_down_has_sorted and save_down_await; only the compute thread may call the other
 * functions. */
#ifndef SAVE_SAVE_DOWN_H
#define SAVE_SAVE_DOWN_H

#include <stdatomic.h>
#include <stdbool.h>

#include "tensor/tensor.h"

struct save_down;

struct save_down_opts {
    struct device *dev;
    size_t ring_bytes; /* at least three layers of the largest batch */
    int max_moves;     /* most moves of one layer */
};
int save_down_create(const struct save_down_opts *o, struct save_down **out,
                     struct err *err);
/* Waits for queued work. NULL is allowed. */
void save_down_destroy(struct save_down *d);
size_t save_down_bytes(const struct save_down *d);

/* To bring one layer down, call begin, then rows and move for each wanted matrix, then end. If the
 * device fails on the way, end returns the fault and has queued nothing. */
void save_down_begin(struct save_down *d);
/* Returns the host address where rows [row, row + n) of m will be. With is_rank_own every rank
 * has its own heads, which come down side by side; otherwise rank 0's rows come down. */
const uint8_t *save_down_rows(struct save_down *d, struct mat m, bool is_rank_own,
                              int64_t row, int64_t n);
/* Copies n_bytes from an address that save_down_rows returned to `to`, after the rows have come
 * down. *lost becomes true if the copy down fails. */
void save_down_move(struct save_down *d, uint8_t *to, const uint8_t *from, size_t n_bytes,
                    atomic_bool *lost);
/* Ends a layer, whose matrices `s` computed. Work that is queued on s behind the next save_down_end
 * waits for this layer's copy, so it may overwrite these matrices. */
int save_down_end(struct save_down *d, struct stream *s);
/* Makes s wait for all copies: work queued on s from now on may overwrite the matrices. */
int save_down_join(struct save_down *d, struct stream *s);

/* Returns how many layers were queued so far. */
uint64_t save_down_queued(const struct save_down *d);
/* Returns whether the rows of the first n layers are in their chunks. Any thread. */
bool save_down_has_sorted(struct save_down *d, uint64_t n);
/* Waits until save_down_has_sorted(d, n). Any thread. */
void save_down_await(struct save_down *d, uint64_t n);

#endif
