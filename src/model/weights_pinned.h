/* weights_pinned.h - a ring of device memory for layers that are copied from pinned host memory
 * while the layer before computes.  Private to src/model.
 *
 *   stream     [compute 0 ][compute 1 ]...      waits for an event, not for the host
 *   copies     [copy 1  ][copy 2  ]...          a stream of their own
 *
 * It is for devices with memory of their own, and for groups of ranks.  The streamed layers are
 * read and checked once and then stay in host memory, because a bus is faster than a disk.
 *
 * Only the thread that owns the streams may use it. */
#ifndef MODEL_WEIGHTS_PINNED_H
#define MODEL_WEIGHTS_PINNED_H

#include "model/weights_stream.h"

/* Opens the source, for a device with one stage: reads the streamed layers into host memory. */
int weights_pinned_open(const struct weights_stream_opts *o, struct layer_source *out,
                        struct err *err);

#endif
