/* weights.h - a model's tensors on a device.
 *
 * Matrices are packed once into the backend's layout; norms, biases and small tables are f32.  The
 * checkpoint stays mapped only for what is used in place (an untied embedding table); the pages of
 * packed tensors are given back, so that weights are resident once.
 *
 * Three sources feed the same code: a Hugging Face folder (safetensors, single or sharded), a GGUF
 * file (whose quantised tensors are decoded block by block), and a seeded generator
 * ("synth:SHAPE"), which gives every tensor the same bits on every machine.  A packed
 * file (pack_file.h) is the fourth source: it holds what the other three end as, so
 * it is read and not converted. */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include "base/err.h"
#include "base/hash.h"
#include "model/config.h"
#include "tensor/group.h"
#include "tensor/ops.h"

/* NULL data / zero n where the family has no such tensor. Biases and norm weights are f32. */
struct layer_weights {
    const float *norm1_w,
        *norm1_b; /* before attention, [d]; gemma's 1 + w is added at load */
    const float *norm2_w, *norm2_b; /* before the MLP; NULL in BLOCK_PARALLEL */
    struct weight wq;               /* [n_heads * d_head][d] */
    struct weight wkv;              /* [2 * n_kv_heads * d_head][d]: K rows, then V rows */
    const float *bq, *bkv;
    const float *q_norm, *k_norm; /* [d_head] */
    struct weight wo;             /* [d][n_heads * d_head] */
    const float *bo;
    struct weight w_up; /* gated: [2 * n_ffn][d], gate rows then up rows; else [n_ffn][d] */
    const float *b_up;
    struct weight w_down; /* [d][n_ffn] */
    const float *b_down;
};

struct layer_source;
struct matrix_types;
struct weights_packed;
struct io;

/* The element types of a checkpoint, and how many tensors have each. */
struct weights_types {
    int n;
    struct {
        const char *name; /* "bf16", "Q4_1"; static */
        int n_tensors;
        bool quantised;
    } of[16];
};

struct weights {
    struct weight head;     /* [vocab][d]; also serves embedding rows where tied */
    struct mat embed;       /* [vocab][d], mapped or owned; data NULL where tied */
    struct mat pos_embed;   /* learned positions, else data NULL */
    const float *head_bias; /* [vocab] or NULL */
    const float *final_norm_w, *final_norm_b;
    struct layer_weights *layers; /* [n_layers]; weights_acquire lends them */
    struct layer_source *source;  /* of layers that are not resident; NULL: all are */
    enum dtype dtype; /* of the packed matrices; DTYPE_Q4: each has its own, see matrices */
    struct matrix_types *matrices; /* the type of each matrix */
    enum dtype file_dtype; /* of the checkpoint's matrices; bf16 where they are quantised */
    uint64_t
        bytes; /* device memory held by each rank, of all stages, for the table printed at start */
    struct weights_types types; /* of the tensors in the checkpoint */
    struct sha256 hash;         /* of every tensor's name, type, shape and bytes */
    void *impl;                 /* owns the memory and the mappings */
    struct weights_packed
        *packed; /* owns them where they come from a packed file; else NULL */
};

/* The hash of each tensor that was loaded: a model that is loaded in pieces has the hash of one
 * that is loaded at once.  All zero is empty. */
struct weights_digests {
    size_t n;
    struct weights_digest {
        char name[96];
        struct sha256 digest;
    } * of;
};
/* struct weights.hash of a model with these tensors. Sorts them. */
struct sha256 weights_digests_hash(struct weights_digests *d);
void weights_digests_deinit(struct weights_digests *d);

/* What streaming has done since the weights were loaded. All zero where all layers are resident. */
struct weights_stream_stats {
    int n_layers, n_streamed;
    uint64_t layer_bytes; /* of a streamed layer, all ranks: what comes up for each use */
    uint64_t read_bytes;  /* that have come up */
    int64_t
        read_ns; /* while reads were under way: read_bytes / read_ns is the source's speed */
    /* Of the disk, the loading of what stays included; 0: layers come from host memory. */
    double disk_bytes_per_s;
    int64_t wait_ns;   /* that passes have waited for layers */
    int64_t ahead_ns;  /* how long the source reads ahead of a pass, at its present speed */
    int64_t verify_ns; /* of checksums */
    uint64_t n_failed; /* layers that could not be had */
    char fault[200];   /* why the last one could not; empty after one that could */
};
void weights_stats(const struct weights *w, struct weights_stream_stats *out);

/* Returns how many layers the present pass has reached, the last pass where none is under way: the
 * number of the layer that was acquired last, from 1.  0: no pass has begun, or all layers are
 * resident.  Any thread; waits for nothing. */
int weights_reached(const struct weights *w);

/* Stops: every pass fails with ERR_CANCELLED at its next layer, and one that waits for a layer
 * fails now, so that a step that takes seconds ends within one layer.  Nothing where all layers
 * are resident.  stops false: passes go on.  Any thread. */
void weights_stop(const struct weights *w, bool stops);

/* How matrices are held. */
enum weights_held {
    WEIGHTS_AS_STORED, /* in the checkpoint's own type; f32 where it is mixed or quantised */
    WEIGHTS_F32,
    WEIGHTS_BF16,
    WEIGHTS_Q8, /* every matrix, the head with them */
    WEIGHTS_Q4, /* in 4 bits, or in 8: each matrix has a type of its own (matrix_types.h) */
};

/* Which tensors: all, or some of them, to look at a model that is larger than memory. */
enum weights_part {
    WEIGHTS_ALL,
    WEIGHTS_OF_LAYER, /* layers[layer] alone */
    WEIGHTS_OUTSIDE,  /* embeddings, final norm and head alone */
};

/* What a packed model takes of the memory of one rank. */
struct weights_sizes {
    uint64_t
        kept; /* tables, head, and of all layers W_k, W_v, norms and biases: always there */
    uint64_t layer; /* the rest of one layer, of the largest where they differ */
    int n_layers;
    int n_slots; /* layers' worth of memory that the others pass through, unless all stay */
};

/* Bytes of one rank with so many resident layers: an upper bound where layers differ. */
static inline uint64_t weights_sizes_bytes(const struct weights_sizes *z, int n_resident)
{
    int n = n_resident < z->n_layers ? n_resident + z->n_slots : z->n_layers;
    return z->kept + (uint64_t)n * z->layer;
}

/* Whether layer l is one of n_resident that are spread evenly; the first layer is the first one to
 * stay. */
static inline bool weights_stays(int l, int n_resident, int n_layers)
{
    return (int64_t)l * n_resident % n_layers < n_resident;
}

/* The relative error of each tensor that was made into 4 bits: the root of the sum of squares
 * of the errors over that of the weights.  All zero is empty; free(of) ends it. */
struct weights_errors {
    size_t n;
    struct weights_error {
        char name[96];
        double relative;
    } * of;
};

struct weights_opts {
    struct device *dev;
    struct stream *s;
    enum dtype synth_dtype; /* of synthetic weights */
    /* Called with what each rank of each stage is about to hold, in n_parts at
     * most; NULL: nobody. */
    int (*reserve)(void *arg, const size_t bytes[MAX_STAGES], int n_parts, struct err *err);
    void *reserve_arg;
    /* Tables stay as they are stored.  Quantised ones are decoded: to f32 where matrices are held
     * so, else to bf16. */
    enum weights_held held;
    enum weights_part part;
    int layer; /* WEIGHTS_OF_LAYER */
    /* Gets the hash of each tensor; weights.hash is then that of all tensors in
     * it.  NULL: nobody. */
    struct weights_digests *digests;
    struct weights_errors *errors; /* NULL: nobody */
    struct io *io; /* reads a packed file; borrowed.  NULL: the machine's best way */
    /* Says how many of the layers of a packed file stay in memory.  Called before anything is
     * allocated.  NULL: all. */
    int (*share)(void *arg, const struct weights_sizes *sizes, int *n_resident,
                 struct err *err);
    void *share_arg;
    int64_t stuck_ns; /* after which a disk that does not answer fails a pass; 0: 30 s */
};

/* Loads and packs everything.  `source` is a folder, a GGUF file, or "synth:SHAPE".
 * Errors name file and tensor: missing or unexpected tensors, wrong shapes, unknown
 * dtypes, families without a forward pass, numbers that 8 or 4 bits cannot hold.
 * Progress is shown on a terminal. */
int weights_load(struct weights *out, const char *source, const struct model_config *cfg,
                 const struct weights_opts *o, struct err *err);
void weights_unload(struct weights *w, struct device *dev);

/* The types of all matrices: the head's, then each layer's.  free(of) ends it. */
struct weights_matrix_list {
    int n;
    enum dtype *of;
};
void weights_matrix_list(const struct weights *w, struct weights_matrix_list *out);

/* What a source holds, without loading it: the same checks, the same errors. */
struct tensor_info {
    const char *name;
    const char *file; /* or the source's name, for synthetic weights */
    const char *type; /* of its elements in the file: "bf16", "Q4_1" */
    int n_dims;       /* 1: [rows], 2: [rows][cols] */
    int64_t rows, cols;
    uint64_t bytes;
};
struct weights_info {
    size_t n_tensors;
    struct tensor_info *tensors; /* in the order of the forward pass; valid until deinit */
    uint64_t bytes;              /* in the checkpoint */
    enum dtype dtype;            /* that the matrices would be held in, as stored */
    bool quantised;
    struct weights_types types;
    void *impl;
};
int weights_describe(struct weights_info *out, const char *source,
                     const struct model_config *cfg, enum dtype synth_dtype,
                     struct err *err);
void weights_info_deinit(struct weights_info *info);
/* out = the types of the rows of embeddings and of learned positions on a device where matrices are
 * held as `held`; `held` where there is no such table.  Not of a packed file. */
void weights_table_types(const struct weights_info *info, enum dtype held,
                         enum dtype out[2]);

/* Writes DIR/config.json and DIR/model.safetensors with the generator's weights for `cfg`; the
 * tensors equal those of synth:SHAPE bit for bit.  More than 4 GB become several files.  When it
 * returns 0 the model survives a crash; after an error DIR holds no config.json of ours. */
int weights_synth_write(const char *dir, const struct model_config *cfg, enum dtype dtype,
                        struct err *err);

#endif
