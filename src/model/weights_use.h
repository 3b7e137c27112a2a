/* weights_use.h - lends a layer's weights to the operations that use them.
 *
 *   weights_acquire(w, l, s, &lw)      operations queued on s from here on find layer l in *lw
 *     ... operations on s that read *lw ...
 *   weights_release(w, l, s)           the operations queued on s so far are the last to read *lw
 *
 * A layer's weights are read only between such a pair.  If all layers are resident, both calls
 * return at once.  If memory holds only some layers (weights_stream.h, weights_pinned.h), a
 * layer_source brings the others, and callers do not change.
 *
 * Computing K and V of a layer needs only its input norm, W_k and W_v.  These always stay in
 * weights.layers and are read there, so nothing waits.
 *
 * Callers keep three rules, on which a source may rely:
 *  1. Every successful acquire has one release, on the same stream.
 *  2. A pass (pass.h) acquires layers in ascending order and holds one at a time, so a source may
 *     prefetch layer l + 1 when layer l is acquired.
 *  3. Several passes may hold the same layer or different ones: a prefill that follows a restore
 *     holds its layer while batches pass all of them. */
#ifndef MODEL_WEIGHTS_USE_H
#define MODEL_WEIGHTS_USE_H

#include <stdatomic.h>

#include "model/weights.h"

/* A source of layers. The thread that owns s calls acquire and release. */
struct layer_source {
    /* Returns 0, or a negative code if the layer cannot be provided; then no release follows. May
     * wait. *out is valid until the release. */
    int (*acquire)(void *arg, int l, struct stream *s, const struct layer_weights **out);
    /* See weights_expect_experts and weights_lend_expert. NULL: layers have all their experts. */
    void (*expect)(void *arg, int l, const int32_t *ids, int n);
    int (*lend)(void *arg, int l, int e, struct weight *up, struct weight *down);
    /* Ends the use of a layer. NULL: layers stay. Its memory may be overwritten once the operations
     * queued on s have run. */
    void (*release)(void *arg, int l, struct stream *s);
    void *arg;
    /* Number of the layer that a pass acquired last, from 1; 0: no layer was acquired.
     * weights_acquire sets it. */
    atomic_int n_reached;
    /* Reports counters. NULL: there are none. */
    void (*stats)(void *arg, struct weights_stream_stats *out);
    /* See weights_stop. Any thread. NULL: nothing ever waits. */
    void (*stop)(void *arg, bool stops);
    /* Ends the source and frees its memory. NULL: the caller owns it. */
    void (*close)(void *arg);
};

/* weights_acquire and weights_release call the source of w. Without a source, *out is the resident
 * layer. */
int weights_acquire(const struct weights *w, int l, struct stream *s,
                    const struct layer_weights **out);
void weights_release(const struct weights *w, int l, struct stream *s);
/* Returns 0, or ERR_CORRUPT if the weights lie in an image that another program has changed: what
 * was computed with them must not be used. acquire asks, too; ask again behind the last use. */
int weights_check(const struct weights *w);
/* Returns layer l if it is resident, else NULL. Its experts may be elsewhere. */
const struct layer_weights *weights_resident(const struct weights *w, int l);

/* Says which experts of a layer are used next: ids [n], ascending.  Reads of those that are not in
 * memory begin. */
void weights_expect_experts(const struct weights *w, int l, const int32_t *ids, int n);
/* Sets *up and *down to the matrices of expert e, which are valid until the next call of this
 * function or of weights_expect_experts.  Call it for each expert of that list, in its order.
 * Returns true if the source lends experts: *rc is 0, or the code with which the pass fails.
 * Returns false if all experts are resident: *rc is 0, and the layer's weights have them. */
bool weights_lend_expert(const struct weights *w, int l, int e, struct weight *up,
                         struct weight *down, int *rc);

#endif
