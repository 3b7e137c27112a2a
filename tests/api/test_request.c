/* test_request.c - every field's type and range, and the fields that are refused by name. */
#include "tests/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/textbuf.h"
#include "api/prompts.h"
#include "api/request.h"
#include "tests/base/quotes.h"

struct row {
    unsigned kind;
    const char *body;
    /* the parameter that the fault names; NULL: the request is accepted */
    const char *param;
    const char *message; /* a part of the message */
};

/* The beginning of a row: a kind, and a body with these members beside the prompt. In bodies '
 * stands for the quote of JSON. */
#define CHAT(members) REQUEST_CHAT, "{'messages':[]," members "}"
#define MSG(members)  REQUEST_MESSAGE, "{'messages':[],'max_tokens':5," members "}"
#define TEXT(members) REQUEST_COMPLETION, "{'prompt':'x'," members "}"
#define RESP(members) REQUEST_RESPONSE, "{'input':'x'," members "}"
#define OK            NULL, NULL

static const struct row bodies[] = {
    {REQUEST_CHAT, "{'messages':[]}", OK},
    {REQUEST_COMPLETION, "{'prompt':''}", OK},
    {REQUEST_CHAT, "{}", "messages", "is missing"},
    {REQUEST_COMPLETION, "{}", "prompt", "is missing"},
    {REQUEST_CHAT, "[]", "", "must be a JSON object"},
    {REQUEST_CHAT, "{'messages':[],'prompt':'x'}", "prompt", "unknown parameter"},
    {CHAT("'temprature':1"), "temprature", "unknown parameter"},
    {CHAT("'temperature':-0.1"), "temperature", "must be 0 to 100"},
    {CHAT("'temperature':'1'"), "temperature", "must be a number"},
    {CHAT("'temperature':null"), OK},
    {CHAT("'temperature':2"), OK},
    {CHAT("'top_k':1.5"), "top_k", "must be an integer"},
    {CHAT("'n':17"), "n", "must be 1 to 16"},
    {CHAT("'max_completion_tokens':1e99"), "max_completion_tokens", "integer"},
    {TEXT("'max_completion_tokens':1"), "max_completion_tokens", "unknown"},
    {CHAT("'seed':9223372036854775807"), OK},
    {CHAT("'max_tokens':4294967297"), "max_tokens", "must be -1 to"},
    {CHAT("'max_tokens':9223372036854775807"), "max_tokens", "must be -1 to"},
    {CHAT("'max_tokens':-9223372036854775808"), "max_tokens", "must be -1 to"},
    {CHAT("'max_tokens':9223372036854775808"), "max_tokens", "integer"},
    {CHAT("'top_k':4294967295"), "top_k", "must be -1 to"},
    {CHAT("'priority':4294967296"), "priority", "must be -100 to"},
    {CHAT("'timeout_ms':18446744073709551616"), "timeout_ms", "integer"},
    {CHAT("'n':4294967297"), "n", "must be 1 to 16"},
    {CHAT("'seed':0.5"), "seed", "must be an integer"},
    {CHAT("'stream':1"), "stream", "must be true or false"},
    {CHAT("'stream_options':{'include_usage':true}"), OK},
    {CHAT("'stop':''"), OK}, /* an empty text stops nothing */
    {CHAT("'seed':18446744073709551615"), OK},
    {CHAT("'seed':18446744073709551616"), "seed", "64 bits"},
    {CHAT("'seed':-9223372036854775809"), "seed", "64 bits"},
    {CHAT("'reasoning_effort':'xhigh','provider':{'a':1}"), OK},
    {CHAT("'reasoning_effort':'huge'"), "reasoning_effort", "is unknown"},
    {CHAT("'lora':[],'typical_p':1,'repeat_last_n':64"), OK},
    {CHAT("'add_generation_prompt':false"), OK},
    {CHAT("'add_generation_prompt':true,'continue_final_message':true"),
     "continue_final_message", "exclude each other"},
    {RESP("'reasoning':{'effort':'none','summary':'auto'}"), OK},
    {MSG("'output_config':{'effort':'max'},'safeguards':{},'thinking':{'type':'enabled','"
         "budget_tokens':1024},'context_management':{'edits':[{'type':'clear_thinking_"
         "20251015','keep':'all'}]}"),
     OK},
    {MSG("'context_management':{'edits':[{'type':'x'}]}"), "context_management",
     "'x' are not supported"},
    {MSG("'thinking':{'type':'x'}"), "thinking", "unknown type"},
    {CHAT("'stop':['a',1]"), "stop", "must be a string"},
    {CHAT("'logprobs':null"), OK},
    {CHAT("'logprobs':5"), "logprobs", "must be true or false"},
    {CHAT("'logprobs':true,'top_logprobs':20"), OK},
    {CHAT("'logprobs':true,'top_logprobs':21"), "top_logprobs", "0 to 20"},
    {CHAT("'top_logprobs':2"), "top_logprobs", "needs 'logprobs'"},
    {TEXT("'logprobs':5"), OK},
    {CHAT("'tools':[]"), OK},
    {CHAT("'tool_choice':'none'"), OK},
    {CHAT("'tool_choice':'auto'"), OK},
    {CHAT("'tool_choice':'required'"), OK},
    {CHAT("'tool_choice':'some'"), "tool_choice", "must be auto, none"},
    {CHAT("'tool_choice':{'type':'function'}"), "tool_choice", "must be auto, none"},
    {CHAT("'parallel_tool_calls':1"), "parallel_tool_calls", "true or false"},
    {CHAT("'tools':5"), "tools", "must be a list"},
    {CHAT("'tools':[5]"), "tools", "a list of objects"},
    {CHAT("'response_format':{'type':'text'}"), OK},
    {CHAT("'response_format':{'type':'json_object'}"), OK},
    {CHAT("'response_format':{'type':'xml'}"), "response_format", "must have the type"},
    {CHAT("'response_format':{'type':'json_schema','json_schema':{}}"), "response_format",
     "must have a schema"},
    {CHAT("'json_schema':null"), OK},
    {CHAT("'grammar':1"), "grammar", "must be a text"},
    {CHAT("'json_schema':[]"), "json_schema", "must be a JSON schema"},
    {CHAT("'guided_choice':'a'"), "guided_choice", "must be a list"},
    {CHAT("'structured_outputs':{'json':{},'regex':null}"), OK},
    {CHAT("'structured_outputs':{'xml':1}"), "structured_outputs",
     "'xml' that is not supported"},
    {CHAT("'grammar':'root ::= [a]','json_schema':{}"), "json_schema", "both give"},
    {CHAT("'logit_bias':{}"), OK},
    {CHAT("'logit_bias':{'5':1}"), OK},
    {CHAT("'logit_bias':{'5x':1}"), OK},
    {CHAT("'logit_bias':[[5,1],['x',false]]"), OK},
    {CHAT("'logit_bias':[[5]]"), "logit_bias", "must give tokens"},
    {CHAT("'logit_bias':{'5':101}"), "logit_bias", "from -100 to 100"},
    {CHAT("'stop_token_ids':[1,-1]"), "stop_token_ids", "element 1"},
    {CHAT("'best_of':2"), "best_of", "not supported"},
    {TEXT("'best_of':17"), "best_of", "must be 1 to 16"},
    {TEXT("'best_of':2,'n':3"), "best_of", "at least n, 3"},
    {TEXT("'best_of':3,'n':2"), OK},
    {TEXT("'best_of':null"), OK},
    {CHAT("'frequency_penalty':0.5"), OK},
    {CHAT("'repetition_penalty':1.0"), OK},
    {TEXT("'best_of':1,'use_beam_search':false,'echo':false"), OK},
    {TEXT("'echo':true,'logprobs':1"), OK},
    {TEXT("'echo':true,'logprobs':1,'stream':true"), "echo", "cannot be streamed"},
    {TEXT("'samplers':['x']"), "samplers", "unknown name at 0"},
    {TEXT("'samplers':['top_k'],'n_probs':2"), OK},
    {CHAT("'user':'u','store':false,'metadata':{'a':'b'}"), OK},
    {RESP("'text':{'verbosity':'low','format':{'type':'text'}}"), OK},
    {RESP("'text':{'verbosity':'low','format':{'type':'json'}}"), "text",
     "must have the type"},
    {RESP("'text':{'format':null,'colour':1}"), "text", "unknown member 'colour'"},
    {RESP("'text':'x'"), "text", "must be an object"},
    {RESP("'max_output_tokens':0"), "max_output_tokens", "must be 1 to"},
    {RESP("'max_tokens':1"), "max_tokens", "unknown"},
    {RESP("'instructions':''"), OK},
    {RESP("'instructions':5"), "instructions", "must be a string"},
    {RESP("'previous_response_id':''"), "previous_response_id", "has 0 bytes; 1 to 128"},
    {RESP("'store':'no'"), "store", "must be true or false"},
    {RESP("'metadata':{'a':'b'},'truncation':'disabled'"), OK},
    {RESP("'truncation':'0.25,keep=128,context=1024'"), OK},
    {RESP("'truncation':'1.5'"), "truncation", "a ratio above 0 and below 1"},
    {CHAT("'truncation':'off'"), "truncation", "auto or disabled"},
    {RESP("'metadata':{'a':1}"), "metadata", "must be a string"},
    {RESP("'metadata':[]"), "metadata", "must be an object"},
    {RESP("'background':true"), "background", "not supported"},
    {RESP("'background':false,'prompt':null,'include':['x']"), OK},
    {RESP("'tools':[1]"), "tools", "must be a list of objects"},
    {RESP("'tool_choice':'required'"), OK},
    {MSG("'tool_choice':{'type':'auto'}"), OK},
    {MSG("'tool_choice':'auto'"), "tool_choice", "must be auto, none"},
    {MSG("'stop_sequences':['']"), OK},
    {MSG("'stop':'x'"), "stop", "unknown"},
    {CHAT("'stop':{}"), "stop", "a string or a list of strings"},
    {CHAT("\"stop\":\"a\\u0000b\""), "stop", "contains a zero byte"},
    {CHAT("'stream_options':{'include_usage':1}"), "include_usage",
     "must be true or false"},
    {CHAT("'stream_options':{'include_usage':null}"), OK},
    {CHAT("'stream_options':[]"), "stream_options", "must be an object"},
    {TEXT("'logprobs':true"), "logprobs", "must be an integer"},
    {TEXT("'logprobs':3"), OK},
    {CHAT("'length_penalty':1"), OK},
    {CHAT("'length_penalty':2"), "length_penalty", "not supported"},
};

static struct json *parse(const char *text)
{
    struct json *j;
    struct err err = {0};
    char *body = quotes_in(xstrdup(text));
    if (json_parse(&j, body, strlen(body), "row", &err) != 0)
        fail_msg("%s: %s", body, err.msg);
    free(body);
    return j;
}

TEST(every_row)
{
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        const struct row *r = &bodies[i];
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

TEST(values_arrive)
{
    struct json *j = parse("{'model':'m','messages':[1],'max_tokens':7,'n':2,'top_k':-1,"
                           "'temperature':0.5,'seed':-3,'stop':['a','bc'],'stream':true,"
                           "'logprobs':true,'top_logprobs':4}");
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

/* Parses a body made by a format. Returns the fault's status; 0: accepted. */
static int status_of(unsigned kind, struct gen_params *p, struct fault *f, const char *body)
{
    struct json *j = parse(body);
    *f = (struct fault){0};
    int rc = request_parse(j, kind, p, f);
    json_free(j);
    assert_int_equal(rc != 0, f->status != 0);
    return f->status;
}

/* A number at a bound is accepted, and one step beyond it is refused with the bounds. */
TEST(numbers_have_bounds)
{
    static const struct {
        const char *name;
        unsigned kinds;
        double least, most, step;
    } all[] = {
        {"max_tokens", REQUEST_CHAT | REQUEST_COMPLETION, -1, 16777216, 1},
        {"max_completion_tokens", REQUEST_CHAT, -1, 16777216, 1},
        {"max_output_tokens", REQUEST_RESPONSE, 1, 16777216, 1},
        {"n", REQUEST_CHAT | REQUEST_COMPLETION, 1, 16, 1},
        {"temperature", REQUEST_CHAT | REQUEST_RESPONSE, 0, 100, 0.5},
        {"top_p", REQUEST_CHAT | REQUEST_RESPONSE, 0, 1, 0.5},
        {"min_p", REQUEST_COMPLETION, 0, 0.999999, 0.5},
        {"top_k", REQUEST_COMPLETION | REQUEST_RESPONSE, -1, 16777216, 1},
        {"priority", REQUEST_CHAT | REQUEST_RESPONSE, -100, 100, 1},
        {"timeout_ms", REQUEST_COMPLETION, 0, 86400000, 1},
        {"cache_ttl", REQUEST_RESPONSE, 0, 316224000, 1},
        {"expect_reuse_in", REQUEST_RESPONSE, 0, 316224000, 1},
        {"logprobs", REQUEST_COMPLETION, 0, 20, 1},
        {"frequency_penalty", REQUEST_CHAT | REQUEST_COMPLETION, -2, 2, 0.5},
        {"presence_penalty", REQUEST_CHAT | REQUEST_COMPLETION, -2, 2, 0.5},
        {"repetition_penalty", REQUEST_CHAT | REQUEST_COMPLETION, 0.01, 100, 0.005},
        {"min_tokens", REQUEST_CHAT | REQUEST_COMPLETION, 0, 16777216, 1},
    };
    static const unsigned kinds[] = {REQUEST_CHAT, REQUEST_COMPLETION, REQUEST_RESPONSE};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (int k = 0; k < 3; k++) {
            if ((all[i].kinds & kinds[k]) == 0)
                continue;
            const double values[] = {all[i].least - all[i].step, all[i].least, all[i].most,
                                     all[i].most + all[i].step};
            for (int v = 0; v < 4; v++) {
                char body[200];
                struct gen_params p;
                struct fault f;
                snprintf(body, sizeof body, "{'%s':[],'%s':%.15g}",
                         request_prompt_name(kinds[k]), all[i].name, values[v]);
                int status = status_of(kinds[k], &p, &f, body);
                if (status != (v == 0 || v == 3 ? 400 : 0))
                    fail_msg("%s: %d %s", body, status, f.message);
                if (status != 0)
                    assert_string_equal(f.param, all[i].name);
            }
        }
}

/* Returns the body {"messages":[],"FIELD":OPEN EACH EACH ... CLOSE}. EACH may contain one %d. */
static char *body_of(const char *prompt, const char *open, const char *each, int n,
                     const char *close)
{
    struct textbuf b = {0};
    textbuf_addf(&b, "{'%s':[],%s", prompt, open);
    for (int i = 0; i < n; i++) {
        const char *number = strstr(each, "%d");
        textbuf_addf(&b, "%s%.*s", i > 0 ? "," : "",
                     number != NULL ? (int)(number - each) : (int)strlen(each), each);
        if (number != NULL)
            textbuf_addf(&b, "%d%s", i, number + 2);
    }
    textbuf_addf(&b, "%s}", close);
    return b.p;
}

TEST(lists_have_bounds)
{
    static const struct {
        unsigned kind;
        const char *name, *open, *each, *close;
        int most;
    } rows[] = {
        {REQUEST_CHAT, "stop", "'stop':[", "'%d'", "]", 16},
        {REQUEST_CHAT, "tools", "'tools':[", "{}", "]", 128},
        {REQUEST_CHAT, "logit_bias", "'logit_bias':{", "'%d':1", "}", 1024},
        {REQUEST_COMPLETION, "stop_token_ids", "'stop_token_ids':[", "%d", "]", 64},
        {REQUEST_RESPONSE, "metadata", "'metadata':{", "'%d':''", "}", 16},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int more = 0; more < 2; more++) {
            struct gen_params p;
            struct fault f;
            char *body = body_of(request_prompt_name(rows[i].kind), rows[i].open,
                                 rows[i].each, rows[i].most + more, rows[i].close);
            assert_int_equal(status_of(rows[i].kind, &p, &f, body), more ? 400 : 0);
            if (more) {
                char want[40];
                assert_string_equal(f.param, rows[i].name);
                snprintf(want, sizeof want, "at most %d are allowed", rows[i].most);
                assert_non_null(strstr(f.message, want));
            }
            free(body);
        }
}

/* Texts of the greatest length are accepted. */
TEST(texts_have_bounds)
{
    static const struct {
        unsigned kind;
        const char *name, *open, *close;
        int least, most;
    } rows[] = {
        {REQUEST_CHAT, "model", "'model':'", "'", 0, 256},
        {REQUEST_CHAT, "cache_salt", "'cache_salt':'", "'", 0, 256},
        {REQUEST_CHAT, "stop", "'stop':'", "'", 0, 256},
        {REQUEST_RESPONSE, "previous_response_id", "'previous_response_id':'", "'", 1, 128},
        {REQUEST_RESPONSE, "metadata", "'metadata':{'", "':''}", 0, 64},
        {REQUEST_RESPONSE, "metadata", "'metadata':{'a':'", "'}", 0, 512},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int k = 0; k < 4; k++) {
            static char text[600];
            int n = k < 2 ? rows[i].least - 1 + k : rows[i].most + k - 2;
            struct gen_params p;
            struct fault f;
            if (n < 0)
                continue;
            memset(text, 'x', sizeof text);
            text[n] = 0;
            char *body = xasprintf("{'%s':[],%s%s%s}", request_prompt_name(rows[i].kind),
                                   rows[i].open, text, rows[i].close);
            assert_int_equal(status_of(rows[i].kind, &p, &f, body),
                             n < rows[i].least || n > rows[i].most ? 400 : 0);
            if (f.status != 0)
                assert_string_equal(f.param, rows[i].name);
            free(body);
        }
}

/* Every field of a chat or a response arrives in its place. */
TEST(each_field_arrives)
{
    struct gen_params p;
    struct fault f;
    struct json *j = parse(
        "{'messages':[{'role':'user'},{'role':'assistant'},{'role':'user'}],"
        "'max_tokens':7,'max_completion_tokens':0,'top_k':5,'min_p':0.25,"
        "'top_p':0.75,'ignore_eos':true,'priority':-4,'timeout_ms':8,"
        "'cache_salt':'s','cache_ttl':9,'expect_reuse_in':10,'stop':'one',"
        "'stream_options':{'include_usage':true},'tools':[{'a':1}],"
        "'chat_template_kwargs':{'k':1},'logit_bias':{'12':-3,'4':2.5},"
        "'frequency_penalty':0.5,'presence_penalty':-0.5,'repetition_penalty':1.5,"
        "'stop_token_ids':[3,2147483647],'min_tokens':2,'truncation':'disabled'}");
    assert_int_equal(request_parse(j, REQUEST_CHAT, &p, &f), 0);
    assert_int_equal(p.kind, REQUEST_CHAT);
    assert_int_equal(p.max_tokens, 0);
    assert_string_equal(request_max_name(&p), "max_completion_tokens");
    assert_int_equal(p.top_k, 5);
    assert_true(p.min_p == 0.25 && p.top_p == 0.75 && p.ignore_eos);
    assert_int_equal(p.priority, -4);
    assert_int_equal(p.timeout_ms, 8);
    assert_string_equal(p.cache_salt, "s");
    assert_int_equal(p.cache_ttl, 9);
    assert_int_equal(p.expect_reuse_in, 10);
    assert_int_equal(p.n_stop, 1);
    assert_string_equal(p.stop[0], "one");
    assert_true(p.include_usage && !p.stream && !p.has_seed && !p.logprobs);
    assert_int_equal(json_count(p.tools), 1);
    assert_int_equal(json_count(p.kwargs), 1);
    assert_int_equal(p.turn, 2); /* one answer was given */
    assert_string_equal(p.truncation, "disabled");
    assert_int_equal(json_count(p.messages), 3);
    struct request_shaping own;
    assert_int_equal(request_shaping(&p, hcache_encode, NULL, &own, &f), 0);
    const struct hcache_shaping *g = &own.shaping;
    assert_true(g->frequency_penalty == 0.5f && g->presence_penalty == -0.5f);
    assert_true(g->repetition_penalty == 1.5f);
    assert_int_equal(g->min_tokens, 2);
    assert_int_equal(g->n_bias, 2);
    assert_int_equal(g->bias[0].id, 12);
    assert_true(g->bias[0].bias == -3 && g->bias[1].bias == 2.5f);
    assert_int_equal(g->bias[1].id, 4);
    assert_int_equal(g->n_stop_ids, 2);
    assert_int_equal(g->stop_ids[0], 3);
    assert_int_equal(g->stop_ids[1], INT32_MAX);
    json_free(j);
    j = parse("{'input':'x','instructions':'i','previous_response_id':'r',"
              "'conversation':'c','store':false,'metadata':{'a':'b'},"
              "'max_output_tokens':3,'tool_choice':'none','tools':[{}],"
              "'truncation':'0.25,keep=128,context=1024'}");
    assert_int_equal(request_parse(j, REQUEST_RESPONSE, &p, &f), 0);
    assert_string_equal(json_string_of(p.prompt, NULL), "x");
    assert_string_equal(json_string_of(p.instructions, NULL), "i");
    assert_string_equal(p.previous, "r");
    assert_string_equal(json_string_of(p.conversation, NULL), "c");
    assert_false(p.store);
    assert_int_equal(json_count(p.metadata), 1);
    assert_int_equal(p.max_tokens, 3);
    assert_string_equal(request_max_name(&p), "max_output_tokens");
    assert_true(p.no_tools &&
                p.tools != NULL); /* the prompt shows the tools all the same */
    assert_string_equal(p.truncation, "auto");
    assert_true(p.numbers.ratio == 0.25);
    assert_int_equal(p.numbers.keep, 128);
    assert_int_equal(p.numbers.context, 1024);
    assert_int_equal(p.turn, 0);
    json_free(j);
}

/* A message needs its own bound on the answer; counting tokens does not. */
TEST(messages_need_a_bound)
{
    struct gen_params p;
    struct fault f;
    static const char without[] = "{'messages':[{'role':'user'}]}";
    assert_int_equal(status_of(REQUEST_MESSAGE, &p, &f, without), 400);
    assert_string_equal(f.param, "max_tokens");
    assert_string_equal(f.message, "'max_tokens' is missing");
    assert_int_equal(status_of(REQUEST_COUNT, &p, &f, without), 0);
    assert_int_equal(p.turn, 1);
    assert_int_equal(p.max_tokens, -1);
    assert_string_equal(request_max_name(&p), "max_tokens");
    assert_int_equal(status_of(REQUEST_MESSAGE, &p, &f, "{'messages':[],'max_tokens':0}"),
                     0);
    assert_int_equal(p.max_tokens, 0);
}

/* Fields that change nothing are accepted with any value. Fields that are not supported are
 * accepted with a value that asks for nothing. */
TEST(neutral_values_are_accepted)
{
    static const struct {
        const char *value;
        bool is_neutral;
    } rows[] = {{"null", true},   {"false", true},    {"true", false}, {"''", true},
                {"'none'", true}, {"'x'", false},     {"[]", true},    {"[1]", false},
                {"{}", true},     {"{'a':1}", false}, {"0", true},     {"0.0", true},
                {"1", false},     {"-1", false}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char body[100];
        struct gen_params p;
        struct fault f;
        snprintf(body, sizeof body, "{'messages':[],'audio':%s}", rows[i].value);
        assert_int_equal(status_of(REQUEST_CHAT, &p, &f, body),
                         rows[i].is_neutral ? 0 : 400);
        if (!rows[i].is_neutral) {
            assert_string_equal(f.code, "unsupported_parameter");
            assert_string_equal(f.param, "audio");
        }
        snprintf(body, sizeof body, "{'messages':[],'user':%s}", rows[i].value);
        assert_int_equal(status_of(REQUEST_CHAT, &p, &f, body), 0);
    }
    static const unsigned chat = REQUEST_CHAT, message = REQUEST_MESSAGE, none = 0;
    assert_true(request_ignores(&chat, "user", 4));
    assert_false(request_ignores(&chat, "use", 3));
    assert_false(request_ignores(&chat, "users", 5));
    assert_false(request_ignores(&chat, "model", 5));
    assert_false(request_ignores(&message, "user", 4)); /* that kind has no such field */
    assert_false(request_ignores(&none, "user", 4));
}

TEST(token_ids_are_read)
{
    static const struct {
        const char *list, *message;
    } bad[] = {{"[1,-1]", "'x' element 1 is not a token id"},
               {"['1']", "'x' element 0 is not a token id"},
               {"[0,1,2147483648]", "'x' element 2 is not a token id"},
               {"[1.5]", "'x' element 0 is not a token id"}};
    int32_t *ids;
    int n;
    struct fault f;
    struct json *j = parse("[0,5,2147483647]");
    assert_int_equal(request_ids(j, "x", &ids, &n, &f), 0);
    assert_int_equal(n, 3);
    assert_true(ids[0] == 0 && ids[1] == 5 && ids[2] == INT32_MAX);
    free(ids);
    json_free(j);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        j = parse(bad[i].list);
        assert_int_equal(request_ids(j, "x", &ids, &n, &f), -1);
        assert_int_equal(f.status, 400);
        assert_string_equal(f.message, bad[i].message);
        assert_string_equal(f.param, "x");
        free(ids);
        json_free(j);
    }
    /* the names of logit_bias are ids of at most nine digits, or texts */
    static const struct {
        const char *name;
        bool good;
    } names[] = {{"0", true},   {"123456789", true}, {"1234567890", false}, {"", false},
                 {"-1", false}, {"1 ", true},        {"0x1", true},         {"007", true}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char body[100];
        struct gen_params p;
        snprintf(body, sizeof body, "{'prompt':'x','logit_bias':{'%s':100}}",
                 names[i].name);
        assert_int_equal(status_of(REQUEST_COMPLETION, &p, &f, body),
                         names[i].good ? 0 : 400);
    }
    struct gen_params p;
    assert_int_equal(
        status_of(REQUEST_COMPLETION, &p, &f, "{'prompt':'x','logit_bias':{'5':'1'}}"),
        400);
    assert_int_equal(status_of(REQUEST_COMPLETION, &p, &f, "{'prompt':'x','logit_bias':5}"),
                     400);
    assert_int_equal(
        status_of(REQUEST_COMPLETION, &p, &f, "{'prompt':'x','stop_token_ids':5}"), 400);
}

TEST(members_are_known_by_name)
{
    static const char *const names[] = {"a", "bc", NULL};
    static const struct {
        const char *body, *param; /* param NULL: accepted */
    } rows[] = {{"{}", NULL},
                {"{'bc':1,'a':2}", NULL},
                {"{'a':1,'b':2}", "b"},
                {"{'bcd':1}", "bcd"},
                {"[]", ""},
                {"7", ""}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[100];
        snprintf(text, sizeof text, "[%s]", rows[i].body);
        struct json *j = parse(text);
        struct fault f = {0};
        assert_int_equal(request_known(json_at(j, 0), names, &f),
                         rows[i].param == NULL ? 0 : -1);
        if (rows[i].param != NULL) {
            assert_string_equal(f.param, rows[i].param);
            assert_int_equal(f.status, 400);
        }
        json_free(j);
    }
    const struct json *out = NULL;
    struct fault f;
    assert_int_equal(request_metadata(NULL, &out, &f), 0);
    assert_null(out);
    struct json *j = parse("{'m':{'a':'b'},'n':null,'x':[]}");
    assert_int_equal(request_metadata(json_member(j, "n"), &out, &f), 0);
    assert_null(out);
    assert_int_equal(request_metadata(json_member(j, "m"), &out, &f), 0);
    assert_ptr_equal(out, json_member(j, "m"));
    assert_int_equal(request_metadata(json_member(j, "x"), &out, &f), -1);
    assert_string_equal(f.param, "metadata");
    json_free(j);
}

/* In a conversation truncation is the default. A server that does not truncate never does. */
TEST(who_is_truncated)
{
    const struct hcache_truncation none = {0}, half = {.ratio = 0.5, .context = 256};
    struct json *conversation = parse("[]");
    static const char *const how[] = {NULL, "auto", "disabled"};
    for (int in_one = 0; in_one < 2; in_one++)
        for (int i = 0; i < 3; i++) {
            const struct gen_params p = {.truncation = how[i],
                                         .conversation = in_one ? conversation : NULL};
            assert_false(request_truncates(&p, &none));
            assert_int_equal(request_truncates(&p, &half), i == 0 ? in_one : i == 1);
        }
    struct gen_params p = {.truncation = "auto"};
    assert_true(request_truncation(&p, &half).context == 256);
    p.numbers = (struct hcache_truncation){.ratio = 0.25, .context = 128};
    assert_int_equal(request_truncation(&p, &half).context, 128);
    struct fault f = {0};
    assert_int_equal(prompts_check_truncation(&p, NULL, &half, &f), 0);
    p.truncation = "disabled";
    assert_int_equal(prompts_check_truncation(&p, NULL, &none, &f), 0);
    p.truncation = NULL;
    assert_int_equal(prompts_check_truncation(&p, NULL, &none, &f), 0);
    json_free(conversation);
    bool truncates = false;
    struct hcache_truncation numbers = half;
    assert_int_equal(request_read_truncation("disabled", &truncates, &numbers, &f), 0);
    assert_true(!truncates && numbers.ratio == 0);
    assert_int_equal(request_read_truncation("auto", &truncates, &numbers, &f), 0);
    assert_true(truncates && numbers.ratio == 0);
    assert_int_equal(request_read_truncation("0.5", &truncates, &numbers, &f), 0);
    assert_true(truncates && numbers.ratio == 0.5);
    assert_int_equal(request_read_truncation("off", &truncates, &numbers, &f), -1);
    assert_string_equal(f.param, "truncation");
    assert_string_equal(f.code, "unsupported_value");
    assert_string_equal(request_prompt_name(REQUEST_CHAT), "messages");
    assert_string_equal(request_prompt_name(REQUEST_MESSAGE), "messages");
    assert_string_equal(request_prompt_name(REQUEST_COMPLETION), "prompt");
    assert_string_equal(request_prompt_name(REQUEST_RESPONSE), "input");
}

/* The schema of a kind has the kind's fields, with types and bounds. */
TEST(the_schema_names_each_field)
{
    struct json *s = request_schema(REQUEST_COMPLETION);
    static const struct {
        const char *name, *type;
        double least, most;
    } rows[] = {{"n", "integer", 1, 16},
                {"top_p", "number", 0, 1},
                {"ignore_eos", "boolean", 0, 0},
                {"cache_salt", "string", 0, 0},
                {"prompt", NULL, 0, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct json *o = json_member(s, rows[i].name);
        double least = 0, most = 0;
        const char *type = json_string_of(json_member(o, "type"), NULL);
        assert_non_null(json_string_of(json_member(o, "description"), NULL));
        assert_int_equal(type == NULL, rows[i].type == NULL);
        if (type != NULL)
            assert_string_equal(type, rows[i].type);
        (void)json_real_of(json_member(o, "minimum"), &least);
        (void)json_real_of(json_member(o, "maximum"), &most);
        assert_true(least == rows[i].least && most == rows[i].most);
    }
    assert_null(json_member(s, "messages"));
    assert_null(json_member(s, "input"));
    json_free(s);
}

TEST(the_defaults)
{
    struct json *j = parse("{'prompt':[1,2]}");
    struct gen_params p;
    struct fault f;
    assert_int_equal(request_parse(j, REQUEST_COMPLETION, &p, &f), 0);
    assert_int_equal(p.max_tokens, -1);
    assert_true(p.temperature == 1.0 && p.top_p == 1.0 && p.n == 1 && !p.has_seed &&
                !p.stream);
    assert_true(p.store && p.cache_ttl == -1 && p.max_completion_tokens == -1);
    assert_true(p.top_k == 0 && p.min_p == 0 && !p.logprobs && p.n_top == 0 && p.turn == 0);
    assert_null(p.truncation);
    json_free(j);
}
