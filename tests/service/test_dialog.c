/* test_dialog.c - tool calls in an answer, as the public interface reports them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "format/json.h"
#include "service/dialog.h"
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

static void messages_become_text(void **state)
{
    (void)state;
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

static void calls_are_found(void **state)
{
    (void)state;
    static const char answer[] = "Let me see. <tool_call>\n{\"name\": \"f\", "
                                 "\"arguments\": {\"a\": 1.0}}\n</tool_call>";
    struct tokenizer *t;
    struct dialog *k = dialog_with(qwen, &t);
    char *json;
    assert_false(dialog_calls(k, "no call", 7, &json));
    assert_int_equal(dialog_text_bytes(k, "no call", 7), 7);
    assert_true(dialog_calls(k, answer, strlen(answer), &json));
    assert_string_equal(json,
                        "{\"content\": \"Let me see.\", \"tool_calls\": [{\"name\": \"f\", "
                        "\"arguments\": \"{\\\"a\\\": 1.0}\"}]}");
    free(json);
    assert_true(dialog_text_bytes(k, answer, strlen(answer)) <= strlen("Let me see. "));
    dialog_close(k);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_become_text),
        cmocka_unit_test(calls_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
