/* chain.h - the names of a context: one key per full chunk of 64 tokens (DESIGN §7).
 *
 * Equal token prefixes under one fingerprint and salt have equal chains.  Pure; a chain belongs to
 * its sequence and to one thread. */
#ifndef STATE_CHAIN_H
#define STATE_CHAIN_H

#include <stdint.h>

#include "base/hash.h"
#include "store/store.h"

struct chain {
    struct sha256 root;
    struct sha256 *keys; /* [n_chunks] */
    int n_chunks, cap_chunks;
};

void chain_init(struct chain *c, const struct sha256 *fingerprint, const char *salt);
void chain_deinit(struct chain *c);

/* Adds the keys of the chunks that tokens[0..n_tokens) completes beyond those already there. The
 * tokens of the earlier chunks must be the ones that were given before. */
void chain_extend(struct chain *c, const int32_t *tokens, int64_t n_tokens);

/* The parent of chunk i: the root for chunk 0. */
const struct sha256 *chain_parent(const struct chain *c, int i);

#endif
