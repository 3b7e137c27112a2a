/* fused.h - fused prefill: new tokens pass through the layers while these layers come back;
 * private to src/engine.
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
 * No result leaves this module before the last layer. If a chunk turns out to be damaged, the
 * work is thrown away, and the sequence is prefilled in the ordinary way. */
#ifndef ENGINE_FUSED_H
#define ENGINE_FUSED_H

#include "engine/step.h"
#include "engine/seq.h"
#include "model/pass.h"

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
