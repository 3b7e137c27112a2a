/* weights_stream.h - layers that pass through a ring of memory, read from a packed file while the
 * layer before computes.  Private to src/model.  HybridServe, section 2, streams weights alike.
 *
 *   passes   [compute 0 ][compute 1 ][wait|compute 2 ] ...   acquire waits where the disk is behind
 *   disk     [read 1    ][read 2         ][read 3    ] ...   one thread, two layers ahead
 *
 * For devices that compute in the host's memory: a slot of the ring is read into by O_DIRECT and
 * computed from.  No page cache, no mmap.
 *
 * Passes go through the layers in ascending order, one pass behind the other.  So what is read next
 * is known across the end of a pass, too: the streamed layers in ascending order, round and round.
 * A layer that somebody waits for comes first.
 *
 * Invariants:
 *  1. Nothing is lent before all of its checksums have been compared.
 *  2. A slot that is lent is neither read into nor freed.
 *  3. The ring has n_slots slots.  One more is made where all are lent and another layer is wanted
 *     (a prefill that follows a restore holds its layer between steps), and freed when it can be.
 *
 * A layer that fails (a read error, damage) is read once more, then the pass that wants it fails
 * with the code; the next pass tries again.  Where no byte arrives for stuck_ns, what is under way
 * is cancelled, and passes fail with -ETIMEDOUT. */
#ifndef MODEL_WEIGHTS_STREAM_H
#define MODEL_WEIGHTS_STREAM_H

#include "model/pack_image.h"
#include "model/pack_read.h"
#include "model/weights_use.h"

struct weights_stream_opts {
    struct pack_file *f;             /* outlives the stream, as do the next three */
    const struct image_shape *shape; /* of a device with unified memory and one rank */
    const struct image *images;      /* [f->n_parts] */
    size_t slot_bytes;               /* of the largest streamed image */
    struct weights *w;               /* the kept parts of all layers are bound */
    struct io *io;                   /* as weights_opts.io */
    int n_resident; /* layers of w that are whole; weights_stays says which */
    int n_slots;    /* at least 2 */
    int64_t stuck_ns;
    uint64_t
        load_bytes; /* what was read of the file before, in load_ns: a first measurement */
    int64_t load_ns;
};

/* Starts the thread. The source's close ends it; an error leaves nothing. */
int weights_stream_open(const struct weights_stream_opts *o, struct layer_source *out,
                        struct err *err);

#endif
