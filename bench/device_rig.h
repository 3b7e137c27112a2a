/* device_rig.h - a device under measurement: a stream on it, random data in its memory, the time of
 * operations, and what it can do at most.
 *
 * Whatever the device is, it is known by its table of operations alone: the same on a CPU
 * and a GPU. One thread at a time. */
#ifndef BENCH_DEVICE_RIG_H
#define BENCH_DEVICE_RIG_H

#include "bench/ceilings.h"
#include "tensor/ops.h"

struct rig {
    struct device *dev; /* borrowed */
    struct stream *s;
    const struct ops *op;
    enum dtype dtype; /* of state and weights */
};

int rig_open(struct device *d, enum dtype t, struct rig *out, struct err *err);
void rig_close(struct rig *r); /* also after a failure */

/* Random numbers of the rig's type in [-0.5, 0.5), in device memory that is the caller's to free: a
 * pattern of 1 MiB, repeated. */
int rig_random(struct rig *r, size_t bytes, struct buf *out, struct err *err);
/* What activations are there. */
enum dtype rig_act_dtype(const struct rig *r);

/* Times `runs` measurements after one that warms up; each queues run(arg, i)
 * `inner` times, with i that counts on (so that it can walk over its data), and
 * waits once.  Seconds of one call. */
int rig_time(struct rig *r, int (*run)(struct rig *r, void *arg, int i), void *arg,
             int inner, int runs, struct spread *out, struct err *err);

/* What the device can do at most, measured: shares of them say how good the rest is. */
struct device_ceilings {
    double gemm_flops; /* a large square product of the rig's type */
    double up_bytes_per_s,
        down_bytes_per_s;      /* of pinned host memory; 0 where memory is unified */
    double memory_bytes_per_s; /* device memory: a copy, read and written */
};
/* Half a second at most on a GPU; sizes grow until a run is long beside the clock, so that a
 * slow device is not kept busy for minutes. */
int device_ceilings_measure(struct rig *r, struct device_ceilings *out, struct err *err);
/* One line. */
void device_ceilings_print(const struct device_ceilings *c, const struct rig *r);

#endif
