/* weights_stream.h - a ring of memory for layers that are read from a packed file while the layer
 * before computes.  Private to src/model.  HybridServe, section 2, streams weights in the same way.
 *
 *   passes   [compute 0 ][compute 1 ][wait|compute 2 ] ...   acquire waits where the disk is behind
 *   disk     [read 1    ][read 2         ][read 3    ] ...   one thread, two layers ahead
 *
 * It is for devices that compute in the host's memory: O_DIRECT reads fill a slot of the ring, and
 * operations read the weights there.  There is no page cache and no mmap.
 *
 * Passes go through the layers in ascending order, one pass after another.  So the order of reads
 * is known beyond the end of a pass: the streamed layers in ascending order, again and again.  A
 * layer for which an acquire waits is read first.
 *
 * Invariants:
 *  1. No layer is lent before all of its checksums have been compared.
 *  2. A slot that is lent is neither read into nor freed.
 *  3. The ring has n_slots slots.  One more is made if all are lent and another layer is wanted (a
 *     prefill that follows a restore holds its layer between steps), and freed as soon as possible.
 *
 * If a layer fails (a read error, damage), it is read once more.  If it fails again, the pass that
 * needs it fails with the code, and the next pass tries again.  If no byte arrives for stuck_ns,
 * reads in flight are cancelled, and passes fail with -ETIMEDOUT. */
#ifndef MODEL_WEIGHTS_STREAM_H
#define MODEL_WEIGHTS_STREAM_H

#include "model/pack_image.h"
#include "model/pack_read.h"
#include "model/weights_use.h"

struct weights_stream_opts {
    struct pack_file *f; /* f, shape, images and w must outlive the stream */
    /* Shape of the images; for a device with unified memory and one rank. */
    const struct image_shape *shape;
    const struct image *images; /* [f->n_parts] */
    size_t slot_bytes;          /* size of the largest streamed image */
    struct weights *w;          /* the kept parts of all layers are already bound */
    struct io *io;              /* see weights_opts.io */
    int n_resident; /* number of complete layers in w; weights_stays tells which */
    int n_slots;    /* at least 2 */
    int64_t stuck_ns;
    /* bytes already read from the file, in load_ns: a first measurement of the disk */
    uint64_t load_bytes;
    int64_t load_ns;
};

/* Starts the thread. The source's close ends it; after an error nothing is left. */
int weights_stream_open(const struct weights_stream_opts *o, struct layer_source *out,
                        struct err *err);

#endif
