/* test_service.c - the queue in front of the engine. The test itself makes the engine's steps, so
 * promises about steps are checked exactly on any machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "service/service.h"
#include "service/stack.h"

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
                           .user.no_reuse = true};
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
    struct request q = {
        .prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = N_TOKENS, .ignore_eos = true};
    struct hcache_request r = {.prompt = prompt, .n_prompt = N_PROMPT};
    struct hcache_ticket *t = NULL;
    assert_int_equal(service_submit(d->s, &q, &r, false, &t, &err), 0);
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
static void a_cancel_takes_one_step(void **state)
{
    struct desk d;
    struct hcache_stats st;
    bool ended;
    (void)state;
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
static void one_that_waits_is_cancelled(void **state)
{
    struct desk d;
    bool ended;
    (void)state;
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
static void a_cancel_leaves_the_queue_whole(void **state)
{
    (void)state;
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
static void the_wait_follows_the_queue(void **state)
{
    struct desk d;
    struct hcache_stats st;
    bool ended;
    (void)state;
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
static void the_first_wait_is_a_lower_bound(void **state)
{
    struct desk d;
    struct hcache_stats before, after;
    bool ended;
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cancel_takes_one_step),
        cmocka_unit_test(one_that_waits_is_cancelled),
        cmocka_unit_test(a_cancel_leaves_the_queue_whole),
        cmocka_unit_test(the_wait_follows_the_queue),
        cmocka_unit_test(the_first_wait_is_a_lower_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
