/* items.c - see items.h. */
#include "api/items.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/minmax.h"
#include "api/conversations.h"
#include "base/textbuf.h"

#include <utf8proc.h>

/* --- making items ----------------------------------------------------------------------------- */

static struct json *new_item(const char *prefix, const char *id, const char *type,
                             const char *status)
{
    char name[NAME_BYTES];
    if (id == NULL)
        conversations_name(prefix, name);
    return json_make("{id: %s, type: %s, status: %s}", id != NULL ? id : name, type,
                     status);
}

/* Makes an output_text part, which then owns text. */
static struct json *output_part(struct json *text)
{
    return json_make("{type: 'output_text', text: %p, annotations: [], logprobs: []}",
                     text);
}

struct json *item_text_part(const char *text, size_t n)
{
    return output_part(json_new_bytes(text, n));
}

struct json *item_message(const char *id, const char *status, const char *text, size_t n)
{
    struct json *o = new_item("msg", id, "message", status), *content = json_new_array();
    if (text != NULL)
        json_push(content, item_text_part(text, n));
    json_extend(o, "{role: 'assistant', content: %p}", content);
    return o;
}

struct json *item_thought_part(const char *text, size_t n)
{
    return json_make("{type: 'reasoning_text', text: %p}", json_new_bytes(text, n));
}

struct json *item_reasoning(const char *id, const char *status, const char *text, size_t n)
{
    struct json *o = new_item("rs", id, "reasoning", status), *content = json_new_array();
    if (text != NULL)
        json_push(content, item_thought_part(text, n));
    json_extend(o, "{summary: [], content: %p}", content);
    return o;
}

struct json *item_call(const char *id, const char *status, const struct json *of,
                       bool with_arguments, bool is_custom)
{
    struct json *o = is_custom ? new_item("ctc", id, "custom_tool_call", status)
                               : new_item("fc", id, "function_call", status);
    const char *input = is_custom ? "input" : "arguments";
    json_extend(o, "{call_id: %p, name: %p}", json_share(json_member(of, "call_id")),
                json_share(json_member(of, "name")));
    if (!is_custom && json_member(of, "namespace") != NULL)
        json_put(o, "namespace", json_share(json_member(of, "namespace")));
    if (with_arguments)
        json_put(o, input, json_share(json_member(of, input)));
    else
        json_put_string(o, input, "");
    return o;
}

/* --- reading ---------------------------------------------------------------------------------- */

static int bad_item(struct fault *f, const char *param, size_t i, const char *what)
{
    return fault_set(f, 400, NULL, param, "'%-s' element %zu %-s", param, i, what);
}

static bool is_string(const struct json *v)
{
    return json_kind(v) == JSON_KIND_STRING;
}

static bool is_text_part(const struct json *part)
{
    static const char *const types[] = {"input_text", "output_text", "text", NULL};
    const char *type = json_string_of(json_member(part, "type"), NULL);
    for (int i = 0; type != NULL && types[i] != NULL; i++) {
        if (strcmp(type, types[i]) == 0)
            return is_string(json_member(part, "text"));
    }
    return false;
}

/* Adds a part with the text, in the form for the role. The text is shared, because it may be as
 * large as a body. */
static void push_part(struct json *content, const char *role, const struct json *text)
{
    json_push(content, strcmp(role, "assistant") == 0
                           ? output_part(json_share(text))
                           : json_make("{type: 'input_text', text: %p}", json_share(text)));
}

/* Reads a text, or a list of parts that are text. */
static int read_parts(const struct json *v, const char *role, const char *param, size_t i,
                      struct json *content, struct fault *f)
{
    if (is_string(v)) {
        push_part(content, role, v);
        return 0;
    }
    if (json_kind(v) != JSON_KIND_ARRAY)
        return bad_item(f, param, i, "has no 'content': a text or a list of parts");
    for (size_t p = 0; p < json_count(v); p++) {
        const struct json *part = json_at(v, p);
        if (!is_text_part(part))
            return bad_item(f, param, i,
                            "has a part that is not text; only input_text and output_text "
                            "are supported");
        push_part(content, role, json_member(part, "text"));
    }
    return 0;
}

static int read_message(const struct json *v, const char *param, size_t i,
                        struct json **out, struct fault *f)
{
    static const char *const roles[] = {"user", "assistant", "system", "developer", NULL};
    const char *role = json_string_of(json_member(v, "role"), NULL);
    int known = 0;
    while (role != NULL && roles[known] != NULL && strcmp(role, roles[known]) != 0)
        known++;
    if (role == NULL || roles[known] == NULL)
        return bad_item(f, param, i,
                        "has no role among user, assistant, system, developer");
    struct json *content = json_new_array();
    if (read_parts(json_member(v, "content"), role, param, i, content, f) != 0) {
        json_free(content);
        return -1;
    }
    *out = new_item("msg", NULL, "message", "completed");
    json_extend(*out, "{role: %s, content: %p}", role, content);
    return 0;
}

/* Reads a call of a function, or of a custom tool. */
static int read_call(const struct json *v, bool is_custom, const char *param, size_t i,
                     struct json **out, struct fault *f)
{
    const char *input = is_custom ? "input" : "arguments";
    if (!is_string(json_member(v, "call_id")) || !is_string(json_member(v, "name")) ||
        !is_string(json_member(v, input)))
        return fault_set(f, 400, NULL, param,
                         "'%-s' element %zu needs the texts 'call_id', 'name' and '%s'",
                         param, i, input);
    *out = item_call(NULL, "completed", v, true, is_custom);
    return 0;
}

/* Returns the joined texts of all parts, which the caller owns. The text of a single part is
 * shared. */
static struct json *joined(const struct json *parts)
{
    const struct json *one = json_member(json_at(parts, 0), "text");
    struct textbuf all = {0};
    if (json_count(parts) == 1 && is_string(one))
        return json_share(one);
    for (size_t p = 0; p < json_count(parts); p++) {
        size_t n;
        const char *text = json_string_of(json_member(json_at(parts, p), "text"), &n);
        if (text != NULL)
            textbuf_add(&all, text, n);
    }
    struct json *v = json_new_bytes(all.p, all.n);
    textbuf_free(&all);
    return v;
}

/* Reads the output of a call: a text, or parts of text, which are joined. */
static int read_output(const struct json *v, const char *param, size_t i, struct json **out,
                       struct fault *f)
{
    const struct json *id = json_member(v, "call_id");
    struct json *parts = json_new_array();
    int rc = read_parts(json_member(v, "output"), "tool", param, i, parts, f);
    if (rc == 0 && !is_string(id))
        rc = bad_item(f, param, i, "needs a text 'call_id'");
    if (rc == 0) {
        *out = new_item("fco", NULL,
                        json_string_is(json_member(v, "type"), "custom_tool_call_output")
                            ? "custom_tool_call_output"
                            : "function_call_output",
                        "completed");
        json_extend(*out, "{call_id: %p, output: %p}", json_share(id), joined(parts));
    }
    json_free(parts);
    return rc;
}

/* Reads a thought: its text, or its summary if it has no text. An encrypted thought of another
 * server has neither, and becomes an empty one. Always returns 0. */
static int read_reasoning(const struct json *v, struct json **out)
{
    static const char *const keys[] = {"content", "summary"};
    struct textbuf all = {0};
    for (int k = 0; k < 2 && all.n == 0; k++) {
        const struct json *parts = json_member(v, keys[k]);
        for (size_t p = 0; p < json_count(parts); p++) {
            size_t n = 0;
            const char *text = json_string_of(json_member(json_at(parts, p), "text"), &n);
            if (text != NULL)
                textbuf_add(&all, text, n);
        }
    }
    *out = item_reasoning(NULL, "completed", all.p, all.n);
    textbuf_free(&all);
    return 0;
}

/* Reads tools that the client offers from here on. */
static int read_more_tools(const struct json *v, const char *param, size_t i,
                           struct json **out, struct fault *f)
{
    const struct json *tools = json_member(v, "tools");
    if (json_kind(tools) != JSON_KIND_ARRAY)
        return bad_item(f, param, i, "needs a list 'tools'");
    *out = new_item("at", NULL, "additional_tools", "completed");
    json_extend(*out, "{role: 'developer', tools: %p}", json_share(tools));
    return 0;
}

static int read_item(const struct json *v, const char *param, size_t i, struct json **out,
                     struct fault *f)
{
    const char *type = json_string_of(json_member(v, "type"), NULL);
    if (json_kind(v) != JSON_KIND_OBJECT)
        return bad_item(f, param, i, "is no object");
    if (type == NULL || strcmp(type, "message") == 0)
        return read_message(v, param, i, out, f);
    if (strcmp(type, "function_call") == 0)
        return read_call(v, false, param, i, out, f);
    if (strcmp(type, "custom_tool_call") == 0)
        return read_call(v, true, param, i, out, f);
    if (strcmp(type, "function_call_output") == 0 ||
        strcmp(type, "custom_tool_call_output") == 0)
        return read_output(v, param, i, out, f);
    if (strcmp(type, "web_search_call") == 0 || strcmp(type, "tool_search_call") == 0 ||
        strcmp(type, "tool_search_output") == 0)
        return 0; /* what another server's own tools did; the answer tells it */
    if (strcmp(type, "reasoning") == 0)
        return read_reasoning(v, out);
    if (strcmp(type, "additional_tools") == 0)
        return read_more_tools(v, param, i, out, f);
    return fault_set(
        f, 400, "unsupported_value", param,
        "'%s' element %zu has the type '%.60s', which is not supported: only "
        "message, reasoning, function_call, custom_tool_call and their outputs are",
        param, i, type);
}

int items_read(const struct json *sent, const char *param, struct json **out,
               struct fault *f)
{
    struct json *list = json_new_array(), *item = NULL;
    int rc = 0;
    *out = list;
    if (is_string(sent)) {
        struct json *content = json_new_array();
        push_part(content, "user", sent);
        item = new_item("msg", NULL, "message", "completed");
        json_extend(item, "{role: 'user', content: %p}", content);
        json_push(list, item);
        return 0;
    }
    if (json_kind(sent) != JSON_KIND_ARRAY || json_count(sent) > ITEMS_MAX)
        rc = fault_set(f, 400, NULL, param,
                       "'%-s' must be a text, or a list of at most %d items", param,
                       ITEMS_MAX);
    for (size_t i = 0; rc == 0 && i < json_count(sent); i++) {
        item = NULL;
        rc = read_item(json_at(sent, i), param, i, &item, f);
        if (rc == 0 && item != NULL)
            json_push(list, item);
    }
    if (rc != 0) {
        json_free(list);
        *out = NULL;
    }
    return rc;
}

/* --- as messages ------------------------------------------------------------------------------ */

static bool is_type(const struct json *item, const char *type)
{
    return json_string_is(json_member(item, "type"), type);
}

static struct json *chat_call(const struct json *item)
{
    bool is_custom = is_type(item, "custom_tool_call");
    const struct json *sent = json_member(item, is_custom ? "input" : "arguments");
    return json_make(
        "{id: %p, type: 'function', function: {name: %p, arguments: %p}}",
        json_share(json_member(item, "call_id")), json_share(json_member(item, "name")),
        is_custom ? json_make("{input: %p}", json_share(sent)) : json_share(sent));
}

static struct json *chat_message(const struct json *item)
{
    const char *role = json_string_of(json_member(item, "role"), NULL);
    if (is_type(item, "function_call_output") || is_type(item, "custom_tool_call_output"))
        return json_make("{role: 'tool', tool_call_id: %p, content: %p}",
                         json_share(json_member(item, "call_id")),
                         json_share(json_member(item, "output")));
    /* Few templates know the role "developer", so it becomes "system" for all templates. */
    return json_make("{role: %s, content: %p}",
                     role == NULL                     ? "assistant"
                     : strcmp(role, "developer") == 0 ? "system"
                                                      : role,
                     joined(json_member(item, "content")));
}

static bool is_call(const struct json *item)
{
    return is_type(item, "function_call") || is_type(item, "custom_tool_call");
}

/* Adds an item of the assistant (a thought, a text or a call) to its message m. Returns false, and
 * adds nothing, if the item needs a message of its own: a thought or a text behind a text or a
 * call, or a second thought. */
static bool add_to(struct json *m, const struct json *item)
{
    bool has_text = json_member(m, "content") != NULL;
    bool has_calls = json_member(m, "tool_calls") != NULL;
    const struct json *calls = json_member(m, "tool_calls");
    if (is_call(item)) {
        struct json *list = json_new_array();
        if (!has_text)
            json_put_string(m, "content", "");
        json_share_all(list, calls);
        json_push(list, chat_call(item));
        json_put(m, "tool_calls", list);
        return true;
    }
    if (has_text || has_calls)
        return false;
    const char *key = is_type(item, "reasoning") ? "reasoning_content" : "content";
    if (json_member(m, key) != NULL)
        return false;
    json_put(m, key, joined(json_member(item, "content")));
    return true;
}

/* Returns whether an item is the system's. */
static bool is_of_system(const struct json *item)
{
    const struct json *role = json_member(item, "role");
    return json_string_is(role, "developer") || json_string_is(role, "system");
}

void items_tools(const struct json *items, struct json *early, struct json *late)
{
    bool begins = true;
    for (size_t i = 0; i < json_count(items); i++) {
        const struct json *item = json_at(items, i), *tools = json_member(item, "tools");
        begins = begins && is_of_system(item);
        if (is_type(item, "additional_tools"))
            json_share_all(begins ? early : late, tools);
    }
}

/* Returns the message that declares tools in the middle of a conversation. */
static struct json *tools_message(const struct json *item)
{
    struct textbuf text = {0};
    textbuf_addf(&text, "From here on you can also call these functions:\n");
    for (size_t i = 0; i < json_count(json_member(item, "tools")); i++) {
        json_append(json_at(json_member(item, "tools"), i), 0, &text);
        textbuf_addf(&text, "\n");
    }
    struct json *m = json_make("{role: 'system', content: %p}",
                               json_new_bytes(text.p, text.n));
    textbuf_free(&text);
    return m;
}

/* Returns whether a thought has no text. */
static bool is_silent(const struct json *item)
{
    struct json *text = joined(json_member(item, "content"));
    size_t n = 0;
    (void)json_string_of(text, &n);
    json_free(text);
    return n == 0;
}

void items_to_messages(const struct json *items, struct json *messages)
{
    struct json *last = NULL; /* the message of the assistant that may go on */
    bool begins = true;
    for (size_t i = 0; i < json_count(items); i++) {
        const struct json *item = json_at(items, i);
        bool is_assistant = is_call(item) || is_type(item, "reasoning") ||
                            json_string_is(json_member(item, "role"), "assistant");
        begins = begins && is_of_system(item);
        if ((is_type(item, "reasoning") && is_silent(item)) ||
            (is_type(item, "additional_tools") && begins))
            continue;
        if (is_type(item, "additional_tools")) {
            json_push(messages, tools_message(item));
            last = NULL;
            continue;
        }
        if (!is_assistant) {
            json_push(messages, chat_message(item));
            last = NULL;
        } else if (last == NULL || !add_to(last, item)) {
            last = json_make("{role: 'assistant'}");
            json_push(messages, last);
            (void)add_to(last, item);
        }
    }
}

/* --- titles and lists ------------------------------------------------------------------------- */

char *items_title(const struct json *items, size_t max)
{
    for (size_t i = 0; i < json_count(items); i++) {
        const struct json *item = json_at(items, i);
        const struct json *part = json_at(json_member(item, "content"), 0);
        size_t n = 0;
        const char *text = json_string_of(json_member(part, "text"), &n);
        if (!json_string_is(json_member(item, "role"), "user") || text == NULL)
            continue;
        n = MIN(n, max);
        /* The cut moves back to the beginning of a character. */
        while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
            n--;
        char *title = xmalloc(n + 1);
        memcpy(title, text, n);
        title[n] = 0;
        for (size_t k = 0; k < n; k++)
            title[k] = (unsigned char)title[k] < ' ' ? ' ' : title[k];
        return title;
    }
    return NULL;
}

/* --- searching -------------------------------------------------------------------------------- */

char *items_fold(const char *text, size_t n)
{
    utf8proc_uint8_t *out = NULL;
    if (utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &out,
                     UTF8PROC_CASEFOLD | UTF8PROC_COMPOSE | UTF8PROC_STABLE) >= 0)
        return (char *)out;
    free(out);
    return NULL;
}

static bool text_holds(const struct json *v, const char *folded)
{
    size_t n = 0;
    const char *text = json_string_of(v, &n);
    char *own = text != NULL ? items_fold(text, n) : NULL;
    bool holds = own != NULL && strstr(own, folded) != NULL;
    free(own);
    return holds;
}

static bool item_holds(const struct json *item, const char *folded)
{
    const struct json *parts = json_member(item, "content");
    for (size_t i = 0; i < json_count(parts); i++)
        if (text_holds(json_member(json_at(parts, i), "text"), folded))
            return true;
    return text_holds(json_member(item, "arguments"), folded) ||
           text_holds(json_member(item, "input"), folded) ||
           text_holds(json_member(item, "output"), folded);
}

bool items_hold(const struct json *items, const char *folded)
{
    for (size_t i = 0; i < json_count(items); i++)
        if (item_holds(json_at(items, i), folded))
            return true;
    return false;
}

/* --- lists ------------------------------------------------------------------------------------ */

const char *item_id(const struct json *item)
{
    return json_string_of(json_member(item, "id"), NULL);
}

bool items_find(const struct json *items, const char *id, size_t *at)
{
    for (*at = 0; *at < json_count(items); ++*at)
        if (strcmp(item_id(json_at(items, *at)), id) == 0)
            return true;
    return false;
}

int items_list(const struct json *items, const struct items_page *page, struct json **out,
               struct fault *f)
{
    size_t count = json_count(items), at = 0, n = 0;
    if (page->after != NULL && !items_find(items, page->after, &at))
        return fault_set(f, 404, NULL, "after", "there is no item '%.80s' here",
                         page->after);
    struct json *list = json_new_array();
    size_t left = page->after == NULL ? count : page->oldest_first ? count - at - 1 : at;
    for (; n < left && n < (size_t)page->limit; n++) {
        size_t i = page->oldest_first ? count - left + n : left - 1 - n;
        json_push(list, json_share(json_at(items, i)));
    }
    *out = json_make("{object: 'list', first_id: %s, last_id: %s, has_more: %p, data: %p}",
                     n > 0 ? item_id(json_at(list, 0)) : NULL,
                     n > 0 ? item_id(json_at(list, n - 1)) : NULL, json_new_bool(n < left),
                     list);
    return 0;
}
