/* ahead.c - see ahead.h. */
#include "store/ahead.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpus.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/thread.h"

/* Bytes that one call provides. A call blocks the thread: a huge page takes up to a millisecond,
 * and longer if the host of a virtual machine must provide it, too. */
#define PIECE_BYTES ((uint64_t)2 << 20)

enum { MAX_THREADS = 8, LOWEST_PRIORITY = 19 };

struct ahead {
    enum ahead_pace pace;
    pthread_t threads[MAX_THREADS];
    int n_threads;
    uint64_t ahead_bytes;
    pthread_mutex_t lock; /* protects the fields below */
    /* signals to the threads that there is more to provide, or that quit is set */
    pthread_cond_t news;
    pthread_cond_t rest; /* signals from the threads that a piece is provided */
    uint8_t *base;       /* first byte of the region; NULL: there is no region */
    uint64_t n_bytes;
    uint64_t end_bytes; /* end of the region's used part */
    uint64_t at;        /* end of the part that is provided, or that a thread has taken */
    int n_busy;         /* threads that are providing a piece now */
    bool quit;
    /* processor time of providing a byte, mean of newer pieces; 0: unknown */
    double s_per_byte;
};

/* [lock] Returns the end of the part of the region that should be provided now. */
static uint64_t wanted_bytes(const struct ahead *a)
{
    uint64_t left = a->n_bytes - a->end_bytes;
    return a->end_bytes + MIN(left, a->ahead_bytes);
}

/* [lock] Returns whether memory should be provided now. */
static bool has_work(const struct ahead *a)
{
    return a->base != NULL && a->at < wanted_bytes(a);
}

static double thread_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* [lock] Keeps the mean of about 32 pieces, because a single piece may be slow. */
static void note_speed(struct ahead *a, double s_per_byte)
{
    enum { PIECES = 32 };
    a->s_per_byte += (s_per_byte - a->s_per_byte) / (a->s_per_byte > 0 ? PIECES : 1);
}

/* [lock, released while the system provides the memory] Provides the next piece. */
static void provide_piece(struct ahead *a)
{
    uint64_t left = wanted_bytes(a) - a->at;
    uint64_t n = MIN(left, PIECE_BYTES);
    uint8_t *p = a->base + a->at;
    a->at += n;
    a->n_busy++;
    pthread_mutex_unlock(&a->lock);
    double begin_s = thread_s();
    mem_provide(p, n);
    double s = thread_s() - begin_s;
    pthread_mutex_lock(&a->lock);
    a->n_busy--;
    note_speed(a, s / (double)n);
    pthread_cond_broadcast(&a->rest);
}

static void *ahead_main(void *arg)
{
    struct ahead *a = arg;
    if (a->pace == AHEAD_BESIDE) { /* On Linux both calls change only this thread. */
        const struct sched_param unused = {0};
        (void)setpriority(PRIO_PROCESS, (id_t)gettid(), LOWEST_PRIORITY);
        (void)sched_setscheduler(0, SCHED_IDLE, &unused);
    }
    pthread_mutex_lock(&a->lock);
    while (!a->quit) {
        if (has_work(a))
            provide_piece(a);
        else
            pthread_cond_wait(&a->news, &a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

void ahead_follow(struct ahead *a, uint8_t *base, uint64_t n_bytes)
{
    if (a == NULL)
        return;
    pthread_mutex_lock(&a->lock);
    a->base = base;
    a->n_bytes = n_bytes;
    a->end_bytes = a->at = 0;
    pthread_cond_broadcast(&a->news);
    pthread_mutex_unlock(&a->lock);
}

void ahead_use(struct ahead *a, const uint8_t *base, uint64_t end_bytes)
{
    if (a == NULL)
        return;
    pthread_mutex_lock(&a->lock);
    if (base == a->base && end_bytes > a->end_bytes) {
        a->end_bytes = MIN(end_bytes, a->n_bytes);
        if (a->at < a->end_bytes) /* the pages in use were provided on their first use */
            a->at = a->end_bytes / PIECE_BYTES * PIECE_BYTES;
        if (has_work(a))
            pthread_cond_broadcast(&a->news);
    }
    pthread_mutex_unlock(&a->lock);
}

void ahead_leave(struct ahead *a, const uint8_t *base)
{
    if (a == NULL)
        return;
    pthread_mutex_lock(&a->lock);
    if (base == a->base)
        a->base = NULL;
    while (a->n_busy > 0)
        pthread_cond_wait(&a->rest, &a->lock);
    pthread_mutex_unlock(&a->lock);
}

bool ahead_await(struct ahead *a, int64_t timeout_ns, uint64_t *n_bytes)
{
    *n_bytes = 0;
    if (a == NULL)
        return true;
    int64_t until = clock_now_ns() + timeout_ns;
    bool is_late = false;
    pthread_mutex_lock(&a->lock);
    while ((has_work(a) || a->n_busy > 0) && !is_late)
        is_late = clock_cond_wait_until(&a->rest, &a->lock, until);
    bool is_done = !has_work(a) && a->n_busy == 0;
    if (a->base != NULL)
        *n_bytes = a->at;
    pthread_mutex_unlock(&a->lock);
    return is_done;
}

double ahead_price_s(struct ahead *a, uint64_t n_bytes, uint64_t n_promised)
{
    if (a == NULL)
        return 0;
    pthread_mutex_lock(&a->lock);
    bool is_all = a->at == a->n_bytes;
    uint64_t ahead = a->at - MIN(a->at, a->end_bytes);
    uint64_t own = ahead - MIN(ahead, n_promised);
    double s = n_bytes > own && !is_all ? (double)(n_bytes - own) * a->s_per_byte : 0;
    pthread_mutex_unlock(&a->lock);
    return s;
}

struct ahead *ahead_create(uint64_t ahead_bytes, enum ahead_pace pace)
{
    struct ahead *a = xcalloc(1, sizeof *a);
    a->ahead_bytes = ahead_bytes;
    a->pace = pace;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->news, NULL);
    clock_cond_init(&a->rest);
    int n = pace == AHEAD_BESIDE ? 1 : cpus_usable();
    n = MIN(n, MAX_THREADS);
    while (a->n_threads < n && thread_create(&a->threads[a->n_threads], ahead_main, a) == 0)
        a->n_threads++;
    if (a->n_threads > 0)
        return a;
    ahead_destroy(a);
    return NULL;
}

void ahead_destroy(struct ahead *a)
{
    if (a == NULL)
        return;
    pthread_mutex_lock(&a->lock);
    a->quit = true;
    pthread_cond_broadcast(&a->news);
    pthread_mutex_unlock(&a->lock);
    for (int i = 0; i < a->n_threads; i++)
        pthread_join(a->threads[i], NULL);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->news);
    pthread_cond_destroy(&a->rest);
    free(a);
}
