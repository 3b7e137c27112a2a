/* io_throttle.h - a device of limited bandwidth, as arithmetic on the clock.
 *
 * A transfer of n bytes occupies the device for n / rate seconds; transfers follow one another.
 * io_throttle_reserve books a transfer and returns its end; the caller must not report completion
 * earlier. With bookings errors do not accumulate, as they would with counted tokens: a late
 * wake-up delays one report, not the transfers booked behind it. Any thread may call
 * io_throttle_reserve. */
#ifndef IO_IO_THROTTLE_H
#define IO_IO_THROTTLE_H

#include <pthread.h>
#include <stdint.h>

struct io_throttle {
    pthread_mutex_t lock; /* guards next_ns */
    uint64_t bytes_per_s; /* 0: no limit */
    int64_t next_ns;      /* time at which the device is free again (clock_now_ns) */
};

void io_throttle_init(struct io_throttle *t);
void io_throttle_deinit(struct io_throttle *t);
void io_throttle_set(struct io_throttle *t, uint64_t bytes_per_s);

/* Returns the time (clock_now_ns) at which a transfer that begins now ends; 0 without a limit. */
int64_t io_throttle_reserve(struct io_throttle *t, uint64_t n_bytes);

#endif
