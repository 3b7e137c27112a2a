/* control.c - the public interface's control of saved state: keys, pins, erasing, statistics. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "store/remote/remote.h"
#include "api/counts.h"
#include "api/hcache_impl.h"
#include "store/chain.h"
#include "store/advise.h"

_Static_assert(sizeof(struct sha256) == 32, "keys are passed as they are");
_Static_assert((int)STORE_MISSES <= (int)HCACHE_MAX_COUNTS &&
                   (int)STORE_EVICTS <= (int)HCACHE_MAX_COUNTS,
               "every reason has a place");

static int need_store(const struct hcache *h, struct err *err)
{
    return h->k.store != NULL
               ? 0
               : err_set(err, ERR_UNSUPPORTED, "no state is stored (--store)");
}

/* Returns the keys of all full chunks, then those of the unfinished chunk at the end: with the last
 * token and without it. Both are needed, because a sequence's last generated token has no state
 * when it ends, so the saved end may lack that token. */
int hcache_chunk_keys(const struct hcache *h, int context, int step, int keep,
                      const int32_t *ids, int n, const char *salt, uint8_t (*keys)[32])
{
    struct chain c;
    struct sha256 *out = (void *)keys;
    int n_keys = 0;
    chain_init(&c, &h->k.fingerprint, salt);
    c.truncation = (struct truncation){context, step, keep};
    chain_extend(&c, ids, n);
    for (; n_keys < c.n_chunks; n_keys++)
        out[n_keys] = c.keys[n_keys];
    for (int end = n; end > 0 && end > n - 2; end--) {
        int full = end / STORE_CHUNK_TOKENS, tail = end % STORE_CHUNK_TOKENS;
        struct sha256 parent = chain_stored_parent(&c, full);
        if (tail > 0)
            out[n_keys++] = store_partial_key(
                &parent, ids + (size_t)full * STORE_CHUNK_TOKENS, tail);
    }
    chain_deinit(&c);
    return n_keys;
}

/* --- pins ------------------------------------------------------------------------------------- */

int hcache_cache_pin(struct hcache *h, uint8_t (*keys)[32], int n, int64_t until_wall_s,
                     struct hcache_err *err)
{
    int rc = need_store(h, hcache_inner(err));
    if (rc != 0)
        return rc;
    const struct sha256 *k = (const void *)keys;
    return until_wall_s <= clock_wall_s()
               ? store_unpin_keys(h->k.store, k, n, hcache_inner(err))
               : store_pin_until(h->k.store, k, n, until_wall_s, hcache_inner(err));
}

/* --- erasing ---------------------------------------------------------------------------------- */

/* Calls a function for the service of each model that uses the store. */
static void each_service(struct hcache *h, void (*fn)(struct service *s))
{
    if (h->shared == NULL) {
        fn(h->service);
        return;
    }
    pthread_mutex_lock(&h->shared->lock);
    for (struct hcache *o = h->shared->open; o != NULL; o = o->next)
        fn(o->service);
    pthread_mutex_unlock(&h->shared->lock);
}

/* Reports the result of an erasure to the engines and the caller. */
static void erased_tell(struct hcache *h, const struct store_erased *gone,
                        struct hcache_erased *out)
{
    if (gone->n_chunks > 0 || gone->n_owed > 0)
        each_service(h, service_forget_erased);
    *out = (struct hcache_erased){.n_chunks = (int64_t)gone->n_chunks,
                                  .n_bytes = (int64_t)gone->n_bytes,
                                  .n_shared = (int64_t)gone->n_shared,
                                  .n_busy = (int64_t)gone->n_busy,
                                  .n_owed = (int64_t)gone->n_owed,
                                  .is_noted = gone->is_noted};
    memcpy(out->not_noted_because, gone->not_noted_because, sizeof out->not_noted_because);
}

int hcache_cache_erase(struct hcache *h, uint8_t (*keys)[32], int n,
                       struct hcache_erased *out, struct hcache_err *err)
{
    struct store_erased gone = {0};
    const struct sha256 *k = (const void *)keys;
    int rc = need_store(h, hcache_inner(err));
    if (rc == 0) {
        remote_erase_begin(h->k.remote);
        rc = store_erase(h->k.store, k, n, &gone, hcache_inner(err));
        int n_kept = gone.n_shared < (uint64_t)n ? (int)gone.n_shared : n;
        remote_erase_end(h->k.remote, NULL, k + n_kept, n - n_kept);
    }
    erased_tell(h, &gone, out);
    return rc;
}

int hcache_cache_forget(struct hcache *h, uint8_t (*keys)[32], int n,
                        struct hcache_erased *out, struct hcache_err *err)
{
    struct store_erased gone = {0};
    int rc = need_store(h, hcache_inner(err));
    if (rc == 0) {
        remote_erase_begin(h->k.remote);
        rc = store_erase_continuing(h->k.store, (const void *)keys, n, &gone,
                                    hcache_inner(err));
        remote_erase_end_text(h->k.remote, (const void *)keys, n);
    }
    erased_tell(h, &gone, out);
    return rc;
}

/* No chunk of another salt continues a chunk of this salt, so all of them can be erased. */
int hcache_cache_clear(struct hcache *h, const char *salt, struct hcache_erased *out,
                       struct hcache_err *err)
{
    struct store_erased gone = {0};
    int rc = need_store(h, hcache_inner(err));
    if (rc == 0) {
        uint64_t owner = store_owner(salt);
        remote_erase_begin(h->k.remote);
        rc = store_erase_owner(h->k.store, owner, &gone, hcache_inner(err));
        remote_erase_end(h->k.remote, &owner, NULL, 0);
    }
    erased_tell(h, &gone, out);
    return rc;
}

int hcache_cache_settle(struct hcache *h, struct hcache_err *err)
{
    return h->k.store != NULL ? store_settle(h->k.store, hcache_inner(err)) : 0;
}

int hcache_cache_evict_idle(struct hcache *h, int64_t idle_s, uint64_t *n_chunks,
                            struct hcache_err *err)
{
    *n_chunks = 0;
    int rc = need_store(h, hcache_inner(err));
    return rc != 0 ? rc
                   : store_evict_idle(h->k.store, clock_wall_s() - idle_s, n_chunks,
                                      hcache_inner(err));
}

int hcache_cache_evict_expired(struct hcache *h, uint64_t *n_chunks, struct hcache_err *err)
{
    *n_chunks = 0;
    int rc = need_store(h, hcache_inner(err));
    return rc != 0 ? rc : store_evict_expired(h->k.store, n_chunks, hcache_inner(err));
}

void hcache_cache_flush(struct hcache *h)
{
    each_service(h, service_flush);
}

/* --- quotas and counts ------------------------------------------------------------------------ */

void hcache_cache_quota(struct hcache *h, const char *salt, uint64_t bytes)
{
    if (h->k.store != NULL)
        store_set_quota(h->k.store, store_owner(salt), bytes);
}

struct owner_look {
    uint64_t owner;
    struct hcache_cache_stats *out;
};

static int look_at_owner(void *arg, const struct store_owner_use *u)
{
    const struct owner_look *look = arg;
    if (u->owner != look->owner)
        return 0;
    look->out->salt_chunks = u->n_chunks;
    look->out->salt_bytes = u->used_bytes;
    look->out->salt_quota_bytes = u->quota_bytes;
    look->out->salt_guaranteed_bytes = u->guaranteed_bytes;
    return 1;
}

void hcache_cache_stats(struct hcache *h, const char *salt, struct hcache_cache_stats *out)
{
    struct store_stats st;
    struct saver_stats saver = {0};
    struct remote_stats remote;
    struct owner_look look = {.owner = store_owner(salt), .out = out};
    *out = (struct hcache_cache_stats){.saving_fault = h->k.store_err.code};
    snprintf(out->saving_why, sizeof out->saving_why, "%.199s", h->k.store_err.msg);
    if (h->k.store == NULL)
        return;
    store_stats(h->k.store, &st);
    if (h->k.saver != NULL)
        saver_stats(h->k.saver, &saver);
    remote_stats(h->k.remote, &remote);
    counts_cache(&st, out);
    out->policy = placement_names[h->k.policy];
    out->remote = counts_remote(&remote);
    if (out->saving_fault == 0 && (st.saving_fault != 0 || saver.fault != 0)) {
        out->saving_fault = st.saving_fault != 0 ? st.saving_fault : saver.fault;
        snprintf(out->saving_why, sizeof out->saving_why, "%.199s", saver.fault_why);
    }
    (void)store_each_owner(h->k.store, look_at_owner, &look);
}

int hcache_cache_advise(struct hcache *h, struct hcache_advice out[HCACHE_ADVICES],
                        struct hcache_err *err)
{
    _Static_assert((int)HCACHE_ADVICES == (int)STORE_ADVICES, "one row for each time");
    struct store_advice a[STORE_ADVICES];
    int rc = need_store(h, hcache_inner(err));
    if (rc != 0)
        return rc;
    store_advise(h->k.store, clock_wall_s(), a);
    for (int i = 0; i < STORE_ADVICES; i++)
        out[i] = (struct hcache_advice){a[i].within, a[i].seconds, a[i].contexts,
                                        a[i].bytes};
    return 0;
}
