/* flight.h - a batch in pieces that follow one another through the stages of a device group;
 * private to src/engine.
 *
 *   stage 0   [ rows 0..127 ][ 128..255 ][ 256..383 ][ 384..511 ]
 *   stage 1                  [ rows 0..127 ][ 128..255 ][ 256..383 ][ 384..511 ]
 *
 * A forward pass goes through the stages one after the other.  Where these are devices of their
 * own, and the batch has rows enough, it is cut into pieces of equal length, which are queued one
 * behind the other: while a stage has one, the stage before it has the next.  Each stage gets them
 * in order, so a row finds the K and V of the rows before it, and results do not depend on the cut
 * as far as the device's do not (ops.h).
 *
 * A piece has at least FLIGHT_ROWS rows: with fewer, its time is that of reading the weights, which
 * would be read once more for each piece.  So decodes go as one. */
#ifndef ENGINE_FLIGHT_H
#define ENGINE_FLIGHT_H

#include "state/saver.h"
#include "tensor/ops.h"

struct step_batch;

enum { FLIGHT_ROWS = 128 };

/* A piece of a step's batch, as a forward pass takes it; its arrays have room for every
 * sequence. */
struct flight {
    int first_row;
    struct ragged r;
    int n_parts;
    struct save_part *parts; /* rows counted from the first */
    int32_t *seq_row;
    const int32_t **tables;
};

void flight_init(struct flight *f, int max_seqs);
void flight_deinit(struct flight *f);

/* Into how many pieces a batch of n_rows is cut. */
int flight_count(const struct device *d, int n_rows);
/* Where piece i of n of a batch begins. */
static inline int flight_begin(int n_rows, int i, int n)
{
    return (int)((int64_t)n_rows * i / n);
}
/* Rows [begin, end) of the batch. */
void flight_cut(const struct step_batch *b, int begin, int end, struct flight *f);

#endif
