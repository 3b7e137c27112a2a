/* thread_time.h - the processor time of another process's threads, by their names. Threads that
 * have ended are not counted. */
#ifndef BENCH_THREAD_TIME_H
#define BENCH_THREAD_TIME_H

#include <stdint.h>

#include "base/err.h"

enum { THREAD_TIME_NAMES = 32 };

struct thread_time {
    int n;
    struct {
        char name[16];
        int64_t ns;
    } of[THREAD_TIME_NAMES];
};

/* Reads the times. Returns 0, ERR_NOT_FOUND if there is no such process, or ERR_UNSUPPORTED if the
 * kernel does not count threads' times (no /proc/PID/task/TID/schedstat) or there are more names
 * than fit. */
int thread_time_of(int64_t pid, struct thread_time *out, struct err *err);

/* Returns the processor time that the threads of this name have used since `before`, in ns. */
int64_t thread_time_since(const struct thread_time *before, const struct thread_time *now,
                          int name_idx);

#endif
