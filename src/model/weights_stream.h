/* weights_stream.h - a ring of memory for layers that are read from a packed file while the layer
 * before computes.  Private to src/model.  HybridServe, section 2, streams weights in the same way.
 *
 *   passes   [compute 0 ][compute 1 ][wait|compute 2 ] ...   acquire waits where the disk is behind
 *   disk     [read 1    ][read 2         ][read 3    ] ...   one thread, two layers ahead
 *
 * It is for devices of one rank that compute in the host's memory: O_DIRECT reads fill a slot of
 * the ring, and operations read the weights there.  There is no page cache and no mmap.
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

/* Options of the three sources of streamed weights: this one, weights_pinned.h, which waits for no
 * disk, and weights_experts.h, whose units are experts. */
struct weights_stream_opts {
    struct pack_file *f; /* f, shape, images and w must outlive the source */
    const struct image_shape *shape;
    /* [f->n_parts]; weights_experts: those of each layer's experts, from cfg.n_dense_layers on */
    const struct image *images;
    size_t slot_bytes; /* size of the largest streamed image */
    struct weights *w; /* the kept parts of all layers are already bound */
    struct io *io;     /* see weights_opts.io */
    int n_resident;    /* complete units in w; of layers, weights_stays tells which */
    /* at least 2; weights_experts: more than cfg.n_experts_used, at most all experts */
    int n_slots;
    int64_t stuck_ns;
    /* bytes already read from the file, in load_ns: a first measurement of the disk */
    uint64_t load_bytes;
    int64_t load_ns;
};

/* Starts the thread. The source's close ends it; after an error nothing is left. */
int weights_stream_open(const struct weights_stream_opts *o, struct layer_source *out,
                        struct err *err);

#endif
