/* keep.h - shared by the routes of kept conversations; private to src/server. */
#ifndef SERVER_KEEP_H
#define SERVER_KEEP_H

#include "server/call.h"
#include "api/generation.h"
#include "api/items.h"

enum { KEEP_TITLE_BYTES = 80 };

/* Converts an error of the conversations' store to a fault of the API. Returns -1. */
int keep_fault(const struct err *err, struct fault *f);
/* Makes the fault for a server that keeps no conversations. Returns -1. */
int keep_none(struct fault *f);

/* Reads the page that the query asks for: limit (1 to 100; absent: default_limit), order (absent:
 * desc) and after. Returns 0, or -1 with *f. */
int keep_page(struct call *c, int default_limit, struct items_page *out, struct fault *f);

/* Cuts "ID/REST" in two. Returns REST; "" if there is none. */
const char *keep_split(char *tail);

/* Makes the fault for an error of the store: 400 if the request is wrong, else 500. Returns -1. */
int keep_store_fault(const struct hcache_err *err, struct fault *f);

/* Pins the state of a context until the given time; 0 ends the pin. *n_tokens: number of tokens in
 * the pinned chunks. Only full chunks are pinned. Returns 0, or -1 with *f. */
int keep_pin(struct call *c, const struct hcache_context *context, int64_t until_wall_s,
             int *n_tokens, struct fault *f);

/* Name of the member of a conversation's metadata that gives the time to live of its responses'
 * state. */
#define KEEP_TTL_NAME "cache_ttl"
/* Reads decimal seconds, at most HCACHE_MAX_CACHE_TTL_S. Returns false for any other text. */
bool keep_ttl(const char *text, int64_t *ttl_s);

/* Guarantees the state of a context until the given time, once everything computed before is
 * durable. Returns 0, or -1 with *f: 409 with the reason and the sums if the state cannot be
 * guaranteed. */
int keep_guarantee(struct call *c, const struct hcache_context *context,
                   int64_t until_wall_s, struct hcache_guarantee *out, struct fault *f);

/* Erases from the store all chunks that belonged to erased conversations and are not erased yet. */
struct hcache_erased keep_bury(struct server *s);
/* Erases content older than its time to live, and then its chunks. arg: a struct server. Runs on
 * the disk worker's thread. */
void keep_tidy(void *arg);

/* Adds "erased": "local" to the answer of an erasure if other servers learn of the erasure
 * later. */
void keep_put_where(struct json *o, struct call *c);

/* Erases the doomed chunks and returns the answer: {"id", "object", "deleted", ...}. */
struct json *keep_deleted(struct call *c, const char *id, const char *object,
                          const struct erased *gone);

#endif
