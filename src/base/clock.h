/* clock.h - time: monotonic, of the day, and of the processors. Durations are int64_t nanoseconds everywhere (suffix _ns). */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

int64_t clock_now_ns(void); /* monotonic, for durations */
int64_t clock_wall_s(void); /* seconds since the epoch, for records only */
void clock_sleep_ns(int64_t ns);

/* What this process's threads have had of the processors, together. */
struct clock_cpu {
    int64_t ran_ns;
    int64_t waited_ns; /* ready to run, while others ran; 0 where the kernel does not count it */
};
struct clock_cpu clock_cpu_now(void);

#endif
