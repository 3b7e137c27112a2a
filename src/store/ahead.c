/* ahead.c - see ahead.h. */
#include "store/ahead.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/thread.h"

/* Bytes that one call provides: a huge page takes up to a millisecond. */
#define PIECE_BYTES ((uint64_t)2 << 20)

enum { LOWEST_PRIORITY = 19 };

struct ahead {
    pthread_t thread;
    uint64_t ahead_bytes;
    pthread_mutex_t lock; /* protects what follows */
    pthread_cond_t news;  /* for the thread: there is more to provide, or it is to end */
    pthread_cond_t rest;  /* the thread has provided a piece */
    uint8_t *base;        /* start of the region; NULL: none */
    uint64_t n_bytes, end_bytes,
        at; /* bytes before `at` are provided, or are being provided now */
    bool is_busy, quit;
};

/* [lock] */
static uint64_t wanted_bytes(const struct ahead *a)
{
    uint64_t left = a->n_bytes - a->end_bytes;
    return a->end_bytes + (left < a->ahead_bytes ? left : a->ahead_bytes);
}

/* [lock] */
static bool has_work(const struct ahead *a)
{
    return a->base != NULL && a->at < wanted_bytes(a);
}

/* [lock, released meanwhile] */
static void provide_piece(struct ahead *a)
{
    uint64_t left = wanted_bytes(a) - a->at;
    uint64_t n = left < PIECE_BYTES ? left : PIECE_BYTES;
    uint8_t *p = a->base + a->at;
    a->at += n;
    a->is_busy = true;
    pthread_mutex_unlock(&a->lock);
    mem_provide(p, n);
    pthread_mutex_lock(&a->lock);
    a->is_busy = false;
    pthread_cond_broadcast(&a->rest);
}

static void *ahead_main(void *arg)
{
    struct ahead *a = arg;
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(),
                      LOWEST_PRIORITY); /* this thread's, on Linux */
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
    pthread_cond_signal(&a->news);
    pthread_mutex_unlock(&a->lock);
}

void ahead_use(struct ahead *a, const uint8_t *base, uint64_t end_bytes)
{
    if (a == NULL)
        return;
    pthread_mutex_lock(&a->lock);
    if (base == a->base && end_bytes > a->end_bytes) {
        a->end_bytes = end_bytes < a->n_bytes ? end_bytes : a->n_bytes;
        if (a->at < a->end_bytes) /* what is in use came by itself */
            a->at = a->end_bytes / PIECE_BYTES * PIECE_BYTES;
        pthread_cond_signal(&a->news);
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
    while (a->is_busy)
        pthread_cond_wait(&a->rest, &a->lock);
    pthread_mutex_unlock(&a->lock);
}

uint64_t ahead_await(struct ahead *a)
{
    if (a == NULL)
        return 0;
    pthread_mutex_lock(&a->lock);
    while (has_work(a) || a->is_busy)
        pthread_cond_wait(&a->rest, &a->lock);
    uint64_t n = a->base != NULL ? a->at : 0;
    pthread_mutex_unlock(&a->lock);
    return n;
}

struct ahead *ahead_create(uint64_t ahead_bytes)
{
    struct ahead *a = xcalloc(1, sizeof *a);
    a->ahead_bytes = ahead_bytes;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->news, NULL);
    pthread_cond_init(&a->rest, NULL);
    if (thread_create(&a->thread, ahead_main, a) == 0)
        return a;
    free(a);
    return NULL;
}

void ahead_destroy(struct ahead *a)
{
    if (a == NULL)
        return;
    pthread_mutex_lock(&a->lock);
    a->quit = true;
    pthread_cond_signal(&a->news);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->news);
    pthread_cond_destroy(&a->rest);
    free(a);
}
