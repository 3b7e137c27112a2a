/* api_ollama.c - Ollama's routes under /api: chats and texts over the one request, and what its
 * clients ask about the model.
 *
 * A body is read by the table of request.c, with `options` as an object of fields. The answer is a
 * line of JSON for each event, or one object. keep_alive 0 unloads one of several models; else
 * models stay while memory allows. Routes that fetch, copy or delete models do not exist. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/prompts.h"
#include "api/shape.h"
#include "base/clock.h"
#include "server/call.h"

static struct json *time_text(int64_t wall_s)
{
    struct tm t;
    time_t seconds = (time_t)wall_s;
    char text[32] = "";
    gmtime_r(&seconds, &t);
    return json_new_bytes(text, strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &t));
}

struct json *api_ollama_fault(const struct fault *f)
{
    return json_make("{error: %s}", f->message);
}

/* --- messages --------------------------------------------------------------------------------- */

/* State of a walk over messages: the calls of the last answer, and which of them have results. */
struct calls {
    struct json *list;
    uint64_t done;
    int turn;
};

/* Gives ids to calls, since Ollama's have none. */
static struct json *name_calls(const struct json *calls, int turn)
{
    struct json *list = json_new_array();
    for (size_t i = 0; i < json_count(calls); i++) {
        const struct json *call = json_at(calls, i);
        struct json *o = json_new_object();
        char id[32];
        snprintf(id, sizeof id, "call_%d_%zu", turn, i);
        if (json_member(call, "id") == NULL)
            json_put_string(o, "id", id);
        if (json_member(call, "type") == NULL)
            json_put_string(o, "type", "function");
        json_share_all(o, call);
        json_push(list, o);
    }
    return list;
}

static const struct json *function_name(const struct json *call)
{
    return json_member(json_member(call, "function"), "name");
}

/* Finds the call to which a result belongs, marks it as done and returns its id. It is the first
 * call without a result that has the name, or else the first without a result. Returns NULL if all
 * calls have results. */
static const struct json *call_of_result(struct calls *k, const char *name)
{
    size_t n = json_count(k->list), at = n;
    for (size_t i = 0; i < n && i < 64; i++) {
        const char *own = json_string_of(function_name(json_at(k->list, i)), NULL);
        bool is_named = name != NULL && own != NULL && strcmp(name, own) == 0;
        if ((k->done >> i & 1) == 0 && (at == n || is_named)) {
            at = i;
            if (is_named)
                break;
        }
    }
    if (at == n)
        return NULL;
    k->done |= (uint64_t)1 << at;
    return json_member(json_at(k->list, at), "id");
}

/* Converts a message to the chat API's form. NULL with *f: it has images. */
static struct json *read_message(const struct json *m, struct calls *k, struct fault *f)
{
    struct json *o = json_new_object();
    struct json_iter it = json_begin(m);
    const char *name = json_string_of(json_member(m, "tool_name"), NULL);
    const char *role = json_string_of(json_member(m, "role"), NULL);
    while (json_next(&it)) {
        if (strcmp(it.key, "tool_calls") == 0 && json_count(it.value) > 0) {
            json_free(k->list);
            *k = (struct calls){.list = name_calls(it.value, k->turn), .turn = k->turn + 1};
            json_put(o, it.key, json_share(k->list));
        } else if (strcmp(it.key, "images") == 0 && json_count(it.value) > 0) {
            json_free(o);
            fault_set(f, 400, "unsupported_value", "messages",
                      "'images' of a message are not supported, only text is");
            return NULL;
        } else if (strcmp(it.key, "images") != 0 && strcmp(it.key, "tool_name") != 0) {
            json_put(o, it.key, json_share(it.value));
        }
    }
    bool is_result = role != NULL && strcmp(role, "tool") == 0;
    const struct json *id = is_result && json_member(m, "tool_call_id") == NULL
                                ? call_of_result(k, name)
                                : NULL;
    if (id != NULL)
        json_put(o, "tool_call_id", json_share(id));
    if (name != NULL)
        json_put_string(o, "name", name);
    return o;
}

static int read_messages(const struct json *from, struct json *list, struct fault *f)
{
    struct calls k = {.list = NULL};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < json_count(from); i++) {
        struct json *m = read_message(json_at(from, i), &k, f);
        if (m == NULL)
            rc = -1;
        else
            json_push(list, m);
    }
    json_free(k.list);
    return rc;
}

static void add_message(struct json *list, const char *role, const struct json *content)
{
    json_push(list, json_make("{role: %s, content: %p}", role, json_share(content)));
}

/* --- the answer ------------------------------------------------------------------------------- */

extern const struct dialect ollama_chat, ollama_text;

static bool is_chat(const struct generation *g)
{
    return g->dialect == &ollama_chat;
}

static struct json *line_head(const char *model)
{
    return json_make("{model: %s, created_at: %p}", model, time_text(clock_wall_s()));
}

static int64_t ns_of(double ms)
{
    return (int64_t)(ms * 1e6);
}

/* Adds how the answer ended, and its counts and times. */
static void put_end(struct json *o, const struct generation *g, const struct choice *ch)
{
    const struct hcache_result *r = &ch->result;
    const struct hcache_timings *t = &r->timings;
    json_extend(o, "{done: true, done_reason: %s, total_duration: %ld, load_duration: 0}",
                strcmp(r->finish, "length") == 0 ? "length" : "stop",
                ns_of(t->ttft_ms + t->decode_ms));
    json_extend(o,
                "{prompt_eval_count: %d, prompt_eval_duration: %ld, eval_count: %d, "
                "eval_duration: %ld}",
                ch->n_prompt, ns_of(t->restore_ms + t->prefill_ms), r->n_tokens,
                ns_of(t->decode_ms));
    shape_adapted(o, g);
    shape_context(o, g);
    json_put(o, "timings", shape_timings(g, ch));
}

static struct json *tool_call(const struct choice *ch, int i, const struct hcache_part *p)
{
    char id[32];
    shape_id(ch, i, id);
    return json_make("{id: %s, function: {name: %s, arguments: %p}}", id, p->name,
                     json_new_raw(p->text, p->n));
}

/* Adds the text, the thought and the calls: to a new member `message` in a chat, else to the line o
 * itself. Leaves out an empty thought and an empty list of calls. Takes over the values. */
static void put_content(struct json *o, const struct generation *g, struct json *text,
                        struct json *thought, struct json *calls)
{
    struct json *to = is_chat(g) ? json_make("{role: 'assistant', content: %p}", text) : o;
    size_t n = 0;
    if (!is_chat(g))
        json_put(o, "response", text);
    if (json_string_of(thought, &n) != NULL && n > 0)
        json_put(to, "thinking", json_share(thought));
    if (json_count(calls) > 0)
        json_put(to, "tool_calls", json_share(calls));
    json_free(thought);
    json_free(calls);
    if (is_chat(g))
        json_put(o, "message", to);
}

static void put_logprobs(struct json *o, struct generation *g, struct choice *ch)
{
    if (g->params.logprobs)
        json_put(o, "logprobs", shape_logprobs(g, ch));
}

static struct json *make_answer(struct generation *g)
{
    struct choice *ch = &g->choice[0];
    struct json *o = line_head(g->client.model_name), *calls = json_new_array();
    struct hcache_part p;
    for (int i = 0; is_chat(g) && shape_part(ch, i, &p); i++)
        if (p.kind == HCACHE_PART_CALL)
            json_push(calls, tool_call(ch, i, &p));
    put_content(o, g, shape_texts(ch, HCACHE_PART_TEXT),
                shape_texts(ch, HCACHE_PART_THOUGHT), calls);
    put_logprobs(o, g, ch);
    put_end(o, g, ch);
    return o;
}

static void add_line(struct textbuf *out, struct json *v)
{
    json_append_line(v, out);
    textbuf_add(out, "\n", 1);
    json_free(v);
}

static void write_piece(struct generation *g, struct choice *ch, int i,
                        const struct hcache_part *p, struct textbuf *out)
{
    struct json *o = line_head(g->client.model_name), *calls = json_new_array();
    bool is_text = p->kind == HCACHE_PART_TEXT, is_call = p->kind == HCACHE_PART_CALL;
    if (is_call)
        json_push(calls, tool_call(ch, i, p));
    put_content(o, g, json_new_bytes(p->text, is_text ? p->n : 0),
                json_new_bytes(p->text, is_text || is_call ? 0 : p->n), calls);
    put_logprobs(o, g, ch);
    json_put_bool(o, "done", false);
    add_line(out, o);
}

static void write_end(struct generation *g, struct choice *ch, struct textbuf *out)
{
    struct json *o = line_head(g->client.model_name);
    put_content(o, g, json_new_bytes("", 0), NULL, NULL);
    put_end(o, g, ch);
    add_line(out, o);
}

static void tell_fault(struct generation *g, const struct fault *f, struct textbuf *out)
{
    (void)g;
    add_line(out, api_ollama_fault(f));
}

#define DIALECT                                                                            \
    {                                                                                      \
        .answer = make_answer, .piece = write_piece, .end = write_end,                     \
        .fault = tell_fault, .lines = true                                                 \
    }
const struct dialect ollama_chat = DIALECT, ollama_text = DIALECT;

/* --- chat and generate ------------------------------------------------------------------------ */

bool api_ollama_unloads(struct call *c, const struct json *body)
{
    const struct json *v = json_member(body, "keep_alive");
    const char *text = json_string_of(v, NULL);
    double seconds = 1;
    bool unloads = text != NULL ? strcmp(text, "0") == 0 || strcmp(text, "0s") == 0 ||
                                      strcmp(text, "0m") == 0
                                : json_real_of(v, &seconds) && seconds == 0;
    if (unloads)
        call_unload(c);
    return unloads;
}

/* Answers a request without content, with which clients load and unload a model. */
static void loaded(struct call *c, bool chat, const struct json *body)
{
    struct json *o = line_head(call_model_name(c));
    bool unloads = api_ollama_unloads(c, body);
    if (chat)
        json_extend(o, "{message: {role: 'assistant', content: ''}}");
    else
        json_extend(o, "{response: ''}");
    json_extend(o, "{done: true, done_reason: %s}", unloads ? "unload" : "load");
    call_json(c, 200, o);
}

/* Reads the request for the content, whose messages in the chat API's form go to `list`. */
static int read_content(struct call *c, bool chat, struct gen_params *p, struct json *list,
                        struct fault *f)
{
    struct hcache_model_info info;
    size_t n_system = 0;
    hcache_model_info(call_model(c), &info);
    if (p->thinking == 1 && !info.has_thoughts)
        return fault_field(f, "think", "cannot be true: this model does not think");
    if (chat)
        return read_messages(p->messages, list, f);
    /* A model without a template continues texts. */
    bool is_raw = p->raw || (!info.has_chat_template && !c->s->o.plain_chat);
    (void)json_string_of(p->system, &n_system);
    if (is_raw && n_system > 0)
        return fault_field(f, "system", "needs a chat template, and no 'raw'");
    if (is_raw) {
        p->kind = REQUEST_COMPLETION;
        p->fills = true;
        return 0;
    }
    if (n_system > 0)
        add_message(list, "system", p->system);
    add_message(list, "user", p->prompt);
    return 0;
}

/* Answers /api/chat, or /api/generate without `chat`. Without content it only loads the model. */
static void start(struct call *c, bool chat)
{
    struct gen_params p;
    struct prompts ps = {0};
    struct fault f;
    const struct json *body = call_body(c, REQUEST_OLLAMA);
    if (body == NULL)
        return;
    struct client client = call_client(c);
    struct json *list = json_new_array();
    const struct json *messages = json_member(body, "messages");
    size_t n = json_count(messages);
    if (!chat)
        (void)json_string_of(json_member(body, "prompt"), &n);
    int rc = request_parse(body, REQUEST_CHAT | REQUEST_OLLAMA, &p, &f);
    if (rc == 0 && json_kind(messages) != JSON_KIND_NULL &&
        json_kind(messages) != JSON_KIND_ARRAY)
        rc = fault_field(&f, "messages", "must be a list of messages");
    if (rc == 0)
        rc = client_check_model(&client, p.model, &f);
    if (rc == 0 && n == 0) {
        json_free(list);
        loaded(c, chat, body);
        return;
    }
    if (rc == 0)
        rc = read_content(c, chat, &p, list, &f);
    if (rc == 0) {
        p.messages = list;
        rc = prompts_read(&client, &p, NULL, &ps, &f);
        p.messages = NULL;
    }
    json_free(list);
    if (rc != 0) {
        prompts_deinit(&ps);
        call_fault(c, &f);
        return;
    }
    (void)api_ollama_unloads(c, body);
    call_generate(c, chat ? &ollama_chat : &ollama_text, NULL, &p, ps.p, ps.n,
                  p.kind == REQUEST_CHAT ? &ps.text : NULL, ps.what);
}

void api_ollama_chat(struct call *c)
{
    start(c, true);
}

void api_ollama_generate(struct call *c)
{
    start(c, false);
}

/* --- the model -------------------------------------------------------------------------------- */

void api_ollama_version(struct call *c)
{
    call_json(c, 200, json_make("{version: %s}", HCACHE_VERSION));
}

static struct json *details_json(const struct hcache_model_info *info)
{
    double n = (double)info->n_params;
    char size[32]; /* "135M" or "7.6B" */
    if (n >= 1e9)
        snprintf(size, sizeof size, "%.1fB", n / 1e9);
    else
        snprintf(size, sizeof size, "%.2fM", n / 1e6);
    return json_make("{parent_model: '', format: %s, family: %s, families: [%s], "
                     "parameter_size: %s, quantization_level: %s}",
                     info->format, info->family, info->family, size, info->held);
}

/* Lists the models; of those that run, also how long they stay. */
static void list_models(struct call *c, bool running)
{
    struct json *list = json_new_array();
    for (int i = 0; i < call_n_listed(c); i++) {
        struct listed l = call_listed(c, i);
        if (running && !l.is_loaded)
            continue;
        struct json *m = json_make(
            "{name: %s, model: %s, size: %lu, digest: %s, details: %p}", l.name, l.name,
            l.bytes, l.info.fingerprint,
            l.is_known ? details_json(&l.info) : json_new_object());
        if (running)
            json_extend(m,
                        "{expires_at: '9999-12-31T23:59:59Z', size_vram: 0, "
                        "context_length: %d}",
                        l.info.max_context);
        else
            json_extend(m, "{modified_at: %p}", time_text(c->s->created_s));
        json_push(list, m);
    }
    call_json(c, 200, json_make("{models: %p}", list));
}

void api_ollama_tags(struct call *c)
{
    list_models(c, false);
}

void api_ollama_ps(struct call *c)
{
    list_models(c, true);
}

static struct json *model_info(const struct hcache_model_info *info)
{
    const struct {
        const char *name;
        int64_t value;
    } counts[] = {{"context_length", info->max_context},
                  {"embedding_length", info->n_embedding},
                  {"block_count", info->n_layers},
                  {"vocab_size", info->vocab_size}};
    struct json *o = json_make("{general.architecture: %s, general.parameter_count: %ld}",
                               info->family, info->n_params);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        char key[80];
        snprintf(key, sizeof key, "%s.%s", info->family, counts[i].name);
        json_put_int(o, key, counts[i].value);
    }
    return o;
}

void api_ollama_show(struct call *c)
{
    static const char *const names[] = {"model",    "name",    "verbose", "system",
                                        "template", "options", NULL};
    const struct json *body = call_body(c, 0);
    struct hcache_model_info info;
    struct fault f;
    if (body == NULL)
        return;
    const char *name = json_string_of(json_member(body, "name"), NULL);
    if (call_check_members(c, body, names, &f) != 0 || call_check_name(c, name, &f) != 0) {
        call_fault(c, &f);
        return;
    }
    hcache_model_info(call_model(c), &info);
    struct json *can = json_new_array();
    bool pools = strcmp(info.pooling, "last") == 0 || strcmp(info.pooling, "mean") == 0 ||
                 strcmp(info.pooling, "cls") == 0;
    json_push_string(can, pools ? "embedding" : "completion");
    if (info.has_tools)
        json_push_string(can, "tools");
    if (info.has_thoughts)
        json_push_string(can, "thinking");
    struct json *o = json_make("{modelfile: '', parameters: '', template: %s, details: %p, "
                               "model_info: %p, capabilities: %p, modified_at: %p}",
                               info.chat_template != NULL ? info.chat_template : "",
                               details_json(&info), model_info(&info), can,
                               time_text(c->s->created_s));
    call_json(c, 200, o);
}
