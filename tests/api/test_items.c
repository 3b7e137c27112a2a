/* test_items.c - items of a conversation: parsing, the messages for a template, titles and pages.
 */

#include "tests/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "api/items.h"
#include "tests/base/quotes.h"

/* Parses any JSON value. A JSON document must be a list or an object, so the value is put into a
 * list. */
static struct json *parse(const char *text)
{
    struct json *list = NULL;
    struct err e = {0};
    char *all = quotes_in(xasprintf("[%s]", text));
    if (json_parse(&list, all, strlen(all), "test", &e) != 0)
        fail_msg("%s", e.msg);
    struct json *v = json_share(json_at(list, 0));
    json_free(list);
    free(all);
    return v;
}

/* Asserts that v equals the JSON text `want`, member by member. Frees v. */
static void same_json(struct json *v, const char *want)
{
    struct json *w = parse(want);
    char *got_text = json_text(v, 0), *want_text = json_text(w, 0);
    assert_string_equal(got_text, want_text);
    free(got_text);
    free(want_text);
    json_free(w);
    json_free(v);
}

static struct json *read_items(const char *sent)
{
    struct json *v = parse(sent), *items = NULL;
    struct fault f = {0};
    if (items_read(v, "input", &items, &f) != 0)
        fail_msg("%s", f.message);
    json_free(v);
    return items;
}

static const char *text_of(const struct json *o, const char *key)
{
    return json_string_of(json_member(o, key), NULL);
}

/* Compares the items without their ids, which are random. */
static void items_are(const char *sent, const char *want)
{
    struct json *items = read_items(sent), *plain = json_new_array();
    for (size_t i = 0; i < json_count(items); i++) {
        struct json *o = json_new_object();
        struct json_iter it = json_begin(json_at(items, i));
        while (json_next(&it))
            if (strcmp(it.key, "id") != 0)
                json_put(o, it.key, json_share(it.value));
        json_push(plain, o);
    }
    json_free(items);
    same_json(plain, want);
}

TEST(what_is_sent_gets_one_form)
{
    items_are("'hi'", "[{'type': 'message', 'status': 'completed', 'role': 'user', "
                      "'content': [{'type': 'input_text', 'text': 'hi'}]}]");
    items_are("[]", "[]");
    items_are(
        "[{'role': 'assistant', 'content': 'yes'}]",
        "[{'type': 'message', 'status': 'completed', 'role': 'assistant', 'content': "
        "[{'type': 'output_text', 'text': 'yes', 'annotations': [], 'logprobs': []}]}]");
    items_are(
        "[{'type': 'message', 'role': 'developer', 'content': [{'type': 'input_text', "
        "'text': 'a'}, {'type': 'text', 'text': 'b'}]}]",
        "[{'type': 'message', 'status': 'completed', 'role': 'developer', 'content': "
        "[{'type': 'input_text', 'text': 'a'}, {'type': 'input_text', 'text': 'b'}]}]");
    items_are("[{'type': 'function_call', 'call_id': 'c', 'name': 'n', 'arguments': '{}'}]",
              "[{'type': 'function_call', 'status': 'completed', 'call_id': 'c', 'name': "
              "'n', 'arguments': '{}'}]");
    items_are("[{'type': 'function_call_output', 'call_id': 'c', 'output': [{'type': "
              "'output_text', 'text': '1'}, {'type': 'text', 'text': '2'}]}]",
              "[{'type': 'function_call_output', 'status': 'completed', 'call_id': 'c', "
              "'output': '12'}]");
}

TEST(ids_are_drawn_by_type)
{
    struct json *items = read_items(
        "[{'role': 'user', 'content': 'a'}, {'type': 'function_call', 'call_id': 'c', "
        "'name': 'n', 'arguments': ''}, {'type': 'function_call_output', 'call_id': 'c', "
        "'output': ''}]");
    static const char *const begins[] = {"msg_", "fc_", "fco_"};
    for (size_t i = 0; i < 3; i++)
        assert_memory_equal(text_of(json_at(items, i), "id"), begins[i], strlen(begins[i]));
    json_free(items);
    struct json *one = item_message("msg_7", "in_progress", NULL, 0);
    assert_string_equal(text_of(one, "id"), "msg_7");
    assert_string_equal(text_of(one, "status"), "in_progress");
    assert_int_equal(json_count(json_member(one, "content")), 0);
    json_free(one);
    struct json *of = parse("{'call_id': 'c', 'name': 'n', 'arguments': 'x'}");
    one = item_call("fc_1", "in_progress", of, false, false);
    assert_string_equal(text_of(one, "arguments"), "");
    assert_string_equal(text_of(one, "name"), "n");
    json_free(one);
    json_free(of);
}

static void refused(const char *sent, const char *code, const char *part)
{
    struct json *v = parse(sent), *items = v;
    struct fault f = {0};
    assert_int_equal(items_read(v, "input", &items, &f), -1);
    assert_null(items);
    assert_int_equal(f.status, 400);
    assert_string_equal(f.param, "input");
    if (code == NULL)
        assert_null(f.code);
    else
        assert_string_equal(f.code, code);
    assert_non_null(strstr(f.message, part));
    json_free(v);
}

TEST(what_is_not_supported_is_refused)
{
    refused("7", NULL, "must be a text, or a list of at most 4096 items");
    refused("[1]", NULL, "element 0 is no object");
    refused("[{'role': 'user', 'content': 'a'}, {'role': 'robot', 'content': 'a'}]", NULL,
            "element 1 has no role among");
    refused("[{'content': 'a'}]", NULL, "has no role among");
    refused("[{'role': 'user'}]", NULL, "has no 'content'");
    refused("[{'role': 'user', 'content': [{'type': 'input_image'}]}]", NULL,
            "a part that is not text");
    refused("[{'role': 'user', 'content': [{'type': 'input_text', 'text': 1}]}]", NULL,
            "a part that is not text");
    refused("[{'type': 'item_reference'}]", "unsupported_value",
            "the type 'item_reference'");
    refused("[{'type': 'function_call', 'call_id': 'c', 'name': 'n'}]", NULL,
            "needs the texts");
    refused("[{'type': 'function_call', 'name': 'n', 'arguments': ''}]", NULL,
            "needs the texts");
    refused("[{'type': 'function_call', 'call_id': 'c', 'arguments': ''}]", NULL,
            "needs the texts");
    refused("[{'type': 'function_call_output', 'output': ''}]", NULL,
            "needs a text 'call_id'");
    refused("[{'type': 'function_call_output', 'call_id': 'c'}]", NULL, "has no 'content'");
}

TEST(the_number_of_items_is_bounded)
{
    static const char item[] = "{'role': 'user', 'content': ''}";
    for (int n = ITEMS_MAX; n <= ITEMS_MAX + 1; n++) {
        char *all = xmalloc((size_t)n * sizeof item + 2), *p = all;
        for (int i = 0; i < n; i++)
            p += sprintf(p, "%c%s", i == 0 ? '[' : ',', item);
        strcpy(p, "]");
        struct json *v = parse(all), *items = NULL;
        struct fault f;
        assert_int_equal(items_read(v, "input", &items, &f), n > ITEMS_MAX ? -1 : 0);
        json_free(items);
        json_free(v);
        free(all);
    }
}

static void messages_are(const char *sent, const char *want)
{
    struct json *items = read_items(sent), *messages = json_new_array();
    items_to_messages(items, messages);
    json_free(items);
    same_json(messages, want);
}

#define CALL(id)                                                                           \
    "{'type': 'function_call', 'call_id': '" id "', 'name': 'f', 'arguments': '{}'}"
#define OUTPUT(id)       "{'type': 'function_call_output', 'call_id': '" id "', 'output': 'o'}"
#define SAID(role, text) "{'role': '" role "', 'content': '" text "'}"
#define CHAT_CALL(id)                                                                      \
    "{'id': '" id "', 'type': 'function', 'function': {'name': 'f', 'arguments': '{}'}}"
#define CHAT_OUTPUT(id) "{'role': 'tool', 'tool_call_id': '" id "', 'content': 'o'}"

/* Tool calls belong to the assistant's message before them. If there is none, they begin a new
 * message. */
TEST(templates_get_messages)
{
    messages_are(
        "[" SAID("user", "a") "," SAID("developer", "b") "," SAID("system", "c") "]",
        "[" SAID("user", "a") "," SAID("system", "b") "," SAID("system", "c") "]");
    messages_are("[{'role': 'user', 'content': [{'type': 'text', 'text': 'x'}, {'type': "
                 "'text', 'text': 'y'}]}, {'role': 'user', 'content': []}]",
                 "[" SAID("user", "xy") "," SAID("user", "") "]");
    messages_are(
        "[" SAID("assistant",
                 "a") "," CALL("1") "," CALL("2") "," OUTPUT("1") "," OUTPUT("2") "]",
        "[{'role': 'assistant', 'content': 'a', 'tool_calls': [" CHAT_CALL(
            "1") "," CHAT_CALL("2") "]}," CHAT_OUTPUT("1") "," CHAT_OUTPUT("2") "]");
    messages_are("[" SAID("user", "a") "," CALL("1") "," OUTPUT("1") "," CALL("2") "]",
                 "[" SAID("user", "a") ",{'role': 'assistant', 'content': '', "
                                       "'tool_calls': [" CHAT_CALL("1") "]}," CHAT_OUTPUT(
                                           "1") ",{'role': 'assistant', 'content': '', "
                                                "'tool_calls': [" CHAT_CALL("2") "]}]");
    messages_are("[" SAID("assistant", "a") "," CALL("1") "," SAID("assistant",
                                                                   "b") "," CALL("2") "]",
                 "[{'role': 'assistant', 'content': 'a', 'tool_calls': [" CHAT_CALL(
                     "1") "]}, {'role': 'assistant', 'content': 'b', 'tool_calls': "
                          "[" CHAT_CALL("2") "]}]");
}

static void title_is(const char *sent, size_t max, const char *want)
{
    struct json *items = read_items(sent);
    char *got = items_title(items, max);
    if (want == NULL)
        assert_null(got);
    else
        assert_string_equal(got, want);
    free(got);
    json_free(items);
}

TEST(the_first_words_of_the_user_are_the_title)
{
    title_is("[" SAID("system", "s") "," SAID("user", "first") "," SAID("user", "b") "]",
             80, "first");
    title_is("'one\\n\\ttwo three'", 9, "one  two ");
    title_is("'abc'", 3, "abc");
    title_is("''", 80, "");
    title_is("'a\x7f~'", 80, "a\x7f~"); /* only control characters become spaces */
    title_is("'a\xc3\xa9'", 2, "a");    /* a character is not cut */
    title_is("'a\xc3\xa9'", 3, "a\xc3\xa9");
    title_is("[{'role': 'user', 'content': []}," SAID("user", "then") "]", 80, "then");
    title_is("[" SAID("assistant", "a") "]", 80, NULL);
}

/* Gets a page of the five items a to e. Checks its items, their order, and whether more follow. */
static void page_is(struct items_page page, const char *want, bool has_more)
{
    struct json *items = parse(
                    "[{'id': 'a'}, {'id': 'b'}, {'id': 'c'}, {'id': 'd'}, {'id': 'e'}]"),
                *list = NULL;
    struct fault f;
    char got[16] = "";
    bool more;
    assert_int_equal(items_list(items, &page, &list, &f), 0);
    const struct json *data = json_member(list, "data");
    for (size_t i = 0; i < json_count(data); i++)
        strcat(got, text_of(json_at(data, i), "id"));
    assert_string_equal(got, want);
    assert_true(json_bool_of(json_member(list, "has_more"), &more));
    assert_int_equal(more, has_more);
    assert_string_equal(text_of(list, "object"), "list");
    if (want[0] == 0) {
        assert_null(text_of(list, "first_id"));
        assert_null(text_of(list, "last_id"));
    } else {
        assert_int_equal(text_of(list, "first_id")[0], want[0]);
        assert_int_equal(text_of(list, "last_id")[0], want[strlen(want) - 1]);
    }
    json_free(list);
    json_free(items);
}

TEST(pages_go_either_way)
{
    page_is((struct items_page){.limit = 2, .oldest_first = true}, "ab", true);
    page_is((struct items_page){.limit = 2, .oldest_first = true, .after = "b"}, "cd",
            true);
    page_is((struct items_page){.limit = 2, .oldest_first = true, .after = "d"}, "e",
            false);
    page_is((struct items_page){.limit = 2, .oldest_first = true, .after = "e"}, "", false);
    page_is((struct items_page){.limit = 5, .oldest_first = true}, "abcde", false);
    page_is((struct items_page){.limit = 2}, "ed", true);
    page_is((struct items_page){.limit = 2, .after = "d"}, "cb", true);
    page_is((struct items_page){.limit = 3, .after = "d"}, "cba", false);
    page_is((struct items_page){.limit = 9, .after = "a"}, "", false);
    struct json *none = json_new_array(), *list = NULL;
    struct items_page page = {.limit = 2, .after = "z"};
    struct fault f;
    assert_int_equal(items_list(none, &page, &list, &f), -1);
    assert_int_equal(f.status, 404);
    assert_string_equal(f.param, "after");
    json_free(none);
}

TEST(searches_find_texts_alone)
{
    static const struct {
        const char *query;
        bool found;
    } rows[] = {
        {"straße", true}, {"STRASSE", true},  {"öl", true},           {"ÖL", true},
        {"oslo", true},   {"cloudy", true},   {"get_weather", false}, {"user", false},
        {"hidden", true}, {"message", false}, {"\"city\"", true},
    };
    struct json *items = read_items(
        "[{'role': 'user', 'content': 'Die Straße nach Öl'}, {'type': 'reasoning', "
        "'summary': [], 'content':  [{'type': 'reasoning_text', 'text': 'hidden'}]}, "
        "{'type': 'function_call', 'call_id': 'c', 'name': 'get_weather',  'arguments': "
        "'{\\'city\\': \\'Oslo\\'}'}, {'type': 'function_call_output', 'call_id': 'c', "
        "'output': 'Cloudy'}]");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *folded = items_fold(rows[i].query, strlen(rows[i].query));
        if (items_hold(items, folded) != rows[i].found)
            fail_msg("%s", rows[i].query);
        free(folded);
    }
    assert_null(items_fold("\xff", 1));
    json_free(items);
}
