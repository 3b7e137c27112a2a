/* test_fault.c - what a refused request is told, in the shapes of both APIs; miss reasons. */
#include "server/call.h"
#include "sessions/provenance.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* The client libraries choose their exceptions by status and type. */
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

static void test_types(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct fault f;
        assert_int_equal(fault_set(&f, types[i].status, NULL, NULL, "why %d", 1), -1);
        type_is(fault_json(&f), types[i].openai);
        struct json *o = api_messages_fault(&f);
        assert_string_equal(json_string_of(json_member(o, "type"), NULL), "error");
        type_is(o, types[i].anthropic);
    }
}

static void test_miss(void **state)
{
    (void)state;
    struct hcache_result r = {.prompt_tokens = 129, .cached_tokens = 128};
    assert_null(provenance_miss(&r, "")); /* all full chunks before the last token */
    assert_string_equal(provenance_miss(&r, "retokenised at 3"), "retokenised at 3");
    r.cached_tokens = 64;
    strcpy(r.miss, "evicted");
    assert_string_equal(provenance_miss(&r, ""), "evicted");
    strcpy(r.miss, "complete"); /* found, but the request ended before all came back */
    assert_string_not_equal(provenance_miss(&r, ""), "complete");
    r.miss[0] = 0; /* it ended in the queue */
    assert_string_not_equal(provenance_miss(&r, ""), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_miss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
