/* chain.h - the names of a context: one key per full chunk of 64 tokens (DESIGN §7).
 *
 * Equal token prefixes under one fingerprint and salt have equal chains.  In a truncated context
 * (policy/truncation.h) the chunks of the first stair have the keys that they have without
 * truncation.  Each later stair begins with another parent, which names the truncation as well.
 *
 * Pure; a chain belongs to its sequence and to one thread. */
#ifndef STATE_CHAIN_H
#define STATE_CHAIN_H

#include <stdint.h>

#include "base/hash.h"
#include "policy/truncation.h"
#include "store/store.h"

struct chain {
    struct sha256 root;
    struct truncation truncation; /* set before the first chunk; context 0: none */
    struct sha256 *keys;          /* [n_chunks] */
    int n_chunks, cap_chunks;
};

void chain_init(struct chain *c, const struct sha256 *fingerprint, const char *salt);
void chain_deinit(struct chain *c);

/* Room for so many keys without asking for memory later. False where there is no memory. */
bool chain_try_prepare(struct chain *c, int n_chunks);
/* Adds the keys of the chunks that tokens[0..n_tokens) completes beyond those already there. The
 * tokens of the earlier chunks must be the ones that were given before. */
void chain_extend(struct chain *c, const int32_t *tokens, int64_t n_tokens);

/* The key before chunk i: of chunk i - 1, or the root for chunk 0. */
const struct sha256 *chain_parent(const struct chain *c, int i);
/* The parent that chunk i is stored under: chain_parent, or the stair's where chunk
 * i begins one. */
struct sha256 chain_stored_parent(const struct chain *c, int i);
/* The same for a chunk behind the key `before`, without a chain. */
struct sha256 chain_stored_behind(const struct truncation *t, const struct sha256 *before,
                                  int i);

/* What the blocks of a stair's view depend on besides its tokens: the root of the KV pool's
 * tree for them.  The chain's own root for cut 0.  Otherwise it names the truncation, the cut,
 * and every token up to the last dropped one, whose chunk must be in the chain. */
struct sha256 chain_view_root(const struct chain *c, int64_t cut);

#endif
