/* step.h - the rows of one step: gathered from sequences, passed forward, and handed back with the
 * sequences' next tokens. Also the new tokens that follow a restore (struct fused). Private to
 * src/engine.
 *
 *   step_batch_clear, step_batch_add for each sequence, step_batch_run
 *     which cuts the batch (flight_*), runs the layers, and chooses tokens (next_token_*)
 *
 * A fault of the device fails the sequences of the batch. All others go on if the device
 * survives it.
 *
 * Pieces. A forward pass goes through the stages of a device group one after the other. If the
 * batch has enough rows, it is cut into pieces of equal length. The pieces are queued one behind
 * the other: while a stage computes one piece, the stage before it computes the next.
 *
 *   stage 0   [ rows 0..127 ][ 128..255 ][ 256..383 ][ 384..511 ]
 *   stage 1                  [ rows 0..127 ][ 128..255 ][ 256..383 ][ 384..511 ]
 *
 * Each stage gets the pieces in order, so a row finds the K and V of the rows before it. The cut
 * changes results no more than the device's own dependence on the batch does (ops.h). A piece has
 * at least FLIGHT_ROWS rows. With fewer rows its time is the time of reading the weights, and each
 * piece reads them once more. So decodes stay in one piece.
 *
 * Tokens. Logits stay on the device, where the token is chosen (ops.sample). Only its id comes
 * down, and the logits of sequences that ask for them. The logits of a sequence with shaping.h
 * come down, are changed, and go up again; the request sees them as they were before the change.
 *
 * Guesses. A decode may have rows behind its last known token, for tokens that were guessed
 * (guess.h). When the token of a row was chosen and equals the guess, the next row is right, too,
 * and its token is chosen in turn: shaping, forms and limits advance token by token. What the
 * other rows wrote into blocks and into the saver's chunks lies behind the sequence's end, and is
 * overwritten. Recurrent states do not advance over guesses: they keep their inputs, and the next
 * step takes them over the right ones (ops.h, delta_net). */
#ifndef ENGINE_STEP_H
#define ENGINE_STEP_H

#include "engine/seq.h"
#include "model/model.h"
#include "model/pass.h"
#include "save/saver.h"
#include "tensor/ops.h"
#include "tensor/readback.h"

/* --- pieces that follow one another through stages -------------------------------------------- */

struct mixed;
struct step_batch;
struct zigzag;

enum { FLIGHT_ROWS = 128 };

/* One piece of a step's batch, as a forward pass takes it. Its arrays have room for every
 * sequence. */
struct flight {
    int first_row;
    struct ragged r;
    int n_parts;
    /* The piece's sequences as the saver sees them; `row` counts from the piece's first row. */
    struct save_part *parts;
    int32_t *seq_row, *states, *ahead;
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

/* --- the next token --------------------------------------------------------------------------- */

/* From the last layer's output to the next token: next_token_begin, next_token_add for each
 * sequence in any order, next_token_run. Then seq.next is known, and seq.logits where the request
 * wants them; next_token_guessed then gives them for the rows of its guesses. */
struct next_token {
    const struct model *model;
    int n_wanted; /* sequences that want their logits: rows [0, n_wanted) */
    int n_seqs;   /* sequences: rows [0, n_seqs); rows of guesses follow them */
    /* Sequences added so far: n_shown of them want their logits, in rows from 0 on; n_other do not,
     * in rows from n_wanted on. */
    int n_shown, n_other;
    int n_guesses;           /* rows of guesses so far */
    struct seq **seqs;       /* [max_rows] sequence of each row */
    struct sample_row *rows; /* [max_rows] sampling parameters of each row */
    struct buf mem;          /* device memory of in, logits and ids */
    struct mat in;           /* [max_rows][d] T */
    struct mat logits;       /* [max_rows][vocab] f32 */
    int32_t *ids;            /* [max_rows] chosen tokens */
    struct readback logits_back, ids_back;
    float *shaped;   /* [vocab] shaped logits of one row */
    int32_t *counts; /* [vocab], for shaping_apply */
    /* [max_rows][vocab] unshaped logits. Allocated when a request both shapes its logits and wants
     * them. */
    float *raw;
};

/* Returns the rows of a next_token for max_seqs sequences, of which each has at most most_guesses
 * guesses. */
static inline int next_token_rows(int max_seqs, int most_guesses)
{
    return max_seqs + (most_guesses > 0 ? GUESS_ROWS : 0);
}
/* Returns the device memory that a next_token takes on the last stage. */
size_t next_token_bytes(const struct model *m, int max_rows);
int next_token_init(struct next_token *h, const struct model *m, int max_rows,
                    struct err *err);
void next_token_deinit(struct next_token *h);

/* Begins a batch of n_seqs sequences, of which n_wanted want their logits. */
void next_token_begin(struct next_token *h, int n_seqs, int n_wanted);
/* Adds q to the batch. x is the last layer's output at the last known token of q, and at the
 * guesses behind it. */
int next_token_add(struct next_token *h, struct stream *s, struct seq *q, struct mat x);
/* Chooses the tokens; waits for the stream. Results are valid until the next next_token_begin. */
int next_token_run(struct next_token *h, struct stream *s, struct model_work *work);
/* Chooses the token behind the k-th guess of q, which has just been chosen itself. Only on a device
 * whose memory is host memory. */
int next_token_guessed(struct next_token *h, struct stream *s, struct seq *q, int k);

/* Returns whether a sequence's request wants its logits. */
bool next_token_shows_logits(const struct seq *q);

/* --- the batch -------------------------------------------------------------------------------- */

struct step_batch {
    struct seq_shared *shared;
    struct next_token *next;
    struct zigzag *zigzag;
    struct mixed *mixed;
    int n_seqs, n_rows;
    /* All arrays are reserved at creation. */
    struct seq **seqs;
    int32_t *ids, *pos, *states;
    int32_t *ahead; /* guesses among the rows of each sequence */
    const int32_t **tables;
    struct save_part *parts;  /* [n_seqs] the batch as the saver sees it */
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
/* Adds the next n_rows rows of s. The last guess.n of them are guesses. */
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

/* --- new tokens that follow a restore's layers ------------------------------------------------ */

/* Fused prefill: new tokens pass through the layers while these layers come back.
 *
 *   I/O      [K2 ][K3 ][K4 ][K5 ]
 *   compute  [R0 ][P0 ][k2][P1.][P2 ][k3][P3 ][k4][P4 ][k5][P5 ][head]
 *
 * Layer i of the new tokens needs only layer i of the context. So it is prefilled as soon as that
 * layer is in the cache, and restore and prefill form one pipeline. One sequence at a time is in
 * fused prefill, with its first batch of new tokens, at most max_rows. The tokens behind them, and
 * the new tokens of other sequences, are prefilled when all layers are restored. The rows have the
 * same bits as in any batch.
 *
 * A prefill item runs when the restores have no work item, on a layer that is already in the
 * cache, so it never waits. Its work is counted in rows times layers, as a batch's is.
 *
 * No result leaves fused prefill before the last layer. If a chunk turns out to be damaged, the
 * work is thrown away, and the sequence is prefilled in the ordinary way. */
struct fused {
    struct seq_shared *shared;
    struct next_token *next;
    int max_rows;
    struct seq *seq; /* sequence in fused prefill; NULL: no sequence is */
    int first, n;    /* the rows are positions [first, first + n) of seq */
    struct model_pass pass;
    struct model_tap tap;
    struct save_part part; /* the rows that are passing, as the saver sees them */
    int32_t *pos;          /* [max_rows] positions of the rows that are passing */
    int64_t t_begin, busy_ns;
    struct buf mem[MAX_STAGES];
    /* Two buffers, because the saver still reads a layer's input while the next layer runs. */
    struct residual x;
};

int fused_init(struct fused *f, struct seq_shared *sh, struct next_token *next,
               int max_rows, struct err *err);
void fused_deinit(struct fused *f);

/* Begins fused prefill of the new tokens of s, from `first` on, when its restore begins. `tail`
 * means the same as in seq_open_save. Does nothing if another sequence is in fused prefill or the
 * saver has no room yet; the caller may try again. */
void fused_begin(struct fused *f, struct seq *s, int first, const struct store_hit *tail);
/* Throws away the fused prefill of s. Does nothing if s is not in fused prefill. */
void fused_cancel(struct fused *f, struct seq *s);
/* Returns whether s is in fused prefill and some of its rows have passed a layer. */
bool fused_has_begun(const struct fused *f, const struct seq *s);

/* Runs one work item: at most max_rows rows of one layer. *n gets the number of rows; 0: no layer
 * is ready. An error concerns only the sequence in fused prefill, and the caller ends that
 * sequence. */
int fused_work(struct fused *f, int max_rows, int *n);
/* Lets the sequence advance as after a batch, once its restore has ended and all layers are done.
 * An error concerns only this sequence, as in fused_work. */
int fused_finish(struct fused *f);

#endif
