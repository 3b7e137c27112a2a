/* weights_experts.h - a cache of experts that are read from a packed file when a pass chooses them.
 * Private to src/model.  HybridServe, section 2, streams whole layers (weights_stream.h).  Of a
 * layer with experts a token uses a few, so whole layers would be many times the bytes.
 *
 *   expect    a layer's router has chosen: reads of the missing experts begin, several at a time
 *   lend      waits for one of them, in the order of the list, and lends it until the next call
 *
 * Everything but experts stays in memory.  The thread of the pass begins reads and checks what has
 * arrived; the disk works meanwhile.  expert_cache.h says which expert leaves.
 *
 * Invariants:
 *  1. No expert is lent before all of its checksums have been compared.
 *  2. A slot that is being read into, that is lent, or whose expert the list still needs, is kept.
 *
 * An expert that cannot be read (a read error, damage) is read once more; then the pass fails with
 * the code, and the next pass tries again.  If no byte arrives for stuck_ns, reads in flight are
 * cancelled, and the pass fails with -ETIMEDOUT.
 *
 * Threads: one pass at a time; stats and stop may be called by any thread. */
#ifndef MODEL_WEIGHTS_EXPERTS_H
#define MODEL_WEIGHTS_EXPERTS_H

#include "model/pack_image.h"
#include "model/pack_read.h"
#include "model/weights_use.h"

struct weights_experts_opts {
    struct pack_file *f; /* f, shape, images and w must outlive the source */
    /* For a device with unified memory and one rank. */
    const struct image_shape *shape;
    const struct image *images; /* of each layer's experts, from cfg.n_dense_layers on */
    size_t slot_bytes;          /* size of the largest expert */
    struct weights *w;          /* all but the experts is already bound */
    struct io *io;              /* see weights_opts.io */
    int n_slots;                /* more than cfg.n_experts_used, fewer than all experts */
    int64_t stuck_ns;
    /* bytes already read from the file, in load_ns: a first measurement of the disk */
    uint64_t load_bytes;
    int64_t load_ns;
};

/* After an error nothing is left. The source's close ends it. */
int weights_experts_open(const struct weights_experts_opts *o, struct layer_source *out,
                         struct err *err);

#endif
