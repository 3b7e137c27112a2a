/* chain.c - see chain.h. */
#include "state/chain.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/mem.h"

void chain_init(struct chain *c, const struct sha256 *fingerprint, const char *salt)
{
    *c = (struct chain){.root = store_root_key(fingerprint, salt)};
}

void chain_deinit(struct chain *c)
{
    free(c->keys);
    *c = (struct chain){0};
}

const struct sha256 *chain_parent(const struct chain *c, int i)
{
    CHECK(i >= 0 && i <= c->n_chunks);
    return i == 0 ? &c->root : &c->keys[i - 1];
}

void chain_extend(struct chain *c, const int32_t *tokens, int64_t n_tokens)
{
    int n = (int)(n_tokens / STORE_CHUNK_TOKENS);
    if (n > c->cap_chunks) {
        c->cap_chunks = n > 2 * c->cap_chunks ? n : 2 * c->cap_chunks;
        c->keys = xrealloc(c->keys, (size_t)c->cap_chunks * sizeof *c->keys);
    }
    for (int i = c->n_chunks; i < n; i++) {
        c->keys[i] = store_chunk_key(chain_parent(c, i),
                                     tokens + (int64_t)i * STORE_CHUNK_TOKENS);
        c->n_chunks = i + 1;
    }
}
