/* life_device.h - a device with memory of its own for seeded lives (life.h).
 *
 * It is a host-memory device that claims to have memory of its own.  Saves and restores then use
 * everything that a GPU makes them use: copy streams, whose threads take turns like the others,
 * events, the ring of save_down.c, the twins of restore_up.c, checksums that the device computes,
 * and a reader that reads files past host memory.  That reader reads the simulated disk, with its
 * faults. */
#ifndef TESTS_RESTORE_LIFE_DEVICE_H
#define TESTS_RESTORE_LIFE_DEVICE_H

#include <stdint.h>

#include "io/io.h"
#include "tensor/tensor.h"

/* Counts over the file readers of all devices. */
struct life_reader_counts {
    uint64_t n_batches, n_cancels;
    uint64_t n_refused; /* batches that the reader did not take */
    uint64_t n_broken;  /* batches that ended with a fault of the reader itself */
};

/* Makes dev claim to have memory of its own.  dev comes from device_open. */
void life_device_split(struct device *dev);
/* Gives each file of `io` a descriptor that the readers of split devices know. Readers that are
 * opened from now on read `io`, which is a simulated disk. The seed decides when they fail. */
void life_device_disk(struct io *io, uint64_t seed);
struct life_reader_counts life_device_counts(void);

#endif
