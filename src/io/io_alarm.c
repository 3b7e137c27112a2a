/* io_alarm.c - see io_alarm.h. */
#include "io/io_alarm.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"

int io_alarm_init(struct io_alarm *a, struct err *err)
{
    a->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return a->fd >= 0 ? 0 : err_set(err, -errno, "eventfd: %s", err_name(-errno));
}

void io_alarm_deinit(struct io_alarm *a)
{
    close(a->fd);
}

void io_alarm_ring(struct io_alarm *a)
{
    CHECK(eventfd_write(a->fd, 1) == 0);
}

bool io_alarm_wait(struct io_alarm *a, int fd, int64_t timeout_ns)
{
    struct pollfd p[2] = {{.fd = a->fd, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    struct timespec t = {.tv_sec = (time_t)(timeout_ns / 1000000000),
                         .tv_nsec = (long)(timeout_ns % 1000000000)};
    (void)ppoll(p, fd < 0 ? 1 : 2, timeout_ns < 0 ? NULL : &t, NULL);
    eventfd_t unused;
    return eventfd_read(a->fd, &unused) == 0;
}
