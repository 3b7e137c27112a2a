/* api_messages.c - /v1/messages: Anthropic's form of a chat, and counting its tokens.
 *
 * Stateless, as in the original: the whole conversation comes with every request. cache_control
 * marks a beginning of the prompt whose state must be kept: it is pinned for its TTL when the
 * answer ends. Other state is saved and restored all the same; it is only evicted earlier. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "api/prompts.h"
#include "server/keep.h"
#include "api/dates.h"
#include "api/prompt.h"
#include "api/retoken.h"
#include "api/shape.h"

enum { MAX_BREAKPOINTS = HCACHE_MARKS }; /* as in Anthropic's API */

struct breakpoint {
    size_t n_messages; /* number of chat messages before the breakpoint */
    int ttl_s;
    int n_tokens; /* tokens of the prompt up to the breakpoint */
};

struct dialog_text {
    /* messages and tools in the chat API's form; tools NULL: none */
    struct json *messages, *tools;
    struct json
        *deferred; /* tools that the prompt shows where a tool_reference names them */
    struct textbuf prefill_text; /* with which the answer begins, by the client's wish */
    struct breakpoint at[MAX_BREAKPOINTS];
    int n;
    /* the different n_messages of the breakpoints that have messages behind them, ascending */
    size_t places[MAX_BREAKPOINTS];
    int n_places;
    bool wants_citations; /* of a document; answers have none */
};

struct message {
    char id[NAME_BYTES];
    struct breakpoint at[MAX_BREAKPOINTS];
    int n;
    bool has_begun; /* message_start was sent */
    bool is_open;   /* the block of part number `part` has begun, and not ended */
    int n_blocks, part;
    enum hcache_part_kind kind;
    struct json *tools; /* those that may be called */
};

static void free_message(void *own)
{
    struct message *m = own;
    json_free(m->tools);
    free(m);
}

/* --- reading ---------------------------------------------------------------------------------- */

static int refuse_value(struct fault *f, const char *param, const char *what)
{
    return fault_set(f, 400, NULL, param, "'%-s': %-s", param, what);
}

/* Reads {"type": "ephemeral", "ttl": "5m"}; n_messages: number of messages before the mark. */
static int read_mark(const struct json *v, size_t n_messages, struct dialog_text *d,
                     struct fault *f)
{
    const struct json *ttl = json_member(v, "ttl");
    bool is_hour = json_string_is(ttl, "1h");
    if (json_kind(v) == JSON_KIND_NULL)
        return 0;
    if (!json_string_is(json_member(v, "type"), "ephemeral") ||
        (ttl != NULL && !is_hour && !json_string_is(ttl, "5m")))
        return refuse_value(
            f, "cache_control",
            "it must be {\"type\": \"ephemeral\"}, with a ttl of 5m or 1h if any");
    if (d->n == MAX_BREAKPOINTS)
        return refuse_value(f, "cache_control", "at most 4 are allowed");
    d->at[d->n++] = (struct breakpoint){n_messages, is_hour ? 3600 : 300, 0};
    return 0;
}

static const char *type_of(const struct json *block)
{
    const char *type = json_string_of(json_member(block, "type"), NULL);
    return type != NULL ? type : "";
}

/* Reads a text of the system, without what is dropped from it. */
static int add_system(struct call *c, const char *text, size_t n, struct textbuf *out,
                      struct fault *f)
{
    struct hcache_err err = {0};
    char *left = NULL;
    size_t n_left = 0;
    int rc = hcache_drop_system(call_model(c), text, n, &left, &n_left, &err);
    if (rc < 0)
        return fault_refuse(f, rc, "system", "'system': %s", err.msg);
    textbuf_add(out, rc > 0 ? left : text, rc > 0 ? n_left : n);
    hcache_free(left);
    return 0;
}

/* Writes the declaration of a tool that a client's search has found, or its name if the tool is not
 * deferred. The declaration stands here and not at the beginning, so the beginning of the prompt
 * stays as it was. */
static int add_reference(const struct json *name, const struct dialog_text *d,
                         struct textbuf *out, struct fault *f)
{
    const char *wanted = json_string_of(name, NULL);
    if (wanted == NULL)
        return refuse_value(f, "messages", "a tool_reference needs a 'tool_name'");
    for (size_t i = 0; i < json_count(d->deferred); i++) {
        const struct json *function = json_member(json_at(d->deferred, i), "function");
        const char *own = json_string_of(json_member(function, "name"), NULL);
        if (strcmp(own, wanted) != 0)
            continue;
        textbuf_addf(out, "This function can be called now:\n");
        json_append(function, 0, out);
        textbuf_addf(out, "\n");
        return 0;
    }
    textbuf_addf(out, "Function: %s\n", wanted);
    return 0;
}

/* Reads a text, or joins the texts of a list of blocks; adds the list's references to tools and its
 * cache marks to *d. c is NULL except for text of the system, from which add_system drops what
 * --drop-system names. */
static int read_texts(struct call *c, const struct json *v, const char *param,
                      size_t n_messages, struct textbuf *out, struct dialog_text *d,
                      struct fault *f)
{
    size_t n;
    const char *text = json_string_of(v, &n);
    if (text != NULL && c != NULL)
        return add_system(c, text, n, out, f);
    if (text != NULL)
        textbuf_add(out, text, n);
    if (text != NULL || json_kind(v) == JSON_KIND_NULL)
        return 0;
    if (json_kind(v) != JSON_KIND_ARRAY)
        return refuse_value(f, param, "it must be a text or a list of text blocks");
    for (size_t i = 0; i < json_count(v); i++) {
        const struct json *block = json_at(v, i);
        text = json_string_of(json_member(block, "text"), &n);
        if (c == NULL && strcmp(type_of(block), "tool_reference") == 0) {
            if (add_reference(json_member(block, "tool_name"), d, out, f) != 0)
                return -1;
            continue;
        }
        if (strcmp(type_of(block), "text") != 0 || text == NULL)
            return fault_set(f, 400, "unsupported_value", param,
                             "'%s': a block of type '%.40s' is not supported here", param,
                             type_of(block));
        if (c == NULL)
            textbuf_add(out, text, n);
        if ((c != NULL && add_system(c, text, n, out, f) != 0) ||
            read_mark(json_member(block, "cache_control"), n_messages, d, f) != 0)
            return -1;
    }
    return 0;
}

static void push_message(struct dialog_text *d, const char *role,
                         const struct textbuf *text, const struct textbuf *thought,
                         struct json *calls)
{
    struct json *m = json_make("{role: %s}", role);
    if (thought->n > 0)
        json_put_bytes(m, "reasoning_content", thought->p, thought->n);
    json_put_bytes(m, "content", text->p, text->n);
    if (calls != NULL)
        json_put(m, "tool_calls", calls);
    json_push(d->messages, m);
}

/* Reads a tool's result, which becomes a message of its own. */
static int read_tool_result(const struct json *block, struct dialog_text *d,
                            struct fault *f)
{
    const struct json *id = json_member(block, "tool_use_id");
    struct textbuf text = {0};
    size_t next = json_count(d->messages) + 1;
    if (json_kind(id) != JSON_KIND_STRING)
        return refuse_value(f, "messages", "a tool_result needs a 'tool_use_id'");
    bool failed = false;
    int rc = 0;
    if (json_bool_of(json_member(block, "is_error"), &failed) && failed)
        textbuf_addf(&text, "The tool failed.\n");
    rc = read_texts(NULL, json_member(block, "content"), "messages", next, &text, d, f);
    if (rc == 0) {
        json_push(d->messages, json_make("{role: 'tool', tool_call_id: %p, content: %p}",
                                         json_share(id), json_new_bytes(text.p, text.n)));
        rc = read_mark(json_member(block, "cache_control"), next, d, f);
    }
    textbuf_free(&text);
    return rc;
}

static int read_tool_use(const struct json *block, struct json *calls, struct fault *f)
{
    const struct json *id = json_member(block, "id"), *name = json_member(block, "name");
    const struct json *input = json_member(block, "input");
    if (json_kind(id) != JSON_KIND_STRING || json_kind(name) != JSON_KIND_STRING ||
        json_kind(input) != JSON_KIND_OBJECT)
        return refuse_value(f, "messages",
                            "a tool_use needs 'id', 'name' and an object 'input'");
    json_push(calls,
              json_make("{id: %p, type: 'function', function: {name: %p, arguments: %p}}",
                        json_share(id), json_share(name), json_share(input)));
    return 0;
}

/* Reads a document of text; others are refused. */
static int read_document(const struct json *block, struct textbuf *text,
                         struct dialog_text *d, struct fault *f)
{
    const struct json *source = json_member(block, "source");
    bool cites = false;
    (void)json_bool_of(json_member(json_member(block, "citations"), "enabled"), &cites);
    d->wants_citations |= cites;
    static const char *const heads[] = {"title", "context"};
    size_t n = 0, next = json_count(d->messages) + 1;
    for (int i = 0; i < 2; i++) {
        const char *head = json_string_of(json_member(block, heads[i]), &n);
        if (head != NULL)
            textbuf_addf(text, "%s\n", head);
    }
    if (strcmp(type_of(source), "content") == 0)
        return read_texts(NULL, json_member(source, "content"), "messages", next, text, d,
                          f);
    const char *data = json_string_of(json_member(source, "data"), &n);
    if (strcmp(type_of(source), "text") != 0 || data == NULL)
        return fault_set(f, 400, "unsupported_value", "messages",
                         "'messages': a document with a source of type '%.40s' is not "
                         "supported, only text is",
                         type_of(source));
    textbuf_add(text, data, n);
    textbuf_add(text, "\n", 1);
    return 0;
}

static int read_block(const struct json *block, const char *role, struct textbuf *text,
                      struct textbuf *thought, struct json *calls, struct dialog_text *d,
                      struct fault *f)
{
    size_t n, n_thought = 0, next = json_count(d->messages) + 1;
    const char *type = type_of(block), *t = json_string_of(json_member(block, "text"), &n);
    const char *h = json_string_of(json_member(block, "thinking"), &n_thought);
    bool is_user = strcmp(role, "user") == 0, is_assistant = strcmp(role, "assistant") == 0;
    if (strcmp(type, "tool_result") == 0 && is_user)
        return read_tool_result(block, d, f);
    if (is_assistant && strcmp(type, "redacted_thinking") == 0)
        return 0; /* only its server can read it */
    if (is_assistant && strcmp(type, "thinking") == 0 && h != NULL) {
        textbuf_add(thought, h, n_thought);
        return 0;
    }
    if (strcmp(type, "document") == 0 && is_user)
        return read_document(block, text, d, f) != 0
                   ? -1
                   : read_mark(json_member(block, "cache_control"), next, d, f);
    if (strcmp(type, "text") == 0 && t != NULL)
        textbuf_add(text, t, n);
    else if (strcmp(type, "tool_use") != 0 || !is_assistant)
        return fault_set(
            f, 400, "unsupported_value", "messages",
            "'messages': a block of type '%.40s' is not supported in a message "
            "of the %s",
            type, role);
    else if (read_tool_use(block, calls, f) != 0)
        return -1;
    return read_mark(json_member(block, "cache_control"), next, d, f);
}

static int read_message(const struct json *m, struct dialog_text *d, struct fault *f)
{
    const char *role = json_string_of(json_member(m, "role"), NULL);
    const struct json *content = json_member(m, "content");
    struct textbuf text = {0}, thought = {0};
    struct json *calls = json_new_array();
    size_t n;
    int rc = 0;
    const char *whole = json_string_of(content, &n);
    if (role == NULL || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 &&
                         strcmp(role, "system") != 0))
        rc = refuse_value(f, "messages",
                          "every message needs a role: user, assistant or system");
    else if (whole == NULL && json_kind(content) != JSON_KIND_ARRAY)
        rc = refuse_value(f, "messages", "'content' must be a text or a list of blocks");
    if (rc == 0 && whole != NULL)
        textbuf_add(&text, whole, n);
    for (size_t i = 0; rc == 0 && whole == NULL && i < json_count(content); i++)
        rc = read_block(json_at(content, i), role, &text, &thought, calls, d, f);
    bool has_calls = json_count(calls) > 0;
    bool only_results = whole == NULL && text.n == 0 && thought.n == 0 && !has_calls &&
                        json_count(content) > 0;
    if (rc == 0 && !only_results)
        push_message(d, role, &text, &thought, has_calls ? json_share(calls) : NULL);
    json_free(calls);
    textbuf_free(&text);
    textbuf_free(&thought);
    return rc;
}

/* Converts {"name", "description", "input_schema"} to the chat API's form. */
static int read_tool(const struct json *tool, struct gen_params *p, struct dialog_text *d,
                     struct fault *f)
{
    const char *type = json_string_of(json_member(tool, "type"), NULL);
    const struct json *schema = json_member(tool, "input_schema");
    if (request_server_tool(type) != NULL && schema == NULL) {
        request_note_ignored(p, request_server_tool(type));
        return read_mark(json_member(tool, "cache_control"), 0, d, f);
    }
    if ((type != NULL && strcmp(type, "custom") != 0) ||
        json_string_of(json_member(tool, "name"), NULL) == NULL)
        return fault_set(
            f, 400, "unsupported_value", "tools",
            "'tools': only tools with a name and an input_schema are supported");
    /* members that templates do not know */
    static const char *const unshown[] = {"input_examples", "allowed_callers"};
    for (int i = 0; i < 2; i++)
        if (json_member(tool, unshown[i]) != NULL)
            request_note_ignored(p, unshown[i]);
    bool deferred = false;
    (void)json_bool_of(json_member(tool, "defer_loading"), &deferred);
    struct json *function = json_make("{name: %p}", json_share(json_member(tool, "name")));
    if (json_member(tool, "description") != NULL)
        json_put(function, "description", json_share(json_member(tool, "description")));
    json_extend(function, "{parameters: %p}",
                schema != NULL ? json_share(schema) : json_new_object());
    json_push(deferred && d->deferred != NULL ? d->deferred : d->tools,
              json_make("{type: 'function', function: %p}", function));
    return read_mark(json_member(tool, "cache_control"), 0, d, f);
}

/* Reads the tools. The client's deferred tools are left out of the beginning of the prompt, because
 * its own search will find them. But if the request names the search of Anthropic's server, which
 * does not exist here, deferred tools are declared at once. */
static int read_tools(struct gen_params *p, struct dialog_text *d, struct fault *f)
{
    bool searches = true;
    int rc = 0;
    for (size_t i = 0; i < json_count(p->tools); i++)
        searches = searches &&
                   strncmp(type_of(json_at(p->tools, i)), "tool_search_tool", 16) != 0;
    if (p->tools != NULL)
        d->tools = json_new_array();
    if (searches)
        d->deferred = json_new_array();
    for (size_t i = 0; rc == 0 && i < json_count(p->tools); i++)
        rc = read_tool(json_at(p->tools, i), p, d, f);
    if (json_count(d->tools) == 0) {
        json_free(d->tools);
        d->tools = NULL;
    }
    return rc;
}

static void dialog_deinit(struct dialog_text *d)
{
    json_free(d->messages);
    json_free(d->tools);
    json_free(d->deferred);
    textbuf_free(&d->prefill_text);
}

/* Removes the last message, which is the assistant's. Its text, without blanks at the end, becomes
 * d->prefill_text: the answer continues it. */
static int take_prefill(struct dialog_text *d, struct fault *f)
{
    size_t n = json_count(d->messages) - 1, n_text = 0;
    const struct json *last = json_at(d->messages, n);
    const char *text = json_string_of(json_member(last, "content"), &n_text);
    if (json_member(last, "tool_calls") != NULL)
        return fault_set(f, 400, "unsupported_value", "messages",
                         "'messages': the last one has a tool_use without its tool_result");
    while (n_text > 0 && strchr(" \n\t\r", text[n_text - 1]) != NULL)
        n_text--;
    textbuf_add(&d->prefill_text, text, n_text);
    struct json *rest = json_new_array();
    for (size_t i = 0; i < n; i++)
        json_push(rest, json_share(json_at(d->messages, i)));
    json_free(d->messages);
    d->messages = rest;
    return n > 0 ? 0 : refuse_value(f, "messages", "the first one must be the user's");
}

static int64_t number_of(const struct json *edit, const char *key, const char *kind,
                         int64_t otherwise)
{
    const struct json *v = json_member(edit, key);
    int64_t n = otherwise;
    if (strcmp(type_of(v), kind) == 0)
        (void)json_int_of(json_member(v, "value"), &n);
    return n;
}

/* Returns the message without a member, or with another text in its place. */
static struct json *with_text(const struct json *m, const char *key, const char *text)
{
    struct json *o = json_new_object();
    json_share_all(o, m);
    if (text != NULL)
        json_put_string(o, key, text);
    else
        json_drop(o, key);
    return o;
}

/* Sets the member `key` to `text` (NULL: removes it) in messages of that role which have it, except
 * in the last `keep` of them. */
static void clear_old(struct dialog_text *d, const char *role, const char *key,
                      int64_t keep, const char *text)
{
    struct json *list = json_new_array();
    int64_t n = 0, at = 0;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < json_count(d->messages); i++) {
            const struct json *m = json_at(d->messages, i);
            bool has = json_string_is(json_member(m, "role"), role) &&
                       json_member(m, key) != NULL;
            n += pass == 0 && has;
            if (pass == 1)
                json_push(list,
                          has && n - at++ > keep ? with_text(m, key, text) : json_share(m));
        }
    json_free(d->messages);
    d->messages = list;
}

/* Takes thoughts of earlier turns and results of earlier tools out of the messages, where the
 * client's edits say so. Results go when there are more results, or more tokens, than the trigger
 * says. A token counts as four bytes. */
static void apply_edits(const struct json *edits, struct dialog_text *d)
{
    for (size_t i = 0; i < json_count(edits); i++) {
        const struct json *e = json_at(edits, i);
        if (strcmp(type_of(e), "clear_thinking_20251015") == 0) {
            if (!json_string_is(json_member(e, "keep"), "all"))
                clear_old(d, "assistant", "reasoning_content",
                          number_of(e, "keep", "thinking_turns", 1), NULL);
            continue;
        }
        int64_t tools = number_of(e, "trigger", "tool_uses", -1), n = 0;
        int64_t tokens = number_of(e, "trigger", "input_tokens", tools < 0 ? 100000 : -1);
        char *all = json_text(d->messages, 0);
        for (size_t k = 0; k < json_count(d->messages); k++)
            n += json_string_is(json_member(json_at(d->messages, k), "role"), "tool");
        if ((tools >= 0 && n > tools) ||
            (tokens >= 0 && (int64_t)(strlen(all) / 4) > tokens))
            clear_old(d, "tool", "content", number_of(e, "keep", "tool_uses", 3),
                      "[old result of a tool, cleared]");
        free(all);
    }
}

/* Reads the body into d: messages, tools, marks, and the text that the answer continues. */
static int read_dialog(struct call *c, struct gen_params *p, struct dialog_text *d,
                       struct fault *f)
{
    struct textbuf system = {0}, none = {0};
    *d = (struct dialog_text){.messages = json_new_array()};
    int rc = read_tools(p, d, f);
    if (rc == 0 && p->system != NULL)
        rc = read_texts(c, p->system, "system", 1, &system, d, f);
    if (rc == 0 && system.n > 0)
        push_message(d, "system", &system, &none, NULL);
    textbuf_free(&system);
    if (rc == 0 &&
        (json_kind(p->messages) != JSON_KIND_ARRAY || json_count(p->messages) == 0))
        rc = refuse_value(f, "messages", "it must be a list of messages");
    for (size_t i = 0; rc == 0 && i < json_count(p->messages); i++)
        rc = read_message(json_at(p->messages, i), d, f);
    if (d->wants_citations)
        request_note_ignored(p, "citations");
    if (rc == 0 && p->cache_control != NULL)
        rc = read_mark(p->cache_control, json_count(d->messages), d, f);
    const struct json *last = json_at(p->messages, json_count(p->messages) - 1);
    if (rc == 0 && json_string_is(json_member(last, "role"), "assistant"))
        rc = take_prefill(d, f);
    if (rc == 0 && p->edits != NULL)
        apply_edits(p->edits, d);
    return rc;
}

/* --- the prompt ------------------------------------------------------------------------------- */

static int render(struct call *c, const struct dialog_text *d, const struct gen_params *p,
                  struct prompt_text *out, struct fault *f)
{
    struct chat_source source = {.messages = d->messages,
                                 .tools = d->tools,
                                 .kwargs = p->kwargs,
                                 .effort = p->effort,
                                 .thinking = p->thinking,
                                 .plain = c->s->o.plain_chat,
                                 .parse_special = c->s->o.parse_special,
                                 .truncates = request_truncates(p, &c->truncation),
                                 .n_marks = d->n_places};
    memcpy(source.marks, d->places, sizeof source.marks);
    char *salt = call_state_salt(c, p->cache_salt);
    int rc = dates_render(c->s->o.dates, call_model(c), salt, &source, out, f);
    free(salt);
    return rc;
}

/* Collects the places of breakpoints that have messages behind them, each once. They ascend. */
static void find_places(struct dialog_text *d)
{
    for (int i = 0; i < d->n; i++) {
        size_t at = d->at[i].n_messages;
        bool is_new = d->n_places == 0 || d->places[d->n_places - 1] != at;
        if (is_new && at < json_count(d->messages))
            d->places[d->n_places++] = at;
    }
}

static void set_breakpoints(struct call *c, struct dialog_text *d,
                            const struct prompt_text *text, const struct prompt_ids *prompt)
{
    int n_tokens[MAX_BREAKPOINTS];
    retoken_before(call_model(c), text, prompt, text->marks, d->n_places, n_tokens);
    for (int i = 0; i < d->n; i++) {
        d->at[i].n_tokens = prompt->n;
        for (int k = 0; k < d->n_places; k++)
            if (d->places[k] == d->at[i].n_messages)
                d->at[i].n_tokens = n_tokens[k];
    }
}

/* Makes the prompt's text, then its tokens, and finds the marks in them. Frees the messages in
 * between, also those of the body, since they may be large. */
static int make_prompt(struct call *c, struct gen_params *p, struct dialog_text *d,
                       struct prompt_ids *prompt, struct prompt_text *text, char *what,
                       struct fault *f)
{
    int rc = prompts_check_truncation(p, call_model(c), &c->truncation, f);
    bool truncates = request_truncates(p, &c->truncation);
    if (rc == 0)
        rc = read_dialog(c, p, d, f);
    if (rc == 0 && truncates && d->n > 0)
        rc = fault_set(f, 400, "unsupported_value", "truncation",
                       "'truncation' cannot be auto beside 'cache_control': the marked "
                       "part may be dropped");
    if (rc == 0) {
        find_places(d);
        rc = render(c, d, p, text, f);
    }
    if (rc == 0 && d->prefill_text.n > 0)
        prompt_text_append(call_model(c), text, d->prefill_text.p, d->prefill_text.n);
    if (rc == 0 && truncates)
        p->n_system = prompt_system_tokens(call_model(c), d->messages);
    if (rc == 0)
        rc = prompt_fits(call_model(c), truncates, text->text, text->n, "messages", f);
    if (rc == 0)
        request_note_prompt(p, text->text, text->n);
    if (rc == 0) { /* the text has all of them */
        json_free(d->messages);
        d->messages = NULL;
        json_drop(c->json, "messages");
        p->messages = NULL;
    }
    struct client client = call_client(c);
    if (rc == 0)
        rc = prompts_encode(&client, text, prompt, what, &p->date, f);
    if (rc == 0)
        set_breakpoints(c, d, text, prompt);
    return rc;
}

/* --- the answer ------------------------------------------------------------------------------- */

static void put_stop(struct json *o, const struct generation *g, const struct choice *ch)
{
    const char *stop = shape_stop(g, ch);
    bool calls = shape_has_calls(ch);
    json_extend(o, "{stop_reason: %s, stop_sequence: %s}",
                calls                                      ? "tool_use"
                : strcmp(ch->result.finish, "length") == 0 ? "max_tokens"
                : stop != NULL                             ? "stop_sequence"
                                                           : "end_turn",
                calls ? NULL : stop);
}

/* Makes the usage. Every token of the prompt counts once: as read from the cache, as put into the
 * cache by cache_control, or as neither. */
static struct json *usage_json(const struct generation *g, int n_cached, int n_output)
{
    const struct message *m = g->own;
    int prompt = g->choice[0].n_prompt, before = 0, by_ttl[2] = {0, 0};
    for (int i = 0; i < m->n; i++) {
        int end = m->at[i].n_tokens / 64 * 64;
        int from = MAX(n_cached, before);
        by_ttl[m->at[i].ttl_s > 300] += end - MIN(end, from);
        before = MAX(end, before);
    }
    struct json *o = json_make(
        "{input_tokens: %d, cache_creation_input_tokens: %d, cache_read_input_tokens: %d}",
        prompt - n_cached - by_ttl[0] - by_ttl[1], by_ttl[0] + by_ttl[1], n_cached);
    json_extend(
        o,
        "{cache_creation: {ephemeral_5m_input_tokens: %d, "
        "ephemeral_1h_input_tokens: %d}, output_tokens: %d, service_tier: 'standard'}",
        by_ttl[0], by_ttl[1], n_output);
    shape_context(o, g);
    shape_adapted(o, g);
    return o;
}

static struct json *text_block(const char *text, size_t n)
{
    return json_make("{type: 'text', text: %p}", json_new_bytes(text, n));
}

/* Clients send the signature back with the thought. It says nothing here. */
static const char signature[] = "aGNhY2hl";

/* Makes the block of part i. If is_whole, the block has its content; otherwise the content follows
 * as deltas. A call's input keeps the digits that the model wrote. */
static struct json *block_of(const struct choice *ch, int i, const struct hcache_part *p,
                             bool is_whole)
{
    char id[32];
    size_t n = is_whole ? p->n : 0;
    if (p->kind == HCACHE_PART_TEXT)
        return text_block(p->text, n);
    if (p->kind == HCACHE_PART_THOUGHT)
        return json_make("{type: 'thinking', thinking: %p, signature: %s}",
                         json_new_bytes(p->text, n), is_whole ? signature : "");
    shape_id(ch, i, id);
    return json_make("{type: 'tool_use', id: %s, name: %s, input: %p}", id, p->name,
                     is_whole ? json_new_raw(p->text, p->n) : json_new_object());
}

static struct json *message_head(const struct generation *g)
{
    const struct message *m = g->own;
    return json_make("{id: %s, type: 'message', role: 'assistant', model: %s}", m->id,
                     g->client.model_name);
}

static struct json *make_answer(struct generation *g)
{
    const struct choice *ch = &g->choice[0];
    struct json *o = message_head(g), *content = json_new_array();
    struct hcache_part p;
    for (int i = 0; shape_part(ch, i, &p); i++)
        json_push(content, block_of(ch, i, &p, true));
    if (json_count(content) == 0)
        json_push(content, text_block("", 0));
    json_put(o, "content", content);
    put_stop(o, g, ch);
    json_extend(o, "{usage: %p, timings: %p}",
                usage_json(g, ch->result.cached_tokens, ch->result.n_tokens),
                shape_timings(g, ch));
    return o;
}

/* --- the stream ------------------------------------------------------------------------------- */

static void write_event(const char *type, struct json *o, struct textbuf *out)
{
    json_put_string(o, "type", type);
    textbuf_addf(out, "event: %s\n", type);
    sse_json(out, o);
}

/* Begins the stream. This happens with the first token, because the number of cached tokens is not
 * known before. */
static void begin_once(struct generation *g, struct textbuf *out)
{
    struct message *m = g->own;
    if (m->has_begun)
        return;
    struct json *message = message_head(g);
    m->has_begun = true;
    json_extend(message,
                "{content: [], stop_reason: null, stop_sequence: null, "
                "usage: %p}",
                usage_json(g, g->choice[0].n_cached, 1));
    write_event("message_start", json_make("{message: %p}", message), out);
}

static void open_block(struct message *m, struct json *block, struct textbuf *out)
{
    write_event("content_block_start",
                json_make("{index: %d, content_block: %p}", m->n_blocks, block), out);
}

static void write_delta(struct message *m, const char *type, const char *key,
                        const char *text, size_t n, struct textbuf *out)
{
    struct json *d = json_make("{type: %s}", type);
    json_put_bytes(d, key, text, n);
    write_event("content_block_delta", json_make("{index: %d, delta: %p}", m->n_blocks, d),
                out);
}

static void close_block(struct message *m, struct textbuf *out)
{
    write_event("content_block_stop", json_make("{index: %d}", m->n_blocks++), out);
    m->is_open = false;
}

static void end_block(struct message *m, struct textbuf *out)
{
    if (!m->is_open)
        return;
    if (m->kind == HCACHE_PART_THOUGHT)
        write_delta(m, "signature_delta", "signature", signature, strlen(signature), out);
    close_block(m, out);
}

static void write_piece(struct generation *g, struct choice *ch, int i,
                        const struct hcache_part *p, struct textbuf *out)
{
    static const struct {
        const char *type, *key;
    } kinds[] = {[HCACHE_PART_THOUGHT] = {"thinking_delta", "thinking"},
                 [HCACHE_PART_TEXT] = {"text_delta", "text"},
                 [HCACHE_PART_CALL] = {"input_json_delta", "partial_json"}};
    struct message *m = g->own;
    begin_once(g, out);
    if (m->is_open && m->part != i)
        end_block(m, out);
    if (!m->is_open)
        open_block(m, block_of(ch, i, p, false), out);
    m->is_open = true;
    m->part = i;
    m->kind = p->kind;
    write_delta(m, kinds[p->kind].type, kinds[p->kind].key, p->text, p->n, out);
}

static void write_end(struct generation *g, struct choice *ch, struct textbuf *out)
{
    (void)ch;
    begin_once(g, out);
    end_block(g->own, out);
}

static void close_stream(struct generation *g, struct textbuf *out)
{
    const struct choice *ch = &g->choice[0];
    struct json *d = json_new_object();
    put_stop(d, g, ch);
    struct json *o = json_make("{delta: %p, usage: %p, timings: %p}", d,
                               usage_json(g, ch->result.cached_tokens, ch->result.n_tokens),
                               shape_timings(g, ch));
    write_event("message_delta", o, out);
    write_event("message_stop", json_new_object(), out);
}

/* --- faults and pins -------------------------------------------------------------------------- */

struct json *api_messages_fault(const struct fault *f)
{
    const char *type = f->status == 503   ? "overloaded_error"
                       : f->status == 504 ? "timeout_error"
                       : f->status >= 500 ? "api_error"
                       : f->status == 413 ? "request_too_large"
                                          : f->type;
    return json_make("{type: 'error', error: {type: %s, message: %s}}", type, f->message);
}

static void tell_fault(struct generation *g, const struct fault *f, struct textbuf *out)
{
    (void)g;
    write_event("error", api_messages_fault(f), out);
}

/* Pins the marked state. A failure harms no answer: the state is only evicted earlier. */
static int pin_marked(struct generation *g, struct fault *f)
{
    const struct message *m = g->own;
    int64_t now = clock_wall_s() + 1; /* the second that has begun does not count */
    for (int i = 0; i < m->n; i++) {
        const struct hcache_context part = {
            .ids = g->prompt.ids, .n = m->at[i].n_tokens, .salt = g->salt};
        int n_tokens;
        if (keep_pin(call_of(g), &part, now + m->at[i].ttl_s, &n_tokens, f) != 0 &&
            f->status != 400)
            log_warn("cache_control: %s", f->message);
    }
    return 0;
}

static const char *id_of(const struct generation *g)
{
    return ((const struct message *)g->own)->id;
}

static const struct dialect messages = {.answer = make_answer,
                                        .id = id_of,
                                        .piece = write_piece,
                                        .end = write_end,
                                        .close = close_stream,
                                        .fault = tell_fault,
                                        .keep = pin_marked,
                                        .drop = free_message};

/* --- the routes ------------------------------------------------------------------------------- */

/* Reads the request and its prompt. Returns false if it has refused the call. */
static bool read_prompt(struct call *c, unsigned kind, struct gen_params *p,
                        struct dialog_text *d, struct prompt_ids *prompt,
                        struct prompt_text *text, char *what)
{
    struct fault f;
    const struct json *body = call_body(c, kind);
    if (body == NULL)
        return false;
    if (request_parse(body, kind, p, &f) == 0 && call_check_name(c, p->model, &f) == 0 &&
        make_prompt(c, p, d, prompt, text, what, &f) == 0)
        return true;
    hcache_free(prompt->ids);
    prompt_text_deinit(text);
    call_fault(c, &f);
    return false;
}

void api_messages(struct call *c)
{
    struct gen_params p;
    struct dialog_text d = {0};
    struct prompt_ids prompt = {0};
    struct prompt_text text = {0};
    char what[200] = "";
    if (read_prompt(c, REQUEST_MESSAGE, &p, &d, &prompt, &text, what)) {
        struct message *m = xcalloc(1, sizeof *m);
        conversations_name("msg", m->id);
        m->tools = json_new_array();
        json_share_all(m->tools, d.tools);
        json_share_all(m->tools, d.deferred);
        p.offered = m->tools;
        memcpy(m->at, d.at, sizeof m->at);
        m->n = d.n;
        call_generate(c, &messages, m, &p, &prompt, 1, &text, what);
    }
    dialog_deinit(&d);
}

void api_count_tokens(struct call *c)
{
    struct gen_params p;
    struct dialog_text d = {0};
    struct prompt_ids prompt = {0};
    struct prompt_text text = {0};
    char what[200] = "";
    if (read_prompt(c, REQUEST_COUNT, &p, &d, &prompt, &text, what)) {
        call_json(c, 200, json_make("{input_tokens: %d}", prompt.n));
        hcache_free(prompt.ids);
        prompt_text_deinit(&text);
    }
    dialog_deinit(&d);
}
