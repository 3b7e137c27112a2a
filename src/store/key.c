/* key.c - root keys and chunk keys (store.h).
 *
 * Every field is tagged and length-prefixed, and tokens are little-endian. So the same text
 * gives the same key on every machine, and different chains have different keys. */
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "store/store.h"

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
