/* cache_json.c - see cache_json.h. */
#include "api/cache_json.h"

struct json *advice_json(const struct hcache_advice a[HCACHE_ADVICES])
{
    struct json *list = json_new_array();
    for (int i = 0; i < HCACHE_ADVICES; i++) {
        struct json *row = json_new_object();
        json_put_string(row, "used_within", a[i].within);
        json_put_int(row, "seconds", a[i].seconds);
        json_put_int(row, "contexts", (int64_t)a[i].contexts);
        json_put_int(row, "bytes", (int64_t)a[i].bytes);
        json_put_int(row, "quarter_bytes", (int64_t)(a[i].bytes / 4));
        json_push(list, row);
    }
    return list;
}

struct json *dram_json(const struct hcache_dram *d)
{
    struct json *o = json_new_object();
    json_put_string(o, "name", "dram");
    json_put_int(o, "chunks", (int64_t)d->n_chunks);
    json_put_int(o, "used_bytes", (int64_t)d->used_bytes);
    json_put_int(o, "cap_bytes", (int64_t)d->cap_bytes);
    json_put_int(o, "copies_written", (int64_t)d->n_written);
    json_put_int(o, "copies_promoted", (int64_t)d->n_promoted);
    json_put_int(o, "promoted_bytes", (int64_t)d->promoted_bytes);
    json_put_int(o, "promoted_unused", (int64_t)d->n_unused);
    json_put_int(o, "demoted", (int64_t)d->n_demoted);
    json_put_int(o, "not_copied", (int64_t)d->n_full);
    json_put_int(o, "read_bytes", (int64_t)d->read_bytes);
    return o;
}
