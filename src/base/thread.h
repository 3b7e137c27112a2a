/* thread.h - threads with a stack that is large enough, whatever `ulimit -s` says. */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>
#include <stddef.h>

/* The least stack of a thread of ours.  Planning a restore has crashed with 128 KiB and run
 * with 140; the largest frame of all has 272 KB (policy/placement_learn.c). */
enum { THREAD_STACK_BYTES = 2 << 20 };

/* pthread_create with a stack of at least THREAD_STACK_BYTES. 0, or a positive errno. */
int thread_create(pthread_t *out, void *(*run)(void *arg), void *arg);

/* Returns run(arg), called on this thread where `ulimit -s` gives it THREAD_STACK_BYTES or
 * more, else on a thread of its own, which gets the signals of the process.  For main(). A
 * message and 1 where there is no memory for that thread. */
int thread_with_stack(int (*run)(void *arg), void *arg);

#endif
