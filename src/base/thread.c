/* thread.c - see thread.h.
 *
 * By default new threads get the stack of `ulimit -s`, which may be as small as 16 KiB. */
#include "base/thread.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

int thread_create(pthread_t *out, void *(*run)(void *arg), void *arg)
{
    pthread_attr_t attr;
    size_t stack_bytes = 0;
    int rc = pthread_attr_init(&attr);
    if (rc != 0)
        return rc;
    rc = pthread_attr_getstacksize(&attr, &stack_bytes);
    if (rc == 0 && stack_bytes < THREAD_STACK_BYTES)
        rc = pthread_attr_setstacksize(&attr, THREAD_STACK_BYTES);
    if (rc == 0)
        rc = pthread_create(out, &attr, run, arg);
    pthread_attr_destroy(&attr);
    return rc;
}

/* The scheduling attributes of Linux. glibc has this struct only since 2.41. */
struct scheduling {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

void thread_wake_soon(int64_t slice_ns)
{
    struct scheduling s = {.size = sizeof s};
    if (syscall(SYS_sched_getattr, 0, &s, sizeof s, 0) != 0)
        return;
    s.runtime_ns = (uint64_t)slice_ns;
    (void)syscall(SYS_sched_setattr, 0, &s, 0);
}

/* --- the main thread -------------------------------------------------------------------------- */

struct call {
    int (*run)(void *arg);
    void *arg;
    sigset_t signals; /* the signals that were blocked before the thread was started */
    int result;
};

static void *call_run(void *arg)
{
    struct call *c = arg;
    pthread_sigmask(SIG_SETMASK, &c->signals, NULL);
    c->result = c->run(c->arg);
    return NULL;
}

int thread_with_stack(int (*run)(void *arg), void *arg)
{
    struct rlimit limit;
    struct call c = {.run = run, .arg = arg};
    sigset_t all;
    pthread_t thread;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= THREAD_STACK_BYTES)
        return run(arg);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &c.signals);
    int rc = thread_create(&thread, call_run, &c);
    if (rc != 0) {
        fprintf(stderr,
                "hcache: the stack of %llu bytes (ulimit -s) is too small, and a stack of "
                "%d bytes cannot be allocated: %s\n",
                (unsigned long long)limit.rlim_cur, THREAD_STACK_BYTES, strerror(rc));
        return 1;
    }
    pthread_join(thread, NULL);
    return c.result;
}
