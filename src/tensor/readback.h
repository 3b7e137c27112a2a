/* readback.h - results of a device as the host sees them: where they lie where memory is
 * unified, else in a pinned copy.
 *
 * One readback is one place: what is started anew overwrites what was there.  It belongs to
 * the thread that uses its stream. */
#ifndef TENSOR_READBACK_H
#define TENSOR_READBACK_H

#include "tensor/tensor.h"

struct readback {
    struct device *dev;
    struct buf copy; /* ptr NULL where memory is unified */
};

/* Room for results of at most `bytes`. */
int readback_init(struct device *d, size_t bytes, struct readback *out, struct err *err);
void readback_deinit(struct readback *r);

/* Where the host finds what lies at `dev` (bytes [0, bytes) of device memory) once the stream
 * has been synchronised; the copy, if it needs one, is queued behind what the stream has.
 * Valid until the next call.  Returns the stream's code. */
int readback_start(struct readback *r, struct stream *s, const void *dev, size_t bytes,
                   const void **host);

#endif
