/* test_fault.c - the errors of refused requests in the forms of both APIs, and the reasons of
 * misses. */
#include "server/call.h"
#include "api/provenance.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "tests/unit.h"

/* Client libraries choose their exceptions by status and type. */
static const struct {
    int status;
    const char *openai, *anthropic;
} types[] = {
    {400, "invalid_request_error", "invalid_request_error"},
    {401, "authentication_error", "authentication_error"},
    {403, "permission_error", "permission_error"},
    {404, "not_found_error", "not_found_error"},
    {405, "invalid_request_error", "invalid_request_error"},
    {413, "invalid_request_error", "request_too_large"},
    {429, "rate_limit_error", "rate_limit_error"},
    {500, "server_error", "api_error"},
    {503, "server_error", "overloaded_error"},
    {504, "server_error", "timeout_error"},
};

static void type_is(struct json *o, const char *want)
{
    const struct json *e = json_member(o, "error");
    assert_string_equal(json_string_of(json_member(e, "type"), NULL), want);
    assert_string_equal(json_string_of(json_member(e, "message"), NULL), "why 1");
    json_free(o);
}

TEST(test_types)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct fault f;
        assert_int_equal(fault_set(&f, types[i].status, NULL, NULL, "why %d", 1), -1);
        type_is(fault_json(&f), types[i].openai);
        struct json *o = api_messages_fault(&f);
        assert_string_equal(json_string_of(json_member(o, "type"), NULL), "error");
        type_is(o, types[i].anthropic);
    }
}

/* A client's texts are hidden in logged reasons, in any form of %s. Numbers and the program's own
 * words are not. */
TEST(test_reasons)
{
    struct fault f;
    fault_set(&f, 404, "not_found", "at", "there is no '%.80s' of %s, but %d", "Kedazar",
              "Anna", 3);
    assert_string_equal(f.message, "there is no 'Kedazar' of Anna, but 3");
    assert_string_equal(f.reason, "there is no '...' of ..., but 3");
    fault_set(&f, 400, NULL, "x", "'%-s' %%00 %zu %lld %.1f %s", "x", (size_t)4, -5LL, 0.5,
              "");
    assert_string_equal(f.message, "'x' %00 4 -5 0.5 ");
    assert_string_equal(f.reason, "'x' %00 4 -5 0.5 ...");
    fault_refuse(&f, -ENOMEM, NULL, "%s", "Kedazar");
    assert_int_equal(f.status, 503);
    assert_string_equal(f.message, "Kedazar");
    assert_string_equal(f.reason, "...");
    fault_field(&f, "top_p", "is %d; it must be %s", 7, "%s%n");
    assert_string_equal(f.param, "top_p");
    assert_string_equal(f.message, "'top_p' is 7; it must be %s%n");
    assert_string_equal(f.reason, "'top_p' is 7; it must be ...");
    char long_text[1000];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    fault_field(&f, long_text, "%s %-s", long_text, long_text);
    assert_int_equal(strlen(f.message), sizeof f.message - 1);
    assert_int_equal(strlen(f.reason), sizeof f.reason - 1);
}

/* A format of any length is cut before a conversion, never inside a conversion. */
TEST(test_long_formats)
{
    struct fault f;
    for (int n = 0; n < 420; n++) {
        char fmt[500];
        memset(fmt, 'x', (size_t)n);
        strcpy(fmt + n, "%.80s%zu%s");
        fault_set(&f, 400, NULL, NULL, fmt, "Kedazar", (size_t)12345, "Kedazar");
        assert_null(strstr(f.reason, "Kedazar"));
        assert_true(n > 300 || strstr(f.message, "Kedazar12345Kedazar") != NULL);
    }
}

TEST(test_miss)
{
    struct hcache_result r = {.prompt_tokens = 129, .cached_tokens = 128};
    /* all full chunks before the last token were restored */
    assert_null(provenance_miss(&r, ""));
    assert_string_equal(provenance_miss(&r, "retokenised at 3"), "retokenised at 3");
    r.cached_tokens = 64;
    strcpy(r.miss, "evicted");
    assert_string_equal(provenance_miss(&r, ""), "evicted");
    /* the request ended before its state was restored completely */
    strcpy(r.miss, "complete");
    assert_string_not_equal(provenance_miss(&r, ""), "complete");
    r.miss[0] = 0; /* the request ended in the queue */
    assert_string_not_equal(provenance_miss(&r, ""), "");
}
