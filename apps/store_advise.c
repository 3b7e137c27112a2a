/* store_advise.c - see store_advise.h. */
#include "apps/store_advise.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "apps/bytes_text.h"
#include "base/clock.h"
#include "format/json.h"
#include "store/advise.h"

static void print_table(const struct store_advice a[STORE_ADVICES])
{
    printf("%-18s %10s %12s %12s\n", "last used within", "contexts", "bytes", "a quarter");
    for (int i = 0; i < STORE_ADVICES; i++) {
        char all[32], quarter[32];
        bytes_text(a[i].bytes, all);
        bytes_text(a[i].bytes / 4, quarter);
        printf("%-18s %10" PRIu64 " %12s %12s\n", a[i].within, a[i].contexts, all, quarter);
    }
    printf("A --store-cap of a row's bytes keeps all contexts that are used again within "
           "that time. In the\nAttentionStore paper a quarter of them kept 98 %% of the "
           "hits.\n");
}

static void print_json(const struct store_advice a[STORE_ADVICES])
{
    struct json *o = json_new_object(), *list = json_new_array();
    for (int i = 0; i < STORE_ADVICES; i++) {
        struct json *row = json_new_object();
        json_put_string(row, "used_within", a[i].within);
        json_put_int(row, "seconds", a[i].seconds);
        json_put_int(row, "contexts", (int64_t)a[i].contexts);
        json_put_int(row, "bytes", (int64_t)a[i].bytes);
        json_put_int(row, "quarter_bytes", (int64_t)(a[i].bytes / 4));
        json_push(list, row);
    }
    json_put(o, "advice", list);
    char *text = json_text(o, 2);
    printf("%s\n", text);
    free(text);
    json_free(o);
}

int store_print_advice(struct store *s, bool json, struct err *err)
{
    struct store_advice a[STORE_ADVICES];
    int rc = store_advise(s, clock_wall_s(), a, err);
    if (rc == 0)
        (json ? print_json : print_table)(a);
    return rc;
}
