/* api_cache_stats.c - GET /v1/cache/stats: tiers, hits, bounds and the advice on a size. A key that
 * is not an administrator's sees only its own figures. */
#include <stdlib.h>
#include <string.h>

#include "api/cache_json.h"
#include "server/auth.h"
#include "server/keep.h"
#include "server/tenants.h"

static struct json *counts_json(const struct hcache_counts *c)
{
    struct json *o = json_new_object();
    for (int i = 0; i < c->n; i++)
        json_put_int(o, c->at[i].name, (int64_t)c->at[i].count);
    return o;
}

static struct json *rates_json(const struct hcache_stats *st)
{
    double cached = (double)(st->device_tokens + st->restored_tokens);
    double all = cached + (double)st->computed_tokens;
    struct json *o = json_make(
        "{device_tokens: %lu, restored_tokens: %lu, dram_tokens: %lu, "
        "computed_tokens: %lu, hit_rate: %g}",
        st->device_tokens, st->restored_tokens, st->dram_tokens, st->computed_tokens,
        all > 0 ? cached / all : 0);
    json_extend(o,
                "{requests: %lu, restores: %lu, requests_with_a_miss: %lu, running: %d, "
                "waiting: %d}",
                st->n_ended, st->n_restores, st->n_misses, st->n_running, st->n_waiting);
    return o;
}

static struct json *tier_json(const struct hcache_cache_stats *k, int64_t idle_ttl_s)
{
    struct json *o = json_make("{name: %s, policy: %s, idle_ttl_s: %ld, chunks: %lu}",
                               k->tier, k->policy, idle_ttl_s, k->n_chunks);
    json_extend(o,
                "{used_bytes: %lu, cap_bytes: %lu, files_cap_bytes: %lu, file_bytes: %lu, "
                "pending_bytes: %lu}",
                k->used_bytes, k->cap_bytes, k->files_cap_bytes, k->file_bytes,
                k->pending_bytes);
    json_extend(o,
                "{pins: %lu, expiring_chunks: %lu, guarantees: %lu, guaranteed_bytes: %lu}",
                k->n_pins, k->n_expiring, k->n_guarantees, k->guaranteed_bytes);
    json_extend(o, "{guarantee_limit_bytes: %lu, guarantees_broken: %lu}",
                k->guarantee_limit_bytes, k->n_guarantees_broken);
    json_extend(o,
                "{chunk_hits: %lu, chunk_misses: %lu, evicted: %lu, corrupt: %lu, "
                "written_bytes: %lu, read_bytes: %lu}",
                k->n_hits, k->n_misses, k->n_evicted, k->n_corrupt, k->appended_bytes,
                k->read_bytes);
    json_extend(o, "{misses_by_reason: %p, evictions_by_reason: %p, saves: %p}",
                counts_json(&k->misses), counts_json(&k->evictions),
                json_new_bool(k->saving_fault == 0));
    return o;
}

/* Returns the statistics of the tier that servers share, behind the store. */
static struct json *remote_json(const struct hcache_remote *r)
{
    struct json *o = json_make(
        "{name: 'remote', url: %s, up: %p, full: %p, down_because: %s}", r->url,
        json_new_bool(r->is_up), json_new_bool(r->is_full),
        r->is_up && !r->is_full ? NULL : r->why_down);
    json_extend(o,
                "{fetches: %lu, round_trips: %lu, fetched_chunks: %lu, fetched_bytes: %lu, "
                "misses_by_reason: %p}",
                r->n_fetches, r->n_round_trips, r->n_fetched, r->fetched_bytes,
                counts_json(&r->misses));
    json_extend(o,
                "{written_chunks: %lu, written_bytes: %lu, known_chunks: %lu, "
                "dropped_chunks: %lu, gone_chunks: %lu}",
                r->n_written, r->written_bytes, r->n_known, r->n_dropped, r->n_gone);
    json_extend(o, "{refused_chunks: %lu, queued_chunks: %lu, failures: %lu, servers: %lu}",
                r->n_refused, r->n_queued, r->n_failures, r->n_servers);
    json_extend(o, "{erasures_to_publish: %lu, erasures: %lu, erasures_everywhere: %lu}",
                r->n_unpublished, r->n_erasures, r->n_erasures_everywhere);
    json_extend(o, "{latency_ms: %g, bytes_per_s: %g}", r->latency_s * 1e3, r->bytes_per_s);
    return o;
}

struct json *api_cache_salt_use(const struct hcache_cache_stats *k)
{
    return json_make("{chunks: %lu, used_bytes: %lu, quota_bytes: %lu, "
                     "guaranteed_bytes: %lu}",
                     k->salt_chunks, k->salt_bytes, k->salt_quota_bytes,
                     k->salt_guaranteed_bytes);
}

/* Returns the statistics of the call's key. */
static struct json *tenant_rates(struct call *c)
{
    struct tenant_counts t;
    uint64_t n_ended = 0;
    tenants_read(c->s->tenants, auth_tenant(c->s->auth, c->salt), &t);
    double cached = (double)(t.device_tokens + t.restored_tokens);
    double all = cached + (double)t.computed_tokens;
    for (int i = 0; i < ANSWER_ENDS; i++)
        n_ended += t.n_ended[i];
    struct json *o = json_make(
        "{device_tokens: %lu, restored_tokens: %lu, computed_tokens: %lu, hit_rate: %g}",
        t.device_tokens, t.restored_tokens, t.computed_tokens, all > 0 ? cached / all : 0);
    json_extend(o, "{requests: %lu, restores: %lu, requests_with_a_miss: %lu, open: %lu}",
                n_ended, t.n_restores, t.n_misses, t.n_open);
    return o;
}

/* Returns the part of a tier's statistics that every key may see. */
static struct json *tenant_tier(const struct hcache_cache_stats *k)
{
    return json_make("{name: %s, saves: %p}", k->tier, json_new_bool(k->saving_fault == 0));
}

/* Returns the numbers of kept conversations: the tenant's, or of all with the bytes that they take.
 * NULL: none are kept, or they cannot be read. */
static struct json *conversations_of(struct call *c, bool all)
{
    struct conversations_stats st;
    struct err err = {0};
    struct conversations *v = c->s->conversations;
    if (v == NULL || (all ? conversations_stats(v, &st, &err)
                          : conversations_stats_of(v, call_tenant(c), &st, &err)) != 0)
        return NULL;
    struct json *o = json_make("{conversations: %ld, turns: %ld}", st.n_conversations,
                               st.n_turns);
    if (all)
        json_extend(o, "{used_bytes: %lu, chunks_to_erase: %ld}", st.used_bytes,
                    st.n_doomed);
    return o;
}

void api_cache_stats(struct call *c)
{
    struct hcache_cache_stats k;
    struct hcache_stats st;
    struct json *tiers = json_new_array();
    char *salt = call_state_salt(c, call_query(c, "cache_salt"));
    hcache_cache_stats(call_model(c), salt, &k);
    call_stats(c, &st);
    bool all = auth_sees_all(c->s->auth, c->salt);
    struct json *o = json_make("{object: 'cache.stats', of: %s}", all ? "all" : "key");
    if (all && k.dram.cap_bytes > 0)
        json_push(tiers, dram_json(&k.dram));
    if (k.tier != NULL)
        json_push(tiers, all ? tier_json(&k, c->s->o.idle_ttl_s) : tenant_tier(&k));
    if (all && k.remote.url[0] != 0)
        json_push(tiers, remote_json(&k.remote));
    json_extend(o,
                "{tiers: %p, saves: %p, not_saved_because: %s, prompts: %p, "
                "salt: %p}",
                tiers, json_new_bool(k.tier != NULL && k.saving_fault == 0),
                k.saving_fault != 0 ? k.saving_why : NULL,
                all ? rates_json(&st) : tenant_rates(c), api_cache_salt_use(&k));
    json_extend(o, "{conversations: %p}", conversations_of(c, all));
    const char *advise = call_query(c, "advise");
    struct hcache_advice a[HCACHE_ADVICES];
    /* Only this request has the advice made, because making it visits every chunk. */
    if (all && advise != NULL && strcmp(advise, "true") == 0)
        json_extend(o, "{advice: %p}",
                    hcache_cache_advise(call_model(c), a, NULL) == 0 ? advice_json(a)
                                                                     : NULL);
    call_json(c, 200, o);
    free(salt);
}
