/* config.h - the description of a model, as data.
 *
 * `struct model_config` describes one decoder-only transformer: its sizes, and the choices in which
 * the families differ (norm, activation, order of the block, biases, positions, window).  The one
 * forward function is driven by this description and never asks for the family's name.  Only the
 * loader asks for it, to find the family's tensor names.
 *
 * A config is a plain value: copy it, compare fields, keep it on the stack.  It owns nothing. It
 * comes from a Hugging Face folder or a GGUF file (config_load), from the bytes of a config.json
 * (config_parse), or from a name (config_shape).
 *
 * Parsing succeeds for every family whose description below is complete, whether or not a forward
 * pass for it exists; the loader refuses a model that it cannot run.  A field that would change
 * results and is not understood is an error that names the file and the field; it is never
 * approximated.
 *
 * After a successful parse these hold, whatever the bytes were:
 *   1. every size is positive; n_embd, n_ffn and n_heads * d_head are at most 2^20, vocab_size
 *      2^24, n_layers 256, max_ctx 2^30 (products of two need 64 bits);
 *   2. n_heads is a multiple of n_kv_heads; d_rope is even and at most d_head;
 *   3. bos_id and every eos id are -1 or lie in [0, vocab_size).
 *
 * Functions here keep no state: any thread may call them. */
#ifndef MODEL_CONFIG_H
#define MODEL_CONFIG_H

#include "base/err.h"
#include "base/layer_set.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum model_family {
    FAMILY_LLAMA,
    FAMILY_MISTRAL,
    FAMILY_QWEN2,
    FAMILY_QWEN3,
    FAMILY_OPT,
    FAMILY_PHI,
    FAMILY_PHI3,
    FAMILY_GEMMA,
    FAMILY_FALCON,
    FAMILY_QWEN3_MOE,
    FAMILY_MIXTRAL,
    FAMILY_GEMMA3,
    FAMILY_OLMO2,
    FAMILY_OLMO3,
    FAMILY_GRANITE,
    FAMILY_GPT_OSS,
    FAMILY_GEMMA2,
    FAMILY_QWEN3_5,
    FAMILY_QWEN3_5_MOE,
    FAMILY_QWEN3_NEXT,
    FAMILY_COHERE2,
    FAMILY_MINISTRAL3,
    FAMILY_GLM4_MOE,
    FAMILY_LFM2,
    FAMILY_GEMMA4,
    FAMILY_DEEPSEEK2,
    FAMILY_GLM4_LITE,
    FAMILY_GRANITE_HYBRID,
};

/* Element type of the checkpoint, as config.json states it. */
enum weight_type {
    WEIGHT_F32,
    WEIGHT_F16,
    WEIGHT_BF16,
    WEIGHT_UNSPECIFIED, /* config.json does not say; the tensors' own types count */
};

enum norm_kind {
    NORM_RMS,          /* norm(x) = x / rms(x) * w */
    NORM_RMS_PLUS_ONE, /* norm(x) = x / rms(x) * (1 + w), gemma */
    NORM_LAYER,        /* norm(x) = (x - mean) / std * w + b */
    NORM_LAYER_PLAIN,  /* norm(x) = (x - mean) / std * w, in parallel blocks (cohere2) */
};

enum act_kind {
    ACT_SILU,
    ACT_GELU,      /* GELU in its exact form, with erf */
    ACT_GELU_TANH, /* the tanh approximation: gelu_new, gelu_pytorch_tanh */
    ACT_RELU,
    /* gate / (1 + exp(-1.702 gate)) * (up + 1), with gate at most 7, up from -7 to 7 (gpt_oss) */
    ACT_SWIGLU_CLAMPED,
};

enum block_kind {
    BLOCK_SEQUENTIAL,     /* x += attn(norm1(x)); x += mlp(norm2(x)) */
    BLOCK_PARALLEL,       /* x += attn(norm(x)) + mlp(norm(x)): one norm (phi, falcon-7b) */
    BLOCK_PARALLEL_NORM2, /* x += attn(norm1(x)) + mlp(norm2(x)): two norms (falcon-40b) */
};

/* Places of the norms in a sequential block. */
enum norm_place {
    NORMS_BEFORE, /* x += attn(norm1(x)); x += mlp(norm2(x)) */
    NORMS_AFTER,  /* x += norm1(attn(x)); x += norm2(mlp(x)) (olmo2) */
    NORMS_AROUND, /* x += post1(attn(norm1(x))); x += post2(mlp(norm2(x))) (gemma3) */
};

/* RMS norm of Q and K, before RoPE. */
enum qk_norm {
    QK_NORM_NONE,
    QK_NORM_HEADS, /* over each head, weights [d_head] */
    QK_NORM_ALL,   /* over all heads together, weights [heads * d_head] (olmo2) */
};

enum position_kind {
    POSITION_ROPE,    /* rotates the halves: pairs are (i, i + d_rope/2) */
    POSITION_LEARNED, /* adds a row of a table of max_ctx + position_offset to the embedding */
};

/* How the hidden states of a text become its embedding. The values are those of GGUF files. */
enum pooling {
    POOLING_NONE,  /* the model makes no embeddings */
    POOLING_MEAN,  /* the mean over all tokens */
    POOLING_CLS,   /* the first token's */
    POOLING_LAST,  /* the last token's */
    POOLING_RANK,  /* none: the model judges a document by the next token, "yes" or "no" */
    POOLING_OTHER, /* a kind that this program does not have */
};

enum rope_scaling_kind {
    ROPE_SCALING_NONE = 0,
    ROPE_SCALING_FACTORS = 2, /* the number is part of config_state_text */
};

enum { ROPE_MAX_FACTORS = 256 };

/* Factor of a frequency that does not rotate, as GGUF files write it. */
#define ROPE_STILL 1e30f

/* Frequency i of the rotation is divided by factors[i].  Scalings that are given by parameters
 * (linear, YaRN; in folders also Llama 3.1's and LongRoPE) are converted to factors when they are
 * read; GGUF files have the factors of the others. So a folder and its GGUF file are one model. */
struct rope_scaling {
    enum rope_scaling_kind kind;
    float factors[ROPE_MAX_FACTORS];
    /* LongRoPE: a context of at most short_ctx tokens uses these factors instead; 0: there are none
     * (config_fit_context). */
    int32_t short_ctx;
    float short_factors[ROPE_MAX_FACTORS];
};

enum {
    CONFIG_MAX_EOS = 64,
    MODEL_MAX_EXPERTS = 1024,
    MODEL_MAX_EXPERTS_USED = 32,
    CONFIG_MAX_DENSE = 2
};

struct model_config {
    enum model_family family;
    enum weight_type weight_type;

    /* Sizes. */
    int32_t n_layers;
    int32_t n_embd;     /* d: width of the residual stream */
    int32_t n_heads;    /* number of query heads */
    int32_t n_kv_heads; /* key/value heads; n_heads is a multiple of it */
    int32_t d_head;     /* width of a head; need not be n_embd / n_heads (qwen3, gemma) */
    /* n_kv_heads and d_head of layers with the window (gemma4); 0: those of the other layers */
    int32_t local_kv_heads, local_d_head;
    /* Latent attention (deepseek_v2): the one head of K has d_rope dimensions that rotate, and a
     * latent of d_head - d_rope; V is K before RoPE. Every query has d_nope dimensions for the
     * latent and d_rope more, every result d_v. q_rank is the width of a latent of the queries; 0:
     * there is none. d_nope 0: attention is not latent. */
    struct latent {
        int32_t d_nope, d_v, q_rank;
    } latent;
    /* The last n_reading layers have no K and V of their own. Each reads those of the last layer
     * before these that also has the window, or also has none (gemma4). */
    int32_t n_reading;
    int32_t n_ffn; /* width of the MLP's hidden layer; of one expert's, if there are any */
    int32_t n_experts;      /* MLPs of a layer, among which a router chooses; 0: one MLP */
    int32_t n_experts_used; /* experts of each token */
    int32_t n_shared_ffn;   /* width of an expert that every token also uses; 0: none */
    bool shared_is_gated;   /* its result is multiplied by the sigmoid of a gate */
    /* The first layers that have one MLP in place of experts, and its width. */
    int32_t n_dense_layers, n_dense_ffn;
    /* Layers have an MLP of n_dense_ffn and experts beside it, each with norms of its own, and the
     * router has factors for its input and for the chosen experts' weights (gemma4). */
    bool dense_beside;
    bool wide_reading; /* the MLPs of the n_reading layers have 2 * n_ffn columns */
    /* Each token has an embedding of so many numbers for every layer (gemma4); 0: it has none. */
    int32_t n_layer_embd;
    int32_t n_guessing; /* layers behind the last that guess tokens and are not used */
    int32_t vocab_size;
    int32_t max_ctx; /* context length for which the model was made, in tokens */

    /* Block. */
    enum block_kind block;
    enum norm_kind norm;
    enum norm_place norm_place;
    float norm_eps;
    enum act_kind act;
    bool mlp_gated;     /* down(act(gate(x)) * up(x)), else down(act(up(x))) */
    bool qkv_bias;      /* biases on the Q, K and V projections */
    bool attn_out_bias; /* bias on the attention's output projection */
    bool mlp_bias;      /* of experts too */
    bool router_bias;
    /* The folder's experts have 4 bits (mxfp4); for other sources their tensors say so. */
    bool is_quantised;
    enum qk_norm qk_norm;
    /* The weights of a token's experts are divided by their sum, so that they add up to 1. */
    bool experts_normed;
    /* true: experts' shares are sigmoids of the router's numbers, and the router's bias only
     * changes the choice. false: shares are a softmax of the numbers, the bias included. */
    bool router_sigmoid;
    /* The experts form n groups. A token's experts are chosen from `used` groups: those whose two
     * best experts have the largest sum. n 0: there are no groups. */
    struct {
        int32_t n, used;
    } expert_groups;
    float experts_scale; /* factor of the experts' weights; else 1 */
    /* Factor of what attention and MLP add to the residual stream (granite); else 1. */
    float residual_scale;

    /* Positions and attention. */
    enum position_kind position;
    double rope_theta;
    /* leading dimensions of a head that are rotated: d_head, or fewer (phi) */
    int32_t d_rope;
    struct rope_scaling rope_scaling;
    /* Factor of cos and sin (YaRN, LongRoPE), but not with rope_local_theta; else 1. */
    float rope_magnitude;
    int32_t position_offset; /* learned positions: table row of position 0 (opt: 2) */
    float attn_scale;        /* factor of scores; 0: 1 / sqrt(d_head) */
    float attn_cap;  /* a score s becomes cap * tanh(s / cap) (gemma2); 0: it stays */
    bool attn_sinks; /* heads have a score that only enters the sum (attention_rule) */
    bool v_norm;     /* RMS norm of each head of V, without weights */
    bool v_is_k;     /* in layers without the window, W_v is W_k */
    bool out_scaled; /* each layer's result is multiplied by a number of its own */
    /* W_q has rows for a gate, too: attention's result is multiplied by its sigmoid. */
    bool attn_gated;
    /* A token also sees those behind it, so the model makes embeddings alone (attention_rule). */
    bool both_ways;
    /* Number of tokens that a token sees, itself included; if it sees both ways, to either side.
     * 0: it sees all. */
    int32_t sliding_window;
    struct layer_set windowed; /* the layers with the window; empty if there is none */
    /* The base of rotations in layers with the window, without rope_scaling (gemma3); 0: they
     * rotate like the other layers. */
    double rope_local_theta;
    bool rope_local_only; /* layers without the window do not rotate (cohere2, granite 4) */
    /* The query at position p is multiplied by 1 + query_growth * log(1 + n), where n is p /
     * query_ctx, rounded down (ministral3, as in Llama 4); 0: it stays */
    float query_growth;
    int32_t query_ctx;

    /* Layers that have a recurrent state in place of attention, and their rule (ops.h, struct
     * delta_rule); all 0: there are none. */
    struct layer_set recurrent;
    struct recurrence {
        int32_t kind;     /* enum delta_kind */
        int32_t n_k, n_v; /* heads of Q and of K; heads of V (Mamba-2: groups; heads) */
        int32_t d_k, d_v;
        int32_t n_conv;
        /* Order of the heads of V (ops.h, struct delta_rule): GGUF files of qwen3_5 have them so,
         * and their blocks of 256 weights, which span heads, stay whole. */
        bool tiled;
        /* qwen3_next: W of q, k, v and that of z are two tensors, as in GGUF files. */
        bool is_split;
    } recurrence;

    /* Embedding and head. */
    float embed_scale; /* factor for embedding rows (gemma: sqrt(d)); else 1 */
    bool tie_word_embeddings;
    /* The files of a model for embeddings have no output head. The embedding table stands in for it
     * (tie_word_embeddings), and its logits mean nothing. */
    bool has_no_head;
    bool head_bias;    /* bias on the output head (phi) */
    float logit_scale; /* factor of logits (granite); else 1 */
    float logit_cap;   /* a logit becomes cap * tanh(logit / cap) (gemma2); 0: it stays */

    /* Tokens that begin and end a text. Any of eos_ids ends generation, bos_id does not.  Opening a
     * model adds the tokens that its tokenizer knows as ends (tokenizer_ends). */
    int32_t bos_id; /* -1: the model has no BOS */
    int32_t n_eos;
    int32_t eos_ids[CONFIG_MAX_EOS];

    enum pooling pooling;
    /* Linear layers behind the pooling: their number, and the width of each one's result. */
    int32_t n_behind;
    int32_t dense[CONFIG_MAX_DENSE];
};

/* Reads the metadata of a GGUF file, or DIR/config.json.  For a folder, eos ids of
 * DIR/generation_config.json replace config.json's if that file exists, as in transformers.
 * Returns -ENOENT if DIR has no config.json.  On an error *out is undefined, and err names file
 * and field. */
int config_load(struct model_config *out, const char *source, struct err *err);

/* Returns, as a path in the model's folder, the file with the weight of linear layer i behind the
 * pooling. NULL: modules.json does not name it. The caller frees it. */
char *config_dense_path(const char *dir, int i);

/* config_parse reads a config.json in memory.  config_parse_generation reads a
 * generation_config.json, whose eos ids replace those of *io.  The bytes are not kept. `file` is
 * the name in messages. */
int config_parse(struct model_config *out, const void *bytes, size_t n, const char *file,
                 struct err *err);
int config_parse_generation(struct model_config *io, const void *bytes, size_t n,
                            const char *file, struct err *err);

/* Returns the config.json text of a config, from which config_parse makes an equal config.  The
 * caller frees it. */
char *config_write(const struct model_config *c);

/* Returns, as text, the fields that determine the bits of a hidden state, K or V.  Two configs with
 * equal text have interchangeable states.  EOS ids and the maximum context are not among these
 * fields. The caller frees it. */
char *config_state_text(const struct model_config *c);

/* LongRoPE: chooses the factors of rope_scaling by max_ctx, the context that is configured.
 * (transformers chooses by the present length, so its earlier keys may not fit its later ones.) */
void config_fit_context(struct model_config *c, int32_t max_ctx);

/* Sets *out to a named shape: the sizes of a real model, or a shape for benchmarks and tests, such
 * as bench-220m.  Returns ERR_NOT_FOUND for an unknown name; err then names the known ones. */
int config_shape(struct model_config *out, const char *name, struct err *err);
/* Returns the i-th name, or NULL after the last. The strings are static. */
const char *config_shape_name(int i);

/* Returns how many tokens a token sees in layer l, counted as in sliding_window; 0: all. */
static inline int32_t config_window(const struct model_config *c, int l)
{
    return layer_set_has(&c->windowed, l) ? c->sliding_window : 0;
}

/* Returns the number of K/V heads of layer l, and the width of its heads. */
static inline int32_t config_kv_heads(const struct model_config *c, int l)
{
    return c->local_kv_heads > 0 && layer_set_has(&c->windowed, l) ? c->local_kv_heads
                                                                   : c->n_kv_heads;
}
static inline int32_t config_d_head(const struct model_config *c, int l)
{
    return c->local_d_head > 0 && layer_set_has(&c->windowed, l) ? c->local_d_head
                                                                 : c->d_head;
}
/* Returns the width of K, and of V, in the layer where they are widest. */
static inline int32_t config_most_kv_dim(const struct model_config *c)
{
    int32_t n = c->n_kv_heads * c->d_head, local = c->local_kv_heads * c->local_d_head;
    return n > local ? n : local;
}
/* Return whether attention is latent; the width of its latent; the width of all queries. */
static inline bool config_is_latent(const struct model_config *c)
{
    return c->latent.d_nope > 0;
}
static inline int32_t config_kv_rank(const struct model_config *c)
{
    return c->d_head - c->d_rope;
}
static inline int32_t config_latent_q_dim(const struct model_config *c)
{
    return c->n_heads * (c->latent.d_nope + c->d_rope);
}
/* Returns the numbers of K and V of a token in layer l as they are saved: V alone where it is K. */
static inline int32_t config_kv_width(const struct model_config *c, int l)
{
    return (config_is_latent(c) ? 1 : 2) * config_kv_heads(c, l) * config_d_head(c, l);
}
/* Returns how many layers have K and V, or a state, of their own: the first ones. */
static inline int config_n_keeping(const struct model_config *c)
{
    return c->n_layers - c->n_reading;
}
/* Returns the layer whose K and V layer l reads. */
static inline int config_kv_layer(const struct model_config *c, int l)
{
    int of = l < config_n_keeping(c) ? l : config_n_keeping(c) - 1;
    while (of > 0 && layer_set_has(&c->windowed, of) != layer_set_has(&c->windowed, l))
        of--;
    return of;
}
/* Returns the width of the hidden layer of layer l's MLP, or of one of its experts. */
static inline int32_t config_ffn(const struct model_config *c, int l)
{
    return c->wide_reading && l >= config_n_keeping(c) ? 2 * c->n_ffn : c->n_ffn;
}

/* Returns whether layer l is recurrent; whether any layer is. */
static inline bool config_is_recurrent(const struct model_config *c, int l)
{
    return layer_set_has(&c->recurrent, l);
}
static inline bool config_is_hybrid(const struct model_config *c)
{
    return c->recurrence.n_v > 0;
}

/* Returns the length of the model's embeddings. */
static inline int32_t config_embedding_width(const struct model_config *c)
{
    return c->n_behind > 0 ? c->dense[c->n_behind - 1] : c->n_embd;
}

/* Returns whether layer l has experts. */
static inline bool config_has_experts(const struct model_config *c, int l)
{
    return c->n_experts > 0 && l >= c->n_dense_layers;
}

/* Returns whether this id is one of the model's EOS ids. */
bool config_is_eos(const struct model_config *c, int32_t id);
/* Adds an EOS id. An id of -1 and a known id change nothing. */
int config_add_eos(struct model_config *c, int64_t id, struct err *err);

/* Returns the number of parameters, as the tensors hold them (tied embeddings count once). */
int64_t config_params(const struct model_config *c);

/* pooling_name returns "none", "mean", "cls", "last", "rank" or "other". pooling_of_name returns
 * the pooling with the given name. It returns POOLING_OTHER for an unknown name. */
const char *pooling_name(enum pooling p);
enum pooling pooling_of_name(const char *name);
const char *family_name(enum model_family f); /* "llama": config.json's model_type */
/* Gives the name and architecture of family i: "llama", "LlamaForCausalLM". Returns false after the
 * last. */
bool family_at(int i, const char **name, const char **architecture);
/* Returns the families' names in GGUF files, as a list in words. */
const char *config_gguf_families(void);
int weight_type_bytes(enum weight_type t); /* WEIGHT_UNSPECIFIED counts as f32 */

/* The parts of tokenizer_config.json and special_tokens_map.json that concern texts.  It owns its
 * strings; NULL: the files do not say. */
struct tokenizer_config {
    char *bos_token;
    char *eos_token;
    char *unk_token;
    char *chat_template; /* Jinja source; from chat_template.jinja if that file exists */
    char *model_name;    /* the name that a GGUF file gives to its model; NULL: none */
    char *tool_template; /* the template named tool_use, for requests with tools */
    /* named tokens with their texts ("pad_token", "<pad>"), for templates */
    struct tokenizer_config_name {
        char *key, *text;
    } * names;
    size_t n_names;
    int add_bos_token; /* 1 or 0; -1: the file does not say */
    int add_eos_token;
    /* the file's added_tokens_decoder, by ascending id */
    struct tokenizer_config_added {
        char *text;
        int32_t id; /* -1: the tokenizer's own id for the text, or the next free one */
        bool special, lstrip, rstrip, normalized, single_word;
    } * added;
    size_t n_added;
    /* Special tokens, in the order in which transformers adds those that the tokenizer lacks.  The
     * first n_named have a name ("pad_token"). */
    struct tokenizer_config_added *special;
    size_t n_special, n_named;
};

/* tokenizer_config_load reads DIR/tokenizer_config.json, special_tokens_map.json and
 * chat_template.jinja; missing files give an empty config and 0.  tokenizer_config_parse reads only
 * the bytes of a tokenizer_config.json.  For GGUF files the tokenizer fills the struct itself.
 * Call deinit also after an error. */
int tokenizer_config_load(struct tokenizer_config *out, const char *dir, struct err *err);
int tokenizer_config_parse(struct tokenizer_config *out, const void *bytes, size_t n,
                           const char *file, struct err *err);
/* Adds a named token; both texts are copied. text NULL or empty: does nothing. */
void tokenizer_config_name(struct tokenizer_config *c, const char *key, const char *text);
void tokenizer_config_deinit(struct tokenizer_config *c);

#endif
