/* dram_json.h - statistics of the copies in DRAM as JSON, for /v1/cache/stats and `hcache run`. */
#ifndef REQUESTS_DRAM_JSON_H
#define REQUESTS_DRAM_JSON_H

#include "format/json.h"
#include "hcache.h"

/* Returns an object with the statistics, named "dram". */
struct json *dram_json(const struct hcache_dram *d);

#endif
