/* clock.h - time: monotonic, of the day, and of the processors.  Durations are int64_t nanoseconds
 * everywhere (suffix _ns). */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <pthread.h>
#include <stdint.h>

int64_t clock_now_ns(void); /* monotonic, for durations */

/* Seconds since 1970: what the system's clock said when the process started, plus the time
 * since (a suspended machine's, too).  Setting the system's clock does not move it, forwards or
 * backwards, so ages, time limits and the times that are recorded stay comparable while a
 * process runs.  A new process takes over the system's time. */
int64_t clock_wall_s(void);
/* By how much the system's clock has been set since the process started: its time
 * less clock_wall_s(). */
int64_t clock_set_by_s(void);

void clock_sleep_ns(int64_t ns);

/* Makes a condition whose timed waits end by the monotonic clock, whatever the
 * system's is set to. */
void clock_cond_init(pthread_cond_t *c);

/* What this process's threads have had of the processors, together. */
struct clock_cpu {
    int64_t ran_ns;
    int64_t
        waited_ns; /* ready to run, while others ran; 0 where the kernel does not count it */
};
struct clock_cpu clock_cpu_now(void);

#endif
