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
    struct device *dev; /* borrowed */
    struct stream *s;
    const struct ops *op;
    enum dtype dtype; /* type of state and weights */
};

int rig_open(struct device *d, enum dtype t, struct rig *out, struct err *err);
void rig_close(struct rig *r); /* also after a failure */

/* Allocates random numbers of the rig's type in [-0.5, 0.5), in device memory that the caller
 * frees: a pattern of 1 MiB, repeated. */
int rig_random(struct rig *r, size_t bytes, struct buf *out, struct err *err);
/* Returns the type of activations on the device. */
enum dtype rig_act_dtype(const struct rig *r);

/* Makes `runs` measurements after one that warms up. Each queues run(arg, i) `inner` times, with an
 * i that keeps counting (so that it can use its data in turn), and waits once.  *out: seconds of
 * one call. */
int rig_time(struct rig *r, int (*run)(struct rig *r, void *arg, int i), void *arg,
             int inner, int runs, struct spread *out, struct err *err);

/* The device's measured limits; results are shares of them. */
struct device_ceilings {
    double gemm_flops; /* rate of a large square product of the rig's type */
    /* Rates of copies to the device and back, with pinned host memory; 0 if memory is unified. */
    double up_bytes_per_s, down_bytes_per_s;
    double memory_bytes_per_s; /* device memory: bytes read plus bytes written by a copy */
};
/* Takes at most half a second on a GPU. Sizes grow until a run is long compared with the clock's
 * resolution, so that a slow device is not busy for minutes. */
int device_ceilings_measure(struct rig *r, struct device_ceilings *out, struct err *err);
/* Prints one line. */
void device_ceilings_print(const struct device_ceilings *c, const struct rig *r);

#endif
