/* cache_json.c - see cache_json.h. */
#include "api/cache_json.h"

struct json *advice_json(const struct hcache_advice a[HCACHE_ADVICES])
{
    struct json *list = json_new_array();
    for (int i = 0; i < HCACHE_ADVICES; i++) {
        json_push(list,
                  json_make("{used_within: %s, seconds: %ld, contexts: %lu, bytes: %lu, "
                            "quarter_bytes: %ld}",
                            a[i].within, a[i].seconds, a[i].contexts, a[i].bytes,
                            (int64_t)(a[i].bytes / 4)));
    }
    return list;
}

struct json *dram_json(const struct hcache_dram *d)
{
    struct json *o = json_make(
        "{name: 'dram', chunks: %lu, used_bytes: %lu, cap_bytes: %lu}", d->n_chunks,
        d->used_bytes, d->cap_bytes);
    json_extend(o, "{copies_written: %lu, copies_promoted: %lu, promoted_bytes: %lu}",
                d->n_written, d->n_promoted, d->promoted_bytes);
    json_extend(o, "{promoted_unused: %lu, demoted: %lu, not_copied: %lu, read_bytes: %lu}",
                d->n_unused, d->n_demoted, d->n_full, d->read_bytes);
    return o;
}
