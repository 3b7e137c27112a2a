/* test_thread.c - threads that ask to run soon after they wake; stacks under a small
 * `ulimit -s`. */
#include "tests/unit.h"

#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
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
TEST(a_thread_gets_its_slice)
{
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

/* --- stacks ----------------------------------------------------------------------------------- */

/* Facts about a program's stacks under the limit that the test has set. */
struct found {
    size_t new_bytes; /* stack of a new thread */
    bool is_main;     /* thread_with_stack stayed on the main thread */
    bool is_blocked;  /* there, SIGUSR1 is blocked, and SIGUSR2 is not */
    int result, refused;
    size_t own_bytes; /* stack of thread_with_stack's thread */
};

static size_t stack_bytes(void)
{
    pthread_attr_t attr;
    size_t n = 0;
    if (pthread_getattr_np(pthread_self(), &attr) == 0) {
        (void)pthread_attr_getstacksize(&attr, &n);
        pthread_attr_destroy(&attr);
    }
    return n;
}

static void *look_at_stack(void *arg)
{
    *(size_t *)arg = stack_bytes();
    return NULL;
}

static int look_around(void *arg)
{
    struct found *f = arg;
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    f->is_blocked = sigismember(&now, SIGUSR1) == 1 && sigismember(&now, SIGUSR2) == 0;
    f->is_main = getpid() == gettid();
    f->own_bytes = stack_bytes();
    return 17;
}

static int do_nothing(void *arg)
{
    (void)arg;
    return 17;
}

/* Runs in a program of its own, because the limit counts from a program's start on. */
static int report(void)
{
    struct found f = {0};
    pthread_t t;
    sigset_t some;
    struct rlimit memory, none;
    if (getrlimit(RLIMIT_AS, &memory) != 0)
        return 1;
    none = memory;
    none.rlim_cur = 1 << 20; /* less than the program has: there is no room for a stack */
    (void)setrlimit(RLIMIT_AS, &none);
    f.refused = thread_with_stack(do_nothing, NULL);
    (void)setrlimit(RLIMIT_AS, &memory);
    sigemptyset(&some);
    sigaddset(&some, SIGUSR1);
    pthread_sigmask(SIG_SETMASK, &some, NULL);
    if (thread_create(&t, look_at_stack, &f.new_bytes) != 0)
        return 1;
    pthread_join(t, NULL);
    f.result = thread_with_stack(look_around, &f);
    return write(STDOUT_FILENO, &f, sizeof f) == (ssize_t)sizeof f ? 0 : 1;
}

static struct found under_limit(rlim_t n_bytes)
{
    struct found f = {0};
    int out[2], status = -1;
    assert_int_equal(pipe(out), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct rlimit limit;
        getrlimit(RLIMIT_STACK, &limit);
        limit.rlim_cur = n_bytes;
        dup2(out[1], STDOUT_FILENO);
        close(STDERR_FILENO); /* the message about a thread that cannot be started */
        if (setrlimit(RLIMIT_STACK, &limit) == 0)
            execl("/proc/self/exe", "test_thread", "report", (char *)NULL);
        _exit(1);
    }
    close(out[1]);
    ssize_t n = read(out[0], &f, sizeof f);
    close(out[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(n, sizeof f);
    return f;
}

/* Threads have at least 2 MiB of stack. The main thread's work moves to a thread of its own only if
 * the limit is smaller, and receives the same signals there. */
TEST(stacks_are_large_enough)
{
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    print_message("skipped: a sanitizer reserves more address space than the limit\n");
    skip();
#endif
    static const struct {
        rlim_t limit;
        bool is_main;
        size_t new_bytes;
    } rows[] = {
        {512 << 10, false, THREAD_STACK_BYTES},
        {THREAD_STACK_BYTES - 4096, false, THREAD_STACK_BYTES},
        {THREAD_STACK_BYTES, true, THREAD_STACK_BYTES},
        {2 * THREAD_STACK_BYTES, true, 2 * THREAD_STACK_BYTES},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct found f = under_limit(rows[i].limit);
        assert_int_equal(f.new_bytes, rows[i].new_bytes);
        assert_int_equal(f.is_main, rows[i].is_main);
        assert_true(f.is_blocked);
        assert_int_equal(f.result, 17);
        assert_int_equal(f.refused, rows[i].is_main ? 17 : 1);
        assert_true(f.is_main || f.own_bytes == THREAD_STACK_BYTES);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "report") == 0)
        return report();
    return unit_run(NULL, NULL);
}
