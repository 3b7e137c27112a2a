/* chain.c - see chain.h; and the keys of single chunks (store.h).
 *
 * Every field of a key is tagged and length-prefixed, and tokens are little-endian. So the same
 * text gives the same key on every machine, and different chains have different keys. */
#include "store/chain.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"

/* --- keys ------------------------------------------------------------------------------------- */

struct sha256 store_root_key(const struct sha256 *fingerprint, const char *salt)
{
    if (salt == NULL)
        salt = "";
    struct sha256_ctx *c = sha256_begin();
    sha256_field(c, "hcache root", fingerprint->b, sizeof fingerprint->b);
    sha256_field(c, "salt", salt, strlen(salt));
    return sha256_end(c);
}

struct sha256 store_partial_key(const struct sha256 *parent, const int32_t *tokens,
                                int n_tokens)
{
    uint8_t bytes[4 * STORE_CHUNK_TOKENS];
    CHECK(n_tokens >= 1 && n_tokens <= STORE_CHUNK_TOKENS);
    for (int i = 0; i < n_tokens; i++)
        put_u32(bytes + 4 * i, (uint32_t)tokens[i]);
    struct sha256_ctx *c = sha256_begin();
    sha256_field(c, "hcache chunk", parent->b, sizeof parent->b);
    sha256_field(c, "tokens", bytes, 4 * (size_t)n_tokens);
    return sha256_end(c);
}

struct sha256 store_chunk_key(const struct sha256 *parent,
                              const int32_t tokens[STORE_CHUNK_TOKENS])
{
    return store_partial_key(parent, tokens, STORE_CHUNK_TOKENS);
}

struct sha256 store_state_key(const struct sha256 *chunk)
{
    const int32_t token = STORE_STATE_TOKEN;
    return store_partial_key(chunk, &token, 1);
}

uint64_t store_chunk_name(const struct sha256 *key)
{
    return get_u64(key->b) | 1;
}

struct sha256 store_stair_key(const struct sha256 *parent, const uint32_t numbers[3])
{
    uint8_t bytes[12];
    for (int i = 0; i < 3; i++)
        put_u32(bytes + 4 * i, numbers[i]);
    struct sha256_ctx *c = sha256_begin();
    sha256_field(c, "hcache stair", parent->b, sizeof parent->b);
    sha256_field(c, "context step keep", bytes, sizeof bytes);
    return sha256_end(c);
}

uint64_t store_owner(const char *salt)
{
    if (salt == NULL || *salt == 0)
        return 0;
    struct sha256_ctx *c = sha256_begin();
    sha256_field(c, "hcache owner", salt, strlen(salt));
    struct sha256 h = sha256_end(c);
    uint64_t tag = get_u64(h.b);
    return tag != 0 ? tag : 1;
}

/* --- chains ----------------------------------------------------------------------------------- */

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
    CHECK(cut > 0);
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
