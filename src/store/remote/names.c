/* names.c - see names.h. */
#include "store/remote/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/random.h>

#include "base/bytes.h"
#include "base/check.h"
#include "seal/seal_file.h"

void names_init(struct names *n, const uint8_t *secret)
{
    char begin[32] = "hcache:1:";
    n->seal = secret != NULL ? seal_shared(secret) : NULL;
    if (n->seal != NULL)
        snprintf(begin, sizeof begin, "hcache:2:%016" PRIx64 ":", seal_mark(n->seal));
    snprintf(n->chunks, sizeof n->chunks, "%schunk:", begin);
    snprintf(n->erased, sizeof n->erased, "%serased", begin);
}

void names_deinit(struct names *n)
{
    seal_free(n->seal);
}

void name_chunk(const struct names *n, const struct sha256 *key, char out[NAME_BYTES])
{
    struct sha256 name = *key;
    char hex[65];
    if (n->seal != NULL)
        seal_hash(n->seal, key->b, sizeof key->b, name.b);
    sha256_hex(&name, hex);
    snprintf(out, NAME_BYTES, "%s%s", n->chunks, hex);
}

uint64_t name_owner(const struct names *n, uint64_t owner)
{
    uint8_t bytes[8], hash[32];
    if (n->seal == NULL)
        return owner;
    put_u64(bytes, owner);
    seal_hash(n->seal, bytes, sizeof bytes, hash);
    return get_u64(hash);
}

void value_seal(const struct names *names, const void *name, size_t n_name,
                const void *bytes, size_t n, uint8_t *out)
{
    uint8_t salt[SEAL_SALT_BYTES];
    CHECK(getrandom(salt, sizeof salt, 0) == (ssize_t)sizeof salt);
    seal_run(names->seal, name, n_name, salt, bytes, n, out);
}

bool value_open(const struct names *names, const void *name, size_t n_name, uint8_t *bytes,
                size_t n)
{
    return seal_run_open(names->seal, name, n_name, bytes, n, bytes);
}
