/* queue.h - a bounded, blocking queue of pointers between threads.
 *
 * Any number of producers and consumers.  The queue never owns what passes through it. */
#ifndef BASE_QUEUE_H
#define BASE_QUEUE_H

#include <stdbool.h>
#include <stddef.h>

struct queue;

struct queue *queue_create(size_t max_items);
void queue_destroy(struct queue *q); /* the queue must be empty of waiting threads */

void queue_push(struct queue *q, void *item);     /* waits while full */
bool queue_try_push(struct queue *q, void *item); /* false where full or closed */
void *queue_pop(struct queue *q);                 /* waits; NULL once closed and empty */
void *queue_try_pop(struct queue *q);             /* NULL where empty */

/* No more pushes; consumers drain what is there, then get NULL. */
void queue_close(struct queue *q);

#endif
