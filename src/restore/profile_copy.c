/* profile_copy.c - measures how fast data comes up to a device with memory of its own.
 *
 * Restores copy up on a stream of their own while they read and compute. Each rank of a group
 * brings up its share and gathers the others' on that same stream (tensor/group.h). So a copy of
 * the group contains both; the gathering alone is measured beside it. */
#include <math.h>

#include "base/clock.h"
#include "base/minmax.h"
#include "restore/profile.h"
#include "tensor/group.h"

/* Several copies are queued before the wait, so that the wait does not count. */
enum { RUNS = 5, QUEUED_BYTES = 64 << 20, MOST_QUEUED = 64 };

struct copying {
    struct stream *s;
    struct buf to;
    const void *from;
    size_t bytes;
    int n_ranks;
};

static int copy_up(struct copying *c)
{
    return stream_copy(c->s, c->to.ptr, c->from, c->bytes);
}

static int gather(struct copying *c)
{
    int64_t n = (int64_t)(c->bytes / (size_t)c->n_ranks / sizeof(float));
    struct mat all = mat_of(c->to.ptr, DTYPE_F32, 1, c->n_ranks * n);
    return all_gather(c->s, all, mat_cols(all, 0, n));
}

/* Measures the seconds of one call, the fastest of several. */
static int time_of(struct copying *c, int (*once)(struct copying *), double *seconds,
                   struct err *err)
{
    int64_t best = INT64_MAX;
    int rc = 0, n = (int)(QUEUED_BYTES / c->bytes);
    n = MIN(MAX(n, 1), MOST_QUEUED);
    for (int i = 0; rc == 0 && i < RUNS; i++) {
        int64_t t0 = clock_now_ns();
        for (int k = 0; rc == 0 && k < n; k++)
            rc = once(c);
        if (rc == 0)
            rc = stream_sync(c->s);
        int64_t ns = clock_now_ns() - t0;
        best = MIN(ns, best);
    }
    *seconds = (double)(best > 0 ? best : 1) * 1e-9 / n;
    return rc == 0 ? 0 : err_set(err, rc, "profile: %s", stream_fault(c->s));
}

/* Gathering counts as at most this share of a copy, whatever the two measurements say. */
static const double MOST_GATHERING = 0.9;

static int measure(struct copying *c, struct platform_tier *t, struct err *err)
{
    double whole_s = 0, gather_s = 0;
    int rc = time_of(c, copy_up, &whole_s, err);
    if (rc == 0 && c->n_ranks > 1)
        rc = time_of(c, gather, &gather_s, err);
    if (rc != 0)
        return rc;
    gather_s = fmin(gather_s, MOST_GATHERING * whole_s);
    t->up_bytes_per_s = (double)c->bytes / (whole_s - gather_s);
    t->gather_bytes_per_s = gather_s > 0 ? (double)c->bytes / gather_s : 0;
    return 0;
}

int profile_copies(struct device *d, const void *from, size_t bytes,
                   struct platform_tier *t, struct err *err)
{
    bytes = MIN(bytes, PROFILE_COPY_BYTES);
    struct copying c = {.from = from, .bytes = bytes, .n_ranks = d->n_ranks};
    t->up_bytes_per_s = t->gather_bytes_per_s = 0;
    if (d->unified || bytes == 0)
        return 0;
    int rc = buf_alloc(d, MEM_DEVICE, bytes, &c.to, err);
    if (rc == 0)
        rc = stream_create(d, STREAM_COPY, &c.s, err);
    if (rc == 0)
        rc = measure(&c, t, err);
    stream_destroy(c.s);
    buf_free(d, &c.to);
    return rc;
}
