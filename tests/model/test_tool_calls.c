/* test_tool_calls.c - finding tool calls in a model's output. */
#include "model/tool_calls.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define Q TOOL_FORMAT_QWEN
#define L TOOL_FORMAT_LLAMA3

/* Checks the content and the calls found in `text`. `calls` is written as "name(arguments)
 * name(arguments)". */
static void expect(enum tool_format format, const char *text, const char *content,
                   const char *calls)
{
    struct tool_calls c;
    char got[1000] = "";
    tool_calls_parse(format, text, strlen(text), &c);
    for (size_t i = 0; i < c.n; i++) {
        size_t at = strlen(got);
        snprintf(got + at, sizeof got - at, "%s%s(%s)", i != 0 ? " " : "", c.at[i].name,
                 c.at[i].arguments);
    }
    assert_string_equal(got, calls);
    assert_string_equal(c.content, content);
    tool_calls_deinit(&c);
}

static void expect_text(enum tool_format format, const char *text)
{
    expect(format, text, text, "");
}

static void test_qwen(void **state)
{
    (void)state;
    expect_text(Q, "just text\n");
    expect_text(Q, "");
    expect(Q,
           "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1.50,  \"b\": "
           "\"\\u00e9\"}}\n</tool_call>",
           "", "f({\"a\": 1.50,  \"b\": \"\\u00e9\"})");
    expect(Q,
           "I will.\n<tool_call>{\"arguments\": {}, \"name\": "
           "\"f\"}</tool_call>\n<tool_call>\n"
           "{\"name\": \"g\", \"arguments\": {\"x\": [\"}\", \"</tool\"]}}\n</tool_call>\n",
           "I will.", "f({}) g({\"x\": [\"}\", \"</tool\"]})");
    expect(Q,
           "a<tool_call>{\"name\":\"f\",\"arguments\":{\"name\":{\"arguments\":1}}}</"
           "tool_call>b",
           "ab", "f({\"name\":{\"arguments\":1}})");
    expect(Q, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n", "",
           "f({})"); /* the call's end tag is missing */
    expect_text(Q, "x <tool_call>\n{\"name\": \"f\", \"arguments\": {}\n</tool_call>");
    expect_text(Q, "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>");
    expect_text(Q, "<tool_call>{\"name\": \"f\"}</tool_call>");
    expect_text(Q, "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>");
    expect_text(Q, "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>");
    expect_text(Q, "<tool_call></tool_call>");
    expect_text(Q, "<tool_call>[]</tool_call>");
    expect_text(Q, "<tool_call>{\"name\": \"f\", \"arguments\": {}} extra</tool_call>");
    expect_text(
        Q,
        "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call><tool_call>{</tool_call>");
}

static void test_llama3(void **state)
{
    (void)state;
    expect_text(L, "text {\"name\": \"f\", \"parameters\": {}}");
    expect_text(L, "{\"name\": \"f\"}");
    expect_text(L, "{\"answer\": 42}");
    expect_text(L, "{\"name\": \"f\", \"parameters\": {}} and text");
    expect_text(L, "{\"name\": \"f\", \"parameters\": {}");
    expect_text(L, "  ");
    expect(L, " {\"name\": \"f\", \"parameters\": {\"q\": \"a;b\"}}\n", "",
           "f({\"q\": \"a;b\"})");
    expect(L, "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}",
           "", "f({})");
    expect(L, "{\"name\": \"f\", \"arguments\": {}}; {\"name\": \"g\", \"parameters\": {}}",
           "", "f({}) g({})");
    expect_text(TOOL_FORMAT_NONE,
                "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>");
}

static void test_format_of(void **state)
{
    (void)state;
    assert_int_equal(tool_format_of(NULL), TOOL_FORMAT_NONE);
    assert_int_equal(tool_format_of("{{ messages }}"), TOOL_FORMAT_NONE);
    assert_int_equal(tool_format_of("...<tool_call>..."), Q);
    assert_int_equal(tool_format_of("<|start_header_id|>{{ tool_calls }}"), L);
    assert_int_equal(tool_format_of("<|start_header_id|>"), TOOL_FORMAT_NONE);
}

static size_t held(enum tool_format format, const char *text)
{
    return tool_calls_text_bytes(format, text, strlen(text));
}

static void test_streaming(void **state)
{
    (void)state;
    assert_int_equal(held(Q, "hello"), 5);
    assert_int_equal(held(Q, "hello\n"), 5);
    assert_int_equal(held(Q, "a < b"), 5);
    assert_int_equal(held(Q, "a <tool"), 1);
    assert_int_equal(held(Q, "a <"), 1);
    assert_int_equal(held(Q, "a <tool_call>{"), 1);
    assert_int_equal(held(L, ""), 0);
    assert_int_equal(held(L, "\n"), 0);
    assert_int_equal(held(L, "hi"), 2);
    assert_int_equal(held(L, " {\"a"), 0);
    assert_int_equal(held(L, "<|pyth"), 0);
    assert_int_equal(held(L, "<|eot"), 5);
    assert_int_equal(held(TOOL_FORMAT_NONE, "<tool_call>"), 11);
}

/* Which bytes are an argument's text: everything between its brackets, whatever quotes, escapes and
 * members stand around it. */
static void test_the_text_of_arguments(void **state)
{
    (void)state;
    static const struct {
        const char *call, *found;
    } known[] = {
        {"{\"name\":\"f\",\"arguments\":{}}", "f({})"},
        {"{ \"arguments\" :\t{ } ,\n\"name\" : \"f\" }", "f({ })"},
        {"{\"arguments\":{\"a\":[{},[1,\"]\"]]},\"name\":\"f\"}",
         "f({\"a\":[{},[1,\"]\"]]})"},
        {"{\"x\":\"\\\\\",\"arguments\":{\"q\":\"\\\"}\"},\"name\":\"f\"}",
         "f({\"q\":\"\\\"}\"})"},
        {"{\"x\":12,\"y\":null,\"z\":[1,{}],\"w\":{\"arguments\":5},"
         "\"arguments\":{\"k\":1},\"name\":\"f\"}",
         "f({\"k\":1})"},
        /* names that begin or end alike are other members */
        {"{\"argument\":{\"a\":1},\"arguments2\":{\"b\":1},\"arguments\":{\"c\":1},"
         "\"name\":\"f\"}",
         "f({\"c\":1})"},
        /* arguments count before parameters */
        {"{\"parameters\":{\"p\":1},\"arguments\":{\"a\":1},\"name\":\"f\"}",
         "f({\"a\":1})"},
        {"{\"parameters\":{\"p\":1},\"name\":\"f\"}", "f({\"p\":1})"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        char text[300];
        snprintf(text, sizeof text, "<tool_call>%s</tool_call>", known[i].call);
        expect(Q, text, "", known[i].found);
        expect(L, known[i].call, "", known[i].found);
        snprintf(text, sizeof text, "<|python_tag|> \n%s ;; ; %s;", known[i].call,
                 known[i].call);
        char twice[300];
        snprintf(twice, sizeof twice, "%s %s", known[i].found, known[i].found);
        expect(L, text, "", twice);
    }
    static const char *const bad[] = {"{\"name\":\"f\",\"arguments\":null}",
                                      "{\"name\":\"f\",\"arguments\":[{}]}",
                                      "[{\"name\":\"f\",\"arguments\":{}}]",
                                      "{\"arguments\":{}}",
                                      "5",
                                      "\"name\"",
                                      "{",
                                      "}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[300];
        snprintf(text, sizeof text, "a<tool_call>%s</tool_call>", bad[i]);
        expect_text(Q, text);
        expect_text(L, bad[i]);
    }
}

static void test_content_around_calls(void **state)
{
    (void)state;
#define F "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>"
    expect(Q, " \t\r\na \n" F, " \t\r\na", "f({})");
    expect(Q, F " \n", "", "f({})");
    expect(Q, F " b" F "c" F, " bc", "f({}) f({}) f({})");
    expect(Q, "a <tool_cal" F, "a <tool_cal", "f({})");
    expect(Q, "<tool_call> {\"name\":\"f\",\"arguments\":{}} \r\n", "", "f({})");
    struct tool_calls c;
    tool_calls_parse(Q, "a\0b", 3, &c); /* a zero byte is content, too */
    assert_int_equal(c.n_content, 3);
    assert_memory_equal(c.content, "a\0b", 3);
    assert_int_equal(c.n, 0);
    tool_calls_deinit(&c);
    assert_null(c.content);
    tool_calls_parse(Q, "a" F, 1 + sizeof F - 1, &c);
    assert_int_equal(c.n_content, 1);
    tool_calls_deinit(&c);
    assert_int_equal(tool_format_of("<tool_call> <|start_header_id|> tool_calls"), Q);
    assert_int_equal(tool_format_of("tool_calls"), TOOL_FORMAT_NONE);
}

/* The bytes that may be shown, for every beginning of an opening tag at the end. */
static void test_streaming_of_each_beginning(void **state)
{
    (void)state;
    static const char tag[] = "<tool_call>", python[] = "<|python_tag|>";
    for (size_t k = 1; k <= strlen(tag); k++) {
        char text[64];
        snprintf(text, sizeof text, "a  %.*s", (int)k, tag);
        assert_int_equal(held(Q, text), 1);
        snprintf(text, sizeof text, "%.*s", (int)k, tag);
        assert_int_equal(held(Q, text), 0);
        snprintf(text, sizeof text, "a %.*sx", (int)k, tag);
        assert_int_equal(held(Q, text), k < strlen(tag) ? strlen(text) : 1);
    }
    for (size_t k = 1; k <= strlen(python); k++) {
        char text[64];
        snprintf(text, sizeof text, " %.*s", (int)k, python);
        assert_int_equal(held(L, text), 0);
        snprintf(text, sizeof text, "%.*sx", (int)k, python);
        assert_int_equal(held(L, text), k < strlen(python) ? strlen(text) : 0);
    }
    assert_int_equal(held(L, " \t"), 0);
    assert_int_equal(held(L, "a {"), 3);
    assert_int_equal(held(Q, ""), 0);
    assert_int_equal(held(Q, "  "), 0);
}

/* Text that was shown while streaming is the beginning of the final content. */
static void test_streamed_is_a_prefix(void **state)
{
    (void)state;
    static const char *const bits[] = {"<tool_call>",
                                       "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
                                       "</tool_call>",
                                       "{\"name\": \"f\", ",
                                       "\"arguments\": ",
                                       "\"parameters\": ",
                                       "{}",
                                       "}",
                                       " ",
                                       "\n",
                                       "text",
                                       "<",
                                       "<tool",
                                       "<|python_tag|>",
                                       ";",
                                       "\"",
                                       "\\",
                                       "[",
                                       "]"};
    struct rng r = {.s = 9};
    size_t found = 0;
    for (int round = 0; round < 20000; round++) {
        char text[400] = "";
        enum tool_format format = round & 1 ? Q : L;
        for (uint64_t k = rng_below(&r, 12); k > 0; k--)
            strcat(text, bits[rng_below(&r, sizeof bits / sizeof *bits)]);
        size_t n = strlen(text), shown = 0;
        char *exact = malloc(n + 1);
        memcpy(exact, text, n);
        for (size_t i = 0; i <= n; i++) {
            size_t now = tool_calls_text_bytes(format, exact, i);
            assert_true(now <= i);
            shown = now > shown ? now : shown;
        }
        struct tool_calls c;
        tool_calls_parse(format, exact, n, &c);
        assert_true(shown <= strlen(c.content));
        assert_memory_equal(c.content, text, shown);
        found += c.n;
        tool_calls_deinit(&c);
        free(exact);
    }
    assert_true(found > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_qwen),
        cmocka_unit_test(test_llama3),
        cmocka_unit_test(test_format_of),
        cmocka_unit_test(test_streaming),
        cmocka_unit_test(test_streamed_is_a_prefix),
        cmocka_unit_test(test_the_text_of_arguments),
        cmocka_unit_test(test_content_around_calls),
        cmocka_unit_test(test_streaming_of_each_beginning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
