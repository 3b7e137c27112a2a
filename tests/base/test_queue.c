/* test_queue.c - nothing is lost, doubled or reordered between threads; bounds hold. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/queue.h"

static void *item(uintptr_t n)
{
    return (void *)n;
}

static void first_in_first_out_within_the_bound(void **state)
{
    (void)state;
    struct queue *q = queue_create(3);
    uintptr_t in = 1, out = 1;
    for (int round = 0; round < 10; round++) { /* wraps around the ring */
        while (queue_try_push(q, item(in)))
            in++;
        assert_int_equal(in - out, 3);
        assert_ptr_equal(queue_try_pop(q), item(out++));
        assert_ptr_equal(queue_pop(q), item(out++));
    }
    assert_ptr_equal(queue_pop(q), item(out));
    assert_null(queue_try_pop(q));
    queue_destroy(q);
}

static void close_drains_then_ends(void **state)
{
    (void)state;
    struct queue *q = queue_create(2);
    queue_push(q, item(5));
    queue_close(q);
    assert_false(queue_try_push(q, item(6)));
    assert_ptr_equal(queue_pop(q), item(5));
    assert_null(queue_pop(q));
    assert_null(queue_pop(q));
    queue_destroy(q);
    queue_destroy(NULL);
}

enum { PRODUCERS = 3, CONSUMERS = 3, PER_PRODUCER = 20000 };

struct shared {
    struct queue *q;
    atomic_int seen[PRODUCERS * PER_PRODUCER];
    atomic_bool out_of_order;
};

struct producer {
    struct shared *s;
    int idx;
};

static void *produce(void *arg)
{
    struct producer *p = arg;
    for (int i = 0; i < PER_PRODUCER; i++)
        queue_push(p->s->q, item((uintptr_t)(p->idx * PER_PRODUCER + i + 1)));
    return NULL;
}

static void *consume(void *arg)
{
    struct shared *s = arg;
    int last[PRODUCERS] = {0}; /* each consumer sees each producer's items in order */
    for (uintptr_t n; (n = (uintptr_t)queue_pop(s->q)) != 0;) {
        int producer = (int)((n - 1) / PER_PRODUCER);
        if ((int)n <= last[producer])
            atomic_store(&s->out_of_order, true);
        last[producer] = (int)n;
        atomic_fetch_add(&s->seen[n - 1], 1);
    }
    return NULL;
}

static void many_threads_lose_nothing(void **state)
{
    (void)state;
    static struct shared s;
    s.q = queue_create(5);
    pthread_t producers[PRODUCERS], consumers[CONSUMERS];
    struct producer args[PRODUCERS];
    for (int i = 0; i < CONSUMERS; i++)
        assert_int_equal(pthread_create(&consumers[i], NULL, consume, &s), 0);
    for (int i = 0; i < PRODUCERS; i++) {
        args[i] = (struct producer){&s, i};
        assert_int_equal(pthread_create(&producers[i], NULL, produce, &args[i]), 0);
    }
    for (int i = 0; i < PRODUCERS; i++)
        pthread_join(producers[i], NULL);
    queue_close(s.q);
    for (int i = 0; i < CONSUMERS; i++)
        pthread_join(consumers[i], NULL);
    for (int i = 0; i < PRODUCERS * PER_PRODUCER; i++)
        assert_int_equal(atomic_load(&s.seen[i]), 1);
    assert_false(atomic_load(&s.out_of_order));
    queue_destroy(s.q);
}

static void *push_one(void *arg)
{
    queue_push(arg, item(2));
    return NULL;
}

static void push_waits_while_full(void **state)
{
    (void)state;
    struct queue *q = queue_create(1);
    queue_push(q, item(1));
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, push_one, q), 0);
    clock_sleep_ns(20000000);
    assert_ptr_equal(queue_pop(q), item(1));
    assert_ptr_equal(queue_pop(q), item(2));
    pthread_join(t, NULL);
    queue_destroy(q);
}

static void *pop_one(void *arg)
{
    return queue_pop(arg);
}

static void close_wakes_who_waits(void **state)
{
    (void)state;
    struct queue *q = queue_create(1);
    pthread_t t[2];
    void *got = item(1);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&t[i], NULL, pop_one, q), 0);
    clock_sleep_ns(20000000);
    queue_close(q);
    for (int i = 0; i < 2; i++) {
        pthread_join(t[i], &got);
        assert_null(got);
    }
    queue_destroy(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_in_first_out_within_the_bound),
        cmocka_unit_test(close_drains_then_ends),
        cmocka_unit_test(many_threads_lose_nothing),
        cmocka_unit_test(push_waits_while_full),
        cmocka_unit_test(close_wakes_who_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
