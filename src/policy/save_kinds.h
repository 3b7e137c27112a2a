/* save_kinds.h - which records of each layer are saved.
 *
 * Saving and restoring are two decisions: what is saved now is what plans can read later, when
 * the context has grown.
 *
 * Pure: no clock, no allocation. */
#ifndef POLICY_SAVE_KINDS_H
#define POLICY_SAVE_KINDS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "policy/plan.h"
#include "policy/platform.h"

/* What the decision is made from. */
struct save_kinds_from {
    int n_layers;
    double h_bytes, kv_bytes; /* a token's hidden state, and its K and V, of one layer */
    const struct platform
        *platform;      /* NULL or without a tier: the store's speed is not known */
    int64_t max_tokens; /* that a context may grow to */
};

/* Fills kinds [n_layers] with PLAN_HAS_ bits.  `text`: "hidden", "kv", "both", "none", a letter
 * per layer (H, K, B for both, - for neither), or "auto": the kinds that the planner wants as
 * the context grows to max_tokens.  As long as the store's speed is not known, auto keeps every
 * kind that could be in a best plan: KV alone where hidden states are no smaller, else both.
 * ERR_USAGE for any other text. */
int save_kinds_choose(const char *text, const struct save_kinds_from *from, uint8_t *kinds,
                      struct err *err);

/* Adds what plans want beside decodes, where they have a share of the compute only. */
int save_kinds_add_beside(const char *text, const struct save_kinds_from *from,
                          uint8_t *kinds, struct err *err);

/* Returns whether a stored chunk has all records that are to be saved, so that it need not be
 * computed again to be saved. */
bool save_kinds_suffice(const uint8_t *wanted, const uint8_t *stored, int n_layers);

/* Chunks of a context that were found in the store. */
struct save_kinds_found {
    int n_chunks;
    bool has_partial;      /* the last chunk holds fewer tokens than a full one */
    const uint8_t *stored; /* [n_layers] records of the last chunk */
};

/* Returns how many of the found chunks a restore may use: all, or all but the last one. A partial
 * chunk that lacks wanted records is computed again, so that the full chunk that it becomes has
 * them all. wanted: [n_layers], NULL: nothing is saved. */
int save_kinds_usable(const struct save_kinds_found *f, const uint8_t *wanted,
                      int n_layers);

#endif
