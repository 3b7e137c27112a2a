/* model.h - one decoder-only transformer: embed, layers, head, and the K/V projection.
 *
 * model_forward takes a batch through all layers.  Code that needs one layer at a time
 * (restoration, prefill fused with it, profiles) drives a pass itself (pass.h).  Every step is
 * batch-invariant (ops.h): a row's hidden state, K and V have the same bits whatever rows it was
 * computed with.
 *
 * Between layers the residual stream has the *state dtype*, so a saved hidden state is exactly the
 * layer's input.  The hidden state of layer l is its input.
 *
 * Threads may share a model. After model_open only its rotation tables still grow, when a position
 * is used for the first time.  A model_work (activations) and a stream belong to one thread at a
 * time. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include <errno.h>
#include <stdatomic.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/spans.h"
#include "model/config.h"
#include "model/weights.h"
#include "tensor/group.h"
#include "tensor/ops.h"

/* Raise this version whenever the forward pass, the rotation tables or the conversion of weights
 * give other bits on every backend. (A change of one backend raises that backend's
 * device.numerics_version.) State saved under another version is not used (save/fingerprint.h). */
#define MODEL_NUMERICS_VERSION 1

/* Code of model_forward for an f16 residual stream that left f16's range; use bf16 instead. */
#define MODEL_E_OVERFLOW (-ERANGE)

/* Writes the first ids of a text, at most `most`, with the tokenizer of `source`. Returns their
 * number, or 0 if the source has no tokenizer. */
typedef int model_probe_ids(const char *source, const char *text, size_t n_text,
                            int32_t *ids, int most);

/* Rotations: those of layers that see all tokens, and those of layers with a window.  In most
 * models both are the same tables. */
enum rope_kind { ROPE_GLOBAL, ROPE_LOCAL, N_ROPES };

/* Positions that the tables have for any maximum context: the fingerprint's probe uses them. */
enum { ROPE_LEAST_POSITIONS = 2048 };

struct model {
    struct model_config cfg;
    struct device *dev;
    /* The state dtype, in which the residual stream is stored between layers. */
    enum dtype dtype;
    struct weights w;
    /* Equal tables, one copy per stage; model_rope gives a layer's. */
    struct rope rope[N_ROPES][MAX_STAGES];
    /* positions for which the RoPE tables (and the caller's memory) have room */
    int max_ctx;
    char *source;
    model_probe_ids *probe_ids;
    char note[320];         /* how quantised matrices are held, and why; else empty */
    bool is_measured;       /* this process measured how to hold the matrices */
    bool is_packed;         /* the source is a packed file (pack_file.h) */
    const char *format;     /* of the source: "safetensors", "gguf", "packed" or "synth" */
    enum dtype packed_held; /* type of the packed file's matrices */
    bool any_context; /* the weights are random, so positions may exceed cfg.max_ctx */
    struct buf rope_mem[MAX_STAGES];
    /* which blocks of 64 positions the tables hold so far; NULL: all */
    _Atomic uint8_t *rope_blocks;
};

/* Memory that a model takes on each rank of each stage, in at most n_parts allocations. */
struct model_need {
    size_t bytes[MAX_STAGES];
    int n_parts;
};

struct model_opts {
    struct device *dev;
    /* Called when the model's memory needs are known, before anything is allocated; m has its shape
     * and its types.  A result other than 0 ends the opening with that code.  NULL: not called. */
    int (*reserve)(void *arg, const struct model *m, const struct model_need *need,
                   struct err *err);
    void *reserve_arg;
    const char *dtype; /* name of the state dtype; NULL: the checkpoint's */
    /* Format of the matrices in memory: "f32", "bf16", "q8", "q4".  "auto" measures 4-bit tensors
     * of the file as they are, then "q8", "bf16" and "f32", and takes the smallest that is good
     * enough (weights_choose.h). "checkpoint" or NULL takes the file's own type; quantised tensors
     * stay as they are, or are held in 8 bits if there are no kernels for their types. */
    const char *weights;
    /* The ids of the text that "auto" measures with (text/tokenizer.h has one). NULL: ids spread
     * over the vocabulary. */
    model_probe_ids *probe_ids;
    /* 0: the model's own maximum. Only synth:SHAPE with rotary positions may exceed it. */
    int max_ctx;
    struct io *io; /* reads a packed file; borrowed. NULL: the machine's best method */
    /* Called before any layer of a packed file is loaded: sets the number of layers that stay in
     * memory.  m has its shape and its types.  NULL: all stay. */
    int (*share)(void *arg, const struct model *m, const struct weights_sizes *sizes,
                 int *n_resident, struct err *err);
    void *share_arg;
    bool images;         /* see weights_opts.images */
    int64_t stuck_ns;    /* see weights_opts.stuck_ns */
    struct spans *spans; /* receives the parts of the opening; NULL: not wanted */
};

/* Opens a model without its weights; *held gets the format in which its matrices would be held.
 * model_close frees it. */
int model_describe(const char *source, const struct model_opts *o, struct model **out,
                   enum weights_held *held, struct err *err);

/* Opens `source`: a Hugging Face folder, a GGUF file, a packed file, or "synth:SHAPE". */
int model_open(const char *source, const struct model_opts *o, struct model **out,
               struct err *err);
void model_close(struct model *m);
/* Returns 0 if a context of the model can be truncated: its state must not depend on absolute
 * positions, and its layers must see all tokens.  ERR_UNSUPPORTED names the reason. */
int model_check_truncation(const struct model *m, struct err *err);

/* Computes cos and sin [n][d_rope / 2] of the rotations at n positions, equal to the rows of the
 * model's tables of one kind.  Positions may lie beyond the tables. */
void model_rope_rows(const struct model_config *c, enum rope_kind kind, const int32_t *pos,
                     int n, float *cos_out, float *sin_out);

/* Fills the tables for the 64 positions around pos (its block). Any thread may call it. */
void model_rope_reach(const struct model *m, int64_t pos);
bool model_rope_has(const struct model *m, int64_t pos);

/* Returns the bytes of the rotation tables on one stage, when they are full. */
size_t model_rope_bytes(const struct model *m);

/* Returns the width of layer l's K, and of its V. */
static inline int model_kv_dim(const struct model *m, int l)
{
    return config_kv_heads(&m->cfg, l) * config_d_head(&m->cfg, l);
}
/* One rank's part (tensor/group.h): its number of K/V heads, and the width of a layer's K and V as
 * it is computed. A saved row has K and V of all ranks. */
static inline int model_rank_kv_heads(const struct model *m, int l)
{
    return config_kv_heads(&m->cfg, l) / m->dev->n_ranks;
}
static inline int model_rank_kv_dim(const struct model *m, int l)
{
    return model_kv_dim(m, l) / m->dev->n_ranks;
}
/* Returns the first `rows` rows of memory for K and V, laid out as layer l's are: V alone where it
 * is K. */
static inline struct mat model_kv_rows(const struct model *m, int l, void *mem,
                                       int64_t rows)
{
    return mat_of(mem, m->dtype, rows, config_kv_width(&m->cfg, l) / m->dev->n_ranks);
}
/* Returns the stage of layer l (tensor/group.h): it has the layer's weights, its K and V, and its
 * activations. The head is on the last stage. */
static inline int model_stage(const struct model *m, int l)
{
    return stage_of(l, m->cfg.n_layers, m->dev->n_stages);
}
static inline int model_last_stage(const struct model *m)
{
    return m->dev->n_stages - 1;
}
/* Returns the rotation of layer l, in the memory of its stage. */
static inline const struct rope *model_rope(const struct model *m, int l)
{
    bool local = layer_set_has(&m->cfg.windowed, l);
    return &m->rope[local ? ROPE_LOCAL : ROPE_GLOBAL][model_stage(m, l)];
}
/* Return the bytes per token and layer: of a hidden state; of layer l's K and V as they are saved;
 * of the widest layer's K and V in memory. */
static inline size_t model_hidden_bytes(const struct model *m)
{
    return (size_t)m->cfg.n_embd * dtype_bytes(m->dtype);
}
static inline size_t model_kv_bytes(const struct model *m, int l)
{
    return (size_t)config_kv_width(&m->cfg, l) * dtype_bytes(m->dtype);
}
static inline size_t model_most_kv_bytes(const struct model *m)
{
    return (size_t)2 * (size_t)config_most_kv_dim(&m->cfg) * dtype_bytes(m->dtype);
}
/* Returns the bytes of a token's K and V in memory, in all layers of a stage; -1: of all stages. */
size_t model_all_kv_bytes(const struct model *m, int stage);
/* Returns the mean of saved bytes, over the layers with K and V of their own. */
double model_mean_kv_bytes(const struct model *m);

/* Activations for batches of at most max_rows rows, on each stage.  model_work_bytes is for one
 * stage. */
struct model_work;
size_t model_work_bytes(const struct model *m, int max_rows);
int model_work_create(const struct model *m, int max_rows, struct model_work **out,
                      struct err *err);
void model_work_destroy(struct model_work *w);
/* Gives the pages back to the system if they are the host's. No pass may be running. */
void model_work_rest(struct model_work *w);
int model_work_rows(const struct model_work *w);

/* Sets x [n][d] T to the hidden states of layer 0, on its stage. The caller has checked ids against
 * the vocabulary. */
int model_embed(const struct model *m, struct model_work *w, struct stream *s, struct mat x,
                const int32_t *ids, const struct ragged *r);

/* Does the projection that restores from hidden states: computes kv_rows (model_kv_rows) from the
 * layer's input h [n][d] T. The bits are those that a pass computes from the same rows. */
int model_kv_project(const struct model *m, struct model_work *w, struct stream *s, int l,
                     struct mat h, struct mat kv_rows);

/* Returns the bytes of a sequence's state in one recurrent layer; 0: there are no such layers. */
size_t model_state_bytes(const struct model_config *c);
/* Returns the bytes of memory for one state. With guesses, the state has room behind it for the
 * inputs of guessed tokens (ops.h, delta_net). */
size_t model_state_room(const struct model_config *c, bool may_guess);
/* Advances the states of all recurrent layers to n_tokens tokens over kept inputs of guesses
 * (ragged.ahead). The bits are those of rows that were never guessed. A state whose kept inputs do
 * not reach n_tokens stays where it is (model_state_seen). The weights must be resident. */
int model_states_reach(const struct model *m, struct stream *s,
                       const struct kv_layer *layers, int32_t state, int64_t n_tokens);
/* Returns how many tokens a state has seen. */
int64_t model_state_seen(const void *state);
/* Returns the rule of a recurrent layer with these weights; lw NULL: only its sizes, all 0 in
 * models without such layers. */
struct delta_rule model_delta_rule(const struct model_config *c,
                                   const struct layer_weights *lw);
/* Returns layer l's cache at mem, as operations take it. block_stride is the size of a block of K
 * and V, or of a recurrent layer's state. */
struct kv_layer model_cache(const struct model *m, int l, void *mem);

/* Brings rows into layer l's cache from the layer's input h [n][d] T: K and V, or the recurrent
 * states, which must stand at the rows' positions.  The bits are those of a pass.  kv_rows is
 * scratch as for model_kv_project; unused in recurrent layers. */
int model_replay(const struct model *m, struct model_work *w, struct stream *s, int l,
                 struct mat h, struct mat kv_rows, const struct kv_layer *kv,
                 const struct ragged *r);

/* Packs 64 rows into a chunk as it is stored: laid out like a KV block, K before RoPE,
 * kv_block_bytes long.  Saving does the transpose in the background, so that restoring need not. */
int model_kv_pack(const struct model *m, struct stream *s, int l, void *chunk,
                  struct mat kv_rows);
/* Loads stored chunks into blocks of kv, which are layer l's, on the calling thread. The bits equal
 * those of model_kv_fill with the same rows. */
int model_kv_load(const struct model *m, struct stream *s, int l, const struct kv_layer *kv,
                  const struct kv_chunks *chunks);

/* Writes kv_rows (T), projected or as saved, into kv, which is layer l's, at r's positions, with
 * rotation. Only this and model_kv_load write into a block. */
int model_kv_fill(const struct model *m, struct stream *s, int l, const struct kv_layer *kv,
                  struct mat kv_rows, const struct ragged *r);

/* Computes out [n][d] f32, the last layer's output x [n][d] T behind the final norm, which is what
 * embeddings are pooled from. */
int model_final_norm(const struct model *m, struct model_work *w, struct stream *s,
                     struct mat x, struct mat out);
/* Returns ERR_UNSUPPORTED, with the reason, if the model can generate no text. */
int model_check_text(const struct model *m, struct err *err);
/* Computes the linear layers behind the pooling of the row `pooled` [1][d] f32.  Their results are
 * laid behind it, where its memory must have room; *out is the last one, or `pooled` itself if the
 * model has none.  Only on devices whose memory is the host's. */
int model_dense(const struct model *m, struct stream *s, struct mat pooled,
                struct mat *out);
/* Computes logits [n][vocab] f32 from the last layer's output x [n][d] T. */
int model_head(const struct model *m, struct model_work *w, struct stream *s, struct mat x,
               struct mat logits);

/* A callback for each layer of a pass, on the calling thread, after the layer's operations were
 * queued. In a recurrent layer kv_rows is empty. The views are valid until the stream runs the
 * next layer; on a device with memory of its own, until it runs the layer after that. */
struct model_tap {
    int (*layer)(void *arg, int l, struct mat hidden, struct mat kv_rows);
    void *arg;
};

/* Embeds, runs every layer, and leaves the last output in *x, which is valid until the next call
 * with w. Returns MODEL_E_OVERFLOW if a layer's output left the range of f16. */
int model_forward(const struct model *m, struct model_work *w, struct stream *s,
                  const int32_t *ids, const struct kv_layer *kv_layers,
                  const struct ragged *r, const struct model_tap *tap, struct mat *x);

#endif
