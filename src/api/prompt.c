/* prompt.c - see prompt.h. */
#include "api/prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/textbuf.h"

static bool is_role(const char *role)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", NULL};
    for (int i = 0; role != NULL && roles[i] != NULL; i++) {
        if (strcmp(roles[i], role) == 0)
            return true;
    }
    return false;
}

int prompt_content(const struct json *v, struct textbuf *out, struct fault *f)
{
    size_t n;
    const char *text = json_string_of(v, &n);
    if (text != NULL)
        textbuf_add(out, text, n);
    if (text != NULL || json_kind(v) == JSON_KIND_NULL)
        return 0;
    if (json_kind(v) != JSON_KIND_ARRAY)
        return fault_set(
            f, 400, NULL, "messages",
            "'content' of a message must be a text or a list of parts, it is %-s",
            json_kind_name(v));
    for (size_t i = 0; i < json_count(v); i++) {
        const struct json *part = json_at(v, i);
        text = json_string_of(json_member(part, "text"), &n);
        if (!json_string_is(json_member(part, "type"), "text") || text == NULL)
            return fault_set(
                f, 400, "unsupported_value", "messages",
                "'content' has a part that is not {\"type\": \"text\", \"text\": ...}; "
                "only text is supported");
        textbuf_add(out, text, n);
    }
    return 0;
}

/* Makes *out, which the caller frees: messages that have only what all templates know, role and
 * text. */
static int normalize(const struct json *messages, struct json **out, struct fault *f)
{
    struct json *list = json_new_array();
    int rc = 0;
    *out = list;
    if (json_kind(messages) != JSON_KIND_ARRAY || json_count(messages) == 0)
        return fault_set(f, 400, NULL, "messages", "'messages' must be a list of messages");
    for (size_t i = 0; rc == 0 && i < json_count(messages); i++) {
        const struct json *m = json_at(messages, i);
        const char *role = json_string_of(json_member(m, "role"), NULL);
        struct textbuf text = {0};
        if (!is_role(role))
            rc = fault_set(
                f, 400, NULL, "messages",
                "message %zu has no role among system, developer, user, assistant", i);
        else if (json_count(json_member(m, "tool_calls")) > 0)
            rc = fault_set(f, 400, "unsupported_parameter", "messages",
                           "message %zu has 'tool_calls', which are not supported", i);
        else
            rc = prompt_content(json_member(m, "content"), &text, f);
        if (rc == 0) {
            json_push(list, json_make("{role: %s, content: %p}",
                                      strcmp(role, "developer") == 0 ? "system" : role,
                                      json_new_bytes(text.p, text.n)));
        }
        textbuf_free(&text);
    }
    return rc;
}

static void plain_text(const struct json *messages, const struct chat_source *s,
                       struct prompt_text *out)
{
    struct textbuf text = {0};
    for (size_t i = 0; i < json_count(messages); i++) {
        const struct json *m = json_at(messages, i);
        for (int k = 0; k < s->n_marks; k++)
            if (s->marks[k] == i)
                out->marks[k] = text.n;
        const char *role = json_string_of(json_member(m, "role"), NULL);
        size_t n;
        const char *content = json_string_of(json_member(m, "content"), &n);
        textbuf_addf(&text, "%s:%s", role, strcmp(role, "assistant") == 0 ? "" : " ");
        textbuf_add(&text, content, n);
        textbuf_add(&text, "\n", 1);
    }
    textbuf_addf(&text, "assistant:");
    out->text = text.p;
    out->n = text.n;
}

static int render_plain(const struct chat_source *s, struct prompt_text *out,
                        struct fault *f)
{
    struct json *messages = NULL;
    int rc = normalize(s->messages, &messages, f);
    if (rc == 0)
        plain_text(messages, s, out);
    json_free(messages);
    return rc;
}

/* Tokenizing takes seconds for megabytes, so prompts that can never fit are refused here. Every
 * prompt that is given as text passes here once, whole and not yet tokenized. Code that shortens
 * a long history belongs here. */
int prompt_fits(const struct hcache *h, bool truncates, const char *text, size_t n,
                const char *param, struct fault *f)
{
    struct hcache_model_info info;
    int64_t least = hcache_least_tokens(h, text, n);
    hcache_model_info(h, &info);
    if (truncates && least > info.max_history)
        return fault_set(f, 400, "context_length_exceeded", param,
                         "the prompt has %zu bytes, which are at least %lld tokens: this "
                         "server truncates at most %lld (--max-history), and the maximum "
                         "context length is %d tokens",
                         n, (long long)least, (long long)info.max_history,
                         info.max_context);
    if (truncates || least <= info.max_context)
        return 0;
    fault_set(f, 400, "context_length_exceeded", param,
              "the prompt has %zu bytes, which are at least %lld tokens: the maximum "
              "context length is %d tokens",
              n, (long long)least, info.max_context);
    return fault_too_long(f, least, info.max_context);
}

/* Bound on the tokens that a template writes around a system message. */
enum { AROUND_SYSTEM = 32 };

/* Returns the number of tokens of a message's content; 0 if it has no text. */
static int text_tokens(const struct hcache *h, const struct json *content)
{
    struct hcache_err err = {0};
    struct textbuf text = {0};
    struct fault unused;
    int32_t *ids = NULL;
    int n = 0;
    if (prompt_content(content, &text, &unused) == 0 && text.n > 0 &&
        hcache_encode(h, text.p, text.n, 0, &ids, &n, &err) == 0)
        hcache_free(ids);
    textbuf_free(&text);
    return n;
}

static bool is_system(const struct json *message)
{
    const struct json *role = json_member(message, "role");
    return json_string_is(role, "system") || json_string_is(role, "developer");
}

int prompt_system_tokens(const struct hcache *h, const struct json *messages)
{
    int64_t sum = 0;
    for (size_t i = 0; i < json_count(messages); i++) {
        const struct json *m = json_at(messages, i);
        if (!is_system(m))
            break;
        int n = text_tokens(h, json_member(m, "content"));
        sum += n > 0 ? n + AROUND_SYSTEM : 0;
    }
    return (int)MIN(sum, INT32_MAX / 2);
}

void prompt_keep(int n_tokens, struct hcache_truncation *t)
{
    int keep = (n_tokens + 63) / 64 * 64;
    t->keep = MAX(keep, t->keep);
}

void prompt_text_deinit(struct prompt_text *t)
{
    hcache_free(t->text);
    *t = (struct prompt_text){0};
}

void prompt_text_answer(const struct hcache *h, const struct prompt_text *t,
                        const char *answer, size_t n, char **out, size_t *n_out)
{
    if ((t->flags & HCACHE_GUARDED) != 0) {
        hcache_guard(h, answer, n, out, n_out);
        return;
    }
    *out = xmemdup(answer, n);
    *n_out = n;
}

void prompt_text_append(const struct hcache *h, struct prompt_text *t, const char *answer,
                        size_t n)
{
    char *more;
    struct textbuf all = {0};
    prompt_text_answer(h, t, answer, n, &more, &n);
    textbuf_add(&all, t->text, t->n);
    textbuf_add(&all, more, n);
    hcache_free(more);
    hcache_free(t->text);
    t->text = all.p;
    t->n = all.n;
}

/* Returns the fewest tokens that all texts inside v can have. */
static int64_t least_tokens(const struct hcache *h, const struct json *v)
{
    size_t n = 0;
    int64_t sum = 0;
    const char *text = json_string_of(v, &n);
    struct json_iter it = json_begin(v);
    if (text != NULL)
        return hcache_least_tokens(h, text, n);
    for (size_t i = 0; json_kind(v) == JSON_KIND_ARRAY && i < json_count(v); i++)
        sum += least_tokens(h, json_at(v, i));
    while (json_next(&it))
        sum += least_tokens(h, it.value);
    return sum;
}

/* A template may leave out parts of a history, such as earlier reasoning, so only the template's
 * output shows whether the prompt fits. But rendering takes several times the memory of the
 * messages. So a history far beyond the context is refused before rendering. */
enum { MAX_HISTORY_CONTEXTS = 16 };

static int check_history(const struct hcache *h, const struct chat_source *s,
                         const struct hcache_model_info *info, struct fault *f)
{
    int64_t least = least_tokens(h, s->messages);
    int64_t most = s->truncates ? info->max_history
                                : (int64_t)MAX_HISTORY_CONTEXTS * info->max_context;
    if (least <= most)
        return 0;
    fault_set(f, 400, "context_length_exceeded", "messages",
              "the messages have at least %lld tokens by their bytes, and %lld are the "
              "most%s: the maximum context length is %d tokens",
              (long long)least, (long long)most,
              s->truncates ? " that this server truncates (--max-history)" : "",
              info->max_context);
    return fault_too_long(f, least, info->max_context);
}

void prompt_moment(int64_t wall_s, char out[PROMPT_DATE_BYTES])
{
    struct tm t;
    time_t seconds = (time_t)wall_s;
    localtime_r(&seconds, &t);
    if (strftime(out, PROMPT_DATE_BYTES, "%Y-%m-%d %H:%M:%S", &t) == 0)
        snprintf(out, PROMPT_DATE_BYTES, "1970-01-01 00:00:00");
}

/* Returns the text v (or a part with a text) without the parts that hcache_drop_system drops, or
 * NULL if nothing is left. Sets *changed if something was dropped, and *rc to an error. */
static struct json *drop_from(const struct hcache *h, const struct json *v, bool *changed,
                              int *rc, struct hcache_err *err)
{
    const struct json *text = json_kind(v) == JSON_KIND_OBJECT ? json_member(v, "text") : v;
    size_t n = 0, n_left = 0;
    char *left = NULL;
    const char *s = json_string_of(text, &n);
    int dropped = s != NULL && *rc == 0 ? hcache_drop_system(h, s, n, &left, &n_left, err)
                                        : 0;
    *rc = dropped < 0 ? dropped : *rc;
    if (dropped <= 0)
        return json_share(v);
    struct json *one = NULL;
    *changed = true;
    if (n_left > 0 && text != v) {
        one = json_new_object();
        json_share_all(one, v);
        json_put_bytes(one, "text", left, n_left);
    } else if (n_left > 0) {
        one = json_new_bytes(left, n_left);
    }
    hcache_free(left);
    return one;
}

/* Returns the content of a system message without what is dropped; NULL: nothing is left. */
static struct json *drop_from_content(const struct hcache *h, const struct json *content,
                                      bool *changed, int *rc, struct hcache_err *err)
{
    if (json_kind(content) != JSON_KIND_ARRAY)
        return drop_from(h, content, changed, rc, err);
    struct json *list = json_new_array();
    for (size_t i = 0; i < json_count(content); i++) {
        struct json *part = drop_from(h, json_at(content, i), changed, rc, err);
        if (part != NULL)
            json_push(list, part);
    }
    if (json_count(list) > 0 || !*changed)
        return list;
    json_free(list);
    return NULL;
}

/* Drops from system messages what hcache_drop_system names. *out gets the remaining messages, or
 * NULL if nothing was dropped. A message of which nothing is left goes as a whole, and later marks
 * count one message less. */
static int drop_system(const struct hcache *h, const struct chat_source *s,
                       struct hcache_chat_mark *marks, struct json **out,
                       struct hcache_err *err)
{
    const struct json *messages = s->messages;
    struct json *list = json_new_array();
    bool any = false;
    int rc = 0;
    for (size_t i = 0; i < json_count(messages); i++) {
        const struct json *m = json_at(messages, i), *content = json_member(m, "content");
        bool changed = false;
        struct json *left = is_system(m) ? drop_from_content(h, content, &changed, &rc, err)
                                         : NULL;
        if (!changed) {
            json_free(left);
            json_push(list, json_share(m));
            continue;
        }
        any = true;
        for (int k = 0; left == NULL && k < s->n_marks; k++)
            marks[k].message -= s->marks[k] > i;
        if (left == NULL)
            continue;
        struct json *to = json_new_object();
        json_share_all(to, m);
        json_put(to, "content", left);
        json_push(list, to);
    }
    *out = any && rc == 0 ? list : NULL;
    if (*out == NULL)
        json_free(list);
    return rc;
}

/* Returns the template's variables with its switches. Returns NULL if there are no switches, or if
 * kwargs is no object: then it is refused later. */
static struct json *switches(const struct chat_source *s)
{
    bool is_object = s->kwargs == NULL || json_kind(s->kwargs) == JSON_KIND_OBJECT;
    if ((s->effort == NULL && s->thinking < 0) || !is_object)
        return NULL;
    struct json *vars = json_new_object();
    if (s->effort != NULL)
        json_put_string(vars, "reasoning_effort", s->effort);
    if (s->thinking >= 0)
        json_put_bool(vars, "enable_thinking", s->thinking == 1);
    json_share_all(vars, s->kwargs);
    return vars;
}

int prompt_render(const struct hcache *h, const struct chat_source *s,
                  struct prompt_text *out, struct fault *f)
{
    struct hcache_err err = {0};
    struct hcache_model_info info;
    hcache_model_info(h, &info);
    *out = (struct prompt_text){.flags = HCACHE_ADD_SPECIAL};
    if (s->tools != NULL && !info.has_tools)
        return fault_set(f, 400, "unsupported_parameter", "tools",
                         "'tools' are not supported by this model's chat template");
    if (!info.has_chat_template && s->plain)
        return render_plain(s, out, f);
    if (!info.has_chat_template)
        return fault_set(
            f, 400, "no_chat_template", "messages",
            "this model has no chat template: use /v1/completions, or start the "
            "server with --plain-chat");
    if (json_kind(s->messages) != JSON_KIND_ARRAY || json_count(s->messages) == 0)
        return fault_set(f, 400, NULL, "messages", "'messages' must be a list of messages");
    if (check_history(h, s, &info, f) != 0)
        return -1;
    out->flags = HCACHE_PARSE_SPECIAL | (s->parse_special ? 0u : HCACHE_GUARDED);
    char now[PROMPT_DATE_BYTES];
    struct json *left = NULL, *kwargs = switches(s);
    struct hcache_chat_mark marks[HCACHE_MARKS];
    for (int k = 0; k < s->n_marks; k++)
        marks[k] = (struct hcache_chat_mark){.message = s->marks[k]};
    int rc = drop_system(h, s, marks, &left, &err);
    if (rc != 0) {
        json_free(kwargs);
        return fault_refuse(f, rc, "messages", "%s", err.msg);
    }
    prompt_moment(clock_wall_s() + clock_set_by_s(), now);
    const struct hcache_chat chat = {.messages = left != NULL ? left : s->messages,
                                     .tools = s->tools,
                                     .kwargs = kwargs != NULL ? kwargs : s->kwargs,
                                     .guarded = !s->parse_special,
                                     .no_answer = s->no_answer,
                                     .moment = s->date != NULL  ? s->date
                                               : s->now != NULL ? s->now
                                                                : now,
                                     .shown_date = out->date.shown,
                                     .unshown = out->unshown,
                                     .marks = marks,
                                     .n_marks = s->n_marks};
    rc = hcache_chat_render_parsed(h, &chat, &out->text, &out->n, &err);
    for (int k = 0; k < s->n_marks; k++)
        out->marks[k] = marks[k].at;
    if (out->date.shown[0] != 0)
        snprintf(out->date.moment, sizeof out->date.moment, "%s", chat.moment);
    json_free(left);
    json_free(kwargs);
    return rc == 0 ? 0 : fault_refuse(f, rc, "messages", "%s", err.msg);
}
