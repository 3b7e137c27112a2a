/* test_clock.c - a thread's used processor time, and its time spent waiting for a processor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"

static atomic_bool stop;

static void *burn(void *arg)
{
    (void)arg;
    while (!atomic_load(&stop))
        ;
    return NULL;
}

static void test_ran(void **state)
{
    (void)state;
    struct clock_cpu before = clock_cpu_now(), now = before;
    int64_t end = clock_now_ns() + 60 * (int64_t)1000000000;
    while (now.ran_ns - before.ran_ns < 20000000 && clock_now_ns() < end)
        now = clock_cpu_now();
    assert_true(now.ran_ns - before.ran_ns >= 20000000);
}

/* Two threads share one processor, so each of them waits for it. */
static void test_waited(void **state)
{
    (void)state;
    cpu_set_t all, one;
    if (access("/proc/self/schedstat", R_OK) != 0) {
        print_message("skipped: this kernel does not count what threads wait for\n");
        skip();
    }
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int i = 0; CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    struct clock_cpu before = clock_cpu_now(), now = before;
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, burn, NULL), 0);
    int64_t end = clock_now_ns() + 60 * (int64_t)1000000000;
    while (now.waited_ns - before.waited_ns < 20000000 && clock_now_ns() < end)
        now = clock_cpu_now();
    atomic_store(&stop, true);
    pthread_join(t, NULL);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_true(now.waited_ns - before.waited_ns >= 20000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ran),
        cmocka_unit_test(test_waited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
