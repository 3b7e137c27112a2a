/* test_prompt.c - how messages become a prompt: in the plain form, or by a template; which messages
 * are refused and why; and prompts that are too long. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/mem.h"
#include "base/textbuf.h"
#include "base/json.h"
#include "api/prompt.h"
#include "tests/base/quotes.h"

enum { CONTEXT = 640, HISTORY = 2000 };

static struct hcache *h, *bare; /* `bare` has no chat template */

static int open_models(void **state)
{
    const struct hcache_opts o = {.model = "models/demo",
                                  .threads = 1,
                                  .max_context = CONTEXT,
                                  .max_history = HISTORY};
    const struct hcache_opts b = {
        .model = "synth:tiny-gqa", .threads = 1, .max_context = CONTEXT};
    struct hcache_err err;
    return hcache_open(&o, &h, &err) != 0 || hcache_open(&b, &bare, &err) != 0;
}

static int close_models(void **state)
{
    hcache_close(h);
    hcache_close(bare);
    return 0;
}

static struct json *parse(const char *text)
{
    struct json *v = NULL;
    struct err err = {0};
    if (json_parse(&v, quotes(text), strlen(text), "the test", &err) != 0)
        fail_msg("%s", err.msg);
    return v;
}

/* Returns the prompt, which the caller frees. On failure returns NULL and sets *f. */
static char *render(struct hcache *of, const char *messages, bool plain, struct fault *f)
{
    struct json *v = parse(messages);
    struct chat_source s = {.messages = v, .plain = plain};
    struct prompt_text out;
    *f = (struct fault){0};
    int rc = prompt_render(of, &s, &out, f);
    char *text = rc == 0 ? xmemdup(out.text, out.n) : NULL;
    assert_int_equal(rc != 0, f->status != 0);
    prompt_text_deinit(&out);
    json_free(v);
    return text;
}

/* --- the plain form --------------------------------------------------------------------------- */

TEST(plain_text_has_a_line_for_each_message)
{
    static const struct {
        const char *messages, *text;
    } rows[] = {
        {"[{'role': 'user', 'content': 'Hi'}]", "user: Hi\nassistant:"},
        {"[{'role': 'system', 'content': 'A'}, {'role': 'developer', 'content': 'B'}, "
         "{'role': 'assistant', 'content': ' C'}]",
         "system: A\nsystem: B\nassistant: C\nassistant:"},
        {"[{'role': 'user', 'content': [{'type': 'text', 'text': 'a'}, {'type': 'text', "
         "'text': 'b'}]}]",
         "user: ab\nassistant:"},
        {"[{'role': 'user', 'content': null}, {'role': 'user', 'content': []}]",
         "user: \nuser: \nassistant:"},
        {"[{'role': 'user', 'content': 'x', 'tool_calls': []}]", "user: x\nassistant:"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct fault f;
        char *text = render(bare, rows[i].messages, true, &f);
        if (text == NULL)
            fail_msg("%s: %s", rows[i].messages, f.message);
        assert_string_equal(text, rows[i].text);
        free(text);
    }
}

TEST(messages_without_a_plain_form_are_refused)
{
    static const char lists[] = "'messages' must be a list of messages";
    static const char roles[] =
        "message 1 has no role among system, developer, user, assistant";
    static const struct {
        const char *messages, *code, *message;
    } rows[] = {
        {"[]", NULL, lists},
        {"{}", NULL, lists},
        {"[{'role': 'user', 'content': 'a'}, {'content': 'b'}]", NULL, roles},
        {"[{'role': 'user', 'content': 'a'}, {'role': 'tool', 'content': 'b'}]", NULL,
         roles},
        {"[{'role': 'user', 'content': 7}]", NULL,
         "'content' of a message must be a text or a list of parts, it is an integer"},
        {"[{'role': 'assistant', 'content': '', 'tool_calls': [1]}]",
         "unsupported_parameter", "message 0 has 'tool_calls', which are not supported"},
        {"[{'role': 'user', 'content': [{'type': 'image', 'text': 'a'}]}]",
         "unsupported_value",
         "'content' has a part that is not {\"type\": \"text\", \"text\": ...}; only text "
         "is supported"},
        {"[{'role': 'user', 'content': [{'type': 'text'}]}]", "unsupported_value", NULL},
        {"[{'role': 'user', 'content': [{'text': 'a'}]}]", "unsupported_value", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct fault f;
        assert_null(render(bare, rows[i].messages, true, &f));
        assert_int_equal(f.status, 400);
        assert_string_equal(f.param, "messages");
        if (rows[i].message != NULL)
            assert_string_equal(f.message, rows[i].message);
        assert_true((f.code == NULL) == (rows[i].code == NULL));
        if (f.code != NULL)
            assert_string_equal(f.code, rows[i].code);
    }
    /* Without the option of plain text, a model without a template cannot make a prompt. */
    struct fault f;
    assert_null(render(bare, rows[2].messages, false, &f));
    assert_string_equal(f.code, "no_chat_template");
}

/* --- the template's --------------------------------------------------------------------------- */

TEST(a_template_is_used_where_there_is_one)
{
    struct fault f;
    static const char hi[] = "[{'role': 'user', 'content': 'Hi there'}]";
    char *plain = render(h, hi, true, &f), *text = render(h, hi, false, &f);
    assert_non_null(text);
    assert_string_equal(plain, text);
    assert_non_null(strstr(text, "Hi there"));
    assert_null(strstr(text, "user: Hi"));
    free(plain);
    free(text);
    assert_null(render(h, "[]", false, &f));
    assert_string_equal(f.message, "'messages' must be a list of messages");
    assert_null(render(h, "{'role': 'user'}", false, &f));
    assert_string_equal(f.message, "'messages' must be a list of messages");
    struct json *v = parse(hi), *tools = parse("[]");
    struct chat_source s = {.messages = v, .tools = tools};
    struct prompt_text out;
    assert_int_equal(prompt_render(bare, &s, &out, &f), -1);
    assert_string_equal(f.param, "tools");
    assert_string_equal(f.code, "unsupported_parameter");
    prompt_text_deinit(&out);
    json_free(v);
    json_free(tools);
}

/* Special tokens that a message spells are guarded, unless the message's source asks otherwise. An
 * answer is guarded in the same way as the prompt before it. */
TEST(special_tokens_are_guarded)
{
    static const char answer[] = "<|end|>";
    struct json *v = parse("[{'role': 'user', 'content': '<|end|>'}]");
    size_t n_bytes[2];
    for (int parses = 0; parses < 2; parses++) {
        struct chat_source s = {.messages = v, .parse_special = parses};
        struct prompt_text out;
        struct fault f;
        char *text;
        assert_int_equal(prompt_render(h, &s, &out, &f), 0);
        assert_int_equal(out.flags,
                         HCACHE_PARSE_SPECIAL | (parses ? 0u : (unsigned)HCACHE_GUARDED));
        prompt_text_answer(h, &out, answer, sizeof answer - 1, &text, &n_bytes[parses]);
        assert_int_equal(n_bytes[parses] == sizeof answer - 1, parses);
        if (parses)
            assert_memory_equal(text, answer, sizeof answer - 1);
        hcache_free(text);
        prompt_text_deinit(&out);
    }
    json_free(v);
}

/* --- prompts that are too long ---------------------------------------------------------------- */

/* Returns n words of one token each, which the caller frees. */
static char *words(int n)
{
    struct textbuf b = {0};
    for (int i = 0; i < n; i++)
        textbuf_add(&b, " the", 4);
    textbuf_add(&b, "", 0);
    return b.p;
}

/* A text is refused if even the lower bound on its tokens exceeds the context, or exceeds the
 * history that is truncated. */
TEST(a_text_may_fill_the_context)
{
    for (int truncates = 0; truncates < 2; truncates++) {
        int64_t most = truncates ? HISTORY : CONTEXT;
        int n = 1;
        struct fault f = {0};
        char *text = words(40000), want[300];
        /* the longest text whose lower bound on tokens is at most `most` */
        while (hcache_least_tokens(h, text, (size_t)n + 1) <= most)
            n++;
        assert_int_equal(prompt_fits(h, truncates, text, (size_t)n, "input", &f), 0);
        assert_int_equal(f.status, 0);
        assert_int_equal(prompt_fits(h, truncates, text, (size_t)n + 1, "input", &f), -1);
        assert_int_equal(f.status, 400);
        assert_string_equal(f.code, "context_length_exceeded");
        assert_string_equal(f.param, "input");
        snprintf(want, sizeof want,
                 "the prompt has %d bytes, which are at least %d tokens: ", n + 1,
                 (int)most + 1);
        assert_ptr_equal(strstr(f.message, want), f.message);
        assert_int_equal(strstr(f.message, "--max-history") != NULL, truncates);
        assert_non_null(strstr(f.message, "context length is 640 tokens"));
        free(text);
    }
}

/* A history far beyond the context is refused before it is rendered, by the lower bound for all its
 * texts together. */
TEST(a_history_has_a_bound)
{
    char *text = words(4 * 16 * CONTEXT);
    for (int truncates = 0; truncates < 2; truncates++) {
        int64_t most = truncates ? HISTORY : 16 * CONTEXT;
        struct json *messages = json_new_array(), *m = json_new_object();
        struct fault f = {0};
        struct prompt_text out;
        /* one half is in one message, the other half in the parts of another message */
        size_t n = 4 * (size_t)most / 2 + 4000;
        n = n < strlen(text) ? n : strlen(text);
        json_put_string(m, "role", "user");
        json_put_bytes(m, "content", text, n);
        json_push(messages, m);
        struct chat_source s = {.messages = messages, .truncates = truncates};
        int64_t one = hcache_least_tokens(h, text, n);
        assert_int_equal(prompt_render(h, &s, &out, &f) != 0, one > most);
        prompt_text_deinit(&out);
        for (int64_t sum = one; sum <= most; sum += one)
            json_push(messages, json_share(m));
        assert_int_equal(prompt_render(h, &s, &out, &f), -1);
        assert_string_equal(f.code, "context_length_exceeded");
        assert_string_equal(f.param, "messages");
        assert_int_equal(strstr(f.message, "--max-history") != NULL, truncates);
        prompt_text_deinit(&out);
        json_free(messages);
    }
    free(text);
}

/* --- what a truncation keeps ------------------------------------------------------------------ */

static int system_tokens(const char *messages)
{
    struct json *v = parse(messages);
    int n = prompt_system_tokens(h, v);
    json_free(v);
    return n;
}

TEST(the_systems_messages_are_kept)
{
    enum { AROUND = 32 }; /* tokens that a template may add around a message */
    int32_t *ids;
    int n;
    struct hcache_err err;
    assert_int_equal(hcache_encode(h, "Be kind.", 8, 0, &ids, &n, &err), 0);
    hcache_free(ids);
    assert_int_equal(system_tokens("[]"), 0);
    assert_int_equal(system_tokens("[{'role': 'user', 'content': 'Be kind.'}]"), 0);
    assert_int_equal(system_tokens("[{'role': 'system', 'content': ''}]"), 0);
    assert_int_equal(system_tokens("[{'role': 'system', 'content': 'Be kind.'}]"),
                     n + AROUND);
    assert_int_equal(
        system_tokens("[{'role': 'system', 'content': 'Be kind.'}, {'role': 'developer', "
                      "'content': 'Be kind.'}, {'role': 'user', 'content': 'x'}, {'role': "
                      "'system', 'content': 'Be kind.'}]"),
        2 * (n + AROUND)); /* counts only the messages at the beginning */
    struct hcache_truncation t = {.keep = 128};
    prompt_keep(128, &t);
    assert_int_equal(t.keep, 128);
    prompt_keep(129, &t);
    assert_int_equal(t.keep, 192);
    prompt_keep(1, &t);
    assert_int_equal(t.keep, 192);
    t.keep = 0;
    prompt_keep(0, &t);
    assert_int_equal(t.keep, 0);
    prompt_keep(1, &t);
    assert_int_equal(t.keep, 64);
}

int main(void)
{
    return unit_run(open_models, close_models);
}
