/* weights_pinned.c - see weights_pinned.h. */
#include "model/weights_pinned.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/mem.h"
#include "tensor/group.h"

enum { MAX_SLOTS = 8 };

struct ring_slot {
    int layer; /* layer that the slot has; -1: it has no layer yet */
    int n_holders;
    struct buf mem;
    struct event *copied;   /* the slot's layer has been copied to the device */
    struct event *released; /* operations queued with its previous layer have run */
    struct layer_weights lw;
};

struct weights_pinned {
    struct weights_stream_opts o;
    struct device *dev;
    struct buf *host; /* [n_layers] images of all ranks; empty: the layer is resident */
    struct stream *copies;
    struct ring_slot slots[MAX_SLOTS];
    int n_slots;
    atomic_bool stopped;
    struct weights_stream_stats stats;
};

static bool is_streamed(const struct weights_pinned *p, int l)
{
    return p->host[l].ptr != NULL;
}

static struct ring_slot *slot_of(struct weights_pinned *p, int l)
{
    for (int i = 0; i < p->n_slots; i++)
        if (p->slots[i].layer == l)
            return &p->slots[i];
    return NULL;
}

/* Returns the number of layers from layer `from` to the next use of layer l, in the order of
 * passes. */
static int distance(const struct weights_pinned *p, int from, int l)
{
    int n = p->stats.n_layers, d = (l - from) % n;
    return d < 0 ? d + n : d;
}

/* Of the slots that are not in use, returns the one whose layer is needed last, counted from layer
 * `from`. Never returns the slot of layer `from`. */
static struct ring_slot *slot_for(struct weights_pinned *p, int from)
{
    struct ring_slot *best = NULL;
    int best_distance = 0;
    for (int i = 0; i < p->n_slots; i++) {
        struct ring_slot *s = &p->slots[i];
        int d = s->layer < 0 ? p->stats.n_layers : distance(p, from, s->layer);
        if (s->n_holders == 0 && d > best_distance) {
            best = s;
            best_distance = d;
        }
    }
    return best;
}

static int slot_init(struct weights_pinned *p, struct ring_slot *s, struct err *err)
{
    s->layer = -1;
    int rc = stage_alloc(p->dev, 0, p->o.slot_bytes, &s->mem, err);
    if (rc == 0)
        rc = event_create(p->dev, &s->copied, err);
    return rc == 0 ? event_create(p->dev, &s->released, err) : rc;
}

static void slot_deinit(struct weights_pinned *p, struct ring_slot *s)
{
    event_destroy(s->copied);
    event_destroy(s->released);
    buf_free(p->dev, &s->mem);
}

/* Queues the copy of layer l into a slot, behind the operations that still read the slot. */
static int bring(struct weights_pinned *p, struct ring_slot *s, int l)
{
    const struct image *im = &p->o.images[pack_streamed_part(l)];
    int rc = s->layer >= 0 ? event_wait(p->copies, s->released) : 0;
    s->layer = -1;
    if (rc == 0)
        rc = stream_copy(p->copies, s->mem.ptr, p->host[l].ptr, im->bytes);
    if (rc == 0)
        rc = event_record(p->copies, s->copied);
    if (rc != 0)
        return rc;
    s->layer = l;
    s->lw = p->o.w->layers[l];
    image_bind(im, p->o.shape, &s->mem, p->o.w, &s->lw);
    p->stats.read_bytes += p->stats.layer_bytes;
    return 0;
}

/* Returns the next streamed layer after l, across the end of a pass. */
static int next_streamed(const struct weights_pinned *p, int l)
{
    do
        l = (l + 1) % p->stats.n_layers;
    while (!is_streamed(p, l));
    return l;
}

/* Lends layer l, and queues the copy of the next streamed layer if a slot is free. */
static int acquire(void *arg, int l, struct stream *s, const struct layer_weights **out)
{
    struct weights_pinned *p = arg;
    if (atomic_load(&p->stopped))
        return ERR_CANCELLED;
    if (!is_streamed(p, l)) {
        *out = &p->o.w->layers[l];
        return 0;
    }
    struct ring_slot *slot = slot_of(p, l);
    int rc = 0;
    if (slot == NULL) {
        slot = slot_for(p, l);
        /* All slots are in use, so one more is made: see weights_stream.h. */
        if (slot == NULL && p->n_slots < MAX_SLOTS) {
            slot = &p->slots[p->n_slots];
            rc = slot_init(p, slot, NULL);
            p->n_slots++;
        }
        if (rc == 0)
            rc = slot == NULL ? -ENOMEM : bring(p, slot, l);
    }
    if (rc == 0)
        rc = event_wait(s, slot->copied);
    if (rc != 0) {
        p->stats.n_failed++;
        return rc;
    }
    slot->n_holders++;
    *out = &slot->lw;
    int next = next_streamed(p, l);
    struct ring_slot *ahead = slot_of(p, next) == NULL ? slot_for(p, l) : NULL;
    /* A prefetch that fails is tried again when the layer is needed. */
    if (ahead != NULL && ahead->layer != l)
        (void)bring(p, ahead, next);
    return 0;
}

static void release(void *arg, int l, struct stream *s)
{
    struct weights_pinned *p = arg;
    if (!is_streamed(p, l))
        return;
    struct ring_slot *slot = slot_of(p, l);
    CHECK(slot != NULL && slot->n_holders > 0);
    slot->n_holders--;
    /* If recording the event fails, the stream has failed, and so does every copy after it. */
    (void)event_record(s, slot->released);
}

static void stats(void *arg, struct weights_stream_stats *out)
{
    *out = ((struct weights_pinned *)arg)->stats;
}

static void stop(void *arg, bool stops)
{
    atomic_store(&((struct weights_pinned *)arg)->stopped, stops);
}

static void close_pinned(void *arg)
{
    struct weights_pinned *p = arg;
    stream_destroy(p->copies);
    for (int i = 0; i < p->n_slots; i++)
        slot_deinit(p, &p->slots[i]);
    for (int l = 0; l < p->stats.n_layers; l++)
        buf_free(p->dev, &p->host[l]);
    free(p->host);
    free(p);
}

/* Reads and checks every streamed layer into host memory. */
static int read_layers(struct weights_pinned *p, struct err *err)
{
    struct pack_reader r;
    int rc = pack_reader_open(&r, p->o.f, p->o.io, err);
    for (int l = 0; rc == 0 && l < p->stats.n_layers; l++) {
        if (weights_stays(l, p->o.n_resident, p->stats.n_layers))
            continue;
        rc = buf_alloc(p->dev, MEM_PINNED, (size_t)p->stats.layer_bytes, &p->host[l], err);
        if (rc == 0)
            rc = pack_reader_read(&r, pack_streamed_part(l), p->host[l].ptr, err);
        p->stats.n_streamed++;
    }
    pack_reader_close(&r);
    return rc;
}

int weights_pinned_open(const struct weights_stream_opts *o, struct layer_source *out,
                        struct err *err)
{
    struct weights_pinned *p = xcalloc(1, sizeof *p);
    CHECK(o->n_slots >= 2 && o->n_slots <= MAX_SLOTS);
    p->o = *o;
    p->dev = o->shape->dev;
    p->stats.n_layers = o->f->n_layers;
    p->stats.layer_bytes = (uint64_t)o->slot_bytes;
    p->host = xcalloc((size_t)p->stats.n_layers, sizeof *p->host);
    int rc = stream_create(p->dev, STREAM_COPY, &p->copies, err);
    for (int i = 0; rc == 0 && i < o->n_slots; i++) {
        rc = slot_init(p, &p->slots[i], err);
        p->n_slots = i + 1;
    }
    if (rc == 0)
        rc = read_layers(p, err);
    if (rc != 0) {
        close_pinned(p);
        return rc;
    }
    *out = (struct layer_source){.acquire = acquire,
                                 .release = release,
                                 .arg = p,
                                 .stats = stats,
                                 .stop = stop,
                                 .close = close_pinned};
    return 0;
}
