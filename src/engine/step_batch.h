/* step_batch.h - the rows of one step: gathered from sequences, passed forward, handed back to
 * them; private to src/engine.
 *
 *   step_batch_clear, step_batch_add for each sequence, step_batch_run
 *
 * A fault of the device fails the sequences of the batch. All others go on if the device
 * survives it. */
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
    /* Number of parts: one per sequence, and one more for a sequence some of whose rows are
     * computed again. That part precedes the sequence's own. */
    int n_parts;
    /* All arrays are reserved at creation. */
    struct seq **seqs;
    int32_t *ids, *pos;
    const int32_t **tables;
    struct save_part *parts;  /* [n_parts] the batch as the saver sees it */
    struct flight flight;     /* one piece of the batch */
    const struct flight *now; /* the piece that is being queued */
    struct seq **again; /* sequences of a batch that is computed again, one at a time */
};

/* Initialises b. `zigzag` and `mixed` are off, or have room for max_rows rows and max_seqs
 * sequences. */
void step_batch_init(struct step_batch *b, struct seq_shared *sh, struct next_token *next,
                     struct zigzag *zigzag, struct mixed *mixed, int max_rows,
                     int max_seqs);
void step_batch_deinit(struct step_batch *b);

void step_batch_clear(struct step_batch *b);
/* Adds rows [0, n_rows) of s before its new rows, because their K and V were not kept. Does nothing
 * if n_rows is 0. */
void step_batch_add_again(struct step_batch *b, struct seq *s, int n_rows);
/* Adds the next n_rows rows of s. */
void step_batch_add(struct step_batch *b, struct seq *s, int n_rows);
/* Runs one forward pass. Its sequences advance, or fail. A returned error concerns all
 * sequences. */
int step_batch_run(struct step_batch *b, struct err *err);

struct step_fault {
    char text[256];
};
/* Returns the device's message for its fault; else the reason why weights could not be read;
 * else the name of the code rc. */
struct step_fault step_fault(const struct seq_shared *sh, int rc);
/* Call after a fault that failed sequences. Returns 0 if the device can go on, else its error. */
int step_recover(struct stream *s, struct err *err);

#endif
