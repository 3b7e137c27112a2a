/* truncation.h - which tokens a context sees once it has outgrown its window, and at which
 * positions (AttentionStore section 3.4, as a function of the tokens alone).
 *
 * Three numbers define a truncation, all multiples of 64 tokens: the window C, the step S, and the
 * K tokens at the beginning that are always kept.  Token p is computed with
 *
 *     cut(p) = 0                          for p < C
 *              S * ceil((p + 1 - C) / S)  else
 *
 * It sees the tokens [0, K) and [K + cut, p].  A kept token t < K has position t, every other token
 * has position t - cut.  So positions stay below C, and a token sees at most C tokens.
 *
 *     tokens    |  0 .. K |  K ..... K + cut  |  K + cut ........ p |
 *               |  kept   |  dropped: cut     |  moved    computed  |
 *     positions |  0 .. K                     |  K ........ p - cut |
 *
 * The tokens with one cut are a *stair*: [0, C), then runs of S tokens.  The view of a stair is the
 * list of the tokens that its last token sees.  In the view of a stair with cut > 0, [0, C - S) was
 * computed on earlier stairs (its tokens are moved) and [C - S, C) is the stair itself.
 *
 * The state of a token (its hidden states, K before RoPE, V) is computed once, on its own stair,
 * and never again: later stairs rotate the same K to its new position.
 *
 * Pure. */
#ifndef STORE_TRUNCATION_H
#define STORE_TRUNCATION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* Tokens of a chunk; all three numbers are multiples of it. */
enum { TRUNCATION_UNIT = 64 };

struct truncation {
    int32_t context; /* C; 0: the context is not truncated, and has one stair */
    int32_t step; /* S: the number of tokens by which the cut grows from stair to stair */
    int32_t keep; /* K: tokens at the beginning that are always kept */
};

/* Options from which a truncation is made. */
struct truncation_ask {
    int64_t context; /* tokens that the model sees; rounded down to 64 */
    double ratio;    /* S = 64 * floor(ratio * C / 64); 0 < ratio < 1 */
    int64_t keep;    /* K, as in struct truncation */
};

/* Makes a truncation. Returns ERR_USAGE with the numbers if S < 64, if K is not a multiple of
 * 64, or unless 64 <= K <= C - S - 64. `may_keep_none` also allows K = 0: for measurements only,
 * since models lose most of their quality without their first tokens. */
int truncation_make(const struct truncation_ask *ask, bool may_keep_none,
                    struct truncation *out, struct err *err);

/* Returns how many tokens are dropped when token p is computed; 0 if nothing is truncated. */
static inline int64_t truncation_cut(const struct truncation *t, int64_t p)
{
    if (t->context == 0 || p < t->context)
        return 0;
    int64_t over = p + 1 - t->context;
    return (over + t->step - 1) / t->step * t->step;
}
/* Returns the first token of the stair with this cut; 0 for cut 0. */
static inline int64_t truncation_first(const struct truncation *t, int64_t cut)
{
    return cut == 0 ? 0 : t->context + cut - t->step;
}
/* Returns the first token after the stair with this cut; INT64_MAX if nothing is truncated. */
static inline int64_t truncation_end(const struct truncation *t, int64_t cut)
{
    return t->context == 0 ? INT64_MAX : t->context + cut;
}

/* Returns whether the stair with this cut sees token p. The token need not be computed yet. */
bool truncation_sees(const struct truncation *t, int64_t cut, int64_t p);
/* truncation_position returns the position of a token that the stair sees. truncation_token returns
 * the token at a position. */
int64_t truncation_position(const struct truncation *t, int64_t cut, int64_t p);
int64_t truncation_token(const struct truncation *t, int64_t cut, int64_t position);

/* Returns whether a new stair begins with token p. Returns false for token 0. */
bool truncation_begins(const struct truncation *t, int64_t p);

#endif
