/* flight.h - cuts a batch into pieces that follow one another through the stages of a device
 * group; private to src/engine.
 *
 *   stage 0   [ rows 0..127 ][ 128..255 ][ 256..383 ][ 384..511 ]
 *   stage 1                  [ rows 0..127 ][ 128..255 ][ 256..383 ][ 384..511 ]
 *
 * A forward pass goes through the stages one after the other. If the stages are separate devices
 * and the batch has enough rows, the batch is cut into pieces of equal length. The pieces are
 * queued one behind the other: while a stage computes one piece, the stage before it computes
 * the next. Each stage gets the pieces in order, so a row finds the K and V of the rows before
 * it. The cut changes results no more than the device's own dependence on the batch does
 * (ops.h).
 *
 * A piece has at least FLIGHT_ROWS rows. With fewer rows its time is the time of reading the
 * weights, and each piece reads them once more. So decodes stay in one piece. */
#ifndef ENGINE_FLIGHT_H
#define ENGINE_FLIGHT_H

#include "save/saver.h"
#include "tensor/ops.h"

struct step_batch;

enum { FLIGHT_ROWS = 128 };

/* One piece of a step's batch, as a forward pass takes it. Its arrays have room for every
 * sequence. */
struct flight {
    int first_row;
    struct ragged r;
    int n_parts;
    /* The piece's sequences as the saver sees them; `row` counts from the piece's first row. */
    struct save_part *parts;
    int32_t *seq_row;
    const int32_t **tables;
};

void flight_init(struct flight *f, int max_seqs);
void flight_deinit(struct flight *f);

/* Returns the number of pieces into which a batch of n_rows is cut. */
int flight_count(const struct device *d, int n_rows);
/* Returns the first row of piece i of n. */
static inline int flight_begin(int n_rows, int i, int n)
{
    return (int)((int64_t)n_rows * i / n);
}
/* Fills f with rows [begin, end) of the batch. */
void flight_cut(const struct step_batch *b, int begin, int end, struct flight *f);

#endif
