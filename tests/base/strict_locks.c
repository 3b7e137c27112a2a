/* strict_locks.c - ends a test program whose thread releases a lock that it does not hold, or takes
 * a lock twice. A program also fails at its end if locks or conditions were not destroyed.
 *
 * Without this file the first two mistakes show only when two threads compete for the lock, and
 * the third never. The linker directs the lock calls of src/ and tests/ to these functions
 * (--wrap). */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/base/strict_threads.h"

int __real_pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *attr);
int __wrap_pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *attr);
int __real_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __real_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m);
int __real_pthread_mutex_destroy(pthread_mutex_t *m);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *m);
int __real_pthread_cond_init(pthread_cond_t *c, const pthread_condattr_t *attr);
int __wrap_pthread_cond_init(pthread_cond_t *c, const pthread_condattr_t *attr);
int __real_pthread_cond_destroy(pthread_cond_t *c);
int __wrap_pthread_cond_destroy(pthread_cond_t *c);
int __real_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int __real_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m,
                                  const struct timespec *t);
int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m,
                                  const struct timespec *t);

int __real_thread_create(pthread_t *out, void *(*run)(void *arg), void *arg);
int __wrap_thread_create(pthread_t *out, void *(*run)(void *arg), void *arg);

/* numbers of locks and conditions that exist */
static atomic_int n_locks, n_conditions;
static pid_t pid;

__attribute__((constructor)) static void remember_program(void)
{
    pid = getpid();
}

__attribute__((destructor)) static void look_for_rests(void)
{
    int locks = atomic_load(&n_locks), conditions = atomic_load(&n_conditions);
    if (getpid() != pid || (locks == 0 && conditions == 0))
        return; /* a child of the program ends in the middle of a test */
    fprintf(stderr, "at the end %d locks and %d conditions are left\n", locks, conditions);
    _exit(25);
}

static int checked(int rc, const char *what)
{
    if (rc == EPERM || rc == EDEADLK || rc == EINVAL || rc == EBUSY) {
        fprintf(stderr, "%s: %s\n", what, strerror(rc));
        abort();
    }
    return rc;
}

int __wrap_pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *attr)
{
    pthread_mutexattr_t strict;
    atomic_fetch_add(&n_locks, 1);
    if (attr != NULL)
        return __real_pthread_mutex_init(m, attr);
    pthread_mutexattr_init(&strict);
    pthread_mutexattr_settype(&strict, PTHREAD_MUTEX_ERRORCHECK);
    int rc = __real_pthread_mutex_init(m, &strict);
    pthread_mutexattr_destroy(&strict);
    return rc;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *m)
{
    return checked(__real_pthread_mutex_lock(m), "a lock is taken");
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *m)
{
    /* A lock with a static initialiser does not check by itself. This field is glibc's. */
    if (m->__data.__lock == 0)
        checked(EPERM, "a lock is released");
    return checked(__real_pthread_mutex_unlock(m), "a lock is released");
}

int __wrap_pthread_mutex_destroy(pthread_mutex_t *m)
{
    atomic_fetch_sub(&n_locks, 1);
    return checked(__real_pthread_mutex_destroy(m), "a lock is destroyed");
}

int __wrap_pthread_cond_init(pthread_cond_t *c, const pthread_condattr_t *attr)
{
    atomic_fetch_add(&n_conditions, 1);
    return __real_pthread_cond_init(c, attr);
}

int __wrap_pthread_cond_destroy(pthread_cond_t *c)
{
    atomic_fetch_sub(&n_conditions, 1);
    return __real_pthread_cond_destroy(c);
}

int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m)
{
    return checked(__real_pthread_cond_wait(c, m), "a condition is waited for");
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m,
                                  const struct timespec *t)
{
    return checked(__real_pthread_cond_timedwait(c, m, t), "a condition is waited for");
}

/* --- threads that cannot be started ----------------------------------------------------------- */

static atomic_int until_fault;
static atomic_bool has_failed;

void strict_threads_fail(int at)
{
    atomic_store(&has_failed, false);
    atomic_store(&until_fault, at);
}

bool strict_threads_have_failed(void)
{
    return atomic_load(&has_failed);
}

int __wrap_thread_create(pthread_t *out, void *(*run)(void *arg), void *arg)
{
    if (atomic_load(&until_fault) > 0 && atomic_fetch_sub(&until_fault, 1) == 1) {
        atomic_store(&has_failed, true);
        return EAGAIN;
    }
    return __real_thread_create(out, run, arg);
}
