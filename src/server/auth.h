/* auth.h - API keys: kept as digests, compared in constant time, and the cache salt of each.
 *
 * Two tenants with different keys never see each other's state: the salt of a request is an HMAC of
 * its key, so that equal prompts of different keys are different chunks (DESIGN §7), and the salt,
 * which reaches the store, does not tell the key. */
#ifndef SERVER_AUTH_H
#define SERVER_AUTH_H

#include <stdbool.h>

struct auth;

/* The salt of a key's state, which is also the name of its tenant in a server's files. */
void auth_salt(const char *key, char salt[65]);

/* The last n_admin of the n keys are an administrator's: they see all counters. */
void auth_create(const char *const *keys, int n, int n_admin, struct auth **out);
void auth_destroy(struct auth *a);

/* The value of the header Authorization (NULL: absent).  False where it holds none of the keys.  On
 * success *salt is that key's salt, the auth's memory; NULL where there are no keys.  The time
 * taken does not depend on which key matches, nor on how much of it. */
bool auth_check(const struct auth *a, const char *authorization, const char **salt);

/* The place of the key with that salt (auth_check), from 0; 0 too where there are no keys. */
int auth_tenant(const struct auth *a, const char *salt);
/* The place of the key whose salt reads like that, from 0; -1: there is none such key any more. */
int auth_find(const struct auth *a, const char *salt);
/* Whether who shows that key sees what all keys do: an administrator, and who is alone. */
bool auth_sees_all(const struct auth *a, const char *salt);

#endif
