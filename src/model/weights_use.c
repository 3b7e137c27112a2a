/* weights_use.c - see weights_use.h. */
#include "model/weights_use.h"

#include <stdio.h>

#include "model/weights_image.h"

int weights_check(const struct weights *w)
{
    return w->image == NULL || weights_image_is_intact(w->image) ? 0 : ERR_CORRUPT;
}

int weights_acquire(const struct weights *w, int l, struct stream *s,
                    const struct layer_weights **out)
{
    if (w->source != NULL) {
        atomic_store_explicit(&w->source->n_reached, l + 1, memory_order_relaxed);
        return w->source->acquire(w->source->arg, l, s, out);
    }
    *out = &w->layers[l];
    return weights_check(w);
}

const struct layer_weights *weights_resident(const struct weights *w, int l)
{
    return w->source == NULL || w->source->lend != NULL ? &w->layers[l] : NULL;
}

void weights_expect_experts(const struct weights *w, int l, const int32_t *ids, int n)
{
    if (w->source != NULL && w->source->expect != NULL)
        w->source->expect(w->source->arg, l, ids, n);
}

bool weights_lend_expert(const struct weights *w, int l, int e, struct weight *up,
                         struct weight *down, int *rc)
{
    bool lends = w->source != NULL && w->source->lend != NULL;
    *rc = lends ? w->source->lend(w->source->arg, l, e, up, down) : 0;
    return lends;
}

void weights_release(const struct weights *w, int l, struct stream *s)
{
    if (w->source != NULL && w->source->release != NULL)
        w->source->release(w->source->arg, l, s);
}

void weights_stats(const struct weights *w, struct weights_stream_stats *out)
{
    *out = (struct weights_stream_stats){0};
    if (w->source != NULL && w->source->stats != NULL)
        w->source->stats(w->source->arg, out);
    if (weights_check(w) != 0)
        snprintf(out->fault, sizeof out->fault,
                 "the image of the weights was changed while it was in use: start again");
}

int weights_reached(const struct weights *w)
{
    return w->source != NULL
               ? atomic_load_explicit(&w->source->n_reached, memory_order_relaxed)
               : 0;
}

void weights_stop(const struct weights *w, bool stops)
{
    if (w->source != NULL && w->source->stop != NULL)
        w->source->stop(w->source->arg, stops);
}
