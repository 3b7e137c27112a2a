/* api_cache.c - /v1/cache: looks up, pins, erases and bounds the stored state of prompts.
 *
 * A prompt is given as `prompt` (a text or token ids, as in /v1/completions), as `messages`
 * (with tools and chat_template_kwargs, as in chats), or as `response_id`: all texts up to a
 * kept response. Each route concerns only the state of the request's API key, under `cache_salt`.
 * The field `truncation` says how a prompt is truncated, as in /v1/responses. A response is
 * truncated as it was when it was made. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "api/prompts.h"
#include "api/answers.h"
#include "api/dates.h"
#include "api/draft.h"
#include "server/keep.h"
#include "api/retoken.h"
#include "api/shape.h"

enum { MAX_TTL_S = 10 * 366 * 86400 };

struct subject {
    struct prompt_ids prompt;
    struct prompt_date date;
    struct hcache_truncation truncation; /* ratio 0: the context is not truncated */
    char *salt;                          /* salt of the state, from call_state_salt */
    const char *cache_salt; /* the request's, borrowed from its body; NULL: none */
    int64_t ttl_s, cache_ttl_s, bytes; /* -1: not given */
    bool guarantee;
};

static void subject_deinit(struct subject *s)
{
    hcache_free(s->prompt.ids);
    free(s->salt);
}

/* --- reading a request ------------------------------------------------------------------------ */

static int from_prompt(struct call *c, const struct json *v, struct subject *s,
                       struct fault *f)
{
    struct prompt_ids *out = &s->prompt;
    struct hcache_err err = {0};
    size_t n;
    const char *text = json_string_of(v, &n);
    if (json_kind(v) == JSON_KIND_ARRAY)
        return request_ids(v, "prompt", &out->ids, &out->n, f);
    if (text == NULL)
        return fault_set(f, 400, NULL, "prompt", "'prompt' must be a text or token ids");
    if (prompt_fits(call_model(c), s->truncation.ratio > 0, text, n, "prompt", f) != 0)
        return -1;
    return hcache_encode(call_model(c), text, n, HCACHE_ADD_SPECIAL | HCACHE_PARSE_SPECIAL,
                         &out->ids, &out->n, &err) == 0
               ? 0
               : fault_refuse(f, err.code, "prompt", "'prompt': %s", err.msg);
}

/* Returns a member; NULL if it is missing, null, or an empty list or object. */
static const struct json *given(const struct json *body, const char *name)
{
    const struct json *v = json_member(body, name);
    bool has_size = json_kind(v) == JSON_KIND_ARRAY || json_kind(v) == JSON_KIND_OBJECT;
    return json_kind(v) == JSON_KIND_NULL || (has_size && json_count(v) == 0) ? NULL : v;
}

static int from_messages(struct call *c, const struct json *body, struct subject *s,
                         struct fault *f)
{
    bool truncates = s->truncation.ratio > 0;
    struct prompt_text text = {0};
    char what[200];
    struct chat_source source = {.messages = json_member(body, "messages"),
                                 .tools = given(body, "tools"),
                                 .kwargs = given(body, "chat_template_kwargs"),
                                 .plain = c->s->o.plain_chat,
                                 .parse_special = c->s->o.parse_special,
                                 .truncates = truncates};
    int rc = dates_render(c->s->o.dates, call_model(c), s->salt, &source, &text, f);
    if (rc == 0 && truncates)
        prompt_keep(prompt_system_tokens(call_model(c), source.messages), &s->truncation);
    if (rc == 0)
        rc = prompt_fits(call_model(c), truncates, text.text, text.n, "messages", f);
    struct client client = call_client(c);
    if (rc == 0)
        rc = prompts_encode(&client, &text, &s->prompt, what, &s->date, f);
    prompt_text_deinit(&text);
    return rc;
}

/* Sets *out to the truncation of a kept response; leaves it if the response was not truncated. A
 * response of an older server names only its kept tokens: the other numbers are then this server's
 * options. Returns 0, or -1 with *f if this server does not truncate. */
static int truncation_of(const struct call *c, const struct turn *t,
                         struct hcache_truncation *out, struct fault *f)
{
    struct json *told = json_of_text(t->restoration);
    int64_t n_dropped = 0, n_kept = 0, context = 0, step = 0;
    struct err err = {0};
    (void)json_opt_int(told, "truncated_tokens", 0, INT32_MAX, &n_dropped, &err);
    (void)json_opt_int(told, "kept_tokens", 0, INT32_MAX, &n_kept, &err);
    (void)json_opt_int(told, "window_tokens", 0, INT32_MAX, &context, &err);
    (void)json_opt_int(told, "step_tokens", 0, INT32_MAX, &step, &err);
    json_free(told);
    if (n_dropped == 0)
        return 0;
    if (c->truncation.ratio == 0)
        return fault_set(f, 400, "unsupported_value", "response_id",
                         "the response was truncated, and this server does not truncate "
                         "(--truncate): the keys of its state are not known");
    *out = c->truncation;
    out->keep = (int)n_kept;
    if (context > 0) {
        out->context = (int)context;
        /* half a chunk more, so that rounding ratio * context down to whole chunks gives `step` */
        out->ratio = ((double)step + 32) / (double)context;
    }
    return 0;
}

static int from_response(struct call *c, const char *name, struct subject *s,
                         struct fault *f)
{
    struct err err = {0};
    struct turn *t = NULL, **path = NULL;
    int n = 0;
    if (c->s->conversations == NULL)
        return keep_none(f);
    int rc = turn_find(c->s->conversations, call_tenant(c), name, &t, &err);
    if (rc == 0)
        rc = turn_path(c->s->conversations, t->row, &path, &n, &err);
    bool is_found = rc == 0;
    if (is_found) {
        s->prompt.ids = turn_path_tokens(path, n);
        s->prompt.n = path[n - 1]->n_tokens;
        rc = truncation_of(c, t, &s->truncation, f);
    }
    turn_path_free(path, n);
    turn_free(t);
    return rc == 0 || is_found ? rc : keep_fault(&err, f);
}

static int read_numbers(const struct json *body, struct subject *s, struct fault *f)
{
    const struct {
        const char *name;
        int64_t max, *out;
    } numbers[] = {{"ttl", MAX_TTL_S, &s->ttl_s},
                   {"cache_ttl", HCACHE_MAX_CACHE_TTL_S, &s->cache_ttl_s},
                   {"bytes", INT64_MAX, &s->bytes}};
    struct err err = {0};
    s->ttl_s = s->cache_ttl_s = s->bytes = -1;
    if (json_opt_string(body, "cache_salt", &s->cache_salt, &err) != 0)
        return fault_set(f, 400, NULL, "cache_salt", "%s", err.msg);
    if (json_opt_bool(body, "guarantee", &s->guarantee, &err) != 0)
        return fault_set(f, 400, NULL, "guarantee", "%s", err.msg);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (json_opt_int(body, numbers[i].name, 0, numbers[i].max, numbers[i].out, &err) !=
            0)
            return fault_set(f, 400, NULL, numbers[i].name, "%s", err.msg);
    return 0;
}

/* Reads whether a prompt or messages are truncated. For a response, truncation_of has already read
 * this from the kept turn. */
static int read_truncation(struct call *c, const struct json *body, struct subject *s,
                           struct fault *f)
{
    struct err err = {0};
    const char *how = NULL;
    bool truncates;
    if (json_opt_string(body, "truncation", &how, &err) != 0)
        return fault_set(f, 400, NULL, "truncation", "%s", err.msg);
    if (how == NULL)
        return 0;
    if (json_member(body, "response_id") != NULL)
        return fault_set(f, 400, NULL, "truncation",
                         "'truncation' needs 'prompt' or 'messages': a response keeps the "
                         "truncation with which it was made");
    if (request_read_truncation(how, &truncates, &s->truncation, f) != 0)
        return -1;
    if (!truncates)
        return 0;
    if (c->truncation.ratio == 0)
        return prompts_refuse_truncation(call_model(c), f);
    if (s->truncation.ratio == 0)
        s->truncation = c->truncation;
    return 0;
}

/* Reads the subject of a request: its salt, its numbers and, with needs_prompt, its prompt. The
 * request may have only the members of `names`. With needs_prompt it must have exactly one of
 * `prompt`, `messages` and `response_id`. Returns 0, or -1 with *f or an answered fault. */
static int read_subject(struct call *c, const char *const *names, bool needs_prompt,
                        struct subject *s, struct fault *f)
{
    *s = (struct subject){0};
    const struct json *body = call_body(c, 0);
    if (body == NULL || call_check_members(c, body, names, f) != 0 ||
        read_numbers(body, s, f) != 0)
        return -1;
    s->salt = call_state_salt(c, s->cache_salt);
    const struct json *prompt = json_member(body, "prompt");
    struct err err = {0};
    const char *response = NULL;
    if (json_opt_string(body, "response_id", &response, &err) != 0)
        return fault_set(f, 400, NULL, "response_id", "%s", err.msg);
    int n = (prompt != NULL) + (response != NULL) + (json_member(body, "messages") != NULL);
    if (!needs_prompt)
        return 0;
    if (n != 1)
        return fault_set(f, 400, NULL, "prompt",
                         "give one of 'prompt', 'messages' and 'response_id'");
    int rc = read_truncation(c, body, s, f);
    if (rc == 0)
        rc = prompt != NULL     ? from_prompt(c, prompt, s, f)
             : response != NULL ? from_response(c, response, s, f)
                                : from_messages(c, body, s, f);
    if (rc == 0 && s->prompt.n == 0)
        rc = fault_set(f, 400, NULL, "prompt", "the prompt has no tokens");
    struct hcache_err why = {0};
    if (rc == 0 && s->truncation.ratio > 0 &&
        hcache_truncation_check(call_model(c), &s->truncation, NULL, &why) != 0)
        rc = fault_set(f, 400, "unsupported_value",
                       response != NULL ? "response_id" : "truncation", "%s", why.msg);
    return rc;
}

#define PROMPT_NAMES                                                                       \
    "prompt", "messages", "tools", "chat_template_kwargs", "response_id", "cache_salt",    \
        "model"

static struct hcache_context context_of(const struct subject *s)
{
    return (struct hcache_context){.ids = s->prompt.ids,
                                   .n = s->prompt.n,
                                   .salt = s->salt,
                                   .truncation = s->truncation};
}

/* Answers a route: reads its subject, and has `answer` answer, or return a fault. */
static void route(struct call *c, const char *const *names, bool needs_prompt,
                  int (*answer)(struct call *c, struct subject *s, struct fault *f))
{
    struct subject s;
    struct fault f;
    int rc = read_subject(c, names, needs_prompt, &s, &f);
    if (rc == 0)
        rc = answer(c, &s, &f);
    if (rc != 0 && !c->answered) /* if the body was not JSON, call_body has answered */
        call_fault(c, &f);
    subject_deinit(&s);
}

/* --- looking up ------------------------------------------------------------------------------- */

static int answer_lookup(struct call *c, struct subject *s, struct fault *f)
{
    struct hcache_err err = {0};
    struct hcache_found found;
    const struct hcache_context context = context_of(s);
    if (hcache_cache_lookup(call_model(c), &context, &found, &err) != 0)
        return keep_store_fault(&err, f);
    date_explain(&s->date, found.differs_at, found.why, sizeof found.why);
    struct json *o = json_make("{object: 'cache.lookup', prompt_tokens: %d, "
                               "truncated_tokens: %d, wanted_tokens: %d}",
                               s->prompt.n, found.truncated_tokens, found.wanted_tokens);
    json_extend(o,
                "{stored_tokens: %d, restorable_tokens: %d, tier: %s, layers: %s, why: %s}",
                found.stored_tokens, found.stored_tokens,
                found.stored_tokens > 0 ? found.tier : NULL,
                found.stored_tokens > 0 ? found.layers : NULL,
                found.stored_tokens < found.wanted_tokens ? found.why : NULL);
    call_json(c, 200, o);
    return 0;
}

void api_cache_lookup(struct call *c)
{
    route(c, (const char *const[]){PROMPT_NAMES, "truncation", NULL}, true, answer_lookup);
}

/* --- computing ahead -------------------------------------------------------------------------- */

static struct json *prefetch_json(struct generation *g)
{
    const struct hcache_result *r = &g->choice[0].result;
    return json_make("{object: 'cache.prefetch', prompt_tokens: %d, cached_tokens: %d, "
                     "computed_tokens: %d, truncated_tokens: %ld, committed_tokens: %ld, "
                     "timings: %p}",
                     r->prompt_tokens, r->cached_tokens,
                     r->prompt_tokens - r->cached_tokens, r->truncated_tokens,
                     r->committed_tokens, shape_timings(g, &g->choice[0]));
}

static const struct dialect prefetch = {.answer = prefetch_json};

/* Computes and saves the prompt's state: a durable completion of no tokens. */
static int answer_prefetch(struct call *c, struct subject *s, struct fault *f)
{
    const struct gen_params p = {.kind = REQUEST_COMPLETION,
                                 .n = 1,
                                 .durable = true,
                                 .cache_salt = s->cache_salt,
                                 .cache_ttl = s->cache_ttl_s,
                                 .truncation = s->truncation.ratio > 0 ? "auto" : NULL,
                                 .numbers = s->truncation,
                                 .n_system = s->truncation.keep};
    struct prompt_ids prompt = s->prompt;
    (void)f;
    s->prompt.ids = NULL; /* the generation takes the ids */
    call_generate(c, &prefetch, NULL, &p, &prompt, 1, NULL, "");
    return 0;
}

void api_cache_prefetch(struct call *c)
{
    route(c, (const char *const[]){PROMPT_NAMES, "truncation", "cache_ttl", NULL}, true,
          answer_prefetch);
}

/* --- keeping and erasing ---------------------------------------------------------------------- */

/* Pins a context, guarantees it, or ends its pin or its guarantee. */
static int answer_pin(struct call *c, struct subject *s, struct fault *f)
{
    const struct hcache_context context = context_of(s);
    struct hcache_guarantee g = {0};
    if (s->ttl_s < 0)
        return fault_set(f, 400, NULL, "ttl", "'ttl' is missing: seconds; 0 ends a pin");
    int64_t until = s->ttl_s > 0 ? clock_wall_s() + 1 + s->ttl_s : 0;
    bool guaranteed = until > 0 && s->guarantee;
    if ((guaranteed ? keep_guarantee(c, &context, until, &g, f)
                    : keep_pin(c, &context, until, &g.n_tokens, f)) != 0)
        return -1;
    struct json *o = json_make(
        "{object: 'cache.pin', prompt_tokens: %d, pinned_tokens: %d, "
        "until: %ld, guaranteed: %p}",
        s->prompt.n, until > 0 ? g.n_tokens : 0, until, json_new_bool(guaranteed));
    if (guaranteed)
        json_extend(
            o,
            "{guarantee: {added_bytes: %lu, salt_bytes: %lu, salt_limit_bytes: %lu, "
            "all_bytes: %lu, limit_bytes: %lu}}",
            g.n_bytes, g.salt_bytes, g.salt_limit_bytes, g.all_bytes, g.limit_bytes);
    call_json(c, 200, o);
    return 0;
}

void api_cache_pin(struct call *c)
{
    route(c, (const char *const[]){PROMPT_NAMES, "truncation", "ttl", "guarantee", NULL},
          true, answer_pin);
}

/* Forgets the remembered answers to the prompt, and those that are a part of it. */
static int forget_answers(struct call *c, const struct subject *s, struct err *err)
{
    struct answers *m = c->s->answers;
    int *lengths;
    if (s->truncation.ratio >
        0) /* the keys depend on numbers that the subject does not have */
        return answers_forget_owner(m, s->salt, err);
    int n = answers_lengths(m, s->salt, s->prompt.n, &lengths);
    struct sha256 *keys = xmalloc(((size_t)n + 1) * sizeof *keys);
    for (int i = 0; i <= n; i++)
        keys[i] = retoken_end_key(call_model(c), 0, 0, 0, s->prompt.ids,
                                  i < n ? lengths[i] : s->prompt.n, s->salt);
    int rc = answers_forget_keys(m, keys, n + 1, err);
    free(keys);
    free(lengths);
    return rc;
}

/* Answers that chunks are erased, or, with 202, that noted ones wait for their erasure. */
static void put_erased(struct call *c, const char *name, const struct hcache_erased *gone,
                       const struct hcache_err *waits_because)
{
    bool waits = waits_because != NULL;
    struct json *o = json_make("{object: %s, erased_chunks: %ld, erased_bytes: %ld, "
                               "shared_chunks: %ld, busy_chunks: %ld, pending_chunks: %ld}",
                               name, waits ? 0 : gone->n_chunks, waits ? 0 : gone->n_bytes,
                               gone->n_shared, waits ? 0 : gone->n_busy,
                               waits ? gone->n_owed : 0);
    json_put_string(o, "pending_because", waits ? waits_because->msg : NULL);
    keep_put_where(o, c);
    call_json(c, waits ? 202 : 200, o);
}

/* Answers with the result of an erasure. `rc` and `err` are its code and message. If left_because
 * has a code, remembered answers could not be overwritten, for that reason. If the store cannot be
 * written, the chunks are not found any more, but their bytes are still in its files. */
static int answer_erasing(struct call *c, const char *name, int rc,
                          const struct hcache_erased *gone, const struct hcache_err *err,
                          const struct err *left_because, struct fault *f)
{
    if (rc == 0 && left_because->code != 0) {
        log_warn("%s", left_because->msg);
        return fault_set(
            f, 503, "not_erased", NULL,
            "the state is erased, but the remembered answers could not be overwritten: "
            "erase them again when the disk can be written");
    }
    if (rc == -ENOSPC)
        return fault_set(
            f, 507, "disk_full", NULL,
            "%.240s: the state is no longer used, and is erased as soon as the disk "
            "has room. If the server is killed before that, the state is found again",
            err->msg);
    if (rc != 0 && gone->n_owed > 0 && !gone->is_noted)
        return fault_set(
            f, 503, "not_erased", NULL,
            "%lld chunks are no longer used, but cannot be overwritten: %.120s. "
            "After a restart they are found again, because the erasure could not be "
            "noted on disk (%.90s): erase them again then",
            (long long)gone->n_owed, err->msg, gone->not_noted_because);
    if (rc != 0 && !gone->is_noted)
        return keep_store_fault(err, f);
    put_erased(c, name, gone, rc != 0 ? err : NULL);
    return 0;
}

/* Erasures flush first, so that chunks on their way to the store are erased, too. */
static int answer_evict(struct call *c, struct subject *s, struct fault *f)
{
    const struct hcache_context context = context_of(s);
    struct hcache_err err = {0};
    struct hcache_erased gone = {0};
    struct err why = {0};
    hcache_cache_flush(call_model(c));
    int rc = hcache_cache_erase_context(call_model(c), &context, &gone, &err);
    (void)forget_answers(c, s, &why);
    return answer_erasing(c, "cache.evict", rc, &gone, &err, &why, f);
}

void api_cache_evict(struct call *c)
{
    route(c, (const char *const[]){PROMPT_NAMES, "truncation", NULL}, true, answer_evict);
}

static int answer_clear(struct call *c, struct subject *s, struct fault *f)
{
    struct hcache_err err = {0};
    struct hcache_erased gone = {0};
    struct err why = {0};
    hcache_cache_flush(call_model(c));
    int rc = hcache_cache_clear(call_model(c), s->salt, &gone, &err);
    recent_forget(c->s->recent, call_tenant(c), NULL);
    (void)answers_forget_owner(c->s->answers, s->salt, &why);
    return answer_erasing(c, "cache.clear", rc, &gone, &err, &why, f);
}

void api_cache_clear(struct call *c)
{
    route(c, (const char *const[]){"cache_salt", NULL}, false, answer_clear);
}

void api_cache_flush(struct call *c)
{
    struct hcache_cache_stats k;
    hcache_cache_flush(call_model(c));
    hcache_cache_stats(call_model(c), NULL, &k);
    call_json(c, 200,
              json_make("{object: 'cache.flush', pending_bytes: %lu, saves: %p}",
                        k.pending_bytes,
                        json_new_bool(k.tier != NULL && k.saving_fault == 0)));
}

/* A client may set its own bound, but no higher than the bound that the server was started with. */
static int answer_quota(struct call *c, struct subject *s, struct fault *f)
{
    uint64_t most = c->s->o.salt_quota_bytes;
    struct hcache_cache_stats k;
    if (s->bytes < 0)
        return fault_set(f, 400, NULL, "bytes", "'bytes' is missing; 0 is no bound");
    if (most > 0 && (s->bytes == 0 || (uint64_t)s->bytes > most))
        return fault_set(
            f, 400, NULL, "bytes",
            "'bytes' must be 1 to %llu, the bound of this server (--salt-quota)",
            (unsigned long long)most);
    hcache_cache_quota(call_model(c), s->salt, (uint64_t)s->bytes);
    hcache_cache_stats(call_model(c), s->salt, &k);
    struct json *o = api_cache_salt_use(&k);
    json_put_string(o, "object", "cache.quota");
    call_json(c, 200, o);
    return 0;
}

void api_cache_quota(struct call *c)
{
    route(c, (const char *const[]){"cache_salt", "bytes", NULL}, false, answer_quota);
}
