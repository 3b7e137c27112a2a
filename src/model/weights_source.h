/* weights_source.h - where the bytes of a checkpoint's tensors come from: mapped files, or a seeded
 * generator.  Private to src/model.
 *
 * A *checkpoint* is a folder of mapped safetensors files.  checkpoint_match pairs every tensor that
 * the model wants with its bytes and refuses everything that does not fit; what it accepts is safe to
 * read: names, shapes, element types and ranges are checked there and nowhere else.
 *
 * A mapped file must not be written to: shortening it ends this program with SIGBUS, and what is
 * used in place would change under the model's fingerprint.  Checkpoints are replaced by renaming, as
 * every downloader does. */
#ifndef MODEL_WEIGHTS_SOURCE_H
#define MODEL_WEIGHTS_SOURCE_H

#include "base/err.h"
#include "model/weights_names.h"
#include "tensor/tensor.h"

#include <stddef.h>
#include <stdint.h>

/* The bytes of one tensor, row-major. */
struct tensor_src {
    enum dtype dtype;
    const uint8_t *mapped; /* NULL: the generator makes them; may have any alignment */
    const char *file;      /* for messages; lives as long as the checkpoint */
};

struct checkpoint;

/* Maps DIR/model.safetensors, or the files that DIR/model.safetensors.index.json names. */
int checkpoint_open(const char *dir, struct checkpoint **out, struct err *err);
void checkpoint_close(struct checkpoint *cp); /* NULL is allowed */

/* src[i] = the bytes of want->items[i]. */
int checkpoint_match(struct checkpoint *cp, const struct model_config *c,
                     const struct tensor_list *want, struct tensor_src *src,
                     struct err *err);

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
    bool mixed; /* the matrices do not agree */
};

/* `source`: a folder, or "synth:SHAPE" with all tensors in synth_dtype.  close also after an error. */
int tensor_set_open(struct tensor_set *set, const char *source,
                    const struct model_config *c, enum dtype synth_dtype, struct err *err);
void tensor_set_close(struct tensor_set *set);

/* Rows [row, row + n_rows) of the tensor that the generator gives the name of t, in type `dtype`.
 * A pure function of name, shape, type and row: any thread, any order, any machine. */
void synth_fill(const struct tensor_spec *t, enum dtype dtype, bool norm_plus_one,
                int64_t row, int64_t n_rows, void *dst);

#endif
