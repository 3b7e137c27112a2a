/* profile_copy.c - how fast a device with memory of its own is fed.
 *
 * Restores copy up on a stream of their own while they read and compute, so a tier reads at most as fast
 * as the bus: to the planner that is one lane. */
#include <math.h>

#include "base/clock.h"
#include "state/profile.h"

/* Several copies are queued before they are waited for, so that the wait does not count. */
enum { RUNS = 5, QUEUED_BYTES = 64 << 20, MOST_QUEUED = 64 };

int profile_copy_up(struct device *d, const void *from, size_t bytes, double *bytes_per_s,
                    struct err *err)
{
    struct buf to = {0};
    struct stream *s = NULL;
    int64_t best = INT64_MAX;
    *bytes_per_s = HUGE_VAL;
    if (d->unified)
        return 0;
    int n = bytes > 0 ? (int)(QUEUED_BYTES / bytes) : 0;
    n = n < 1 ? 1 : n > MOST_QUEUED ? MOST_QUEUED : n;
    int rc = buf_alloc(d, MEM_DEVICE, bytes, &to, err);
    if (rc == 0)
        rc = stream_create(d, STREAM_COPY, &s, err);
    for (int i = 0; rc == 0 && i < RUNS; i++) {
        int64_t t0 = clock_now_ns();
        for (int k = 0; rc == 0 && k < n; k++)
            rc = stream_copy(s, to.ptr, from, bytes);
        if (rc == 0)
            rc = stream_sync(s);
        int64_t ns = clock_now_ns() - t0;
        best = ns < best ? ns : best;
        if (rc != 0)
            err_set(err, rc, "profile: %s", stream_fault(s));
    }
    if (rc == 0)
        *bytes_per_s = (double)n * (double)bytes / ((double)(best > 0 ? best : 1) * 1e-9);
    stream_destroy(s);
    buf_free(d, &to);
    return rc;
}
