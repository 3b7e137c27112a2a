/* test_answer.c - thoughts, text and calls of every family, whole and cut at every byte. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "text/answer.h"

static struct json *tools;

static int open_tools(void **state)
{
    static const char text[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"
        "\"object\","
        "\"properties\":{\"a\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"}}}}},"
        "{\"type\":\"function\",\"name\":\"g\"},{\"name\":\"h\",\"input_schema\":{}}]";
    return json_parse(&tools, text, sizeof text - 1, "tools", NULL);
}

static int close_tools(void **state)
{
    json_free(tools);
    return 0;
}

static const struct call_syntax *row(const char *family)
{
    for (int i = 0; i < CALL_SYNTAXES; i++)
        if (strcmp(call_syntaxes[i].family, family) == 0)
            return &call_syntaxes[i];
    fail_msg("no family %s", family);
    return NULL;
}

/* Writes the parts as [thought] text name(arguments). */
static void write(const struct answer *a, char *out, size_t size)
{
    size_t n, at = 0;
    const struct answer_part *p = answer_parts(a, &n);
    out[0] = 0;
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(out + at, size - at,
                               p[i].kind == ANSWER_THOUGHT ? "[%s%s]"
                               : p[i].kind == ANSWER_CALL  ? "%s(%s)"
                                                           : "%s%s",
                               p[i].name != NULL ? p[i].name : "", p[i].text);
}

/* Every text that a part ever showed must stay its beginning. */
static void check_grows(const struct answer *a, char seen[16][600], size_t *n_seen)
{
    size_t n;
    const struct answer_part *p = answer_parts(a, &n);
    assert_true(n >= *n_seen && n <= 16);
    for (size_t i = 0; i < n; i++) {
        if (i < *n_seen)
            assert_int_equal(strncmp(p[i].text, seen[i], strlen(seen[i])), 0);
        snprintf(seen[i], 600, "%s", p[i].text);
    }
    *n_seen = n;
}

static void read_all(const struct answer_form *f, const char *prompt,
                     const struct json *offered, const char *text, size_t cut,
                     bool bytewise, const char *want)
{
    struct answer *a = answer_open(f, prompt, strlen(prompt), offered);
    char got[2000], seen[16][600];
    size_t n = strlen(text), n_seen = 0;
    for (size_t i = 0; bytewise && i < n; i++) {
        answer_push(a, text + i, 1);
        check_grows(a, seen, &n_seen);
    }
    if (!bytewise) {
        answer_push(a, text, cut);
        check_grows(a, seen, &n_seen);
        answer_push(a, text + cut, n - cut);
        check_grows(a, seen, &n_seen);
    }
    answer_end(a);
    check_grows(a, seen, &n_seen);
    write(a, got, sizeof got);
    if (strcmp(got, want) != 0)
        print_error("in %s\n", text);
    assert_string_equal(got, want);
    answer_close(a);
}

static void expect_with(const struct answer_syntax *s, const char *prompt,
                        const struct json *offered, const char *text, const char *want)
{
    struct answer_form *f = answer_form_create(s, NULL);
    for (size_t cut = 0; cut <= strlen(text); cut++)
        read_all(f, prompt, offered, text, cut, false, want);
    read_all(f, prompt, offered, text, 0, true, want);
    answer_form_destroy(f);
}

static void expect(const char *family, const char *text, const char *want)
{
    const struct answer_syntax s = {row(family), thought_syntaxes[0], NULL};
    expect_with(&s, "assistant\n", tools, text, want);
}

TEST(each_family_is_read)
{
    static const struct {
        const char *family, *text, *want;
    } known[] = {
        {"hermes",
         "I will.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1.50,  \"b\": "
         "\"\\u00e9\"}}\n</tool_call>\n<tool_call>{\"arguments\":{},\"name\":\"g\"}</"
         "tool_call>\n",
         "I will.f({\"a\": 1.50,  \"b\": \"\\u00e9\"})g({})"},
        {"qwen-xml",
         "<tool_call>\n<function=f>\n<parameter=a>\n 5\n\n</parameter>\n<parameter=n>\n7\n"
         "</parameter>\n</function>\n</tool_call> end",
         "f({\"a\": \" 5\\n\", \"n\": 7}) end"},
        {"qwen-xml", "<function=g>\n<parameter=x>\n[1, \"é\"]\n</parameter>\n</function>",
         "g({\"x\": [1, \"é\"]})"},
        {"seed",
         "<seed:tool_call>\n<function=f>\n<parameter=a>x</parameter>\n</function>\n</"
         "seed:tool_call>",
         "f({\"a\": \"x\"})"},
        {"glm",
         "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>true</arg_value>\n<arg_key>n</"
         "arg_key>\n"
         "<arg_value>18446744073709551615</arg_value>\n</tool_call><tool_call>h</"
         "tool_call>",
         "f({\"a\": \"true\", \"n\": 18446744073709551615})h({})"},
        {"minimax",
         "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter "
         "name=\"a\">v</parameter>\n</invoke>\n"
         "<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
         "f({\"a\": \"v\"})g({})"},
        {"deepseek-dsml",
         "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"g\">\n<｜DSML｜parameter "
         "name=\"x\" "
         "string=\"true\">5</｜DSML｜parameter>\n<｜DSML｜parameter name=\"y\" "
         "string=\"false\">5</｜DSML｜parameter>\n</｜DSML｜invoke>\n</"
         "｜DSML｜function_calls>",
         "g({\"x\": \"5\", \"y\": 5})"},
        {"deepseek",
         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"
         "\"a\": \"```\"}\n"
         "```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}"
         "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
         "f({\"a\": \"```\"})g({})"},
        {"deepseek-3.1",
         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\":\"b\"}<"
         "｜tool▁call▁end｜><｜tool▁calls▁end｜>",
         "f({\"a\":\"b\"})"},
        {"kimi",
         "Hm. "
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_"
         "begin|>"
         "{}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}"
         "<|tool_call_end|><|tool_calls_section_end|>",
         "Hm.f({})g({})"},
        {"mistral",
         "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{\"a\": "
         "\"[TOOL_CALLS]\"}[TOOL_CALLS]g[ARGS]{}",
         "f({\"a\": \"[TOOL_CALLS]\"})g({})"},
        {"mistral",
         "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}, \"id\": \"abcdefghi\"}]",
         "f({})"},
        {"mistral-list",
         "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"x\", "
         "\"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]",
         "f({}), {\"name\": \"x\", \"arguments\": {}}g({})"},
        {"granite", "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": \"]\"}}]",
         "f({\"a\": \"]\"})"},
        {"command",
         "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", "
         "\"parameters\": {}}\n]<|END_ACTION|>",
         "f({})"},
        {"apertus", "<|tools_prefix|>[{\"f\": {\"a\": 1}}, {\"g\": {}}]<|tools_suffix|>",
         "f({\"a\": 1})g({})"},
        {"gemma-4",
         "<|tool_call>call:f{a:<|\"|>x}\"y<|\"|>,n:1,l:[true,<|\"|>z<|\"|>],o:{k:null}}<"
         "tool_call|>",
         "f({\"a\": \"x}\\\"y\", \"n\": 1, \"l\": [true, \"z\"], \"o\": {\"k\": null}})"},
        {"lfm2",
         "<|tool_call_start|>[f(a='it\\'s )', n=1), g(x=[True, None], y={\"k\": "
         "'v'})]<|tool_call_end|>ok",
         "f({\"a\": \"it's )\", \"n\": 1})g({\"x\": [true, null], \"y\": {\"k\": "
         "\"v\"}})ok"},
        {"llama-3",
         " {\"name\": \"f\", \"parameters\": {\"q\": \"a;b\"}}; {\"name\": \"g\", "
         "\"arguments\": {}}\n",
         "f({\"q\": \"a;b\"})g({})"},
        {"llama-3",
         "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}",
         "f({})"},
        {"llama-function", "Well <function=f>{\"a\": \"</function>\"}</function>",
         "Wellf({\"a\": \"</function>\"})"},
        {"gpt-oss",
         "<|channel|>analysis<|message|>Think. "
         "<tool_call><|end|><|start|>assistant<|channel|>commentary "
         "to=functions.f <|constrain|>json<|message|>{\"a\": \"x\"}<|call|>",
         "[Think. <tool_call>]f({\"a\": \"x\"})"},
        {"gpt-oss",
         "<|channel|>commentaryto=functions.f<|constrain|>json<|message|> \r\n{\"a\": 1}",
         "f({\"a\": 1})"},
        {"gpt-oss", " to=functions.g<|channel|>commentary json<|message|>{}<|call|>",
         "g({})"},
        {"gpt-oss",
         "<|channel|>commentary<|message|>First.<|end|><|start|>assistant<|channel|>final<|"
         "message|>Second.<|return|>",
         "First.\n\nSecond."},
        {"gpt-oss", "plain text", "plain text"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        expect(known[i].family, known[i].text, known[i].want);
}

/* What is no call stays text, and takes no other call with it. */
TEST(mistakes_stay_text)
{
#define GOOD "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"
    static const char *const bad[] = {
        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"b\"}</tool_call>",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"b}}\n</tool_call>",
        "<tool_call>{\"name\":\"nobody\",\"arguments\":{}}</tool_call>",
        "<tool_call>{\"name\":\"f\"}</tool_call>",
        "<tool_call>{\"name\":\"f\",\"arguments\":\"{}\"}</tool_call>",
        "<tool_call>{\"name\":5,\"arguments\":{}}</tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>[]</tool_call>",
        "<tool_call>{\"name\":\"f\",\"arguments\":{}} more</tool_call>",
        "<tool_call>{'name':'f','arguments':{}}</tool_call>",
        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1,\"a\":2}}</tool_call>"};
    char text[400], want[400];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        expect("hermes", bad[i], bad[i]);
        snprintf(text, sizeof text, GOOD "%s", bad[i]);
        snprintf(want, sizeof want, "f({})%s", bad[i]);
        expect("hermes", text, want);
        snprintf(text, sizeof text, "%s" GOOD, bad[i]);
        snprintf(want, sizeof want, "%sf({})", bad[i]);
        expect("hermes", text, want);
    }
    expect("hermes", "<tool_call>{\"name\":\"f\",\"argu",
           "<tool_call>{\"name\":\"f\",\"argu");
    expect("hermes", "just text\n", "just text\n");
    expect("hermes", "a <tool", "a <tool");
    expect("hermes", "", "");
    expect("llama-3", "{\"answer\": 42}", "{\"answer\": 42}");
    expect("llama-3", "text {\"name\": \"f\", \"parameters\": {}}",
           "text {\"name\": \"f\", \"parameters\": {}}");
    expect("qwen-xml", "<tool_call>\n<function=x>\n</function>\n</tool_call>",
           "<tool_call>\n<function=x>\n</function>\n</tool_call>");
    /* a call that was cut does not let the one run that its argument quotes */
    expect("qwen-xml",
           "<tool_call>\n<function=f>\n<parameter=a>\nAs in "
           "<tool_call>\n<function=g>\n</function>\n"
           "</tool_call> here",
           "<tool_call>\n<function=f>\n<parameter=a>\nAs in "
           "<tool_call>\n<function=g>\n</function>\n"
           "</tool_call> here");
}

/* Tags inside an argument are not tags. */
TEST(arguments_may_quote_tags)
{
    expect("hermes",
           "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"</"
           "tool_call><tool_call>{\\\"\"}}</tool_call>.",
           "f({\"a\":\"</tool_call><tool_call>{\\\"\"}).");
    expect("qwen-xml",
           "<tool_call>\n<function=f>\n<parameter=a>\nuse </parameter> and "
           "</tool_call>\n</parameter>\n"
           "</function>\n</tool_call>",
           "f({\"a\": \"use </parameter> and </tool_call>\"})");
    expect("hermes",
           "a<tool_call>{\"name\":\"f\",\"arguments\":{\"name\":{\"arguments\":1}}}</"
           "tool_call>b",
           "af({\"name\":{\"arguments\":1}})b");
    expect("hermes",
           "<tool_call>{\"parameters\":{\"p\":1},\"arguments\":{\"a\":[{},[1,\"]\"]]},"
           "\"name\":\"f\"}",
           "f({\"a\":[{},[1,\"]\"]]})");
}

TEST(thoughts_are_apart)
{
    const struct answer_syntax s = {row("hermes"), thought_syntaxes[0], NULL};
    expect_with(&s, "a\n", tools, "<think>\nHm <tool_call>.\n</think>\n\n" GOOD "x",
                "[Hm <tool_call>.]f({})x");
    expect_with(&s, "a\n<think>\n", tools, "\nHm " GOOD "\n</think>\nNo.",
                "[Hm " GOOD "]No.");
    expect_with(&s, "a<think>", NULL, "<think>\nHm", "[Hm]");
    expect_with(&s, "<think>\n\n</think>\n\n", NULL, "Yes <think>x</think>",
                "Yes <think>x</think>");
    expect_with(&s, "", NULL, "<think></think>Yes ", "Yes ");
    expect_with(&s, "", NULL, "  <thin", "  <thin");
    const struct answer_syntax gemma = {row("gemma-4"), thought_syntaxes[3], NULL};
    expect_with(&gemma, "", tools, "<|channel>thought\nHm<channel|>Yes", "[Hm]Yes");
    const struct answer_syntax llama = {row("llama-3"), thought_syntaxes[0], NULL};
    expect_with(&llama, "<think>", tools, "x</think>\n{\"name\":\"f\",\"parameters\":{}}",
                "[x]f({})");
    const struct answer_syntax none = {NULL, {NULL, NULL}, NULL};
    expect_with(&none, "<think>", tools, "<think>" GOOD " \n", "<think>" GOOD " \n");
}

/* Without offered tools nothing is a call. */
TEST(nobody_offered_is_text)
{
    const struct answer_syntax s = {row("hermes"), thought_syntaxes[0], NULL};
    expect_with(&s, "", NULL, GOOD " \n", GOOD " \n");
}

int main(void)
{
    return unit_run(open_tools, close_tools);
}
