/* step_batch.h - the rows that one step computes: gathered, passed forward, handed back to their
 * sequences; private to src/engine.
 *
 *   step_batch_clear, step_batch_add for each sequence, step_batch_run
 *
 * A fault of the device fails the sequences of the batch; the others go on if the device survives
 * it. */
#ifndef ENGINE_STEP_BATCH_H
#define ENGINE_STEP_BATCH_H

#include "engine/flight.h"
#include "engine/mixed.h"
#include "engine/next_token.h"
#include "engine/seq.h"
#include "engine/zigzag.h"

struct step_batch {
    struct seq_shared *shared;
    struct next_token *next;
    struct zigzag *zigzag;
    struct mixed *mixed;
    int n_seqs, n_rows;
    int n_parts; /* a sequence has one, and one more before it for rows that are computed again */
    /* All reserved at creation: */
    struct seq **seqs;
    int32_t *ids, *pos;
    const int32_t **tables;
    struct save_part *parts;  /* the batch, as the saver sees it */
    struct flight flight;     /* a piece of it */
    const struct flight *now; /* the piece that is being queued */
    struct seq **again; /* of a batch that is computed again, one sequence after another */
};

/* zigzag, mixed: off, or for max_rows rows and max_seqs sequences. */
void step_batch_init(struct step_batch *b, struct seq_shared *sh, struct next_token *next,
                     struct zigzag *zigzag, struct mixed *mixed, int max_rows,
                     int max_seqs);
void step_batch_deinit(struct step_batch *b);

void step_batch_clear(struct step_batch *b);
/* Rows [0, n_rows) of s, whose state is not kept, before its new ones.  Nothing
 * where n_rows is 0. */
void step_batch_add_again(struct step_batch *b, struct seq *s, int n_rows);
/* The next n_rows rows of s. */
void step_batch_add(struct step_batch *b, struct seq *s, int n_rows);
/* One forward pass; its sequences advance, or fail.  An error that comes back concerns all
 * sequences. */
int step_batch_run(struct step_batch *b, struct err *err);

/* What the device says of its fault; else why the weights could not be had; else
 * the code's name. */
struct step_fault {
    char text[256];
};
struct step_fault step_fault(const struct seq_shared *sh, int rc);
/* After a fault that sequences have failed with: the device goes on, or its error comes back. */
int step_recover(struct stream *s, struct err *err);

#endif
