/* device_rig.h - a device under measurement: a stream on it, random data in its memory, the time of
 * operations, and its limits.
 *
 * It uses only the device's table of operations, so it is the same on a CPU and a GPU. One thread
 * at a time. */
#ifndef BENCH_DEVICE_RIG_H
#define BENCH_DEVICE_RIG_H

#include "bench/ceilings.h"
#include "tensor/ops.h"

struct rig {
    struct device *dev; /* the caller's device */
    struct stream *s;
    const struct ops *op;
    enum dtype dtype; /* type of state and weights */
};

int rig_open(struct device *d, enum dtype t, struct rig *out, struct err *err);
void rig_close(struct rig *r); /* may be called after a failed open */

/* Allocates random numbers of the rig's type in [-0.5, 0.5) in device memory: a pattern of 1 MiB,
 * repeated. The caller frees them. */
int rig_random(struct rig *r, size_t bytes, struct buf *out, struct err *err);
/* Returns the type of activations on the device. */
enum dtype rig_act_dtype(const struct rig *r);

/* Makes one measurement to warm up and then `runs` measurements. Each calls run(arg, i) `inner`
 * times, which queues work, and then waits once. i keeps counting, so that run can use its data in
 * turn. *out gets seconds per call. */
int rig_time(struct rig *r, int (*run)(struct rig *r, void *arg, int i), void *arg,
             int inner, int runs, struct spread *out, struct err *err);

/* Limits of a device that are measured; results are given as shares of them. */
struct device_ceilings {
    double gemm_flops; /* rate of a large square product of the rig's type */
    /* Rates of copies to the device and from it, with pinned host memory; 0 if memory is
     * unified. */
    double up_bytes_per_s, down_bytes_per_s;
    /* rate of a copy within device memory: bytes read plus bytes written */
    double memory_bytes_per_s;
};
/* Measures the limits, in at most half a second on a GPU. Sizes grow until a run is long compared
 * with the clock's resolution, so that a slow device is not busy for minutes. */
int device_ceilings_measure(struct rig *r, struct device_ceilings *out, struct err *err);
/* Prints the limits on one line. */
void device_ceilings_print(const struct device_ceilings *c, const struct rig *r);

#endif
