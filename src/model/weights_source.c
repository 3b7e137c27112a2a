/* weights_source.c - all tensors of a model from any source, and their description. */
#include "model/weights_source.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "model/matrix_types.h"
#include "model/pack_file.h"
#include "model/weights.h"
#include "tensor/q4_blocks.h"

#define SYNTH_PREFIX "synth:"

static void choose_dtype(struct tensor_set *set)
{
    bool first = true;
    for (size_t i = 0; i < set->list.n; i++) {
        if (slot_is_vector(set->list.items[i].parts[0].slot))
            continue;
        set->quantised |= tensor_src_is_quantised(&set->src[i]);
        if (slot_is_table(set->list.items[i].parts[0].slot) ||
            set->list.items[i].parts[0].slot == SLOT_ROUTER)
            continue;
        if (first)
            set->dtype = set->src[i].dtype;
        set->mixed = set->mixed || set->src[i].dtype != set->dtype;
        first = false;
    }
    if (set->mixed || set->quantised)
        set->dtype = DTYPE_F32;
}

enum dtype tensor_src_q4_type(const struct tensor_src *src)
{
    static const struct {
        const char *name;
        enum dtype type;
    } known[] = {{"Q4_0", DTYPE_Q4_0},
                 {"Q4_1", DTYPE_Q4_1},
                 {"Q4_K", DTYPE_Q4_K},
                 {"Q6_K", DTYPE_Q6_K}};
    for (int i = 0; src->type != NULL && i < 4; i++)
        if (strcmp(src->type->name, known[i].name) == 0)
            return known[i].type;
    return DTYPE_F32;
}

enum dtype tensor_table_dtype(const struct tensor_src *src, enum dtype held)
{
    enum dtype own = tensor_src_q4_type(src);
    if (held == DTYPE_Q4 && own != DTYPE_F32)
        return own;
    return tensor_src_is_quantised(src) && held != DTYPE_F32 ? DTYPE_BF16 : src->dtype;
}

static const char *type_name(const struct tensor_src *s)
{
    return s->type != NULL ? s->type->name : dtype_name(s->dtype);
}

static void count_types(struct tensor_set *set)
{
    struct weights_types *t = &set->types;
    for (size_t i = 0; i < set->list.n; i++) {
        const char *name = type_name(&set->src[i]);
        int k = 0;
        while (k < t->n && strcmp(t->of[k].name, name) != 0)
            k++;
        if (k == t->n) {
            CHECK(t->n++ < (int)(sizeof t->of / sizeof t->of[0]));
            t->of[k].name = name;
            t->of[k].quantised = tensor_src_is_quantised(&set->src[i]);
        }
        t->of[k].n_tensors++;
    }
}

void tensor_set_keep(struct tensor_set *set, enum weights_part part, int layer)
{
    size_t n = 0;
    for (size_t i = 0; i < set->list.n && part != WEIGHTS_ALL; i++) {
        const struct tensor_spec *t = &set->list.items[i];
        bool inside = slot_is_in_layer(t->parts[0].slot);
        if (inside != (part == WEIGHTS_OF_LAYER) || (inside && t->layer != layer))
            continue;
        set->src[n] = set->src[i];
        set->list.items[n++] = *t;
    }
    if (part != WEIGHTS_ALL)
        set->list.n = n;
}

int tensor_set_open(struct tensor_set *set, const char *source,
                    const struct model_config *c, enum dtype synth_dtype, struct err *err)
{
    *set = (struct tensor_set){0};
    tensor_list_make(&set->list, c);
    set->src = xcalloc(set->list.n, sizeof *set->src);
    int rc = 0;
    if (strncmp(source, SYNTH_PREFIX, strlen(SYNTH_PREFIX)) == 0) {
        for (size_t i = 0; i < set->list.n; i++)
            set->src[i] = (struct tensor_src){.dtype = synth_dtype, .file = source};
    } else {
        rc = checkpoint_open(source, &set->cp, err);
        if (rc == 0)
            rc = checkpoint_match(set->cp, c, &set->list, set->src, err);
    }
    if (rc == 0) {
        choose_dtype(set);
        count_types(set);
    }
    return rc;
}

void tensor_set_close(struct tensor_set *set)
{
    checkpoint_close(set->cp);
    free(set->src);
    tensor_list_free(&set->list);
    *set = (struct tensor_set){0};
}

/* --- describing --------------------------------------------------------------------------- */

/* Returns the type of a slot in memory: that of the packed matrix, the table's own, or f32 for
 * norms and biases. */
static enum dtype packed_type(const struct pack_file *f, int layer, enum slot s)
{
    if (slot_is_table(s))
        return f->table_dtype[s == SLOT_EMBED ? 0 : 1];
    return slot_is_matrix(s) ? matrix_type(&f->matrices, layer, s) : DTYPE_F32;
}

/* Returns the bytes of n weights with their scales. */
static uint64_t packed_bytes(enum dtype t, uint64_t n)
{
    if (t == DTYPE_Q8) /* 32 numbers and a scale of 16 bits */
        return n + n / 16;
    return dtype_has_blocks(t) ? q4_row_bytes(t, (int64_t)n) : n * dtype_bytes(t);
}

static int describe_packed(struct weights_info *out, const char *source,
                           const struct model_config *cfg, struct err *err)
{
    struct tensor_set *set = xcalloc(1, sizeof *set);
    struct pack_file f;
    *out = (struct weights_info){.impl = set};
    tensor_list_make(&set->list, cfg);
    int rc = pack_file_open(&f, source, err);
    if (rc == 0 && f.n_layers != cfg->n_layers)
        rc = err_set(err, ERR_MISMATCH,
                     "%s: it has %d layers, and its configuration says %d: pack the model "
                     "again",
                     source, f.n_layers, cfg->n_layers);
    out->tensors = xcalloc(set->list.n, sizeof *out->tensors);
    for (size_t i = 0; rc == 0 && i < set->list.n; i++) {
        const struct tensor_spec *t = &set->list.items[i];
        enum dtype type = packed_type(&f, t->layer, matrix_of_part(cfg, &t->parts[0]));
        uint64_t n = (uint64_t)(t->rows * t->cols);
        out->tensors[out->n_tensors++] = (struct tensor_info){
            .name = t->name,
            .file = source,
            .type = dtype_name(type),
            .n_dims = t->n_dims,
            .rows = t->rows,
            .cols = t->cols,
            .bytes = packed_bytes(type, n)};
    }
    if (rc == 0) {
        out->dtype = f.dtype;
        out->bytes = f.file_bytes;
        for (size_t i = 0; i < out->n_tensors; i++) {
            struct weights_types *types = &out->types;
            int k = 0;
            while (k < types->n && types->of[k].name != out->tensors[i].type)
                k++;
            types->of[k].name = out->tensors[i].type;
            types->of[k].n_tensors++;
            types->n = k == types->n ? k + 1 : types->n;
        }
    }
    pack_file_close(&f);
    if (rc != 0)
        weights_info_deinit(out);
    return rc;
}

int weights_describe(struct weights_info *out, const char *source,
                     const struct model_config *cfg, enum dtype synth_dtype,
                     struct err *err)
{
    if (pack_file_is(source))
        return describe_packed(out, source, cfg, err);
    struct tensor_set *set = xmalloc(sizeof *set);
    *out = (struct weights_info){.impl = set};
    int rc = tensor_set_open(set, source, cfg, synth_dtype, err);
    if (rc != 0) {
        weights_info_deinit(out);
        return rc;
    }
    out->dtype = set->dtype;
    out->quantised = set->quantised;
    out->has_q4 = matrix_types_any_q4(set);
    out->types = set->types;
    out->n_tensors = set->list.n;
    out->tensors = xcalloc(set->list.n, sizeof *out->tensors);
    for (size_t i = 0; i < set->list.n; i++) {
        const struct tensor_spec *t = &set->list.items[i];
        const struct tensor_src *src = &set->src[i];
        uint64_t n = (uint64_t)(t->rows * t->cols);
        out->tensors[i] = (struct tensor_info){
            .name = t->name,
            .file = src->file,
            .type = type_name(src),
            .n_dims = t->n_dims,
            .rows = t->rows,
            .cols = t->cols,
            .bytes = src->type != NULL ? n / src->type->block * src->type->bytes
                                       : n * dtype_bytes(src->dtype)};
        out->bytes += out->tensors[i].bytes;
    }
    return 0;
}

enum weights_held weights_held_by_default(const struct weights_info *info,
                                          const struct device *d)
{
    if (!d->quantised)
        return WEIGHTS_BF16;
    return info->has_q4 ? WEIGHTS_Q4 : WEIGHTS_Q8;
}

void weights_table_types(const struct weights_info *info, enum dtype held,
                         enum dtype out[2])
{
    const struct tensor_set *set = info->impl;
    out[0] = out[1] = held == DTYPE_BF16R                    ? DTYPE_BF16
                      : held == DTYPE_Q8 || held == DTYPE_Q4 ? DTYPE_F32
                                                             : held;
    for (size_t i = 0; i < set->list.n; i++) {
        enum slot s = set->list.items[i].parts[0].slot;
        if (slot_is_table(s))
            out[s == SLOT_EMBED ? 0 : 1] = tensor_table_dtype(&set->src[i], held);
    }
}

void weights_info_deinit(struct weights_info *info)
{
    if (info->impl != NULL)
        tensor_set_close(info->impl);
    free(info->impl);
    free(info->tensors);
    *info = (struct weights_info){0};
}
