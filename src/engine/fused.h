/* fused.h - new tokens pass through the layers while these come back (DESIGN §10); private to
 * src/engine.
 *
 *   I/O      [K2 ][K3 ][K4 ][K5 ]
 *   compute  [R0 ][P0 ][k2][P1.][P2 ][k3][P3 ][k4][P4 ][k5][P5 ][head]
 *
 * Layer i of the new tokens needs only layer i of the context, so it is prefilled as soon as that
 * is in the cache, and the time to the first token is that of one pipeline.  One sequence at a time
 * has its first batch of new tokens here, at most max_rows; the tokens behind them, and the new
 * tokens of other sequences, are prefilled when all is restored.  The rows have the bits that they
 * get in any batch.
 *
 * Prefill is the filler: a work item runs when the restores have none, on a layer that is in the
 * cache already, so it never waits.  It is accounted in rows times layers, as a batch is.
 *
 * Nothing is told to anybody before the last layer: a chunk that turns out to be damaged throws the
 * work away, and the sequence goes the ordinary way. */
#ifndef ENGINE_FUSED_H
#define ENGINE_FUSED_H

#include "engine/next_token.h"
#include "engine/seq.h"
#include "model/pass.h"

struct fused {
    struct seq_shared *shared;
    struct next_token *next;
    int max_rows;
    struct seq *seq; /* NULL: none */
    int first, n;    /* its positions [first, first + n) */
    struct model_pass pass;
    struct model_tap tap;
    struct save_part part; /* the rows that are passing, as the saver sees them */
    int32_t *pos;          /* [max_rows] of those rows */
    int64_t t_begin, busy_ns;
    struct buf mem[MAX_STAGES];
    struct residual x; /* two buffers: the saver reads a layer's input behind the layer */
};

int fused_init(struct fused *f, struct seq_shared *sh, struct next_token *next,
               int max_rows, struct err *err);
void fused_deinit(struct fused *f);

/* The restore of s begins: its new tokens, from `first` on, follow it (tail: as seq_open_save).
 * Nothing where another sequence is here, or the saver has no room yet: then it may be tried
 * again. */
void fused_begin(struct fused *f, struct seq *s, int first, const struct store_hit *tail);
/* The work done for s is thrown away. Nothing where s is not here. */
void fused_cancel(struct fused *f, struct seq *s);
/* Whether s is here and rows of it have passed a layer. */
bool fused_has_begun(const struct fused *f, const struct seq *s);

/* One work item: at most max_rows rows of one layer. *n: how many; 0 where no layer is ready.
 * After an error, which is the sequence's, the caller ends the sequence. */
int fused_work(struct fused *f, int max_rows, int *n);
/* Where its restore was ended and all layers are done, the sequence goes on as if a batch had
 * brought it there.  Errors as fused_work. */
int fused_finish(struct fused *f);

#endif
