/* hcache.h - the public interface: a language model whose conversations are durable.
 *
 * The mental model.  A `struct hcache` is one model on one device, with an optional store of saved
 * state.  A request is a prompt and how to go on from it.  Whatever the store holds of the prompt's
 * prefix, found by content, is brought back instead of being computed again, by the mixture of
 * methods that is predicted to be fastest; what is computed new is saved while it is computed.  The
 * result is bit for bit that of a run without a store.
 *
 *     struct hcache_opts o = {.model = "DIR", .store = dirs, .n_store = 1};
 *     hcache_open(&o, &h, &err);
 *     hcache_encode(h, text, n_text, HCACHE_ADD_SPECIAL, &ids, &n, &err);
 *     struct hcache_request r = {.prompt = ids, .n_prompt = n, .max_tokens = 64};
 *     hcache_generate(h, &r, &res, &err);
 *     ...
 *     hcache_result_free(&res); hcache_free(ids); hcache_close(h);
 *
 * Functions return 0 or a negative code, with a message in *err.  One thread at a time may use a
 * struct hcache. */
#ifndef HCACHE_H
#define HCACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HCACHE_VERSION "0.1.0"

struct hcache;

struct hcache_err {
    int code; /* HCACHE_E_*, or -errno */
    char msg[508];
};

enum {
    HCACHE_E_FORMAT = -4001,      /* a file does not follow its format */
    HCACHE_E_UNSUPPORTED = -4002, /* understood, but not something this build does */
    HCACHE_E_MISMATCH = -4003,    /* two things that do not belong together */
    HCACHE_E_LIMIT = -4005,       /* a configured bound */
    HCACHE_E_USAGE = -4007,       /* the arguments cannot be used */
    HCACHE_E_BUSY = -4009,        /* the store is in use by another process */
};

struct hcache_opts {
    const char *model;  /* a Hugging Face folder, or "synth:SHAPE" */
    const char *device; /* "cpu" (default), "ref", "cuda" */
    const char *dtype;  /* state dtype: "f32", "bf16", "f16"; NULL: the checkpoint's */
    int threads;        /* 0: one per core */
    int max_context;    /* tokens; 0: the model's own */
    int max_sequences;  /* at once; 0: 1 */

    const char *const *store; /* directories, one per device; n_store 0: no store */
    int n_store;
    bool store_in_memory;          /* a store in DRAM instead; it ends with the process */
    uint64_t store_cap_bytes;      /* bound on saved state; 0: none */
    uint64_t throttle_bytes_per_s; /* slows the store's reads down, for experiments; 0: no */
    uint64_t save_buffer_bytes;    /* memory for state on its way to the store; 0: 256 MiB */
    uint64_t staging_bytes;        /* memory for state on its way back; 0: 64 MiB */

    /* One line at a time; NULL: stderr. */
    void (*warn)(void *arg, const char *text);
    void *warn_arg;
    bool verbose; /* prints how memory is laid out, through warn */
};

int hcache_open(const struct hcache_opts *o, struct hcache **out, struct hcache_err *err);
/* Flushes what is being saved. NULL is allowed. */
void hcache_close(struct hcache *h);

struct hcache_model_info {
    const char *family;
    const char *dtype;
    int n_layers, vocab_size, max_context;
    size_t hidden_bytes, kv_bytes; /* per token and layer */
    bool has_tokenizer;
};
void hcache_model_info(const struct hcache *h, struct hcache_model_info *out);

/* --- text ----------------------------------------------------------------------------------- */

enum {
    HCACHE_ADD_SPECIAL = 1,   /* BOS, as the model's tokenizer does */
    HCACHE_PARSE_SPECIAL = 2, /* "<|...|>" in the text are special tokens */
};

/* *ids is the caller's (hcache_free). Invalid UTF-8 is an error that names its offset. */
int hcache_encode(const struct hcache *h, const char *text, size_t n, unsigned flags,
                  int32_t **ids, int *n_ids, struct hcache_err *err);
/* *text is the caller's, with a final zero. */
int hcache_decode(const struct hcache *h, const int32_t *ids, int n, char **text, size_t *n_text,
                  struct hcache_err *err);
void hcache_free(void *p);

/* --- generation ----------------------------------------------------------------------------- */

struct hcache_request {
    const int32_t *prompt;
    int n_prompt;
    int max_tokens;
    bool ignore_eos;
    float temperature; /* 0: greedy */
    float top_p;       /* 0 counts as 1: off */
    float min_p;
    int top_k;
    uint64_t seed;
    const char *salt; /* state is shared only among requests with equal salts */
    const char *save; /* "auto", "hidden", "kv", "both", "none"; or a letter per layer: H, K, B, - */
    const char *plan; /* "auto", "hidden", "kv", "recompute", "rN,hN,kN", or a letter per layer */
    /* Called for every token with its text (whole characters; may be empty); non-zero cancels, and
     * was the last call.  Else a last call with id -1 brings what was held back of an unfinished
     * character, if anything. */
    int (*on_token)(void *arg, int32_t id, const char *text, size_t n_text);
    void *arg;
};

struct hcache_plan {
    int recompute, hidden, kv; /* layers */
    char layers[260];          /* a letter per layer: RRHHKK; empty: nothing was restored */
    double predicted_ms;
    char reason[192];
};

struct hcache_timings {
    double load_ms, lookup_ms, plan_ms, restore_ms, prefill_ms, ttft_ms, decode_ms;
    double decode_tokens_per_s;
    double restore_io_ms, restore_compute_ms, restore_wait_ms;
};

struct hcache_result {
    int32_t *token_ids; /* generated */
    int n_tokens;
    char *text; /* NULL where the model has no tokenizer */
    size_t n_text;
    const char *finish; /* "stop", "length", "cancelled" */
    int prompt_tokens, cached_tokens;
    int64_t committed_tokens; /* durable in the store at the end */
    uint64_t logits_digest;   /* over the f32 logits of every generated position */
    uint64_t restored_bytes;
    char miss[200]; /* why not more was restored */
    struct hcache_plan plan;
    struct hcache_timings timings;
};

/* Runs one request to its end, and waits until what it saved is durable. */
int hcache_generate(struct hcache *h, const struct hcache_request *r, struct hcache_result *out,
                    struct hcache_err *err);
void hcache_result_free(struct hcache_result *r);

#endif
