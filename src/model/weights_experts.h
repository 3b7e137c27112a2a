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

#include "model/weights_stream.h"

/* For a device with unified memory and one rank.  After an error nothing is left.  The source's
 * close ends it. */
int weights_experts_open(const struct weights_stream_opts *o, struct layer_source *out,
                         struct err *err);

#endif
