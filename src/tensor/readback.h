/* readback.h - makes results of a device visible to the host: in place if memory is unified, else
 * in a pinned copy.
 *
 * A readback holds one result: starting the next one overwrites it.  It belongs to the thread that
 * uses its stream. */
#ifndef TENSOR_READBACK_H
#define TENSOR_READBACK_H

#include "tensor/tensor.h"

struct readback {
    struct device *dev;
    struct buf copy; /* ptr NULL: memory is unified */
};

/* Makes room for results of at most `bytes`. */
int readback_init(struct device *d, size_t bytes, struct readback *out, struct err *err);
void readback_deinit(struct readback *r);

/* Sets *host to the place where the host can read bytes [0, bytes) of device memory `dev` after the
 * stream has been synchronised.  If a copy is needed, it is queued behind the stream's work.  The
 * result is valid until the next call.  Returns the stream's code. */
int readback_start(struct readback *r, struct stream *s, const void *dev, size_t bytes,
                   const void **host);

#endif
