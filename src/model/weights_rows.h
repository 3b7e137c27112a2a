/* weights_rows.h - loads rows of tensors: reads, hashes, converts and packs them, a unit at a time.
 * Private to src/model.
 *
 * A *unit* is a run of whole rows of one tensor, about a MiB of decoded numbers.  Its rows are read
 * from the file (or generated), decoded if they are hashed or converted, and delivered to their
 * slots.  Blocks that the backend holds as the file has them are delivered undecoded: they only
 * move.  Units do not depend on each other:
 *
 *   one device whose memory is the host's   each thread takes units until none is left, and
 *                                           delivers them itself
 *   others                                  the threads prepare a batch of units, then the calling
 *                                           thread delivers them over the device's streams */
#ifndef MODEL_WEIGHTS_ROWS_H
#define MODEL_WEIGHTS_ROWS_H

#include <limits.h>
#include <stdatomic.h>

#include "base/progress.h"
#include "model/weights.h"
#include "model/weights_image.h"
#include "model/weights_source.h"
#include "tensor/q4_make.h"

/* How a tensor is cut into blocks with a checksum each: a function of its shape and type only,
 * because the hash depends on it. */
struct cut {
    int64_t block_rows, n_blocks;
    size_t row_bytes; /* of a decoded row */
};

/* One tensor that is loaded. */
struct load {
    const struct tensor_spec *t;
    const struct tensor_src *src;
    struct cut cut;
    int64_t unit_rows,
        n_units;             /* equal to block_rows and n_blocks if the rows are hashed */
    int64_t first_unit;      /* number of its first unit among those of all tensors */
    bool decodes;            /* the rows are hashed or converted */
    uint64_t *sums;          /* [n_blocks]; NULL: the hash is known */
    struct q4_error *errors; /* [n_units] errors of conversions to 4 bits; NULL: none */
    /* First row of the tensor with a NaN or an infinity; LOAD_NO_ROW: there is no such row. Not
     * looked for if the hash is known. */
    atomic_llong bad_row;
};
#define LOAD_NO_ROW LLONG_MAX

struct loader {
    struct weights *w;
    const struct weights_opts *o;
    const struct model_config *c;
    const char *source;
    struct device *dev;
    struct stream *s;
    int n_ranks, n_stages;
    enum weights_held held;
    struct err *err;
    struct tensor_set set;
    struct load *loads; /* [set.list.n] */
    int64_t n_units;
    /* Host copies of each stage's vectors, in slot order, one copy per rank. */
    float *vectors[MAX_STAGES];
    size_t n_vector_floats[MAX_STAGES];
    uint64_t stage_bytes[MAX_STAGES];
    uint64_t bytes_all; /* of all decoded rows */
    struct progress progress;
    struct sha256 stamp; /* of the files, when they were opened (checkpoint_stamp) */
    bool is_settled;     /* they had not changed for two seconds */
    /* The image: its name, from the pieces' sizes; its bytes, and those that are taken so far. */
    struct sha256_ctx *image_key;
    struct sha256 image;
    size_t image_bytes, image_at;
    bool makes_image;
    struct image_piece *pieces; /* those that were allocated, in the order of the image */
    size_t n_pieces;
    bool remembers,
        is_known;    /* the hash may be remembered; w->hash is the remembered one */
    char bad[400];   /* warning of numbers that are none; empty: there are none */
    bool ranks_read; /* ranks of other processes read their rows from files of their own */
};

/* Sets *hash to weights.hash of a checkpoint's files: the remembered one, or from all of their
 * bytes. Takes the parts off the set's tensors. */
int weights_hash(struct tensor_set *set, const struct model_config *cfg, struct device *dev,
                 struct sha256 *hash, struct err *err);

/* Return the place of a slot in memory, its stage, and the host copy of a vector (weights.c). */
struct weight *loader_matrix(const struct loader *ld, int layer, enum slot s);
int loader_stage(const struct loader *ld, const struct tensor_spec *t, enum slot s);
float *loader_vector(const struct loader *ld, int layer, enum slot s, int stage, int rank);

/* Makes ld->loads from ld->set, after all memory is allocated. */
void loads_make(struct loader *ld);
void loads_free(struct loader *ld);
/* Loads all units. After an error *failed is the tensor that could not be loaded, or NULL with
 * ld->err set. -ERANGE: 4 or 8 bits cannot hold its numbers; -ENODATA: its file was cut. */
int loads_run(struct loader *ld, const struct load **failed);

/* Reads rows [row, row + n) of a tensor and packs them as rows from dst_row on of a matrix, as
 * loads_run does. Of l only t and src are set, of ld c and n_ranks. */
int rows_load(const struct loader *ld, struct load *l, int64_t row, int64_t n,
              struct stream *s, struct weight *to, int64_t dst_row);

#endif
