/* api_misc.c - the table of routes, and the small routes: models, tokens, health, the API's
 * description. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "server/keep.h"
#include "api/prompt.h"

enum { MAX_TEXT_BYTES = 1 << 20 };

/* The route needs the model; it also waits for the disk, or has text; the route needs no key. */
#define MODEL .needs_model = true
#define DISK  .needs_model = true, .waits = true
#define NAMED .needs_model = true, .names_model = true
#define STATE NAMED, .waits = true
#define TEXT  NAMED, .has_text = true
#define OPEN  .is_public = true

/* clang-format off */
const struct route routes[] = {
    {"/v1/chat/completions", "POST", api_chat, TEXT},
    {"/v1/completions", "POST", api_completions, TEXT},
    {"/v1/responses", "POST", api_responses, TEXT},
    {"/v1/responses/{id}", "GET", api_response, DISK},
    {"/v1/responses/{id}", "DELETE", api_response, DISK},
    {"/v1/responses/{id}/input_items", "GET", api_response, DISK},
    {"/v1/responses/{id}/restoration", "GET", api_response, DISK},
    {"/v1/responses/{id}/cancel", "POST", api_response, DISK},
    {"/v1/conversations", "GET", api_conversations, DISK},
    {"/v1/conversations", "POST", api_conversations, DISK},
    {"/v1/conversations/{id}", "GET", api_conversation, DISK},
    {"/v1/conversations/{id}", "POST", api_conversation, DISK},
    {"/v1/conversations/{id}", "DELETE", api_conversation, DISK},
    {"/v1/conversations/{id}/items", "GET", api_conversation, DISK},
    {"/v1/conversations/{id}/items", "POST", api_conversation, DISK},
    {"/v1/conversations/{id}/items/{item_id}", "GET", api_conversation, DISK},
    {"/v1/conversations/{id}/items/{item_id}", "DELETE", api_conversation, DISK},
    {"/v1/conversations/{id}/branch", "POST", api_conversation, DISK},
    {"/v1/conversations/{id}/branches", "GET", api_conversation, DISK},
    {"/v1/files", "GET", api_files, DISK},
    {"/v1/files", "POST", api_files, DISK},
    {"/v1/files/{id}", "GET", api_file, DISK},
    {"/v1/files/{id}", "DELETE", api_file, DISK},
    {"/v1/files/{id}/content", "GET", api_file, DISK},
    {"/v1/batches", "GET", api_batches, DISK},
    {"/v1/batches", "POST", api_batches, DISK},
    {"/v1/batches/{id}", "GET", api_batch, DISK},
    {"/v1/batches/{id}/cancel", "POST", api_batch, DISK},
    {"/v1/cache/stats", "GET", api_cache_stats, DISK},
    {"/v1/cache/lookup", "POST", api_cache_lookup, STATE},
    {"/v1/cache/prefetch", "POST", api_cache_prefetch, TEXT},
    {"/v1/cache/pin", "POST", api_cache_pin, STATE},
    {"/v1/cache/evict", "POST", api_cache_evict, STATE},
    {"/v1/cache/clear", "POST", api_cache_clear, DISK},
    {"/v1/cache/flush", "POST", api_cache_flush, DISK},
    {"/v1/cache/quota", "POST", api_cache_quota, DISK},
    {"/v1/requests", "GET", api_requests, MODEL},
    {"/v1/requests/{id}", "GET", api_request, MODEL},
    {"/v1/embeddings", "POST", api_embeddings, TEXT},
    {"/v1/rerank", "POST", api_rerank, TEXT},
    {"/v1/reranking", "POST", api_rerank, TEXT},
    {"/v1/messages", "POST", api_messages, TEXT},
    {"/v1/messages/count_tokens", "POST", api_count_tokens, TEXT},
    {"/v1/chat/completions/input_tokens", "POST", api_llama_count, TEXT},
    {"/completion", "POST", api_llama_completion, TEXT},
    {"/completions", "POST", api_llama_completion, TEXT},
    {"/infill", "POST", api_llama_infill, TEXT},
    {"/embedding", "POST", api_llama_embedding, TEXT},
    {"/apply-template", "POST", api_llama_template, TEXT},
    {"/props", "GET", api_llama_props, NAMED},
    {"/slots", "GET", api_llama_slots, NAMED},
    {"/api/chat", "POST", api_ollama_chat, TEXT},
    {"/api/generate", "POST", api_ollama_generate, TEXT},
    {"/api/embed", "POST", api_ollama_embed, TEXT},
    {"/api/embeddings", "POST", api_ollama_embeddings, TEXT},
    {"/api/version", "GET", api_ollama_version, .is_public = false},
    {"/api/tags", "GET", api_ollama_tags, MODEL},
    {"/api/ps", "GET", api_ollama_ps, MODEL},
    {"/api/show", "POST", api_ollama_show, NAMED},
    {"/v1/models", "GET", api_models, MODEL},
    {"/v1/models/{*model}", "GET", api_model, MODEL},
    {"/tokenize", "POST", api_tokenize, TEXT},
    {"/detokenize", "POST", api_detokenize, TEXT},
    {"/health", "GET", api_health, OPEN},
    {"/metrics", "GET", api_metrics, .is_public = false},
    {"/openapi.json", "GET", api_openapi, .is_public = false},
    {"/pdf-text", "POST", api_pdf, .has_text = true},
    {"/", "GET", api_page, OPEN},
    {"/page.css", "GET", api_page, OPEN},
    {"/api.js", "GET", api_page, OPEN},
    {"/markdown.js", "GET", api_page, OPEN},
    {"/highlight.js", "GET", api_page, OPEN},
    {"/katex.js", "GET", api_page, OPEN},
    {"/lanes.js", "GET", api_page, OPEN},
    {"/files.js", "GET", api_page, OPEN},
    {"/talk.js", "GET", api_page, OPEN},
    {"/page.js", "GET", api_page, OPEN},
    {0},
};
/* clang-format on */

int call_check_name(struct call *c, const char *name, struct fault *f)
{
    struct client client = call_client(c);
    return client_check_model(&client, name, f);
}

int call_check_members(struct call *c, const struct json *body, const char *const *names,
                       struct fault *f)
{
    struct err err = {0};
    const char *model = NULL;
    if (request_known(body, names, f) != 0)
        return -1;
    if (json_opt_string(body, "model", &model, &err) != 0)
        return fault_set(f, 400, NULL, "model", "%s", err.msg);
    return call_check_name(c, model, f);
}

/* --- the last requests ------------------------------------------------------------------------ */

void api_requests(struct call *c)
{
    struct items_page page;
    struct fault f;
    int rc = keep_page(c, 20, &page, &f);
    if (rc == 0 && (page.after != NULL || page.oldest_first))
        rc = fault_set(&f, 400, NULL, page.after != NULL ? "after" : "order",
                       "the list is that of the newest requests; it takes 'limit' alone");
    if (rc != 0) {
        call_fault(c, &f);
        return;
    }
    call_json(c, 200,
              json_make("{object: 'list', data: %p}",
                        recent_list(c->s->recent, call_tenant(c), page.limit)));
}

void api_request(struct call *c)
{
    struct json *o = recent_find(c->s->recent, call_tenant(c), c->tail);
    struct fault f;
    if (o != NULL) {
        call_json(c, 200, o);
        return;
    }
    fault_set(&f, 404, "not_found", NULL,
              "there is no request '%.80s' among the newest ones; the server forgets them "
              "when it ends",
              c->tail);
    call_fault(c, &f);
}

/* --- models ----------------------------------------------------------------------------------- */

static struct json *abilities_of(const struct hcache_model_info *info)
{
    struct json *o = json_make("{tools: %p}", json_new_bool(info->has_tools));
    if (info->has_tools)
        json_put_string(o, "tool_prompt", info->declares_tools ? "generic" : "template");
    json_put_bool(o, "reasoning", info->has_thoughts);
    json_put_bool(o, "structured_output", info->has_tokenizer);
    return o;
}

/* Describes a model. Of several models, one that was never loaded has a name and nothing else. */
static struct json *model_object(struct call *c, const struct listed *l)
{
    struct json *o = json_make(
        "{id: %s, object: 'model', created: %ld, owned_by: 'hcache'}", l->name,
        c->s->created_s);
    if (l->is_known) {
        json_put_int(o, "max_model_len", l->info.max_context);
        json_put(o, "abilities", abilities_of(&l->info));
    }
    if (c->s->models != NULL)
        json_put_string(o, "state", l->what);
    json_put_string(o, "conversations",
                    conversations_kept_in(atomic_load(&c->s->conversations)));
    return o;
}

void api_models(struct call *c)
{
    struct json *list = json_new_array();
    for (int i = 0; i < call_n_listed(c); i++) {
        struct listed l = call_listed(c, i);
        json_push(list, model_object(c, &l));
    }
    call_json(c, 200, json_make("{object: 'list', data: %p}", list));
}

void api_model(struct call *c)
{
    struct fault f;
    int i = call_find_model(c, c->tail, &f);
    if (i < 0) {
        call_fault(c, &f);
        return;
    }
    struct listed l = call_listed(c, i);
    if (c->s->models == NULL)
        l.name = c->tail;
    call_json(c, 200, model_object(c, &l));
}

/* --- tokens ----------------------------------------------------------------------------------- */

static int read_flag(const struct json *body, const char *name, bool *io, struct fault *f)
{
    struct err err = {0};
    return json_opt_bool(body, name, io, &err) == 0
               ? 0
               : fault_set(f, 400, NULL, name, "%s", err.msg);
}

/* Adds a token's text: a string, or the list of its bytes if they are no characters. */
static bool add_piece(struct call *c, int32_t id, struct textbuf *out)
{
    size_t n = 0;
    const char *bytes = hcache_token_bytes(call_model(c), id, &n);
    struct json *piece = json_new_array();
    bool is_text = bytes != NULL && utf8_check(bytes, n) == n;
    for (size_t i = 0; bytes != NULL && !is_text && i < n; i++)
        json_push_int(piece, (unsigned char)bytes[i]);
    if (is_text) {
        json_free(piece);
        piece = json_new_bytes(bytes, n);
    }
    char *text = json_text(piece, 0);
    bool has_room = textbuf_try_add(out, ",\"piece\":", 9) &&
                    textbuf_try_add(out, text, strlen(text)) &&
                    textbuf_try_add(out, "}", 1);
    free(text);
    json_free(piece);
    return has_room;
}

/* Answers with a list of ids. It is written as text at once: a JSON value for each of a million ids
 * would take ten times the memory. */
static void answer_tokens(struct call *c, const int32_t *ids, int n, bool pieces)
{
    struct hcache_model_info info;
    struct textbuf out = {0};
    struct fault f;
    char text[64];
    hcache_model_info(call_model(c), &info);
    int len = snprintf(text, sizeof text, "{\"count\":%d,\"max_model_len\":%d,\"tokens\":[",
                       n, info.max_context);
    bool has_room = textbuf_try_add(&out, text, (size_t)len);
    for (int i = 0; i < n && has_room; i++) {
        len = snprintf(text, sizeof text, "%s%s%d", i > 0 ? "," : "",
                       pieces ? "{\"id\":" : "", (int)ids[i]);
        has_room = textbuf_try_add(&out, text, (size_t)len) &&
                   (!pieces || add_piece(c, ids[i], &out));
    }
    if (has_room && textbuf_try_add(&out, "]}", 2)) {
        call_text(c, 200, "application/json", "");
        textbuf_free(&c->out);
        c->out = out;
        return;
    }
    textbuf_free(&out);
    fault_refuse(&f, -ENOMEM, NULL, "there is no memory for an answer of %d tokens", n);
    call_fault(c, &f);
}

/* Refuses texts that are far longer than a prompt can be. */
static int check_text(const struct hcache *h, const char *text, size_t n, struct fault *f)
{
    return n <= MAX_TEXT_BYTES ? 0 : prompt_fits(h, false, text, n, "content", f);
}

/* llama-server's clients name the text "content", and ask for the tokens that a prompt begins with
 * (add_special); vLLM's name it "prompt", and get them by default. */
void api_tokenize(struct call *c)
{
    static const char *const names[] = {
        "content",       "prompt",      "model", "add_special", "add_special_tokens",
        "parse_special", "with_pieces", NULL};
    const struct json *body = call_body(c, 0);
    struct hcache_err err = {0};
    struct fault f;
    bool add, parse = true, pieces = false;
    int32_t *ids = NULL;
    int n_ids = 0;
    size_t n = 0;
    if (body == NULL)
        return;
    int rc = call_check_members(c, body, names, &f);
    const char *text = json_string_of(json_member(body, "content"), &n);
    add = text == NULL;
    if (rc == 0)
        rc = read_flag(body, "add_special", &add, &f);
    if (rc == 0)
        rc = read_flag(body, "add_special_tokens", &add, &f);
    if (rc == 0)
        rc = read_flag(body, "parse_special", &parse, &f);
    if (rc == 0)
        rc = read_flag(body, "with_pieces", &pieces, &f);
    if (text == NULL)
        text = json_string_of(json_member(body, "prompt"), &n);
    if (rc == 0 && text == NULL)
        rc = fault_set(&f, 400, NULL, "content", "'content' (or 'prompt') must be a text");
    if (rc == 0)
        rc = check_text(call_model(c), text, n, &f);
    unsigned flags = (add ? HCACHE_ADD_SPECIAL : 0u) | (parse ? HCACHE_PARSE_SPECIAL : 0u);
    if (rc == 0 && hcache_encode(call_model(c), text, n, flags, &ids, &n_ids, &err) != 0)
        rc = fault_refuse(&f, err.code, "content", "%s", err.msg);
    if (rc == 0)
        answer_tokens(c, ids, n_ids, pieces);
    else
        call_fault(c, &f);
    hcache_free(ids);
}

/* A few bytes of ids may stand for a long text, so the text may have at most this many times the
 * bytes of the body. */
enum { MOST_GROWTH = 8 };

static int check_growth(struct call *c, const int32_t *ids, int n_ids, struct fault *f)
{
    size_t bytes = 0, n, most = MAX_TEXT_BYTES + MOST_GROWTH * (size_t)n_ids * sizeof *ids;
    for (int i = 0; i < n_ids && bytes <= most; i++)
        bytes += hcache_token_bytes(call_model(c), ids[i], &n) != NULL ? n : 0;
    if (bytes <= most)
        return 0;
    return fault_set(f, 400, "text_too_long", "tokens",
                     "the text of %d tokens would have more than %zu bytes; ask for fewer "
                     "tokens at once",
                     n_ids, most);
}

void api_detokenize(struct call *c)
{
    static const char *const names[] = {"tokens", "model", NULL};
    const struct json *body = call_body(c, 0), *list;
    struct hcache_err err = {0};
    struct fault f;
    int32_t *ids = NULL;
    char *text = NULL;
    size_t n = 0;
    int n_ids = 0;
    if (body == NULL)
        return;
    int rc = call_check_members(c, body, names, &f);
    list = json_member(body, "tokens");
    if (rc == 0 && json_kind(list) != JSON_KIND_ARRAY)
        rc = fault_set(&f, 400, NULL, "tokens", "'tokens' must be a list of token ids");
    if (rc == 0)
        rc = request_ids(list, "tokens", &ids, &n_ids, &f);
    if (rc == 0)
        rc = check_growth(c, ids, n_ids, &f);
    if (rc == 0 && hcache_decode(call_model(c), ids, n_ids, &text, &n, &err) != 0)
        rc = fault_refuse(&f, err.code, "tokens", "%s", err.msg);
    /* Memory for the answer: the text is in memory twice as a value, and once as JSON, in which a
     * control character takes six bytes and the buffer grows by doubling. */
    if (rc == 0 && mem_pledge(16 * n + (64 << 10), NULL) != 0)
        rc = fault_refuse(&f, -ENOMEM, NULL, "there is no memory for a text of %zu bytes",
                          n);
    if (rc == 0) {
        call_json(c, 200,
                  json_make("{content: %p, prompt: %p}", json_new_bytes(text, n),
                            json_new_bytes(text, n)));
    } else {
        call_fault(c, &f);
    }
    free(ids);
    hcache_free(text);
}

/* --- health and the API ----------------------------------------------------------------------- */

/* Adds whether state is being saved, if a store was asked for. The reason may name paths, so
 * only /v1/cache/stats tells it. */
static void put_saving(struct json *o, struct call *c)
{
    struct hcache_cache_stats k;
    hcache_cache_stats(call_model(c), NULL, &k);
    if (k.tier != NULL || k.saving_fault != 0)
        json_put_bool(o, "saves", k.saving_fault == 0);
}

void api_health(struct call *c)
{
    const char *state = atomic_load(&c->s->h) == NULL  ? "loading"
                        : atomic_load(&c->s->draining) ? "stopping"
                                                       : "ok";
    bool ok = strcmp(state, "ok") == 0;
    struct json *o = json_make("{status: %s}", state);
    if (server_n_early(c->s) > 0)
        json_put_int(o, "waiting", server_n_early(c->s));
    if (ok)
        put_saving(o, c);
    if (!ok)
        c->retry_after_s = 1;
    call_json(c, ok ? 200 : 503, o);
}

static struct json *body_schema(const struct route *r)
{
    unsigned kind = r->answer == api_chat               ? REQUEST_CHAT
                    : r->answer == api_completions      ? REQUEST_COMPLETION
                    : r->answer == api_responses        ? REQUEST_RESPONSE
                    : r->answer == api_messages         ? REQUEST_MESSAGE
                    : r->answer == api_count_tokens     ? REQUEST_COUNT
                    : r->answer == api_llama_completion ? REQUEST_COMPLETION | REQUEST_LLAMA
                    : r->answer == api_llama_infill
                        ? REQUEST_COMPLETION | REQUEST_LLAMA | REQUEST_INFILL
                    : r->answer == api_llama_count || r->answer == api_llama_template
                        ? REQUEST_CHAT
                    : r->answer == api_ollama_chat || r->answer == api_ollama_generate
                        ? REQUEST_OLLAMA
                        : 0;
    if (kind == 0)
        return json_make("{type: 'object'}");
    return json_make("{type: 'object', additionalProperties: false, properties: %p}",
                     request_schema(kind));
}

static struct json *operation(const struct route *r)
{
    struct json *op = json_new_object();
    if (strcmp(r->method, "POST") == 0) {
        struct json *content = json_new_object();
        json_put(content,
                 r->answer == api_files ? "multipart/form-data"
                 : r->answer == api_pdf ? "application/pdf"
                                        : "application/json",
                 json_make("{schema: %p}", body_schema(r)));
        json_extend(op, "{requestBody: {required: true, content: %p}}", content);
    }
    json_extend(op, "{responses: {200: {description: 'done'}}}");
    return op;
}

/* Lists the parameters of a route's path. NULL: it has none. */
static struct json *parameters(const char *path)
{
    struct json *list = NULL;
    while ((path = strchr(path, '{')) != NULL) {
        path += 1 + (path[1] == '*');
        size_t n = strcspn(path, "}");
        list = list != NULL ? list : json_new_array();
        json_push(list, json_make("{name: %p, in: 'path', required: true, "
                                  "schema: {type: 'string'}}",
                                  json_new_bytes(path, n)));
    }
    return list;
}

static const char *verb_of(const struct route *r)
{
    return strcmp(r->method, "GET") == 0 ? "get" : r->method[0] == 'D' ? "delete" : "post";
}

/* Adds the description of a path, without the star of "{*name}". All methods of a path are
 * neighbours in the table of routes. */
static void put_path(struct json *paths, const struct route *r)
{
    struct json *item = json_new_object(), *list;
    char *path = xstrdup(r->path), *star = strchr(path, '*');
    if (star != NULL)
        memmove(star, star + 1, strlen(star));
    for (const struct route *m = r; m->path != NULL && strcmp(m->path, r->path) == 0; m++) {
        struct json *op = operation(m);
        if ((list = parameters(m->path)) != NULL)
            json_put(op, "parameters", list);
        json_put(item, verb_of(m), op);
    }
    json_put(paths, path, item);
    free(path);
}

void api_openapi(struct call *c)
{
    struct json *paths = json_new_object();
    for (const struct route *r = routes; r->path != NULL; r++) {
        if (r == routes || strcmp(r->path, r[-1].path) != 0)
            put_path(paths, r);
    }
    call_json(
        c, 200,
        json_make("{openapi: '3.0.3', info: {title: 'hcache', version: %s}, paths: %p}",
                  HCACHE_VERSION, paths));
}
