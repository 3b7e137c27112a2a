/* weights.h - a model's tensors on a device.
 *
 * Matrices are packed into the backend's layout; norms, biases and small tables are f32.  Blocks of
 * 4, 6 and 8 bits are moved there as they are.  A checkpoint's files are read and closed.  An image
 * of the result may be mapped (weights_image.h).
 *
 * Three sources feed the same code: a Hugging Face folder (safetensors, single or sharded), a GGUF
 * file (whose quantised tensors are hashed as decoded values), and a seeded generator
 * ("synth:SHAPE"), which gives every tensor the same bits on every machine.  The fourth source, a
 * packed file (pack_file.h), holds the converted result of the other three, so it is only read. */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include "base/err.h"
#include "base/hash.h"
#include "model/config.h"
#include "tensor/group.h"
#include "tensor/ops.h"

/* Weights of one layer. data NULL or n zero: the family has no such tensor. Biases and norms are
 * f32. */
struct layer_weights {
    /* Norms [d] of attention and MLP, before them or after them (config.h, norm_place); norm2: NULL
     * in BLOCK_PARALLEL.  For gemma, 1 was added to the weights when they were loaded. */
    const float *norm1_w, *norm1_b;
    const float *norm2_w, *norm2_b;
    const float *post1_w, *post2_w; /* norms after attention and MLP, in NORMS_AROUND */
    /* [n_heads * d_head][d]; with gates, as many rows of these behind them. */
    struct weight wq;
    /* [2 * n_kv_heads * d_head][d]: K rows, then V rows.  If they differ in type, wkv has only the
     * K rows, and wv [n_kv_heads * d_head][d] the V rows; else wv.n is 0. */
    struct weight wkv, wv;
    const float *bq, *bkv;
    const float *q_norm, *k_norm; /* [d_head], or the width of Q and of K, or of a latent */
    struct weight wo;             /* [d][n_heads * d_head] */
    /* In latent attention wq is [n_heads * (d_nope + d_rope)][q_rank or d], the rows of d_rope of
     * all heads first; wkv [d_head][d], those of d_rope first; wo [d][n_heads * d_v].  w_qa is
     * [q_rank][d]; w_uk, the heads' W_k, transposed, [n_heads * rank][d_nope]; w_uv their W_v
     * [n_heads * d_v][rank]. */
    struct weight w_qa, w_uk, w_uv;
    const float *bo;
    struct weight w_up; /* gated: [2 * n_ffn][d], gate rows then up rows; else [n_ffn][d] */
    const float *b_up;
    struct weight w_down; /* [d][n_ffn] */
    const float *b_down;
    /* [n_experts][d].  With a router, w_up and w_down hold those of all experts, one behind
     * another: [n_experts * 2 * n_ffn][d] and [n_experts * d][n_ffn].  If expert_step is not 0,
     * they are those of expert 0, and each expert's begin so many bytes behind the one before
     * (pack_image.h). */
    struct weight router;
    size_t expert_step;
    const float *b_router; /* [n_experts]; b_up and b_down then have all experts', too */
    /* A layer without experts among layers with them: [2 * n_dense_ffn][d], [d][n_dense_ffn]. */
    struct weight dense_up, dense_down;
    /* With that MLP beside experts: norms [d] of its results, of the experts' inputs and of their
     * results; factors of the router's inputs [d] and of the experts' shares [n_experts]. */
    const float *dense_post_w, *experts_w, *experts_post_w, *router_scale, *expert_scale;
    /* The layer's own embeddings: [n_layer_embd][d], [d][n_layer_embd], and the norm [d] of the
     * result. */
    struct weight layer_gate, layer_out;
    const float *layer_norm;
    const float *out_scale; /* one factor of the layer's result */
    const float *sinks;     /* [n_heads] (ops.h, attention_rule) */
    /* The expert that every token uses: [2 * n_shared_ffn][d], [d][n_shared_ffn], and the gate of
     * its result [1][d]. */
    struct weight shared_up, shared_down, shared_gate;
    /* A recurrent layer has these in place of wq to wo: rows of q, k, v and z [..][d], of beta
     * and a [2 n_v][d] (Mamba-2: a alone), and the output [d][n_v * d_v]; the rule's vectors
     * (ops.h, struct delta_rule); the norm of its heads [d_v] (Mamba-2: of all [n_v * d_v]). */
    struct weight mix, mix_ba, mix_out;
    const float *conv, *a_log, *dt, *mix_norm, *conv_b, *skip;
};

struct layer_source;
struct matrix_types;
struct weights_packed;
struct weights_image;
struct io;

/* The element types of a checkpoint, with the number of tensors of each. */
struct weights_types {
    int n;
    struct {
        const char *name; /* "bf16", "Q4_1"; valid while the weights are open */
        int n_tensors;
        bool quantised;
    } of[16];
};

struct weights {
    struct weight head; /* [vocab][d]; also the embedding table if tied */
    /* [vocab][d]; data NULL if tied. The type may have blocks (ops.h, embed). */
    struct mat embed;
    /* learned positions, or [vocab][n_layers * n_layer_embd]; data NULL: the model has none */
    struct mat pos_embed;
    struct weight layer_in;     /* [n_layers * n_layer_embd][d], f32 */
    const float *layer_in_norm; /* [n_layer_embd] */
    /* linear layers behind the pooling, f32: [dense[0]][d], [dense[1]][dense[0]]; n 0: none */
    struct weight dense[CONFIG_MAX_DENSE];
    const float *head_bias; /* [vocab] or NULL */
    const float *final_norm_w, *final_norm_b;
    struct layer_weights *layers; /* [n_layers]; weights_acquire lends them */
    struct layer_source *source; /* source of layers that are not resident; NULL: all are */
    enum dtype dtype;            /* type of the packed matrices; DTYPE_Q4: see matrices */
    struct matrix_types *matrices; /* the type of each matrix */
    /* type of the checkpoint's matrices; bf16 if they are quantised */
    enum dtype file_dtype;
    /* device memory of each rank, all stages together, for the table printed at start */
    uint64_t bytes;
    struct weights_types types; /* types of the tensors in the checkpoint */
    struct sha256 hash;         /* hash over every tensor's name, type, shape and bytes */
    uint64_t hashed_bytes; /* bytes from which it was computed; 0: an earlier process did */
    void *impl;            /* owns the memory */
    /* The image in which all of this lies, or which is being written (weights_image.h); or NULL. */
    struct weights_image *image;
    bool is_mapped; /* the weights lie in the image */
    /* Owns memory and mappings of a packed file; else NULL. */
    struct weights_packed *packed;
};

/* The hash of each loaded tensor: a model loaded in pieces has the same hash as one loaded at once.
 * A zeroed struct is an empty list. */
struct weights_digests {
    size_t n;
    struct weights_digest {
        char name[96];
        struct sha256 digest;
    } * of;
};
/* Returns the hash of a model with these tensors (weights.hash). Sorts them. */
struct sha256 weights_digests_hash(struct weights_digests *d);
void weights_digests_deinit(struct weights_digests *d);

/* Counters of streaming since the weights were loaded. All zero if all layers are resident. */
struct weights_stream_stats {
    int n_layers, n_streamed;
    bool of_experts; /* passes read experts, as they choose them, and no layers */
    /* Bytes of a streamed layer on all ranks, read for each use; of a layer with experts, what a
     * pass that uses all of them reads. */
    uint64_t layer_bytes;
    uint64_t read_bytes; /* bytes read so far */
    /* time in which reads were in flight: read_bytes / read_ns is the source's speed */
    int64_t read_ns;
    /* Speed of the disk, including the first loading; 0: layers come from host memory. */
    double disk_bytes_per_s;
    int64_t wait_ns; /* time that passes waited for layers */
    /* how long the source can read ahead of a pass, at its present speed */
    int64_t ahead_ns;
    int64_t verify_ns; /* time spent on checksums */
    uint64_t n_failed; /* layers that could not be read */
    char fault[200];   /* reason of the last failure; empty after a success */
};
void weights_stats(const struct weights *w, struct weights_stream_stats *out);

/* Returns how many layers the present pass has reached, or the last pass if none is running: the
 * number of the layer acquired last, counted from 1.  0: no pass has begun, or all layers are
 * resident.  Any thread; never waits. */
int weights_reached(const struct weights *w);

/* stops true: every pass fails with ERR_CANCELLED at its next layer, and a pass that waits for a
 * layer fails now, so that a step of seconds ends within one layer.  stops false: passes run again.
 * Does nothing if all layers are resident.  Any thread. */
void weights_stop(const struct weights *w, bool stops);

/* Format in which matrices are held. */
enum weights_held {
    WEIGHTS_AS_STORED, /* the checkpoint's own type; f32 if types are mixed or quantised */
    WEIGHTS_F32,
    WEIGHTS_BF16,
    WEIGHTS_Q8,    /* every matrix in 8 bits, including the head */
    WEIGHTS_Q4,    /* 4 or 8 bits: each matrix has a type of its own (matrix_types.h) */
    WEIGHTS_BF16R, /* bf16; products round activations to bf16 */
};

/* Tensors to load: all, or a part, to examine a model that is larger than memory. */
enum weights_part {
    WEIGHTS_ALL,
    WEIGHTS_OF_LAYER, /* only layers[layer] */
    WEIGHTS_OUTSIDE,  /* only embeddings, final norm and head */
};

/* Memory that a packed model takes on one rank, in bytes. */
struct weights_sizes {
    /* always resident: tables, head, and of all layers W_k, W_v, norms and biases; of a model with
     * experts all but these */
    uint64_t kept;
    uint64_t
        unit; /* the other weights of one layer, or of one expert, the largest if they differ */
    int n_units;
    /* buffers, one unit each, for units that do not stay; unused if all stay */
    int n_slots;
    const char *units; /* "layers" or "experts" */
};

/* Returns whether layer l stays resident. n_resident layers stay, spread evenly, beginning with
 * layer 0. */
static inline bool weights_stays(int l, int n_resident, int n_layers)
{
    return (int64_t)l * n_resident % n_layers < n_resident;
}

/* The relative error of each tensor converted to 4 bits: the root of the sum of squared errors over
 * the root of the sum of squared weights. A zeroed struct is an empty list. The caller frees
 * `of`. */
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
    enum dtype synth_dtype; /* element type of synthetic weights */
    /* Called with the bytes that each rank of each stage is about to hold, in at most n_parts
     * allocations; NULL: not called. */
    int (*reserve)(void *arg, const size_t bytes[MAX_STAGES], int n_parts, struct err *err);
    void *reserve_arg;
    /* Format of the matrices. Tables stay as they are stored; quantised ones are decoded, to f32 if
     * matrices are held in f32, else to bf16. With WEIGHTS_Q4, tables of 4-bit and 6-bit blocks
     * stay as they are, too. */
    enum weights_held held;
    enum weights_part part;
    int layer; /* the layer that WEIGHTS_OF_LAYER loads */
    /* Receives the hash of each tensor; weights.hash then covers all tensors in it.  NULL: not
     * wanted. */
    struct weights_digests *digests;
    struct weights_errors *errors; /* NULL: not wanted */
    /* The hash of a file is remembered in the user's cache (base/known.h), and looked up there. */
    bool remembers;
    /* Maps the image of these weights, or makes one for the next start (weights_image.h). */
    bool images;
    struct io *io; /* reads a packed file; borrowed. NULL: the machine's best method */
    /* Called before anything is allocated: sets the number of a packed file's layers that stay in
     * memory. NULL: all stay. */
    int (*share)(void *arg, const struct weights_sizes *sizes, int *n_resident,
                 struct err *err);
    void *share_arg;
    /* time without an answer from the disk after which a pass fails; 0: 30 s */
    int64_t stuck_ns;
};

/* Loads and packs everything.  `source` is a folder, a GGUF file, a packed file, or "synth:SHAPE".
 * Errors name file and tensor: missing or unexpected tensors, wrong shapes, unknown dtypes,
 * families without a forward pass, numbers that 8 or 4 bits cannot hold.  Progress is shown on a
 * terminal. */
int weights_load(struct weights *out, const char *source, const struct model_config *cfg,
                 const struct weights_opts *o, struct err *err);
void weights_unload(struct weights *w, struct device *dev);

/* The types of all matrices: the head's, then those of each layer.  If W_k and W_v of a layer
 * differ in type, three entries stand for them: DTYPE_Q4, W_k's, W_v's.  The caller frees `of`. */
struct weights_matrix_list {
    int n;
    enum dtype *of;
};
void weights_matrix_list(const struct weights *w, struct weights_matrix_list *out);

/* A tensor of a source that is described without being loaded. */
struct tensor_info {
    const char *name;
    const char *file; /* file name, or the source's name for synthetic weights */
    const char *type; /* type of its elements in the file: "bf16", "Q4_1" */
    int n_dims;       /* 1: [rows], 2: [rows][cols] */
    int64_t rows, cols;
    uint64_t bytes;
};
struct weights_info {
    size_t n_tensors;
    struct tensor_info *tensors; /* in the order of the forward pass; valid until deinit */
    uint64_t bytes;              /* bytes in the checkpoint */
    enum dtype dtype;            /* type of the matrices with WEIGHTS_AS_STORED */
    bool quantised;
    bool has_q4; /* a matrix has a 4-bit or 6-bit type that is held unchanged */
    struct weights_types types;
    void *impl;
};
/* Returns the format in which a quantised checkpoint is held by default on a device: unchanged as
 * far as the device has kernels. */
enum weights_held weights_held_by_default(const struct weights_info *info,
                                          const struct device *d);
int weights_describe(struct weights_info *out, const char *source,
                     const struct model_config *cfg, enum dtype synth_dtype,
                     struct err *err);
void weights_info_deinit(struct weights_info *info);
/* Sets *hash to the hash of the checkpoint if an earlier process computed it and the files have not
 * changed since (weights_opts.remembers). */
bool weights_known_hash(const struct weights_info *info, struct sha256 *hash);
/* Gives the row types of the embeddings and of the learned positions on a device that holds
 * matrices as `held`; `held` itself if there is no such table.  Not for packed files. */
void weights_table_types(const struct weights_info *info, enum dtype held,
                         enum dtype out[2]);

#endif
