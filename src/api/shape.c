/* shape.c - see shape.h. */
#include "api/shape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/textbuf.h"
#include "base/utf8.h"
#include "api/fullness.h"
#include "api/provenance.h"

static bool is_chat(const struct generation *g)
{
    return g->params.kind == REQUEST_CHAT;
}

static struct json *answer_head(const struct generation *g, const char *object)
{
    return json_make("{id: %s, object: %s, created: %ld, model: %s, "
                     "system_fingerprint: 'b" HCACHE_VERSION "'}",
                     g->id, object, g->created_s, g->client.model_name);
}

/* --- log-probabilities ------------------------------------------------------------------------ */

/* Writes a token as text. A token that is no whole character is written as in the original API:
 * "bytes:\xe2\x82". */
static void token_text(struct hcache *h, int32_t id, struct textbuf *out)
{
    size_t n;
    const char *bytes = hcache_token_bytes(h, id, &n);
    out->n = 0;
    if (bytes == NULL || utf8_check(bytes, n) == n) {
        textbuf_add(out, bytes, bytes != NULL ? n : 0);
        return;
    }
    textbuf_add(out, "bytes:", 6);
    for (size_t i = 0; i < n; i++)
        textbuf_addf(out, "\\x%02x", (unsigned char)bytes[i]);
}

static struct json *chat_token(struct hcache *h, const struct hcache_logprob *lp)
{
    struct json *list = json_new_array();
    struct textbuf text = {0};
    size_t n;
    const char *bytes = hcache_token_bytes(h, lp->id, &n);
    token_text(h, lp->id, &text);
    for (size_t i = 0; bytes != NULL && i < n; i++)
        json_push_int(list, (unsigned char)bytes[i]);
    struct json *o = json_make("{token: %p, id: %d, logprob: %g, bytes: %p}",
                               json_new_bytes(text.p, text.n), lp->id, (double)lp->logprob,
                               list);
    textbuf_free(&text);
    return o;
}

/* Adds to a list in the form of text, since a long list of values would take ten times the memory
 * of its text. */
static void list_add(struct textbuf *list, struct json *v)
{
    textbuf_add(list, list->n == 0 ? "[" : ", ", list->n == 0 ? 1 : 2);
    json_append(v, 0, list);
    json_free(v);
}

static struct json *list_end(struct textbuf *list)
{
    textbuf_add(list, list->n == 0 ? "[]" : "]", list->n == 0 ? 2 : 1);
    struct json *v = json_new_raw(list->p, list->n);
    textbuf_free(list);
    return v;
}

static struct json *chat_list(struct hcache *h, const struct hcache_logprob *lp, int n,
                              int n_top)
{
    struct textbuf content = {0};
    for (int t = 0; t < n; t++, lp += 1 + n_top) {
        struct json *token = chat_token(h, lp), *top = json_new_array();
        for (int i = 1; i <= n_top && lp[i].id >= 0; i++)
            json_push(top, chat_token(h, &lp[i]));
        json_put(token, "top_logprobs", top);
        list_add(&content, token);
    }
    return list_end(&content);
}

static int64_t n_chars(const struct textbuf *b)
{
    int64_t n = 0;
    for (size_t i = 0; i < b->n; i++)
        n += ((unsigned char)b->p[i] & 0xc0) != 0x80;
    return n;
}

static struct json *text_logprobs(struct choice *ch, struct hcache *h,
                                  const struct hcache_logprob *lp, int n, int n_top)
{
    struct textbuf text = {0}, tokens = {0}, chosen = {0}, tops = {0}, offsets = {0};
    for (int t = 0; t < n; t++, lp += 1 + n_top) {
        struct json *top = json_new_object();
        /* Begins with the least likely token. If two tokens have the same text, the likelier one is
         * written last and stays. */
        for (int i = n_top; i >= 1; i--) {
            token_text(h, lp[i].id, &text);
            if (lp[i].id >= 0)
                json_put_real(top, text.p, (double)lp[i].logprob);
        }
        if (isnan(lp->logprob)) { /* the prompt's first token has none */
            json_free(top);
            top = json_new_raw("null", 4);
        }
        list_add(&tops, top);
        token_text(h, lp->id, &text);
        list_add(&tokens, json_new_bytes(text.p, strlen(text.p)));
        list_add(&chosen, json_new_real((double)lp->logprob));
        list_add(&offsets, json_new_int(ch->n_chars));
        ch->n_chars += n_chars(&text);
    }
    textbuf_free(&text);
    return json_make("{tokens: %p, token_logprobs: %p, top_logprobs: %p, text_offset: %p}",
                     list_end(&tokens), list_end(&chosen), list_end(&tops),
                     list_end(&offsets));
}

static struct json *take_logprobs(struct generation *g, struct choice *ch, bool as_text)
{
    int n_top = (int)g->params.n_top;
    struct hcache *h = g->client.h;
    /* The memory is from malloc, so it is aligned for the struct. */
    const struct hcache_logprob *lp = (const void *)ch->logprobs.p;
    int n = (int)(ch->logprobs.n / sizeof *lp) / (1 + n_top);
    ch->logprobs.n = 0;
    return as_text ? text_logprobs(ch, h, lp, n, n_top) : chat_list(h, lp, n, n_top);
}

struct json *shape_logprobs(struct generation *g, struct choice *ch)
{
    return take_logprobs(g, ch, false);
}

/* Returns the unsent log-probabilities; NULL if the request has none or hides them. */
static struct json *unsent_logprobs(struct generation *g, struct choice *ch)
{
    if (!g->params.logprobs || g->hides_logprobs)
        return NULL;
    if (!is_chat(g))
        return take_logprobs(g, ch, true);
    return json_make("{content: %p, refusal: null}", take_logprobs(g, ch, false));
}

/* --- usage and timings ------------------------------------------------------------------------ */

void shape_context(struct json *usage, const struct generation *g)
{
    if (g->unenforced != NULL)
        json_put_string(usage, "unenforced", g->unenforced);
    struct hcache_model_info info;
    char text[160];
    int64_t used = 0;
    int64_t n_truncated = 0;
    hcache_model_info(g->client.h, &info);
    for (int i = 0; i < g->n; i++) {
        int64_t n = g->choice[i].n_prompt + g->choice[i].result.n_tokens;
        int64_t dropped = g->choice[i].result.truncated_tokens;
        used = MAX(n, used);
        n_truncated = MAX(dropped, n_truncated);
    }
    json_extend(usage, "{truncated_tokens: %ld, context_used: %ld, context_window: %d}",
                n_truncated, used, info.max_context);
    if (g->params.date.moment[0] != 0)
        json_put_bytes(usage, "template_date", g->params.date.moment, 10);
    /* A truncated context is never full. */
    if (request_truncates(&g->params, &g->client.truncation) ||
        !fullness_warns(used, info.max_context))
        return;
    snprintf(
        text, sizeof text,
        "%lld of %d tokens of the context are used (%lld %%): start a new conversation "
        "soon, or branch from an earlier answer",
        (long long)used, info.max_context, (long long)(used * 100 / info.max_context));
    json_put_string(usage, "context_warning", text);
}

void shape_adapted(struct json *usage, const struct generation *g)
{
    const struct gen_params *p = &g->params;
    struct json *list = json_new_array();
    for (int i = 0; i < p->n_ignored; i++)
        json_push_string(list, p->ignored[i]);
    for (const char *s = p->unshown; *s != 0; s += strcspn(s, " "), s += *s == ' ') {
        char name[HCACHE_UNSHOWN + 16];
        snprintf(name, sizeof name, "messages.%.*s", (int)strcspn(s, " "), s);
        json_push_string(list, name);
    }
    if (json_count(list) > 0)
        json_put(usage, "ignored", list);
    else
        json_free(list);
    if (g->max_tokens > 0)
        json_put_int(usage, "max_tokens", g->max_tokens);
}

/* Makes the usage. The answers to one prompt share it, so it counts once, with the best
 * restoration among them. */
static struct json *usage_json(const struct generation *g)
{
    int64_t prompt = 0, cached = 0, completion = 0, best = 0, thought = 0;
    int64_t guessed = 0, right = 0;
    for (int i = 0; i < g->n; i++) {
        const struct choice *ch = &g->choice[i];
        bool first = i % (int)g->params.n == 0, last = (i + 1) % (int)g->params.n == 0;
        best = first || ch->result.cached_tokens > best ? ch->result.cached_tokens : best;
        prompt += first ? ch->n_prompt : 0;
        cached += last ? best : 0;
        completion += ch->result.n_tokens;
        thought += shape_thought_tokens(ch);
        guessed += ch->result.guessed_tokens;
        right += ch->result.guessed_right;
    }
    struct json *o = json_make(
        "{prompt_tokens: %ld, completion_tokens: %ld, total_tokens: %ld}", prompt,
        completion, prompt + completion);
    if (!g->client.repeatable)
        json_extend(o, "{prompt_tokens_details: {cached_tokens: %ld}}", cached);
    bool predicts = g->params.prediction != NULL && !g->client.repeatable;
    if (thought > 0 || predicts) {
        struct json *made = json_new_object();
        if (thought > 0)
            json_put_int(made, "reasoning_tokens", thought);
        if (predicts)
            json_extend(
                made, "{accepted_prediction_tokens: %ld, rejected_prediction_tokens: %ld}",
                right, guessed - right);
        json_put(o, "completion_tokens_details", made);
    }
    shape_context(o, g);
    shape_adapted(o, g);
    return o;
}

/* Adds a count n and its time under the names that llama-server uses. The rates are those of
 * `steps`, the tokens that took this time. */
static void put_rate(struct json *o, const char *what, int n, int steps, double ms)
{
    static const char *const names[] = {"n", "ms", "per_token_ms", "per_second"};
    char key[4][40];
    for (int i = 0; i < 4; i++)
        snprintf(key[i], sizeof key[i], "%s_%s", what, names[i]);
    json_put_int(o, key[0], n);
    json_put_ms(o, key[1], ms);
    json_put_ms(o, key[2], steps > 0 ? ms / steps : 0);
    json_put_real(o, key[3], ms > 0 ? 1e3 / ms * steps : 0);
}

/* Returns the result of a choice; while it runs, the counts and times so far, which include the
 * wait in the queue. */
static struct hcache_result result_so_far(const struct choice *ch)
{
    if (ch->finished)
        return ch->result;
    bool reads = ch->n_tokens == 0; /* the prompt */
    int64_t now = clock_now_ns(), begun = ch->gen->begun_ns;
    struct hcache_result r = {.cached_tokens = ch->n_cached, .n_tokens = ch->n_tokens};
    if (!reads || ch->n_progress > ch->n_cached)
        r.timings.prefill_ms = (double)((reads ? now : ch->first_ns) - begun) * 1e-6;
    if (!reads)
        r.timings.decode_ms = (double)(now - ch->first_ns) * 1e-6;
    return r;
}

/* Returns how many tokens of the prompt were computed so far. */
static int n_computed(const struct choice *ch, int n_cached)
{
    bool reads = !ch->finished && ch->n_tokens == 0;
    return MAX((reads ? ch->n_progress : ch->n_prompt) - n_cached, 0);
}

void shape_llama_timings(struct json *o, const struct choice *ch)
{
    const struct hcache_result so_far = result_so_far(ch), *r = &so_far;
    const struct hcache_timings *t = &r->timings;
    int n_new = n_computed(ch, r->cached_tokens);
    json_put_int(o, "cache_n", r->cached_tokens);
    put_rate(o, "prompt", n_new, n_new, t->restore_ms + t->prefill_ms);
    put_rate(o, "predicted", r->n_tokens, MAX(r->n_tokens - 1, 0), t->decode_ms);
}

struct json *shape_timings(const struct generation *g, const struct choice *ch)
{
    const struct hcache_result so_far = result_so_far(ch), *r = &so_far;
    const struct hcache_timings *t = &r->timings;
    struct json *o = json_make("{queue_ms: %.3f, lookup_ms: %.3f, plan_ms: %.3f}",
                               t->queue_ms, t->lookup_ms, t->plan_ms);
    json_extend(o,
                "{restore_ms: %.3f, restore_io_ms: %.3f, restore_wait_ms: %.3f, "
                "restore_fused_ms: %.3f, restore_bubble: %g, restore_bytes: %lu}",
                t->restore_ms, t->restore_io_ms, t->restore_wait_ms, t->fused_ms, t->bubble,
                r->restored_bytes);
    json_extend(o,
                "{restore_plan: %p, device_tokens: %d, restored_tokens: %d, "
                "restore_source: %s, dram_tokens: %d, page_cache_bytes: %lu}",
                provenance_plan(&r->plan), r->device_tokens,
                r->cached_tokens - r->device_tokens, r->tier, r->dram_tokens,
                r->restored_page_cache_bytes);
    json_extend(
        o,
        "{remote_tokens: %d, prefilled_tokens: %d, prefill_ms: %.3f, ttft_ms: %.3f, "
        "decode_ms: %.3f}",
        r->remote_tokens, n_computed(ch, r->cached_tokens), t->prefill_ms, t->ttft_ms,
        t->decode_ms);
    json_extend(o, "{per_token_ms: %.3f, decode_tokens_per_s: %.3f}",
                r->n_tokens > 1 ? t->decode_ms / (r->n_tokens - 1) : 0,
                t->decode_tokens_per_s);
    json_extend(o,
                "{guessed_tokens: %ld, guessed_right: %ld, preemptions: %d, "
                "committed_tokens: %ld, save_stopped: %s, miss: %s}",
                r->guessed_tokens, r->guessed_right, r->n_preempted, r->committed_tokens,
                r->save_stopped, provenance_miss(r, g->miss));
    shape_llama_timings(o, ch);
    return o;
}

/* --- parts ------------------------------------------------------------------------------------ */

bool shape_part(const struct choice *ch, int i, struct hcache_part *out)
{
    const struct hcache_result *r = &ch->result;
    if (ch->answer != NULL)
        return hcache_answer_part(ch->answer, i, out);
    *out = (struct hcache_part){
        .kind = HCACHE_PART_TEXT, .text = r->text != NULL ? r->text : "", .n = r->n_text};
    return i == 0;
}

static bool any_call(const struct choice *ch)
{
    struct hcache_part p;
    for (int i = 0; shape_part(ch, i, &p); i++)
        if (p.kind == HCACHE_PART_CALL)
            return true;
    return false;
}

bool shape_has_calls(const struct choice *ch)
{
    return any_call(ch) && strcmp(ch->result.finish, "stop") == 0;
}

struct json *shape_texts(const struct choice *ch, enum hcache_part_kind kind)
{
    struct textbuf all = {0};
    struct hcache_part p;
    for (int i = 0; shape_part(ch, i, &p); i++)
        if (p.kind == kind)
            textbuf_add(&all, p.text, p.n);
    struct json *v = json_new_bytes(all.p, all.n);
    textbuf_free(&all);
    return v;
}

int shape_thought_tokens(const struct choice *ch)
{
    struct hcache_part p;
    size_t thought = 0, all = 0;
    for (int i = 0; shape_part(ch, i, &p); i++) {
        all += p.n;
        thought += p.kind == HCACHE_PART_THOUGHT ? p.n : 0;
    }
    return thought == 0
               ? 0
               : (int)((double)ch->result.n_tokens * (double)thought / (double)all);
}

const char *shape_stop(const struct generation *g, const struct choice *ch)
{
    struct textbuf all = {0};
    const struct hcache_result *r = &ch->result;
    const char *found = NULL;
    for (int i = 0; i < r->n_tokens; i++) {
        size_t n;
        const char *bytes = hcache_token_bytes(g->client.h, r->token_ids[i], &n);
        textbuf_add(&all, bytes, bytes != NULL ? n : 0);
    }
    for (int i = 0; i < g->params.n_stop && found == NULL; i++) {
        size_t n = strlen(g->params.stop[i]);
        if (all.n >= r->n_text + n && memcmp(all.p + r->n_text, g->params.stop[i], n) == 0)
            found = g->params.stop[i];
    }
    textbuf_free(&all);
    return found;
}

static const char *finish_of(const struct choice *ch)
{
    return shape_has_calls(ch) ? "tool_calls" : ch->result.finish;
}

void shape_id(const struct choice *ch, int i, char out[32])
{
    struct sha256_ctx *c = sha256_begin();
    char hex[65];
    const int32_t places[2] = {ch->index, i};
    sha256_field(c, "answer", ch->gen->id, strlen(ch->gen->id));
    sha256_field(c, "call", places, sizeof places);
    struct sha256 digest = sha256_end(c);
    sha256_hex(&digest, hex);
    snprintf(out, 32, "call_%.24s", hex);
}

/* Makes a tool call. In a stream `index` is its number among the calls; else it is -1. */
static struct json *tool_call(const struct choice *ch, int i, const struct hcache_part *p,
                              int index)
{
    struct json *o = json_new_object();
    char id[32];
    shape_id(ch, i, id);
    if (index >= 0)
        json_put_int(o, "index", index);
    json_extend(o, "{id: %s, type: 'function', function: {name: %s, arguments: %p}}", id,
                p->name, json_new_bytes(p->text, p->n));
    return o;
}

/* Returns how many calls come before part i. */
static int calls_before(const struct choice *ch, int i)
{
    struct hcache_part p;
    int n = 0;
    for (int k = 0; k < i && shape_part(ch, k, &p); k++)
        n += p.kind == HCACHE_PART_CALL;
    return n;
}

/* --- answers ---------------------------------------------------------------------------------- */

static struct json *chat_message(const struct choice *ch)
{
    struct json *calls = json_new_array();
    struct json *content = shape_texts(ch, HCACHE_PART_TEXT);
    struct json *thoughts = shape_texts(ch, HCACHE_PART_THOUGHT);
    struct hcache_part p;
    size_t n = 0, n_thoughts = 0;
    for (int i = 0; shape_part(ch, i, &p); i++)
        if (p.kind == HCACHE_PART_CALL)
            json_push(calls, tool_call(ch, i, &p, -1));
    bool has_calls = json_count(calls) > 0;
    (void)json_string_of(content, &n);
    (void)json_string_of(thoughts, &n_thoughts);
    struct json *m = json_make("{role: 'assistant'}");
    if (n_thoughts > 0)
        json_put(m, "reasoning_content", json_share(thoughts));
    json_put(m, "content", json_share(n > 0 || !has_calls ? content : NULL));
    if (has_calls)
        json_put(m, "tool_calls", json_share(calls));
    json_put_null(m, "refusal");
    json_free(content);
    json_free(thoughts);
    json_free(calls);
    return m;
}

/* Adds the prompt's text without its guards. */
static void put_prompt(struct json *o, const struct generation *g)
{
    struct textbuf text = {0};
    for (size_t i = 0; i < g->text.n; i++)
        if ((unsigned char)g->text.text[i] != HCACHE_GUARD)
            textbuf_add(&text, &g->text.text[i], 1);
    json_extend(o, "{__verbose: {prompt: %p}}", json_new_bytes(text.p, text.n));
    textbuf_free(&text);
}

/* Adds the prompt of a choice as text. */
static void add_prompt(const struct generation *g, const struct choice *ch,
                       struct textbuf *out)
{
    const struct json *v = g->params.prompt, *first = json_at(v, 0);
    struct hcache_err err = {0};
    struct fault f;
    int32_t *ids = NULL;
    char *decoded = NULL;
    size_t n = 0;
    int n_ids;
    if (first != NULL && json_kind(first) != JSON_KIND_INT)
        v = json_at(v, (size_t)(ch->index / (int)g->params.n));
    const char *text = json_string_of(v, &n);
    if (text == NULL && json_kind(v) == JSON_KIND_ARRAY &&
        request_ids(v, "prompt", &ids, &n_ids, &f) == 0 &&
        hcache_decode(g->client.h, ids, n_ids, &decoded, &n, &err) == 0)
        text = decoded;
    if (text != NULL)
        textbuf_add(out, text, n);
    hcache_free(decoded);
    free(ids);
}

/* Returns a text of a completion; its first one stands behind the prompt if that is wanted. */
static struct json *text_of(const struct generation *g, const struct choice *ch,
                            const char *text, size_t n)
{
    struct textbuf all = {0};
    if (g->params.echo && !ch->started)
        add_prompt(g, ch, &all);
    textbuf_add(&all, text != NULL ? text : "", n);
    struct json *v = json_new_bytes(all.p, all.n);
    textbuf_free(&all);
    return v;
}

/* Returns the mean log-probability of an answer's tokens. */
static double mean_logprob(const struct choice *ch)
{
    const struct generation *g = ch->gen;
    const struct hcache_logprob *lp = (const void *)ch->logprobs.p;
    size_t width = 1 + (size_t)g->params.n_top, n = ch->logprobs.n / sizeof *lp / width;
    size_t first = n - MIN(n, (size_t)ch->result.n_tokens); /* behind an echoed prompt */
    double sum = 0;
    for (size_t i = first; i < n; i++)
        sum += (double)lp[i * width].logprob;
    return n > first ? sum / (double)(n - first) : 0;
}

/* Returns whether an answer is sent: fewer than n_best of its prompt's answers are better. */
static bool is_sent(struct generation *g, struct choice *ch)
{
    int n = (int)g->params.n, group = ch->index / n * n, rank = 0;
    double own = mean_logprob(ch);
    for (int i = group; i < group + n && g->n_best > 0; i++) {
        double other = mean_logprob(&g->choice[i]);
        rank += other > own || (other == own && i < (int)(ch - g->choice));
    }
    return g->n_best == 0 || rank < g->n_best;
}

static struct json *make_answer(struct generation *g)
{
    struct json *o = answer_head(g, is_chat(g) ? "chat.completion" : "text_completion");
    struct json *choices = json_new_array();
    bool *sent = xcalloc((size_t)g->n, sizeof *sent);
    for (int i = 0; i < g->n; i++)
        sent[i] = is_sent(g, &g->choice[i]);
    for (int i = 0; i < g->n; i++) {
        struct choice *ch = &g->choice[i];
        if (!sent[i])
            continue;
        struct json *c = json_make("{index: %ld}", (int64_t)json_count(choices));
        if (is_chat(g))
            json_put(c, "message", chat_message(ch));
        else
            json_put(c, "text", text_of(g, ch, ch->result.text, ch->result.n_text));
        json_extend(c, "{logprobs: %p, finish_reason: %s}", unsent_logprobs(g, ch),
                    finish_of(ch));
        json_push(choices, c);
    }
    free(sent);
    json_put(o, "choices", choices);
    if (g->params.verbose && g->text.text != NULL)
        put_prompt(o, g);
    json_put(o, "usage", usage_json(g));
    if (!g->client.repeatable)
        json_put(o, "timings", shape_timings(g, &g->choice[0]));
    return o;
}

static struct json *chunk_envelope(struct generation *g)
{
    return answer_head(g, is_chat(g) ? "chat.completion.chunk" : "text_completion");
}

/* Adds a piece of a part to a chunk's delta. */
static void put_piece(struct json *delta, const struct choice *ch, int i,
                      const struct hcache_part *p)
{
    if (p->kind == HCACHE_PART_CALL)
        json_extend(delta, "{tool_calls: [%p]}", tool_call(ch, i, p, calls_before(ch, i)));
    else
        json_put_bytes(delta, p->kind == HCACHE_PART_TEXT ? "content" : "reasoning_content",
                       p->text, p->n);
}

/* Makes a chunk of one choice, which it takes over. */
static struct json *chunk_of(struct generation *g, struct json *choice)
{
    struct json *o = chunk_envelope(g);
    json_extend(o, "{choices: [%p]}", choice);
    if (g->params.include_usage)
        json_put_null(o, "usage");
    return o;
}

/* Begins a choice of a chat: its role has an event of its own, as of OpenAI and llama-server. The
 * first chunk follows at once, since clients take this one for the first token. */
static void open_choice(struct generation *g, struct choice *ch, struct textbuf *out)
{
    if (!is_chat(g) || ch->started)
        return;
    sse_json(out,
             chunk_of(g, json_make("{index: %d, delta: {role: 'assistant', content: null}, "
                                   "logprobs: null, finish_reason: null}",
                                   ch->index)));
}

/* Makes a chunk: a piece of part i; or, if p is NULL, the end of a choice with its reason. */
static struct json *chunk_json(struct generation *g, struct choice *ch, int i,
                               const struct hcache_part *p)
{
    struct json *c = json_make("{index: %d}", ch->index);
    if (is_chat(g)) {
        struct json *delta = json_new_object();
        if (p != NULL)
            put_piece(delta, ch, i, p);
        json_put(c, "delta", delta);
    } else {
        json_put(c, "text", text_of(g, ch, p != NULL ? p->text : "", p != NULL ? p->n : 0));
    }
    bool is_end = p == NULL, is_empty = is_end && ch->logprobs.n == 0;
    json_extend(c, "{logprobs: %p, finish_reason: %s}",
                is_empty ? NULL : unsent_logprobs(g, ch), is_end ? finish_of(ch) : NULL);
    struct json *o = chunk_of(g, c);
    if (is_end || g->params.timings_per_token)
        json_put(o, "timings", shape_timings(g, ch));
    ch->started = true;
    return o;
}

struct json *shape_progress(const struct generation *g, const struct choice *ch)
{
    return json_make("{total: %d, cache: %d, processed: %d, time_ms: %.3f}", ch->n_prompt,
                     ch->n_cached, ch->n_progress,
                     (double)(clock_now_ns() - g->begun_ns) * 1e-6);
}

static void write_progress(struct generation *g, struct choice *ch, struct textbuf *out)
{
    const struct hcache_part none = {.kind = HCACHE_PART_TEXT, .text = ""};
    open_choice(g, ch, out);
    struct json *o = chunk_json(g, ch, 0, &none);
    json_put(o, "prompt_progress", shape_progress(g, ch));
    sse_json(out, o);
}

static void write_piece(struct generation *g, struct choice *ch, int i,
                        const struct hcache_part *p, struct textbuf *out)
{
    open_choice(g, ch, out);
    sse_json(out, chunk_json(g, ch, i, p));
}

static void write_end(struct generation *g, struct choice *ch, struct textbuf *out)
{
    open_choice(g, ch, out);
    sse_json(out, chunk_json(g, ch, 0, NULL));
}

static void close_stream(struct generation *g, struct textbuf *out)
{
    if (g->params.include_usage) {
        struct json *o = chunk_envelope(g);
        json_extend(o, "{choices: [], usage: %p, timings: %p}", usage_json(g),
                    shape_timings(g, &g->choice[0]));
        sse_json(out, o);
    }
    sse_done(out);
}

const struct dialect shape_completions = {.answer = make_answer,
                                          .progress = write_progress,
                                          .piece = write_piece,
                                          .end = write_end,
                                          .close = close_stream};
