/* store_advise.c - see store_advise.h. */
#include "apps/store_advise.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "apps/bytes_text.h"
#include "base/clock.h"
#include "api/cache_json.h"
#include "store/advise.h"

static void print_table(const struct hcache_advice a[HCACHE_ADVICES])
{
    printf("%-18s %10s %12s %12s\n", "last used within", "contexts", "bytes", "a quarter");
    for (int i = 0; i < HCACHE_ADVICES; i++) {
        char all[32], quarter[32];
        bytes_text(a[i].bytes, all);
        bytes_text(a[i].bytes / 4, quarter);
        printf("%-18s %10" PRIu64 " %12s %12s\n", a[i].within, a[i].contexts, all, quarter);
    }
    printf("A --store-cap of a row's bytes keeps all contexts that are used again within "
           "that time. In the\nAttentionStore paper a quarter of them kept 98 %% of the "
           "hits.\n");
}

static void print_json(const struct hcache_advice a[HCACHE_ADVICES])
{
    struct json *o = json_new_object();
    json_put(o, "advice", advice_json(a));
    char *text = json_text(o, 2);
    printf("%s\n", text);
    free(text);
    json_free(o);
}

void store_print_advice(struct store *s, bool json)
{
    struct store_advice of[STORE_ADVICES];
    struct hcache_advice a[HCACHE_ADVICES];
    store_advise(s, clock_wall_s(), of);
    for (int i = 0; i < HCACHE_ADVICES; i++)
        a[i] = (struct hcache_advice){of[i].within, of[i].seconds, of[i].contexts,
                                      of[i].bytes};
    (json ? print_json : print_table)(a);
}
