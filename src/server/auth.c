/* auth.c - see auth.h. */
#include "server/auth.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/hash.h"
#include "base/mem.h"

struct auth_key {
    struct sha256 digest;
    char salt[65];
};

struct auth {
    int n, n_admin;
    struct auth_key key[];
};

void auth_salt(const char *key, char salt[65])
{
    struct sha256 d = sha256_hmac(key, "hcache: salt of saved state, 1");
    sha256_hex(&d, salt);
}

void auth_create(const char *const *keys, int n, int n_admin, struct auth **out)
{
    struct auth *a = xcalloc(1, sizeof *a + (size_t)n * sizeof a->key[0]);
    for (; a->n < n; a->n++) {
        a->key[a->n].digest = sha256_of(keys[a->n], strlen(keys[a->n]));
        auth_salt(keys[a->n], a->key[a->n].salt);
    }
    a->n_admin = n_admin;
    *out = a;
}

int auth_tenant(const struct auth *a, const char *salt)
{
    for (int i = 0; salt != NULL && i < a->n; i++) {
        if (salt == a->key[i].salt)
            return i;
    }
    return 0;
}

int auth_find(const struct auth *a, const char *salt)
{
    if (a->n == 0)
        return salt[0] == 0 ? 0 : -1;
    for (int i = 0; i < a->n; i++)
        if (strcmp(salt, a->key[i].salt) == 0)
            return i;
    return -1;
}

bool auth_sees_all(const struct auth *a, const char *salt)
{
    return a->n <= 1 || auth_tenant(a, salt) >= a->n - a->n_admin;
}

void auth_destroy(struct auth *a)
{
    free(a);
}

/* Compares two digests. They have one length, so the time reveals neither length nor content of a
 * key. */
static bool same(const struct sha256 *a, const struct sha256 *b)
{
    volatile uint8_t diff = 0;
    for (size_t i = 0; i < sizeof a->b; i++)
        diff |= (uint8_t)(a->b[i] ^ b->b[i]);
    return diff == 0;
}

bool auth_check(const struct auth *a, const char *authorization, const char **salt)
{
    *salt = NULL;
    if (a->n == 0)
        return true;
    if (authorization == NULL || strncasecmp(authorization, "Bearer ", 7) != 0)
        return false;
    const char *given = authorization + 7;
    given += strspn(given, " ");
    struct sha256 digest = sha256_of(given, strlen(given));
    /* compares all keys, so that the time does not depend on the matching one */
    for (int i = 0; i < a->n; i++) {
        if (same(&digest, &a->key[i].digest))
            *salt = a->key[i].salt;
    }
    return *salt != NULL;
}
