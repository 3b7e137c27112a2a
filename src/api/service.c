/* service.c - see service.h.
 *
 * Invariants:
 * 1. A ticket is in exactly one place: the queue (submitted, not seen by the engine yet), the
 *    live list (its sequence waits or runs in the engine), the settling list (its sequence has
 *    finished, and its saved state must be durable before its end is reported), or in no list
 *    (ENDED).
 * 2. Only the stepping thread touches the engine and its sequences. It never waits for the store
 *    while there is something to step.
 * 3. A ticket that was given up (freed while it ran) is destroyed by the loop when it ends. */
#include "api/service.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/thread.h"
#include "api/counts.h"
#include "engine/sched.h"
#include "save/saver.h"

enum { DEFAULT_QUEUE = 64 };

struct service {
    struct service_opts o;
    pthread_t thread;
    bool must_join;
    int max_queue;

    /* Protects all fields below, and the shared fields of every ticket. */
    pthread_mutex_t lock;
    /* for the loop: there is a submission or a cancellation, or the service ends */
    pthread_cond_t work;
    pthread_cond_t progress; /* for threads that wait for a ticket */
    bool has_thread, stopping;
    /* Numbers of erasures: those that were reported, and those that the engine has learned of. */
    uint64_t forget_asked, forget_done;
    struct hcache_ticket *queue, **queue_end;
    struct hcache_ticket *live, *settling;
    bool is_resting; /* memory was given back, and no request has come since */
    bool may_settle; /* some settling tickets may have settled since the last look */
    struct counts counts;
    struct engine_stats engine; /* as of the last step */
    /* average time that recent requests held a place, in seconds; 0: no request has ended */
    double held_s;
};

/* --- how long requests wait ------------------------------------------------------------------- */

/* [lock] Updates held_s, an average over some tens of requests, by a finished sequence's ticket. */
static void learn_held(struct service *s, const struct hcache_ticket *t)
{
    if (t->state != TICKET_RUNNING)
        return;
    double seconds = (double)(clock_now_ns() - t->t_admit) * 1e-9;
    s->held_s += (seconds - s->held_s) * (s->held_s == 0 ? 1 : 1.0 / 16);
}

/* [lock] Returns the expected wait of a new request. Until a request has ended, the time that the
 * oldest running request has held its place stands for the average. */
static double expected_wait_s(const struct service *s)
{
    double held_s = s->held_s;
    int64_t now = clock_now_ns();
    if (s->counts.now.n_waiting == 0 && s->counts.now.n_running < s->o.max_sequences)
        return 0;
    for (const struct hcache_ticket *t = s->live; t != NULL && s->held_s == 0;
         t = t->next) {
        double seconds = t->state == TICKET_RUNNING ? (double)(now - t->t_admit) * 1e-9 : 0;
        held_s = MAX(seconds, held_s);
    }
    return sched_wait_s(s->counts.now.n_waiting, s->counts.now.n_running, held_s);
}

void service_stats(struct service *s, struct hcache_stats *out)
{
    struct saver_stats saver;
    pthread_mutex_lock(&s->lock);
    counts_read(&s->counts, &s->engine, out);
    out->wait_s = expected_wait_s(s);
    pthread_mutex_unlock(&s->lock);
    if (s->o.saver != NULL) {
        saver_stats(s->o.saver, &saver);
        counts_saver(&saver, out);
    }
}

/* --- tokens ----------------------------------------------------------------------------------- */

/* [lock] Reports news of the ticket to its request's `notify`, and to threads that wait for it. */
static void tell(struct hcache_ticket *t, bool ended)
{
    const struct hcache_request *r = &t->req->ask;
    if (r->notify != NULL && !t->given_up)
        r->notify(r->arg, ended);
    pthread_cond_broadcast(&t->service->progress);
}

/* Adds one token to a ticket. Called in the middle of a step. */
static int on_token(void *arg, int32_t id)
{
    struct hcache_ticket *t = arg;
    const char *text = "";
    size_t n = 0;
    int64_t now = clock_now_ns();
    const struct hcache_request *r = &t->req->ask;
    int width = 1 + r->n_top;
    if (t->stream != NULL && tokenizer_stream_push(t->stream, id, &text, &n, NULL) != 0)
        n = 0;
    if (r->logprobs)
        engine_logprobs(seq_logits(t->seq), t->n_vocab, id, r->n_top,
                        t->logprobs + (size_t)t->n_ids * (size_t)width);
    pthread_mutex_lock(&t->service->lock);
    CHECK(t->n_ids < r->max_tokens && t->ids[t->n_ids] == id);
    t->n_ids++;
    t->n_cached = seq_outcome(t->seq)->r.cached_tokens;
    if (r->on_prompt != NULL)
        t->n_prompt_done = r->n_prompt;
    ticket_append(t, text, n);
    if (t->tokenizer != NULL && tokenizer_is_special(t->tokenizer, id))
        ticket_special(t, id);
    if (t->t_last != 0)
        counts_gap(&t->service->counts, (double)(now - t->t_last) * 1e-9);
    t->t_last = now;
    bool end = t->stopped || t->cancel;
    tell(t, false);
    pthread_mutex_unlock(&t->service->lock);
    return end;
}

/* --- the loop --------------------------------------------------------------------------------- */

/* Ends the text. The beginning of a character that the model has left unfinished stays; one that
 * was cut off, by max_tokens for example, is left out. */
static void finish_text(struct hcache_ticket *t, enum finish finish)
{
    const char *text = "";
    size_t n = 0;
    if (t->stream != NULL)
        tokenizer_stream_finish(t->stream, &text, &n);
    if (finish != FINISH_EOS)
        n = 0;
    pthread_mutex_lock(&t->service->lock);
    ticket_append(t, text, n);
    /* the answer has ended, so no stop string can be completed any more */
    t->n_visible = t->n_text;
    pthread_mutex_unlock(&t->service->lock);
}

/* Ends a ticket, which is in no list. Only the stepping thread calls this. */
static void ticket_end(struct service *s, struct hcache_ticket *t)
{
    if (t->state == TICKET_WAITING)
        t->t_admit = clock_now_ns();
    enum finish finish = t->seq != NULL ? seq_outcome(t->seq)->finish : FINISH_NONE;
    if (finish == FINISH_ERROR && t->err.code == 0)
        t->err = seq_outcome(t->seq)->err;
    if (finish == FINISH_TIMEOUT && t->n_ids == 0)
        err_set(&t->err, -ETIMEDOUT, "the request's timeout passed before the first token");
    finish_text(t, finish);
    ticket_describe(t, s->o.tier, s->o.load_ms);
    if (t->seq != NULL)
        engine_remove(s->o.engine, t->seq);
    t->seq = NULL;
    pthread_mutex_lock(&s->lock);
    engine_stats(s->o.engine, &s->engine);
    s->counts.now.n_waiting -= t->state == TICKET_WAITING;
    s->counts.now.n_running -= t->state == TICKET_RUNNING;
    t->state = TICKET_ENDED;
    counts_end(&s->counts, t);
    bool given_up = t->given_up;
    if (!given_up)
        tell(t, true);
    pthread_mutex_unlock(&s->lock);
    if (given_up)
        ticket_destroy(t);
}

/* Returns whether the ticket needs no further step: cancelled, failed, or its answer is whole. */
static bool has_finished(const struct hcache_ticket *t)
{
    return t->cancel || t->err.code != 0 ||
           (t->seq != NULL && seq_outcome(t->seq)->finish != FINISH_NONE);
}

/* Returns whether the ticket's saved state is durable, has failed, or need not be waited for. A
 * fault of the disk was reported when it happened. */
static bool is_settled(const struct hcache_ticket *t)
{
    return t->cancel || saver_reached(t->service->o.saver, t->mark);
}

/* [lock] Moves the tickets for which is_so holds from *list to *done. */
static void take(struct hcache_ticket **list, bool (*is_so)(const struct hcache_ticket *),
                 struct hcache_ticket **done)
{
    while (*list != NULL) {
        struct hcache_ticket *t = *list;
        if (!is_so(t)) {
            list = &t->next;
            continue;
        }
        *list = t->next;
        t->next = *done;
        *done = t;
    }
}

/* Makes a ticket wait for its saved state to be durable, if its request wants that: moves it to the
 * settling list and returns true. The sequence has handed its state to the saver by now. Returns
 * false if the ticket can end at once. */
static bool settles(struct service *s, struct hcache_ticket *t)
{
    if (!t->req->ask.durable || s->o.saver == NULL || t->err.code != 0 ||
        t->state != TICKET_RUNNING)
        return false;
    t->mark = saver_mark(s->o.saver);
    pthread_mutex_lock(&s->lock);
    t->state = TICKET_SETTLING;
    s->counts.now.n_running--;
    t->next = s->settling;
    s->settling = t;
    s->may_settle = true;
    pthread_mutex_unlock(&s->lock);
    return true;
}

/* Ends the tickets whose sequences have finished; if their state must be durable first, they only
 * settle now. Ends those that have settled. */
static void end_finished(struct service *s)
{
    struct hcache_ticket *done = NULL, *settled = NULL;
    pthread_mutex_lock(&s->lock);
    s->may_settle = false;
    take(&s->settling, is_settled, &settled);
    take(&s->live, has_finished, &done);
    take(&s->queue, has_finished, &done);
    s->queue_end = &s->queue;
    while (*s->queue_end != NULL)
        s->queue_end = &(*s->queue_end)->next;
    for (struct hcache_ticket *t = done; t != NULL; t = t->next)
        learn_held(s, t);
    pthread_mutex_unlock(&s->lock);
    while (settled != NULL) {
        struct hcache_ticket *t = settled;
        settled = t->next;
        ticket_end(s, t);
    }
    while (done != NULL) {
        struct hcache_ticket *t = done;
        done = t->next;
        if (!settles(s, t))
            ticket_end(s, t);
    }
}

/* Notes that the ticket's sequence has a place. Called in the middle of a step. */
static void on_admit(void *arg)
{
    struct hcache_ticket *t = arg;
    struct service *s = t->service;
    t->t_admit = clock_now_ns();
    pthread_mutex_lock(&s->lock);
    t->state = TICKET_RUNNING;
    s->counts.now.n_waiting--;
    s->counts.now.n_running++;
    pthread_mutex_unlock(&s->lock);
}

/* Moves the first queued ticket to the live list. Returns it, or NULL if the queue is empty. */
static struct hcache_ticket *queue_take(struct service *s)
{
    pthread_mutex_lock(&s->lock);
    struct hcache_ticket *t = s->queue;
    if (t != NULL) {
        s->queue = t->next;
        if (s->queue == NULL)
            s->queue_end = &s->queue;
        t->next = s->live;
        s->live = t;
    }
    pthread_mutex_unlock(&s->lock);
    return t;
}

/* Passes queued tickets to the engine, which decides their order. A request that can never fit
 * ends with its error. */
static void pass_to_engine(struct service *s)
{
    struct hcache_ticket *t;
    while ((t = queue_take(s)) != NULL) {
        if (engine_add(s->o.engine, t->req, &t->seq, &t->err) != 0)
            t->seq = NULL;
    }
    end_finished(s);
}

/* Ends all sequences with one error: the fault concerns them all, and their state is unknown. */
static void fail_all(struct service *s, const struct err *err)
{
    pthread_mutex_lock(&s->lock);
    for (struct hcache_ticket *t = s->live; t != NULL; t = t->next)
        t->err = *err;
    pthread_mutex_unlock(&s->lock);
}

/* [lock] Reports the progress of prompts to the tickets that asked for it. */
static void tell_progress(struct service *s)
{
    for (struct hcache_ticket *t = s->live; t != NULL; t = t->next) {
        if (t->req->ask.on_prompt == NULL || t->seq == NULL)
            continue;
        int n = MIN(seq_tokens_done(t->seq), t->req->ask.n_prompt);
        bool more = n > t->n_prompt_done;
        t->n_prompt_done = n;
        t->n_cached = seq_outcome(t->seq)->r.cached_tokens;
        if (more)
            tell(t, false);
        pthread_cond_broadcast(&s->progress);
    }
}

static void service_step(struct service *s)
{
    struct err err = {0};
    int n_active;    /* the tickets tell it, too */
    end_finished(s); /* ends tickets that were cancelled while there was nothing to step */
    pass_to_engine(s);
    if (s->live == NULL)
        return;
    if (engine_step(s->o.engine, &n_active, &err) != 0)
        fail_all(s, &err);
    struct engine_stats st;
    engine_stats(s->o.engine, &st);
    pthread_mutex_lock(&s->lock);
    s->engine = st;
    tell_progress(s);
    pthread_mutex_unlock(&s->lock);
    end_finished(s);
}

/* Notes that settling tickets may have settled. The saver calls it with its lock held. */
static void on_commit(void *arg)
{
    struct service *s = arg;
    pthread_mutex_lock(&s->lock);
    s->may_settle = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

void service_flush(struct service *s)
{
    /* An error need not be returned: it was reported when it happened. */
    if (s->o.saver != NULL)
        (void)saver_flush(s->o.saver, NULL);
}

/* [lock] Passes reported erasures on to the engine, which belongs to the stepping thread. */
static void forget_erased(struct service *s)
{
    uint64_t asked = s->forget_asked;
    pthread_mutex_unlock(&s->lock);
    engine_forget_saved(s->o.engine);
    pthread_mutex_lock(&s->lock);
    s->forget_done = asked;
    pthread_cond_broadcast(&s->progress);
}

void service_forget_erased(struct service *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t mine = ++s->forget_asked;
    pthread_cond_signal(&s->work);
    while (s->has_thread && s->forget_done < mine)
        pthread_cond_wait(&s->progress, &s->lock);
    if (s->forget_done < mine)
        forget_erased(s);
    pthread_mutex_unlock(&s->lock);
}

void service_forget_erased_soon(void *service)
{
    struct service *s = service;
    pthread_mutex_lock(&s->lock);
    s->forget_asked++;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

/* [lock] Returns whether there is a ticket that can be stepped or ended. */
static bool has_work(const struct service *s)
{
    return s->queue != NULL || s->live != NULL || (s->settling != NULL && s->may_settle);
}

/* [lock, released meanwhile] Gives memory that idle models do not need back to the system. */
static void rest(struct service *s)
{
    s->is_resting = true;
    pthread_mutex_unlock(&s->lock);
    engine_rest(s->o.engine);
    if (s->o.saver != NULL)
        saver_rest(s->o.saver);
    mem_trim();
    pthread_mutex_lock(&s->lock);
}

/* [lock, released meanwhile] Waits until there is work or an erasure to pass on, or until
 * service_stop was called and no ticket is settling. */
static void wait_for_work(struct service *s)
{
    while (!has_work(s) && s->forget_asked == s->forget_done &&
           (s->settling != NULL || !s->stopping)) {
        bool may_rest = s->o.rest_ns > 0 && !s->is_resting && s->settling == NULL;
        if (!may_rest)
            pthread_cond_wait(&s->work, &s->lock);
        else if (clock_cond_wait(&s->work, &s->lock, s->o.rest_ns) && !has_work(s))
            rest(s);
    }
}

static void *service_main(void *arg)
{
    struct service *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        wait_for_work(s);
        if (s->forget_asked != s->forget_done)
            forget_erased(s);
        if (!has_work(s)) {
            if (s->stopping && s->settling == NULL)
                break;
            continue;
        }
        s->is_resting = false;
        pthread_mutex_unlock(&s->lock);
        service_step(s);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    service_flush(s);
    pthread_mutex_lock(&s->lock);
    if (s->forget_asked != s->forget_done)
        forget_erased(s);
    s->has_thread = false; /* from now on callers flush on their own thread */
    pthread_cond_broadcast(&s->progress);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* --- life ------------------------------------------------------------------------------------- */

void service_create(const struct service_opts *o, struct service **out)
{
    struct service *s = xcalloc(1, sizeof *s);
    s->o = *o;
    s->max_queue = DEFAULT_QUEUE;
    engine_stats(o->engine, &s->engine);
    s->queue_end = &s->queue;
    pthread_mutex_init(&s->lock, NULL);
    clock_cond_init(&s->work);
    clock_cond_init(&s->progress);
    if (o->saver != NULL)
        saver_on_commit(o->saver, on_commit, s);
    *out = s;
}

/* [lock, or no thread runs] Cancels all tickets. */
static void cancel_all(struct service *s)
{
    for (struct hcache_ticket *t = s->queue; t != NULL; t = t->next)
        t->cancel = true;
    for (struct hcache_ticket *t = s->live; t != NULL; t = t->next)
        t->cancel = true;
}

void service_destroy(struct service *s)
{
    if (s == NULL)
        return;
    service_stop(s);
    /* there may be tickets that were submitted and given up, and no thread has ended them */
    cancel_all(s);
    while (s->queue != NULL || s->live != NULL || s->settling != NULL) {
        pthread_mutex_lock(&s->lock);
        wait_for_work(s);
        pthread_mutex_unlock(&s->lock);
        service_step(s);
    }
    if (s->o.saver != NULL)
        saver_on_commit(s->o.saver, NULL, NULL);
    pthread_cond_destroy(&s->progress);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

int service_start(struct service *s, int max_queue, struct err *err)
{
    if (s->has_thread)
        return err_set(err, ERR_USAGE, "the engine's thread runs already");
    s->max_queue = max_queue > 0 ? max_queue : DEFAULT_QUEUE;
    s->stopping = false;
    int rc = thread_create(&s->thread, service_main, s);
    if (rc != 0)
        return err_set(err, -rc, "the engine's thread cannot be started: %s",
                       err_name(-rc));
    s->has_thread = s->must_join = true;
    return 0;
}

bool service_is_started(const struct service *s)
{
    return s->has_thread;
}

void service_stop(struct service *s)
{
    if (!s->must_join)
        return;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    cancel_all(s);
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    /* a step may take seconds; this ends the present one within a layer */
    if (s->o.weights != NULL)
        weights_stop(s->o.weights, true);
    pthread_join(s->thread, NULL);
    if (s->o.weights != NULL)
        weights_stop(s->o.weights, false);
    s->must_join = false;
}

/* --- tickets ---------------------------------------------------------------------------------- */

int service_answer_room(const struct service *s, int max_tokens,
                        const struct truncation *truncation)
{
    bool is_bounded = truncation->context == 0 && max_tokens > s->o.max_context;
    return is_bounded ? s->o.max_context : max_tokens;
}

/* Feeds the prompt's last four tokens to the text stream. Some tokenizers drop a space at the
 * beginning of a text, but the answer continues a text, so its first space must stay. Four tokens
 * complete any character. */
static void prime_text(struct hcache_ticket *t)
{
    const char *text;
    size_t n;
    const struct hcache_request *r = &t->req->ask;
    for (int i = r->n_prompt - MIN(r->n_prompt, 4); i < r->n_prompt; i++)
        (void)tokenizer_stream_push(t->stream, r->prompt[i], &text, &n, NULL);
}

/* Creates the ticket of a request. Returns NULL if there is no memory for its log-probabilities. */
static struct hcache_ticket *ticket_create(struct service *s, struct request *q)
{
    size_t width = 1 + (size_t)q->ask.n_top, n = 0;
    struct hcache_ticket *t = xcalloc(1, sizeof *t);
    t->service = s;
    t->req = q;
    t->ids = request_answer(q);
    q->on_token = on_token;
    q->on_admit = on_admit;
    q->arg = t;
    if (q->ask.logprobs) {
        n = (size_t)service_answer_room(s, q->ask.max_tokens, &q->truncation) * width;
        t->logprobs = mem_try_calloc(n + 1, sizeof *t->logprobs);
    }
    if (q->ask.logprobs && t->logprobs == NULL) {
        ticket_destroy(t);
        return NULL;
    }
    t->n_vocab = s->o.n_vocab;
    t->tokenizer = s->o.tokenizer;
    if (t->tokenizer != NULL) {
        t->stream = tokenizer_stream_create(t->tokenizer, true);
        prime_text(t);
    }
    t->text_cap = 256;
    t->text = xcalloc(1, t->text_cap);
    return t;
}

/* [lock] Returns how many requests of the client wait. */
static int n_waiting_of(const struct service *s, uint64_t client)
{
    const struct hcache_ticket *lists[] = {s->queue, s->live};
    int n = 0;
    for (int i = 0; i < 2; i++)
        for (const struct hcache_ticket *t = lists[i]; t != NULL; t = t->next)
            n += t->state == TICKET_WAITING && t->req->ask.client == client;
    return n;
}

int service_submit(struct service *s, struct request *q, struct hcache_ticket **out,
                   struct err *err)
{
    const struct hcache_request *r = &q->ask;
    int rc = 0;
    struct hcache_ticket *t = ticket_create(s, q);
    if (t == NULL)
        return err_set(err, -ENOMEM, "no memory for the log-probabilities of an answer");
    t->t_submit = clock_now_ns();
    if (s->o.store != NULL)
        q->epoch = store_epoch(s->o.store);
    if (r->timeout_ms > 0)
        q->deadline_ns = t->t_submit + r->timeout_ms * (int64_t)1000000;
    pthread_mutex_lock(&s->lock);
    if (s->stopping && (s->has_thread || !r->durable)) {
        rc = err_set(err, ERR_LIMIT,
                     s->has_thread ? "the server is stopping"
                                   : "the engine's thread was stopped");
    } else if (s->counts.now.n_waiting >= s->max_queue &&
               n_waiting_of(s, r->client) >= r->client_queue) {
        rc = err_set(err, ERR_LIMIT, "%d requests are waiting already",
                     s->counts.now.n_waiting);
        s->counts.now.n_refused++;
    } else {
        *s->queue_end = t;
        s->queue_end = &t->next;
        s->counts.now.n_waiting++;
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
    if (rc != 0)
        ticket_destroy(t);
    else
        *out = t;
    return rc;
}

/* [lock] Returns whether the caller has not yet read all that the ticket has. */
static bool has_news(const struct hcache_ticket *t)
{
    return t->state == TICKET_ENDED || t->n_ids > t->n_ids_read ||
           t->n_visible > t->n_text_read || t->n_prompt_done > t->n_prompt_read;
}

/* Waits for progress by another thread. is_asked: waits at most ASK_NS, because the caller must
 * call is_cancelled again. */
static void wait_for_progress(struct service *s, bool is_asked)
{
    enum { ASK_NS = 50000000 };
    if (!is_asked) {
        pthread_cond_wait(&s->progress, &s->lock);
        return;
    }
    (void)clock_cond_wait(&s->progress, &s->lock, ASK_NS);
}

bool service_run(struct service *s, struct hcache_ticket *t,
                 bool (*is_cancelled)(void *arg), void *arg)
{
    bool goes_on = true;
    pthread_mutex_lock(&s->lock);
    while (goes_on && !has_news(t)) {
        /* called without the lock, since the function may take a while */
        if (is_cancelled != NULL) {
            pthread_mutex_unlock(&s->lock);
            goes_on = !is_cancelled(arg);
            pthread_mutex_lock(&s->lock);
        }
        if (!goes_on) {
            break;
        } else if (s->has_thread) {
            wait_for_progress(s, is_cancelled != NULL);
        } else {
            wait_for_work(s);
            pthread_mutex_unlock(&s->lock);
            service_step(s);
            pthread_mutex_lock(&s->lock);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return goes_on;
}

void hcache_ticket_read(struct hcache_ticket *t, struct hcache_delta *out)
{
    pthread_mutex_lock(&t->service->lock);
    size_t n = t->n_visible - t->n_text_read, width = 1 + (size_t)t->req->ask.n_top;
    if (n + 1 > t->piece_cap) {
        t->piece_cap = 2 * (n + 1);
        t->piece = xrealloc(t->piece, t->piece_cap);
    }
    /* a copy, because the text may move when it grows */
    memcpy(t->piece, t->text + t->n_text_read, n);
    t->piece[n] = 0;
    int first = t->n_special_read, last = first;
    while (last < t->n_special && t->special[last].at <= t->n_visible)
        last++;
    t->piece_special = xrealloc(t->piece_special,
                                (size_t)(last - first + 1) * sizeof *t->special);
    for (int i = first; i < last; i++)
        t->piece_special[i - first] = (struct hcache_special){
            t->special[i].at - MIN(t->special[i].at, t->n_text_read), t->special[i].id};
    *out = (struct hcache_delta){.ids = t->ids + t->n_ids_read,
                                 .n_ids = t->n_ids - t->n_ids_read,
                                 .text = t->piece,
                                 .n_text = n,
                                 .special = t->piece_special,
                                 .n_special = last - first,
                                 .ended = t->state == TICKET_ENDED,
                                 .cached_tokens = t->n_cached,
                                 .prompt_done = t->n_prompt_done};
    if (t->logprobs != NULL)
        out->logprobs = t->logprobs + (size_t)t->n_ids_read * width;
    t->n_ids_read = t->n_ids;
    t->n_text_read = t->n_visible;
    t->n_special_read = last;
    t->n_prompt_read = t->n_prompt_done;
    pthread_mutex_unlock(&t->service->lock);
}

void hcache_ticket_wait(struct hcache_ticket *t)
{
    pthread_mutex_lock(&t->service->lock);
    while (t->state != TICKET_ENDED)
        pthread_cond_wait(&t->service->progress, &t->service->lock);
    pthread_mutex_unlock(&t->service->lock);
}

void hcache_ticket_cancel(struct hcache_ticket *t)
{
    pthread_mutex_lock(&t->service->lock);
    t->cancel = t->service->may_settle = true;
    pthread_cond_signal(&t->service->work);
    pthread_mutex_unlock(&t->service->lock);
}

int hcache_ticket_result(struct hcache_ticket *t, struct hcache_result *out,
                         struct hcache_err *err)
{
    CHECK(t->state == TICKET_ENDED);
    *out = t->result; /* the caller owns the result's memory from now on */
    t->result = (struct hcache_result){0};
    if (t->err.code == 0)
        return 0;
    hcache_result_free(out);
    return err_set((struct err *)(void *)err, t->err.code, "%s", t->err.msg);
}

void hcache_ticket_free(struct hcache_ticket *t)
{
    if (t == NULL)
        return;
    pthread_mutex_lock(&t->service->lock);
    bool ended = t->state == TICKET_ENDED;
    t->given_up = t->cancel = t->service->may_settle = true;
    pthread_cond_signal(&t->service->work);
    pthread_mutex_unlock(&t->service->lock);
    if (ended)
        ticket_destroy(t);
}
