/* weights_source.h - the source of a checkpoint's tensors: mapped files, or a seeded generator.
 * Private to src/model.
 *
 * A *checkpoint* is a folder of mapped safetensors files, or a GGUF file.  checkpoint_match pairs
 * every tensor that the model needs with its bytes and refuses everything that does not fit.  It
 * checks names, shapes, element types and ranges; later code does not check them again.
 *
 * GGUF files differ from folders: their tensors may be quantised, have the rows of a head in
 * another order, or be stacked differently.  They are presented like a folder's: tensor_src_decode
 * finds a row of the tensor and decodes it, so that later code knows one form only.
 *
 * A mapped file must not be written to.  Shortening it ends this program with SIGBUS, and a tensor
 * used in place would change while the model keeps its fingerprint.  Replace checkpoints by
 * renaming, as downloaders do. */
#ifndef MODEL_WEIGHTS_SOURCE_H
#define MODEL_WEIGHTS_SOURCE_H

#include "base/err.h"
#include "format/gguf_types.h"
#include "model/gguf_files.h"
#include "model/weights.h"
#include "model/weights_names.h"
#include "tensor/q4_blocks.h"
#include "tensor/tensor.h"

#include <stddef.h>
#include <stdint.h>

/* Order of a tensor's rows in its file. */
enum row_order {
    ROWS_SAME, /* the order that the model uses */
    /* llama: the halves of a head are interleaved, because its files rotate neighbours */
    ROWS_PAIRS,
    /* falcon: all q, all k, all v; the model has q, k, v of a group together */
    ROWS_GROUPS,
};
struct row_map {
    enum row_order order;
    /* d_head: for ROWS_PAIRS. For ROWS_GROUPS: per_group query heads in each of n_groups. */
    int32_t d_head, per_group, n_groups;
};

/* The bytes of one tensor, row-major. */
struct tensor_src {
    /* type of rows as they are delivered: quantised ones are decoded to f32 */
    enum dtype dtype;
    /* rows that can be used as they are, at any alignment; NULL: rows must be made */
    const uint8_t *mapped;
    const char *file; /* name for messages; lives as long as the checkpoint */

    /* Rows that must be decoded or reordered; NULL: the rows are mapped. */
    const uint8_t *coded;
    /* Type of a GGUF tensor, also of a mapped one; else NULL. */
    const struct gguf_type *type;
    size_t coded_row_bytes;
    struct row_map rows;
    /* the file's norm weights already include the 1 that is added (gemma) */
    bool norm_has_one;
};

static inline bool tensor_src_is_quantised(const struct tensor_src *s)
{
    return s->type != NULL && s->type->block > 1;
}

/* Decodes rows [row, row + n) of a coded tensor of `cols` columns, to s->dtype. */
void tensor_src_decode(const struct tensor_src *s, int64_t cols, int64_t row, int64_t n,
                       void *dst);

/* Copies rows [row, row + n) without decoding them. Each row has coded_row_bytes. */
void tensor_src_copy_coded(const struct tensor_src *s, int64_t row, int64_t n,
                           uint8_t *dst);

struct checkpoint;

/* Maps a GGUF file; or DIR/model.safetensors, or the files named by
 * DIR/model.safetensors.index.json. */
int checkpoint_open(const char *source, struct checkpoint **out, struct err *err);
void checkpoint_close(struct checkpoint *cp); /* NULL is allowed */

/* Sets src[i] to the bytes of want->items[i]. */
int checkpoint_match(struct checkpoint *cp, const struct model_config *c,
                     const struct tensor_list *want, struct tensor_src *src,
                     struct err *err);

/* Does the work of checkpoint_match for GGUF files (weights_gguf.c). */
int gguf_match(const struct gguf_files *files, const struct model_config *c,
               const struct tensor_list *want, struct tensor_src *src, struct err *err);

/* checkpoint_want asks for the pages of [p, p + n) before their use; checkpoint_drop gives these
 * pages back, except a last page that also holds bytes behind p + n. */
void checkpoint_want(const void *p, size_t n);
void checkpoint_drop(const void *p, size_t n);
/* Unmaps every file that contains none of the n addresses. */
void checkpoint_keep_only(struct checkpoint *cp, const void *const *used, size_t n);

/* All tensors of a model from any source, and the type in which its matrices are held: their common
 * type, or f32 if they differ (f16 and bf16 each hold numbers that the other does not). */
struct tensor_set {
    struct tensor_list list;
    struct tensor_src *src; /* [list.n] */
    /* Files of the tensors; NULL: the tensors come from the generator. */
    struct checkpoint *cp;
    enum dtype dtype;
    bool mixed;     /* the matrices have different types */
    bool quantised; /* a matrix or a table is quantised; dtype is then f32 */
    struct weights_types types;
};

/* Opens `source`: a folder, a GGUF file, or "synth:SHAPE" with all tensors in synth_dtype.  Call
 * close also after an error. */
int tensor_set_open(struct tensor_set *set, const char *source,
                    const struct model_config *c, enum dtype synth_dtype, struct err *err);
void tensor_set_close(struct tensor_set *set);
/* Removes all tensors from the set that are not in `part`. */
void tensor_set_keep(struct tensor_set *set, enum weights_part part, int layer);

/* Returns the 4-bit or 6-bit type of a GGUF tensor; DTYPE_F32 if it has none. */
enum dtype tensor_src_q4_type(const struct tensor_src *src);

/* Returns the row type of a table on a device that holds matrices as `held`: with DTYPE_Q4 the
 * file's own 4-bit or 6-bit type. */
enum dtype tensor_table_dtype(const struct tensor_src *src, enum dtype held);

/* Returns the bytes of k elements of a row: of a table, or of rows that weight_pack takes. */
static inline size_t tensor_row_bytes(enum dtype t, int64_t k)
{
    return dtype_has_blocks(t) ? q4_row_bytes(t, k) : (size_t)k * dtype_bytes(t);
}

/* Generates rows [row, row + n_rows) of the tensor named like t, in type `dtype`.  A pure function
 * of name, shape, type and row: any thread, in any order, on any machine. */
void synth_fill(const struct tensor_spec *t, enum dtype dtype, bool norm_plus_one,
                int64_t row, int64_t n_rows, void *dst);

#endif
