/* test_request.c - every field's type and range, and the fields that are refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "requests/request.h"

struct row {
    unsigned kind;
    const char *body;
    /* the parameter that the fault names; NULL: the request is accepted */
    const char *param;
    const char *message; /* a part of the message */
};

#define CHAT "{\"messages\":[],"
#define TEXT "{\"prompt\":\"x\","
#define RESP "{\"input\":\"x\","

static const struct row rows[] = {
    {REQUEST_CHAT, "{\"messages\":[]}", NULL, NULL},
    {REQUEST_COMPLETION, "{\"prompt\":\"\"}", NULL, NULL},
    {REQUEST_CHAT, "{}", "messages", "is missing"},
    {REQUEST_COMPLETION, "{}", "prompt", "is missing"},
    {REQUEST_CHAT, "[]", "", "must be a JSON object"},
    {REQUEST_CHAT, "{\"messages\":[],\"prompt\":\"x\"}", "prompt", "unknown parameter"},
    {REQUEST_CHAT, CHAT "\"temprature\":1}", "temprature", "unknown parameter"},
    {REQUEST_CHAT, CHAT "\"temperature\":-0.1}", "temperature", "must be 0 to 100"},
    {REQUEST_CHAT, CHAT "\"temperature\":\"1\"}", "temperature", "must be a number"},
    {REQUEST_CHAT, CHAT "\"temperature\":null}", NULL, NULL},
    {REQUEST_CHAT, CHAT "\"temperature\":2}", NULL, NULL},
    {REQUEST_CHAT, CHAT "\"top_p\":1.01}", "top_p", "must be 0 to 1"},
    {REQUEST_CHAT, CHAT "\"min_p\":1}", "min_p", "must be 0 to"},
    {REQUEST_CHAT, CHAT "\"top_k\":-2}", "top_k", "must be -1 to"},
    {REQUEST_CHAT, CHAT "\"top_k\":1.5}", "top_k", "must be an integer"},
    {REQUEST_CHAT, CHAT "\"n\":0}", "n", "must be 1 to 16"},
    {REQUEST_CHAT, CHAT "\"n\":17}", "n", "must be 1 to 16"},
    {REQUEST_CHAT, CHAT "\"max_tokens\":-1}", "max_tokens", "must be 0 to"},
    {REQUEST_CHAT, CHAT "\"max_completion_tokens\":1e99}", "max_completion_tokens",
     "integer"},
    {REQUEST_COMPLETION, TEXT "\"max_completion_tokens\":1}", "max_completion_tokens",
     "unknown"},
    {REQUEST_CHAT, CHAT "\"seed\":9223372036854775807}", NULL, NULL},
    {REQUEST_CHAT, CHAT "\"max_tokens\":16777216}", NULL, NULL},
    {REQUEST_CHAT, CHAT "\"max_tokens\":16777217}", "max_tokens", "must be 0 to 16777216"},
    {REQUEST_CHAT, CHAT "\"max_tokens\":4294967297}", "max_tokens", "must be 0 to"},
    {REQUEST_CHAT, CHAT "\"max_tokens\":9223372036854775807}", "max_tokens",
     "must be 0 to"},
    {REQUEST_CHAT, CHAT "\"max_tokens\":-9223372036854775808}", "max_tokens",
     "must be 0 to"},
    {REQUEST_CHAT, CHAT "\"max_tokens\":9223372036854775808}", "max_tokens", "integer"},
    {REQUEST_CHAT, CHAT "\"top_k\":4294967295}", "top_k", "must be -1 to"},
    {REQUEST_CHAT, CHAT "\"priority\":4294967296}", "priority", "must be -100 to"},
    {REQUEST_CHAT, CHAT "\"timeout_ms\":86400001}", "timeout_ms", "must be 0 to"},
    {REQUEST_CHAT, CHAT "\"timeout_ms\":18446744073709551616}", "timeout_ms", "integer"},
    {REQUEST_CHAT, CHAT "\"n\":4294967297}", "n", "must be 1 to 16"},
    {REQUEST_CHAT, CHAT "\"seed\":0.5}", "seed", "must be an integer"},
    {REQUEST_CHAT, CHAT "\"stream\":1}", "stream", "must be true or false"},
    {REQUEST_CHAT, CHAT "\"stream_options\":{\"include_usage\":true}}", NULL, NULL},
    {REQUEST_CHAT, CHAT "\"stream_options\":[]}", "stream_options", "must be an object"},
    {REQUEST_CHAT, CHAT "\"stop\":\"\"}", "stop", "1 to 256"},
    {REQUEST_CHAT, CHAT "\"stop\":[\"a\",1]}", "stop", "must be a string"},
    {REQUEST_CHAT, CHAT "\"stop\":5}", "stop", "a string or a list"},
    {REQUEST_CHAT, CHAT "\"stop\":\"a\\u0000b\"}", "stop", "zero byte"},
    {REQUEST_CHAT, CHAT "\"logprobs\":null}", NULL, NULL},
    {REQUEST_CHAT, CHAT "\"logprobs\":5}", "logprobs", "must be true or false"},
    {REQUEST_CHAT, CHAT "\"logprobs\":true,\"top_logprobs\":20}", NULL, NULL},
    {REQUEST_CHAT, CHAT "\"logprobs\":true,\"top_logprobs\":21}", "top_logprobs",
     "0 to 20"},
    {REQUEST_CHAT, CHAT "\"top_logprobs\":2}", "top_logprobs", "needs 'logprobs'"},
    {REQUEST_COMPLETION, TEXT "\"logprobs\":5}", NULL, NULL},
    {REQUEST_COMPLETION, TEXT "\"logprobs\":true}", "logprobs", "must be an integer"},
    {REQUEST_CHAT, CHAT "\"tools\":[]}", NULL, NULL},
    {REQUEST_CHAT, CHAT "\"tool_choice\":\"none\"}", NULL, NULL},
    {REQUEST_CHAT, CHAT "\"tool_choice\":\"auto\"}", NULL, NULL},
    {REQUEST_CHAT, CHAT "\"tool_choice\":\"required\"}", "tool_choice", "not supported"},
    {REQUEST_CHAT, CHAT "\"tools\":5}", "tools", "must be a list"},
    {REQUEST_CHAT, CHAT "\"tools\":[5]}", "tools", "a list of objects"},
    {REQUEST_CHAT, CHAT "\"response_format\":{\"type\":\"text\"}}", NULL, NULL},
    {REQUEST_CHAT, CHAT "\"response_format\":{\"type\":\"json_object\"}}",
     "response_format", "only as {\"type\": \"text\"}"},
    {REQUEST_CHAT, CHAT "\"logit_bias\":{}}", NULL, NULL},
    {REQUEST_CHAT, CHAT "\"logit_bias\":{\"5\":1}}", NULL, NULL},
    {REQUEST_CHAT, CHAT "\"logit_bias\":{\"5x\":1}}", "logit_bias", "names are token ids"},
    {REQUEST_CHAT, CHAT "\"logit_bias\":{\"5\":101}}", "logit_bias", "from -100 to 100"},
    {REQUEST_CHAT, CHAT "\"stop_token_ids\":[1,-1]}", "stop_token_ids", "element 1"},
    {REQUEST_CHAT, CHAT "\"min_tokens\":-1}", "min_tokens", "must be 0 to"},
    {REQUEST_CHAT, CHAT "\"best_of\":2}", "best_of", "not supported"},
    {REQUEST_CHAT, CHAT "\"frequency_penalty\":0}", NULL, NULL},
    {REQUEST_CHAT, CHAT "\"frequency_penalty\":0.5}", NULL, NULL},
    {REQUEST_CHAT, CHAT "\"frequency_penalty\":2.5}", "frequency_penalty",
     "must be -2 to 2"},
    {REQUEST_CHAT, CHAT "\"repetition_penalty\":1.0}", NULL, NULL},
    {REQUEST_COMPLETION, TEXT "\"best_of\":1,\"use_beam_search\":false,\"echo\":false}",
     NULL, NULL},
    {REQUEST_COMPLETION, TEXT "\"echo\":true}", "echo", "not supported"},
    {REQUEST_COMPLETION, TEXT "\"suffix\":\"x\"}", "suffix", "not supported"},
    {REQUEST_CHAT, CHAT "\"user\":\"u\",\"store\":false,\"metadata\":{\"a\":\"b\"}}", NULL,
     NULL},
    {REQUEST_RESPONSE,
     RESP "\"text\":{\"verbosity\":\"low\",\"format\":{\"type\":\"text\"}}}", NULL, NULL},
    {REQUEST_RESPONSE,
     RESP "\"text\":{\"verbosity\":\"low\",\"format\":{\"type\":\"json\"}}}", "text",
     "only as {\"type\": \"text\"}"},
    {REQUEST_RESPONSE, RESP "\"text\":{\"format\":null,\"colour\":1}}", "text",
     "unknown member 'colour'"},
    {REQUEST_RESPONSE, RESP "\"text\":\"x\"}", "text", "must be an object"},
    {REQUEST_RESPONSE, RESP "\"max_output_tokens\":0}", "max_output_tokens",
     "must be 1 to"},
    {REQUEST_RESPONSE, RESP "\"max_tokens\":1}", "max_tokens", "unknown"},
    {REQUEST_RESPONSE, RESP "\"instructions\":\"\"}", NULL, NULL},
    {REQUEST_RESPONSE, RESP "\"instructions\":5}", "instructions", "must be a string"},
    {REQUEST_RESPONSE, RESP "\"previous_response_id\":\"\"}", "previous_response_id",
     "has 0 bytes; 1 to 128"},
    {REQUEST_RESPONSE, RESP "\"store\":\"no\"}", "store", "must be true or false"},
    {REQUEST_RESPONSE, RESP "\"metadata\":{\"a\":\"b\"},\"truncation\":\"disabled\"}", NULL,
     NULL},
    {REQUEST_RESPONSE, RESP "\"truncation\":\"0.25,keep=128,context=1024\"}", NULL, NULL},
    {REQUEST_RESPONSE, RESP "\"truncation\":\"1.5\"}", "truncation",
     "a ratio above 0 and below 1"},
    {REQUEST_CHAT, CHAT "\"truncation\":\"off\"}", "truncation", "auto or disabled"},
    {REQUEST_RESPONSE, RESP "\"metadata\":{\"a\":1}}", "metadata", "must be a string"},
    {REQUEST_RESPONSE, RESP "\"metadata\":[]}", "metadata", "must be an object"},
    {REQUEST_RESPONSE, RESP "\"background\":true}", "background", "not supported"},
    {REQUEST_RESPONSE, RESP "\"background\":false,\"prompt\":null,\"include\":[\"x\"]}",
     NULL, NULL},
    {REQUEST_RESPONSE, RESP "\"tools\":[1]}", "tools", "must be a list of objects"},
    {REQUEST_RESPONSE, RESP "\"tool_choice\":\"required\"}", "tool_choice",
     "not supported"},
    {REQUEST_MESSAGE, CHAT "\"max_tokens\":5,\"tool_choice\":{\"type\":\"auto\"}}", NULL,
     NULL},
    {REQUEST_MESSAGE, CHAT "\"max_tokens\":5,\"tool_choice\":\"auto\"}", "tool_choice",
     "not supported"},
    {REQUEST_MESSAGE, CHAT "\"max_tokens\":5,\"stop_sequences\":[\"\"]}", "stop_sequences",
     "has 0 bytes"},
    {REQUEST_MESSAGE, CHAT "\"max_tokens\":5,\"stop\":\"x\"}", "stop", "unknown"},
    {REQUEST_CHAT, CHAT "\"stop\":[1]}", "stop", "must be a string"},
    {REQUEST_CHAT, CHAT "\"stop\":{}}", "stop", "a string or a list of strings"},
    {REQUEST_CHAT, CHAT "\"stop\":\"a\\u0000b\"}", "stop", "contains a zero byte"},
    {REQUEST_CHAT, CHAT "\"stream_options\":{\"include_usage\":1}}", "include_usage",
     "must be true or false"},
    {REQUEST_CHAT, CHAT "\"stream_options\":{\"include_usage\":null}}", NULL, NULL},
    {REQUEST_CHAT, CHAT "\"stream_options\":[]}", "stream_options", "must be an object"},
    {REQUEST_COMPLETION, TEXT "\"logprobs\":true}", "logprobs", "must be an integer"},
    {REQUEST_COMPLETION, TEXT "\"logprobs\":3}", NULL, NULL},
    {REQUEST_CHAT, CHAT "\"length_penalty\":1}", NULL, NULL},
    {REQUEST_CHAT, CHAT "\"length_penalty\":2}", "length_penalty", "not supported"},
};

static struct json *parse(const char *text)
{
    struct json *j;
    struct err err = {0};
    if (json_parse(&j, text, strlen(text), "row", &err) != 0)
        fail_msg("%s: %s", text, err.msg);
    return j;
}

static void every_row(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row *r = &rows[i];
        struct json *j = parse(r->body);
        struct gen_params p;
        struct fault f = {0};
        int rc = request_parse(j, r->kind, &p, &f);
        if (r->param == NULL && rc != 0)
            fail_msg("%s: refused: %s", r->body, f.message);
        if (r->param != NULL && rc == 0)
            fail_msg("%s: accepted", r->body);
        if (r->param != NULL && (strcmp(f.param, r->param) != 0 ||
                                 strstr(f.message, r->message) == NULL || f.status != 400))
            fail_msg("%s: %d, '%s': %s", r->body, f.status, f.param, f.message);
        json_free(j);
    }
}

static void values_arrive(void **state)
{
    (void)state;
    struct json *j = parse(
        "{\"model\":\"m\",\"messages\":[1],\"max_tokens\":7,\"n\":2,\"top_k\":-1,"
        "\"temperature\":0.5,\"seed\":-3,\"stop\":[\"a\",\"bc\"],\"stream\":true,"
        "\"logprobs\":true,\"top_logprobs\":4}");
    struct gen_params p;
    struct fault f;
    assert_int_equal(request_parse(j, REQUEST_CHAT, &p, &f), 0);
    assert_string_equal(p.model, "m");
    assert_int_equal(p.max_tokens, 7);
    assert_int_equal(p.n, 2);
    assert_int_equal(p.top_k, 0);
    assert_true(p.temperature == 0.5 && p.top_p == 1.0);
    assert_true(p.has_seed && p.seed == -3 && p.stream && p.logprobs);
    assert_int_equal(p.n_top, 4);
    assert_int_equal(p.n_stop, 2);
    assert_string_equal(p.stop[1], "bc");
    json_free(j);
}

static void the_defaults(void **state)
{
    (void)state;
    struct json *j = parse("{\"prompt\":[1,2]}");
    struct gen_params p;
    struct fault f;
    assert_int_equal(request_parse(j, REQUEST_COMPLETION, &p, &f), 0);
    assert_int_equal(p.max_tokens, -1);
    assert_true(p.temperature == 1.0 && p.top_p == 1.0 && p.n == 1 && !p.has_seed &&
                !p.stream);
    json_free(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row),
        cmocka_unit_test(values_arrive),
        cmocka_unit_test(the_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
