/* io_throttle.h - a device of limited bandwidth, as arithmetic on the clock.
 *
 * A transfer of n bytes occupies the device for n / rate seconds; transfers follow one another.
 * io_throttle_reserve books a transfer and returns its end; the caller must not report completion
 * earlier. With bookings errors do not accumulate, as they would with counted tokens: a late
 * wake-up delays one report, not the transfers booked behind it. A single synchronous reader
 * oversleeps by 50 to 100 us per transfer, which would cost half of the bandwidth at 4 KiB. So the
 * next transfer may begin as much earlier as the report was late. Otherwise an idle device has no
 * time in hand: a short read takes its whole time, too. Any thread may reserve and wait. */
#ifndef IO_IO_THROTTLE_H
#define IO_IO_THROTTLE_H

#include <pthread.h>
#include <stdint.h>

struct io_throttle {
    pthread_mutex_t lock; /* guards next_ns and late_ns */
    uint64_t bytes_per_s; /* 0: no limit */
    int64_t next_ns;      /* time at which the device is free again (clock_now_ns) */
    int64_t late_ns;      /* time by which the last report of io_throttle_wait was late */
};

void io_throttle_init(struct io_throttle *t);
void io_throttle_deinit(struct io_throttle *t);
void io_throttle_set(struct io_throttle *t, uint64_t bytes_per_s);

/* Returns the time (clock_now_ns) at which a transfer that begins now ends; 0 without a limit. */
int64_t io_throttle_reserve(struct io_throttle *t, uint64_t n_bytes);

/* Sleeps until a transfer ends. end_ns: a result of io_throttle_reserve. */
void io_throttle_wait(struct io_throttle *t, int64_t end_ns);

#endif
