/* clock.h - monotonic time. Durations are int64_t nanoseconds everywhere (suffix _ns). */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

int64_t clock_now_ns(void); /* monotonic, for durations */
int64_t clock_wall_s(void); /* seconds since the epoch, for records only */
void clock_sleep_ns(int64_t ns);

#endif
