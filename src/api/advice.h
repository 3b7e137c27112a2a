/* advice.h - the advice on a store's size as JSON, for /v1/cache/stats and `hcache store`. */
#ifndef API_ADVICE_H
#define API_ADVICE_H

#include "base/json.h"
#include "hcache.h"

/* Returns a list with a row for each time. */
struct json *advice_json(const struct hcache_advice a[HCACHE_ADVICES]);

#endif
