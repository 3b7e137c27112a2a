/* test_service.c - the queue in front of the engine. The test itself makes the engine's steps, so
 * promises about steps are checked exactly on any machine. */
#include "tests/unit.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "api/service.h"
#include "api/stack.h"
#include "api/ticket.h"

enum { N_PROMPT = 40, N_TOKENS = 30 };

struct desk {
    struct stack k;
    struct service *s;
};

static void open_desk(struct desk *d, int max_sequences)
{
    struct err err = {0};
    struct stack_opts o = {.user.model = "synth:tiny-mha",
                           .user.threads = 1,
                           .user.max_context = 256,
                           .user.max_sequences = max_sequences,
                           .user.no_reuse = true,
                           .user.speculate = "off"}; /* a step is one token */
    assert_int_equal(stack_open(&o, &d->k, &err), 0);
    struct service_opts so = {.engine = d->k.engine,
                              .n_vocab = d->k.model->cfg.vocab_size,
                              .max_sequences = max_sequences,
                              .max_context = 256};
    service_create(&so, &d->s);
}

static void close_desk(struct desk *d)
{
    service_destroy(d->s);
    stack_close(&d->k);
}

static struct hcache_ticket *submit(struct desk *d)
{
    static int32_t prompt[N_PROMPT];
    for (int i = 0; i < N_PROMPT; i++)
        prompt[i] = 3 + i % 50;
    struct err err = {0};
    const struct hcache_request r = {
        .prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = N_TOKENS, .ignore_eos = true};
    struct hcache_ticket *t = NULL;
    assert_int_equal(service_submit(d->s, request_create(&r, N_TOKENS), &t, &err), 0);
    return t;
}

/* Makes one step. Returns the number of tokens that t got in it. */
static int step(struct desk *d, struct hcache_ticket *t, bool *ended)
{
    struct hcache_delta delta;
    (void)service_run(d->s, t, NULL, NULL);
    hcache_ticket_read(t, &delta);
    *ended = delta.ended;
    return delta.n_ids;
}

static int run_to_end(struct desk *d, struct hcache_ticket *t)
{
    int n = 0;
    for (bool ended = false; !ended;)
        n += step(d, t, &ended);
    return n;
}

static void drop(struct hcache_ticket *t)
{
    struct hcache_result r;
    struct hcache_err err;
    assert_int_equal(hcache_ticket_result(t, &r, &err), 0);
    hcache_result_free(&r);
    hcache_ticket_free(t);
}

/* A cancelled request gets no further token. Its place goes to a waiting request in the very next
 * step. */
TEST(a_cancel_takes_one_step)
{
    struct desk d;
    struct hcache_stats st;
    bool ended;
    open_desk(&d, 1);
    struct hcache_ticket *a = submit(&d), *b = submit(&d);
    for (int i = 0; i < 5; i++)
        assert_int_equal(step(&d, a, &ended), 1);
    service_stats(d.s, &st);
    assert_int_equal(st.n_running, 1);
    assert_int_equal(st.n_waiting, 1);
    hcache_ticket_cancel(a);
    assert_int_equal(step(&d, a, &ended), 0);
    assert_true(ended);
    service_stats(d.s, &st);
    assert_int_equal(st.n_cancelled, 1);
    assert_int_equal(run_to_end(&d, b), N_TOKENS);
    drop(a);
    drop(b);
    close_desk(&d);
}

/* A waiting request is cancelled within one step, too. */
TEST(one_that_waits_is_cancelled)
{
    struct desk d;
    bool ended;
    open_desk(&d, 1);
    struct hcache_ticket *a = submit(&d), *b = submit(&d);
    assert_int_equal(step(&d, a, &ended), 1);
    hcache_ticket_cancel(b);
    assert_int_equal(step(&d, b, &ended), 0);
    assert_true(ended);
    assert_int_equal(run_to_end(&d, a), N_TOKENS - 1);
    drop(a);
    drop(b);
    close_desk(&d);
}

/* Requests that wait behind a cancelled request, or are submitted after it, are served. */
TEST(a_cancel_leaves_the_queue_whole)
{
    /* gone: index of the cancelled request; 1 to 3 wait, so it is the first, middle or last one */
    for (int gone = 1; gone < 4; gone++) {
        struct desk d;
        struct hcache_stats st;
        struct hcache_ticket *t[5];
        bool ended;
        open_desk(&d, 1);
        for (int i = 0; i < 4; i++)
            t[i] = submit(&d);
        assert_int_equal(step(&d, t[0], &ended), 1);
        hcache_ticket_cancel(t[gone]);
        (void)step(&d, t[gone], &ended);
        assert_true(ended);
        t[4] = submit(&d);
        service_stats(d.s, &st);
        assert_int_equal(st.n_waiting, 3);
        hcache_ticket_cancel(t[0]);
        for (int i = 1; i < 5; i++) {
            if (i != gone)
                assert_int_equal(run_to_end(&d, t[i]), N_TOKENS);
        }
        for (int i = 0; i < 5; i++)
            drop(t[i]);
        close_desk(&d);
    }
}

/* The predicted wait grows with the queue. It is based on the average time for which requests held
 * a place. */
TEST(the_wait_follows_the_queue)
{
    struct desk d;
    struct hcache_stats st;
    bool ended;
    open_desk(&d, 1);
    service_stats(d.s, &st);
    assert_true(st.wait_s == 0); /* a place is free */
    struct hcache_ticket *t[6];
    t[0] = submit(&d);
    assert_int_equal(run_to_end(&d, t[0]), N_TOKENS);
    double one = 0;
    for (int i = 1; i < 6; i++) {
        t[i] = submit(&d);
        if (i == 1)
            assert_int_equal(step(&d, t[1], &ended), 1);
        service_stats(d.s, &st);
        assert_int_equal(st.n_waiting, i - 1);
        if (i == 1)
            one = st.wait_s;
        assert_true(one > 0 && st.wait_s > 0.999 * i * one && st.wait_s < 1.001 * i * one);
    }
    for (int i = 1; i < 6; i++)
        run_to_end(&d, t[i]);
    for (int i = 0; i < 6; i++)
        drop(t[i]);
    service_stats(d.s, &st);
    assert_true(st.wait_s == 0);
    close_desk(&d);
}

/* Before any request has ended, the predicted wait is the time that the first request has run so
 * far. */
TEST(the_first_wait_is_a_lower_bound)
{
    struct desk d;
    struct hcache_stats before, after;
    bool ended;
    open_desk(&d, 1);
    struct hcache_ticket *a = submit(&d), *b = submit(&d);
    assert_int_equal(step(&d, a, &ended), 1);
    service_stats(d.s, &before);
    assert_int_equal(step(&d, a, &ended), 1);
    service_stats(d.s, &after);
    assert_true(before.wait_s > 0 && after.wait_s > before.wait_s);
    run_to_end(&d, b);
    run_to_end(&d, a);
    drop(a);
    drop(b);
    close_desk(&d);
}

/* Makes a running request seem to have got its place this many seconds earlier. */
static void age(struct hcache_ticket *t, int seconds)
{
    t->t_admit -= (int64_t)seconds * 1000000000;
}

/* Lets a request hold a place for this many seconds. */
static void hold(struct desk *d, int seconds)
{
    bool ended;
    struct hcache_ticket *t = submit(d);
    assert_int_equal(step(d, t, &ended), 1);
    age(t, seconds);
    run_to_end(d, t);
    drop(t);
}

static double wait_s(struct desk *d)
{
    struct hcache_stats st;
    service_stats(d->s, &st);
    return st.wait_s;
}

/* Fails unless the wait is that of the made-up seconds, and of the few that the test has taken. */
#define assert_wait(d, want) assert_true(wait_s(d) >= (want) && wait_s(d) < (want) + 60)

/* The first time of a place is taken as it is. Each later one moves the average by a sixteenth. */
TEST(the_time_of_a_place_is_averaged)
{
    struct desk d;
    bool ended;
    open_desk(&d, 1);
    hold(&d, 1000);
    assert_true(wait_s(&d) == 0); /* a place is free, and no request waits */
    struct hcache_ticket *a = submit(&d);
    assert_wait(&d, 2 * 1000); /* it waits itself */
    assert_int_equal(step(&d, a, &ended), 1);
    assert_wait(&d, 1000);
    run_to_end(&d, a);
    drop(a);
    hold(&d, 16000);
    a = submit(&d);
    assert_int_equal(step(&d, a, &ended), 1);
    assert_wait(&d, (1000. - 1000. / 16) * 15 / 16 + 1000);
    run_to_end(&d, a);
    drop(a);
    close_desk(&d);
}

/* A request that was cancelled while it waited has held no place. */
TEST(a_request_without_a_place_teaches_no_time)
{
    struct desk d;
    bool ended;
    open_desk(&d, 1);
    hold(&d, 1000);
    struct hcache_ticket *a = submit(&d), *b = submit(&d);
    assert_int_equal(step(&d, a, &ended), 1);
    b->t_admit = clock_now_ns() - INT64_C(1000000) * 1000000000;
    hcache_ticket_cancel(b);
    (void)step(&d, b, &ended);
    assert_true(ended);
    assert_wait(&d, 1000);
    run_to_end(&d, a);
    drop(a);
    drop(b);
    close_desk(&d);
}

/* Until a request has ended, the oldest running one stands for the average. */
TEST(the_oldest_place_stands_for_the_average)
{
    static const int seconds[2][2] = {{500, 1000}, {1000, 500}};
    for (int i = 0; i < 2; i++) {
        struct desk d;
        struct hcache_ticket *t[2];
        bool ended;
        open_desk(&d, 2);
        for (int k = 0; k < 2; k++) {
            t[k] = submit(&d);
            assert_int_equal(step(&d, t[k], &ended), 1);
            age(t[k], seconds[i][k]);
        }
        assert_wait(&d, 1000 / 2);
        for (int k = 0; k < 2; k++) {
            run_to_end(&d, t[k]);
            drop(t[k]);
        }
        close_desk(&d);
    }
}

/* Submits a request that is a copy of `r`. */
static int submit_as(struct desk *d, const struct hcache_request *r,
                     struct hcache_ticket **t, struct err *err)
{
    static int32_t prompt[N_PROMPT];
    for (int i = 0; i < N_PROMPT; i++)
        prompt[i] = 3 + i % 50;
    struct hcache_request own = *r;
    own.prompt = prompt;
    own.n_prompt = N_PROMPT;
    own.max_tokens = N_TOKENS;
    own.ignore_eos = true;
    return service_submit(d->s, request_create(&own, N_TOKENS), t, err);
}

/* A full queue refuses requests and counts them. The queue has room again when one of them ends. */
TEST(a_full_queue_refuses)
{
    struct desk d;
    struct hcache_stats st;
    struct err err = {0};
    struct hcache_ticket *t[68];
    static const struct hcache_request r = {0};
    bool ended;
    open_desk(&d, 1);
    for (int i = 0; i < 64; i++) /* the default of the queue */
        assert_int_equal(submit_as(&d, &r, &t[i], &err), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(submit_as(&d, &r, &t[64], &err), ERR_LIMIT);
        assert_string_equal(err.msg, "64 requests are waiting already");
        service_stats(d.s, &st);
        assert_int_equal(st.n_refused, i + 1);
        assert_int_equal(st.n_waiting, 64);
    }
    assert_int_equal(step(&d, t[0], &ended), 1); /* the first one runs */
    assert_int_equal(submit_as(&d, &r, &t[64], &err), 0);
    /* a client with requests of its own may have two of them wait all the same */
    static const struct hcache_request other = {.client = 7, .client_queue = 2};
    assert_int_equal(submit_as(&d, &other, &t[65], &err), 0);
    assert_int_equal(submit_as(&d, &other, &t[66], &err), 0);
    assert_int_equal(submit_as(&d, &other, &t[67], &err), ERR_LIMIT);
    for (int i = 0; i < 67; i++)
        hcache_ticket_cancel(t[i]);
    for (int i = 0; i < 67; i++) {
        run_to_end(&d, t[i]);
        drop(t[i]);
    }
    service_stats(d.s, &st);
    assert_int_equal(st.n_cancelled, 67);
    assert_int_equal(st.n_waiting + st.n_running, 0);
    close_desk(&d);
}

/* A thread has the queue that it was started with, and there is only one thread. */
TEST(a_thread_is_started_once)
{
    struct desk d;
    struct err err = {0};
    open_desk(&d, 1);
    assert_false(service_is_started(d.s));
    assert_int_equal(service_start(d.s, 3, &err), 0);
    assert_true(service_is_started(d.s));
    assert_int_equal(service_start(d.s, 3, &err), ERR_USAGE);
    assert_string_equal(err.msg, "the engine's thread runs already");
    service_stop(d.s);
    service_stop(d.s); /* does nothing */
    assert_false(service_is_started(d.s));
    struct hcache_ticket *t;
    static const struct hcache_request r = {0};
    assert_int_equal(submit_as(&d, &r, &t, &err), ERR_LIMIT);
    assert_string_equal(err.msg, "the engine's thread was stopped");
    close_desk(&d);
}

struct told {
    int n_news, n_ended;
};

static void on_news(void *arg, bool ended)
{
    struct told *told = arg;
    assert_int_equal(told->n_ended, 0); /* nothing follows the end */
    told->n_news += !ended;
    told->n_ended += ended;
}

static void on_prompt(void *arg, int n_done)
{
    (void)arg, (void)n_done;
}

/* Each token and the end are told, and nothing after the ticket was given up. The progress of the
 * prompt is known if it was asked for. */
TEST(each_token_is_told_once)
{
    struct desk d;
    struct err err = {0};
    struct hcache_delta delta;
    struct told told[2] = {{0}};
    struct hcache_ticket *t[2];
    struct hcache_stats st;
    bool ended = false;
    open_desk(&d, 2);
    for (int i = 0; i < 2; i++) {
        const struct hcache_request r = {
            .notify = on_news, .arg = &told[i], .on_prompt = i == 0 ? on_prompt : NULL};
        assert_int_equal(submit_as(&d, &r, &t[i], &err), 0);
    }
    (void)service_run(d.s, t[0], NULL, NULL);
    for (int i = 0; i < 2; i++) {
        hcache_ticket_read(t[i], &delta);
        assert_int_equal(delta.n_ids, 1);
        assert_int_equal(delta.prompt_done, i == 0 ? N_PROMPT : 0);
        assert_null(delta.logprobs);
        assert_false(delta.ended);
        assert_int_equal(told[i].n_news, 1);
    }
    int n_before = 0;
    for (int i = 0; i < 3; i++)
        assert_int_equal(step(&d, t[0], &ended), 1);
    n_before = told[1].n_news;
    hcache_ticket_free(t[1]);
    for (int n = 4; n < N_TOKENS; n++)
        assert_int_equal(step(&d, t[0], &ended), 1);
    if (!ended)
        assert_int_equal(step(&d, t[0], &ended), 0);
    assert_true(ended);
    assert_int_equal(told[0].n_news, N_TOKENS);
    assert_int_equal(told[0].n_ended, 1);
    assert_int_equal(told[1].n_news, n_before);
    assert_int_equal(told[1].n_ended, 0);
    service_stats(d.s, &st);
    uint64_t n_gaps = 0;
    for (int i = 0; i <= HCACHE_HIST_BUCKETS; i++)
        n_gaps += st.tbt.count[i];
    /* a gap lies between two tokens of one request */
    assert_int_equal(n_gaps, N_TOKENS - 1 + n_before - 1);
    assert_int_equal(st.n_ended, 2);
    assert_int_equal(st.n_cancelled, 1);
    drop(t[0]);
    close_desk(&d);
}

/* A deadline that passes before the first token is an error. It is counted from the submission. */
TEST(a_deadline_begins_at_the_submission)
{
    struct desk d;
    struct err err = {0};
    struct hcache_err herr = {0};
    struct hcache_result out;
    struct hcache_stats st;
    struct hcache_ticket *t;
    bool ended = false;
    open_desk(&d, 1);
    const struct hcache_request r = {.timeout_ms = 1};
    assert_int_equal(submit_as(&d, &r, &t, &err), 0);
    clock_sleep_ns(2000000);
    assert_int_equal(run_to_end(&d, t), 0);
    assert_int_equal(hcache_ticket_result(t, &out, &herr), -ETIMEDOUT);
    assert_string_equal(herr.msg, "the request's timeout passed before the first token");
    assert_null(out.token_ids);
    hcache_ticket_free(t);
    const struct hcache_request later = {.timeout_ms = 100000};
    assert_int_equal(submit_as(&d, &later, &t, &err), 0);
    assert_int_equal(t->req->deadline_ns - t->t_submit, 100000000000);
    assert_int_equal(step(&d, t, &ended), 1);
    hcache_ticket_cancel(t);
    run_to_end(&d, t);
    drop(t);
    service_stats(d.s, &st);
    assert_int_equal(st.n_timed_out, 1);
    assert_int_equal(st.n_failed, 0);
    assert_int_equal(st.n_cancelled, 1);
    const struct hcache_request none = {0};
    assert_int_equal(submit_as(&d, &none, &t, &err), 0);
    assert_int_equal(t->req->deadline_ns, 0);
    assert_int_equal(run_to_end(&d, t), N_TOKENS);
    drop(t);
    close_desk(&d);
}

/* A request has memory for all its answer, but not for an answer that admission will refuse. */
TEST(memory_is_for_the_whole_answer)
{
    static const struct {
        int max_tokens, truncation, n;
    } rows[] = {{30, 0, 30},   {256, 0, 256},   {257, 0, 256},  {1000000, 0, 256},
                {30, 256, 30}, {256, 256, 256}, {600, 256, 600}};
    struct desk d;
    open_desk(&d, 1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct truncation truncation = {.context = rows[i].truncation};
        assert_int_equal(service_answer_room(d.s, rows[i].max_tokens, &truncation),
                         rows[i].n);
    }
    close_desk(&d);
}

static bool is_cancelled(void *arg)
{
    return ++*(int *)arg == 3;
}

/* is_cancelled is asked before each step, and ends the wait without a further step. */
TEST(a_wait_ends_when_it_is_cancelled)
{
    struct desk d;
    struct hcache_delta delta;
    int n_asked = 0;
    open_desk(&d, 1);
    struct hcache_ticket *t = submit(&d);
    for (int i = 0; i < 2; i++) {
        assert_true(service_run(d.s, t, is_cancelled, &n_asked));
        assert_int_equal(n_asked, i + 1);
        hcache_ticket_read(t, &delta);
        assert_int_equal(delta.n_ids, 1);
    }
    assert_false(service_run(d.s, t, is_cancelled, &n_asked));
    hcache_ticket_read(t, &delta);
    assert_int_equal(delta.n_ids, 0);
    assert_int_equal(run_to_end(&d, t), N_TOKENS - 2);
    drop(t);
    close_desk(&d);
}
