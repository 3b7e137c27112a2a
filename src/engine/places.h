/* places.h - the memory of blocks that have a type and a place (HybridServe, section 4.2).
 *
 * A block's number determines its class. A KV block holds keys and values. An ACT block holds
 * the rows of a layer's input, from which keys and values are projected again. KV blocks on the
 * device are used where they lie; all others are brought into a scratch block in each layer of
 * each step.
 *
 *   numbers   [KV, device][ACT, device][KV, host][ACT, host]
 *   device    layer 0 [KV blocks][tails]  layer 1 [KV blocks][tails]  ..  [scratch 0][scratch 1]
 *             layer 0 [ACT blocks]  layer 1 ..  [staging 0][staging 1]
 *   host      [KV block: all layers] ..  [ACT block: all layers] ..
 *
 * All layers share the scratch. It lies behind the last layer, so operations reach it from every
 * layer's view by a block number of that layer (places_scratch): attention reads all blocks
 * through an ordinary block table. Scratch and staging are double: the link fills one of the two
 * while the other is used.
 *
 * A *tail* is the memory of a running sequence's unfinished block, if that block's own place is
 * not a KV block on the device.
 *
 * This module owns memory and arithmetic. It moves no data. One device, no group. */
#ifndef ENGINE_PLACES_H
#define ENGINE_PLACES_H

#include "tensor/ops.h"
#include "tensor/tensor.h"

enum places_class {
    PLACES_KV_DEVICE,
    PLACES_ACT_DEVICE,
    PLACES_KV_HOST,
    PLACES_ACT_HOST,
    PLACES_CLASSES
};

struct places_opts {
    int n_layers, n_kv, d_head, n_embd;
    enum dtype dtype;
    int n[PLACES_CLASSES]; /* blocks of each class */
    int n_tails;
    int n_scratch; /* blocks of one buffer */
    int n_staging; /* ACT blocks of one buffer */
};

struct places {
    struct places_opts o;
    struct device *dev;
    size_t kv_bytes, act_bytes; /* bytes of a block of one layer */
    int first[PLACES_CLASSES];  /* number of each class's first block */
    int row;                    /* number of a layer's KV blocks and tails on the device */
    struct buf device_kv, device_act, host;
    struct kv_layer *layers; /* [n_layers] views, as operations take them */
};

size_t places_device_bytes(const struct places_opts *o);
size_t places_host_bytes(const struct places_opts *o);

int places_init(struct places *p, struct device *d, const struct places_opts *o,
                struct err *err);
void places_deinit(struct places *p);

static inline int places_n_blocks(const struct places_opts *o)
{
    int n = 0;
    for (int c = 0; c < PLACES_CLASSES; c++)
        n += o->n[c];
    return n;
}

enum places_class places_class_of(const struct places *p, int32_t block);

/* Return numbers in a layer's view: of a KV block on the device, of a tail, and of scratch block
 * i of a buffer. */
int32_t places_device(const struct places *p, int32_t block);
int32_t places_tail(const struct places *p, int tail);
int32_t places_scratch(const struct places *p, int layer, int buffer, int i);

/* Returns the memory of the block with this number in a layer's view. */
void *places_view(const struct places *p, int layer, int32_t number);
/* Return the memory in a layer of a KV block on the host, and of any ACT block. */
void *places_kv_host(const struct places *p, int layer, int32_t block);
void *places_act(const struct places *p, int layer, int32_t block);
/* Returns staging ACT blocks [i, n_staging) of a buffer: their rows lie one behind the other. */
void *places_staging(const struct places *p, int buffer, int i);

#endif
