/* test_dialog.c - tool calls in an answer, as the public interface reports them. */
#include "tests/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "api/dialog.h"

#include "text/answer.h"
#include "tests/base/tempdir.h"

/* Makes a folder with a tokenizer of the golden files and this template. */
static struct dialog *dialog_with(const char *template, struct tokenizer **t)
{
    char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 64];
    struct err err = {0};
    struct dialog *k = NULL;
    char *text;
    size_t n;
    tempdir_make(dir, "dialog");
    if (file_read("tests/model/golden/gpt2-like/tokenizer.json", 1 << 26, &text, &n,
                  &err) != 0)
        fail_msg("%s", err.msg);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    free(text);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs("{\"eos_token\": \"<|endoftext|>\"}", f);
    assert_int_equal(fclose(f), 0);
    snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(template, f);
    assert_int_equal(fclose(f), 0);
    if (tokenizer_open(t, dir, &err) != 0 || dialog_open(&k, *t, &err) != 0)
        fail_msg("%s", err.msg);
    tempdir_remove(dir);
    return k;
}

static const char qwen[] =
    "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";

TEST(messages_become_text)
{
    static const char request[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}";
    struct tokenizer *t;
    struct dialog *k = dialog_with(qwen, &t);
    struct err err = {0};
    char *text;
    size_t n;
    struct json *j = NULL;
    assert_int_equal(json_parse(&j, request, strlen(request), "t", &err), 0);
    const struct hcache_chat chat = {.messages = json_member(j, "messages"),
                                     .tools = json_member(j, "tools"),
                                     .kwargs = json_member(j, "chat_template_kwargs")};
    assert_int_equal(dialog_render(k, &chat, &text, &n, &err), 0);
    json_free(j);
    assert_string_equal(text, "[user]Hi[assistant]");
    free(text);
    assert_int_not_equal(dialog_render(k, &(struct hcache_chat){0}, &text, &n, &err), 0);
    assert_true(dialog_has_tools(k));
    dialog_close(NULL);
    dialog_close(k);
    tokenizer_close(t);
}

/* The template shows how the model writes its calls. */
TEST(calls_are_found)
{
    static const char said[] = "Let me see. <tool_call>\n{\"name\": \"f\", "
                               "\"arguments\": {\"a\": 1.0}}\n</tool_call>";
    struct tokenizer *t;
    struct dialog *k = dialog_with(qwen, &t);
    struct json *tools = NULL;
    size_t n;
    assert_int_equal(json_parse(&tools, "[{\"name\": \"f\"}]", 15, "t", NULL), 0);
    struct answer *a = answer_open(dialog_form(k), "", 0, tools);
    answer_push(a, said, strlen(said));
    answer_end(a);
    const struct answer_part *p = answer_parts(a, &n);
    assert_int_equal(n, 2);
    assert_string_equal(p[0].text, "Let me see.");
    assert_string_equal(p[1].name, "f");
    assert_string_equal(p[1].text, "{\"a\": 1.0}");
    answer_close(a);
    json_free(tools);
    dialog_close(k);
    tokenizer_close(t);
}

/* Renders the conversation of a request; the caller frees the text. NULL: it was refused. */
static char *rendered(const struct dialog *k, const char *request, bool guarded,
                      struct err *err)
{
    struct json *j = NULL;
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(json_parse(&j, request, strlen(request), "t", err), 0);
    const struct hcache_chat chat = {.messages = json_member(j, "messages"),
                                     .tools = json_member(j, "tools"),
                                     .kwargs = json_member(j, "chat_template_kwargs"),
                                     .guarded = guarded};
    int rc = dialog_render(k, &chat, &text, &n, err);
    json_free(j);
    assert_int_equal(rc == 0, text != NULL);
    if (rc == 0)
        assert_int_equal(strlen(text), n);
    return text;
}

/* Templates get the texts of the special tokens, variables, tools and the date. */
TEST(templates_get_what_they_ask_for)
{
    static const char template[] = "{{ bos_token is defined }}|{{ eos_token }}|{{ x }}|{% "
                                   "if tools %}{{ tools | length }}"
                                   "{% endif %}|{{ strftime_now('%Y') | int > 2020 }}";
    static const struct {
        const char *request, *text;
    } rows[] = {
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\"}]}",
         "False|<|endoftext|>|||True"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"chat_template_kwargs\":{"
         "\"x\":7}}",
         "False|<|endoftext|>|7||True"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"chat_template_kwargs\":[1]"
         "}",
         NULL},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"tools\":[{},{}]}",
         "False|<|endoftext|>||2|True"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"tools\":{\"a\":1}}", NULL},
    };
    struct tokenizer *t;
    struct err err = {0};
    struct dialog *k = dialog_with(template, &t);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *text = rendered(k, rows[i].request, false, &err);
        assert_true((text == NULL) == (rows[i].text == NULL));
        assert_true(text == NULL || strcmp(text, rows[i].text) == 0);
        free(text);
    }
    assert_true(!dialog_has_tools(k) ||
                dialog_declares_tools(k)); /* the template shows no calls */
    dialog_close(k);
    tokenizer_close(t);
}

/* Special tokens of a template are special; those that a message spells are guarded on request. */
TEST(messages_are_guarded_and_templates_are_not)
{
    static const char template[] =
        "{% for m in messages %}{{ m.content }}{% endfor %}<|endoftext|>",
                      request[] = "{\"messages\":[{\"role\":\"user\",\"content\":"
                                  "\"a<|endoftext|>\"}]}";
    struct tokenizer *t;
    struct err err = {0};
    struct dialog *k = dialog_with(template, &t);
    char *plain = rendered(k, request, false, &err),
         *guarded = rendered(k, request, true, &err);
    assert_string_equal(plain, "a<|endoftext|><|endoftext|>");
    assert_string_equal(guarded, "a\xff<|endoftext|><|endoftext|>");
    free(plain);
    free(guarded);
    dialog_close(k);
    /* a template that refuses leaves no text, guarded or not */
    tokenizer_close(t);
    k = dialog_with("x{{ raise_exception('no such chat') }}", &t);
    for (int guards = 0; guards < 2; guards++) {
        assert_null(rendered(k, request, guards, &err));
        assert_non_null(strstr(err.msg, "no such chat"));
    }
    dialog_close(k);
    tokenizer_close(t);
}

/* A tokenizer without a template has no dialogs, and a template with an error is told. */
TEST(a_dialog_needs_a_template)
{
    struct dialog *k = (struct dialog *)(uintptr_t)1;
    struct err err = {0};
    struct tokenizer *t = NULL;
    assert_int_equal(dialog_open(&k, NULL, &err), 0);
    assert_null(k);
    assert_int_equal(tokenizer_open(&t, "tests/model/golden/gpt2-like", &err), 0);
    k = (struct dialog *)(uintptr_t)1;
    assert_int_equal(dialog_open(&k, t, &err), 0);
    assert_null(k);
    tokenizer_close(t);
    assert_int_equal(tokenizer_open(&t, "models/demo", &err), 0);
    assert_int_equal(dialog_open(&k, t, &err), 0);
    char *text = rendered(k, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}",
                          false, &err);
    assert_string_equal(text, "<|begin|><|user|>Hi<|end|><|assistant|>");
    free(text);
    dialog_close(k);
    tokenizer_close(t);
}
