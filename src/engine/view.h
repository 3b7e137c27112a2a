/* view.h - the tokens that a sequence sees, by their positions, and what it costs to compute them
 * again; private to src/engine.
 *
 * A sequence whose context is not truncated sees all its tokens, and the position of a token is its
 * index.  A truncated one sees the tokens of the present stair's view (store/truncation.h):
 *
 *     tokens     0 .. K | dropped: cut | K + cut ...
 *     positions  0 .. K                | K ......... C
 *
 * The KV cache, restores and the scheduler count positions.  The saver, the chain of keys and
 * requests count tokens.
 *
 * The state of a token depends on the tokens that its own stair sees. So a view cannot be computed
 * by itself: all stairs from the first one on are computed again, one after another, each token
 * once.  This is a *replay*.
 *
 *     stair 0    C rows                                     prefill(0, C)
 *     stair 1    C - S tokens move,  S rows after them      move(C - S) + prefill(C - S, S)
 *     ...                                                   n_whole times in all
 *     the last   C - S tokens move, the rest after them     move(C - S) + prefill(C - S, n_last)
 *
 * prefill(p, n) computes n rows after p positions; move(n) writes n tokens into the cache at new
 * positions.
 *
 * Pure; a view belongs to its sequence. */
#ifndef ENGINE_VIEW_H
#define ENGINE_VIEW_H

#include <stdbool.h>

#include "restore/platform.h"
#include "store/chain.h"
#include "store/truncation.h"

struct view {
    struct truncation truncation;
    int cut;
    struct sha256 root;        /* root of the KV pool's tree of blocks for this view */
    const int32_t *tokens;     /* [n_tokens] by position */
    const struct sha256 *keys; /* [n_keys] keys of the full chunks, by position / 64 */
    int n_tokens, n_keys;      /* tokens and keys known so far */
    /* Memory of a view with cut > 0; NULL before the first such view. */
    int32_t *own_tokens;
    struct sha256 *own_keys;
};

/* Makes an empty view. */
void view_init(struct view *v, const struct truncation *t);
void view_deinit(struct view *v);

/* Sets the view of the stair with this cut over tokens[0, n_tokens); at least one of them belongs
 * to the stair. The chain has the keys of all full chunks of these tokens. Chain and tokens must
 * outlive the view and stay in place. */
void view_set(struct view *v, const struct chain *c, const int32_t *tokens, int n_tokens,
              int cut);
/* Adds the next known token. A token of a later stair is ignored. */
void view_add(struct view *v, int32_t token);

/* Returns how many positions the view has when n_max tokens are known. */
int view_room(const struct view *v, int n_max);
/* Returns the index of the token at a position. The position behind the last one gives the next
 * token's index. */
static inline int view_token(const struct view *v, int position)
{
    return (int)truncation_token(&v->truncation, v->cut, position);
}
/* Returns the index of the chunk whose tokens are at positions [64 i, 64 (i + 1)). */
static inline int view_chunk(const struct view *v, int i)
{
    return view_token(v, i * STORE_CHUNK_TOKENS) / STORE_CHUNK_TOKENS;
}
/* Returns the number of positions that earlier stairs have computed. The view is useless without
 * them. */
static inline int view_moved(const struct view *v)
{
    return v->cut == 0 ? 0 : v->truncation.context - v->truncation.step;
}
/* Returns whether nothing more can be computed in this view. */
static inline bool view_is_full(const struct view *v, int n_done)
{
    return v->truncation.context > 0 && n_done == v->truncation.context;
}

/* --- what a staircase costs ------------------------------------------------------------------- */

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
