/* api_llama.c - llama-server's routes: its own form of a completion, and small questions about the
 * model.
 *
 * A body is read by the table of request.c, where what changes an answer and is not done is refused
 * by name. /infill, and `suffix` of a completion, need a model with tokens for the middle of a
 * text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/prompts.h"
#include "api/shape.h"
#include "server/auth.h"
#include "server/call.h"
#include "server/tenants.h"

/* --- the answer ------------------------------------------------------------------------------- */

/* Adds the token that ends an answer to the list of biases, as llama-server shows ignore_eos. */
static void put_ignored(const struct hcache *h, struct json *list)
{
    struct hcache_model_info info;
    int32_t *ids = NULL;
    int n = 0;
    hcache_model_info(h, &info);
    if (info.eos != NULL &&
        hcache_encode(h, info.eos, strlen(info.eos), HCACHE_PARSE_SPECIAL, &ids, &n,
                      NULL) == 0 &&
        n == 1) {
        struct json *one = json_new_object();
        json_put_int(one, "token", ids[0]);
        json_put_null(one, "bias"); /* minus infinity */
        json_push(list, one);
    }
    hcache_free(ids);
}

/* Makes generation_settings: the sampling fields as they were applied. */
static struct json *settings(const struct generation *g)
{
    const struct gen_params *p = &g->params;
    struct json *o = json_new_object(), *stop = json_new_array(), *list = json_new_array();
    struct request_shaping s;
    struct fault unused;
    (void)request_shaping(p, hcache_encode, g->client.h, &s, &unused);
    for (int i = 0; i < s.shaping.n_bias; i++) {
        struct json *one = json_new_object();
        json_put_int(one, "token", s.bias[i].id);
        json_put_real(one, "bias", (double)s.bias[i].bias);
        json_push(list, one);
    }
    if (p->ignore_eos)
        put_ignored(g->client.h, list);
    for (int i = 0; i < p->n_stop; i++)
        json_push_string(stop, p->stop[i]);
    json_put_int(o, "n_predict", p->max_tokens);
    json_put_int(o, "max_tokens", p->max_tokens);
    json_put_int(o, "seed", (int64_t)g->seed);
    json_put_real(o, "temperature", p->temperature);
    json_put_int(o, "top_k", p->top_k);
    json_put_real(o, "top_p", p->top_p);
    json_put_real(o, "min_p", p->min_p);
    json_put_real(o, "repeat_penalty",
                  p->repetition_penalty > 0 ? p->repetition_penalty : 1);
    json_put_real(o, "presence_penalty", p->presence_penalty);
    json_put_real(o, "frequency_penalty", p->frequency_penalty);
    json_put(o, "stop", stop);
    json_put_int(o, "n_probs", p->logprobs ? p->n_top : 0);
    json_put_bool(o, "ignore_eos", p->ignore_eos);
    json_put_bool(o, "stream", p->stream);
    json_put(o, "logit_bias", list);
    return o;
}

static struct json *timings(const struct choice *ch)
{
    struct json *o = json_new_object();
    shape_llama_timings(o, ch);
    return o;
}

static struct json *head(const struct choice *ch, const char *text, size_t n)
{
    struct json *o = json_new_object();
    json_put_int(o, "index", ch->index);
    json_put_bytes(o, "content", text, n);
    return o;
}

/* Moves the ids that were not sent into the answer. */
static void put_tokens(struct json *o, struct choice *ch)
{
    struct json *list = json_new_array();
    const int32_t *ids = (const void *)ch->ids.p; /* from malloc, so it is aligned */
    for (size_t i = 0; i < ch->ids.n / sizeof *ids; i++)
        json_push_int(list, ids[i]);
    ch->ids.n = 0;
    json_put(o, "tokens", list);
    struct generation *g = ch->gen;
    if (g->params.logprobs && ch->logprobs.n > 0)
        json_put(o, "completion_probabilities", shape_logprobs(g, ch));
}

static void put_end(struct json *o, struct choice *ch)
{
    const struct generation *g = ch->gen;
    const struct hcache_result *r = &ch->result;
    struct hcache_model_info info;
    const char *stop = shape_stop(g, ch);
    bool is_limit = strcmp(r->finish, "length") == 0;
    hcache_model_info(g->client.h, &info);
    json_put_int(o, "id_slot", 0);
    json_put_bool(o, "stop", true);
    json_put_string(o, "model", g->client.model_name);
    json_put_int(o, "tokens_predicted", r->n_tokens);
    json_put_int(o, "tokens_evaluated", ch->n_prompt);
    json_put_int(o, "tokens_cached", r->cached_tokens);
    json_put(o, "generation_settings", settings(g));
    if (json_kind(g->params.prompt) == JSON_KIND_STRING)
        json_put(o, "prompt", json_share(g->params.prompt));
    json_put_bool(o, "has_new_line",
                  r->text != NULL && memchr(r->text, '\n', r->n_text) != NULL);
    json_put_bool(o, "truncated",
                  r->truncated_tokens > 0 ||
                      (is_limit && ch->n_prompt + r->n_tokens >= info.max_context));
    json_put_string(o, "stop_type", is_limit ? "limit" : stop != NULL ? "word" : "eos");
    json_put_string(o, "stopping_word", stop != NULL ? stop : "");
    shape_adapted(o, g);
    json_put(o, "timings", timings(ch));
}

/* Returns the members of the answer that the request wants, by their paths. */
static struct json *only(struct json *whole, const struct json *paths)
{
    if (json_count(paths) == 0)
        return whole;
    struct json *o = json_new_object();
    for (size_t i = 0; i < json_count(paths); i++) {
        const char *path = json_string_of(json_at(paths, i), NULL), *at = path;
        const struct json *v = whole;
        while (at != NULL && *at != 0 && v != NULL) {
            char name[64];
            size_t n = strcspn(at, "/");
            snprintf(name, sizeof name, "%.*s", (int)n, at);
            v = json_member(v, name);
            at += n + (at[n] == '/');
        }
        if (path != NULL && v != NULL)
            json_put(o, path, json_share(v));
    }
    json_free(whole);
    return o;
}

static struct json *answer(struct generation *g)
{
    struct json *list = json_new_array();
    for (int i = 0; i < g->n; i++) {
        struct choice *ch = &g->choice[i];
        const char *text = ch->result.text != NULL ? ch->result.text : "";
        struct json *o = head(ch, text, ch->result.n_text);
        put_tokens(o, ch);
        put_end(o, ch);
        json_push(list, only(o, g->params.response_fields));
    }
    if (g->n > 1)
        return list;
    struct json *one = json_share(json_at(list, 0));
    json_free(list);
    return one;
}

static void piece(struct generation *g, struct choice *ch, int i,
                  const struct hcache_part *p, struct textbuf *out)
{
    struct json *o = head(ch, p->text, p->n);
    (void)i;
    put_tokens(o, ch);
    json_put_bool(o, "stop", false);
    json_put_int(o, "id_slot", 0);
    json_put_int(o, "tokens_evaluated", ch->n_prompt);
    if (g->params.timings_per_token)
        json_put(o, "timings", timings(ch));
    sse_json(out, o);
}

static void progress(struct generation *g, struct choice *ch, struct textbuf *out)
{
    struct json *o = head(ch, "", 0);
    json_put(o, "tokens", json_new_array());
    json_put_bool(o, "stop", false);
    json_put_int(o, "id_slot", 0);
    json_put(o, "prompt_progress", shape_progress(g, ch));
    if (g->params.timings_per_token)
        json_put(o, "timings", timings(ch));
    sse_json(out, o);
}

static void end(struct generation *g, struct choice *ch, struct textbuf *out)
{
    struct json *o = head(ch, "", 0);
    (void)g;
    put_tokens(o, ch);
    put_end(o, ch);
    sse_json(out, only(o, g->params.response_fields));
}

static const struct dialect llama = {
    .answer = answer, .piece = piece, .progress = progress, .end = end};

/* --- completions ------------------------------------------------------------------------------ */

static void generate(struct call *c, struct gen_params *p)
{
    struct prompts ps = {0};
    struct fault f;
    struct client client = call_client(c);
    p->fills = true;
    p->return_tokens |= p->stream;
    if (client_check_model(&client, p->model, &f) != 0 ||
        prompts_read(&client, p, NULL, &ps, &f) != 0) {
        prompts_deinit(&ps);
        call_fault(c, &f);
        return;
    }
    call_generate(c, &llama, NULL, p, ps.p, ps.n, NULL, ps.what);
}

void api_llama_completion(struct call *c)
{
    struct gen_params p;
    struct fault f;
    const struct json *body = call_body(c, REQUEST_COMPLETION | REQUEST_LLAMA);
    if (body == NULL)
        return;
    if (request_parse(body, REQUEST_COMPLETION | REQUEST_LLAMA, &p, &f) != 0)
        call_fault(c, &f);
    else
        generate(c, &p);
}

/* Joins other files and the text before the hole, as the models were trained to see them. */
static int infill_prefix(const struct gen_params *p, struct textbuf *out, struct fault *f)
{
    size_t n = 0;
    for (size_t i = 0; i < json_count(p->extra); i++) {
        const struct json *one = json_at(p->extra, i);
        const char *name = json_string_of(json_member(one, "filename"), NULL);
        const char *text = json_string_of(json_member(one, "text"), &n);
        if (name == NULL || text == NULL)
            return fault_field(f, "input_extra",
                               "must be a list of objects with a filename and a text");
        textbuf_addf(out, "%s\n", name);
        textbuf_add(out, text, n);
        textbuf_add(out, "\n", 1);
    }
    const char *text = json_string_of(p->prefix, &n);
    if (text != NULL)
        textbuf_add(out, text, n);
    text = json_string_of(p->prompt, &n);
    if (text != NULL)
        textbuf_add(out, text, n);
    return 0;
}

void api_llama_infill(struct call *c)
{
    struct gen_params p;
    struct fault f;
    struct textbuf prefix = {0};
    struct json *body = (struct json *)(uintptr_t)call_body(c, REQUEST_LLAMA);
    if (body == NULL)
        return;
    int rc = request_parse(body, REQUEST_COMPLETION | REQUEST_LLAMA | REQUEST_INFILL, &p,
                           &f);
    if (rc == 0 && p.suffix == NULL)
        rc = fault_field(&f, "input_suffix", "is missing");
    if (rc == 0)
        rc = infill_prefix(&p, &prefix, &f);
    if (rc != 0) {
        textbuf_free(&prefix);
        call_fault(c, &f);
        return;
    }
    /* The text belongs to the body, which lives as long as the call. */
    json_put_bytes(body, "prompt", prefix.p != NULL ? prefix.p : "", prefix.n);
    textbuf_free(&prefix);
    p.prompt = json_member(body, "prompt");
    generate(c, &p);
}

/* --- chats without an answer ------------------------------------------------------------------ */

/* Reads a chat and makes its prompt. Returns false if it has refused the call. If `plain`, special
 * tokens in messages get no guards, so that people can read the prompt. */
static bool read_chat(struct call *c, bool plain, struct prompts *ps)
{
    struct gen_params p;
    struct fault f;
    const struct json *body = call_body(c, REQUEST_CHAT);
    *ps = (struct prompts){0};
    if (body == NULL)
        return false;
    struct client client = call_client(c);
    client.parse_special |= plain;
    if (request_parse(body, REQUEST_CHAT, &p, &f) == 0 &&
        client_check_model(&client, p.model, &f) == 0 &&
        prompts_read(&client, &p, NULL, ps, &f) == 0)
        return true;
    prompts_deinit(ps);
    call_fault(c, &f);
    return false;
}

void api_llama_template(struct call *c)
{
    struct prompts ps;
    if (!read_chat(c, true, &ps))
        return;
    struct json *o = json_new_object();
    json_put_bytes(o, "prompt", ps.text.text, ps.text.n);
    call_json(c, 200, o);
    prompts_deinit(&ps);
}

void api_llama_count(struct call *c)
{
    struct prompts ps;
    if (!read_chat(c, false, &ps))
        return;
    struct json *o = json_new_object();
    json_put_int(o, "input_tokens", ps.p[0].n);
    call_json(c, 200, o);
    prompts_deinit(&ps);
}

/* --- the server ------------------------------------------------------------------------------- */

void api_llama_props(struct call *c)
{
    struct hcache_model_info info;
    struct gen_params p;
    struct fault f;
    struct json *o = json_new_object(), *own = json_new_object(),
                *params = json_new_object();
    struct json *empty = json_new_object(), *kinds = json_new_object();
    json_put_string(empty, "prompt", "");
    hcache_model_info(call_model(c), &info);
    (void)request_parse(empty, REQUEST_COMPLETION | REQUEST_LLAMA, &p, &f);
    json_put_int(params, "n_predict", p.max_tokens);
    json_put_real(params, "temperature", p.temperature);
    json_put_int(params, "top_k", p.top_k);
    json_put_real(params, "top_p", p.top_p);
    json_put_real(params, "min_p", p.min_p);
    json_put_int(params, "seed", c->s->o.seed != 0 ? c->s->o.seed : UINT32_MAX);
    json_free(empty);
    json_put(own, "params", params);
    json_put_int(own, "n_ctx", info.max_context);
    json_put(o, "default_generation_settings", own);
    json_put_int(o, "total_slots", info.max_sequences);
    json_put_string(o, "model_alias", call_model_name(c));
    json_put_string(o, "model_path", call_model_name(c));
    json_put_string(o, "chat_template",
                    info.chat_template != NULL ? info.chat_template : "");
    json_put_string(o, "bos_token", info.bos != NULL ? info.bos : "");
    json_put_string(o, "eos_token", info.eos != NULL ? info.eos : "");
    json_put_bool(kinds, "vision", false);
    json_put_bool(kinds, "audio", false);
    json_put(o, "modalities", kinds);
    json_put_string(o, "build_info", "hcache " HCACHE_VERSION);
    call_json(c, 200, o);
}

/* A place for an answer is a slot. The caller sees which are busy with its own answers, and no
 * prompts. */
void api_llama_slots(struct call *c)
{
    struct hcache_model_info info;
    struct tenant_counts own;
    struct json *list = json_new_array();
    hcache_model_info(call_model(c), &info);
    tenants_read(c->s->tenants, auth_tenant(c->s->auth, c->salt), &own);
    for (int i = 0; i < info.max_sequences; i++) {
        struct json *o = json_new_object();
        json_put_int(o, "id", i);
        json_put_int(o, "n_ctx", info.max_context);
        json_put_bool(o, "is_processing", (uint64_t)i < own.n_open);
        json_push(list, o);
    }
    call_json(c, 200, list);
}
