/* chain.c - see chain.h. */
#include "save/chain.h"

#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"

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

static struct sha256 stair_key(const struct truncation *t, const struct sha256 *before)
{
    uint32_t numbers[3] = {(uint32_t)t->context, (uint32_t)t->step, (uint32_t)t->keep};
    return store_stair_key(before, numbers);
}

struct sha256 chain_stored_behind(const struct truncation *t, const struct sha256 *before,
                                  int i)
{
    return truncation_begins(t, (int64_t)i * STORE_CHUNK_TOKENS) ? stair_key(t, before)
                                                                 : *before;
}

struct sha256 chain_stored_parent(const struct chain *c, int i)
{
    return chain_stored_behind(&c->truncation, chain_parent(c, i), i);
}

struct sha256 chain_view_root(const struct chain *c, int64_t cut)
{
    if (cut == 0)
        return c->root;
    int n_dropped = (int)((c->truncation.keep + cut) / STORE_CHUNK_TOKENS);
    struct sha256 named = stair_key(&c->truncation, chain_parent(c, n_dropped));
    struct sha256_ctx *h = sha256_begin();
    uint8_t bytes[8];
    put_u64(bytes, (uint64_t)cut);
    sha256_field(h, "hcache view", named.b, sizeof named.b);
    sha256_field(h, "cut", bytes, sizeof bytes);
    return sha256_end(h);
}

bool chain_try_prepare(struct chain *c, int n_chunks)
{
    struct sha256 *keys = mem_try_realloc(c->keys, ((size_t)n_chunks + 1) * sizeof *keys);
    if (keys == NULL)
        return false;
    c->keys = keys;
    c->cap_chunks = n_chunks + 1;
    return true;
}

void chain_extend(struct chain *c, const int32_t *tokens, int64_t n_tokens)
{
    int n = (int)(n_tokens / STORE_CHUNK_TOKENS);
    if (n > c->cap_chunks) {
        c->cap_chunks = MAX(n, 2 * c->cap_chunks);
        c->keys = xrealloc(c->keys, (size_t)c->cap_chunks * sizeof *c->keys);
    }
    for (int i = c->n_chunks; i < n; i++) {
        struct sha256 parent = chain_stored_parent(c, i);
        c->keys[i] = store_chunk_key(&parent, tokens + (int64_t)i * STORE_CHUNK_TOKENS);
        c->n_chunks = i + 1;
    }
}
