/* counts.h - what a server tells of itself (struct hcache_stats): counted as requests end, and
 * read from the engine, the saver and the store.
 *
 * Nothing here locks: the service's lock protects struct counts. */
#ifndef SERVICE_COUNTS_H
#define SERVICE_COUNTS_H

#include <stdint.h>

#include "hcache.h"
#include "policy/surprise.h"
#include "store/store.h"

struct engine_stats;
struct remote;
struct hcache_ticket;
struct saver;

struct counts {
    struct hcache_stats now; /* what is counted here; the rest is read */
    uint64_t n_plans[8];     /* by the methods in it, as bits */
    uint64_t n_surprises[SURPRISES];
};

/* Between two tokens of one answer. */
void counts_gap(struct counts *c, double seconds);
/* A request has ended: what its result says. */
void counts_end(struct counts *c, const struct hcache_ticket *t);

/* Sets *out to all that was counted, and what the engine says. */
void counts_read(const struct counts *c, const struct engine_stats *e,
                 struct hcache_stats *out);
/* Returns the public form of what the store says of its DRAM tier. */
struct hcache_dram counts_dram(const struct store_dram *d);
/* All 0 where r is NULL. */
struct hcache_remote counts_remote(struct remote *r);
/* Add to *out; any thread, no lock needed. */
void counts_read_saver(struct saver *saver, struct hcache_stats *out);
void counts_read_store(struct store *store, struct hcache_stats *out);

#endif
