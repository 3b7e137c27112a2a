/* worker.h - threads that answer calls, so that no HTTP thread has to.
 *
 * The server has two workers.  The disk's has one thread and answers what waits for the disk.  The
 * text worker has several, and answers what parses, renders and tokenizes: a chat of 4 KiB may
 * take 9 ms, one of 16 MiB seconds.
 *
 * A thread takes the oldest call whose body is within its bound.  So large bodies never hold up
 * smaller ones, for which there is a thread that takes nothing else. */
#ifndef SERVER_WORKER_H
#define SERVER_WORKER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct call;
struct worker;

struct worker_thread_opts {
    size_t max_bytes; /* of a body that it takes */
    int nice;         /* of its priority: 0 as the process, more is less */
};

struct worker_opts {
    const struct worker_thread_opts *threads; /* borrowed; the last takes every body */
    int n_threads;
    int max_calls; /* that wait */
    /* tidy(arg) is called about every period_s, between calls, by one thread. NULL: nothing is. */
    void (*tidy)(void *arg);
    void *arg;
    int period_s;
};

int worker_create(const struct worker_opts *o, struct worker **out, struct err *err);
/* Ends after what it has; worker_take is refused from then on. NULL is allowed, here and below. */
void worker_stop(struct worker *w);
void worker_destroy(struct worker *w);

/* The call's route answers on a thread of the worker, and then call_done. False
 * where there are too many. */
bool worker_take(struct worker *w, struct call *c);

/* run(arg) on the last thread of the worker, for what takes long and nobody waits for; at once,
 * on this thread, where the worker has stopped. */
void worker_run(struct worker *w, void (*run)(void *arg), void *arg);

#endif
