/* chat_messages.c - see chat_impl.h.
 *
 * Prepared messages are new objects that share their members with the request's. Each message is
 * adapted on its own; then neighbours are joined where the template wants fewer messages. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/textbuf.h"
#include "text/chat_impl.h"

/* A result of a tool that the user says, because the template would not show it. */
#define RESULT_ROLE "result"

/* A conversation that is being prepared. */
struct talk {
    const struct chat_template *t;
    bool marked;         /* our tags are marked: no message contains the marks */
    bool has_results;    /* some message has RESULT_ROLE */
    bool results_follow; /* the results that come next get RESULT_ROLE */
    bool writes_calls;   /* all calls are written into the content */
    size_t old_call;     /* number of the last message that had a call of the older form */
    /* Members that no one will see, each once: its role and its name. */
    struct unshown {
        const char *role, *key;
    } unshown[8];
    int n_unshown;
    const struct chat_mark *marks; /* [n_marks] of the request, and what lies behind them */
    struct chat_place behind[CHAT_MARKS];
    int n_marks;
};

/* --- content ------------------------------------------------------------------------ */

/* Returns the text of a part of the type "text", "refusal" or "thinking". Returns NULL for a part
 * of another type. */
static const struct json *part_text(const struct json *part)
{
    static const char *const types[] = {"text", "refusal", "thinking"};
    for (int i = 0; i < 3; i++)
        if (json_string_is(json_member(part, "type"), types[i]))
            return json_member(part, types[i]);
    return NULL;
}

/* Refuses parts other than text. An assistant's may also be refusals and thoughts. */
static int check_parts(const struct json *parts, size_t message, bool is_assistant,
                       struct err *err)
{
    for (size_t i = 0; i < json_count(parts); i++) {
        const struct json *part = json_at(parts, i), *type = json_member(part, "type");
        if (json_kind(part) != JSON_KIND_OBJECT || !is_string(type))
            return err_set(err, ERR_USAGE,
                           "messages[%zu].content[%zu] must be an object with a type",
                           message, i);
        const char *type_name = json_string_of(type, NULL);
        bool is_text = json_string_is(type, "text");
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
    return json_string_is(json_member(part, "type"), "thinking");
}

/* Joins texts with newlines. */
struct joined {
    struct textbuf b;
    size_t n_texts;
    bool lacks_memory;
};

static void join(struct joined *j, const char *s, size_t n, const char *between)
{
    if (j->n_texts++ > 0 && !textbuf_try_add(&j->b, between, strlen(between)))
        j->lacks_memory = true;
    if (!textbuf_try_add(&j->b, s, n))
        j->lacks_memory = true;
}

static void join_value(struct joined *j, const struct json *text, const char *between)
{
    size_t n = 0;
    const char *s = json_string_of(text, &n);
    if (s != NULL)
        join(j, s, n, between);
}

/* Adds the texts of a content, a string or a list of parts. If `thoughts`, only those of parts that
 * are thoughts; else only those of other parts. */
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
    size_t n = j->b.n;
    if (good)
        json_put_bytes(message, key, n > 0 ? j->b.p : "", n);
    textbuf_free(&j->b);
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
        if (!json_string_is(json_member(json_at(parts, i), "type"), "text"))
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

/* Returns the thought that a message has as a member; NULL if it has none. Clients send thoughts
 * back under one of three names, or as parts. */
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

/* Puts a message's thought where the template shows thoughts. If the template shows none, puts it
 * in front of the answer in the content, between the model's tags. */
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
        bool any = j.b.n > 0;
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

/* Writes the calls behind the content, as the model writes them. */
static int write_calls(const struct talk *k, size_t i, struct json *to, struct err *err)
{
    const struct json *calls = json_member(to, "tool_calls");
    struct textbuf written = {0};
    struct json *objects = chat_object_calls(calls);
    bool good = chat_write_calls(&written, k->t->syntax.calls, objects, k->marked);
    struct joined j = {0};
    int rc = good ? 0
                  : err_set(
                        err, ERR_USAGE,
                        "messages[%zu].tool_calls: the model's chat template does not show "
                        "tool calls, and one of these cannot be written as text: "
                        "arguments must be the JSON of an object",
                        i);
    if (rc == 0) {
        join_content(&j, json_member(to, "content"), false);
        if (j.b.n == 0)
            j.n_texts = 0;
        join(&j, written.p, written.n, "\n");
        json_drop(to, "tool_calls");
        rc = put_joined(to, "content", &j, err);
    }
    json_free(objects);
    textbuf_free(&written);
    return rc;
}

/* Changes the content of a message with tool calls, after prepare_content, if the template wants
 * another form beside calls. *before gets a message that shows the content in front of the calls,
 * or NULL. Also decides on the role of the results that follow (k->results_follow). */
static int prepare_beside_calls(struct talk *k, size_t i, struct json *to,
                                struct json **before, struct err *err)
{
    const struct chat_template *t = k->t;
    const struct json *content = json_member(to, "content");
    *before = NULL;
    bool beside = t->written_beside_text && !is_empty(content);
    /* results natively follow calls that the template knows */
    k->results_follow = beside || (k->writes_calls && t->native_calls);
    if (k->writes_calls || beside) {
        return write_calls(k, i, to, err);
    } else if (is_empty(content)) {
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

/* Returns the role under which the template shows a message. Returns NULL and sets *err if it shows
 * the message under none. */
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
        if (t->tool_results || t->written_calls)
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

/* Returns whether other functions set this member of a prepared message. */
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

/* Returns whether a member that the template may not show is no loss: other members say the
 * same. */
static bool is_plain(const char *role, const char *key)
{
    return strcmp(key, "tool_call_id") == 0 || strcmp(key, "refusal") == 0 ||
           (strcmp(key, "name") == 0 && strcmp(role, "tool") == 0);
}

/* Returns whether a value says nothing: null, false, "", [] or {}. */
static bool is_nothing(const struct json *v)
{
    bool on = false;
    if (json_kind(v) == JSON_KIND_BOOL)
        return json_bool_of(v, &on) && !on;
    return json_kind(v) != JSON_KIND_INT && json_kind(v) != JSON_KIND_REAL && is_empty(v);
}

/* Copies a member that needs no preparation. Refuses a member that should change the answer and
 * cannot. Notes in k->unshown a member that the template may not show. */
static int take_member(struct talk *k, const char *role, const char *key,
                       const struct json *value, size_t i, struct json *to, struct err *err)
{
    static const char *const refused[] = {"audio", "prefix", "partial"};
    if (json_kind(value) == JSON_KIND_NULL)
        return 0;
    bool says = !is_nothing(value), known = is_plain(role, key);
    for (int r = 0; says && strcmp(role, "assistant") == 0 && r < 3; r++)
        if (strcmp(key, refused[r]) == 0)
            return err_set(err, ERR_USAGE, "messages[%zu].%s is not supported%s", i, key,
                           r == 0 ? ""
                                  : ": /v1/messages and /v1/completions continue a text");
    json_put(to, key, json_share(value));
    for (int u = 0; u < k->n_unshown; u++)
        known = known || (strcmp(k->unshown[u].role, role) == 0 &&
                          strcmp(k->unshown[u].key, key) == 0);
    if (says && !known && k->n_unshown < (int)(sizeof k->unshown / sizeof k->unshown[0]))
        k->unshown[k->n_unshown++] = (struct unshown){role, key};
    return 0;
}

/* Adapts message i to the template, in `to`. *before is a message to put before it, or NULL. */
static int prepare_message(struct talk *k, const struct json *from, size_t i,
                           struct json *to, struct json **before, struct err *err)
{
    const struct chat_template *t = k->t;
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
            rc = chat_prepare_calls(t, it.value, i, to, err);
        else if (strcmp(it.key, "function_call") == 0 && !is_null) {
            rc = chat_prepare_old_call(t, it.value, i, to, err);
            k->old_call = i;
        } else if (strcmp(it.key, "tool_call_id") == 0 && t->short_ids) {
            json_put(to, it.key, chat_short_id(it.value));
        } else if (!is_prepared(it.key)) {
            rc = take_member(k, role, it.key, it.value, i, to, err);
        }
    }
    if (rc == 0 && json_member(from, "content") == NULL)
        rc = prepare_content(t, from, i, to, err);
    if (rc == 0 && has_role(from, "function")) {
        char id[16];
        chat_old_id(k->old_call, id);
        json_put_string(to, "tool_call_id", id);
    }
    if (rc == 0 && has_role(to, "tool") && (k->results_follow || !t->tool_results)) {
        json_put_string(to, "role", RESULT_ROLE);
        k->has_results = true;
    }
    if (rc == 0)
        rc = prepare_thought(t, from, to, err);
    if (rc == 0 && json_count(json_member(to, "tool_calls")) > 0)
        rc = prepare_beside_calls(k, i, to, before, err);
    return rc;
}

/* --- joining -------------------------------------------------------------------------- */

static bool is_system(const struct json *message)
{
    return has_role(message, "system") || has_role(message, "developer");
}

static bool is_same(const struct json *a, const struct json *b)
{
    char *one = json_text(a, 0), *two = json_text(b, 0);
    bool same = strcmp(one, two) == 0;
    free(one);
    free(two);
    return same;
}

/* Joins two messages of one role. *out gets the contents and the other members of both, and
 * *n_first the size of its content that is a's. Refuses a member that the template shows and that
 * differs, or that only one message has. */
static int join_messages(const struct chat_template *t, const struct json *a,
                         const struct json *b, struct json **out, size_t *n_first,
                         struct err *err)
{
    struct joined j = {0};
    const char *role = json_string_of(json_member(a, "role"), NULL);
    *out = json_new_object();
    for (int pass = 0; pass < 2; pass++) {
        const struct json *from = pass == 0 ? a : b, *other = pass == 0 ? b : a;
        struct json_iter it = json_begin(from);
        while (json_next(&it)) {
            const struct json *twin = json_member(other, it.key);
            bool both = twin != NULL && is_same(it.value, twin);
            if (strcmp(it.key, "content") == 0 || (pass == 1 && twin != NULL))
                continue;
            if (!both && !is_nothing(it.value) && !is_prepared(it.key) &&
                chat_probe_member(t, role, it.key))
                return err_set(
                    err, ERR_USAGE,
                    "messages: '%.40s' differs in two messages of the %s in a row, "
                    "and the model's chat template takes only one",
                    it.key, role);
            json_put(*out, it.key, json_share(it.value));
        }
    }
    join_content(&j, json_member(a, "content"), false);
    *n_first = j.b.n;
    join_content(&j, json_member(b, "content"), false);
    return put_joined(*out, "content", &j, err);
}

/* Makes the user say what a message of another role says. */
static int as_user(const struct json *message, struct json **out, struct err *err)
{
    struct joined j = {0};
    *out = json_new_object();
    json_put_string(*out, "role", "user");
    if (!has_role(message, RESULT_ROLE)) {
        struct json_iter it = json_begin(message);
        while (json_next(&it))
            if (strcmp(it.key, "role") != 0)
                json_put(*out, it.key, json_share(it.value));
        return 0;
    }
    join(&j, "<tool_response>\n", 16, "");
    j.n_texts = 0; /* no blank line follows */
    join_content(&j, json_member(message, "content"), false);
    join(&j, "</tool_response>", 16, "\n");
    return put_joined(*out, "content", &j, err);
}

/* Returns the messages in another order: of those before the first answer, system messages come
 * first and questions last, so that the prompt begins with what every session begins with. *n_begin
 * gets the number of system messages with which `list` begins. from[i] is the number of message i
 * in the request, and gets the same order. */
static struct json *question_last(const struct chat_template *t, const struct json *list,
                                  size_t *n_begin, size_t *from)
{
    struct json *all = json_new_array();
    size_t n = json_count(list), begin = 0, end;
    while (begin < n && is_system(json_at(list, begin)))
        begin++;
    for (end = begin; end < n; end++)
        if (!is_system(json_at(list, end)) && !has_role(json_at(list, end), "user"))
            break;
    if (t->later_system && !t->two_systems)
        end = begin;
    size_t *old = xcalloc(n + 1, sizeof *old);
    memcpy(old, from, n * sizeof *old);
    for (size_t i = 0; i < begin; i++)
        json_push(all, json_share(json_at(list, i)));
    for (int users = 0; users < 2; users++)
        for (size_t i = begin; i < end; i++)
            if (is_system(json_at(list, i)) != users) {
                from[json_count(all)] = old[i];
                json_push(all, json_share(json_at(list, i)));
            }
    for (size_t i = end; i < n; i++)
        json_push(all, json_share(json_at(list, i)));
    free(old);
    *n_begin = begin;
    return all;
}

/* Returns whether the template refuses or loses one of two such neighbours. */
static bool excludes(const struct chat_template *t, const struct json *a,
                     const struct json *b)
{
    return (has_role(a, "user") && has_role(b, "user") && !t->two_users) ||
           (has_role(a, "assistant") && has_role(b, "assistant") && !t->two_answers &&
            json_member(a, "tool_calls") == NULL && thought_of(b) == NULL);
}

/* Notes that message `from` of the request begins at `byte` of the prepared message `message`.
 * Messages are noted in order. A mark's place is that of the first message behind the mark. */
static void note_place(struct talk *k, size_t from, size_t message, size_t byte)
{
    for (int i = 0; i < k->n_marks; i++)
        if (k->behind[i].message == SIZE_MAX && from >= k->marks[i].message)
            k->behind[i] = (struct chat_place){message, byte};
}

/* Changes what the template would not show or take: later system messages, neighbours of one role,
 * and results of tools. A system message that the template does not show becomes the user's, at the
 * same place, so that the beginning of the prompt stays as it was. from_list[i] is the number of
 * message i in the request. */
static int join_unshown(struct talk *k, const struct json *list, size_t *from_list,
                        struct json **out, struct err *err)
{
    const struct chat_template *t = k->t;
    size_t n = json_count(list), n_begin;
    struct json *all = json_new_array(), *last = NULL, *m = NULL,
                *ordered = question_last(t, list, &n_begin, from_list);
    bool was_result = false; /* `last` was made from a result */
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        const struct json *from = json_at(ordered, i);
        bool system = is_system(from), result = has_role(from, RESULT_ROLE);
        bool shown = i < n_begin ? t->can.system : t->later_system;
        if ((system && !shown) || result)
            rc = as_user(from, &m, err);
        else
            m = json_share(from);
        bool joins = rc == 0 && last != NULL &&
                     ((system && shown && i < n_begin && !t->two_systems) ||
                      (result && was_result) || excludes(t, last, m));
        was_result = result;
        size_t n_first = 0;
        if (joins) {
            struct json *both = NULL;
            rc = join_messages(t, last, m, &both, &n_first, err);
            json_free(m);
            json_free(last);
            last = both;
        } else {
            if (last != NULL)
                json_push(all, last);
            last = m;
        }
        note_place(k, from_list[i], json_count(all), n_first);
    }
    if (last != NULL)
        json_push(all, last);
    json_free(ordered);
    *out = all;
    return rc;
}

/* Returns whether a system message stands where not every template shows it, or the template
 * excludes two neighbours. */
static bool needs_joining(const struct chat_template *t, const struct json *list)
{
    for (size_t i = 0; i < json_count(list); i++) {
        if (is_system(json_at(list, i)) && (i > 0 || !t->can.system))
            return true;
        if (i > 0 && excludes(t, json_at(list, i - 1), json_at(list, i)))
            return true;
    }
    return false;
}

/* --- the whole ------------------------------------------------------------------------ */

/* Returns whether any text inside contains one of our marks. */
static bool has_marks(const struct json *v)
{
    size_t n = 0;
    const char *text = json_string_of(v, &n);
    if (text != NULL)
        return memmem(text, n, CHAT_TAG_BEGIN, 4) != NULL ||
               memmem(text, n, CHAT_TAG_END, 4) != NULL;
    bool found = false;
    struct json_iter it = json_begin(v);
    for (size_t i = 0; json_kind(v) == JSON_KIND_ARRAY && i < json_count(v) && !found; i++)
        found = has_marks(json_at(v, i));
    while (!found && json_next(&it))
        found = has_marks(it.value);
    return found;
}

/* Returns a system message that declares the tools, for a template that does not. */
static struct json *declare_tools(const struct talk *k, const struct json *tools)
{
    static const char sample[] = "[{\"function\": {\"name\": \"NAME\", \"arguments\": "
                                 "{\"PARAMETER\": \"VALUE\"}}}]";
    struct textbuf text = {0};
    struct json *call = NULL, *m = json_new_object();
    textbuf_addf(&text,
                 "You can call these functions, each described by a line of JSON:\n");
    for (size_t i = 0; i < json_count(tools); i++) {
        const struct json *function = json_member(json_at(tools, i), "function");
        json_append(function != NULL ? function : json_at(tools, i), 0, &text);
        textbuf_add(&text, "\n", 1);
    }
    textbuf_addf(&text, "\nTo call a function, write exactly this, with its name and its "
                        "arguments as JSON, and then stop:\n");
    (void)json_parse(&call, sample, sizeof sample - 1, "sample", NULL);
    (void)chat_write_calls(&text, k->t->syntax.calls, call, k->marked);
    textbuf_addf(&text, "\nThe next message then has the result. Answer in words when no "
                        "function is needed.");
    json_put_string(m, "role", "system");
    json_put_bytes(m, "content", text.p, text.n);
    json_free(call);
    textbuf_free(&text);
    return m;
}

/* Adds the declaration of the tools to the first message if that is a system message; else puts it
 * in front, as a system message. */
static int add_tools(const struct talk *k, const struct json *tools, struct json **list,
                     size_t *from, struct err *err)
{
    struct json *all = json_new_array(), *said = declare_tools(k, tools), *first = said;
    const struct json *old = json_at(*list, 0);
    bool joins = is_system(old);
    size_t n_first;
    int rc = joins ? join_messages(k->t, old, said, &first, &n_first, err) : 0;
    if (!joins) {
        memmove(from + 1, from, json_count(*list) * sizeof *from);
        from[0] = 0;
    }
    json_push(all, first);
    for (size_t i = joins; i < json_count(*list); i++)
        json_push(all, json_share(json_at(*list, i)));
    if (joins)
        json_free(said);
    json_free(*list);
    *list = all;
    return rc;
}

/* Writes the names of the members that the template does not show. */
static void tell_unshown(const struct talk *k, char *out)
{
    size_t n = 0;
    for (int i = 0; i < k->n_unshown; i++) {
        const struct unshown *u = &k->unshown[i];
        bool told = strpbrk(u->key, " \n") != NULL;
        for (int j = 0; j < i; j++)
            told = told || strcmp(u->key, k->unshown[j].key) == 0;
        size_t room = CHAT_UNSHOWN - n, want = strlen(u->key) + 2;
        if (told || want > room || chat_probe_member(k->t, u->role, u->key))
            continue;
        n += (size_t)snprintf(out + n, room, "%s%s", n > 0 ? " " : "", u->key);
    }
}

/* Returns the tools in the form that the template takes. Returns NULL for a request without tools,
 * but an empty list for a template that fails without one. */
static struct json *prepare_tools(const struct chat_template *t, const struct json *tools)
{
    if (json_kind(tools) != JSON_KIND_ARRAY)
        return t->needs_tools ? json_new_array() : NULL;
    if (!t->needs_descriptions)
        return json_share(tools);
    struct json *all = json_new_array();
    for (size_t i = 0; i < json_count(tools); i++) {
        const struct json *tool = json_at(tools, i),
                          *function = json_member(tool, "function");
        if (json_kind(function) != JSON_KIND_OBJECT ||
            json_member(function, "description") != NULL) {
            json_push(all, json_share(tool));
            continue;
        }
        struct json *to = json_new_object(), *described = json_new_object();
        for (struct json_iter it = json_begin(function); json_next(&it);)
            json_put(described, it.key, json_share(it.value));
        json_put_string(described, "description", "");
        for (struct json_iter it = json_begin(tool); json_next(&it);)
            json_put(to, it.key,
                     json_share(strcmp(it.key, "function") == 0 ? described : it.value));
        json_free(described);
        json_push(all, to);
    }
    return all;
}

int chat_prepare(const struct chat_template *t, const struct chat_request *r,
                 struct chat_prepared *out, struct err *err)
{
    const struct json *messages = r->messages;
    *out = (struct chat_prepared){0};
    if (json_kind(messages) != JSON_KIND_ARRAY || json_count(messages) == 0)
        return err_set(err, ERR_USAGE,
                       "messages must be an array with at least one message");
    bool declares = t->can.declared_tools && json_count(r->tools) > 0;
    struct talk k = {.t = t,
                     .writes_calls = t->written_calls && (!t->native_calls || declares)};
    k.marks = r->marks;
    k.n_marks = r->n_marks;
    k.marked = (k.writes_calls || t->written_beside_text || declares) &&
               !has_marks(messages) && !has_marks(r->tools);
    size_t *place;
    struct json *list = json_new_array(),
                *ordered = chat_order_results(t, messages, &place);
    /* numbers of the messages of `list` in the request: up to two for each, and the tools' */
    size_t *from = xcalloc(2 * json_count(ordered) + 2, sizeof *from);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < json_count(ordered); i++) {
        struct json *message = json_new_object(), *before = NULL;
        rc = prepare_message(&k, json_at(ordered, i), place[i], message, &before, err);
        from[json_count(list)] = from[json_count(list) + 1] = place[i];
        if (before != NULL)
            json_push(list, before);
        json_push(list, message);
    }
    if (rc == 0 && declares)
        rc = add_tools(&k, r->tools, &list, from, err);
    struct json *joined = NULL;
    for (int i = 0; i < k.n_marks; i++)
        k.behind[i].message = SIZE_MAX;
    if (rc == 0 && (k.has_results || needs_joining(t, list))) {
        rc = join_unshown(&k, list, from, &joined, err);
        json_free(list);
        list = joined;
    } else {
        for (size_t i = 0; i < json_count(list); i++)
            note_place(&k, from[i], i, 0);
    }
    if (rc == 0 && r->unshown != NULL)
        tell_unshown(&k, r->unshown);
    free(place);
    free(from);
    json_free(ordered);
    if (rc != 0) {
        json_free(list);
        return rc;
    }
    *out = (struct chat_prepared){
        list, prepare_tools(t, declares ? NULL : r->tools), k.marked, {{0}}};
    memcpy(out->behind, k.behind, sizeof out->behind);
    return 0;
}
