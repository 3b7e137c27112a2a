/* placement_price.h - the value of held state: the seconds that one use saves, per byte.
 *
 * A tier is full of bytes, and its owner wants to save seconds. Hidden states save about as much
 * time as keys and values and have half of their bytes in models without grouped heads. One use of
 *
 *     a chunk in a store     saves computing its tokens, minus reading its bytes
 *     a block of the pool    saves computing its tokens, or reading them if the store has them and
 *                            this is faster
 *
 * The value is the saved seconds per byte, divided by the seconds per byte that it takes to compute
 * a chunk of keys and values.
 *
 * A view of a truncated context is computed by a replay of all stairs (engine/view.h). So each
 * token of the view saves computing `share` tokens: n / (n - cut) after n tokens.
 *
 * A token deep in a context takes longer to compute than one at its beginning. This is left out
 * on purpose: docs/PLACEMENT.md has the measurements.
 *
 * Pure. The prices follow from a platform (platform_price in restore/platform.h), and so include
 * the corrections by restores. */
#ifndef STORE_PLACEMENT_PRICE_H
#define STORE_PLACEMENT_PRICE_H

#include <stdbool.h>
#include <stdint.h>

/* Values are bounded, so that a wrong measurement cannot fill a tier for ever. */
#define PLACEMENT_LEAST_VALUE 0.0625
#define PLACEMENT_MOST_VALUE  64.0

struct placement_price {
    double token_s;     /* seconds to compute a token in all layers; 0: unknown */
    double read_byte_s; /* seconds to read a byte from the store; 0: unknown */
    double chunk_bytes; /* bytes of a full chunk's keys and values */
};

/* Returns the value of a stored chunk of n_tokens tokens in n_bytes; 1 if no price is known.
 * share: number of tokens that are computed for each token if the chunk is lost; 0 means 1. */
double placement_price_stored(const struct placement_price *x, int n_tokens, double share,
                              uint64_t n_bytes);
/* Returns the value of a block of the pool with n_tokens tokens. share: as in
 * placement_price_stored. is_stored: the store has the block's state. */
double placement_price_held(const struct placement_price *x, int n_tokens, double share,
                            bool is_stored);

#endif
