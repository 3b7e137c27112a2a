/* auth.h - API keys: kept as digests, compared in constant time, each with its cache salt.
 *
 * Two tenants with different keys never see each other's state. The salt of a request is an HMAC
 * of its key, so equal prompts of different keys are different chunks. The salt, which reaches
 * the store, does not reveal the key. */
#ifndef SERVER_AUTH_H
#define SERVER_AUTH_H

#include <stdbool.h>

struct auth;

/* Computes the salt of a key's state, which is also the name of its tenant in a server's files. */
void auth_salt(const char *key, char salt[65]);

/* Keeps the digests and salts of n keys. The last n_admin of them are administrators' keys, which
 * see all counters. */
void auth_create(const char *const *keys, int n, int n_admin, struct auth **out);
void auth_destroy(struct auth *a);

/* Checks the value of the header Authorization (NULL: absent). Returns false if it holds none of
 * the keys. On success *salt is that key's salt, in the auth's memory; NULL if there are no keys.
 * The time taken does not depend on which key matches, nor on how many characters of the key
 * match. */
bool auth_check(const struct auth *a, const char *authorization, const char **salt);

/* Returns the index of the key that has this salt (auth_check), or 0 if there are no keys. */
int auth_tenant(const struct auth *a, const char *salt);
/* Returns the index of the key with this salt, or -1 if no key has it any more. */
int auth_find(const struct auth *a, const char *salt);
/* Returns whether this salt's key sees all counters: it is an administrator's, or the only key. */
bool auth_sees_all(const struct auth *a, const char *salt);

#endif
