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
        n == 1)
        json_push(list, json_make("{token: %d, bias: null}", ids[0])); /* minus infinity */
    hcache_free(ids);
}

/* Makes generation_settings: the sampling fields as they were applied. */
static struct json *settings_json(const struct generation *g)
{
    const struct gen_params *p = &g->params;
    struct json *stop = json_new_array(), *list = json_new_array();
    struct request_shaping s;
    struct fault unused;
    (void)request_shaping(p, hcache_encode, g->client.h, &s, &unused);
    for (int i = 0; i < s.shaping.n_bias; i++) {
        json_push(list,
                  json_make("{token: %d, bias: %g}", s.bias[i].id, (double)s.bias[i].bias));
    }
    if (p->ignore_eos)
        put_ignored(g->client.h, list);
    for (int i = 0; i < p->n_stop; i++)
        json_push_string(stop, p->stop[i]);
    struct json *o = json_make(
        "{n_predict: %ld, max_tokens: %ld, seed: %lu, temperature: %g, "
        "top_k: %ld, top_p: %g, min_p: %g}",
        p->max_tokens, p->max_tokens, g->seed, p->temperature, p->top_k, p->top_p,
        p->min_p);
    json_extend(o, "{repeat_penalty: %g, presence_penalty: %g, frequency_penalty: %g}",
                p->repetition_penalty > 0 ? p->repetition_penalty : 1, p->presence_penalty,
                p->frequency_penalty);
    json_extend(o, "{stop: %p, n_probs: %ld, ignore_eos: %p, stream: %p, logit_bias: %p}",
                stop, p->logprobs ? p->n_top : 0, json_new_bool(p->ignore_eos),
                json_new_bool(p->stream), list);
    return o;
}

static struct json *timings_json(const struct choice *ch)
{
    struct json *o = json_new_object();
    shape_llama_timings(o, ch);
    return o;
}

static struct json *choice_head(const struct choice *ch, const char *text, size_t n)
{
    return json_make("{index: %d, content: %p}", ch->index, json_new_bytes(text, n));
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
    json_extend(o,
                "{id_slot: 0, stop: true, model: %s, tokens_predicted: %d, "
                "tokens_evaluated: %d, tokens_cached: %d, "
                "generation_settings: %p}",
                g->client.model_name, r->n_tokens, ch->n_prompt, r->cached_tokens,
                settings_json(g));
    if (json_kind(g->params.prompt) == JSON_KIND_STRING)
        json_put(o, "prompt", json_share(g->params.prompt));
    json_extend(o,
                "{has_new_line: %p, truncated: %p, stop_type: %s, "
                "stopping_word: %s}",
                json_new_bool(r->text != NULL && memchr(r->text, '\n', r->n_text) != NULL),
                json_new_bool(r->truncated_tokens > 0 ||
                              (is_limit && ch->n_prompt + r->n_tokens >= info.max_context)),
                is_limit       ? "limit"
                : stop != NULL ? "word"
                               : "eos",
                stop != NULL ? stop : "");
    shape_adapted(o, g);
    json_put(o, "timings", timings_json(ch));
}

/* Returns the members of the answer that the request wants, by their paths. */
static struct json *wanted_members(struct json *whole, const struct json *paths)
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

static struct json *make_answer(struct generation *g)
{
    struct json *list = json_new_array();
    for (int i = 0; i < g->n; i++) {
        struct choice *ch = &g->choice[i];
        const char *text = ch->result.text != NULL ? ch->result.text : "";
        struct json *o = choice_head(ch, text, ch->result.n_text);
        put_tokens(o, ch);
        put_end(o, ch);
        json_push(list, wanted_members(o, g->params.response_fields));
    }
    if (g->n > 1)
        return list;
    struct json *one = json_share(json_at(list, 0));
    json_free(list);
    return one;
}

static void write_piece(struct generation *g, struct choice *ch, int i,
                        const struct hcache_part *p, struct textbuf *out)
{
    struct json *o = choice_head(ch, p->text, p->n);
    (void)i;
    put_tokens(o, ch);
    json_extend(o, "{stop: false, id_slot: 0, tokens_evaluated: %d}", ch->n_prompt);
    if (g->params.timings_per_token)
        json_put(o, "timings", timings_json(ch));
    sse_json(out, o);
}

static void write_progress(struct generation *g, struct choice *ch, struct textbuf *out)
{
    struct json *o = choice_head(ch, "", 0);
    json_extend(o, "{tokens: [], stop: false, id_slot: 0, prompt_progress: %p}",
                shape_progress(g, ch));
    if (g->params.timings_per_token)
        json_put(o, "timings", timings_json(ch));
    sse_json(out, o);
}

static void write_end(struct generation *g, struct choice *ch, struct textbuf *out)
{
    struct json *o = choice_head(ch, "", 0);
    (void)g;
    put_tokens(o, ch);
    put_end(o, ch);
    sse_json(out, wanted_members(o, g->params.response_fields));
}

static const struct dialect llama = {.answer = make_answer,
                                     .piece = write_piece,
                                     .progress = write_progress,
                                     .end = write_end};

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
    call_json(c, 200, json_make("{prompt: %p}", json_new_bytes(ps.text.text, ps.text.n)));
    prompts_deinit(&ps);
}

void api_llama_count(struct call *c)
{
    struct prompts ps;
    if (!read_chat(c, false, &ps))
        return;
    call_json(c, 200, json_make("{input_tokens: %d}", ps.p[0].n));
    prompts_deinit(&ps);
}

/* --- the server ------------------------------------------------------------------------------- */

void api_llama_props(struct call *c)
{
    struct hcache_model_info info;
    struct gen_params p;
    struct fault f;
    struct json *empty = json_make("{prompt: ''}");
    hcache_model_info(call_model(c), &info);
    (void)request_parse(empty, REQUEST_COMPLETION | REQUEST_LLAMA, &p, &f);
    json_free(empty);
    struct json *o = json_make("{default_generation_settings: {params: {n_predict: %ld, "
                               "temperature: %g, top_k: %ld, "
                               "top_p: %g, min_p: %g, seed: %ld}, n_ctx: %d}}",
                               p.max_tokens, p.temperature, p.top_k, p.top_p, p.min_p,
                               c->s->o.seed != 0 ? c->s->o.seed : UINT32_MAX,
                               info.max_context);
    json_extend(o, "{total_slots: %d, model_alias: %s, model_path: %s, chat_template: %s}",
                info.max_sequences, call_model_name(c), call_model_name(c),
                info.chat_template != NULL ? info.chat_template : "");
    json_extend(o,
                "{bos_token: %s, eos_token: %s, modalities: {vision: false, audio: false}, "
                "build_info: 'hcache " HCACHE_VERSION "'}",
                info.bos != NULL ? info.bos : "", info.eos != NULL ? info.eos : "");
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
        json_push(list,
                  json_make("{id: %d, n_ctx: %d, is_processing: %p}", i, info.max_context,
                            json_new_bool((uint64_t)i < own.n_open)));
    }
    call_json(c, 200, list);
}
