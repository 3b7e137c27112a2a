/* counts.h - a server's statistics (struct hcache_stats): counted as requests end, and read from
 * the engine, the saver and the store. Pure.
 *
 * Nothing here locks: the service's lock protects struct counts. */
#ifndef API_COUNTS_H
#define API_COUNTS_H

#include <stdint.h>

#include "hcache.h"
#include "store/store.h"

struct engine_stats;
struct remote_stats;
struct hcache_ticket;
struct saver_stats;

struct counts {
    /* the fields that are counted as requests end; the functions below fill in all others */
    struct hcache_stats now;
    uint64_t n_plans[8]; /* plans by the set of their methods, as bits */
};

/* Notes the time between two tokens of one answer. */
void counts_gap(struct counts *c, double seconds);
/* Counts the result of an ended request. */
void counts_end(struct counts *c, const struct hcache_ticket *t);

/* Sets *out to everything that was counted, and to the engine's statistics. */
void counts_read(const struct counts *c, const struct engine_stats *e,
                 struct hcache_stats *out);
/* Adds the counts of another model to `to`, and its present numbers, such as waiting requests. */
void counts_sum(struct hcache_stats *to, const struct hcache_stats *from);
/* Sets what is present now, such as waiting requests, to 0: the model is unloaded. */
void counts_unloaded(struct hcache_stats *st);

/* Returns the public form of statistics. A struct without a URL means that there is no remote; then
 * it has no misses. */
struct hcache_remote counts_remote(const struct remote_stats *st);
/* Add statistics to *out. */
void counts_saver(const struct saver_stats *st, struct hcache_stats *out);
void counts_cache(const struct store_stats *st, struct hcache_cache_stats *out);

#endif
