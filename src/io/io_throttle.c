/* io_throttle.c - see io_throttle.h. */
#include "io/io_throttle.h"

#include "base/clock.h"
#include "base/minmax.h"

/* Most that a late report gives back: 1 % of the 100 ms in which the limit must be accurate. */
#define LATE_NS 1000000

void io_throttle_init(struct io_throttle *t)
{
    pthread_mutex_init(&t->lock, NULL);
    io_throttle_set(t, 0);
}

void io_throttle_deinit(struct io_throttle *t)
{
    pthread_mutex_destroy(&t->lock);
}

void io_throttle_set(struct io_throttle *t, uint64_t bytes_per_s)
{
    t->bytes_per_s = bytes_per_s;
    t->next_ns = t->late_ns = 0;
}

int64_t io_throttle_reserve(struct io_throttle *t, uint64_t n_bytes)
{
    if (t->bytes_per_s == 0)
        return 0;
    unsigned __int128 exact_ns = (unsigned __int128)n_bytes * 1000000000u / t->bytes_per_s;
    int64_t took_ns = (int64_t)MIN(exact_ns, INT64_MAX);
    pthread_mutex_lock(&t->lock);
    int64_t earliest_ns = clock_now_ns() - t->late_ns;
    t->next_ns = MAX(t->next_ns, earliest_ns);
    t->late_ns = 0;
    /* The sum overflows after 292 years of booked time, at a few bytes per second. */
    if (__builtin_add_overflow(t->next_ns, took_ns, &t->next_ns))
        t->next_ns = INT64_MAX;
    int64_t end_ns = t->next_ns;
    pthread_mutex_unlock(&t->lock);
    return end_ns;
}

void io_throttle_wait(struct io_throttle *t, int64_t end_ns)
{
    if (end_ns == 0 || end_ns <= clock_now_ns())
        return;
    clock_sleep_ns(end_ns - clock_now_ns());
    int64_t late_ns = clock_now_ns() - end_ns;
    pthread_mutex_lock(&t->lock);
    t->late_ns = MIN(late_ns, LATE_NS);
    pthread_mutex_unlock(&t->lock);
}
