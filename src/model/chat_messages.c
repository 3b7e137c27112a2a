/* chat_messages.c - see chat_impl.h.
 *
 * Prepared messages are new objects that share their members with the request's. Each message is
 * adapted on its own; then neighbours are joined where the template wants fewer messages. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/textbuf.h"
#include "model/chat_impl.h"

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

static bool has_role(const struct json *message, const char *role)
{
    return string_is(json_member(message, "role"), role);
}

/* Returns the text of a part: "text", "refusal" or "thinking", by its type; NULL: it has none. */
static const struct json *part_text(const struct json *part)
{
    static const char *const types[] = {"text", "refusal", "thinking"};
    for (int i = 0; i < 3; i++)
        if (string_is(json_member(part, "type"), types[i]))
            return json_member(part, types[i]);
    return NULL;
}

/* Refuses parts other than text. */
static int check_parts(const struct json *parts, size_t message, bool is_assistant,
                       struct err *err)
{
    for (size_t i = 0; i < json_count(parts); i++) {
        const struct json *part = json_at(parts, i), *type = json_member(part, "type");
        if (json_kind(part) != JSON_KIND_OBJECT || !is_string(type))
            return err_set(err, ERR_USAGE,
                           "messages[%zu].content[%zu] must be an object with "
                           "a type",
                           message, i);
        const char *type_name = json_string_of(type, NULL);
        bool is_text = string_is(type, "text");
        if (!is_text && (!is_assistant || part_text(part) == NULL))
            return err_set(err, ERR_USAGE,
                           "messages[%zu].content[%zu]: parts of type '%.40s' are not "
                           "supported, only text is",
                           message, i, type_name != NULL ? type_name : "?");
        if (!is_string(part_text(part)))
            return err_set(err, ERR_USAGE,
                           "messages[%zu].content[%zu].text must be a string", message, i);
    }
    return 0;
}

static bool is_thought(const struct json *part)
{
    return string_is(json_member(part, "type"), "thinking");
}

/* Joins texts with newlines. */
struct joined {
    char *p;
    size_t n, cap, n_texts;
    bool lacks_memory;
};

static void join(struct joined *j, const char *s, size_t n, const char *between)
{
    size_t k = j->n_texts++ > 0 ? strlen(between) : 0;
    if (j->n + k + n + 1 > j->cap && !j->lacks_memory) {
        size_t cap = 2 * (j->n + k + n) + 16;
        char *p = mem_try_realloc(j->p, cap);
        j->lacks_memory = p == NULL;
        j->p = p != NULL ? p : j->p;
        j->cap = p != NULL ? cap : j->cap;
    }
    if (j->lacks_memory)
        return;
    memcpy(j->p + j->n, between, k);
    memcpy(j->p + j->n + k, s, n);
    j->n += k + n;
}

static void join_value(struct joined *j, const struct json *text, const char *between)
{
    size_t n = 0;
    const char *s = json_string_of(text, &n);
    if (s != NULL)
        join(j, s, n, between);
}

/* Adds the texts of a content, a string or parts. thoughts: those of the thoughts among the parts,
 * else those of the others. */
static void join_content(struct joined *j, const struct json *content, bool thoughts)
{
    if (is_string(content) && !thoughts)
        join_value(j, content, "\n\n");
    for (size_t i = 0; json_kind(content) == JSON_KIND_ARRAY && i < json_count(content);
         i++)
        if (is_thought(json_at(content, i)) == thoughts)
            join_value(j, part_text(json_at(content, i)), "\n");
}

/* Sets a member to the joined text, and frees the text. */
static int put_joined(struct json *message, const char *key, struct joined *j,
                      struct err *err)
{
    bool good = !j->lacks_memory;
    if (good)
        json_put_bytes(message, key, j->p != NULL ? j->p : "", j->n);
    size_t n = j->n;
    free(j->p);
    *j = (struct joined){0};
    return good
               ? 0
               : err_set(err, -ENOMEM, "no memory for a message of more than %zu bytes", n);
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

static bool walks_parts(const struct chat_template *t, const struct json *message)
{
    enum chat_role role = has_role(message, "system") || has_role(message, "developer")
                              ? CHAT_SYSTEM
                          : has_role(message, "assistant") ? CHAT_ASSISTANT
                          : has_role(message, "tool")      ? CHAT_TOOL
                                                           : CHAT_USER;
    return t->parts[role];
}

static bool only_texts(const struct json *parts)
{
    for (size_t i = 0; i < json_count(parts); i++)
        if (!string_is(json_member(json_at(parts, i), "type"), "text"))
            return false;
    return true;
}

static int prepare_content(const struct chat_template *t, const struct json *from, size_t i,
                           struct json *to, struct err *err)
{
    const struct json *content = json_member(from, "content");
    bool is_assistant = has_role(from, "assistant");
    struct joined j = {0};
    int rc;
    switch (json_kind(content)) {
    case JSON_KIND_STRING:
        json_put(to, "content", json_share(content));
        return 0;
    case JSON_KIND_ARRAY:
        rc = check_parts(content, i, is_assistant, err);
        if (rc == 0 && walks_parts(t, from) && (only_texts(content) || t->thought_parts))
            json_put(to, "content", json_share(content));
        else if (rc == 0) {
            join_content(&j, content, false);
            rc = put_joined(to, "content", &j, err);
        }
        return rc;
    case JSON_KIND_NULL:
        if (!is_assistant)
            return err_set(err, ERR_USAGE, "messages[%zu].content is missing", i);
        /* a refusal is what the assistant said */
        if (is_string(json_member(from, "refusal")))
            json_put(to, "content", json_share(json_member(from, "refusal")));
        else
            put_empty(to, t->can.parts);
        return 0;
    default:
        return err_set(
            err, ERR_USAGE,
            "messages[%zu].content must be a string or an array of parts, it is %s", i,
            json_kind_name(content));
    }
}

/* --- thoughts ------------------------------------------------------------------------- */

/* Clients send thoughts back under one of three names, or as parts. */
static const struct json *thought_of(const struct json *from)
{
    static const char *const keys[] = {"reasoning_content", "reasoning", "thinking"};
    for (int i = 0; i < 3; i++)
        if (is_string(json_member(from, keys[i])) && !is_empty(json_member(from, keys[i])))
            return json_member(from, keys[i]);
    return NULL;
}

/* Puts the thought in front of the content, between the model's tags. */
static int put_inline(const struct chat_template *t, const struct json *thought,
                      struct json *to, struct err *err)
{
    const struct thought_syntax *s = &t->syntax.thoughts;
    struct joined j = {0};
    size_t n = 0;
    const char *text = json_string_of(thought, &n);
    join(&j, s->open, strlen(s->open), "");
    join(&j, text, n, "\n");
    join(&j, s->close, strlen(s->close), "\n");
    join(&j, "", 0, "\n\n");
    const char *said = json_string_of(json_member(to, "content"), &n);
    if (said != NULL)
        join(&j, said, n, "");
    return put_joined(to, "content", &j, err);
}

static void put_part(const struct json *thought, struct json *to)
{
    struct json *list = json_new_array(), *part = json_new_object(),
                *text = json_new_object();
    const struct json *content = json_member(to, "content");
    json_put_string(part, "type", "thinking");
    json_put(part, "thinking", json_share(thought));
    json_push(list, part);
    if (is_string(content) && !is_empty(content)) {
        json_put_string(text, "type", "text");
        json_put(text, "text", json_share(content));
        json_push(list, text);
    } else {
        json_free(text);
    }
    for (size_t i = 0; json_kind(content) == JSON_KIND_ARRAY && i < json_count(content);
         i++)
        json_push(list, json_share(json_at(content, i)));
    json_put(to, "content", list);
}

/* Puts the thought where the template looks for it. A template that knows none gets the text that
 * the model wrote: thought and answer in one. */
static int prepare_thought(const struct chat_template *t, const struct json *from,
                           struct json *to, struct err *err)
{
    const struct json *given = thought_of(from), *content = json_member(to, "content");
    struct json *own = NULL;
    int rc = 0;
    if (!has_role(from, "assistant"))
        return 0;
    if (given == NULL && json_kind(json_member(from, "content")) == JSON_KIND_ARRAY) {
        struct joined j = {0};
        own = json_new_object();
        join_content(&j, json_member(from, "content"), true);
        bool any = j.n > 0;
        rc = put_joined(own, "text", &j, err);
        given = rc == 0 && any ? json_member(own, "text") : NULL;
        if (t->thought_parts && json_kind(content) == JSON_KIND_ARRAY)
            given = NULL; /* the parts went through */
    }
    bool excluded = t->thought_or_text && !is_empty(content) &&
                    json_count(json_member(to, "tool_calls")) > 0;
    if (given != NULL && t->thought_key != NULL && !excluded)
        json_put(to, t->thought_key, json_share(given));
    else if (given != NULL && t->thought_parts)
        put_part(given, to);
    else if (given != NULL && t->thought_key == NULL && !t->no_thoughts &&
             json_kind(content) != JSON_KIND_ARRAY)
        rc = put_inline(t, given, to, err);
    json_free(own);
    return rc;
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
    char *text = json_text_exact(object);
    json_put_string(holder, "text", text);
    struct json *out = json_share(json_member(holder, "text"));
    free(text);
    json_free(holder);
    return out;
}

/* Some templates take only ids of nine letters and digits. The same id always becomes the same. */
static struct json *short_id(const struct json *id)
{
    static const char letters[] =
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    size_t n = 0;
    const char *s = json_string_of(id, &n);
    char out[10] = "";
    if (s == NULL || (n == 9 && strspn(s, letters) == 9))
        return json_share(id);
    uint64_t h = checksum64(s, n);
    for (int i = 0; i < 9; i++, h /= 62)
        out[i] = letters[h % 62];
    return json_new_bytes(out, 9);
}

static struct json *prepare_call(const struct chat_template *t, const struct json *call)
{
    const struct json *function = json_member(call, "function");
    const struct json *given = json_member(function, "arguments");
    struct json *arguments = t->text_arguments ? print_arguments(given)
                                               : parse_arguments(given);
    struct json *out = arguments == NULL
                           ? json_share(call)
                           : with_member(call, "function",
                                         with_member(function, "arguments", arguments));
    if (!t->short_ids || !is_string(json_member(call, "id")))
        return out;
    struct json *named = with_member(out, "id", short_id(json_member(call, "id")));
    json_free(out);
    return named;
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

/* Id of the call that a message of the older form makes: such calls have none. */
static void old_id(size_t message, char out[16])
{
    snprintf(out, 16, "call%05zu", message % 100000);
}

/* Reads {"function_call": {"name", "arguments"}}, the older form of one call. */
static int prepare_old_call(const struct chat_template *t, const struct json *function,
                            size_t i, struct json *to, struct err *err)
{
    char id[16];
    if (!is_string(json_member(function, "name")))
        return err_set(err, ERR_USAGE, "messages[%zu].function_call needs a name", i);
    struct json *list = json_new_array(), *call = json_new_object();
    old_id(i, id);
    json_put_string(call, "id", id);
    json_put_string(call, "type", "function");
    json_put(call, "function", json_share(function));
    json_push(list, call);
    int rc = prepare_calls(t, list, i, to, err);
    json_free(list);
    return rc;
}

/* Sets the content of a message with tool calls, after prepare_content, if the template wants
 * another form beside calls. *before: NULL, or the message that shows the content in front of the
 * calls. */
static int prepare_beside_calls(const struct chat_template *t, size_t i, struct json *to,
                                struct json **before, struct err *err)
{
    const struct json *content = json_member(to, "content");
    *before = NULL;
    if (is_empty(content)) {
        put_empty(to, t->null_beside_calls);
    } else if (!t->text_beside_calls && t->text_before_calls) {
        *before = json_new_object();
        json_put_string(*before, "role", "assistant");
        json_put(*before, "content", json_share(content));
        put_empty(to, t->null_beside_calls);
    } else if (!t->text_beside_calls) {
        return err_set(err, ERR_USAGE,
                       "messages[%zu] has content and tool_calls: the model's chat "
                       "template would leave out %s",
                       i, t->can.calls_beside_text ? "the content" : "the calls");
    }
    return 0;
}

/* --- roles ---------------------------------------------------------------------------- */

/* Returns the role under which the template shows a message; NULL with *err: under none. */
static const char *prepare_role(const struct chat_template *t, const struct json *from,
                                size_t i, struct err *err)
{
    const char *role = json_string_of(json_member(from, "role"), NULL);
    if (strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0)
        return role;
    if (strcmp(role, "developer") == 0)
        return t->developer ? role : "system";
    if (strcmp(role, "system") == 0)
        return role;
    if (strcmp(role, "tool") == 0 || strcmp(role, "function") == 0) {
        if (t->tool_results)
            return "tool";
        err_set(
            err, ERR_USAGE,
            "messages[%zu].role is '%s': the model's chat template does not show results "
            "of tools",
            i, role);
        return NULL;
    }
    if (chat_probe_role(t, role))
        return role;
    err_set(err, ERR_USAGE,
            "messages[%zu].role is '%.40s', which the model's chat template does not show",
            i, role);
    return NULL;
}

/* --- messages ------------------------------------------------------------------------- */

/* Members that are prepared, or have another name for the template. */
static bool is_prepared(const char *key)
{
    static const char *const keys[] = {
        "role",     "content",   "tool_calls",       "function_call",
        "thinking", "reasoning", "reasoning_content"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return false;
}

/* old_call: number of the last message that had a call of the older form. */
static int prepare_message(const struct chat_template *t, const struct json *from, size_t i,
                           size_t *old_call, struct json *to, struct json **before,
                           struct err *err)
{
    *before = NULL;
    if (json_kind(from) != JSON_KIND_OBJECT)
        return err_set(err, ERR_USAGE, "messages[%zu] must be an object, it is %s", i,
                       json_kind_name(from));
    if (json_string_of(json_member(from, "role"), NULL) == NULL)
        return err_set(err, ERR_USAGE, "messages[%zu].role must be a string", i);
    const char *role = prepare_role(t, from, i, err);
    if (role == NULL)
        return ERR_USAGE;
    struct json_iter it = json_begin(from);
    int rc = 0;
    while (rc == 0 && json_next(&it)) {
        bool is_null = json_kind(it.value) == JSON_KIND_NULL;
        if (strcmp(it.key, "role") == 0)
            json_put_string(to, "role", role);
        else if (strcmp(it.key, "content") == 0)
            rc = prepare_content(t, from, i, to, err);
        else if (strcmp(it.key, "tool_calls") == 0 && !is_null)
            rc = prepare_calls(t, it.value, i, to, err);
        else if (strcmp(it.key, "function_call") == 0 && !is_null) {
            rc = prepare_old_call(t, it.value, i, to, err);
            *old_call = i;
        } else if (strcmp(it.key, "tool_call_id") == 0 && t->short_ids) {
            json_put(to, it.key, short_id(it.value));
        } else if (!is_null && !is_prepared(it.key)) {
            json_put(to, it.key, json_share(it.value));
        }
    }
    if (rc == 0 && json_member(from, "content") == NULL)
        rc = prepare_content(t, from, i, to, err);
    if (rc == 0 && has_role(from, "function")) {
        char id[16];
        old_id(*old_call, id);
        json_put_string(to, "tool_call_id", id);
    }
    if (rc == 0)
        rc = prepare_thought(t, from, to, err);
    if (rc == 0 && json_count(json_member(to, "tool_calls")) > 0)
        rc = prepare_beside_calls(t, i, to, before, err);
    return rc;
}

/* --- joining -------------------------------------------------------------------------- */

static bool is_system(const struct json *message)
{
    return has_role(message, "system") || has_role(message, "developer");
}

/* Returns a message with the role and the contents of both. */
static int join_messages(const struct json *a, const struct json *b, struct json **out,
                         struct err *err)
{
    struct joined j = {0};
    *out = json_new_object();
    json_put(*out, "role", json_share(json_member(a, "role")));
    join_content(&j, json_member(a, "content"), false);
    join_content(&j, json_member(b, "content"), false);
    return put_joined(*out, "content", &j, err);
}

static struct json *as_user(const struct json *message)
{
    struct json *m = json_new_object();
    json_put_string(m, "role", "user");
    json_put(m, "content", json_share(json_member(message, "content")));
    return m;
}

/* Adapts the messages to the number and the places of system messages that the template shows. One
 * that it does not show is said by the user, at the same place, so that the beginning of the prompt
 * stays as it was. */
static int join_systems(const struct chat_template *t, const struct json *list,
                        struct json **out, struct err *err)
{
    struct json *all = json_new_array(), *last = NULL, *m = NULL;
    size_t n = json_count(list);
    bool at_begin = true, converted = false; /* `last` was made from a system message */
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        const struct json *from = json_at(list, i);
        bool system = is_system(from);
        bool shown = at_begin ? t->can.system : t->later_system;
        at_begin = at_begin && system;
        bool converts = system && !shown;
        m = converts ? as_user(from) : json_share(from);
        bool joins = last != NULL && ((system && shown && at_begin && !t->two_systems) ||
                                      (has_role(m, "user") && has_role(last, "user") &&
                                       (converts || converted) && !t->two_users));
        converted = converts || (joins && converted);
        if (joins) {
            struct json *both = NULL;
            rc = join_messages(last, m, &both, err);
            json_free(m);
            json_free(last);
            last = both;
        } else {
            if (last != NULL)
                json_push(all, last);
            last = m;
        }
    }
    if (last != NULL)
        json_push(all, last);
    *out = all;
    return rc;
}

/* Returns whether a system message stands where not every template shows it. */
static bool needs_joining(const struct chat_template *t, const struct json *list)
{
    for (size_t i = 0; i < json_count(list); i++)
        if (is_system(json_at(list, i)) && (i > 0 || !t->can.system))
            return true;
    return false;
}

int chat_prepare(const struct chat_template *t, const struct json *messages,
                 struct json **out, struct err *err)
{
    *out = NULL;
    if (json_kind(messages) != JSON_KIND_ARRAY || json_count(messages) == 0)
        return err_set(err, ERR_USAGE,
                       "messages must be an array with at least one message");
    struct json *list = json_new_array();
    size_t old_call = 0;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < json_count(messages); i++) {
        struct json *message = json_new_object(), *before = NULL;
        rc = prepare_message(t, json_at(messages, i), i, &old_call, message, &before, err);
        if (before != NULL)
            json_push(list, before);
        json_push(list, message);
    }
    struct json *joined = NULL;
    if (rc == 0 && needs_joining(t, list)) {
        rc = join_systems(t, list, &joined, err);
        json_free(list);
        list = joined;
    }
    if (rc == 0)
        *out = list;
    else
        json_free(list);
    return rc;
}
