/* chain.h - the keys of a context: one per full chunk of 64 tokens.
 *
 * Equal token prefixes under one fingerprint and salt have equal chains. In a truncated context
 * (store/truncation.h) the chunks of the first stair have the same keys as without truncation.
 * Each later stair begins with another parent, which names the truncation as well.
 *
 * Pure. A chain belongs to its sequence and to one thread. */
#ifndef STORE_CHAIN_H
#define STORE_CHAIN_H

#include <stdint.h>

#include "base/hash.h"
#include "store/truncation.h"
#include "store/store.h"

struct chain {
    struct sha256 root;
    /* Set before the first chunk; context 0: the context is not truncated. */
    struct truncation truncation;
    struct sha256 *keys; /* [n_chunks] */
    int n_chunks, cap_chunks;
};

void chain_init(struct chain *c, const struct sha256 *fingerprint, const char *salt);
void chain_deinit(struct chain *c);

/* Reserves room for n_chunks keys, so none is needed later. Returns false without memory. */
bool chain_try_prepare(struct chain *c, int n_chunks);
/* Adds the keys of the chunks that tokens[0..n_tokens) completes beyond the known ones. The tokens
 * of earlier chunks must be the same as in earlier calls. */
void chain_extend(struct chain *c, const int32_t *tokens, int64_t n_tokens);

/* Returns the key before chunk i: the key of chunk i - 1, or the root for chunk 0. */
const struct sha256 *chain_parent(const struct chain *c, int i);
/* Returns the parent under which chunk i is stored: chain_parent, or the stair's parent if chunk
 * i begins a stair. */
struct sha256 chain_stored_parent(const struct chain *c, int i);
/* Computes chain_stored_parent without the chain: from the truncation, and from `before`, the key
 * of the chunk before chunk i (the root for chunk 0). */
struct sha256 chain_stored_behind(const struct truncation *t, const struct sha256 *before,
                                  int i);

/* Returns the root of the KV pool's tree for a stair's view: a hash of everything besides its
 * tokens that its blocks depend on. cut > 0; for cut 0 it would be the chain's own root. It names
 * the truncation, the cut, and every token up to the last dropped one, whose chunk must be in the
 * chain. */
struct sha256 chain_view_root(const struct chain *c, int64_t cut);

#endif
