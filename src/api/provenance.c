/* provenance.c - see provenance.h. */
#include "api/provenance.h"

#include <string.h>

static void push_part(struct json *list, int from, int to, const char *source)
{
    struct json *o = json_new_object();
    if (to <= from) {
        json_free(o);
        return;
    }
    json_put_int(o, "from", from);
    json_put_int(o, "to", to);
    json_put_string(o, "source", source);
    json_push(list, o);
}

void provenance_put_plan(struct json *o, const char *key, const struct hcache_plan *p)
{
    if (p->layers[0] == 0) {
        json_put_null(o, key);
        return;
    }
    struct json *plan = json_new_object();
    json_put_string(plan, "layers", p->layers);
    json_put_int(plan, "recompute", p->recompute);
    json_put_int(plan, "hidden", p->hidden);
    json_put_int(plan, "kv", p->kv);
    json_put_ms(plan, "predicted_ms", p->predicted_ms);
    json_put_string(plan, "surprise", p->surprise[0] != 0 ? p->surprise : NULL);
    json_put_string(plan, "reason", p->reason);
    json_put(o, key, plan);
}

static struct json *timings_of(const struct hcache_timings *t)
{
    struct json *o = json_new_object();
    json_put_ms(o, "queue_ms", t->queue_ms);
    json_put_ms(o, "lookup_ms", t->lookup_ms);
    json_put_ms(o, "plan_ms", t->plan_ms);
    json_put_ms(o, "restore_ms", t->restore_ms);
    json_put_ms(o, "restore_io_ms", t->restore_io_ms);
    json_put_ms(o, "restore_compute_ms", t->restore_compute_ms);
    json_put_ms(o, "restore_wait_ms", t->restore_wait_ms);
    json_put_ms(o, "prefill_ms", t->prefill_ms);
    json_put_ms(o, "ttft_ms", t->ttft_ms);
    json_put_ms(o, "decode_ms", t->decode_ms);
    return o;
}

static struct json *lanes_of(const struct hcache_lanes *l)
{
    struct json *o = json_new_object(), *spans = json_new_array();
    for (int i = 0; i < l->n; i++) {
        const struct hcache_span *s = &l->span[i];
        struct json *span = json_new_object();
        char method[2] = {s->method, 0};
        json_put_string(span, "lane", s->is_io ? "io" : "compute");
        json_put_int(span, "layer", s->layer);
        json_put_string(span, "method", method);
        json_put_ms(span, "start_ms", (double)s->start_ms);
        json_put_ms(span, "end_ms", (double)s->end_ms);
        json_push(spans, span);
    }
    json_put_ms(o, "ms", l->total_ms);
    json_put(o, "spans", spans);
    return o;
}

static void put_lanes(struct json *o, const char *key, const struct hcache_lanes *l)
{
    if (l->span != NULL)
        json_put(o, key, lanes_of(l));
    else
        json_put_null(o, key);
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
    struct json *o = json_new_object(), *parts = json_new_array();
    push_part(parts, 0, r->device_tokens, "device");
    push_restored(parts, r);
    push_part(parts, r->cached_tokens, r->prompt_tokens, "computed");
    json_put_int(o, "prompt_tokens", r->prompt_tokens);
    json_put_int(o, "cached_tokens", r->cached_tokens);
    json_put_int(o, "generated_tokens", r->n_tokens);
    json_put_int(o, "truncated_tokens", r->truncated_tokens);
    bool is_truncated = r->truncated_tokens > 0;
    json_put_int(o, "kept_tokens", is_truncated ? r->truncation.keep : 0);
    json_put_int(o, "window_tokens", is_truncated ? r->truncation.context : 0);
    json_put_int(o, "step_tokens", is_truncated ? r->truncation.step : 0);
    json_put(o, "prefix", parts);
    json_put_string(o, "miss", provenance_miss(r, what));
    json_put_int(o, "restored_bytes", (int64_t)r->restored_bytes);
    provenance_put_plan(o, "plan", &r->plan);
    put_lanes(o, "predicted", &r->predicted);
    put_lanes(o, "measured", &r->measured);
    json_put(o, "timings", timings_of(&r->timings));
    return o;
}
