/* worker.h - threads that answer calls in place of the HTTP threads.
 *
 * The server has two workers. The disk's has one thread and answers calls that wait for the
 * disk. The text worker has several, and answers calls that parse, render and tokenize: a chat
 * of 4 KiB may take 9 ms, one of 16 MiB seconds.
 *
 * A thread takes the oldest call whose body is within its bound. So large bodies never delay
 * smaller ones, which have a thread for themselves. */
#ifndef SERVER_WORKER_H
#define SERVER_WORKER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct call;
struct worker;

struct worker_thread_opts {
    size_t max_bytes; /* largest body that the thread takes */
    /* nice value, if it is above the process's own (less priority); 0 is the process's own */
    int nice;
};

struct worker_opts {
    /* borrowed; the last thread must take every body */
    const struct worker_thread_opts *threads;
    int n_threads;
    int max_calls; /* most calls that may wait */
    int own_calls; /* calls of one key that may wait although max_calls wait */
    /* tidy(arg) is called about every period_s, between calls, by the first thread. NULL: not
     * called. */
    void (*tidy)(void *arg);
    void *arg;
    int period_s;
};

int worker_create(const struct worker_opts *o, struct worker **out, struct err *err);
/* Stops the worker after the calls that it has. From then on worker_take returns false. NULL is
 * allowed, here and in all functions below. */
void worker_stop(struct worker *w);
void worker_destroy(struct worker *w);

/* Makes a thread of the worker answer the call's route, and then run call_done. Returns false if
 * too many calls wait. */
bool worker_take(struct worker *w, struct call *c);

/* Runs run(arg) on the last thread of the worker, for long work without a waiting client. If the
 * worker has stopped, runs it at once on this thread. */
void worker_run(struct worker *w, void (*run)(void *arg), void *arg);

#endif
