/* provenance.h - the origin of an answer's state, as JSON (docs/STATEFUL.md): what was restored,
 * by which plan, how long it took, and why no more was restored. Pure. */
#ifndef API_PROVENANCE_H
#define API_PROVENANCE_H

#include "base/json.h"
#include "hcache.h"

/* Returns why no more of the prompt's state was restored, or NULL if all full chunks before the
 * last token came back. The text is never "". `what` is a reason that tokenizing found, or "". */
const char *provenance_miss(const struct hcache_result *r, const char *what);

/* Returns a new object, which the caller owns. `what`: as in provenance_miss. */
struct json *provenance_json(const struct hcache_result *r, const char *what);

/* Returns the plan: the method of each layer, and the reason. NULL: nothing was restored. */
struct json *provenance_plan(const struct hcache_plan *p);

#endif
