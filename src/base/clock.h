/* clock.h - monotonic time, time of day and processor time.  Durations are int64_t nanoseconds
 * everywhere (suffix _ns). */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

int64_t clock_now_ns(void); /* monotonic: use it for durations */

/* Returns seconds since 1970: the system's clock at the start of the process, plus the time since
 * then (including time in which the machine was suspended). The result does not follow when the
 * system's clock is set, so ages, time limits and recorded times stay comparable while a process
 * runs. */
int64_t clock_wall_s(void);
/* Returns the system's clock minus clock_wall_s(): by how many seconds the clock has been set
 * forward (negative: back) since the process started. */
int64_t clock_set_by_s(void);

/* Converts nanoseconds to milliseconds. */
static inline double clock_ms(int64_t ns)
{
    return (double)ns * 1e-6;
}
void clock_sleep_ns(int64_t ns);

/* Makes a condition variable whose timed waits use the monotonic clock, so that setting the
 * system's clock does not affect them. */
void clock_cond_init(pthread_cond_t *c);
/* Wait for such a condition variable: until clock_now_ns() is until_ns, or at most ns. Return true
 * if the time ran out. */
bool clock_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, int64_t until_ns);
bool clock_cond_wait(pthread_cond_t *c, pthread_mutex_t *lock, int64_t ns);

/* Processor time of all threads of this process together. */
struct clock_cpu {
    int64_t ran_ns;
    /* Time for which threads were ready to run but waited for a processor; 0 if the kernel does not
     * count it. */
    int64_t waited_ns;
};
struct clock_cpu clock_cpu_now(void);

#endif
