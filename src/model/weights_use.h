/* weights_use.h - a layer's weights while operations use them.
 *
 *   weights_acquire(w, l, s, &lw)      operations queued on s from here on find layer l in *lw
 *     ... operations on s that read *lw ...
 *   weights_release(w, l, s)           the operations queued on s so far are the last to read *lw
 *
 * Nothing reads a layer's weights outside such a pair.  Where all layers are resident both calls
 * return at once.  Where memory holds some layers only (weights_stream.h, weights_pinned.h), a
 * layer_source brings the others, and no caller changes.
 *
 * K and V of a layer need its input norm and W_k, W_v alone, which always stay: weights_acquire_kv
 * lends just these and waits for nothing.
 *
 * Callers keep three rules, on which a source may rely:
 *  1. Every successful acquire has one release, on the same stream.
 *  2. A pass (pass.h) acquires layers in ascending order and holds one at a time, so a source may
 *     prefetch layer l + 1 when layer l is acquired.
 *  3. Several passes may hold the same layer, or different ones: a prefill that follows a restore
 *     holds its layer while batches pass all of them. */
#ifndef MODEL_WEIGHTS_USE_H
#define MODEL_WEIGHTS_USE_H

#include <stdatomic.h>

#include "model/weights.h"

/* Where layers come from. The functions are called by the thread that owns s. */
struct layer_source {
    /* Returns 0, or a negative code where the layer cannot be had: then there is no release.  May
     * wait. *out is valid until the release. */
    int (*acquire)(void *arg, int l, struct stream *s, const struct layer_weights **out);
    /* The layer's memory may be overwritten once the operations that are queued on s have run. */
    void (*release)(void *arg, int l, struct stream *s);
    void *arg;
    /* The layer that a pass acquired last, plus 1; 0: none was. Written by weights_acquire. */
    atomic_int n_reached;
    /* What K and V need of every layer is in weights.layers, for as long as the weights live. */
    bool keeps_kv;
    /* What has happened so far. NULL: nothing is counted. */
    void (*stats)(void *arg, struct weights_stream_stats *out);
    /* See weights_stop. Any thread. NULL: nothing waits. */
    void (*stop)(void *arg, bool stops);
    /* Ends it and frees its memory. NULL: the caller owns it. */
    void (*close)(void *arg);
};

/* Calls the source of w; without one, *out is the resident layer. */
int weights_acquire(const struct weights *w, int l, struct stream *s,
                    const struct layer_weights **out);
void weights_release(const struct weights *w, int l, struct stream *s);

/* The same for operations that compute K and V only. */
int weights_acquire_kv(const struct weights *w, int l, struct stream *s,
                       const struct layer_weights **out);
void weights_release_kv(const struct weights *w, int l, struct stream *s);

#endif
