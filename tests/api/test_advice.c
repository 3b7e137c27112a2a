/* test_advice.c - the advice on a store's size has a row for each time. */

#include "tests/unit.h"

#include <stdlib.h>

#include "api/cache_json.h"

TEST(each_time_has_a_row)
{
    struct hcache_advice a[HCACHE_ADVICES] = {0};
    for (int i = 0; i < HCACHE_ADVICES; i++)
        a[i] = (struct hcache_advice){.within = i == 0 ? "hour" : "day",
                                      .seconds = 3600 + i,
                                      .contexts = 2 + (uint64_t)i,
                                      .bytes = 4096 + 4 * (uint64_t)i};
    struct json *list = advice_json(a);
    assert_int_equal(json_count(list), HCACHE_ADVICES);
    char *first = json_text(json_at(list, 0), 0), *next = json_text(json_at(list, 1), 0);
    assert_string_equal(first,
                        "{\"used_within\": \"hour\", \"seconds\": 3600, \"contexts\": 2, "
                        "\"bytes\": 4096, \"quarter_bytes\": 1024}");
    assert_string_equal(next,
                        "{\"used_within\": \"day\", \"seconds\": 3601, \"contexts\": 3, "
                        "\"bytes\": 4100, \"quarter_bytes\": 1025}");
    free(first);
    free(next);
    json_free(list);
}
