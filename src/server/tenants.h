/* tenants.h - what each API key's requests have come to, so that nobody reads another's counters.
 *
 * A tenant is a key by its place (auth_tenant).  Counts are since the start.  Any thread. */
#ifndef SERVER_TENANTS_H
#define SERVER_TENANTS_H

#include <stdint.h>

#include "hcache.h"
#include "requests/client.h"

struct tenants;

struct tenant_counts {
    uint64_t n_http; /* requests of any kind */
    uint64_t n_open; /* answers that are being generated, or wait for it */
    uint64_t n_ended[ANSWER_ENDS];
    uint64_t device_tokens, restored_tokens, computed_tokens; /* of prompts */
    uint64_t generated_tokens, restored_bytes;
    uint64_t n_restores,
        n_misses; /* answers with something restored; with a reason for less */
};

/* n keys; 0: the server is open, and all requests are one tenant's. */
void tenants_create(int n, struct tenants **out);
void tenants_destroy(struct tenants *t); /* NULL is allowed */

void tenants_request(struct tenants *t, int tenant); /* an HTTP request with a right key */
void tenants_begin(struct tenants *t, int tenant);   /* an answer was submitted */
/* It has ended. r: its result, NULL where there is none; missed: it names a miss reason. */
void tenants_end(struct tenants *t, int tenant, enum answer_end end,
                 const struct hcache_result *r, bool missed);
void tenants_read(struct tenants *t, int tenant, struct tenant_counts *out);

#endif
