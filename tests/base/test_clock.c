/* test_clock.c - the clocks and sleeps, a thread's used processor time, and its time spent waiting
 * for a processor. */
#include "tests/unit.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

enum { MS = 1000000 };

static int64_t set_by_s; /* how many seconds the system's clock has been set forward */

/* Replaces the C library's function, so that a test can set the system's clock. */
int clock_gettime(clockid_t id, struct timespec *t)
{
    long rc = syscall(SYS_clock_gettime, id, t);
    if (rc == 0 && id == CLOCK_REALTIME)
        t->tv_sec += set_by_s;
    return (int)rc;
}

static int64_t read_ns(clockid_t id)
{
    struct timespec t;
    assert_int_equal(clock_gettime(id, &t), 0);
    return (int64_t)t.tv_sec * 1000 * MS + t.tv_nsec;
}

TEST(the_clock_is_the_monotonic_one)
{
    for (int i = 0; i < 1000; i++) {
        int64_t before = read_ns(CLOCK_MONOTONIC), now = clock_now_ns();
        assert_true(before <= now && now <= read_ns(CLOCK_MONOTONIC));
    }
}

/* The clock is one hour ahead, or two hours behind. Ages and time limits do not change. */
TEST(the_wall_clock_does_not_follow_a_clock_that_is_set)
{
    static const int64_t set[] = {0, 3600, -7200};
    int64_t real_s = read_ns(CLOCK_REALTIME) / (1000 * MS);
    for (int i = 0; i < 3; i++) {
        set_by_s = set[i];
        assert_in_range(clock_wall_s() - real_s + 1, 0, 60);
        assert_in_range(clock_set_by_s() - set[i] + 1, 0, 2);
    }
    set_by_s = 0;
}

static atomic_int n_signals;

static void on_alarm(int n)
{
    (void)n;
    atomic_fetch_add(&n_signals, 1);
}

TEST(a_signal_does_not_shorten_a_sleep)
{
    const struct sigaction interrupts = {.sa_handler = on_alarm};
    const struct itimerval often = {{0, 5000}, {0, 5000}}, never = {0};
    struct sigaction old;
    assert_int_equal(sigaction(SIGALRM, &interrupts, &old), 0);
    int64_t start = clock_now_ns();
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    clock_sleep_ns(50 * MS);
    assert_true(clock_now_ns() - start >= 50 * MS);
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    assert_int_equal(sigaction(SIGALRM, &old, NULL), 0);
    assert_true(atomic_load(&n_signals) > 0);
    clock_sleep_ns(0); /* both return at once */
    clock_sleep_ns(INT64_MIN);
}

TEST(a_timed_wait_uses_the_monotonic_clock)
{
    pthread_mutex_t lock;
    pthread_cond_t never;
    pthread_mutex_init(&lock, NULL);
    clock_cond_init(&never);
    int64_t end = clock_now_ns() + 20 * MS;
    const struct timespec until = {.tv_sec = end / (1000 * MS),
                                   .tv_nsec = end % (1000 * MS)};
    int rc = 0;
    pthread_mutex_lock(&lock);
    while (rc == 0)
        rc = pthread_cond_timedwait(&never, &lock, &until);
    pthread_mutex_unlock(&lock);
    assert_int_equal(rc, ETIMEDOUT);
    assert_true(clock_now_ns() >= end);
    pthread_cond_destroy(&never);
    pthread_mutex_destroy(&lock);
}

static atomic_bool stop;

static void *burn(void *arg)
{
    (void)arg;
    while (!atomic_load(&stop))
        ;
    return NULL;
}

TEST(test_ran)
{
    struct clock_cpu before = clock_cpu_now(), now = before;
    int64_t end = clock_now_ns() + 60 * (int64_t)1000000000;
    while (now.ran_ns - before.ran_ns < 20000000 && clock_now_ns() < end)
        now = clock_cpu_now();
    assert_true(now.ran_ns - before.ran_ns >= 20000000);
}

/* Two threads share one processor, so each of them waits for it. */
TEST(test_waited)
{
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
