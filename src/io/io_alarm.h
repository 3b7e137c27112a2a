/* io_alarm.h - lets one thread end another's wait for a disk.
 *
 * A thread that waits for transfers (io_queue_await) notices nothing else meanwhile. If its queue
 * listens to an alarm (io_queue_listen), io_alarm_ring ends the wait. A ring is remembered until
 * one wait has ended by it, so a ring before the wait begins counts too. Several remembered rings
 * count as one. */
#ifndef HCACHE_IO_ALARM_H
#define HCACHE_IO_ALARM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct io_alarm {
    int fd; /* descriptor of an eventfd */
};

int io_alarm_init(struct io_alarm *a, struct err *err);
void io_alarm_deinit(struct io_alarm *a);

/* Rings the alarm. Any thread may call it. */
void io_alarm_ring(struct io_alarm *a);

/* Waits until the alarm rings, fd can be read (-1: no file), or timeout_ns has passed. Returns
 * whether the alarm has rung, and forgets that ring. One thread at a time. */
bool io_alarm_wait(struct io_alarm *a, int fd, int64_t timeout_ns);

#endif
