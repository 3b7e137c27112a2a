/* model.h - one decoder-only transformer: embed, layers, head, and the K/V projection.
 *
 * model_forward takes a batch through all layers.  What needs one layer at a time (restoration,
 * prefill fused with it, profiles) drives a pass itself (pass.h).  Every step is batch-invariant
 * (ops.h), so a row's hidden state, K and V have the same bits whatever rows it was computed with.
 *
 * Between layers the residual stream has the *state dtype*: a saved hidden state is exactly what
 * the layer saw.  The hidden state of layer l is its input.
 *
 * A model is immutable after model_open and may be shared by threads; a model_work
 * (activations) and a stream belong to one thread at a time. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include <errno.h>

#include "base/err.h"
#include "base/hash.h"
#include "model/config.h"
#include "model/weights.h"
#include "tensor/group.h"
#include "tensor/ops.h"

/* Raised whenever the forward pass, the rotation tables or the conversion of weights give
 * other bits on every backend.  (A change of one backend raises that backend's own
 * version: device.numerics_version.) State that was saved under another version is not
 * used; see state/fingerprint.h. */
#define MODEL_NUMERICS_VERSION 1

/* model_forward's code for an f16 residual stream that left f16's range: run in bf16 instead. */
#define MODEL_E_OVERFLOW (-ERANGE)

struct model {
    struct model_config cfg;
    struct device *dev;
    enum dtype dtype; /* state dtype */
    struct weights w;
    struct rope rope[MAX_STAGES]; /* the same tables on each stage */
    int max_ctx; /* positions that rope tables (and the caller's memory) are made for */
    char *source;
    char note
        [320]; /* how matrices are held, where that was chosen by measuring; else empty */
    bool is_packed;         /* the source is a packed file (pack_file.h), and */
    enum dtype packed_held; /* its matrices have this type */
    bool any_context;       /* its weights are random, so rotations go beyond cfg.max_ctx */
    struct buf rope_mem[MAX_STAGES];
};

/* What a model takes of the memory of each rank of each stage, in so many parts at most. */
struct model_need {
    size_t bytes[MAX_STAGES];
    int n_parts;
};

struct model_opts {
    struct device *dev;
    /* Called when all that the model takes is known, and before it takes it; m has
     * its shape and its types.  NULL: nobody wants to know.  What it returns other
     * than 0 ends the opening. */
    int (*reserve)(void *arg, const struct model *m, const struct model_need *need,
                   struct err *err);
    void *reserve_arg;
    const char *dtype; /* state dtype by name; NULL: the checkpoint's */
    /* How matrices are held: "f32", "bf16", "q8", "q4"; "auto": a file's 4-bit tensors as they
     * are, else in the smallest of the others that is as good (weights_choose.h); "checkpoint"
     * or NULL: in their own type, quantised ones as "auto" says. */
    const char *weights;
    int max_ctx; /* 0: the model's own, beyond which only synth:SHAPE with rotary positions goes */
    struct io *io; /* reads a packed file; borrowed.  NULL: the machine's best way */
    /* Says how many layers of a packed file stay in memory, before any is taken.  m has its
     * shape and its types.  NULL: all. */
    int (*share)(void *arg, const struct model *m, const struct weights_sizes *sizes,
                 int *n_resident, struct err *err);
    void *share_arg;
    int64_t stuck_ns; /* as weights_opts.stuck_ns */
};

/* All that is known of a model without its weights, and how its matrices would be held. */
int model_describe(const char *source, const struct model_opts *o, struct model **out,
                   enum weights_held *held, struct err *err);

/* `source`: a Hugging Face folder, a GGUF file, a packed file, or "synth:SHAPE". */
int model_open(const char *source, const struct model_opts *o, struct model **out,
               struct err *err);
void model_close(struct model *m);
/* Whether a context of the model can be truncated: its state must not depend on positions, and
 * its layers must see all tokens.  ERR_UNSUPPORTED names the reason. */
int model_check_truncation(const struct model *m, struct err *err);
/* "safetensors", "gguf", "packed" or "synth". */
const char *model_format(const struct model *m);

/* cos and sin [n][d_rope / 2] of the rotations at n positions: the rows that the model's tables
 * have, also of positions beyond them. */
void model_rope_rows(const struct model_config *c, const int32_t *pos, int n,
                     float *cos_out, float *sin_out);

/* Bytes of the rotation tables on one stage. */
size_t model_rope_bytes(const struct model *m);

static inline int model_kv_dim(const struct model *m)
{
    return m->cfg.n_kv_heads * m->cfg.d_head;
}
/* What one rank holds of them (tensor/group.h): the widths of a layer's K and V as it is
 * computed. As it is saved, a row has the [K, V] of the ranks one beside the other. */
static inline int model_rank_kv_heads(const struct model *m)
{
    return m->cfg.n_kv_heads / m->dev->n_ranks;
}
static inline int model_rank_kv_dim(const struct model *m)
{
    return model_kv_dim(m) / m->dev->n_ranks;
}
/* The stage that has layer l (tensor/group.h): its weights, its K and V, what it reads and
 * writes. The head is on the last one. */
static inline int model_stage(const struct model *m, int l)
{
    return stage_of(l, m->cfg.n_layers, m->dev->n_stages);
}
static inline int model_last_stage(const struct model *m)
{
    return m->dev->n_stages - 1;
}
/* Bytes per token and layer of a hidden state, and of K and V (cost model, DESIGN §4). */
static inline size_t model_hidden_bytes(const struct model *m)
{
    return (size_t)m->cfg.n_embd * dtype_bytes(m->dtype);
}
static inline size_t model_kv_bytes(const struct model *m)
{
    return (size_t)2 * (size_t)model_kv_dim(m) * dtype_bytes(m->dtype);
}

/* Activations for batches of at most max_rows rows, on each stage; bytes: of one stage. */
struct model_work;
size_t model_work_bytes(const struct model *m, int max_rows);
int model_work_create(const struct model *m, int max_rows, struct model_work **out,
                      struct err *err);
void model_work_destroy(struct model_work *w);
int model_work_rows(const struct model_work *w);

/* x [n][d] T = the hidden states of layer 0, on its stage. ids were checked against
 * the vocabulary. */
int model_embed(const struct model *m, struct model_work *w, struct stream *s, struct mat x,
                const int32_t *ids, const struct ragged *r);

/* The projection that restores from hidden states: kv_rows [n][2 * rank_kv_dim] T from the
 * layer's input h [n][d] T: the bits that a pass computes from the same rows. */
int model_kv_project(const struct model *m, struct model_work *w, struct stream *s, int l,
                     struct mat h, struct mat kv_rows);

/* A chunk of 64 rows as it is stored: laid out like a KV block, K before RoPE, kv_block_bytes long.
 * Saving pays for the transpose, in the background, so that restoring need not. */
int model_kv_pack(const struct model *m, struct stream *s, void *chunk, struct mat kv_rows);
/* Stored chunks into blocks of kv: the same bits as model_kv_fill of their rows. On
 * the calling thread. */
int model_kv_load(const struct model *m, struct stream *s, const struct kv_layer *kv,
                  const struct kv_chunks *chunks);

/* Writes kv_rows (T), projected or as they are saved, at r's positions into kv, rotated. With
 * model_kv_load the only way into a block. */
int model_kv_fill(const struct model *m, struct stream *s, const struct kv_layer *kv,
                  struct mat kv_rows, const struct ragged *r);

/* logits [n][vocab] f32 from the last layer's output x [n][d] T. */
int model_head(const struct model *m, struct model_work *w, struct stream *s, struct mat x,
               struct mat logits);

/* Sees each layer of a pass, on the calling thread, after the layer's operations were queued.
 * The views are valid until the stream runs the next layer; where the device has memory of its
 * own, until it runs the layer after that. */
struct model_tap {
    int (*layer)(void *arg, int l, struct mat hidden, struct mat kv_rows);
    void *arg;
};

/* Embeds, runs every layer, and leaves the last output in *x (valid until the next call with
 * w).  Returns MODEL_E_OVERFLOW where a layer's output left the range of f16. */
int model_forward(const struct model *m, struct model_work *w, struct stream *s,
                  const int32_t *ids, const struct kv_layer *kv_layers,
                  const struct ragged *r, const struct model_tap *tap, struct mat *x);

#endif
