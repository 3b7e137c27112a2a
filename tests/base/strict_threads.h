/* strict_threads.h - lets the start of a thread fail (strict_locks.c). */
#ifndef TESTS_BASE_STRICT_THREADS_H
#define TESTS_BASE_STRICT_THREADS_H

#include <stdbool.h>

/* Lets the at-th call of thread_create from now on fail with EAGAIN. 0: none fails. */
void strict_threads_fail(int at);
/* Returns whether that call has come. */
bool strict_threads_have_failed(void);

#endif
