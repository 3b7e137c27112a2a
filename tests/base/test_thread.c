/* test_thread.c - threads that ask to run soon after they wake. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/thread.h"

/* The scheduling attributes of Linux. */
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

static struct attributes now(void)
{
    struct attributes x = {.size = sizeof x};
    assert_int_equal(syscall(SYS_sched_getattr, 0, &x, sizeof x, 0), 0);
    return x;
}

static void *wake_soon(void *out)
{
    struct attributes *x = out;
    assert_int_equal(setpriority(PRIO_PROCESS, (id_t)gettid(), 3), 0);
    thread_wake_soon(200000);
    *x = now();
    return NULL;
}

/* The thread gets the slice, and keeps its policy and its nice value. Other threads keep theirs. */
static void a_thread_gets_its_slice(void **state)
{
    (void)state;
    pthread_t thread;
    struct attributes before = now(), x = {0};
    assert_int_equal(thread_create(&thread, wake_soon, &x), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(x.policy, before.policy);
    assert_int_equal(x.nice, 3);
    assert_int_equal(now().runtime_ns, before.runtime_ns);
    assert_int_equal(now().nice, before.nice);
    if (before.runtime_ns == 0) {
        print_message("# this kernel has no slices of threads (before Linux 6.12)\n");
        skip();
    }
    assert_int_equal(x.runtime_ns, 200000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_gets_its_slice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
