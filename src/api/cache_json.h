/* cache_json.h - what the server's routes and the program's commands print alike about the store:
 * the advice on its size, and the statistics of the copies in DRAM. */
#ifndef API_CACHE_JSON_H
#define API_CACHE_JSON_H

#include "base/json.h"
#include "hcache.h"

/* Returns a list with a row for each time. */
struct json *advice_json(const struct hcache_advice a[HCACHE_ADVICES]);

/* Returns an object with the statistics, named "dram". */
struct json *dram_json(const struct hcache_dram *d);

#endif
