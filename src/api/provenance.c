/* provenance.c - see provenance.h. */
#include "api/provenance.h"

#include <string.h>

static void push_part(struct json *list, int from, int to, const char *source)
{
    if (to > from)
        json_push(list, json_make("{from: %d, to: %d, source: %s}", from, to, source));
}

struct json *provenance_plan(const struct hcache_plan *p)
{
    if (p->layers[0] == 0)
        return NULL;
    return json_make("{layers: %s, recompute: %d, hidden: %d, kv: %d, predicted_ms: %.3f, "
                     "surprise: %s, reason: %s}",
                     p->layers, p->recompute, p->hidden, p->kv, p->predicted_ms,
                     p->surprise[0] != 0 ? p->surprise : NULL, p->reason);
}

static struct json *timings_of(const struct hcache_timings *t)
{
    struct json *o = json_make("{queue_ms: %.3f, lookup_ms: %.3f, plan_ms: %.3f}",
                               t->queue_ms, t->lookup_ms, t->plan_ms);
    json_extend(o,
                "{restore_ms: %.3f, restore_io_ms: %.3f, restore_compute_ms: %.3f, "
                "restore_wait_ms: %.3f}",
                t->restore_ms, t->restore_io_ms, t->restore_compute_ms, t->restore_wait_ms);
    json_extend(o, "{prefill_ms: %.3f, ttft_ms: %.3f, decode_ms: %.3f}", t->prefill_ms,
                t->ttft_ms, t->decode_ms);
    return o;
}

/* Returns the work of a restore in its lanes, or NULL if it is not known. */
static struct json *lanes_of(const struct hcache_lanes *l)
{
    if (l->span == NULL)
        return NULL;
    struct json *spans = json_new_array();
    for (int i = 0; i < l->n; i++) {
        const struct hcache_span *s = &l->span[i];
        char method[2] = {s->method, 0};
        json_push(spans, json_make("{lane: %s, layer: %d, method: %s, start_ms: %.3f, "
                                   "end_ms: %.3f}",
                                   s->is_io ? "io" : "compute", s->layer, method,
                                   (double)s->start_ms, (double)s->end_ms));
    }
    return json_make("{ms: %.3f, spans: %p}", l->total_ms, spans);
}

const char *provenance_miss(const struct hcache_result *r, const char *what)
{
    if (what[0] != 0)
        return what;
    if (r->cached_tokens >= (r->prompt_tokens - 1) / 64 * 64)
        return NULL;
    /* The look-up may have found everything, and the request ended before all of it came back. */
    bool is_reason = r->miss[0] != 0 && strcmp(r->miss, "complete") != 0;
    return is_reason ? r->miss : "the request ended before its state was restored";
}

static void push_restored(struct json *list, const struct hcache_result *r)
{
    int at = r->device_tokens;
    if (r->n_restored_parts == 0)
        push_part(list, at, r->cached_tokens, r->tier);
    for (int i = 0; i < r->n_restored_parts; i++) {
        const struct hcache_restored_part *p = &r->restored_part[i];
        push_part(list, at, at + p->n_tokens, p->source);
        at += p->n_tokens;
    }
}

struct json *provenance_json(const struct hcache_result *r, const char *what)
{
    struct json *parts = json_new_array();
    push_part(parts, 0, r->device_tokens, "device");
    push_restored(parts, r);
    push_part(parts, r->cached_tokens, r->prompt_tokens, "computed");
    struct json *o = json_make("{prompt_tokens: %d, cached_tokens: %d, "
                               "generated_tokens: %d, truncated_tokens: %ld}",
                               r->prompt_tokens, r->cached_tokens, r->n_tokens,
                               r->truncated_tokens);
    bool is_truncated = r->truncated_tokens > 0;
    json_extend(o, "{kept_tokens: %d, window_tokens: %d, step_tokens: %d}",
                is_truncated ? r->truncation.keep : 0,
                is_truncated ? r->truncation.context : 0,
                is_truncated ? r->truncation.step : 0);
    json_extend(o,
                "{prefix: %p, miss: %s, restored_bytes: %lu, plan: %p, predicted: %p, "
                "measured: %p, timings: %p}",
                parts, provenance_miss(r, what), r->restored_bytes,
                provenance_plan(&r->plan), lanes_of(&r->predicted), lanes_of(&r->measured),
                timings_of(&r->timings));
    return o;
}
