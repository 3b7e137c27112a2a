/* pool.c - see pool.h.
 *
 * A job has n shares, one per thread.  A thread takes the next share by advancing `ticket`.  A
 * worker that the scheduler has not yet run does not delay the job: after its own share, the caller
 * takes every share that no thread has begun, and waits only for shares that others have begun.
 * (With a fixed share per worker, two threads on a busy two-core machine were slower than one.)
 *
 * Caller and workers poll for at most SPIN_NS before they block on a condition variable.  A decode
 * step makes about a hundred calls that are a few microseconds apart, and in a virtual machine a
 * wake-up through the scheduler costs tens of microseconds. */
#include "base/minmax.h"
#include "base/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"

#define SPIN_NS 30000
/* Most that a thread prefetches for the next job: a fraction of a core's second cache. */
#define EXPECT_BYTES (192 << 10)
/* Lines that a thread prefetches before it looks for work again. */
#define EXPECT_LINES 16

/* A thread's progress through the announced ranges. */
struct ahead {
    int thread_idx; /* a worker often gets the share of its number, and always if it is alone */
    unsigned turn; /* the announcement that `at` and `left` belong to */
    uintptr_t at;  /* next address to prefetch; the memory may no longer exist */
    size_t left;   /* bytes that are still to be prefetched */
};

struct pool {
    int n_threads;         /* shares of a job, one per thread */
    pthread_t *threads;    /* [n_workers] */
    int n_workers;         /* threads that pool_create has started; at most n_threads - 1 */
    pthread_mutex_t turn;  /* the caller of pool_run holds it until the job ends */
    pthread_mutex_t lock;  /* held to sleep on the conditions below, and to signal them */
    pthread_cond_t start;  /* a job has shares to take, or the workers shall quit */
    pthread_cond_t finish; /* a worker has finished the last share of the job */
    /* Job number in the upper half, next share in the lower half, so a late thread cannot take a
     * share of an ended job. fn and arg do not change while a taken share runs. */
    atomic_uint_least64_t ticket;
    atomic_int n_begun; /* workers that run */
    atomic_int n_left;  /* shares of the present job that are not finished */
    atomic_bool quit;
    /* The announced ranges, and how many announcements there were.  A thread that reads them while
     * they change prefetches memory that nobody needs. */
    struct {
        atomic_uint turn;
        atomic_uintptr_t at[POOL_RANGES];
        atomic_size_t n_bytes[POOL_RANGES];
        atomic_bool is_new; /* the next job publishes them by counting them in `turn` */
    } expected;
    struct ahead ahead; /* of the caller of pool_run; thread_idx is 0 */
    pool_fn *fn;
    void *arg;
};

static bool share_is_left(struct pool *p)
{
    return (uint32_t)atomic_load_explicit(&p->ticket, memory_order_acquire) <
           (uint32_t)p->n_threads;
}

/* Takes and runs one share. Returns false if none is left. */
static bool share_run(struct pool *p)
{
    uint64_t t = atomic_load(&p->ticket);
    do {
        if ((uint32_t)t >= (uint32_t)p->n_threads)
            return false;
    } while (!atomic_compare_exchange_weak(&p->ticket, &t, t + 1));
    p->fn(p->arg, (int)(uint32_t)t, p->n_threads);
    if (atomic_fetch_sub(&p->n_left, 1) == 1) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_signal(&p->finish);
        pthread_mutex_unlock(&p->lock);
    }
    return true;
}

static bool job_is_done(struct pool *p)
{
    return atomic_load_explicit(&p->n_left, memory_order_acquire) == 0;
}

/* Begins this thread's share of the announced ranges: its part in the range where it begins. */
static void ahead_begin(struct pool *p, struct ahead *a, unsigned turn)
{
    size_t n[POOL_RANGES], all = 0;
    for (int i = 0; i < POOL_RANGES; i++) {
        n[i] = atomic_load_explicit(&p->expected.n_bytes[i], memory_order_relaxed);
        all += n[i];
    }
    size_t skip = all / (size_t)p->n_threads * (size_t)a->thread_idx;
    a->turn = turn;
    a->left = 0;
    for (int i = 0; i < POOL_RANGES && a->left == 0; i++) {
        if (skip < n[i]) {
            a->at = atomic_load_explicit(&p->expected.at[i], memory_order_relaxed) + skip;
            a->left = n[i] - skip;
        }
        skip -= MIN(skip, n[i]);
    }
    size_t share = all / (size_t)p->n_threads;
    a->left = MIN(a->left, share);
    a->left = MIN(a->left, EXPECT_BYTES);
}

/* Prefetches some lines.  Returns false if there is nothing to prefetch. */
static bool ahead_fetch(struct pool *p, struct ahead *a)
{
    unsigned turn = atomic_load_explicit(&p->expected.turn, memory_order_acquire);
    if (turn != a->turn)
        ahead_begin(p, a, turn);
    if (a->left == 0)
        return false;
    for (int i = 0; i < EXPECT_LINES && a->left > 0; i++) {
        __builtin_prefetch((const void *)a->at, 0, 2);
        a->at += 64;
        a->left -= MIN(a->left, 64);
    }
    return true;
}

static bool spin_until(struct pool *p, bool (*reached)(struct pool *p), struct ahead *a)
{
    int64_t end = clock_now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < 64; i++) {
            if (reached(p))
                return true;
            if (!ahead_fetch(p, a))
                __builtin_ia32_pause();
        }
    } while (clock_now_ns() < end);
    return false;
}

void pool_expect(struct pool *p, const struct pool_range *range, int n)
{
    if (p == NULL || p->n_threads == 1)
        return;
    for (int i = 0; i < POOL_RANGES; i++) {
        bool is_there = i < n;
        atomic_store_explicit(&p->expected.at[i], is_there ? (uintptr_t)range[i].at : 0,
                              memory_order_relaxed);
        atomic_store_explicit(&p->expected.n_bytes[i], is_there ? range[i].n_bytes : 0,
                              memory_order_relaxed);
    }
    atomic_store(&p->expected.is_new, true);
}

static void *worker_main(void *arg)
{
    struct pool *p = arg;
    struct ahead ahead = {.thread_idx = atomic_fetch_add(&p->n_begun, 1) + 1};
    while (!atomic_load(&p->quit)) {
        if (!spin_until(p, share_is_left, &ahead)) {
            pthread_mutex_lock(&p->lock);
            while (!share_is_left(p) && !atomic_load(&p->quit))
                pthread_cond_wait(&p->start, &p->lock);
            pthread_mutex_unlock(&p->lock);
        }
        share_run(p);
    }
    return NULL;
}

int pool_create(int n_threads, struct pool **out, struct err *err)
{
    CHECK(n_threads >= 1);
    *out = NULL;
    struct pool *p = xcalloc(1, sizeof *p);
    p->n_threads = n_threads;
    pthread_mutex_init(&p->turn, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->start, NULL);
    pthread_cond_init(&p->finish, NULL);
    p->threads = xcalloc((size_t)n_threads, sizeof *p->threads);
    atomic_store(&p->ticket, (uint32_t)n_threads); /* job 0 has no shares left to take */
    int rc = 0;
    while (rc == 0 && p->n_workers < n_threads - 1) {
        rc = thread_create(&p->threads[p->n_workers], worker_main, p);
        p->n_workers += rc == 0;
    }
    if (rc != 0) {
        err_set(err, -rc,
                "only %d of %d compute threads could be started (%s): choose fewer "
                "--threads, or raise the limit of processes",
                p->n_workers + 1, n_threads, strerror(rc));
        pool_destroy(p);
        return -rc;
    }
    *out = p;
    return 0;
}

static void wake_all(struct pool *p)
{
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->start);
    pthread_mutex_unlock(&p->lock);
}

void pool_destroy(struct pool *p)
{
    if (p == NULL)
        return;
    atomic_store(&p->quit, true);
    wake_all(p);
    for (int i = 0; i < p->n_workers; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->finish);
    pthread_cond_destroy(&p->start);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->turn);
    free(p->threads);
    free(p);
}

int pool_threads(const struct pool *p)
{
    return p == NULL ? 1 : p->n_threads;
}

static void job_wait(struct pool *p)
{
    if (spin_until(p, job_is_done, &p->ahead))
        return;
    pthread_mutex_lock(&p->lock);
    while (!job_is_done(p))
        pthread_cond_wait(&p->finish, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

void pool_run(struct pool *p, pool_fn *fn, void *arg)
{
    if (p == NULL || p->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    pthread_mutex_lock(&p->turn);
    p->fn = fn;
    p->arg = arg;
    atomic_store(&p->n_left, p->n_threads);
    if (atomic_exchange(&p->expected.is_new, false))
        atomic_fetch_add_explicit(&p->expected.turn, 1, memory_order_release);
    uint64_t job = (atomic_load(&p->ticket) >> 32) + 1;
    atomic_store(&p->ticket, job << 32 | 1); /* the new job's share 0 is the caller's */
    wake_all(p);
    fn(arg, 0, p->n_threads);
    atomic_fetch_sub(&p->n_left, 1);
    while (share_run(p))
        ;
    job_wait(p);
    pthread_mutex_unlock(&p->turn);
}

void pool_share(long n_items, long unit, int thread_idx, int n_threads, long *begin,
                long *end)
{
    long n_units = (n_items + unit - 1) / unit;
    long b = n_units * thread_idx / n_threads * unit;
    long e = n_units * (thread_idx + 1) / n_threads * unit;
    *begin = MIN(b, n_items);
    *end = MIN(e, n_items);
}
