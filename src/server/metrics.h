/* metrics.h - the text of GET /metrics, made from counters; private to src/server. Pure. */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include "base/textbuf.h"
#include "hcache.h"
#include "server/tenants.h"

/* Appends the metrics of the engine and of the saved state. idle_ttl_s: as in server_opts. */
void metrics_of_engine(struct textbuf *b, const struct hcache_stats *st,
                       const struct hcache_cache_stats *k, int64_t idle_ttl_s);
/* Appends the advice on the store's size. */
void metrics_of_advice(struct textbuf *b, const struct hcache_advice a[HCACHE_ADVICES]);
/* Appends one key's metrics, under the same names as the metrics of all keys. */
void metrics_of_tenant(struct textbuf *b, const struct tenant_counts *t);

#endif
