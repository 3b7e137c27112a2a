/* pool.c - see pool.h.
 *
 * A generation counter starts a job, a countdown ends it.  Both sides poll for at most SPIN_NS
 * before they block on a futex-backed condition variable: a decode step makes about a hundred calls
 * a few hundred microseconds apart, and a wake-up through the scheduler costs tens of microseconds
 * each in a virtual machine. */
#include "base/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"

#define SPIN_NS 30000

struct pool {
    int n_threads;
    pthread_t *threads;   /* n_threads - 1 of them */
    pthread_mutex_t turn; /* held by the caller of pool_run for the length of the job */
    pthread_mutex_t lock; /* guards sleeping and waking on the conditions below */
    pthread_cond_t start;
    pthread_cond_t finish;
    atomic_uint generation;
    atomic_int n_left;
    atomic_bool quit;
    pool_fn *fn;
    void *arg;
};

struct worker_arg {
    struct pool *pool;
    int idx;
};

static bool spin_until_changed(atomic_uint *v, unsigned old)
{
    int64_t end = clock_now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(v, memory_order_acquire) != old)
                return true;
            __builtin_ia32_pause();
        }
    } while (clock_now_ns() < end);
    return false;
}

static void *worker_main(void *p)
{
    struct worker_arg w = *(struct worker_arg *)p;
    free(p);
    struct pool *pool = w.pool;
    unsigned seen = 0;
    for (;;) {
        if (!spin_until_changed(&pool->generation, seen)) {
            pthread_mutex_lock(&pool->lock);
            while (atomic_load(&pool->generation) == seen)
                pthread_cond_wait(&pool->start, &pool->lock);
            pthread_mutex_unlock(&pool->lock);
        }
        seen = atomic_load(&pool->generation);
        if (atomic_load(&pool->quit))
            return NULL;
        pool->fn(pool->arg, w.idx, pool->n_threads);
        if (atomic_fetch_sub(&pool->n_left, 1) == 1) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->finish);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

struct pool *pool_create(int n_threads)
{
    CHECK(n_threads >= 1);
    struct pool *p = xcalloc(1, sizeof *p);
    p->n_threads = n_threads;
    pthread_mutex_init(&p->turn, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->start, NULL);
    pthread_cond_init(&p->finish, NULL);
    p->threads = xcalloc((size_t)n_threads, sizeof *p->threads);
    for (int i = 1; i < n_threads; i++) {
        struct worker_arg *w = xmalloc(sizeof *w);
        *w = (struct worker_arg){p, i};
        CHECK(pthread_create(&p->threads[i - 1], NULL, worker_main, w) == 0);
    }
    return p;
}

static void wake_all(struct pool *p)
{
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->generation, 1);
    pthread_cond_broadcast(&p->start);
    pthread_mutex_unlock(&p->lock);
}

void pool_destroy(struct pool *p)
{
    if (p == NULL)
        return;
    atomic_store(&p->quit, true);
    wake_all(p);
    for (int i = 1; i < p->n_threads; i++)
        pthread_join(p->threads[i - 1], NULL);
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

static void wait_for_workers(struct pool *p)
{
    int64_t end = clock_now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(&p->n_left, memory_order_acquire) == 0)
                return;
            __builtin_ia32_pause();
        }
    } while (clock_now_ns() < end);
    pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->n_left) != 0)
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
    atomic_store(&p->n_left, p->n_threads - 1);
    wake_all(p);
    fn(arg, 0, p->n_threads);
    wait_for_workers(p);
    pthread_mutex_unlock(&p->turn);
}

void pool_share(long n_items, long unit, int thread_idx, int n_threads, long *begin, long *end)
{
    long n_units = (n_items + unit - 1) / unit;
    long b = n_units * thread_idx / n_threads * unit;
    long e = n_units * (thread_idx + 1) / n_threads * unit;
    *begin = b < n_items ? b : n_items;
    *end = e < n_items ? e : n_items;
}
