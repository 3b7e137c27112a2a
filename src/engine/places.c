/* places.c - see places.h. */
#include "engine/places.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/mem.h"

static size_t kv_bytes(const struct places_opts *o)
{
    return kv_block_bytes(o->n_kv, o->d_head, o->dtype);
}

static size_t act_bytes(const struct places_opts *o)
{
    return (size_t)KV_BLOCK_TOKENS * (size_t)o->n_embd * dtype_bytes(o->dtype);
}

static size_t device_kv_bytes(const struct places_opts *o)
{
    size_t row = (size_t)(o->n[PLACES_KV_DEVICE] + o->n_tails);
    return kv_bytes(o) * ((size_t)o->n_layers * row + 2 * (size_t)o->n_scratch);
}

static size_t device_act_bytes(const struct places_opts *o)
{
    return act_bytes(o) * ((size_t)o->n_layers * (size_t)o->n[PLACES_ACT_DEVICE] +
                           2 * (size_t)o->n_staging);
}

size_t places_device_bytes(const struct places_opts *o)
{
    return device_kv_bytes(o) + device_act_bytes(o);
}

size_t places_host_bytes(const struct places_opts *o)
{
    return (size_t)o->n_layers * (kv_bytes(o) * (size_t)o->n[PLACES_KV_HOST] +
                                  act_bytes(o) * (size_t)o->n[PLACES_ACT_HOST]);
}

static struct kv_layer view_of(const struct places *p, int layer)
{
    return (struct kv_layer){.blocks = (uint8_t *)p->device_kv.ptr +
                                       (size_t)layer * (size_t)p->row * p->kv_bytes,
                             .block_stride = p->kv_bytes,
                             .dtype = p->o.dtype,
                             .n_kv = p->o.n_kv,
                             .d_head = p->o.d_head};
}

int places_init(struct places *p, struct device *d, const struct places_opts *o,
                struct err *err)
{
    int n = 0;
    CHECK(d->n_stages == 1 && d->n_ranks == 1 && o->n_layers > 0 && o->n_scratch > 0);
    *p = (struct places){
        .o = *o, .dev = d, .kv_bytes = kv_bytes(o), .act_bytes = act_bytes(o)};
    for (int c = 0; c < PLACES_CLASSES; c++) {
        p->first[c] = n;
        n += o->n[c];
    }
    p->row = o->n[PLACES_KV_DEVICE] + o->n_tails;
    int rc = buf_alloc(d, MEM_DEVICE, device_kv_bytes(o), &p->device_kv, err);
    if (rc == 0 && device_act_bytes(o) > 0)
        rc = buf_alloc(d, MEM_DEVICE, device_act_bytes(o), &p->device_act, err);
    if (rc == 0 && places_host_bytes(o) > 0)
        rc = buf_alloc(d, MEM_PINNED, places_host_bytes(o), &p->host, err);
    if (rc != 0) {
        places_deinit(p);
        return err_wrap(err, "%d blocks of the hybrid cache", n);
    }
    p->layers = xcalloc((size_t)o->n_layers, sizeof *p->layers);
    for (int l = 0; l < o->n_layers; l++)
        p->layers[l] = view_of(p, l);
    return 0;
}

void places_deinit(struct places *p)
{
    if (p->dev == NULL)
        return;
    buf_free(p->dev, &p->device_kv);
    buf_free(p->dev, &p->device_act);
    buf_free(p->dev, &p->host);
    free(p->layers);
    *p = (struct places){0};
}

/* --- numbers ---------------------------------------------------------------------------------- */

enum places_class places_class_of(const struct places *p, int32_t block)
{
    int c = 0;
    CHECK(block >= 0 && block < places_n_blocks(&p->o));
    while (block >= p->first[c] + p->o.n[c])
        c++;
    return (enum places_class)c;
}

static size_t index_in(const struct places *p, enum places_class c, int32_t block)
{
    CHECK(places_class_of(p, block) == c);
    return (size_t)(block - p->first[c]);
}

int32_t places_device(const struct places *p, int32_t block)
{
    return (int32_t)index_in(p, PLACES_KV_DEVICE, block);
}

int32_t places_tail(const struct places *p, int tail)
{
    CHECK(tail >= 0 && tail < p->o.n_tails);
    return p->o.n[PLACES_KV_DEVICE] + tail;
}

int32_t places_scratch(const struct places *p, int layer, int buffer, int i)
{
    CHECK(i >= 0 && i < p->o.n_scratch);
    return (p->o.n_layers - layer) * p->row + buffer * p->o.n_scratch + i;
}

/* --- memory ----------------------------------------------------------------------------------- */

void *places_view(const struct places *p, int layer, int32_t number)
{
    return p->layers[layer].blocks + (size_t)number * p->kv_bytes;
}

void *places_kv_host(const struct places *p, int layer, int32_t block)
{
    size_t i = index_in(p, PLACES_KV_HOST, block);
    return (uint8_t *)p->host.ptr +
           (i * (size_t)p->o.n_layers + (size_t)layer) * p->kv_bytes;
}

void *places_act(const struct places *p, int layer, int32_t block)
{
    size_t n_layers = (size_t)p->o.n_layers, l = (size_t)layer;
    if (places_class_of(p, block) == PLACES_ACT_DEVICE) {
        size_t i = index_in(p, PLACES_ACT_DEVICE, block);
        return (uint8_t *)p->device_act.ptr +
               (l * (size_t)p->o.n[PLACES_ACT_DEVICE] + i) * p->act_bytes;
    }
    size_t i = index_in(p, PLACES_ACT_HOST, block);
    return (uint8_t *)p->host.ptr +
           (size_t)p->o.n[PLACES_KV_HOST] * n_layers * p->kv_bytes +
           (i * n_layers + l) * p->act_bytes;
}

void *places_staging(const struct places *p, int buffer, int i)
{
    CHECK(i >= 0 && i < p->o.n_staging);
    size_t before = (size_t)p->o.n_layers * (size_t)p->o.n[PLACES_ACT_DEVICE];
    return (uint8_t *)p->device_act.ptr +
           (before + (size_t)buffer * (size_t)p->o.n_staging + (size_t)i) * p->act_bytes;
}
