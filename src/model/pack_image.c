/* pack_image.c - see pack_image.h. */
#include "model/pack_image.h"

#include <stdio.h>

#include "base/bytes.h"
#include "base/minmax.h"
#include "model/pack_file.h"
#include "model/share.h"
#include "model/weights_slots.h"

/* Matrices and vectors begin at a cache line; vectors are read in whole lines. */
enum { LINE = 64 };

/* Returns the rows of a matrix in its image: of one expert, or of a rank. */
static int64_t image_rows(const struct image_shape *s, enum slot slot, int layer)
{
    int64_t n = matrix_rows(s->types, s->cfg, layer, slot, s->dev->n_ranks);
    return image_kind_of(slot, s->cfg) == IMAGE_EXPERT ? n / s->cfg->n_experts : n;
}

static size_t slot_bytes(const struct image_shape *s, enum slot slot, int layer)
{
    int n_ranks = s->dev->n_ranks;
    if (slot_is_vector(slot))
        return (size_t)round_up(
            (uint64_t)share_rows(s->cfg, layer, slot, n_ranks) * sizeof(float), LINE);
    if (slot_is_matrix(slot))
        return s->dev->ops->weight_bytes(matrix_type(s->types, layer, slot),
                                         image_rows(s, slot, layer),
                                         slot_cols(s->cfg, layer, slot));
    enum dtype t = s->table_dtype[slot == SLOT_EMBED ? 0 : 1];
    return (size_t)slot_rows(s->cfg, layer, slot) *
           tensor_row_bytes(t, slot_cols(s->cfg, layer, slot));
}

void image_make(struct image *out, const struct image_shape *s, enum image_kind kind,
                int layer)
{
    struct tensor_list list;
    bool has[N_SLOTS] = {false};
    /* Layers of one kind have the same slots, and so have all experts: the list of one tells
     * them. */
    struct model_config one = *s->cfg;
    one.n_layers = 1;
    one.recurrent = layer_set_run(0, config_is_recurrent(s->cfg, layer));
    one.windowed = layer_set_run(0, layer_set_has(&s->cfg->windowed, layer));
    one.n_reading = layer >= config_n_keeping(s->cfg);
    one.n_experts = MIN(one.n_experts, 1);
    one.n_dense_layers = layer < one.n_dense_layers;
    tensor_list_make(&list, &one);
    for (size_t i = 0; i < list.n; i++)
        for (int k = 0; k < list.items[i].n_parts; k++)
            has[list.items[i].parts[k].slot] = true;
    tensor_list_free(&list);
    has[SLOT_WV] = matrix_types_differ_in_kv(s->types, layer);
    *out = (struct image){.layer = layer};
    for (enum slot slot = 0; slot < N_SLOTS; slot++) {
        if (!has[slot] || image_kind_of(slot, s->cfg) != kind)
            continue;
        size_t bytes = slot_bytes(s, slot, layer);
        out->items[out->n++] = (struct image_item){slot, out->bytes, bytes};
        out->bytes = (size_t)round_up(out->bytes + bytes, LINE);
    }
    out->bytes = (size_t)round_up(out->bytes, PACK_ALIGN);
}

void image_bind(const struct image *im, const struct image_shape *s, const struct buf *mem,
                struct weights *w, struct layer_weights *l)
{
    for (int i = 0; i < im->n; i++) {
        const struct image_item *it = &im->items[i];
        uint8_t *at = (uint8_t *)mem->ptr + it->offset;
        if (slot_is_table(it->slot))
            *slot_table(w, it->slot) = mat_of(
                at, s->table_dtype[it->slot == SLOT_EMBED ? 0 : 1],
                slot_rows(s->cfg, im->layer, it->slot),
                slot_cols(s->cfg, im->layer, it->slot));
        else if (slot_is_matrix(it->slot))
            *slot_matrix(w, l, it->slot) = (struct weight){
                .mem = {at, it->bytes, mem->kind},
                .dtype = matrix_type(s->types, im->layer, it->slot),
                .n = image_rows(s, it->slot, im->layer),
                .k = slot_cols(s->cfg, im->layer, it->slot)};
        else
            *slot_vector(w, l, it->slot) = (const float *)(const void *)at;
    }
}

const void *image_source(enum slot slot, struct weights *w, struct layer_weights *l)
{
    if (slot_is_table(slot))
        return slot_table(w, slot)->data;
    if (slot_is_matrix(slot))
        return slot_matrix(w, l, slot)->mem.ptr;
    return *slot_vector(w, l, slot);
}

void image_layout_name(struct stream *s, char *out, size_t n)
{
    const char *backend = stream_device(rank_stream(s, 0, 0))->name;
    int n_ranks = stream_device(s)->n_ranks;
    if (n_ranks == 1)
        snprintf(out, n, "%s %d", backend, PACK_LAYOUT_VERSION);
    else
        snprintf(out, n, "%s %d, rows of %d ranks", backend, PACK_LAYOUT_VERSION, n_ranks);
}
