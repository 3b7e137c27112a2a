/* restoration.h - how the state of an answer came to be, as JSON: docs/STATEFUL.md.  Pure. */
#ifndef SESSIONS_RESTORATION_H
#define SESSIONS_RESTORATION_H

#include "format/json.h"
#include "hcache.h"

/* Why not more of the prompt's state was restored: a reason that is not empty, or NULL where all of it
 * was that could be.  what: a reason that tokenizing found, "" for none. */
const char *restoration_miss(const struct hcache_result *r, const char *what);

/* what: a miss reason that the tokens themselves gave, "" for none. */
struct json *restoration_json(const struct hcache_result *r, const char *what);

/* Under `key` the method of each layer and why, as every answer tells it; null where nothing was restored. */
void restoration_put_plan(struct json *o, const char *key, const struct hcache_plan *p);

#endif
