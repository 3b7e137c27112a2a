/* test_pool.c - every share runs once, shares cover the work, idle workers wake up. */
#include "tests/unit.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/pool.h"

enum { MAX_THREADS = 5 };

static struct pool *make(int n_threads)
{
    struct pool *p = NULL;
    assert_int_equal(pool_create(n_threads, &p, NULL), 0);
    return p;
}

struct calls {
    atomic_int by_idx[MAX_THREADS];
    atomic_int n_threads_wrong;
    int want_threads;
    int plain; /* deliberately not atomic: pool_run itself must order the accesses */
    atomic_int plain_wrong;
};

static void count_call(void *arg, int thread_idx, int n_threads)
{
    struct calls *c = arg;
    atomic_fetch_add(&c->by_idx[thread_idx], 1);
    if (n_threads != c->want_threads)
        atomic_fetch_add(&c->n_threads_wrong, 1);
    if (c->plain != atomic_load(&c->by_idx[thread_idx]))
        atomic_fetch_add(&c->plain_wrong, 1);
}

static void run_many(struct pool *p, int n_runs)
{
    struct calls c = {.want_threads = pool_threads(p)};
    for (int i = 0; i < n_runs; i++) {
        c.plain = i + 1;
        pool_run(p, count_call, &c);
    }
    for (int i = 0; i < pool_threads(p); i++)
        assert_int_equal(atomic_load(&c.by_idx[i]), n_runs);
    assert_int_equal(atomic_load(&c.n_threads_wrong), 0);
    assert_int_equal(atomic_load(&c.plain_wrong), 0);
}

TEST(every_thread_runs_once_per_job)
{
    for (int n = 1; n <= MAX_THREADS; n++) {
        struct pool *p = make(n);
        assert_int_equal(pool_threads(p), n);
        run_many(p, n <= 2 ? 5000 : 300);
        pool_destroy(p);
    }
}

TEST(no_pool_runs_inline)
{
    assert_int_equal(pool_threads(NULL), 1);
    run_many(NULL, 3);
    pool_destroy(NULL);
}

TEST(sleeping_workers_wake_up)
{
    struct pool *p = make(3);
    for (int i = 0; i < 20; i++) {
        clock_sleep_ns(2000000); /* much longer than workers spin */
        run_many(p, 1);
    }
    pool_destroy(p);
}

struct meeting {
    atomic_int n_here, n_gone;
    atomic_int n_lonely; /* shares that did not meet all others */
};

/* Waits until all shares have begun, which needs a thread for each. */
static void meet(void *arg, int thread_idx, int n_threads)
{
    struct meeting *m = arg;
    int64_t end = clock_now_ns() + (int64_t)60 * 1000000000;
    atomic_fetch_add(&m->n_here, 1);
    while (atomic_load(&m->n_here) < n_threads && clock_now_ns() < end)
        sched_yield();
    if (atomic_load(&m->n_here) < n_threads)
        atomic_fetch_add(&m->n_lonely, 1);
    if (thread_idx > 0)
        clock_sleep_ns(1000000); /* the caller waits much longer than it spins */
    atomic_fetch_add(&m->n_gone, 1);
}

/* Without its workers a pool would give the same results, on one thread. (A job must not rely on a
 * thread for each share; here all threads are free.) */
TEST(each_share_finds_a_thread)
{
    for (int n = 2; n <= MAX_THREADS; n++) {
        struct pool *p = make(n);
        for (int i = 0; i < 4; i++) {
            struct meeting m = {0};
            clock_sleep_ns(i % 2 * 2000000); /* the workers spin, or sleep */
            pool_run(p, meet, &m);
            assert_int_equal(atomic_load(&m.n_here), n);
            assert_int_equal(atomic_load(&m.n_gone), n);
            assert_int_equal(atomic_load(&m.n_lonely), 0);
        }
        pool_destroy(p);
    }
}

/* Workers without work block: together they use a small part of the time that passes. */
TEST(idle_workers_use_no_processor)
{
    struct pool *p = make(MAX_THREADS);
    run_many(p, 1);
    clock_sleep_ns(20000000);
    int64_t before = clock_cpu_now().ran_ns;
    clock_sleep_ns(200000000);
    int64_t ran = clock_cpu_now().ran_ns - before;
    pool_destroy(p);
    assert_in_range(ran, 0, 50000000);
}

TEST(create_and_destroy_without_work)
{
    for (int i = 0; i < 100; i++)
        pool_destroy(make(1 + i % 4));
}

struct caller {
    struct pool *pool;
    int total; /* jobs of this caller; protected by the pool's rule of one job at a time */
};

static void add_one(void *arg, int thread_idx, int n_threads)
{
    (void)n_threads;
    if (thread_idx == 0)
        ((struct caller *)arg)->total++;
}

static void *call_often(void *arg)
{
    struct caller *c = arg;
    for (int i = 0; i < 500; i++)
        pool_run(c->pool, add_one, c);
    return NULL;
}

TEST(two_callers_take_turns)
{
    struct pool *p = make(2);
    struct caller a = {p, 0}, b = {p, 0};
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, call_often, &a), 0);
    call_often(&b);
    pthread_join(t, NULL);
    assert_int_equal(a.total, 500);
    assert_int_equal(b.total, 500);
    pool_destroy(p);
}

/* Runs in a child, because the limit on processes is per process (and root has none). */
TEST(refused_threads_are_told)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct rlimit one = {1, 1};
        struct err err = {0};
        struct pool *p = (struct pool *)&err; /* any value but NULL */
        bool limited = setrlimit(RLIMIT_NPROC, &one) == 0 &&
                       (getuid() != 0 || setresuid(65534, 65534, 65534) == 0);
        int rc = limited ? pool_create(4, &p, &err) : 0;
        bool told = rc == -EAGAIN && p == NULL &&
                    strstr(err.msg, "only 1 of 4 compute threads") != NULL;
        _exit(!limited ? 2 : told ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 2) {
        print_message("skipped: nobody can be somebody else in this sandbox\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

TEST(shares_cover_everything_once)
{
    static const long items[] = {0, 1, 15, 16, 17, 100, 1000, 1001};
    static const long units[] = {1, 6, 16, 64};
    for (size_t i = 0; i < 8; i++)
        for (size_t u = 0; u < 4; u++)
            for (int n = 1; n <= 7; n++) {
                long at = 0, least = LONG_MAX, most = 0;
                for (int t = 0; t < n; t++) {
                    long begin, end;
                    pool_share(items[i], units[u], t, n, &begin, &end);
                    assert_int_equal(begin, at);
                    assert_true(end >= begin && (end == items[i] || end % units[u] == 0));
                    at = end;
                    least = end - begin < least ? end - begin : least;
                    most = end - begin > most ? end - begin : most;
                }
                assert_int_equal(at, items[i]);
                /* shares differ by one unit, and the last unit may be a part of one */
                assert_true(most - least < 2 * units[u]);
            }
}

TEST(shares_are_whole_units)
{
    static const struct {
        long n, unit, begin[3], end[3];
    } rows[] = {{96, 16, {0, 32, 64}, {32, 64, 96}},  {97, 16, {0, 32, 64}, {32, 64, 97}},
                {100, 1, {0, 33, 66}, {33, 66, 100}}, {17, 16, {0, 0, 16}, {0, 16, 17}},
                {5, 16, {0, 0, 0}, {0, 0, 5}},        {0, 16, {0, 0, 0}, {0, 0, 0}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int t = 0; t < 3; t++) {
            long begin, end;
            pool_share(rows[i].n, rows[i].unit, t, 3, &begin, &end);
            assert_int_equal(begin, rows[i].begin[t]);
            assert_int_equal(end, rows[i].end[t]);
        }
}

/* Announced memory need not exist, may change between jobs, and may be of any size. Jobs are
 * unaffected. Without a pool or workers nothing happens. */
TEST(announced_memory_may_be_anything)
{
    static char there[1 << 20];
    const struct pool_range ranges[][POOL_RANGES] = {
        {{there, sizeof there}, {there, 1}, {NULL, 0}},
        {{NULL, SIZE_MAX}, {there, SIZE_MAX}, {there, SIZE_MAX}},
        {{(const void *)~(uintptr_t)0, 4096}, {NULL, 0}, {there, 100}},
    };
    for (int n_threads = 1; n_threads <= MAX_THREADS; n_threads++) {
        struct pool *p = make(n_threads);
        for (int i = 0; i < 60; i++) {
            pool_expect(p, ranges[i % 3], i / 3 % (POOL_RANGES + 1));
            run_many(p, 1 + i % 3);
            if (i % 20 == 0)
                clock_sleep_ns(200000);
        }
        pool_destroy(p);
    }
    pool_expect(NULL, ranges[0], 1);
}
