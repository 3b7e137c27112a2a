/* staircase.h - the price of computing a truncated context from its tokens.
 *
 * The state of a token depends on the tokens that its own stair sees (save/truncation.h). So a
 * view cannot be computed by itself: all stairs from the first one on are computed again, one after
 * another, each token once.  This is a *replay*.
 *
 *     stair 0    C rows                                     prefill(0, C)
 *     stair 1    C - S tokens move,  S rows after them      move(C - S) + prefill(C - S, S)
 *     ...                                                   n_whole times in all
 *     the last   C - S tokens move, the rest after them     move(C - S) + prefill(C - S, n_last)
 *
 * prefill(p, n) computes n rows after p positions; move(n) writes n tokens into the cache at new
 * positions.
 *
 * Pure. */
#ifndef ENGINE_STAIRCASE_H
#define ENGINE_STAIRCASE_H

#include <stdbool.h>

#include "restore/platform.h"
#include "save/truncation.h"

/* The rows that a replay of tokens [from, n) computes. The earlier positions of the stair of token
 * `from` are there already. */
struct staircase {
    /* n_first rows after `past` positions, on the stair of `from` */
    int64_t past, n_first;
    int64_t n_whole; /* later stairs of S rows each */
    int64_t n_last;  /* rows of a last stair that is not whole; 0: there is none */
};

/* Returns the rows that a replay of tokens [from, n) computes; 0 <= from <= n. A context that is
 * not truncated has one stair. */
struct staircase staircase_of(const struct truncation *t, int64_t from, int64_t n);
/* Returns how often C - S moved tokens are written into the cache at new positions. */
int64_t staircase_moves(const struct staircase *c);
/* Returns the time of a replay of all layers on a platform. */
double staircase_price_s(const struct platform *p, const struct truncation *t, int64_t from,
                         int64_t n);
/* Returns whether a replay is predicted to be faster than a planned restore. replay_s 0: the
 * context must not be replayed. */
bool staircase_pays(double replay_s, double restore_s);

/* Returns the number of tokens that are computed for each token in view if the view of tokens
 * [0, n) is lost: n over the number of tokens that its last stair sees; 1 without a truncation. */
double staircase_share(const struct truncation *t, int64_t n);

#endif
