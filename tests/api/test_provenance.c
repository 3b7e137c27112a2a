/* test_provenance.c - where the state behind an answer came from, as JSON. */

#include "tests/unit.h"

#include <stdlib.h>
#include <string.h>

#include "api/provenance.h"

static struct hcache_result answer(void)
{
    return (struct hcache_result){.prompt_tokens = 300,
                                  .cached_tokens = 256,
                                  .device_tokens = 64,
                                  .n_tokens = 5,
                                  .restored_bytes = 777,
                                  .tier = "disk",
                                  .miss = "evicted",
                                  .plan = {.layers = "RHK",
                                           .recompute = 1,
                                           .hidden = 2,
                                           .kv = 3,
                                           .predicted_ms = 2.5,
                                           .reason = "because"},
                                  .timings = {.queue_ms = 1,
                                              .lookup_ms = 2,
                                              .plan_ms = 3,
                                              .restore_ms = 4,
                                              .restore_io_ms = 5,
                                              .restore_compute_ms = 6,
                                              .restore_wait_ms = 7,
                                              .prefill_ms = 8,
                                              .ttft_ms = 9,
                                              .decode_ms = 10}};
}

static int64_t number(const struct json *o, const char *key)
{
    double v = -1;
    return json_real_of(json_member(o, key), &v) ? (int64_t)v : -1;
}

static const char *text(const struct json *o, const char *key)
{
    return json_string_of(json_member(o, key), NULL);
}

static void part_is(const struct json *list, size_t i, int from, int to, const char *source)
{
    const struct json *p = json_at(list, i);
    assert_int_equal(number(p, "from"), from);
    assert_int_equal(number(p, "to"), to);
    assert_string_equal(text(p, "source"), source);
}

TEST(the_prefix_is_told_part_by_part)
{
    struct hcache_result r = answer();
    struct json *o = provenance_json(&r, "");
    const struct json *prefix = json_member(o, "prefix");
    assert_int_equal(json_count(prefix), 3);
    part_is(prefix, 0, 0, 64, "device");
    part_is(prefix, 1, 64, 256, "disk");
    part_is(prefix, 2, 256, 300, "computed");
    assert_int_equal(number(o, "prompt_tokens"), 300);
    assert_int_equal(number(o, "cached_tokens"), 256);
    assert_int_equal(number(o, "generated_tokens"), 5);
    assert_int_equal(number(o, "restored_bytes"), 777);
    /* the 256 cached tokens are all full chunks of the prompt */
    assert_null(text(o, "miss"));
    json_free(o);
    r.device_tokens = 0;
    r.cached_tokens = 0;
    r.tier = NULL;
    o = provenance_json(&r, "");
    /* parts without tokens are left out */
    assert_int_equal(json_count(json_member(o, "prefix")), 1);
    part_is(json_member(o, "prefix"), 0, 0, 300, "computed");
    assert_string_equal(text(o, "miss"), "evicted");
    json_free(o);
    o = provenance_json(&r, "retokenised at 3");
    assert_string_equal(text(o, "miss"), "retokenised at 3");
    json_free(o);
}

/* State from memory and from the disk is told apart, in the order of its tokens. */
TEST(restored_tokens_are_told_by_their_tier)
{
    struct hcache_result r = answer();
    r.tier = "dram+disk";
    r.n_restored_parts = 3;
    r.restored_part[0] = (struct hcache_restored_part){64, "disk"};
    r.restored_part[1] = (struct hcache_restored_part){64, "dram+disk"};
    r.restored_part[2] = (struct hcache_restored_part){64, "dram"};
    struct json *o = provenance_json(&r, "");
    const struct json *prefix = json_member(o, "prefix");
    assert_int_equal(json_count(prefix), 5);
    part_is(prefix, 0, 0, 64, "device");
    part_is(prefix, 1, 64, 128, "disk");
    part_is(prefix, 2, 128, 192, "dram+disk");
    part_is(prefix, 3, 192, 256, "dram");
    part_is(prefix, 4, 256, 300, "computed");
    json_free(o);
}

TEST(times_have_their_names)
{
    static const char *const names[] = {
        "queue_ms",      "lookup_ms",          "plan_ms",         "restore_ms",
        "restore_io_ms", "restore_compute_ms", "restore_wait_ms", "prefill_ms",
        "ttft_ms",       "decode_ms"};
    struct hcache_result r = answer();
    struct json *o = provenance_json(&r, "");
    for (int i = 0; i < 10; i++)
        assert_int_equal(number(json_member(o, "timings"), names[i]), i + 1);
    json_free(o);
}

TEST(a_plan_is_told_or_null)
{
    struct hcache_result r = answer();
    struct json *o = provenance_json(&r, "");
    const struct json *p = json_member(o, "plan");
    assert_string_equal(text(p, "layers"), "RHK");
    assert_int_equal(number(p, "recompute"), 1);
    assert_int_equal(number(p, "hidden"), 2);
    assert_int_equal(number(p, "kv"), 3);
    double ms;
    assert_true(json_real_of(json_member(p, "predicted_ms"), &ms) && ms == 2.5);
    assert_string_equal(text(p, "reason"), "because");
    json_free(o);
    r.plan.layers[0] = 0;
    o = provenance_json(&r, "");
    assert_true(json_kind(json_member(o, "plan")) == JSON_KIND_NULL);
    json_free(o);
}

TEST(lanes_are_told_span_by_span)
{
    struct hcache_result r = answer();
    struct hcache_span spans[2] = {
        {.start_ms = 0, .end_ms = 2, .layer = 3, .method = 'K', .is_io = true},
        {.start_ms = 2, .end_ms = 4, .layer = 1, .method = 'H'}};
    r.measured = (struct hcache_lanes){.span = spans, .n = 2, .total_ms = 4};
    struct json *o = provenance_json(&r, "");
    assert_true(json_kind(json_member(o, "predicted")) == JSON_KIND_NULL);
    const struct json *m = json_member(o, "measured"), *list = json_member(m, "spans");
    assert_int_equal(number(m, "ms"), 4);
    assert_int_equal(json_count(list), 2);
    assert_string_equal(text(json_at(list, 0), "lane"), "io");
    assert_string_equal(text(json_at(list, 1), "lane"), "compute");
    assert_string_equal(text(json_at(list, 0), "method"), "K");
    assert_int_equal(number(json_at(list, 0), "layer"), 3);
    assert_int_equal(number(json_at(list, 1), "start_ms"), 2);
    assert_int_equal(number(json_at(list, 1), "end_ms"), 4);
    json_free(o);
}
