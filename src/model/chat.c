/* chat.c - see chat.h.
 *
 * This file prepares the API's messages for a template.  Prepared messages are new objects that
 * share their members with the request's. */
#include "model/chat.h"

#include "base/mem.h"
#include "jinja/jinja.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct chat_template {
    struct jinja_template *jinja;
    struct chat_abilities can;
    /* Form in which the template shows tool calls: */
    bool null_beside_calls; /* content without text is null beside calls; false: "" */
    bool text_arguments;    /* arguments are JSON text; false: an object */
};

/* --- content ------------------------------------------------------------------------ */

static bool is_string(const struct json *v)
{
    return json_kind(v) == JSON_KIND_STRING;
}

static bool string_is(const struct json *v, const char *text)
{
    const char *s = json_string_of(v, NULL);
    return s != NULL && strcmp(s, text) == 0;
}

/* Refuses parts other than text. */
static int check_parts(const struct json *parts, size_t message, struct err *err)
{
    for (size_t i = 0; i < json_count(parts); i++) {
        const struct json *part = json_at(parts, i), *type = json_member(part, "type");
        if (json_kind(part) != JSON_KIND_OBJECT || !is_string(type))
            return err_set(err, ERR_USAGE,
                           "messages[%zu].content[%zu] must be an object with "
                           "a type",
                           message, i);
        const char *type_name = json_string_of(type, NULL);
        if (!string_is(type, "text"))
            return err_set(err, ERR_USAGE,
                           "messages[%zu].content[%zu]: parts of type '%.40s' are not "
                           "supported, only text is",
                           message, i, type_name != NULL ? type_name : "?");
        if (!is_string(json_member(part, "text")))
            return err_set(err, ERR_USAGE,
                           "messages[%zu].content[%zu].text must be a string", message, i);
    }
    return 0;
}

/* Sets the content of `message` to the parts, joined by newlines. */
static int put_joined(struct json *message, const struct json *parts, struct err *err)
{
    size_t bytes = 1, at = 0, n;
    for (size_t i = 0; i < json_count(parts); i++) {
        json_string_of(json_member(json_at(parts, i), "text"), &n);
        bytes += n + 1;
    }
    char *text = mem_try(bytes);
    if (text == NULL)
        return err_set(err, -ENOMEM, "no memory for a message of %zu bytes", bytes);
    for (size_t i = 0; i < json_count(parts); i++) {
        const char *s = json_string_of(json_member(json_at(parts, i), "text"), &n);
        if (i != 0)
            text[at++] = '\n';
        memcpy(text + at, s, n);
        at += n;
    }
    json_put_bytes(message, "content", text, at);
    free(text);
    return 0;
}

static void put_empty(struct json *message, bool as_null)
{
    if (as_null)
        json_put_null(message, "content");
    else
        json_put_string(message, "content", "");
}

/* Returns whether content is null, missing, "" or []. */
static bool is_empty(const struct json *content)
{
    size_t n = json_count(content);
    (void)json_string_of(content, &n);
    return n == 0;
}

/* Sets the content of a message with tool calls, after prepare_content, if the template wants
 * another form beside calls.  Refuses content beside which the template would not show the
 * calls. */
static int prepare_beside_calls(const struct chat_template *t, const struct json *content,
                                size_t i, struct json *to, struct err *err)
{
    if (is_empty(content))
        put_empty(to, t->null_beside_calls);
    else if (!t->can.calls_beside_text)
        return err_set(err, ERR_USAGE,
                       "messages[%zu] has content and tool_calls: the model's chat "
                       "template would leave out the calls; send the content in a message "
                       "of its own",
                       i);
    return 0;
}

static int prepare_content(const struct chat_template *t, const struct json *from, size_t i,
                           struct json *to, struct err *err)
{
    const struct json *content = json_member(from, "content");
    int rc;
    switch (json_kind(content)) {
    case JSON_KIND_STRING:
        json_put(to, "content", json_share(content));
        return 0;
    case JSON_KIND_ARRAY:
        rc = check_parts(content, i, err);
        if (rc == 0 && t->can.parts)
            json_put(to, "content", json_share(content));
        else if (rc == 0)
            rc = put_joined(to, content, err);
        return rc;
    case JSON_KIND_NULL:
        if (!string_is(json_member(from, "role"), "assistant"))
            return err_set(err, ERR_USAGE, "messages[%zu].content is missing", i);
        put_empty(to, t->can.parts);
        return 0;
    default:
        return err_set(
            err, ERR_USAGE,
            "messages[%zu].content must be a string or an array of parts, it is %s", i,
            json_kind_name(content));
    }
}

/* --- tool calls --------------------------------------------------------------------- */

/* Returns the object that a JSON text describes, or NULL.  Empty text is an empty object. */
static struct json *parse_arguments(const struct json *text)
{
    size_t n = 0;
    struct json *v = NULL;
    const char *s = json_string_of(text, &n);
    if (s == NULL)
        return NULL;
    if (n == 0)
        return json_new_object();
    if (json_parse(&v, s, n, "arguments", NULL) != 0)
        return NULL;
    if (json_kind(v) == JSON_KIND_OBJECT)
        return v;
    json_free(v);
    return NULL;
}

/* Returns a copy of `from` in which the member `key` has been replaced by `value`, in its place.
 * Takes ownership of `value`. */
static struct json *with_member(const struct json *from, const char *key,
                                struct json *value)
{
    struct json *to = json_new_object();
    struct json_iter it = json_begin(from);
    while (json_next(&it))
        json_put(to, it.key, strcmp(it.key, key) == 0 ? value : json_share(it.value));
    return to;
}

/* Returns the JSON text of an object; NULL for other kinds. */
static struct json *print_arguments(const struct json *object)
{
    if (json_kind(object) != JSON_KIND_OBJECT)
        return NULL;
    struct json *holder = json_new_object();
    char *text = json_text(object, 0);
    json_put_string(holder, "text", text);
    struct json *out = json_share(json_member(holder, "text"));
    free(text);
    json_free(holder);
    return out;
}

static struct json *prepare_call(const struct chat_template *t, const struct json *call)
{
    const struct json *function = json_member(call, "function");
    const struct json *given = json_member(function, "arguments");
    struct json *arguments = t->text_arguments ? print_arguments(given)
                                               : parse_arguments(given);
    if (arguments == NULL)
        return json_share(call);
    return with_member(call, "function", with_member(function, "arguments", arguments));
}

static int prepare_calls(const struct chat_template *t, const struct json *calls, size_t i,
                         struct json *to, struct err *err)
{
    if (json_kind(calls) != JSON_KIND_ARRAY)
        return err_set(err, ERR_USAGE,
                       "messages[%zu].tool_calls must be an array, it is %s", i,
                       json_kind_name(calls));
    if (json_count(calls) == 0)
        return 0;
    if (!t->can.calls)
        return err_set(err, ERR_USAGE,
                       "messages[%zu].tool_calls: the model's chat template does not show "
                       "tool calls",
                       i);
    struct json *out = json_new_array();
    for (size_t k = 0; k < json_count(calls); k++)
        json_push(out, prepare_call(t, json_at(calls, k)));
    json_put(to, "tool_calls", out);
    return 0;
}

/* --- messages ----------------------------------------------------------------------- */

static int prepare_message(const struct chat_template *t, const struct json *from, size_t i,
                           struct json *to, struct err *err)
{
    if (json_kind(from) != JSON_KIND_OBJECT)
        return err_set(err, ERR_USAGE, "messages[%zu] must be an object, it is %s", i,
                       json_kind_name(from));
    if (json_string_of(json_member(from, "role"), NULL) == NULL)
        return err_set(err, ERR_USAGE, "messages[%zu].role must be a string", i);
    struct json_iter it = json_begin(from);
    int rc = 0;
    while (rc == 0 && json_next(&it)) {
        if (strcmp(it.key, "content") == 0) {
            rc = prepare_content(t, from, i, to, err);
        } else if (json_kind(it.value) == JSON_KIND_NULL) {
            continue;
        } else if (strcmp(it.key, "tool_calls") == 0) {
            rc = prepare_calls(t, it.value, i, to, err);
        } else {
            json_put(to, it.key, json_share(it.value));
        }
    }
    if (rc == 0 && json_member(from, "content") == NULL)
        rc = prepare_content(t, from, i, to, err);
    if (rc == 0 && json_count(json_member(to, "tool_calls")) > 0)
        rc = prepare_beside_calls(t, json_member(from, "content"), i, to, err);
    return rc;
}

static int prepare_messages(const struct chat_template *t, const struct json *messages,
                            struct json **out, struct err *err)
{
    *out = NULL;
    if (json_kind(messages) != JSON_KIND_ARRAY || json_count(messages) == 0)
        return err_set(err, ERR_USAGE,
                       "messages must be an array with at least one message");
    struct json *list = json_new_array();
    for (size_t i = 0; i < json_count(messages); i++) {
        struct json *message = json_new_object();
        json_push(list, message);
        int rc = prepare_message(t, json_at(messages, i), i, message, err);
        if (rc != 0) {
            json_free(list);
            return rc;
        }
    }
    *out = list;
    return 0;
}

/* --- rendering ---------------------------------------------------------------------- */

static int check_request(const struct chat_request *r, struct err *err)
{
    static const char *const reserved[] = {"messages", "tools", "documents",
                                           "add_generation_prompt"};
    if (r->tools != NULL && json_kind(r->tools) != JSON_KIND_ARRAY &&
        json_kind(r->tools) != JSON_KIND_NULL)
        return err_set(err, ERR_USAGE, "tools must be an array, it is %s",
                       json_kind_name(r->tools));
    if (r->kwargs != NULL && json_kind(r->kwargs) != JSON_KIND_OBJECT)
        return err_set(err, ERR_USAGE, "the template's arguments must be an object, not %s",
                       json_kind_name(r->kwargs));
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (json_member(r->kwargs, reserved[i]) != NULL)
            return err_set(err, ERR_USAGE, "'%s' cannot be an argument of the template",
                           reserved[i]);
    return 0;
}

/* Returns the variables of a render: the special tokens' text, and the request's own variables,
 * which override them. */
static struct json *variables(const struct chat_request *r)
{
    struct json *vars = json_new_object();
    if (r->bos_token != NULL)
        json_put_string(vars, "bos_token", r->bos_token);
    if (r->eos_token != NULL)
        json_put_string(vars, "eos_token", r->eos_token);
    struct json_iter it = json_begin(r->kwargs);
    while (json_next(&it))
        json_put(vars, it.key, json_share(it.value));
    json_put_bool(vars, "add_generation_prompt", r->add_generation_prompt);
    return vars;
}

/* Returns whether a role is one of the known ones.  Templates build markers from the role: '<|' +
 * message.role + '|>'.  These may become special tokens, so other roles must not. */
static bool is_known_role(const struct json *v)
{
    static const char *const roles[] = {"system",    "developer",   "user",
                                        "assistant", "tool",        "function",
                                        "ipython",   "observation", "model"};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (string_is(v, roles[i]))
            return true;
    return false;
}

static bool is_traced(const char *key, const struct json *string)
{
    return key == NULL || strcmp(key, "role") != 0 || !is_known_role(string);
}

/* Renders a request with these prepared messages. foreign: NULL, or as in chat_render_traced. */
static int render(const struct chat_template *t, const struct chat_request *r,
                  const struct json *messages, char **text, size_t *n, uint8_t **foreign,
                  struct err *err)
{
    struct json *vars = variables(r);
    const struct jinja_var extra[] = {
        {"messages", messages, true},
        {"tools", json_count(r->tools) != 0 ? r->tools : NULL, true},
        {"documents", json_count(r->documents) != 0 ? r->documents : NULL, true},
    };
    const struct jinja_input in = {.vars = vars,
                                   .extra = extra,
                                   .n_extra = 3,
                                   .now = r->now,
                                   .traces = foreign != NULL ? is_traced : NULL};
    int rc = foreign != NULL ? jinja_render_traced(t->jinja, &in, text, n, foreign, err)
                             : jinja_render(t->jinja, &in, text, n, err);
    json_free(vars);
    return rc;
}

static int prepare_and_render(const struct chat_template *t, const struct chat_request *r,
                              char **text, size_t *n, uint8_t **foreign, struct err *err)
{
    struct json *messages = NULL;
    *text = NULL;
    *n = 0;
    int rc = check_request(r, err);
    if (rc == 0)
        rc = prepare_messages(t, r->messages, &messages, err);
    if (rc == 0)
        rc = render(t, r, messages, text, n, foreign, err);
    json_free(messages);
    return rc;
}

int chat_render(const struct chat_template *t, const struct chat_request *r, char **text,
                size_t *n, struct err *err)
{
    return prepare_and_render(t, r, text, n, NULL, err);
}

int chat_render_traced(const struct chat_template *t, const struct chat_request *r,
                       char **text, size_t *n, uint8_t **foreign, struct err *err)
{
    *foreign = NULL;
    return prepare_and_render(t, r, text, n, foreign, err);
}

/* --- opening ------------------------------------------------------------------------ */

#define MARK "hcacheprobe"

/* Returns the prompt that a probe's messages give; NULL if the template refuses them. */
static char *probe_text(const struct chat_template *t, const char *messages,
                        const char *tools, size_t *n)
{
    struct chat_request r = {
        .add_generation_prompt = true, .bos_token = "", .eos_token = ""};
    struct json *m = NULL, *tool_list = NULL;
    char *text = NULL;
    struct tm epoch = {.tm_year = 70, .tm_mday = 1};
    if (json_parse(&m, messages, strlen(messages), "probe", NULL) != 0)
        return NULL;
    if (tools != NULL)
        json_parse(&tool_list, tools, strlen(tools), "probe", NULL);
    r.tools = tool_list;
    r.now = &epoch;
    (void)render(t, &r, m, &text, n, NULL, NULL);
    json_free(tool_list);
    json_free(m);
    return text;
}

/* Returns whether a probe's prompt shows the mark. If `quoted` is false, a mark behind a quotation
 * mark does not count, because the template then printed a whole list or dict. */
static bool probe(const struct chat_template *t, const char *messages, const char *tools,
                  bool quoted)
{
    size_t n = 0;
    char *text = probe_text(t, messages, tools, &n);
    const char *at = text != NULL ? memmem(text, n, MARK, strlen(MARK)) : NULL;
    bool shown = at != NULL && (quoted || at == text || (at[-1] != '\'' && at[-1] != '"'));
    free(text);
    return shown;
}

/* --- how the template shows calls ----------------------------------------------------- */

static int count(const char *text, size_t n, const char *what)
{
    int found = 0;
    const char *end = text + n;
    for (const char *at = text;
         at != NULL && (at = memmem(at, (size_t)(end - at), what, strlen(what))) != NULL;
         at += strlen(what))
        found++;
    return found;
}

/* Returns the prompt of a conversation with a call; NULL if the template refuses it.  Some
 * templates show calls only if the result follows (shape 1) or if there are tools (shapes 2 and 3).
 */
static char *call_text(const struct chat_template *t, const char *content,
                       bool text_arguments, int shape, size_t *n)
{
    static const char result[] =
        ",{\"role\":\"tool\",\"tool_call_id\":\"callid000\",\"name\":\"other\","
        "\"content\":\"x\"}";
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"other\","
        "\"description\":\"d\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]";
    char *messages = xasprintf(
        "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\","
        "\"content\":%s,\"tool_calls\":[{\"id\":\"callid000\",\"type\":\"function\","
        "\"function\":{\"name\":\"call\",\"arguments\":%s}}]}%s]",
        content,
        text_arguments ? "\"{\\\"keyprobe\\\": \\\"" MARK "\\\"}\""
                       : "{\"keyprobe\":\"" MARK "\"}",
        shape % 2 == 1 ? result : "");
    char *text = probe_text(t, messages, shape >= 2 ? tools : NULL, n);
    free(messages);
    return text;
}

/* Returns whether the prompt shows the call's argument correctly: not as a dict that Python prints,
 * not as JSON text that was quoted once more, and without null content printed as None. */
static bool shows_call(const struct chat_template *t, const char *content,
                       bool text_arguments, int shape)
{
    size_t n = 0, n_empty = 0;
    char *text = call_text(t, content, text_arguments, shape, &n);
    char *empty = call_text(t, "\"\"", text_arguments, shape, &n_empty);
    bool shown = text != NULL && count(text, n, MARK) > 0 &&
                 count(text, n, "'keyprobe'") == 0 && count(text, n, "\\\"keyprobe") == 0 &&
                 count(text, n, "None") <= count(empty, n_empty, "None");
    free(text);
    free(empty);
    return shown;
}

static bool probe_call(const struct chat_template *t, const char *content,
                       bool text_arguments)
{
    bool shown = false;
    for (int shape = 0; shape < 4 && !shown; shape++)
        shown = shows_call(t, content, text_arguments, shape);
    return shown;
}

/* Finds the form of tool calls that the template shows.  Arguments as objects are tried first: a
 * template that prints every value as JSON would quote JSON text a second time. */
static void probe_calls(struct chat_template *t)
{
    for (int i = 0; i < 4 && !t->can.calls; i++) {
        t->text_arguments = i / 2 == 1;
        t->null_beside_calls = (i % 2 == 1) != t->can.parts;
        t->can.calls = probe_call(t, t->null_beside_calls ? "null" : "\"\"",
                                  t->text_arguments);
    }
    t->can.calls_beside_text = t->can.calls && probe_call(t, "\"said\"", t->text_arguments);
}

int chat_open(struct chat_template **out, const char *source, struct err *err)
{
    *out = NULL;
    if (source == NULL)
        return err_set(err, ERR_NOT_FOUND, "the model has no chat template");
    struct chat_template *t = xcalloc(1, sizeof *t);
    int rc = jinja_compile(&t->jinja, source, strlen(source), "chat_template", NULL, err);
    if (rc != 0) {
        chat_close(t);
        return rc;
    }
    t->can.parts = probe(
        t, "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"" MARK "\"}]}]",
        NULL, false);
    t->can.tools = probe(t, "[{\"role\":\"user\",\"content\":\"x\"}]",
                         "[{\"type\":\"function\",\"function\":{\"name\":\"" MARK
                         "\",\"description\":\"d\","
                         "\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]",
                         true);
    t->can.system = probe(t,
                          "[{\"role\":\"system\",\"content\":\"" MARK "\"},"
                          "{\"role\":\"user\",\"content\":\"x\"}]",
                          NULL, false);
    probe_calls(t);
    *out = t;
    return 0;
}

void chat_close(struct chat_template *t)
{
    if (t == NULL)
        return;
    jinja_destroy(t->jinja);
    free(t);
}

struct chat_abilities chat_abilities(const struct chat_template *t)
{
    return t->can;
}
