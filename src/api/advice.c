/* advice.c - see advice.h. */
#include "api/advice.h"

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
