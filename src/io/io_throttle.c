/* io_throttle.c - see io_throttle.h. */
#include "io/io_throttle.h"

#include "base/clock.h"

/* Idle time that counts as if it had been used. One synchronous reader oversleeps by 50 to 100 us
 * per transfer, which would cost half of the bandwidth at 4 KiB. A credit of 1 ms makes up for
 * that, and is 1 % of the 100 ms over which the limit has to be accurate. */
#define CREDIT_NS 1000000

void io_throttle_init(struct io_throttle *t)
{
    pthread_mutex_init(&t->lock, NULL);
    t->bytes_per_s = 0;
    t->next_ns = 0;
}

void io_throttle_deinit(struct io_throttle *t)
{
    pthread_mutex_destroy(&t->lock);
}

void io_throttle_set(struct io_throttle *t, uint64_t bytes_per_s)
{
    t->bytes_per_s = bytes_per_s;
    t->next_ns = 0;
}

int64_t io_throttle_reserve(struct io_throttle *t, uint64_t n_bytes)
{
    if (t->bytes_per_s == 0)
        return 0;
    unsigned __int128 exact_ns = (unsigned __int128)n_bytes * 1000000000u / t->bytes_per_s;
    int64_t took_ns = exact_ns < INT64_MAX ? (int64_t)exact_ns : INT64_MAX;
    int64_t earliest_ns = clock_now_ns() - CREDIT_NS;
    pthread_mutex_lock(&t->lock);
    if (t->next_ns < earliest_ns)
        t->next_ns = earliest_ns;
    /* The sum overflows only at a byte a second, after 292 years. */
    if (__builtin_add_overflow(t->next_ns, took_ns, &t->next_ns))
        t->next_ns = INT64_MAX;
    int64_t end_ns = t->next_ns;
    pthread_mutex_unlock(&t->lock);
    return end_ns;
}
