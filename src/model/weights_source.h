/* weights_source.h - where the bytes of a checkpoint's tensors come from: mapped files, or a seeded
 * generator.  Private to src/model.
 *
 * A *checkpoint* is a folder of mapped safetensors files, or a GGUF file.  checkpoint_match pairs
 * every tensor that the model wants with its bytes and refuses everything that does not fit.  It
 * checks names, shapes, element types and ranges; nobody behind it does.
 *
 * GGUF files have other tensors than folders: quantised, with the rows of a head in another order,
 * or stacked in another way.  They are presented as the folder's: a row of a tensor is found by
 * tensor_src_row and decoded, so that everything behind knows one model only.
 *
 * A mapped file must not be written to: shortening it ends this program with SIGBUS, and what is
 * used in place would change under the model's fingerprint.  Checkpoints are replaced by
 * renaming, as every downloader does. */
#ifndef MODEL_WEIGHTS_SOURCE_H
#define MODEL_WEIGHTS_SOURCE_H

#include "base/err.h"
#include "format/gguf_types.h"
#include "model/gguf_files.h"
#include "model/weights.h"
#include "model/weights_names.h"
#include "tensor/tensor.h"

#include <stddef.h>
#include <stdint.h>

/* Where a row of a tensor lies among the rows of its file. */
enum row_order {
    ROWS_SAME,  /* in order */
    ROWS_PAIRS, /* llama: halves of a head are interleaved, since pairs are rotated there */
    ROWS_GROUPS, /* falcon: all q, all k, all v; the model has q, k, v of a group together */
};
struct row_map {
    enum row_order order;
    int32_t d_head, per_group, n_groups; /* PAIRS: d_head; GROUPS: query heads a group */
};

/* The bytes of one tensor, row-major. */
struct tensor_src {
    enum dtype dtype; /* of rows as they are given out: quantised ones are decoded to f32 */
    const uint8_t
        *mapped;      /* rows as they are; NULL: they are made; may have any alignment */
    const char *file; /* for messages; lives as long as the checkpoint */

    /* Rows that must be decoded or found first; NULL: none. */
    const uint8_t *coded;
    const struct gguf_type *type; /* of GGUF tensors, also of mapped ones; else NULL */
    size_t coded_row_bytes;
    struct row_map rows;
    bool norm_has_one; /* the file's norm weights have had their 1 added (gemma) */
};

static inline bool tensor_src_is_quantised(const struct tensor_src *s)
{
    return s->type != NULL && s->type->block > 1;
}

/* Rows [row, row + n) of a coded tensor of `cols` columns, in s->dtype. */
void tensor_src_decode(const struct tensor_src *s, int64_t cols, int64_t row, int64_t n,
                       void *dst);

/* The same rows as the file has them: coded_row_bytes each. */
void tensor_src_copy_coded(const struct tensor_src *s, int64_t row, int64_t n,
                           uint8_t *dst);

struct checkpoint;

/* Maps a GGUF file; or DIR/model.safetensors, or the files that DIR/model.safetensors.index.json
 * names. */
int checkpoint_open(const char *source, struct checkpoint **out, struct err *err);
void checkpoint_close(struct checkpoint *cp); /* NULL is allowed */

/* src[i] = the bytes of want->items[i]. */
int checkpoint_match(struct checkpoint *cp, const struct model_config *c,
                     const struct tensor_list *want, struct tensor_src *src,
                     struct err *err);

/* checkpoint_match for GGUF files (weights_gguf.c). */
int gguf_match(const struct gguf_files *files, const struct model_config *c,
               const struct tensor_list *want, struct tensor_src *src, struct err *err);

/* Asks for the pages of [p, p + n) ahead of use, and gives them back after it. */
void checkpoint_want(const void *p, size_t n);
void checkpoint_drop(const void *p, size_t n);
/* Unmaps every file but those that hold one of the n addresses. */
void checkpoint_keep_only(struct checkpoint *cp, const void *const *used, size_t n);

/* All tensors of a model, whatever their source, and the type that its matrices are held in: theirs
 * where they agree, else f32 (f16 and bf16 each hold numbers that the other does not). */
struct tensor_set {
    struct tensor_list list;
    struct tensor_src *src; /* [list.n] */
    struct checkpoint *cp;  /* NULL: the generator */
    enum dtype dtype;
    bool mixed;     /* the matrices do not agree */
    bool quantised; /* a matrix or a table is; dtype is then f32 */
    struct weights_types types;
};

/* `source`: a folder, a GGUF file, or "synth:SHAPE" with all tensors in
 * synth_dtype.  close also after an error. */
int tensor_set_open(struct tensor_set *set, const char *source,
                    const struct model_config *c, enum dtype synth_dtype, struct err *err);
void tensor_set_close(struct tensor_set *set);
/* Leaves a part of the tensors in the set. */
void tensor_set_keep(struct tensor_set *set, enum weights_part part, int layer);

/* The type of a table's rows on a device where matrices are held as `held`. */
static inline enum dtype tensor_table_dtype(const struct tensor_src *src, enum dtype held)
{
    return tensor_src_is_quantised(src) && held != DTYPE_F32 ? DTYPE_BF16 : src->dtype;
}

/* Rows [row, row + n_rows) of the tensor that the generator gives the name of t, in type `dtype`.
 * A pure function of name, shape, type and row: any thread, any order, any machine. */
void synth_fill(const struct tensor_spec *t, enum dtype dtype, bool norm_plus_one,
                int64_t row, int64_t n_rows, void *dst);

#endif
