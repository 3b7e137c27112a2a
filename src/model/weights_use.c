/* weights_use.c - see weights_use.h. */
#include "model/weights_use.h"

int weights_acquire(const struct weights *w, int l, struct stream *s,
                    const struct layer_weights **out)
{
    if (w->source != NULL)
        return w->source->acquire(w->source->arg, l, s, out);
    *out = &w->layers[l];
    return 0;
}

void weights_release(const struct weights *w, int l, struct stream *s)
{
    if (w->source != NULL)
        w->source->release(w->source->arg, l, s);
}
