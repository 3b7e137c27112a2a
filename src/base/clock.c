/* clock.c - see clock.h. */
#include "base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

int64_t clock_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t clock_wall_s(void)
{
    return (int64_t)time(NULL);
}

void clock_sleep_ns(int64_t ns)
{
    if (ns <= 0)
        return;
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
}

/* Of one thread: how long it was ready to run and did not. */
static int64_t waited_ns(const char *task)
{
    char path[300];
    int64_t ran, waited = 0;
    (void)snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", task);
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return 0;
    if (fscanf(f, "%" SCNd64 " %" SCNd64, &ran, &waited) != 2)
        waited = 0;
    (void)fclose(f);
    return waited;
}

struct clock_cpu clock_cpu_now(void)
{
    struct clock_cpu sum = {0};
    struct timespec t;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *e; tasks != NULL && (e = readdir(tasks)) != NULL;)
        if (e->d_name[0] != '.')
            sum.waited_ns += waited_ns(e->d_name);
    if (tasks != NULL)
        closedir(tasks);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* schedstat's lags by a tick */
    sum.ran_ns = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    return sum;
}
