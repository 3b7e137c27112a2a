/* dram_json.h - statistics of the copies in DRAM as JSON, for /v1/cache/stats and `hcache run`. */
#ifndef API_DRAM_JSON_H
#define API_DRAM_JSON_H

#include "base/json.h"
#include "hcache.h"

/* Returns an object with the statistics, named "dram". */
struct json *dram_json(const struct hcache_dram *d);

#endif
