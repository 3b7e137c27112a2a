/* keep.h - what the routes of kept conversations share; private to src/server. */
#ifndef SERVER_KEEP_H
#define SERVER_KEEP_H

#include "server/call.h"
#include "requests/generation.h"
#include "sessions/items.h"

enum { KEEP_TITLE_BYTES = 80 };

/* What the store of conversations says, as the API tells it; -1. */
int keep_fault(const struct err *err, struct fault *f);
/* This server keeps none; -1. */
int keep_none(struct fault *f);

/* The query's limit (default_limit; 1 to 100), order (desc) and after. */
int keep_page(struct call *c, int default_limit, struct items_page *out, struct fault *f);

/* Cuts "ID/REST" in two; returns REST, "" where there is none. */
const char *keep_split(char *tail);

/* Keeps the state of a context until then (0: ends that): of *n_tokens, in full
 * chunks. 0, or -1. */
int keep_pin(struct call *c, const struct hcache_context *context, int64_t until_wall_s,
             int *n_tokens, struct fault *f);

/* The member of a conversation's metadata that holds a time to live for the state of its
 * responses. */
#define KEEP_TTL_NAME "cache_ttl"
/* Reads seconds as decimal digits, at most HCACHE_MAX_CACHE_TTL_S. Returns false where it is
 * something else. */
bool keep_ttl(const char *text, int64_t *ttl_s);

/* Guarantees the state of a context until then, after all that was computed before is durable. 0,
 * or -1: 409 with the reason and the sums where it cannot be promised. */
int keep_guarantee(struct call *c, const struct hcache_context *context,
                   int64_t until_wall_s, struct hcache_guarantee *out, struct fault *f);

/* Takes the chunks out of the store that belonged to what was erased, now and before. */
struct hcache_erased keep_bury(struct server *s);
/* Erases what is older than the TTL, and buries. arg: a struct server. On the worker's thread. */
void keep_tidy(void *arg);

/* Adds "erased": "local" to the answer of an erasure, where other servers hear of it later. */
void keep_put_where(struct json *o, struct call *c);

/* Buries, and is the answer: {"id", "object", "deleted", ...}. */
struct json *keep_deleted(struct call *c, const char *id, const char *object,
                          const struct erased *gone);

#endif
