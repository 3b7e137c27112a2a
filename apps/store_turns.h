/* store_turns.h - a kept conversation as JSON text and back, for hcache store export and import.
 *
 *     {"owner": "0123456789abcdef",
 *      "conversation": {"name", "title", "metadata"} or null,
 *      "turns": [{"name", "created", "is_visible", "answer", "input", "output",
 *                 "restoration", "fingerprint", "n_kept", "tokens": [...],
 *                 "marks": [[n_bytes, n_tokens, digest], ...], "keys": [...]}, ...]}
 *
 * Turns are in order, from the first.  Names stay the same, so the conversation continues under its
 * name.  The owner is store_owner of the tenant, in hexadecimal.  It does not reveal the API key,
 * and the conversation returns to the same tenant. */
#ifndef APPS_STORE_TURNS_H
#define APPS_STORE_TURNS_H

#include "apps/api_keys.h"
#include "api/conversations.h"

/* Exports a conversation "conv_..", or the turns up to a response "resp_..", of any of the tenants.
 * *text and (*keys)[0..*n_keys), the chunks that its *n_turns turns name, are the caller's to free.
 * Returns ERR_NOT_FOUND if there is no such conversation or response. */
int turns_export(struct conversations *c, const struct tenant_names *tenants,
                 const char *name, char **text, struct sha256 **keys, int *n_keys,
                 int *n_turns, struct err *err);
/* Adds the turns that the owner does not have yet; *n_added is their number. Returns ERR_MISMATCH
 * if none of the tenants is the owner, or if a conversation of that name has continued
 * differently. */
int turns_import(struct conversations *c, const struct tenant_names *tenants,
                 const char *text, size_t n, int *n_added, struct err *err);

#endif
