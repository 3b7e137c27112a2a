/* weights_pinned.h - layers that pass through a ring of device memory, copied up from pinned host
 * memory while the layer before computes.  Private to src/model.
 *
 *   stream     [compute 0 ][compute 1 ]...      waits for an event, not the host
 *   copies     [copy 1  ][copy 2  ]...          a stream of their own
 *
 * For devices with memory of their own, and for groups of ranks: the streamed layers are read and
 * checked once and stay in host memory, from which a bus is faster than a disk.
 *
 * One thread uses it: the one that owns the streams. */
#ifndef MODEL_WEIGHTS_PINNED_H
#define MODEL_WEIGHTS_PINNED_H

#include "model/pack_image.h"
#include "model/pack_read.h"
#include "model/weights_use.h"

struct weights_pinned_opts {
    struct pack_file *f;             /* outlives the source, as do the next three */
    const struct image_shape *shape; /* of a device with one stage */
    const struct image *images;      /* [f->n_parts] */
    size_t slot_bytes;               /* of the largest streamed image */
    struct weights *w;               /* the kept parts of all layers are bound */
    struct io *io;                   /* as weights_opts.io */
    int n_resident, n_slots;
};

/* Reads the streamed layers into host memory. */
int weights_pinned_open(const struct weights_pinned_opts *o, struct layer_source *out,
                        struct err *err);

#endif
