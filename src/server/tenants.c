/* tenants.c - see tenants.h. */
#include "server/tenants.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/mem.h"

struct tenants {
    pthread_mutex_t lock; /* protects the array `of` */
    int n;
    struct tenant_counts of[];
};

void tenants_create(int n, struct tenants **out)
{
    n = n > 0 ? n : 1;
    struct tenants *t = xcalloc(1, sizeof *t + (size_t)n * sizeof t->of[0]);
    pthread_mutex_init(&t->lock, NULL);
    t->n = n;
    *out = t;
}

void tenants_destroy(struct tenants *t)
{
    if (t == NULL)
        return;
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static struct tenant_counts *counts_of(struct tenants *t, int tenant)
{
    CHECK(tenant >= 0 && tenant < t->n);
    return &t->of[tenant];
}

void tenants_request(struct tenants *t, int tenant)
{
    pthread_mutex_lock(&t->lock);
    counts_of(t, tenant)->n_http++;
    pthread_mutex_unlock(&t->lock);
}

void tenants_begin(struct tenants *t, int tenant)
{
    pthread_mutex_lock(&t->lock);
    counts_of(t, tenant)->n_open++;
    pthread_mutex_unlock(&t->lock);
}

void tenants_end(struct tenants *t, int tenant, enum answer_end end,
                 const struct hcache_result *r, bool missed)
{
    pthread_mutex_lock(&t->lock);
    struct tenant_counts *c = counts_of(t, tenant);
    CHECK(c->n_open > 0);
    c->n_open--;
    c->n_ended[end]++;
    if (r != NULL) {
        c->device_tokens += (uint64_t)r->device_tokens;
        c->restored_tokens += (uint64_t)(r->cached_tokens - r->device_tokens);
        c->computed_tokens += (uint64_t)(r->prompt_tokens - r->cached_tokens);
        c->generated_tokens += (uint64_t)r->n_tokens;
        c->restored_bytes += r->restored_bytes;
        c->n_restores += r->cached_tokens > r->device_tokens;
        c->n_misses += missed;
    }
    pthread_mutex_unlock(&t->lock);
}

uint64_t tenants_body(struct tenants *t, int tenant, int64_t more_bytes)
{
    pthread_mutex_lock(&t->lock);
    struct tenant_counts *c = counts_of(t, tenant);
    c->body_bytes += (uint64_t)more_bytes;
    uint64_t sum = c->body_bytes;
    pthread_mutex_unlock(&t->lock);
    return sum;
}

void tenants_read(struct tenants *t, int tenant, struct tenant_counts *out)
{
    pthread_mutex_lock(&t->lock);
    *out = *counts_of(t, tenant);
    pthread_mutex_unlock(&t->lock);
}
