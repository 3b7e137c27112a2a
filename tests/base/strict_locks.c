/* strict_locks.c - ends a test program whose thread releases a lock that it does not hold, or takes
 * a lock twice.
 *
 * Without this file both mistakes show only when two threads compete for the lock. The linker
 * directs the lock calls of src/ and tests/ to these functions (--wrap). */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int __real_pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *attr);
int __wrap_pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *attr);
int __real_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __real_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m);
int __real_pthread_mutex_destroy(pthread_mutex_t *m);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *m);
int __real_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int __real_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m,
                                  const struct timespec *t);
int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m,
                                  const struct timespec *t);

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
    return checked(__real_pthread_mutex_unlock(m), "a lock is released");
}

int __wrap_pthread_mutex_destroy(pthread_mutex_t *m)
{
    return checked(__real_pthread_mutex_destroy(m), "a lock is destroyed");
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
