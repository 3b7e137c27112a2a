/* api_responses.c - /v1/responses: answers that are kept, and can be continued by their name.
 *
 * A response is a turn (conversations.h). It continues a response or a conversation with the
 * exact tokens of earlier turns (draft.h). It is reported as completed only when it is durable.
 * So a client that has seen the end of a stream finds the response after any crash, and a client
 * that has not finds no part of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "api/prompts.h"
#include "server/call.h"
#include "api/dates.h"
#include "api/draft.h"
#include "api/items.h"
#include "server/keep.h"
#include "api/provenance.h"
#include "api/shape.h"

struct response {
    struct draft draft;
    struct json *tools;   /* those of the prompt, in the chat API's form */
    struct json *offered; /* those that may be called; all, in the chat API's form */
    struct json *sent;    /* all, as the client has sent them */
    char id[NAME_BYTES], message_id[NAME_BYTES];
    /* conversation to which the response belongs; "": none */
    char conversation[NAME_BYTES];
    char *title;
    /* the conversation had gone on meanwhile, so the response began a branch */
    bool has_branched;
    /* Reason why the disk did not take the response. NULL: the response is kept, or the request
     * asked not to keep it. */
    char *not_kept;
    int64_t sequence; /* sequence number of the next event */
    bool is_open;     /* the events of the item of `part` have begun, and not ended */
    int part;
    int n_open; /* number of items whose events have begun */
};

static void free_response(void *own)
{
    struct response *r = own;
    draft_deinit(&r->draft);
    json_free(r->tools);
    json_free(r->offered);
    json_free(r->sent);
    free(r->title);
    free(r->not_kept);
    free(r);
}

/* --- the response object ---------------------------------------------------------------------- */

static const char *status_of(const struct choice *ch)
{
    bool is_cut = strcmp(ch->result.finish, "stop") != 0;
    return is_cut ? "incomplete" : "completed";
}

/* Returns the status of part i: only the last one can be cut off. */
static const char *part_status(const struct choice *ch, int i)
{
    struct hcache_part next;
    return shape_part(ch, i + 1, &next) ? "completed" : status_of(ch);
}

static struct json *usage_json(const struct generation *g)
{
    const struct hcache_result *r = &g->choice[0].result;
    struct json *o = json_make(
        "{input_tokens: %d, input_tokens_details: {cached_tokens: %d}, output_tokens: %d, "
        "output_tokens_details: {reasoning_tokens: %d}, total_tokens: %d}",
        r->prompt_tokens, r->cached_tokens, r->n_tokens,
        shape_thought_tokens(&g->choice[0]), r->prompt_tokens + r->n_tokens);
    shape_context(o, g);
    shape_adapted(o, g);
    return o;
}

/* Finds a tool by its name, and returns whether it is a custom tool. `in` is the namespace of this
 * list, or NULL. If the tool is found, *space is its namespace, or NULL. */
static bool find_tool(const struct json *tools, const char *name, const char *in,
                      const char **space)
{
    for (size_t i = 0; i < json_count(tools); i++) {
        const struct json *tool = json_at(tools, i);
        const char *type = json_string_of(json_member(tool, "type"), NULL);
        const char *own = json_string_of(json_member(tool, "name"), NULL);
        if (type == NULL || own == NULL)
            continue;
        if (strcmp(type, "namespace") == 0) {
            bool custom = find_tool(json_member(tool, "tools"), name, own, space);
            if (custom || *space != NULL)
                return custom;
        } else if (strcmp(own, name) == 0) {
            *space = in;
            return strcmp(type, "custom") == 0;
        }
    }
    return false;
}

/* Returns the text for a custom tool: the parameter `input`, or all arguments if there is none. */
static struct json *custom_input(const struct hcache_part *p)
{
    struct json *v = NULL;
    (void)json_parse(&v, p->text, p->n, "arguments", NULL);
    const struct json *input = json_member(v, "input");
    struct json *out = json_kind(input) == JSON_KIND_STRING ? json_share(input)
                                                            : json_new_bytes(p->text, p->n);
    json_free(v);
    return out;
}

/* Makes the item of part i. is_whole: with its content. All ids derive from the message's name, so
 * they are the same every time. */
static struct json *item_of(const struct generation *g, int i, const struct hcache_part *p,
                            bool is_whole)
{
    const struct choice *ch = &g->choice[0];
    const struct response *r = g->own;
    const char *base = strchr(r->message_id, '_') + 1;
    const char *status = is_whole ? part_status(ch, i) : "in_progress";
    char call_id[32], id[NAME_BYTES + 24];
    if (p->kind != HCACHE_PART_CALL) {
        bool is_thought = p->kind == HCACHE_PART_THOUGHT;
        snprintf(id, sizeof id, "%s_%s_%d", is_thought ? "rs" : "msg", base, i);
        const char *text = is_whole ? p->text : NULL;
        return is_thought ? item_reasoning(id, status, text, p->n)
                          : item_message(i == 0 ? r->message_id : id, status, text, p->n);
    }
    const char *space = NULL;
    bool is_custom = find_tool(r->sent, p->name, NULL, &space);
    shape_id(ch, i, call_id);
    snprintf(id, sizeof id, "%s_%s_%d", is_custom ? "ctc" : "fc", base, i);
    struct json *call = json_make("{call_id: %s, name: %s}", call_id, p->name);
    if (space != NULL)
        json_put_string(call, "namespace", space);
    if (is_custom)
        json_put(call, "input", custom_input(p));
    else
        json_put_bytes(call, "arguments", p->text, p->n);
    status = is_whole ? "completed" : status;
    struct json *item = item_call(id, status, call, is_whole, is_custom);
    json_free(call);
    return item;
}

/* Returns the items of the answer. */
static struct json *output_items(const struct generation *g)
{
    const struct choice *ch = &g->choice[0];
    static const struct hcache_part nothing = {.kind = HCACHE_PART_TEXT, .text = ""};
    struct json *list = json_new_array();
    struct hcache_part p;
    for (int i = 0; shape_part(ch, i, &p); i++)
        json_push(list, item_of(g, i, &p, true));
    if (json_count(list) == 0)
        json_push(list, item_of(g, 0, &nothing, true));
    return list;
}

/* Returns the conversation to which the response belongs, or NULL. */
static struct json *conversation_of(const struct response *r)
{
    if (r->conversation[0] == 0 || r->has_branched || r->not_kept != NULL)
        return NULL;
    return json_make("{id: %s}", r->conversation);
}

/* Clients read the answer by the form that the response says it has. */
static struct json *text_format(const struct json *sent)
{
    struct json *text = json_make("{format: {type: 'text'}}");
    struct json_iter it = json_begin(sent);
    while (json_next(&it))
        if (json_kind(it.value) != JSON_KIND_NULL)
            json_put(text, it.key, json_share(it.value));
    return text;
}

/* Adds the fields of the request to o; absent fields get their defaults. */
static void put_request(struct json *o, const struct generation *g)
{
    const struct gen_params *p = &g->params;
    json_extend(o,
                "{instructions: %p, max_output_tokens: %p, parallel_tool_calls: %p, "
                "previous_response_id: %s, conversation: %p, store: %p}",
                json_share(p->instructions),
                p->max_tokens >= 0 ? json_new_int(p->max_tokens) : NULL,
                json_new_bool(!p->one_call), p->previous, conversation_of(g->own),
                json_new_bool(p->store));
    json_extend(o, "{temperature: %g, top_p: %g, tool_choice: %p, tools: %p, metadata: %p}",
                p->temperature, p->top_p,
                p->choice != NULL ? json_share(p->choice) : json_new_bytes("auto", 4),
                p->tools != NULL ? json_share(p->tools) : json_new_array(),
                p->metadata != NULL ? json_share(p->metadata) : json_new_object());
    json_extend(o, "{truncation: %s, background: false, text: %p}",
                request_truncates(p, &g->client.truncation) ? "auto" : "disabled",
                text_format(p->text));
}

/* Makes the response object without its output. is_done: every choice has its result. */
static struct json *response_head(const struct generation *g, bool is_done)
{
    const struct response *r = g->own;
    const struct choice *ch = &g->choice[0];
    const char *status = is_done ? status_of(ch) : "in_progress";
    bool is_cut = strcmp(status, "incomplete") == 0;
    bool is_long = is_done && strcmp(ch->result.finish, "length") == 0;
    struct json *o = json_make(
        "{id: %s, object: 'response', created_at: %ld, status: %s, model: %s, error: null, "
        "incomplete_details: %p}",
        r->id, g->created_s, status, g->client.model_name,
        is_cut
            ? json_make("{reason: %s}", is_long ? "max_output_tokens" : ch->result.finish)
            : NULL);
    put_request(o, g);
    json_extend(o, "{usage: %p}", is_done ? usage_json(g) : NULL);
    if (r->has_branched)
        json_put_string(o, "branched_from", r->conversation);
    if (r->not_kept != NULL)
        json_put_string(o, "not_kept", r->not_kept);
    if (is_done)
        json_put(o, "timings", shape_timings(g, ch));
    return o;
}

static struct json *response_json(struct generation *g, bool is_done)
{
    struct json *o = response_head(g, is_done);
    json_put(o, "output", is_done ? output_items(g) : json_new_array());
    return o;
}

static struct json *make_answer(struct generation *g)
{
    return response_json(g, true);
}

/* --- keeping a response ----------------------------------------------------------------------- */

/* Adds the response as a turn, unless the request does not want it. Also returns 0 if the disk did
 * not take it; r->not_kept then says why. */
static int keep_turn(struct generation *g, struct fault *f)
{
    struct response *r = g->own;
    const struct hcache_result *result = &g->choice[0].result;
    struct err err = {0};
    if (!g->params.store)
        return 0;
    struct turn *t = xcalloc(1, sizeof *t);
    struct json *items = output_items(g), *told = provenance_json(result, g->miss);
    draft_finish(&r->draft, g->client.h, result, g->salt, t);
    snprintf(t->name, sizeof t->name, "%s", r->id);
    t->created_s = clock_wall_s();
    t->is_visible = true;
    t->output = json_text(items, 0);
    t->restoration = json_text(told, 0);
    struct json *o = response_head(g, true);
    t->answer = json_text(o, 0);
    int rc = turn_add(call_of(g)->s->conversations, call_tenant(call_of(g)), t, r->title,
                      &r->has_branched, &err);
    turn_free(t);
    json_free(o);
    json_free(items);
    json_free(told);
    /* After a fault of the disk the answer is still sent, and says that it is not kept. */
    if (!err_is_of_disk(rc))
        return rc == 0 ? 0 : keep_fault(&err, f);
    log_warn("an answer was not kept: %s", err.msg);
    r->not_kept = xstrdup(err.msg);
    g->params.store = false;
    return 0;
}

/* --- events ----------------------------------------------------------------------------------- */

/* Writes an event: "event: TYPE" and the object. Frees o. */
static void write_event(struct response *r, const char *type, struct json *o,
                        struct textbuf *out)
{
    json_extend(o, "{type: %s, sequence_number: %ld}", type, r->sequence++);
    textbuf_addf(out, "event: %s\n", type);
    sse_json(out, o);
}

/* Adds to an event what llama-server adds. */
static void put_timings(struct json *o, const struct generation *g)
{
    if (g->params.timings_per_token)
        json_put(o, "timings", shape_timings(g, &g->choice[0]));
}

static void event_response(struct generation *g, const char *type, struct json *response,
                           struct textbuf *out)
{
    struct json *o = json_make("{response: %p}", response);
    put_timings(o, g);
    write_event(g->own, type, o, out);
}

static void write_begin(struct generation *g, struct textbuf *out)
{
    event_response(g, "response.created", response_json(g, false), out);
    event_response(g, "response.in_progress", response_json(g, false), out);
}

static void write_progress(struct generation *g, struct choice *ch, struct textbuf *out)
{
    struct json *o = json_make("{response: %p, prompt_progress: %p}",
                               response_json(g, false), shape_progress(g, ch));
    put_timings(o, g);
    write_event(g->own, "response.in_progress", o, out);
}

static void event_item(struct response *r, const char *type, int index, struct json *item,
                       struct textbuf *out)
{
    write_event(r, type, json_make("{output_index: %d, item: %p}", index, item), out);
}

/* The names of the events of a message or a thought. */
struct text_events {
    const char *delta, *done;
};

static const struct text_events *text_events(const struct json *item)
{
    static const struct text_events message = {"response.output_text.delta",
                                               "response.output_text.done"},
                                    thought = {"response.reasoning_text.delta",
                                               "response.reasoning_text.done"};
    return json_member(item, "role") != NULL ? &message : &thought;
}

static bool is_call(const struct json *item)
{
    return json_member(item, "call_id") != NULL;
}

/* Returns the member with what a call sends to its tool. */
static const char *call_key(const struct json *item)
{
    return json_member(item, "input") != NULL ? "input" : "arguments";
}

static const char *id_of(const struct json *item)
{
    return json_string_of(json_member(item, "id"), NULL);
}

static struct json *of_item(const struct response *r, const struct json *item)
{
    return json_make("{item_id: %s, output_index: %d}", id_of(item), r->n_open - 1);
}

static struct json *of_part(const struct response *r, const struct json *item)
{
    return json_make("{item_id: %s, output_index: %d, content_index: 0}", id_of(item),
                     r->n_open - 1);
}

static void open_item(struct generation *g, int i, const struct hcache_part *p,
                      struct textbuf *out)
{
    struct response *r = g->own;
    struct json *item = item_of(g, i, p, false);
    r->is_open = true;
    r->part = i;
    event_item(r, "response.output_item.added", r->n_open++, json_share(item), out);
    if (!is_call(item)) {
        struct json *o = of_part(r, item);
        bool is_text = p->kind == HCACHE_PART_TEXT;
        json_extend(o, "{part: %p}",
                    is_text ? item_text_part("", 0) : item_thought_part("", 0));
        write_event(r, "response.content_part.added", o, out);
    }
    json_free(item);
}

/* Writes the end of the open item, which is whole. */
static void close_item(struct generation *g, struct textbuf *out)
{
    struct response *r = g->own;
    struct hcache_part p = {.kind = HCACHE_PART_TEXT, .text = ""};
    (void)shape_part(&g->choice[0], r->part, &p);
    struct json *item = item_of(g, r->part, &p, true), *o;
    const struct json *part = json_at(json_member(item, "content"), 0);
    r->is_open = false;
    if (is_call(item)) {
        const char *key = call_key(item);
        o = of_item(r, item);
        json_put(o, "name", json_share(json_member(item, "name")));
        json_put(o, key, json_share(json_member(item, key)));
        write_event(r,
                    strcmp(key, "input") == 0 ? "response.custom_tool_call_input.done"
                                              : "response.function_call_arguments.done",
                    o, out);
    } else {
        o = of_part(r, item);
        json_put(o, "text", json_share(json_member(part, "text")));
        if (p.kind == HCACHE_PART_TEXT)
            json_put(o, "logprobs", json_new_array());
        write_event(r, text_events(item)->done, o, out);
        o = of_part(r, item);
        json_put(o, "part", json_share(part));
        write_event(r, "response.content_part.done", o, out);
    }
    event_item(r, "response.output_item.done", r->n_open - 1, item, out);
}

static void write_piece(struct generation *g, struct choice *ch, int i,
                        const struct hcache_part *p, struct textbuf *out)
{
    struct response *r = g->own;
    (void)ch;
    if (r->is_open && r->part != i)
        close_item(g, out);
    if (!r->is_open)
        open_item(g, i, p, out);
    struct json *item = item_of(g, i, p, false);
    struct json *o = is_call(item) ? of_item(r, item) : of_part(r, item);
    json_put_bytes(o, "delta", p->text, p->n);
    if (p->kind == HCACHE_PART_TEXT)
        json_put(o, "logprobs", json_new_array());
    put_timings(o, g);
    write_event(r,
                is_call(item) ? "response.function_call_arguments.delta"
                              : text_events(item)->delta,
                o, out);
    json_free(item);
}

static void write_end(struct generation *g, struct choice *ch, struct textbuf *out)
{
    static const struct hcache_part nothing = {.kind = HCACHE_PART_TEXT, .text = ""};
    struct response *r = g->own;
    (void)ch;
    if (r->n_open == 0)
        open_item(g, 0, &nothing, out);
    if (r->is_open)
        close_item(g, out);
}

static void close_stream(struct generation *g, struct textbuf *out)
{
    bool is_cut = strcmp(status_of(&g->choice[0]), "incomplete") == 0;
    event_response(g, is_cut ? "response.incomplete" : "response.completed",
                   response_json(g, true), out);
}

static void tell_fault(struct generation *g, const struct fault *f, struct textbuf *out)
{
    struct json *response = response_head(g, false);
    json_extend(response, "{status: 'failed', error: {code: %s, message: %s}, output: []}",
                f->code != NULL ? f->code : f->type, f->message);
    write_event(g->own, "response.failed", json_make("{response: %p}", response), out);
}

static const char *id_shown(const struct generation *g)
{
    return ((const struct response *)g->own)->id;
}

static const struct dialect responses = {.answer = make_answer,
                                         .id = id_shown,
                                         .begin = write_begin,
                                         .progress = write_progress,
                                         .piece = write_piece,
                                         .end = write_end,
                                         .close = close_stream,
                                         .fault = tell_fault,
                                         .keep = keep_turn,
                                         .keeps_unfinished = true,
                                         .drop = free_response};

/* --- a new response --------------------------------------------------------------------------- */

/* Checks whether the response can be continued, truncated and kept as the request says. */
static int check_continuation(struct call *c, const struct gen_params *p, struct fault *f)
{
    struct err err = {0};
    if (p->previous != NULL && p->conversation != NULL)
        return fault_set(f, 400, NULL, "conversation",
                         "'conversation' and 'previous_response_id' exclude each other");
    if (p->conversation != NULL && !p->store)
        return fault_set(f, 400, NULL, "store",
                         "'store' is false, but a conversation keeps its messages");
    if (prompts_check_truncation(p, call_model(c), &c->truncation, f) != 0)
        return -1;
    if (c->s->conversations == NULL &&
        (p->previous != NULL || p->conversation != NULL || p->store))
        return keep_none(f);
    if (p->store && turn_has_room(c->s->conversations, call_tenant(c), &err) != 0)
        return keep_fault(&err, f);
    return 0;
}

/* Takes the time to live, in seconds, from a conversation's metadata if the request has none. */
static void take_ttl(const struct conversation *v, struct gen_params *p)
{
    struct json *metadata = p->cache_ttl < 0 ? json_of_text(v->metadata) : NULL;
    const char *text = json_string_of(json_member(metadata, KEEP_TTL_NAME), NULL);
    if (text != NULL)
        (void)keep_ttl(text, &p->cache_ttl);
    json_free(metadata);
}

/* Finds the turn that the response continues. If the request names a conversation, also notes it in
 * r and takes its TTL. */
static int find_parent(struct call *c, struct gen_params *p, struct response *r,
                       int64_t *parent, struct fault *f)
{
    struct err err = {0};
    struct conversation v;
    struct turn *t = NULL;
    *parent = 0;
    if (p->previous != NULL) {
        if (turn_find(c->s->conversations, call_tenant(c), p->previous, &t, &err) != 0)
            return keep_fault(&err, f);
        *parent = t->row;
        turn_free(t);
    }
    if (p->conversation == NULL)
        return 0;
    const struct json *id = json_kind(p->conversation) == JSON_KIND_OBJECT
                                ? json_member(p->conversation, "id")
                                : p->conversation;
    const char *name = json_string_of(id, NULL);
    if (name == NULL)
        return fault_set(f, 400, NULL, "conversation",
                         "'conversation' must be an id, or an object with an id");
    if (conversation_find(c->s->conversations, call_tenant(c), name, &v, &err) != 0)
        return keep_fault(&err, f);
    *parent = v.head;
    take_ttl(&v, p);
    r->draft.conversation = v.row;
    snprintf(r->conversation, sizeof r->conversation, "%s", v.name);
    conversation_deinit(&v);
    return 0;
}

/* Returns the schema of a custom tool's arguments: a text, which must match `regex` (or NULL). The
 * text is the parameter `input`, which custom_input reads. */
static struct json *custom_parameters(const struct json *regex)
{
    struct json *text = json_make("{type: 'string'}");
    const char *pattern = json_string_of(regex, &(size_t){0});
    if (pattern != NULL) {
        char *whole = xasprintf("^(?:%s)$", pattern);
        json_put_string(text, "pattern", whole);
        free(whole);
    }
    return json_make("{type: 'object', properties: {input: %p}, required: ['input'], "
                     "additionalProperties: false}",
                     text);
}

/* Returns the regular expression that a custom tool's text must match, or NULL. Notes a grammar in
 * another syntax as ignored: it is not enforced. */
static const struct json *custom_regex(const struct json *tool, struct gen_params *p)
{
    const struct json *format = json_member(tool, "format");
    if (!json_string_is(json_member(format, "type"), "grammar"))
        return NULL;
    if (json_string_is(json_member(format, "syntax"), "regex"))
        return json_member(format, "definition");
    request_note_ignored(p, "tools.format");
    return NULL;
}

static void add_tool(const struct json *tool, bool is_custom, struct gen_params *p,
                     struct json *out)
{
    const struct json *regex = is_custom ? custom_regex(tool, p) : NULL;
    struct json *function = json_new_object();
    struct json_iter it = json_begin(tool);
    while (json_next(&it)) {
        bool own = strcmp(it.key, "type") == 0 ||
                   (is_custom && strcmp(it.key, "format") == 0);
        if (!own && json_kind(it.value) != JSON_KIND_NULL)
            json_put(function, it.key, json_share(it.value));
    }
    if (is_custom)
        json_put(function, "parameters", custom_parameters(regex));
    if (regex != NULL)
        json_put_bool(function, "strict", true);
    json_push(out, json_make("{type: 'function', function: %p}", function));
}

/* Converts tools to the chat API's form: {"type", "function": {...}}. A custom tool becomes a
 * function of one text, the tools of a namespace stand on their own, and tools that a server runs
 * are left out and noted. */
static int read_tools(const struct json *tools, struct gen_params *p, struct json *out,
                      struct fault *f)
{
    for (size_t i = 0; i < json_count(tools); i++) {
        const struct json *tool = json_at(tools, i), *inner = json_member(tool, "tools");
        const char *type = json_string_of(json_member(tool, "type"), NULL);
        bool has_name = json_string_of(json_member(tool, "name"), NULL) != NULL;
        bool is_custom = type != NULL && strcmp(type, "custom") == 0;
        if (type != NULL && strcmp(type, "namespace") == 0) {
            if (read_tools(inner, p, out, f) != 0)
                return -1;
        } else if (has_name && type != NULL &&
                   (is_custom || strcmp(type, "function") == 0)) {
            add_tool(tool, is_custom, p, out);
        } else if (request_server_tool(type) != NULL) {
            request_note_ignored(p, request_server_tool(type));
        } else {
            return fault_set(
                f, 400, "unsupported_value", "tools",
                "'tools' element %zu is not {\"type\": \"function\", "
                "\"name\": ...}: only functions, custom tools and namespaces are "
                "supported",
                i);
        }
    }
    return 0;
}

/* Reads the tools of the request and of its input. */
static int read_all_tools(struct gen_params *p, struct response *r, struct fault *f)
{
    struct json *late = json_new_array();
    r->sent = json_new_array();
    json_share_all(r->sent, p->tools);
    items_tools(r->draft.input, r->sent, late);
    int rc = read_tools(r->sent, p, r->tools, f);
    json_share_all(r->offered, r->tools);
    if (rc == 0)
        rc = read_tools(late, p, r->offered, f);
    json_share_all(r->sent, late);
    json_free(late);
    return rc;
}

static int make_draft(struct call *c, struct gen_params *p, struct response *r,
                      struct fault *f)
{
    struct err err = {0};
    int64_t parent = 0;
    char *salt = call_state_salt(c, p->cache_salt);
    r->tools = json_new_array();
    r->offered = json_new_array();
    p->offered = r->offered;
    int rc = check_continuation(c, p, f);
    if (rc == 0)
        rc = find_parent(c, p, r, &parent, f);
    if (rc == 0 && draft_continue(&r->draft, c->s->conversations, parent, &err) != 0)
        rc = keep_fault(&err, f);
    if (rc == 0)
        rc = items_read(p->prompt, "input", &r->draft.input, f);
    if (rc == 0)
        rc = read_all_tools(p, r, f);
    struct draft_opts o = {.instructions = p->instructions,
                           .tools = json_count(r->tools) > 0 ? r->tools : NULL,
                           .kwargs = p->kwargs,
                           .effort = p->effort,
                           .thinking = p->thinking,
                           .plain = c->s->o.plain_chat,
                           .parse_special = c->s->o.parse_special,
                           .truncates = request_truncates(p, &c->truncation),
                           .param = "input",
                           .dates = c->s->o.dates,
                           .salt = salt};
    if (rc == 0)
        rc = draft_render(&r->draft, call_model(c), &o, f);
    p->date = r->draft.date;
    free(salt);
    return rc;
}

void api_responses(struct call *c)
{
    struct gen_params p;
    struct fault f;
    const struct json *body = call_body(c, REQUEST_RESPONSE);
    if (body == NULL)
        return;
    struct response *r = xcalloc(1, sizeof *r);
    if (request_parse(body, REQUEST_RESPONSE, &p, &f) != 0 ||
        call_check_name(c, p.model, &f) != 0 || make_draft(c, &p, r, &f) != 0) {
        free_response(r);
        call_fault(c, &f);
        return;
    }
    request_note_prompt(&p, r->draft.text.text, r->draft.text.n);
    p.n_system = r->draft.n_system;
    p.turn = r->draft.n_path + 1;
    conversations_name_kept(c->s->conversations, "resp", r->id);
    conversations_name("msg", r->message_id);
    r->title = items_title(r->draft.input, KEEP_TITLE_BYTES);
    struct prompt_ids prompt = {.ids = r->draft.ids, .n = r->draft.n_ids};
    struct prompt_text text = r->draft.text;
    /* The generation owns the prompt's text and ids. It drops r before it frees text and ids. */
    r->draft.is_lent = true;
    call_generate(c, &responses, r, &p, &prompt, 1, &text, r->draft.what);
}

/* --- a kept response -------------------------------------------------------------------------- */

static int answer_response(struct call *c, const struct turn *t, struct fault *f)
{
    struct json *o = NULL;
    struct err err = {0};
    const char *stream = call_query(c, "stream");
    if (stream != NULL && strcmp(stream, "true") == 0)
        return fault_set(
            f, 400, "unsupported_parameter", "stream",
            "a stored response cannot be streamed again: ask for it without 'stream'");
    if (json_parse(&o, t->answer, strlen(t->answer), t->name, &err) != 0)
        return fault_set(f, 500, NULL, NULL, "%s", err.msg);
    json_extend(o, "{output: %p}", json_of_text(t->output));
    call_json(c, 200, o);
    return 0;
}

static int get_input_items(struct call *c, const struct turn *t, struct fault *f)
{
    struct json *items = json_of_text(t->input), *o = NULL;
    struct items_page page;
    int rc = keep_page(c, 20, &page, f);
    if (rc == 0 && items == NULL)
        rc = fault_set(f, 500, NULL, NULL, "the input of %s cannot be read", t->name);
    if (rc == 0)
        rc = items_list(items, &page, &o, f);
    if (rc == 0)
        call_json(c, 200, o);
    json_free(items);
    return rc;
}

static int get_restoration(struct call *c, const struct turn *t)
{
    struct json *o = json_of_text(t->restoration);
    o = o != NULL ? o : json_new_object();
    json_extend(o, "{id: %s, object: 'response.restoration'}", t->name);
    call_json(c, 200, o);
    return 0;
}

static int delete_response(struct call *c, const char *id, struct fault *f)
{
    struct err err = {0};
    struct erased gone;
    if (turn_delete(c->s->conversations, call_tenant(c), id, &gone, &err) != 0)
        return keep_fault(&err, f);
    call_json(c, 200, keep_deleted(c, id, "response", &gone));
    return 0;
}

/* rest: the path behind the id. */
static int answer_path(struct call *c, const struct turn *t, const char *rest,
                       struct fault *f)
{
    if (strcmp(c->route->method, "GET") == 0 && rest[0] == 0)
        return answer_response(c, t, f);
    if (strcmp(rest, "input_items") == 0)
        return get_input_items(c, t, f);
    if (strcmp(rest, "restoration") == 0)
        return get_restoration(c, t);
    if (rest[0] == 0)
        return delete_response(c, c->tail, f);
    return fault_set(
        f, 400, "unsupported_value", NULL,
        "only a response that is made in the background can be cancelled: close "
        "the connection instead");
}

void api_response(struct call *c)
{
    struct err err = {0};
    struct fault f;
    struct turn *t = NULL;
    const char *rest = keep_split(c->tail);
    int rc = c->s->conversations == NULL ? keep_none(&f) : 0;
    if (rc == 0 && turn_find(c->s->conversations, call_tenant(c), c->tail, &t, &err) != 0)
        rc = keep_fault(&err, &f);
    if (rc == 0)
        rc = answer_path(c, t, rest, &f);
    if (rc != 0)
        call_fault(c, &f);
    turn_free(t);
}
