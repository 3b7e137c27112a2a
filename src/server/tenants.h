/* tenants.h - counters of each API key's requests, so that no key sees another's.
 *
 * A tenant is a key, by its index (auth_tenant). Counts are since the start. Any thread. */
#ifndef SERVER_TENANTS_H
#define SERVER_TENANTS_H

#include <stdint.h>

#include "hcache.h"
#include "api/client.h"

struct tenants;

struct tenant_counts {
    uint64_t n_http; /* HTTP requests of any kind */
    uint64_t n_open; /* answers that are being generated, or wait for their turn */
    uint64_t n_ended[ANSWER_ENDS];
    /* prompt tokens: found on the device, restored, computed */
    uint64_t device_tokens, restored_tokens, computed_tokens;
    uint64_t generated_tokens, restored_bytes;
    /* answers with restored state; answers with a reason why no more was restored */
    uint64_t n_restores, n_misses;
    uint64_t body_bytes; /* memory of the bodies of its requests, now */
};

/* Creates the counters of n keys. n = 0: the server needs no key, and all requests belong to one
 * tenant. */
void tenants_create(int n, struct tenants **out);
void tenants_destroy(struct tenants *t); /* NULL is allowed */

/* counts an HTTP request with a right key */
void tenants_request(struct tenants *t, int tenant);
/* notes that an answer was submitted */
void tenants_begin(struct tenants *t, int tenant);
/* Notes that an answer has ended. r is its result, or NULL. `missed` says that the result has a
 * reason why no more was found. */
void tenants_end(struct tenants *t, int tenant, enum answer_end end,
                 const struct hcache_result *r, bool missed);
/* Adds to the bytes of bodies that the tenant has in memory. Returns their sum. */
uint64_t tenants_body(struct tenants *t, int tenant, int64_t more_bytes);
void tenants_read(struct tenants *t, int tenant, struct tenant_counts *out);

#endif
