/* thread.h - threads with a stack that is large enough, whatever `ulimit -s` says. */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* Smallest stack of this program's threads. Planning a restore crashed with 128 KiB and ran with
 * 140 KiB; the largest single frame has 272 KB (store/placement_learn.c). */
enum { THREAD_STACK_BYTES = 2 << 20 };

/* Like pthread_create, with THREAD_STACK_BYTES of stack or more. Returns 0 or a positive errno. */
int thread_create(pthread_t *out, void *(*run)(void *arg), void *arg);

/* Asks the scheduler for slices of slice_ns for the calling thread, which then runs soon after it
 * wakes, even if other threads compute. It suits threads that work for less than slice_ns between
 * waits. Kernels before Linux 6.12 ignore the request, and a failure is not reported. */
void thread_wake_soon(int64_t slice_ns);

/* Calls run(arg) and returns its result; for main().  It runs on this thread if `ulimit -s` allows
 * THREAD_STACK_BYTES or more, else on a thread of its own that receives the process's signals.  If
 * there is no memory for that thread, prints a message and returns 1. */
int thread_with_stack(int (*run)(void *arg), void *arg);

#endif
