/* chat_calls.c - see chat_impl.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "text/chat_impl.h"

/* --- calls ------------------------------------------------------------------------------ */

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
struct json *chat_short_id(const struct json *id)
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

/* Turns the call of a custom tool into the call of a function, whose argument `input` is the custom
 * call's text. Other calls are returned as they are. */
static struct json *as_function(const struct json *call)
{
    const struct json *custom = json_member(call, "custom");
    if (!is_string(json_member(custom, "name")) || json_member(call, "function") != NULL)
        return json_share(call);
    struct json *o = json_new_object(), *function = json_new_object(),
                *arguments = json_new_object();
    json_put(arguments, "input", json_share(json_member(custom, "input")));
    json_put(function, "name", json_share(json_member(custom, "name")));
    json_put(function, "arguments", arguments);
    if (json_member(call, "id") != NULL)
        json_put(o, "id", json_share(json_member(call, "id")));
    json_put_string(o, "type", "function");
    json_put(o, "function", function);
    return o;
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
    struct json *named = with_member(out, "id", chat_short_id(json_member(call, "id")));
    json_free(out);
    return named;
}

int chat_prepare_calls(const struct chat_template *t, const struct json *calls, size_t i,
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
    int rc = 0;
    for (size_t k = 0; rc == 0 && k < json_count(calls); k++) {
        struct json *call = as_function(json_at(calls, k));
        if (is_string(json_member(json_member(call, "function"), "name")))
            json_push(out, prepare_call(t, call));
        else
            rc = err_set(err, ERR_USAGE,
                         "messages[%zu].tool_calls[%zu] needs a function with a name", i,
                         k);
        json_free(call);
    }
    json_put(to, "tool_calls", out);
    return rc;
}

void chat_old_id(size_t message, char out[16])
{
    snprintf(out, 16, "call%05zu", message % 100000);
}

int chat_prepare_old_call(const struct chat_template *t, const struct json *function,
                          size_t i, struct json *to, struct err *err)
{
    char id[16];
    if (!is_string(json_member(function, "name")))
        return err_set(err, ERR_USAGE, "messages[%zu].function_call needs a name", i);
    struct json *list = json_new_array(), *call = json_new_object();
    chat_old_id(i, id);
    json_put_string(call, "id", id);
    json_put_string(call, "type", "function");
    json_put(call, "function", json_share(function));
    json_push(list, call);
    int rc = chat_prepare_calls(t, list, i, to, err);
    json_free(list);
    return rc;
}

struct json *chat_object_calls(const struct json *calls)
{
    struct json *objects = json_new_array();
    for (size_t c = 0; c < json_count(calls); c++) {
        const struct json *call = json_at(calls, c),
                          *function = json_member(call, "function");
        struct json *arguments = parse_arguments(json_member(function, "arguments"));
        json_push(objects,
                  arguments == NULL
                      ? json_share(call)
                      : with_member(call, "function",
                                    with_member(function, "arguments", arguments)));
    }
    return objects;
}

/* --- calls as text ---------------------------------------------------------------------- */

static void put(struct textbuf *out, const char *s)
{
    textbuf_add(out, s, strlen(s));
}

bool chat_writes(const struct call_syntax *s)
{
    return s != NULL && ((s->body == CALL_OBJECT && s->name_key != NULL) ||
                         s->body == CALL_JSON || s->body == CALL_PYTHON);
}

/* Appends one tag, whose blanks become line breaks. Appends nothing if tag is NULL. */
static void write_tag(struct textbuf *out, const char *tag, bool marked)
{
    while (tag != NULL && *tag != 0) {
        size_t n = strcspn(tag, " ");
        if (n > 0 && marked)
            put(out, CHAT_TAG_BEGIN);
        textbuf_add(out, tag, n);
        if (n > 0 && marked)
            put(out, CHAT_TAG_END);
        if (tag[n] == ' ')
            put(out, "\n");
        tag += n + (tag[n] == ' ');
    }
}

/* Appends a value in the form of Python. */
static void put_python(struct textbuf *out, const struct json *v)
{
    bool on = false;
    struct json_iter it = json_begin(v);
    switch (json_kind(v)) {
    case JSON_KIND_NULL:
        put(out, "None");
        break;
    case JSON_KIND_BOOL:
        (void)json_bool_of(v, &on);
        put(out, on ? "True" : "False");
        break;
    case JSON_KIND_ARRAY:
        put(out, "[");
        for (size_t i = 0; i < json_count(v); i++) {
            put(out, i > 0 ? ", " : "");
            put_python(out, json_at(v, i));
        }
        put(out, "]");
        break;
    case JSON_KIND_OBJECT:
        put(out, "{");
        for (bool first = true; json_next(&it); first = false) {
            struct json *key = json_new_bytes(it.key, strlen(it.key));
            put(out, first ? "" : ", ");
            json_append(key, 0, out);
            put(out, ": ");
            put_python(out, it.value);
            json_free(key);
        }
        put(out, "}");
        break;
    default: {
        char *text = json_text_exact(v);
        put(out, text);
        free(text);
    }
    }
}

static bool is_python_name(const char *s)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789_-.";
    return *s != 0 && s[strspn(s, letters)] == 0;
}

static bool put_call(struct textbuf *out, const struct call_syntax *s, const char *name,
                     const struct json *arguments)
{
    struct json *o = json_new_object();
    struct json_iter it = json_begin(arguments);
    bool good = true;
    char *text = NULL;
    switch (s->body) {
    case CALL_OBJECT:
        json_put_string(o, s->name_key, name);
        json_put(o, s->arguments_key, json_share(arguments));
        text = json_text_exact(o);
        put(out, text);
        break;
    case CALL_JSON:
        text = json_text_exact(arguments);
        put(out, text);
        break;
    default:
        good = is_python_name(name);
        put(out, name);
        put(out, "(");
        for (bool first = true; json_next(&it); first = false) {
            good = good && is_python_name(it.key);
            put(out, first ? "" : ", ");
            put(out, it.key);
            put(out, "=");
            put_python(out, it.value);
        }
        put(out, ")");
    }
    free(text);
    json_free(o);
    return good;
}

bool chat_write_calls(struct textbuf *out, const struct call_syntax *s,
                      const struct json *calls, bool marked)
{
    /* one pair of tags around all calls, or one around each */
    bool is_list = (s->body == CALL_OBJECT && s->is_list) || s->body == CALL_PYTHON;
    bool on_lines = s->body == CALL_OBJECT && s->close != NULL && !is_list;
    bool good = chat_writes(s);
    write_tag(out, s->section, marked);
    for (size_t i = 0; good && i < json_count(calls); i++) {
        const struct json *function = json_member(json_at(calls, i), "function");
        const struct json *arguments = json_member(function, "arguments");
        const char *name = json_string_of(json_member(function, "name"), NULL);
        good = name != NULL && json_kind(arguments) == JSON_KIND_OBJECT;
        if (!good)
            break;
        if (i == 0 || !is_list) {
            put(out, i > 0 ? "\n" : "");
            write_tag(out, s->open, marked);
            put(out, is_list ? "[" : on_lines ? "\n" : "");
        } else {
            put(out, ", ");
        }
        if (s->body == CALL_JSON) {
            put(out, s->name_prefix != NULL ? s->name_prefix : "");
            put(out, name);
            if (s->name_cut != NULL && s->name_cut[1] == 0) /* a number follows it */
                textbuf_addf(out, "%s%zu", s->name_cut, i);
            write_tag(out, s->name_end, marked);
        }
        good = put_call(out, s, name, arguments);
        bool ends_line = on_lines || (s->name_end != NULL && strchr(s->name_end, ' '));
        put(out, ends_line ? "\n" : "");
        if (!is_list || i + 1 == json_count(calls)) {
            put(out, is_list ? "]" : "");
            write_tag(out, s->close, marked);
            write_tag(out, s->close_more, marked);
        }
    }
    write_tag(out, s->section_end, marked);
    return good;
}

/* --- results ---------------------------------------------------------------------------- */

/* Returns whether the id of the call is that of the result. */
static bool answers_call(const struct json *result, const struct json *call)
{
    const char *id = json_string_of(json_member(call, "id"), NULL);
    return id != NULL && json_string_is(json_member(result, "tool_call_id"), id);
}

enum { MAX_ORDERED = 128 };

/* Appends the results [from, to) in the order of their calls, since many templates show no ids. A
 * result without a name gets that of its call, since some templates show names. */
static void push_results(const struct json *calls, const struct json *messages, size_t from,
                         size_t to, struct json *out, size_t *place)
{
    bool done[MAX_ORDERED] = {false};
    bool ordered = to - from <= MAX_ORDERED && json_count(calls) <= MAX_ORDERED;
    size_t n = json_count(out);
    for (size_t c = 0; ordered && c < json_count(calls); c++)
        for (size_t i = from; i < to; i++) {
            const struct json *m = json_at(messages, i), *call = json_at(calls, c);
            if (done[i - from] || !answers_call(m, call))
                continue;
            const struct json *name = json_member(json_member(call, "function"), "name");
            struct json *named = with_member(m, "role", json_share(json_member(m, "role")));
            if (is_string(name) && json_member(m, "name") == NULL)
                json_put(named, "name", json_share(name));
            json_push(out, named);
            place[n++] = i;
            done[i - from] = true;
        }
    for (size_t i = from; i < to; i++)
        if (!ordered || !done[i - from]) {
            json_push(out, json_share(json_at(messages, i)));
            place[n++] = i;
        }
}

/* Returns the number behind the last one of the results that begin at `from`. */
static size_t results_end(const struct json *messages, size_t from)
{
    while (from < json_count(messages) && has_role(json_at(messages, from), "tool"))
        from++;
    return from;
}

/* Appends message i once for each of its calls, with the call's result behind it. */
static void push_one_by_one(const struct json *messages, size_t i, size_t end,
                            struct json *out, size_t *place)
{
    const struct json *from = json_at(messages, i),
                      *calls = json_member(from, "tool_calls");
    bool done[MAX_ORDERED] = {false};
    for (size_t c = 0; c < json_count(calls); c++) {
        struct json *one = json_new_array(), *m = json_new_object();
        json_push(one, json_share(json_at(calls, c)));
        json_put_string(m, "role", "assistant");
        json_put(m, "tool_calls", json_share(one));
        place[json_count(out)] = i;
        json_push(out,
                  c > 0 ? json_share(m) : with_member(from, "tool_calls", json_share(one)));
        for (size_t r = i + 1; r < end; r++)
            if (!done[r - i - 1] && answers_call(json_at(messages, r), json_at(calls, c))) {
                push_results(one, messages, r, r + 1, out, place);
                done[r - i - 1] = true;
            }
        json_free(m);
        json_free(one);
    }
    for (size_t r = i + 1; r < end; r++)
        if (!done[r - i - 1])
            push_results(NULL, messages, r, r + 1, out, place);
}

struct json *chat_order_results(const struct chat_template *t, const struct json *messages,
                                size_t **place)
{
    struct json *out = json_new_array();
    const struct json *calls = NULL;
    size_t n = json_count(messages), most = n;
    for (size_t i = 0; i < n; i++)
        most += json_count(json_member(json_at(messages, i), "tool_calls"));
    *place = xcalloc(most, sizeof **place);
    for (size_t i = 0, end; i < n; i = end) {
        end = results_end(messages, i);
        if (end > i) {
            push_results(calls, messages, i, end, out, *place);
            continue;
        }
        calls = json_member(json_at(messages, i), "tool_calls");
        end = results_end(messages, i + 1);
        if (t->single_calls && json_count(calls) > 1 && json_count(calls) <= MAX_ORDERED &&
            end - i - 1 <= MAX_ORDERED) {
            push_one_by_one(messages, i, end, out, *place);
            continue;
        }
        (*place)[json_count(out)] = i;
        json_push(out, json_share(json_at(messages, i)));
        end = i + 1;
    }
    return out;
}
