/* api_cache_stats.c - GET /v1/cache/stats: tiers, hits, bounds and the advice on a size. A key that
 * is not an administrator's sees only its own figures. */
#include <stdlib.h>
#include <string.h>

#include "api/cache_json.h"
#include "server/auth.h"
#include "server/keep.h"
#include "server/tenants.h"

static struct json *counts(const struct hcache_counts *c)
{
    struct json *o = json_new_object();
    for (int i = 0; i < c->n; i++)
        json_put_int(o, c->at[i].name, (int64_t)c->at[i].count);
    return o;
}

static struct json *rates(const struct hcache_stats *st)
{
    struct json *o = json_new_object();
    double cached = (double)(st->device_tokens + st->restored_tokens);
    double all = cached + (double)st->computed_tokens;
    json_put_int(o, "device_tokens", (int64_t)st->device_tokens);
    json_put_int(o, "restored_tokens", (int64_t)st->restored_tokens);
    json_put_int(o, "dram_tokens", (int64_t)st->dram_tokens);
    json_put_int(o, "computed_tokens", (int64_t)st->computed_tokens);
    json_put_real(o, "hit_rate", all > 0 ? cached / all : 0);
    json_put_int(o, "requests", (int64_t)st->n_ended);
    json_put_int(o, "restores", (int64_t)st->n_restores);
    json_put_int(o, "requests_with_a_miss", (int64_t)st->n_misses);
    json_put_int(o, "running", st->n_running);
    json_put_int(o, "waiting", st->n_waiting);
    return o;
}

static struct json *tier(const struct hcache_cache_stats *k, int64_t idle_ttl_s)
{
    struct json *o = json_new_object();
    json_put_string(o, "name", k->tier);
    json_put_string(o, "policy", k->policy);
    json_put_int(o, "idle_ttl_s", idle_ttl_s);
    json_put_int(o, "chunks", (int64_t)k->n_chunks);
    json_put_int(o, "used_bytes", (int64_t)k->used_bytes);
    json_put_int(o, "cap_bytes", (int64_t)k->cap_bytes);
    json_put_int(o, "files_cap_bytes", (int64_t)k->files_cap_bytes);
    json_put_int(o, "file_bytes", (int64_t)k->file_bytes);
    json_put_int(o, "pending_bytes", (int64_t)k->pending_bytes);
    json_put_int(o, "pins", (int64_t)k->n_pins);
    json_put_int(o, "expiring_chunks", (int64_t)k->n_expiring);
    json_put_int(o, "guarantees", (int64_t)k->n_guarantees);
    json_put_int(o, "guaranteed_bytes", (int64_t)k->guaranteed_bytes);
    json_put_int(o, "guarantee_limit_bytes", (int64_t)k->guarantee_limit_bytes);
    json_put_int(o, "guarantees_broken", (int64_t)k->n_guarantees_broken);
    json_put_int(o, "chunk_hits", (int64_t)k->n_hits);
    json_put_int(o, "chunk_misses", (int64_t)k->n_misses);
    json_put_int(o, "evicted", (int64_t)k->n_evicted);
    json_put_int(o, "corrupt", (int64_t)k->n_corrupt);
    json_put_int(o, "written_bytes", (int64_t)k->appended_bytes);
    json_put_int(o, "read_bytes", (int64_t)k->read_bytes);
    json_put(o, "misses_by_reason", counts(&k->misses));
    json_put(o, "evictions_by_reason", counts(&k->evictions));
    json_put_bool(o, "saves", k->saving_fault == 0);
    return o;
}

/* Returns the statistics of the tier that servers share, behind the store. */
static struct json *remote_tier(const struct hcache_remote *r)
{
    struct json *o = json_new_object();
    json_put_string(o, "name", "remote");
    json_put_string(o, "url", r->url);
    json_put_bool(o, "up", r->is_up);
    json_put_bool(o, "full", r->is_full);
    json_put_string(o, "down_because", r->is_up && !r->is_full ? NULL : r->why_down);
    json_put_int(o, "fetches", (int64_t)r->n_fetches);
    json_put_int(o, "round_trips", (int64_t)r->n_round_trips);
    json_put_int(o, "fetched_chunks", (int64_t)r->n_fetched);
    json_put_int(o, "fetched_bytes", (int64_t)r->fetched_bytes);
    json_put(o, "misses_by_reason", counts(&r->misses));
    json_put_int(o, "written_chunks", (int64_t)r->n_written);
    json_put_int(o, "written_bytes", (int64_t)r->written_bytes);
    json_put_int(o, "known_chunks", (int64_t)r->n_known);
    json_put_int(o, "dropped_chunks", (int64_t)r->n_dropped);
    json_put_int(o, "gone_chunks", (int64_t)r->n_gone);
    json_put_int(o, "refused_chunks", (int64_t)r->n_refused);
    json_put_int(o, "queued_chunks", (int64_t)r->n_queued);
    json_put_int(o, "failures", (int64_t)r->n_failures);
    json_put_int(o, "servers", (int64_t)r->n_servers);
    json_put_int(o, "erasures_to_publish", (int64_t)r->n_unpublished);
    json_put_int(o, "erasures", (int64_t)r->n_erasures);
    json_put_int(o, "erasures_everywhere", (int64_t)r->n_erasures_everywhere);
    json_put_real(o, "latency_ms", r->latency_s * 1e3);
    json_put_real(o, "bytes_per_s", r->bytes_per_s);
    return o;
}

struct json *api_cache_salt_use(const struct hcache_cache_stats *k)
{
    struct json *o = json_new_object();
    json_put_int(o, "chunks", (int64_t)k->salt_chunks);
    json_put_int(o, "used_bytes", (int64_t)k->salt_bytes);
    json_put_int(o, "quota_bytes", (int64_t)k->salt_quota_bytes);
    json_put_int(o, "guaranteed_bytes", (int64_t)k->salt_guaranteed_bytes);
    return o;
}

/* Returns the statistics of the call's key. */
static struct json *tenant_rates(struct call *c)
{
    struct tenant_counts t;
    struct json *o = json_new_object();
    uint64_t n_ended = 0;
    tenants_read(c->s->tenants, auth_tenant(c->s->auth, c->salt), &t);
    double cached = (double)(t.device_tokens + t.restored_tokens);
    double all = cached + (double)t.computed_tokens;
    for (int i = 0; i < ANSWER_ENDS; i++)
        n_ended += t.n_ended[i];
    json_put_int(o, "device_tokens", (int64_t)t.device_tokens);
    json_put_int(o, "restored_tokens", (int64_t)t.restored_tokens);
    json_put_int(o, "computed_tokens", (int64_t)t.computed_tokens);
    json_put_real(o, "hit_rate", all > 0 ? cached / all : 0);
    json_put_int(o, "requests", (int64_t)n_ended);
    json_put_int(o, "restores", (int64_t)t.n_restores);
    json_put_int(o, "requests_with_a_miss", (int64_t)t.n_misses);
    json_put_int(o, "open", (int64_t)t.n_open);
    return o;
}

/* Returns the part of a tier's statistics that every key may see. */
static struct json *tenant_tier(const struct hcache_cache_stats *k)
{
    struct json *o = json_new_object();
    json_put_string(o, "name", k->tier);
    json_put_bool(o, "saves", k->saving_fault == 0);
    return o;
}

static void put_tenant_conversations(struct json *o, struct call *c)
{
    struct conversations_stats st;
    struct err err = {0};
    if (c->s->conversations == NULL ||
        conversations_stats_of(c->s->conversations, call_tenant(c), &st, &err) != 0) {
        json_put_null(o, "conversations");
        return;
    }
    struct json *v = json_new_object();
    json_put_int(v, "conversations", st.n_conversations);
    json_put_int(v, "turns", st.n_turns);
    json_put(o, "conversations", v);
}

static void put_conversations(struct json *o, struct call *c)
{
    struct conversations_stats st;
    struct err err = {0};
    if (c->s->conversations == NULL ||
        conversations_stats(c->s->conversations, &st, &err) != 0) {
        json_put_null(o, "conversations");
        return;
    }
    struct json *v = json_new_object();
    json_put_int(v, "conversations", st.n_conversations);
    json_put_int(v, "turns", st.n_turns);
    json_put_int(v, "used_bytes", (int64_t)st.used_bytes);
    json_put_int(v, "chunks_to_erase", st.n_doomed);
    json_put(o, "conversations", v);
}

/* Adds the advice on the store's size. The advice is made for this request only, because making it
 * visits every chunk. */
static void put_advice(struct json *o, struct call *c)
{
    struct hcache_advice a[HCACHE_ADVICES];
    if (hcache_cache_advise(call_model(c), a, NULL) != 0) {
        json_put_null(o, "advice");
        return;
    }
    json_put(o, "advice", advice_json(a));
}

void api_cache_stats(struct call *c)
{
    struct hcache_cache_stats k;
    struct hcache_stats st;
    struct json *o = json_new_object(), *tiers = json_new_array();
    char *salt = call_state_salt(c, call_query(c, "cache_salt"));
    hcache_cache_stats(call_model(c), salt, &k);
    call_stats(c, &st);
    bool all = auth_sees_all(c->s->auth, c->salt);
    json_put_string(o, "object", "cache.stats");
    json_put_string(o, "of", all ? "all" : "key");
    if (all && k.dram.cap_bytes > 0)
        json_push(tiers, dram_json(&k.dram));
    if (k.tier != NULL)
        json_push(tiers, all ? tier(&k, c->s->o.idle_ttl_s) : tenant_tier(&k));
    if (all && k.remote.url[0] != 0)
        json_push(tiers, remote_tier(&k.remote));
    json_put(o, "tiers", tiers);
    json_put_bool(o, "saves", k.tier != NULL && k.saving_fault == 0);
    json_put_string(o, "not_saved_because", k.saving_fault != 0 ? k.saving_why : NULL);
    json_put(o, "prompts", all ? rates(&st) : tenant_rates(c));
    json_put(o, "salt", api_cache_salt_use(&k));
    if (all)
        put_conversations(o, c);
    else
        put_tenant_conversations(o, c);
    const char *advise = call_query(c, "advise");
    if (all && advise != NULL && strcmp(advise, "true") == 0)
        put_advice(o, c);
    call_json(c, 200, o);
    free(salt);
}
