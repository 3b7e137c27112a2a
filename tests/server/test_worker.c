/* test_worker.c - which worker thread takes which body, and that no call is lost. */
#include "tests/unit.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "server/call.h"
#include "server/worker.h"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t change;
    int n_inside, n_ended;
    bool open; /* whether waiting calls may end */
} gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, false};

static void hold_on(struct call *c)
{
    (void)c;
    pthread_mutex_lock(&gate.lock);
    gate.n_inside++;
    pthread_cond_broadcast(&gate.change);
    while (!gate.open)
        pthread_cond_wait(&gate.change, &gate.lock);
    gate.n_inside--;
    pthread_mutex_unlock(&gate.lock);
}

static void pass(struct call *c)
{
    (void)c;
    pthread_mutex_lock(&gate.lock);
    gate.n_ended++;
    pthread_cond_broadcast(&gate.change);
    pthread_mutex_unlock(&gate.lock);
}

static void run(void *arg)
{
    (void)arg;
    pass(NULL);
}

static void wait_for(const int *count, int n)
{
    pthread_mutex_lock(&gate.lock);
    while (*count < n)
        pthread_cond_wait(&gate.change, &gate.lock);
    assert_int_equal(*count, n);
    pthread_mutex_unlock(&gate.lock);
}

static void set_open(bool open)
{
    pthread_mutex_lock(&gate.lock);
    gate.open = open;
    pthread_cond_broadcast(&gate.change);
    pthread_mutex_unlock(&gate.lock);
}

static const struct route holds = {.answer = hold_on}, passes = {.answer = pass};
static const struct worker_thread_opts threads[] = {
    {.max_bytes = 10}, {.max_bytes = 1000}, {.max_bytes = SIZE_MAX}};

static void init(struct call *c, const struct route *r, size_t n_body)
{
    *c = (struct call){.route = r};
    c->body.n = n_body;
    pthread_mutex_init(&c->lock, NULL);
}

static void deinit(struct call *c, int n)
{
    for (int i = 0; i < n; i++)
        pthread_mutex_destroy(&c[i].lock);
}

static struct worker *start(int max_calls)
{
    const struct worker_opts o = {
        .threads = threads, .n_threads = 3, .max_calls = max_calls};
    struct worker *w;
    assert_int_equal(worker_create(&o, &w, NULL), 0);
    gate.n_ended = 0;
    set_open(false);
    return w;
}

/* Large bodies that take forever leave threads for smaller bodies. */
TEST(large_bodies_hold_up_no_smaller_ones)
{
    struct worker *w = start(100);
    struct call large[3], medium[3], small[3], one_more;
    for (int i = 0; i < 3; i++) {
        init(&large[i], &holds, 100000);
        assert_true(worker_take(w, &large[i]));
    }
    wait_for(&gate.n_inside, 1); /* one thread takes large bodies */
    for (int i = 0; i < 3; i++) {
        init(&medium[i], &passes, 1000);
        assert_true(worker_take(w, &medium[i]));
    }
    wait_for(&gate.n_ended, 3);
    init(&one_more, &holds, 11);
    assert_true(worker_take(w, &one_more));
    wait_for(&gate.n_inside, 2);
    /* with medium bodies waiting, too, the thread for small bodies is free */
    for (int i = 0; i < 3; i++) {
        init(&small[i], &passes, 10);
        assert_true(worker_take(w, &small[i]));
    }
    wait_for(&gate.n_ended, 6);
    assert_int_equal(gate.n_inside, 2);
    set_open(true);
    worker_destroy(w);
    for (int i = 0; i < 3; i++)
        assert_false(atomic_load(&large[i].is_pending));
    deinit(large, 3);
    deinit(medium, 3);
    deinit(&one_more, 1);
    deinit(small, 3);
}

TEST(it_refuses_more_than_it_may_hold)
{
    struct worker *w = start(2);
    struct call c[4];
    for (int i = 0; i < 4; i++)
        init(&c[i], &holds, 5000);
    assert_true(worker_take(w, &c[0]));
    wait_for(&gate.n_inside, 1);
    assert_true(worker_take(w, &c[1]));
    assert_true(worker_take(w, &c[2]));
    assert_false(worker_take(w, &c[3]));
    assert_false(atomic_load(&c[3].is_pending));
    set_open(true);
    worker_destroy(w);
    deinit(c, 4);
}

/* At the end, all accepted calls are answered. A call that comes later still runs. */
TEST(nothing_is_lost_at_the_end)
{
    struct worker *w = start(100);
    struct call held, c[20];
    init(&held, &holds, 5000);
    assert_true(worker_take(w, &held));
    wait_for(&gate.n_inside, 1);
    for (int i = 0; i < 20; i++) {
        init(&c[i], &passes, 5000);
        assert_true(worker_take(w, &c[i]));
    }
    worker_run(w, run, NULL);
    set_open(true);
    worker_stop(w);
    assert_int_equal(gate.n_ended, 21);
    assert_false(worker_take(w, &held));
    worker_run(w, run, NULL);
    assert_int_equal(gate.n_ended, 22);
    worker_destroy(w);
    deinit(&held, 1);
    deinit(c, 20);
}

static int order[20], n_order;

static void note(void *arg)
{
    order[n_order++] = *(int *)arg;
    run(NULL);
}

/* Jobs are run in the order of their arrival, and as many as there are. */
TEST(jobs_keep_their_order)
{
    static int number[20];
    struct worker *w = start(1);
    struct call held[3];
    for (int i = 0; i < 3; i++) {
        init(&held[i], &holds, i == 0 ? 5000 : i == 1 ? 500 : 5);
        assert_true(worker_take(w, &held[i]));
        wait_for(&gate.n_inside,
                 i + 1); /* a call that runs takes no room of the waiting ones */
    }
    n_order = 0;
    for (int i = 0; i < 20; i++) {
        number[i] = i;
        worker_run(w, note, &number[i]);
    }
    set_open(true);
    worker_destroy(w);
    assert_int_equal(n_order, 20);
    for (int i = 0; i < 20; i++)
        assert_int_equal(order[i], i);
    deinit(held, 3);
}

/* One key's calls fill the queue; another key's few still have a place. */
TEST(a_key_has_a_share_of_the_queue)
{
    static const char a[] = "a", b[] = "b";
    const struct worker_thread_opts one = {.max_bytes = SIZE_MAX};
    const struct worker_opts o = {
        .threads = &one, .n_threads = 1, .max_calls = 3, .own_calls = 1};
    struct worker *w;
    struct call c[6];
    assert_int_equal(worker_create(&o, &w, NULL), 0);
    gate.n_ended = 0;
    set_open(false);
    for (int i = 0; i < 6; i++) {
        init(&c[i], &holds, 1);
        c[i].salt = i < 5 ? a : b;
        if (i < 4)
            assert_true(worker_take(w, &c[i]));
        if (i == 0) /* it runs, and waits no longer */
            wait_for(&gate.n_inside, 1);
    }
    assert_false(worker_take(w, &c[4]));
    assert_true(worker_take(w, &c[5]));
    c[4].salt = b;
    assert_false(worker_take(w, &c[4]));
    set_open(true);
    worker_destroy(w);
    assert_false(atomic_load(&c[5].is_pending));
    deinit(c, 6);
}

static void look_at_priority(void *arg)
{
    *(int *)arg = getpriority(PRIO_PROCESS, (id_t)gettid());
}

TEST(a_thread_has_its_priority)
{
    for (int nice = 0; nice < 8; nice += 7) {
        const struct worker_thread_opts one = {.max_bytes = SIZE_MAX, .nice = nice};
        const struct worker_opts o = {.threads = &one, .n_threads = 1, .max_calls = 1};
        struct worker *w;
        int before = getpriority(PRIO_PROCESS, (id_t)gettid()), inside = -100;
        assert_int_equal(worker_create(&o, &w, NULL), 0);
        worker_run(w, look_at_priority, &inside);
        worker_destroy(w);
        if (nice > 0 && nice > before)
            assert_int_equal(inside, nice);
        else
            assert_int_equal(inside, before);
        assert_int_equal(getpriority(PRIO_PROCESS, (id_t)gettid()), before);
    }
}

/* --- tidying ---------------------------------------------------------------------------------- */

/* seconds by which this program's clock is ahead of the kernel's */
static _Atomic int64_t ahead_s;

int clock_gettime(clockid_t id, struct timespec *t)
{
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    if (id == CLOCK_MONOTONIC)
        t->tv_sec += atomic_load(&ahead_s);
    return rc;
}

static int n_tidied;

static void tidy(void *arg)
{
    assert_ptr_equal(arg, &n_tidied);
    pthread_mutex_lock(&gate.lock);
    n_tidied++;
    pthread_cond_broadcast(&gate.change);
    pthread_mutex_unlock(&gate.lock);
}

/* Tidies at the start, and then once in each period, also if there are jobs all the time. */
TEST(it_tidies_once_in_a_period)
{
    enum { PERIOD_S = 3600, SLACK_S = 300 };
    struct worker *w;
    const struct worker_opts o = {.threads = &threads[2], /* it takes all jobs */
                                  .n_threads = 1,
                                  .max_calls = 1,
                                  .tidy = tidy,
                                  .arg = &n_tidied,
                                  .period_s = PERIOD_S};
    atomic_store(&ahead_s, 1000 * PERIOD_S);
    gate.n_ended = 0;
    assert_int_equal(worker_create(&o, &w, NULL), 0);
    wait_for(&n_tidied, 1);
    static const int more_s[] = {0, PERIOD_S - SLACK_S, SLACK_S, 0};
    for (int i = 0; i < 4; i++) {
        atomic_fetch_add(&ahead_s, more_s[i]);
        for (int k = 0; k < 9; k++) { /* the thread looks at the clock behind each job */
            worker_run(w, run, NULL);
            wait_for(&gate.n_ended, 9 * i + k + 1);
        }
        if (i >= 2)
            wait_for(&n_tidied, 2);
        assert_int_equal(n_tidied, i < 2 ? 1 : 2);
    }
    worker_destroy(w);
    assert_int_equal(n_tidied, 2);
}
