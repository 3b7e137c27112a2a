/* weights_source.h - the source of a checkpoint's tensors: files, or a seeded generator.  Private
 * to src/model.
 *
 * A *checkpoint* is a folder of safetensors files, or a GGUF file.  checkpoint_match pairs every
 * tensor that the model needs with its place in a file and refuses everything that does not fit.
 * It checks names, shapes, element types and ranges; later code does not check them again.
 *
 * GGUF files differ from folders: their tensors may be quantised, have the rows of a head in
 * another order, or be stacked differently.  tensor_src_read brings the rows into the model's
 * order, and tensor_src_decode decodes them.
 *
 * Files are read, not mapped.  A file that is cut meanwhile gives an error of the read, and one
 * that is rewritten another stamp (checkpoint_stamp): its weights are not used.  After loading no
 * file is open any more. */
#ifndef MODEL_WEIGHTS_SOURCE_H
#define MODEL_WEIGHTS_SOURCE_H

#include "base/err.h"
#include "checkpoint/gguf_types.h"
#include "checkpoint/gguf_files.h"
#include "model/weights.h"
#include "model/weights_names.h"
#include "tensor/q4_blocks.h"
#include "tensor/tensor.h"

#include <stddef.h>
#include <stdint.h>

/* Order of a tensor's rows in its file. */
enum row_order {
    ROWS_SAME, /* the order that the model uses */
    /* The halves of a head are interleaved, because neighbours are rotated: in GGUF files of
     * architecture llama, and in every file of cohere2. */
    ROWS_PAIRS,
    /* falcon: all q, all k, all v; the model has q, k, v of a group together */
    ROWS_GROUPS,
    /* latent attention: runs of d_head rows. In the file each run begins `step` rows behind the
     * run before. */
    ROWS_RUNS,
    /* The same, but the rows of a run are the columns of lines in the file, and the lines of each
     * run begin `step` lines behind those of the run before. */
    ROWS_COLUMN_RUNS,
    /* gpt_oss, in the tensor of all experts: every `step`-th row, or every `step`-th column */
    ROWS_STEPS,
    ROWS_COLUMNS,
};
struct row_map {
    enum row_order order;
    /* ROWS_PAIRS: heads of d_head rows, of which the first `skip` rows stay in their places.
     * ROWS_GROUPS: n_groups groups, each with per_group query heads. */
    int32_t d_head, per_group, n_groups;
    int32_t step, skip;
    size_t line_bytes; /* ROWS_COLUMNS: from a row of the file's matrix to the next one */
};

/* The place of one tensor's bytes, row-major. */
struct tensor_src {
    /* type of rows as they are delivered: quantised ones are decoded to f32 */
    enum dtype dtype;
    const char *file; /* name for messages; lives as long as the checkpoint */
    bool in_file;     /* false: rows are generated */
    int fd;
    uint64_t at;                  /* offset of the file's first row */
    const struct gguf_type *type; /* type of a GGUF tensor; else NULL */
    size_t file_row_bytes;
    /* Offset of MXFP4's exponents in a folder, where they are a tensor of their own; else 0. */
    uint64_t scales_at;
    struct row_map rows;
    /* the file's norm weights already include the 1 that is added (gemma) */
    bool norm_has_one;
    /* the file has -exp(x) of each number x (ssm_a) */
    bool is_decay;
};

static inline bool tensor_src_is_quantised(const struct tensor_src *s)
{
    return s->type != NULL && s->type->block > 1;
}

/* Reads rows [row, row + n) as the file has them, file_row_bytes each, in the model's order.
 * Returns 0, -errno, or -ENODATA if the file was cut.  MXFP4 of a folder gets the form of a GGUF
 * file's blocks (q4_blocks.h). */
int tensor_src_read(const struct tensor_src *s, int64_t row, int64_t n, void *dst);
/* Decodes n rows of a quantised tensor of `cols` columns. */
static inline void tensor_src_decode(const struct tensor_src *s, int64_t cols,
                                     const uint8_t *rows, int64_t n, float *dst)
{
    s->type->decode(rows, dst, (size_t)(n * cols) / s->type->block);
}

struct checkpoint;

/* Opens a GGUF file; or DIR/model.safetensors, or the files named by
 * DIR/model.safetensors.index.json. */
int checkpoint_open(const char *source, struct checkpoint **out, struct err *err);
void checkpoint_close(struct checkpoint *cp); /* NULL is allowed */
/* Returns whether the folder's files can be read and have no output head. */
bool checkpoint_lacks_head(const char *dir);

/* Sets src[i] to the place of want->items[i]. */
int checkpoint_match(struct checkpoint *cp, const struct model_config *c,
                     const struct tensor_list *want, struct tensor_src *src,
                     struct err *err);

/* Returns the order of a tensor's rows in a folder's files. */
struct row_map rows_of_folder(const struct model_config *c, const struct tensor_spec *t);

/* Does the work of checkpoint_match for GGUF files (weights_gguf.c). */
int gguf_match(const struct gguf_files *files, const struct model_config *c,
               const struct tensor_list *want, struct tensor_src *src, struct err *err);

/* Hashes device, inode, size and times of all files.  Equal stamps mean equal bytes, except that a
 * change within the same tick of the file system's clock may not show.  *settled becomes true if
 * the last change was two seconds ago or earlier.  Returns 0 or -errno. */
int checkpoint_stamp(const struct checkpoint *cp, struct sha256 *out, bool *settled);

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

/* Returns the row type of a table on a device that holds matrices as `held`: with DTYPE_Q4
 * that of the embedding table is the file's own 4-bit or 6-bit type. */
enum dtype tensor_table_dtype(const struct tensor_src *src, enum slot s, enum dtype held);

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
