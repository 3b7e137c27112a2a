/* pack_image.h - the place of each slot in an image, which is one contiguous piece of device memory
 * with some of the weights.  Private to src/model.
 *
 *   tables     embeddings, learned positions        stage of the embeddings
 *   head       output head, its bias, final norm    last stage
 *   streamed   a layer's wq, wo, w_up, w_down       the layer's stage
 *   expert     w_up and w_down of one expert        the layer's stage
 *   kept       a layer's wkv, wv, norms and biases  the layer's stage
 *
 * Restores from hidden states need only the kept images.  A memory limit may leave streamed images
 * on the disk.  All layers have images of the same shape, unless their matrices have types of their
 * own (matrix_types.h).
 *
 * A slot has the bytes of the device's layout (ops.h, weight_bytes).  A change of how a backend
 * packs therefore raises PACK_LAYOUT_VERSION.  In a file the images of a stage's ranks follow one
 * another. */
#ifndef MODEL_PACK_IMAGE_H
#define MODEL_PACK_IMAGE_H

#include "model/matrix_types.h"
#include "model/weights.h"
#include "model/weights_slots.h"

/* Raise this version whenever a backend packs matrices differently, or the order here changes. */
enum { PACK_LAYOUT_VERSION = 1 };

enum image_kind {
    IMAGE_TABLES,
    IMAGE_HEAD,
    IMAGE_STREAMED,
    IMAGE_KEPT,
    IMAGE_EXPERT,
    N_IMAGE_KINDS
};

struct image_item {
    enum slot slot;
    size_t offset, bytes;
};

struct image {
    int n;
    int layer;
    struct image_item items[N_SLOTS];
    size_t bytes; /* bytes on one rank, a multiple of 4096; 0: empty */
};

/* All values that determine the bytes of a slot. */
struct image_shape {
    const struct model_config *cfg;
    struct device *dev;
    const struct matrix_types *types;
    enum dtype table_dtype[2]; /* types of the embeddings and of the learned positions */
};

/* Computes an image. `layer` is ignored for tables and head. */
void image_make(struct image *out, const struct image_shape *s, enum image_kind kind,
                int layer);

/* Points the slots of an image at memory: those of w, or of *l if they belong to a layer. */
void image_bind(const struct image *im, const struct image_shape *s, const struct buf *mem,
                struct weights *w, struct layer_weights *l);

/* Returns the present address of a slot of w or *l, on rank 0. */
const void *image_source(enum slot slot, struct weights *w, struct layer_weights *l);

/* Writes the name of the layout that a device needs to use an image: "cpu 1", or "cpu 1, rows of 2
 * ranks". s is a stream of a device with this layout. */
void image_layout_name(struct stream *s, char *out, size_t n);

static inline enum image_kind image_kind_of(enum slot s, const struct model_config *c)
{
    if (c->n_experts > 0 && (s == SLOT_UP || s == SLOT_DOWN))
        return IMAGE_EXPERT;
    if (slot_is_table(s))
        return IMAGE_TABLES;
    if (!slot_is_in_layer(s))
        return IMAGE_HEAD;
    return slot_is_matrix(s) && s != SLOT_WKV && s != SLOT_WV ? IMAGE_STREAMED : IMAGE_KEPT;
}

#endif
