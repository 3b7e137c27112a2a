/* generation.c - see generation.h: submitting, streaming, answering. The forms are in shape.c. */
#include "api/generation.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "api/dates.h"
#include "api/retoken.h"
#include "api/shape.h"
#include "api/provenance.h"

/* --- starting --------------------------------------------------------------------------------- */

static void wake(const struct client *c)
{
    if (c->calls != NULL && c->calls->wake != NULL)
        c->calls->wake(c->arg);
}

/* Called on the engine's thread, with its lock held. */
static void on_notify(void *arg, bool ended)
{
    struct choice *ch = arg;
    struct generation *g = ch->gen;
    if (ended)
        atomic_fetch_add(&g->n_ended, 1);
    if (ended || g->params.stream)
        wake(&g->client);
}

/* Makes hcache_delta.prompt_done known; hcache_submit does not call it. */
static void on_prompt(void *arg, int n_done)
{
    (void)arg;
    (void)n_done;
}

static uint64_t random_u64(void)
{
    uint64_t v = 0;
    (void)!getrandom(&v, sizeof v, 0);
    return v;
}

/* Makes the fault for a prompt that is too long. Clients look for "maximum context length"
 * (OpenAI's) and "prompt is too long" (Anthropic's), and shorten their history. */
static int too_long(const struct gen_params *p, int n_prompt, int max_context,
                    struct fault *f)
{
    long long wanted = p->max_tokens > 0 ? p->max_tokens : 1;
    fault_set(f, 400, "context_length_exceeded", request_prompt_name(p->kind),
              "%-sthis model's maximum context length is %d tokens, but the prompt "
              "has %d and %lld are to be generated",
              p->kind == REQUEST_MESSAGE ? "prompt is too long: " : "", max_context,
              n_prompt, wanted);
    return fault_too_long(f, n_prompt, max_context);
}

/* Returns how the request is truncated. If a conversation cannot be truncated, because of its
 * system message, the request counts as one that did not ask for truncation. */
static struct hcache_truncation truncation_of(const struct generation *g)
{
    const struct gen_params *p = &g->params;
    if (!request_truncates(p, &g->client.truncation))
        return (struct hcache_truncation){0};
    struct hcache_truncation t = request_truncation(p, &g->client.truncation);
    prompt_keep(p->n_system, &t);
    if (p->truncation == NULL && hcache_truncation_check(g->client.h, &t, NULL, NULL) != 0)
        t.ratio = 0;
    return t;
}

static int check_fit(const struct gen_params *p, bool truncates,
                     const struct prompt_ids *prompts, int n_prompts,
                     const struct hcache_model_info *info, struct fault *f)
{
    int max_context = info->max_context;
    const char *name = request_prompt_name(p->kind);
    for (int i = 0; i < n_prompts; i++) {
        if (prompts[i].n == 0)
            return fault_set(f, 400, NULL, name, "'%-s' has no tokens", name);
        if (truncates && prompts[i].n > info->max_history)
            return fault_set(f, 400, "context_length_exceeded", name,
                             "the prompt has %d tokens: this server truncates at most %lld "
                             "(--max-history), and the maximum context length is %d tokens",
                             prompts[i].n, (long long)info->max_history, info->max_context);
        if (truncates)
            continue;
        /* More tokens than the context has left are cut to that, as agents always ask for many. */
        if (prompts[i].n > max_context ||
            (p->max_tokens != 0 && prompts[i].n >= max_context))
            return too_long(p, prompts[i].n, max_context, f);
    }
    return 0;
}

/* Checks the fields whose bounds depend on the model. hcache_submit refuses the same values, but
 * its message belongs to no field. */
static int check_fields(const struct generation *g, const struct prompt_ids *prompts,
                        const struct hcache_truncation *truncation,
                        const struct hcache_model_info *info, struct fault *f)
{
    const struct gen_params *p = &g->params;
    const char *name = request_prompt_name(p->kind);
    struct hcache_err err = {0};
    struct request_shaping own;
    int n_vocab = info->vocab_size;
    for (int i = 0; i < g->n / (int)p->n; i++)
        for (int j = 0; j < prompts[i].n; j++)
            if (prompts[i].ids[j] < 0 || prompts[i].ids[j] >= n_vocab)
                return fault_field(f, name, "has the token %d; tokens are 0 to %d",
                                   prompts[i].ids[j], n_vocab - 1);
    if (p->n_stop > 0 && !info->has_tokenizer)
        return fault_field(f, p->kind == REQUEST_MESSAGE ? "stop_sequences" : "stop",
                           "needs a tokenizer, and this model has none");
    if (truncation->ratio > 0 &&
        hcache_truncation_check(g->client.h, truncation, NULL, &err) != 0)
        return fault_set(f, 400, NULL, "truncation", "%s", err.msg);
    if (truncation->ratio > 0 && p->max_tokens > HCACHE_MAX_TRUNCATED_ANSWER)
        return fault_field(f, request_max_name(p),
                           "is %lld; for a truncated context it must be at most %d",
                           (long long)p->max_tokens, HCACHE_MAX_TRUNCATED_ANSWER);
    if (request_shaping(p, hcache_encode, g->client.h, &own, f) != 0)
        return -1;
    for (int i = 0; i < own.shaping.n_bias; i++)
        if (own.bias[i].id >= n_vocab)
            return fault_field(f, "logit_bias", "has the token %d; tokens are 0 to %d",
                               own.bias[i].id, n_vocab - 1);
    for (int i = 0; i < own.shaping.n_stop_ids; i++)
        if (own.stop_ids[i] >= n_vocab)
            return fault_field(f, "stop_token_ids", "has the token %d; tokens are 0 to %d",
                               own.stop_ids[i], n_vocab - 1);
    return 0;
}

/* Converts an error of the engine to a fault of the API. submitting: the engine has refused the
 * request at once; else the request has failed later. */
static void fault_of(const struct hcache_err *err, bool submitting, struct fault *f)
{
    if (err->code == HCACHE_E_LIMIT && submitting)
        fault_set(f, 429, "queue_full", NULL, "%-s; try again later", err->msg);
    else if (err->code == HCACHE_E_UNSUPPORTED && submitting)
        fault_set(f, 400, "unsupported_value", NULL, "%-s", err->msg);
    else if (err->code == -ENOMEM)
        fault_set(f, 503, "out_of_memory", NULL, "%s", err->msg);
    else if (err->code == -EAGAIN)
        fault_set(f, 503, "state_not_kept", NULL, "%s", err->msg);
    else if (err->code == -ETIMEDOUT)
        fault_set(f, 504, "timeout", "timeout_ms", "%s", err->msg);
    else if (err->code == HCACHE_E_USAGE || err->code == HCACHE_E_LIMIT)
        fault_set(f, 400, NULL, NULL, "%s", err->msg);
    else
        fault_set(f, 500, NULL, NULL, "%s", err->msg);
}

/* Returns hcache_request.save for a forced plan, NULL for none. A forced plan is for comparisons,
 * and saves only records that it can use: with "recompute" none. */
static const char *saved_for(const char *plan)
{
    return plan == NULL || strcmp(plan, "recompute") != 0 ? plan : "none";
}

static uint64_t client_number(const struct client *c)
{
    return c->salt != NULL ? checksum64(c->salt, strlen(c->salt)) : 0;
}

/* Returns whether the request is one of many texts without answers. */
static bool reads_texts(const struct gen_params *p)
{
    return p->reads == HCACHE_READS_EMBEDDING || p->reads == HCACHE_READS_JUDGEMENT;
}

/* Returns the most tokens of an answer. Without max_tokens it may fill the context, except that
 * OpenAI's completions end after 16. A truncated context has room for at least half a context more.
 * Sets g->max_tokens if the context is too short for what the request asks. */
static int64_t most_tokens(struct generation *g, int n_prompt, bool truncates,
                           int max_context)
{
    const struct gen_params *p = &g->params;
    int64_t rest = max_context - n_prompt;
    int64_t max = p->max_tokens >= 0                          ? p->max_tokens
                  : p->kind != REQUEST_COMPLETION || p->fills ? rest
                                                              : MIN(rest, 16);
    if (!truncates && max > rest)
        g->max_tokens = max = rest;
    if (truncates && p->max_tokens < 0 && max < max_context / 2)
        max = max_context / 2;
    return max;
}

/* Submits a choice: sets ch->ticket from the request's fields and the prompt. */
static int submit(struct generation *g, struct choice *ch, const struct prompt_ids *prompt,
                  const struct hcache_truncation *truncation, int max_context,
                  uint64_t seed, struct hcache_err *err)
{
    const struct gen_params *p = &g->params;
    int64_t max = most_tokens(g, prompt->n, truncation->ratio > 0, max_context);
    struct request_shaping shaping;
    struct fault unused; /* check_fields has seen it */
    (void)request_shaping(p, hcache_encode, g->client.h, &shaping, &unused);
    struct textbuf prediction = {0};
    request_prediction(p, &prediction);
    struct hcache_request r = {.prompt = prompt->ids,
                               .prediction = prediction.p,
                               .n_prediction = prediction.n,
                               .shaping = &shaping.shaping,
                               .form = g->form,
                               .n_prompt = prompt->n,
                               .max_tokens = (int)max,
                               .ignore_eos = p->ignore_eos,
                               .close = p->close,
                               .temperature = (float)p->temperature,
                               .top_p = (float)p->top_p,
                               .min_p = (float)p->min_p,
                               .top_k = (int)p->top_k,
                               .seed = seed,
                               .stop = p->stop,
                               .n_stop = p->n_stop,
                               .logprobs = p->logprobs,
                               .n_top = (int)p->n_top,
                               .truncation = *truncation,
                               .salt = g->salt,
                               .plan = g->client.plan,
                               .reads = p->reads,
                               .save = reads_texts(p) ? "none" : saved_for(g->client.plan),
                               .priority = (int)p->priority,
                               .turn = p->turn,
                               .may_call_tools = p->tools != NULL && !p->no_tools,
                               .expect_reuse_in_s = (int)p->expect_reuse_in,
                               .cache_ttl_s = (int)MAX(p->cache_ttl, 0),
                               .timeout_ms = (int)p->timeout_ms,
                               .client = client_number(&g->client),
                               .client_queue = g->client.own_queue,
                               .durable = p->durable,
                               .on_prompt = p->return_progress && p->stream ? on_prompt
                                                                            : NULL,
                               .notify = on_notify,
                               .arg = ch};
    int rc = hcache_submit(g->client.h, &r, &ch->ticket, err);
    textbuf_free(&prediction);
    return rc;
}

/* Returns how many texts of a request may be in the queue at once: they leave room for others. */
static int most_at_once(const struct generation *g)
{
    enum { AT_ONCE = 32 };
    int max_queue = g->client.max_queue;
    return max_queue > 0 ? MAX(1, MIN(AT_ONCE, max_queue / 2)) : AT_ONCE;
}

/* Submits waiting texts, as many as may run at once. The first text that is refused fails the
 * request. But if the queue is full and others of its texts still run, it is tried again later. */
static void submit_waiting(struct generation *g)
{
    static const struct hcache_truncation none;
    struct hcache_model_info info;
    hcache_model_info(g->client.h, &info);
    pthread_mutex_lock(&g->lock);
    while (g->n_submitted < g->n && !g->is_cancelled && !g->has_failed &&
           g->n_submitted - atomic_load(&g->n_ended) < most_at_once(g)) {
        struct choice *ch = &g->choice[g->n_submitted];
        struct hcache_err err = {0};
        if (submit(g, ch, &g->waiting[g->n_submitted], &none, info.max_context, g->seed,
                   &err) != 0) {
            bool later = err.code == HCACHE_E_LIMIT &&
                         g->n_submitted > atomic_load(&g->n_ended);
            if (later)
                break;
            fault_of(&err, true, &g->failure);
            g->has_failed = true;
        } else {
            hcache_free(g->waiting[g->n_submitted].ids);
            g->waiting[g->n_submitted++].ids = NULL;
            if (g->client.calls != NULL && g->client.calls->began != NULL)
                g->client.calls->began(g->client.arg);
        }
    }
    pthread_mutex_unlock(&g->lock);
}

/* Begins with the texts of a request for embeddings, which has checked them. */
static int submit_texts(struct generation *g, const struct prompt_ids *prompts,
                        struct fault *f)
{
    g->waiting = xcalloc((size_t)g->n, sizeof *g->waiting);
    for (int i = 0; i < g->n; i++) {
        g->waiting[i] = prompts[i];
        g->choice[i].gen = g;
        g->choice[i].index = i;
        g->choice[i].n_prompt = prompts[i].n;
    }
    submit_waiting(g);
    if (g->has_failed)
        *f = g->failure;
    return g->has_failed ? -1 : 0;
}

static int submit_all(struct generation *g, const struct prompt_ids *prompts,
                      struct fault *f)
{
    struct hcache_model_info info;
    struct hcache_err err = {0};
    int n = (int)g->params.n;
    uint64_t seed = g->params.has_seed   ? (uint64_t)g->params.seed
                    : g->client.has_seed ? g->client.seed
                                         : random_u64();
    hcache_model_info(g->client.h, &info);
    g->seed = seed;
    struct hcache_truncation truncation = truncation_of(g);
    g->callable = form_callable(&g->params);
    if (check_fit(&g->params, truncation.ratio > 0, prompts, g->n / n, &info, f) != 0 ||
        check_fields(g, prompts, &truncation, &info, f) != 0 ||
        form_compile(g->client.h, &g->params, g->callable, &g->form, &g->unenforced, f) !=
            0)
        return -1;
    for (int i = 0; i < g->n; i++) {
        struct choice *ch = &g->choice[i];
        ch->gen = g;
        ch->index = i;
        ch->n_prompt = prompts[i / n].n;
        ch->first_id = prompts[i / n].ids[0];
        if (submit(g, ch, &prompts[i / n], &truncation, info.max_context,
                   seed + (uint64_t)(i % n), &err) != 0) {
            fault_of(&err, true, f);
            return -1;
        }
        if (g->client.calls != NULL && g->client.calls->began != NULL)
            g->client.calls->began(g->client.arg);
    }
    return 0;
}

/* Refuses more requests than the queue can ever hold: trying again later would not help. */
static int never_fits_queue(int n, int max_queue, struct fault *f)
{
    return fault_set(f, 400, NULL, "n",
                     "%d answers are wanted at once, but at most %d requests may wait here "
                     "(--max-queue)",
                     n, max_queue);
}

/* Sets the id and the time that the answer shows. */
static void name_generation(struct generation *g)
{
    static atomic_uint_fast64_t next;
    const char *kind = g->params.kind == REQUEST_CHAT ? "chatcmpl" : "cmpl";
    const struct client *c = &g->client;
    g->created_s = c->repeatable ? c->created_s : clock_wall_s();
    if (c->repeatable)
        snprintf(g->id, sizeof g->id, "%s-%.32s", kind, c->request_name);
    else
        snprintf(g->id, sizeof g->id, "%s-%016llx%08llx", kind,
                 (unsigned long long)random_u64(),
                 (unsigned long long)atomic_fetch_add(&next, 1));
}

int generation_start(const struct client *c, const struct dialect *dialect, void *own,
                     const struct gen_params *p, struct prompt_ids *prompts, int n_prompts,
                     struct prompt_text *text, const char *what, struct generation **out,
                     struct fault *f)
{
    bool chooses = p->best_of > p->n;
    int each = (int)(chooses ? p->best_of : p->n);
    int n = n_prompts * each, max_queue = c->max_queue;
    struct generation *g = xcalloc(1, sizeof *g + (size_t)n * sizeof g->choice[0]);
    g->client = *c;
    g->dialect = dialect;
    g->own = own;
    g->params = *p;
    g->params.n = each;
    g->n_best = chooses ? (int)p->n : 0;
    g->hides_logprobs = chooses && !p->logprobs;
    g->params.logprobs |= chooses;
    g->begun_ns = clock_now_ns();
    g->salt = client_state_salt(c, p->cache_salt);
    g->n = n;
    name_generation(g);
    snprintf(g->miss, sizeof g->miss, "%s", what);
    pthread_mutex_init(&g->lock, NULL);
    bool waits = reads_texts(p);
    int rc = waits                            ? submit_texts(g, prompts, f)
             : max_queue > 0 && n > max_queue ? never_fits_queue(n, max_queue, f)
                                              : submit_all(g, prompts, f);
    if (waits)
        n_prompts = 0; /* g has the prompts */
    if (text != NULL) {
        g->text = *text;
        g->prompt = prompts[0];
        n_prompts = 0; /* from here on g owns the prompt and its text */
    }
    for (int i = 0; i < n_prompts; i++)
        hcache_free(prompts[i].ids);
    if (rc != 0)
        generation_free(g);
    *out = rc == 0 ? g : NULL;
    return rc;
}

const struct client *generation_client(const struct generation *g)
{
    return &g->client;
}

/* --- the end ---------------------------------------------------------------------------------- */

bool generation_is_stream(const struct generation *g)
{
    return g->params.stream;
}

bool generation_has_lines(const struct generation *g)
{
    return g->dialect->lines;
}

bool generation_has_ended(struct generation *g)
{
    if (g->waiting != NULL)
        submit_waiting(g);
    return atomic_load(&g->n_ended) == (g->waiting != NULL ? g->n_submitted : g->n);
}

bool generation_is_over(const struct generation *g)
{
    return g->is_over;
}

/* Gives new text to the answer's parser. */
static void read_answer(struct choice *ch, const char *text, size_t n,
                        const struct hcache_special *special, int n_special)
{
    const struct gen_params *p = &ch->gen->params;
    if (p->kind == REQUEST_COMPLETION)
        return;
    if (ch->answer == NULL)
        ch->answer = hcache_answer_open(ch->gen->client.h, p->prompt_end,
                                        strlen(p->prompt_end), ch->gen->callable);
    hcache_answer_push(ch->answer, text, n, special, n_special);
    ch->n_read += n;
    ch->n_special += n_special;
}

/* Gives the rest of the answer to its parser. */
static void end_answer(struct choice *ch)
{
    const struct hcache_result *r = &ch->result;
    struct hcache_special *rest = xcalloc((size_t)r->n_special + 1, sizeof *rest);
    int n = 0;
    for (int i = ch->n_special; i < r->n_special; i++, n++)
        rest[n] = (struct hcache_special){
            r->special[i].at - MIN(r->special[i].at, ch->n_read), r->special[i].id};
    size_t from = MIN(ch->n_read, r->n_text);
    read_answer(ch, r->text != NULL ? r->text + from : "", r->n_text - from, rest, n);
    if (ch->answer != NULL)
        hcache_answer_end(ch->answer);
    free(rest);
}

/* Reports the end of a choice to the client, only once. */
static void tell_end(struct choice *ch, enum answer_end end, const struct hcache_result *r)
{
    struct generation *g = ch->gen;
    if (ch->is_told)
        return;
    ch->is_told = true;
    if (g->client.calls != NULL && g->client.calls->ended != NULL)
        g->client.calls->ended(g->client.arg, end, r,
                               r != NULL && provenance_miss(r, g->miss) != NULL);
}

static enum answer_end end_of(const struct hcache_result *r)
{
    return strcmp(r->finish, "cancelled") == 0 ? ANSWER_CANCELLED
           : strcmp(r->finish, "timeout") == 0 ? ANSWER_TIMEOUT
                                               : ANSWER_DONE;
}

/* Notes how the answer's state came back, by the id that its client sees. */
static void note_recent(const struct choice *ch)
{
    const struct generation *g = ch->gen;
    const struct client *c = &g->client;
    if (c->recent == NULL || reads_texts(&g->params))
        return;
    struct json *told = provenance_json(&ch->result, g->miss);
    const struct recent_request q = {.id = g->dialect->id != NULL ? g->dialect->id(g)
                                                                  : g->id,
                                     .agent = c->agent,
                                     .created_s = g->created_s,
                                     .told = told};
    recent_add(c->recent, c->salt != NULL ? c->salt : "", &q);
    json_free(told);
}

/* Puts the log-probabilities of the prompt before those of the answer. The first token has none. */
static void put_prompt_logprobs(struct choice *ch)
{
    struct textbuf all = {0}, answer = ch->logprobs;
    struct hcache_logprob first[1 + HCACHE_MAX_TOP];
    size_t width = 1 + (size_t)ch->gen->params.n_top, row = width * sizeof first[0];
    first[0] = (struct hcache_logprob){.id = ch->first_id, .logprob = NAN};
    for (size_t i = 1; i < width; i++)
        first[i] = (struct hcache_logprob){.id = -1};
    ch->lacks_logprobs |= !textbuf_try_add(&all, first, row) ||
                          !textbuf_try_add(&all, ch->result.prompt_logprobs,
                                           (size_t)(ch->n_prompt - 1) * row) ||
                          !textbuf_try_add(&all, answer.p, answer.n);
    textbuf_free(&answer);
    ch->logprobs = all;
}

/* Takes a choice's result, and does all that follows from its end: explains its miss, notes it
 * among the recent requests, ends the reading of its parts, and remembers its tokens. Returns 0, or
 * -1 with *f if the choice failed, or was cut off because the server stops. */
static int take_result(struct choice *ch, struct fault *f)
{
    struct hcache_err err = {0};
    ch->finished = true;
    if (hcache_ticket_result(ch->ticket, &ch->result, &err) != 0) {
        tell_end(ch, err.code == -ETIMEDOUT ? ANSWER_TIMEOUT : ANSWER_FAILED, NULL);
        fault_of(&err, false, f);
        return -1;
    }
    tell_end(ch, end_of(&ch->result), &ch->result);
    if (strcmp(ch->result.finish, "cancelled") == 0)
        return fault_set(f, 503, "stopping", NULL, "the server is stopping");
    struct generation *g = ch->gen;
    date_explain(&g->params.date, ch->result.differs_at, ch->result.miss,
                 sizeof ch->result.miss);
    note_recent(ch);
    end_answer(ch);
    if (ch->result.prompt_logprobs != NULL)
        put_prompt_logprobs(ch);
    const struct retoken_owner owner = {.salt = g->client.salt,
                                        .state_salt = g->salt,
                                        .ttl_s = MAX(g->params.cache_ttl, 0)};
    if (g->text.text != NULL && g->client.answers != NULL)
        retoken_remember(g->client.h, g->client.answers, &owner, &g->text, g->prompt.ids,
                         g->prompt.n, &ch->result);
    return 0;
}

static void read_choice(struct choice *ch, struct hcache_delta *d)
{
    hcache_ticket_read(ch->ticket, d);
    ch->n_cached = d->cached_tokens;
    if (ch->gen->params.return_tokens)
        textbuf_add(&ch->ids, d->ids, (size_t)d->n_ids * sizeof *d->ids);
    size_t n = (size_t)d->n_ids * (size_t)(1 + ch->gen->params.n_top) * sizeof *d->logprobs;
    ch->lacks_logprobs |= d->logprobs != NULL &&
                          !textbuf_try_add(&ch->logprobs, d->logprobs, n);
}

static int no_memory(struct fault *f)
{
    return fault_refuse(f, -ENOMEM, NULL,
                        "there is no memory for the answer; try again later, or ask for "
                        "fewer tokens or log-probabilities at once");
}

/* Reserves memory for a whole answer, which is built as values and then as text: measured at
 * most 300 bytes for each log-probability, and 8 times its text. The code that sends the answer
 * ends the pledge. */
static int pledge_answer(const struct generation *g, struct fault *f)
{
    enum { FREE_BYTES = 64 << 10, LOGPROB_BYTES = 400, TEXT_TIMES = 8 };
    size_t n = 0;
    for (int i = 0; i < g->n; i++) {
        const struct choice *ch = &g->choice[i];
        if (ch->lacks_logprobs)
            return no_memory(f);
        n += TEXT_TIMES * (ch->result.n_text + (size_t)ch->result.n_embedding * 4) +
             ch->logprobs.n / sizeof(struct hcache_logprob) * LOGPROB_BYTES;
    }
    return n <= FREE_BYTES || mem_pledge(n, NULL) == 0 ? 0 : no_memory(f);
}

/* Has the dialect keep the answer. Called once: afterwards keep_unfinished keeps nothing. */
static int keep(struct generation *g, struct fault *f)
{
    g->is_kept = true;
    return g->dialect->keep != NULL ? g->dialect->keep(g, f) : 0;
}

/* Cancels the choices. If the dialect keeps unfinished answers, waits for the choices to end and
 * keeps what they have. No one is left to hear of a fault: the client has gone, or the server
 * stops. */
static void keep_unfinished(struct generation *g)
{
    struct fault f;
    bool all = !g->is_kept && g->dialect->keeps_unfinished;
    generation_cancel(g);
    for (int i = 0; all && i < g->n; i++) {
        struct choice *ch = &g->choice[i];
        if (ch->ticket == NULL) {
            all = false; /* this choice was never submitted */
        } else if (!ch->finished) {
            hcache_ticket_wait(ch->ticket);
            (void)take_result(ch, &f);
        }
        all = all && ch->result.finish != NULL;
    }
    if (all)
        (void)keep(g, &f);
}

int generation_answer(struct generation *g, struct json **answer, struct fault *f)
{
    for (int i = 0; i < g->n; i++) {
        struct hcache_delta d;
        if (g->choice[i].ticket == NULL) { /* it waited */
            if (!g->has_failed)
                return fault_set(f, 503, "stopping", NULL, "the request was cancelled");
            *f = g->failure;
            return -1;
        }
        read_choice(&g->choice[i], &d);
        if (take_result(&g->choice[i], f) != 0)
            return -1;
    }
    if (pledge_answer(g, f) != 0 || keep(g, f) != 0)
        return -1;
    *answer = g->dialect->answer(g);
    return 0;
}

/* --- streaming -------------------------------------------------------------------------------- */

static void stream_fault(struct generation *g, const struct fault *f, struct textbuf *out)
{
    if (g->dialect->fault != NULL)
        g->dialect->fault(g, f, out);
    else
        sse_json(out, fault_json(f));
    g->is_over = true;
    generation_cancel(g);
}

/* Sends what is new in the parts of an answer. */
static void send_parts(struct generation *g, struct choice *ch, struct textbuf *out)
{
    struct hcache_part p, after;
    while (hcache_answer_part(ch->answer, ch->part, &p)) {
        bool is_call = p.kind == HCACHE_PART_CALL;
        if (p.n > ch->n_sent || (is_call && ch->n_sent == 0)) {
            size_t n = p.n;
            p.text += is_call ? 0 : ch->n_sent;
            p.n -= is_call ? 0 : ch->n_sent;
            g->dialect->piece(g, ch, ch->part, &p, out);
            ch->n_sent = n;
        }
        if (!is_call && !hcache_answer_part(ch->answer, ch->part + 1, &after))
            break;
        ch->part++;
        ch->n_sent = 0;
    }
}

/* Sends new text. A token without visible text waits for one that has some, so that no chunk is
 * empty, above all not the first (clients take it for the first token). */
static void send_delta(struct generation *g, struct choice *ch,
                       const struct hcache_delta *d, struct textbuf *out)
{
    const struct hcache_part p = {
        .kind = HCACHE_PART_TEXT, .text = d->text, .n = d->n_text};
    if (ch->answer != NULL)
        send_parts(g, ch, out);
    else if (d->n_text > 0)
        g->dialect->piece(g, ch, 0, &p, out);
}

static void tell_progress(struct generation *g, struct choice *ch, int n_done,
                          struct textbuf *out)
{
    ch->n_progress = n_done;
    g->dialect->progress(g, ch, out);
}

static void stream_choice(struct generation *g, struct choice *ch, struct textbuf *out)
{
    struct hcache_delta d;
    struct fault f;
    read_choice(ch, &d);
    read_answer(ch, d.text, d.n_text, d.special, d.n_special);
    if (ch->lacks_logprobs) {
        (void)no_memory(&f);
        stream_fault(g, &f, out);
        return;
    }
    if (d.prompt_done > ch->n_progress && g->dialect->progress != NULL) {
        if (ch->n_progress == 0)
            tell_progress(g, ch, ch->n_cached, out);
        if (d.prompt_done > ch->n_progress)
            tell_progress(g, ch, d.prompt_done, out);
    }
    if (ch->n_tokens == 0)
        ch->first_ns = clock_now_ns();
    ch->n_tokens += d.n_ids;
    bool failed = d.ended && take_result(ch, &f) != 0;
    send_delta(g, ch, &d, out);
    if (failed)
        stream_fault(g, &f, out);
    else if (d.ended)
        g->dialect->end(g, ch, out);
}

void generation_stream(struct generation *g, struct textbuf *out)
{
    struct fault f;
    bool all = true;
    if (!g->has_begun && g->dialect->begin != NULL)
        g->dialect->begin(g, out);
    g->has_begun = true;
    for (int i = 0; i < g->n && !g->is_over; i++) {
        if (!g->choice[i].finished)
            stream_choice(g, &g->choice[i], out);
        all = all && g->choice[i].finished;
    }
    if (!all || g->is_over)
        return;
    if (keep(g, &f) != 0) {
        stream_fault(g, &f, out);
        return;
    }
    if (g->dialect->close != NULL)
        g->dialect->close(g, out);
    g->is_over = true;
}

void generation_cancel(struct generation *g)
{
    if (g == NULL)
        return;
    pthread_mutex_lock(&g->lock);
    g->is_cancelled = true;
    for (int i = 0; i < g->n; i++) {
        if (g->choice[i].ticket != NULL)
            hcache_ticket_cancel(g->choice[i].ticket);
    }
    pthread_mutex_unlock(&g->lock);
}

void generation_free(struct generation *g)
{
    if (g == NULL)
        return;
    keep_unfinished(g);
    for (int i = 0; i < g->n; i++) {
        if (g->choice[i].ticket != NULL) /* no client waits for this answer any more */
            tell_end(&g->choice[i], ANSWER_CANCELLED, NULL);
        hcache_ticket_free(g->choice[i].ticket);
        textbuf_free(&g->choice[i].logprobs);
        textbuf_free(&g->choice[i].ids);
        hcache_answer_close(g->choice[i].answer);
        hcache_result_free(&g->choice[i].result);
    }
    for (int i = 0; g->waiting != NULL && i < g->n; i++)
        hcache_free(g->waiting[i].ids);
    free(g->waiting);
    pthread_mutex_destroy(&g->lock);
    if (g->dialect->drop != NULL)
        g->dialect->drop(g->own);
    free(g->salt);
    hcache_form_free(g->form);
    json_free(g->callable);
    hcache_free(g->unenforced);
    prompt_text_deinit(&g->text);
    hcache_free(g->prompt.ids);
    free(g);
}
