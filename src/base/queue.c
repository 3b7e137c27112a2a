/* queue.c - see queue.h. */
#include "base/queue.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/mem.h"

struct queue {
    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t not_empty;
    pthread_cond_t not_full;
    size_t max_items;
    size_t head;
    size_t n_items;
    bool closed;
    void *items[];
};

struct queue *queue_create(size_t max_items)
{
    CHECK(max_items > 0);
    struct queue *q = xcalloc(1, sizeof *q + max_items * sizeof q->items[0]);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->not_empty, NULL);
    pthread_cond_init(&q->not_full, NULL);
    q->max_items = max_items;
    return q;
}

void queue_destroy(struct queue *q)
{
    if (q == NULL)
        return;
    pthread_cond_destroy(&q->not_full);
    pthread_cond_destroy(&q->not_empty);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

static void put(struct queue *q, void *item)
{
    q->items[(q->head + q->n_items) % q->max_items] = item;
    q->n_items++;
    pthread_cond_signal(&q->not_empty);
}

static void *take(struct queue *q)
{
    void *item = q->items[q->head];
    q->head = (q->head + 1) % q->max_items;
    q->n_items--;
    pthread_cond_signal(&q->not_full);
    return item;
}

void queue_push(struct queue *q, void *item)
{
    pthread_mutex_lock(&q->lock);
    while (q->n_items == q->max_items)
        pthread_cond_wait(&q->not_full, &q->lock);
    CHECK(!q->closed);
    put(q, item);
    pthread_mutex_unlock(&q->lock);
}

bool queue_try_push(struct queue *q, void *item)
{
    pthread_mutex_lock(&q->lock);
    bool fits = !q->closed && q->n_items < q->max_items;
    if (fits)
        put(q, item);
    pthread_mutex_unlock(&q->lock);
    return fits;
}

void *queue_pop(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    while (q->n_items == 0 && !q->closed)
        pthread_cond_wait(&q->not_empty, &q->lock);
    void *item = q->n_items > 0 ? take(q) : NULL;
    pthread_mutex_unlock(&q->lock);
    return item;
}

void *queue_try_pop(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    void *item = q->n_items > 0 ? take(q) : NULL;
    pthread_mutex_unlock(&q->lock);
    return item;
}

void queue_close(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->closed = true;
    pthread_cond_broadcast(&q->not_empty);
    pthread_mutex_unlock(&q->lock);
}
