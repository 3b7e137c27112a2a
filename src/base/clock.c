/* clock.c - see clock.h. */
#include "base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/minmax.h"

static int64_t clock_ns(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t clock_now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

/* The system's clock minus the time since boot; both were read when this process started. */
static int64_t started_ns;

__attribute__((constructor)) static void clock_start(void)
{
    started_ns = clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_BOOTTIME);
}

int64_t clock_wall_s(void)
{
    return (started_ns + clock_ns(CLOCK_BOOTTIME)) / 1000000000;
}

int64_t clock_set_by_s(void)
{
    return (clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_BOOTTIME) - started_ns) / 1000000000;
}

void clock_sleep_ns(int64_t ns)
{
    if (ns <= 0)
        return;
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
}

/* Returns how long one thread (a name in /proc/self/task, whose descriptor is dir) was ready to run
 * but did not run. */
static int64_t waited_ns(int dir, const char *task)
{
    char text[300];
    int64_t ran, waited = 0;
    (void)snprintf(text, sizeof text, "%s/schedstat", task);
    int fd = openat(dir, text, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    (void)close(fd);
    text[MAX(n, 0)] = 0;
    return sscanf(text, "%" SCNd64 " %" SCNd64, &ran, &waited) == 2 ? waited : 0;
}

struct clock_cpu clock_cpu_now(void)
{
    struct clock_cpu sum = {0};
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *e; tasks != NULL && (e = readdir(tasks)) != NULL;)
        if (e->d_name[0] != '.')
            sum.waited_ns += waited_ns(dirfd(tasks), e->d_name);
    if (tasks != NULL)
        closedir(tasks);
    /* Not taken from schedstat, whose value lags by up to a scheduler tick. */
    sum.ran_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    return sum;
}

void clock_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(c, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

bool clock_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, int64_t until_ns)
{
    struct timespec t = {.tv_sec = (time_t)(until_ns / 1000000000),
                         .tv_nsec = (long)(until_ns % 1000000000)};
    return pthread_cond_timedwait(c, lock, &t) == ETIMEDOUT;
}

bool clock_cond_wait(pthread_cond_t *c, pthread_mutex_t *lock, int64_t ns)
{
    return clock_cond_wait_until(c, lock, clock_now_ns() + ns);
}
