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
 * A server starts the engine's own thread instead (hcache_serve_start) and submits requests from
 * any thread; each gets a ticket that is read as tokens arrive.
 *
 * Functions return 0 or a negative code, with a message in *err.  Until hcache_serve_start one
 * thread at a time may use a struct hcache; from then until hcache_serve_stop every function may
 * be called from any thread, but for hcache_close.
 *
 * No signal is handled or blocked here.  A process that may run under a limit on file sizes
 * (ulimit -f) ignores SIGXFSZ: the store then meets a full disk. */
#ifndef HCACHE_H
#define HCACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HCACHE_VERSION "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif
/* The library exports these functions and nothing else. */
#pragma GCC visibility push(default)

struct hcache;
struct hcache_request;

struct hcache_err {
    int code; /* HCACHE_E_*, or -errno */
    char msg[508];
};

enum {
    HCACHE_E_FORMAT = -4001,      /* a file does not follow its format */
    HCACHE_E_UNSUPPORTED = -4002, /* understood, but not something this build does */
    HCACHE_E_MISMATCH = -4003,    /* two things that do not belong together */
    HCACHE_E_LIMIT = -4005,       /* a configured bound */
    HCACHE_E_NOT_FOUND = -4006,   /* the named thing does not exist */
    HCACHE_E_USAGE = -4007,       /* the arguments cannot be used */
    HCACHE_E_BUSY = -4009,        /* the store is in use by another process */
};

/* Ranks times stages, at most. */
enum { HCACHE_MAX_DEVICES = 16 };
/* As hcache_opts.dram_bytes. */
#define HCACHE_DRAM_AUTO UINT64_MAX

/* Tokens of one forward pass, at most. */
enum { HCACHE_MAX_BATCH_ROWS = 16384 };
/* Mini-batches of one step, at most. */
enum { HCACHE_MAX_MINI_BATCHES = 64 };

struct hcache_opts {
    const char
        *model; /* a Hugging Face folder, a GGUF file, a packed file, or "synth:SHAPE" */
    const char *device; /* "cpu" (default), "ref", "cuda" */
    const char *dtype;  /* state dtype: "f32", "bf16", "f16"; NULL: the checkpoint's */
    /* How matrices are held: "f32", "bf16", "q8" (8 bits with a scale per 32), "q4" (4 bits: a GGUF
     * file's as they are, or made from others); "auto": a file's 4-bit tensors as they are,
     * else the smallest of the others that is as good; "checkpoint" or NULL: in their own type,
     * quantised ones as "auto" says.  State of one kind is never used by another. */
    const char *weights;
    /* Memory for a packed model: "6G" for weights, KV cache and all buffers together; "auto": what
     * the machine has left; "50%": this share of the layers.  The layers that do not fit are read
     * from the file for each pass.  NULL: all weights stay in memory. */
    const char *weights_memory;
    int threads;           /* 0: one per core that it may use */
    int tensor_parallel;   /* ranks that share each layer; 0: 1 */
    int pipeline_parallel; /* stages that have a run of the layers each; 0: 1 */
    int batch_rows; /* tokens of one forward pass at most, 512 to 16384; 0: what suits the device */
    /* A step computes up to so many times batch_rows tokens: all of them pass one layer before any
     * passes the next, so weights that do not stay in memory are read once for all.  Steps take
     * longer: for jobs, not for people who wait.  0: 1. */
    int mini_batches;
    int max_context;     /* tokens; 0: the model's own */
    int64_t max_history; /* tokens of a prompt that is truncated, at most; 0: 16 contexts */
    /* Requests may be truncated: without a store, one in memory is made for twice the model's
     * window. It is counted in the memory plan, and all requests use it. */
    bool truncates;
    int max_sequences;  /* at once; 0: 1 */
    uint64_t kv_tokens; /* that the KV cache holds for all of them; 0: see docs/SERVER.md */
    bool no_reuse;      /* what is left in the KV cache is not used again */
    /* For jobs: contexts that have no room on the device have blocks on the host, which come
     * over the link in each layer of each step, as keys and values ("kv"), as activations
     * ("act"), or as a mixture ("auto", "paper"); see docs/RESTORATION.md, section 6.
     * "recompute", "off" or NULL: none do.  Not together with a store. */
    const char *cache_method;
    uint64_t host_bytes;       /* memory for those blocks; 0: none */
    uint64_t link_bytes_per_s; /* slows the link down, for experiments; 0: no */

    const char *const *store; /* directories, one per device; n_store 0: no store */
    int n_store;
    bool store_in_memory; /* a store in DRAM instead; it ends with the process */
    /* Where the store's disk fails (full, I/O errors, read-only) or permissions deny the store,
     * hcache_open succeeds without saving: saved state is used if the store can at least be read.
     * A folder that belongs to another user (-EPERM) is neither read nor written.
     * hcache_cache_stats says why nothing is saved. */
    bool store_optional;
    uint64_t
        store_cap_bytes; /* bound on all files of the store, or on saved state in memory; 0: none */
    /* Memory for copies of saved state, in front of the store's disk; 0: none;
     * HCACHE_DRAM_AUTO: some of what the machine has left, where such copies pay
     * (docs/PLACEMENT.md).  Nothing is lost with a copy.  Ignored where there is no disk:
     * without a store, and with one in DRAM. */
    uint64_t dram_bytes;
    /* A Redis in which several servers share saved state, behind the store:
     * "redis://[user:password@]host[:port][/db]", "rediss://..." over TLS; NULL: none.  Needs
     * a store.  See docs/CLUSTER.md. */
    const char *remote;
    /* PEM files, for rediss:// only.  Authorities that may have signed the Redis's
     * certificate; NULL: those of the system.  The certificate that this process
     * shows, and its key; NULL: none. */
    const char *remote_ca, *remote_cert, *remote_key;
    /* When state is written there: "always" or NULL: as soon as it is in the store; "idle":
     * when the request that made it has ended; "use": when a later request uses it. */
    const char *remote_write;
    int remote_timeout_s; /* a Redis that says nothing for so long is left; 0: 5 */
    int remote_ttl_s; /* there, it goes when nobody has fetched it for so long; 0: seven days */
    /* "on" or NULL: chunks of waiting requests are read ahead, into copies in DRAM where there are
     * any, else into the staging memory of restores, for the next two; "off": they are not. */
    const char *prefetch;
    /* Which state a full store or KV cache evicts first: "lru", "fifo", "lfu", "attentionstore" or
     * "ours"; NULL: the default (docs/PLACEMENT.md). */
    const char *policy;
    uint64_t
        /* on that of each salt, where hcache_cache_quota says no other; 0: none */
        salt_quota_bytes;
    uint64_t
        guarantee_bytes; /* bound on the guaranteed state of each salt; 0: none of its own */
    /* slows the store's reads down, for experiments; 0: no */
    uint64_t throttle_bytes_per_s;
    uint64_t save_buffer_bytes; /* memory for state on its way to the store; 0: 256 MiB */
    uint64_t staging_bytes;     /* memory for state on its way back; 0: 64 MiB */
    /* Reads from the store straight into a GPU's memory: "auto" (NULL: as well) where cuFile
     * can, "off", "on": an error where it cannot */
    const char *gpu_direct;
    /* For tests and comparisons; what each accepts: tensor/tensor.h, struct device_opts. NULL: the
     * default. */
    const char *isa, *checksums, *cuda_math, *cuda_graphs, *cuda_early, *cuda_ranks;

    /* One line at a time; NULL: stderr. */
    void (*warn)(void *arg, const char *text);
    void *warn_arg;
    bool verbose; /* prints how memory is laid out, through warn */

    /* Loading weights may take minutes. What these say is wrong is refused before. */
    bool needs_tokenizer; /* the prompts will be text */
    const struct hcache_request
        *ahead; /* a request to come: its plan and save; NULL: none */
};

int hcache_open(const struct hcache_opts *o, struct hcache **out, struct hcache_err *err);
/* Flushes what is being saved. NULL is allowed. */
void hcache_close(struct hcache *h);

enum { HCACHE_MAX_FILE_TYPES = 16 };

/* Strings live as long as the struct hcache. */
struct hcache_model_info {
    const char *family;
    const char *dtype;  /* of saved state */
    const char *format; /* "safetensors", "gguf", "packed" or "synth" */
    const char *held;   /* how matrices are held: "f32", "f16", "bf16", "q8", "q4" */
    int n_file_types;   /* element types in the files, and how many tensors have each */
    struct {
        const char *name; /* "Q4_1", "bf16" */
        int n_tensors;
    } file_types[HCACHE_MAX_FILE_TYPES];
    int n_layers, vocab_size, max_context;
    int64_t max_history;           /* tokens of a prompt that is truncated, at most */
    size_t hidden_bytes, kv_bytes; /* per token and layer */
    bool has_tokenizer, has_chat_template;
    bool has_tools; /* the template shows tools, and calls of its format are understood */
    int max_sequences;
    char fingerprint
        /* of its saved state, hexadecimal: model, weight format, dtype, backend's arithmetic */
        [65];
};
void hcache_model_info(const struct hcache *h, struct hcache_model_info *out);

/* --- text ----------------------------------------------------------------------------------- */

enum {
    HCACHE_ADD_SPECIAL = 1,   /* BOS, as the model's tokenizer does */
    HCACHE_PARSE_SPECIAL = 2, /* "<|...|>" in the text are special tokens */
    HCACHE_GUARDED = 4,       /* the text has guards: see hcache_chat_render_guarded */
};

/* *ids is the caller's (hcache_free). Invalid UTF-8 is an error that names its offset. */
int hcache_encode(const struct hcache *h, const char *text, size_t n, unsigned flags,
                  int32_t **ids, int *n_ids, struct hcache_err *err);
/* Returns the fewest tokens that the text can have, found by its size and without encoding it;
 * 0 where its size says nothing. */
int64_t hcache_least_tokens(const struct hcache *h, const char *text, size_t n);
/* *text is the caller's, with a final zero. */
int hcache_decode(const struct hcache *h, const int32_t *ids, int n, char **text,
                  size_t *n_text, struct hcache_err *err);
/* A conversation as the model's own chat template writes it, ready for an answer.  request: a JSON
 * object with messages and, if any, tools and chat_template_kwargs, as in OpenAI's API.  *text
 * is the caller's; encode it with HCACHE_PARSE_SPECIAL and nothing else.  HCACHE_E_UNSUPPORTED
 * where the model has no template; HCACHE_E_USAGE where the messages do not suit it. */
int hcache_chat_render(const struct hcache *h, const char *request, size_t n, char **text,
                       size_t *n_text, struct hcache_err *err);
/* The same for messages that others have written.  A special token that a message, a tool or a
 * document spells stays text: before it stands a guard, the byte HCACHE_GUARD, which no UTF-8
 * contains.  Encode with HCACHE_PARSE_SPECIAL | HCACHE_GUARDED.  Without special tokens in them the
 * text is the same. */
enum { HCACHE_GUARD = 0xFF };
int hcache_chat_render_guarded(const struct hcache *h, const char *request, size_t n,
                               char **text, size_t *n_text, struct hcache_err *err);
/* Either of the two for a conversation that is parsed already.  The values are those
 * of the program's own parser (src/format/json.h), borrowed for the call; NULL:
 * none.  Other programs give text. */
struct json;
struct hcache_chat {
    const struct json *messages, *tools, *kwargs;
    bool guarded;
};
int hcache_chat_render_parsed(const struct hcache *h, const struct hcache_chat *chat,
                              char **text, size_t *n_text, struct hcache_err *err);
/* A text that becomes part of such a prompt, an answer say, with guards before all of its special
 * tokens. *out is the caller's. */
void hcache_guard(const struct hcache *h, const char *text, size_t n, char **out,
                  size_t *n_out);
/* The tool calls in an answer, in the model's own format: *json is the text of an object with
 * content and tool_calls (name, arguments), the caller's.  False where there is none. */
bool hcache_chat_calls(const struct hcache *h, const char *text, size_t n, char **json);
/* How many bytes of an unfinished answer are text for certain, and not the beginning of a call. */
size_t hcache_chat_text_bytes(const struct hcache *h, const char *text, size_t n);
/* The bytes of one token, which may be part of a character: the model's memory; NULL: none. */
const char *hcache_token_bytes(const struct hcache *h, int32_t id, size_t *n);
void hcache_free(void *p);

/* --- generation ----------------------------------------------------------------------------- */

struct hcache_bias {
    int32_t id;
    float bias; /* added to the logit; -100..100 */
};
struct hcache_shaping {
    float
        frequency_penalty; /* for each time that a token occurs in the answer, -2..2; 0: off */
    float presence_penalty; /* where it occurs in the answer at all, -2..2; 0: off */
    float
        /* where it occurs in prompt or answer: a factor, 0.01..100; 0 or 1: off */
        repetition_penalty;
    const struct hcache_bias *bias; /* [n_bias], at most HCACHE_MAX_BIAS */
    int n_bias;
    const int32_t
        *stop_ids; /* these end the answer as EOS does; at most HCACHE_MAX_STOP_IDS */
    int n_stop_ids;
    int min_tokens; /* neither these nor EOS before the answer has so many tokens */
};

/* How a context goes on that outgrows its window of C tokens: docs/TRUNCATION.md. */
struct hcache_truncation {
    double
        ratio; /* share of C that is dropped at once, above 0 and below 1; 0: not truncated */
    int keep;    /* first tokens that are never dropped, a multiple of 64; 0: 64 */
    int context; /* C, rounded down to a multiple of 64; 0: the model's own context */
};
/* "R", "R,keep=K", "R,keep=K,context=C" in any order, or "off".  HCACHE_E_USAGE
 * names what is wrong. */
int hcache_truncation_parse(const char *text, struct hcache_truncation *out,
                            struct hcache_err *err);
/* Whether this model and this KV cache can do it: HCACHE_E_USAGE with the numbers,
 * HCACHE_E_UNSUPPORTED with the reason.  *step (may be NULL): tokens that are dropped at once. */
int hcache_truncation_check(const struct hcache *h, const struct hcache_truncation *t,
                            int *step, struct hcache_err *err);

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
    /* the text ends before the first of these; needs a tokenizer */
    const char *const *stop;
    int n_stop;    /* at most HCACHE_MAX_STOP */
    bool logprobs; /* of every generated token, from the raw logits; see hcache_delta */
    int n_top;     /* and of the likeliest tokens, 0..HCACHE_MAX_TOP */
    bool digest;   /* result.logits_digest is wanted: it reads all logits once more */
    /* What changes the logits before a token is chosen; NULL: nothing. logprobs are
     * the raw ones'. */
    const struct hcache_shaping *shaping;
    struct hcache_truncation truncation;
    const char *salt; /* state is shared only among requests with equal salts */
    int priority;     /* lower is earlier, -HCACHE_MAX_PRIORITY..HCACHE_MAX_PRIORITY */
    int timeout_ms;   /* after its submission it ends, with finish "timeout"; 0: never */
    /* What is known of the next use of its state; it decides how long a full store keeps it under
     * the policy "ours". */
    int turn;              /* of its conversation, from 1; 0: not known */
    bool may_call_tools;   /* its answer may be a tool call, whose result comes back soon */
    int expect_reuse_in_s; /* the time until it is probably used again; 0: not known */
    /* The saved state that it makes or uses expires when nobody has used it for so long; 0: it does
     * not.  State that several requests use has the longest of their times. */
    int cache_ttl_s; /* at most HCACHE_MAX_CACHE_TTL_S */
    bool
        durable; /* the end waits until what was saved is durable; hcache_generate always does */
    /* "auto", "hidden", "kv", "both", "none"; or a letter per layer: H, K, B, - */
    const char *save;
    /* "auto", "hidden", "kv", "recompute", "rN,hN,kN", or a letter per layer */
    const char *plan;
    /* A forced plan (any but auto) uses the records that the store has, and computes the rest;
     * hcache_plan.deviation says what differs.  With plan_strict that is an error instead. */
    bool plan_strict;
    /* hcache_generate only.  Called for every token with its text (whole characters; may be empty);
     * non-zero cancels, and was the last call.  Else a last call with id -1 brings what was
     * held back of an unfinished character or a possible stop string, if anything. */
    int (*on_token)(void *arg, int32_t id, const char *text, size_t n_text);
    /* hcache_generate only.  Called when more of the prompt's tokens have their state, restored or
     * computed: n_done of them by now. */
    void (*on_prompt)(void *arg, int n_done);
    /* hcache_generate only.  Asked between the engine's steps, also while the prompt's state is
     * restored or computed; true cancels.  NULL: not asked. */
    bool (*is_cancelled)(void *arg);
    /* hcache_submit only.  There is something to read, or (ended) it was the last.  Called on the
     * engine's thread with its lock held: it must not wait, nor call back into this interface. */
    void (*notify)(void *arg, bool ended);
    void *arg;
};

enum {
    HCACHE_MAX_STOP = 16,
    HCACHE_MAX_STOP_BYTES = 256, /* of each */
    HCACHE_MAX_TOP = 20,
    HCACHE_MAX_BIAS = 1024,
    HCACHE_MAX_STOP_IDS = 64,
    HCACHE_MAX_PRIORITY = 100,
    HCACHE_MAX_TIMEOUT_MS = 86400000,
    HCACHE_MAX_CACHE_TTL_S = 316224000, /* ten years */
};

struct hcache_plan {
    int recompute, hidden, kv; /* layers */
    char layers[260];          /* a letter per layer: RRHHKK; empty: nothing was restored */
    double predicted_ms;
    /* Why the restore took less than half or more than twice as long: "faster", "reads", "compute",
     * "shared" (it waited for other work), "lost" (chunks could not be read); empty: it did not. */
    char surprise[16];
    char reason[192];
    /* How a forced plan was changed, and why: records that it wants are missing, or chunks
     * could not be read.  Empty: it was carried out as it was forced, or nothing was forced. */
    char deviation[192];
};

struct hcache_timings {
    double load_ms, queue_ms, lookup_ms, plan_ms, restore_ms, prefill_ms, decode_ms;
    double ttft_ms; /* queueing, restoration, prefill: all of it */
    double decode_tokens_per_s;
    double restore_io_ms, restore_compute_ms, restore_wait_ms;
    double
        fused_ms; /* compute of new tokens inside the restore: part of restore_ms and prefill_ms */
    double
        bubble; /* idle share of the busier lane, 0..1, over the restore and what was fused in it */
};

/* One piece of work of a restore, on one of its two lanes. */
struct hcache_span {
    float start_ms, end_ms; /* since the restore began */
    int16_t layer;
    char method; /* R recomputed, H hidden states, K keys and values */
    bool is_io;  /* the I/O lane; else compute */
};
struct hcache_lanes {
    struct hcache_span *span; /* by start; NULL: not known */
    int n;
    double total_ms; /* until the last layer was back */
};

struct hcache_result {
    int32_t *token_ids; /* generated */
    int n_tokens;
    char *text; /* NULL where the model has no tokenizer */
    size_t n_text;
    /* "stop", "length", "cancelled", "timeout": with nothing generated, that is
     * -ETIMEDOUT instead */
    const char *finish;
    int prompt_tokens, cached_tokens;
    int device_tokens;         /* of the cached ones: they were still on the device */
    int n_preempted;           /* times that it made room for others, and came back */
    int64_t committed_tokens;  /* durable in the store at the end */
    int64_t truncated_tokens;  /* dropped from the context: not seen any more at the end */
    int64_t recomputed_tokens; /* that this request had computed before */
    struct {
        int context, step, keep; /* C, S, K; 0: the context is not truncated */
        int steps;               /* times that the window moved */
        double stall_ms;         /* until the moved state was back, all together */
    } truncation;
    uint64_t
        logits_digest; /* over the f32 logits of every generated position; 0: not asked for */
    uint64_t restored_bytes;
    uint64_t
        restored_dram_bytes; /* of these: from copies in DRAM (hcache_opts.dram_bytes) */
    int dram_tokens;         /* of the cached ones: they came from such copies alone */
    /* of restored_bytes: read ahead of the request's place (hcache_opts.prefetch) */
    uint64_t restored_staged_bytes;
    int remote_tokens; /* fetched from the remote into the store for this request */
    char miss[200];    /* why not more was restored */
    const char *
        save_stopped; /* why saving ended early, and what to do; NULL: it did not. Static */
    struct hcache_plan plan;
    struct hcache_timings timings;
    const char
        *tier; /* cached tokens came from here, where not from the device: "dram", "disk",
                         "dram+disk"; NULL: there are none */
    struct hcache_lanes predicted, measured;
};

/* Runs one request to its end, and waits until what it saved is durable. */
int hcache_generate(struct hcache *h, const struct hcache_request *r,
                    struct hcache_result *out, struct hcache_err *err);
void hcache_result_free(struct hcache_result *r);

/* --- control of saved state ---------------------------------------------------------------------
 *
 * State is stored in chunks of 64 tokens, each named by everything before it.  Without
 * a store these functions find nothing, and those that can fail are
 * HCACHE_E_UNSUPPORTED.  They wait for the disk. */

/* The keys of what may be stored of these tokens under a salt (NULL: none): of the n / 64 full
 * chunks in their order, then of a last unfinished one, with the last token and without it.
 * keys [n / 64 + 2]; returns how many. */
int hcache_chunk_keys(const struct hcache *h, const int32_t *ids, int n, const char *salt,
                      uint8_t (*keys)[32]);

/* The same of a context that is truncated with these numbers (hcache_result.truncation);
 * context 0: of one that is not. */
int hcache_truncated_keys(const struct hcache *h, int context, int step, int keep,
                          const int32_t *ids, int n, const char *salt, uint8_t (*keys)[32]);

/* A context whose state is looked up, pinned or erased. */
struct hcache_context {
    const int32_t *ids;
    int n;
    const char *salt; /* NULL: none */
    struct hcache_truncation
        truncation; /* as its requests have it; ratio 0: not truncated */
};

/* Of a truncated context all counts but truncated_tokens are about what its last token sees. */
struct hcache_found {
    int truncated_tokens; /* that it sees no more */
    /* in full chunks that a restore could use: the last token is not among them */
    int wanted_tokens;
    int stored_tokens; /* of these, from the beginning on without a gap */
    char layers[260];  /* what all of these have of each layer: H, K, B (both), - */
    const char *tier;  /* where: "dram", "disk"; NULL: there is no store */
    char why[200];     /* why not more */
};
int hcache_cache_lookup(struct hcache *h, const struct hcache_context *c,
                        struct hcache_found *out, struct hcache_err *err);

/* Keeps chunks from being evicted until then (seconds since 1970; the past ends a pin), whether
 * they are stored yet or not; across restarts.  A pin is a preference, the caps are bounds. */
int hcache_cache_pin(struct hcache *h, uint8_t (*keys)[32], int n, int64_t until_wall_s,
                     struct hcache_err *err);

/* The same for what the last token of a context sees: *n_tokens of it. */
int hcache_cache_pin_context(struct hcache *h, const struct hcache_context *c,
                             int64_t until_wall_s, int *n_tokens, struct hcache_err *err);

/* Guarantees that the state that the last token of a context sees stays until then: no cap, quota,
 * idle time or full disk evicts it, and a restart does not end that. Refused where it cannot be
 * promised, with the sums in the message and in *out: HCACHE_E_NOT_FOUND where not all is stored,
 * HCACHE_E_LIMIT where too much would be guaranteed. It ends with its time, with a pin that ends in
 * the past, or when the state is erased. */
struct hcache_guarantee {
    int n_tokens;                          /* in full chunks */
    uint64_t n_bytes;                      /* that this guarantee adds */
    uint64_t all_bytes, limit_bytes;       /* guaranteed in the store; the bound, 0: none */
    uint64_t salt_bytes, salt_limit_bytes; /* likewise of the salt */
};
int hcache_cache_guarantee(struct hcache *h, const struct hcache_context *c,
                           int64_t until_wall_s, struct hcache_guarantee *out,
                           struct hcache_err *err);

struct hcache_erased {
    int64_t n_chunks, n_bytes; /* gone, and overwritten */
    int64_t n_shared;          /* stay: others continue them */
    int64_t n_busy;            /* in use: found no more, and gone when they are not */
    /* Where the call fails because the disk is full (-ENOSPC), or because the store
     * cannot be written until it is opened again: chunks that are found no more, and
     * whose bytes are still in the files. */
    int64_t n_owed;
    /* Where it cannot be written: this erasure is written down, and the next open that
     * can write does it.  False: it is forgotten when h is closed, unless
     * hcache_cache_settle can write it down before. */
    int is_noted;
    char not_noted_because[200];
};
/* Erases the chunks keys[0..n), one chain in its order, as far as nothing else continues them. */
int hcache_cache_erase(struct hcache *h, uint8_t (*keys)[32], int n,
                       struct hcache_erased *out, struct hcache_err *err);
/* Erases all state of a context, also of tokens that it sees no more, as far as
 * nothing else continues it. */
int hcache_cache_erase_context(struct hcache *h, const struct hcache_context *c,
                               struct hcache_erased *out, struct hcache_err *err);
/* Erases what contains a whole text of keys[]: the keys of whole texts (hcache_chunk_keys), in any
 * order.  An answer that was interrupted, for example, has saved chunks that nobody knows the
 * keys of.  For texts that are to be forgotten, before hcache_cache_erase. */
int hcache_cache_forget(struct hcache *h, uint8_t (*keys)[32], int n,
                        struct hcache_erased *out, struct hcache_err *err);
/* Erases everything that is stored under a salt. */
int hcache_cache_clear(struct hcache *h, const char *salt, struct hcache_erased *out,
                       struct hcache_err *err);
/* Call it every few seconds.  Retries erasures that a full or unwritable disk has delayed, and
 * looks for damaged headers of chunks that were restored. */
int hcache_cache_settle(struct hcache *h, struct hcache_err *err);
/* Evicts chunks that nobody has used for idle_s seconds; *n_chunks says how many.  Pinned
 * chunks and those in use stay, with all that they continue.  Evicting is not erasing:
 * hcache_cache_erase is for what must leave no remains. */
int hcache_cache_evict_idle(struct hcache *h, int64_t idle_s, uint64_t *n_chunks,
                            struct hcache_err *err);
/* Evicts the state whose time to live has passed (hcache_request.cache_ttl_s); *n_chunks says how
 * many chunks. hcache_open does so, too. */
int hcache_cache_evict_expired(struct hcache *h, uint64_t *n_chunks,
                               struct hcache_err *err);
/* Returns when all that was computed before is durable, or has failed. */
void hcache_cache_flush(struct hcache *h);

/* Bounds what is stored under a salt, until the end of the process; 0: no bound. */
void hcache_cache_quota(struct hcache *h, const char *salt, uint64_t bytes);

/* Counts by name; the names are static. */
enum { HCACHE_MAX_COUNTS = 16 };
struct hcache_counts {
    int n;
    struct hcache_count {
        const char *name;
        uint64_t count;
    } at[HCACHE_MAX_COUNTS];
};

/* Copies of saved state in DRAM, in front of the store's disk. */
struct hcache_dram {
    uint64_t cap_bytes; /* 0: there are none, and all else is 0 */
    uint64_t used_bytes, n_chunks;
    /* Since the start: */
    uint64_t n_written; /* copies that were made while state was written */
    uint64_t n_promoted,
        promoted_bytes;  /* copies that were read from the disk ahead of requests */
    uint64_t n_unused;   /* of these: dropped before a request read them */
    uint64_t n_demoted;  /* chunks whose copies were dropped to keep room */
    uint64_t n_full;     /* copies that were not made for want of room */
    uint64_t read_bytes; /* read from copies by restores */
};

/* The shared tier (hcache_opts.remote). */
struct hcache_remote {
    char url[300]; /* without the password; "": there is none, and all else is 0 */
    int is_up;     /* it answers */
    char why_down[160];
    /* Since the start: */
    uint64_t n_fetches;     /* look-ups that asked it for chunks */
    uint64_t n_round_trips; /* times that a fetch asked and had nothing else under way */
    uint64_t n_fetched, fetched_bytes; /* chunks that came, right in every byte */
    struct hcache_counts misses; /* look-ups that got less than they asked for, by why */
    uint64_t n_written, written_bytes; /* chunks */
    uint64_t n_known;                  /* chunks that it had already */
    uint64_t n_dropped;                /* chunks not written: the queue was full, */
    uint64_t n_gone;                   /* they had left the store, */
    uint64_t n_refused;                /* or the remote refused them: it is full */
    uint64_t n_failures;               /* of its connections */
    uint64_t n_queued;                 /* chunks that wait to be written now */
    /* Erasures: of this server, that wait to be published; all that this server has read of; as
     * far as every running server has read; and the number of these servers. */
    uint64_t n_unpublished, n_erasures, n_erasures_everywhere, n_servers;
    double latency_s, bytes_per_s; /* as fetches have found it; 0: not known */
};

struct hcache_cache_stats {
    const char *tier; /* NULL: there is no store, and all else is 0 */
    uint64_t n_chunks, used_bytes, cap_bytes, file_bytes, pending_bytes, n_pins;
    uint64_t
        /* bound on all files of the store, which leaves cap_bytes for used_bytes; 0: none */
        files_cap_bytes;
    uint64_t n_expiring;       /* chunks with a time to live */
    uint64_t n_guarantees;     /* of the pins */
    uint64_t guaranteed_bytes; /* of used_bytes: never evicted */
    uint64_t guarantee_limit_bytes,
        n_guarantees_broken; /* by damage, since it was opened */
    /* since it was opened */
    uint64_t n_hits, n_misses, n_evicted, n_corrupt, appended_bytes, read_bytes;
    struct hcache_counts misses, evictions; /* by reason */
    int saving_fault;     /* 0, or the error for which nothing is saved now */
    char saving_why[200]; /* its message, or "" */
    struct hcache_dram dram;
    struct hcache_remote remote;
    /* of the salt */
    uint64_t salt_chunks, salt_bytes, salt_quota_bytes, salt_guaranteed_bytes;
};
void hcache_cache_stats(struct hcache *h, const char *salt, struct hcache_cache_stats *out);

/* --- serving: many requests at once -------------------------------------------------------------
 *
 *     submit --> [FIFO, at most max_queue] --> engine's thread, at most max_sequences at once
 *                                                 |  notify
 *     hcache_ticket_read <------------------------+   ... ended --> hcache_ticket_result
 *
 * A ticket keeps what was generated until it is read, however slow its reader: its bound is
 * max_tokens, so the engine never waits for anybody. */

/* Starts the engine's thread. max_queue: requests that may wait; 0: 64. */
int hcache_serve_start(struct hcache *h, int max_queue, struct hcache_err *err);
/* Refuses new requests, cancels those that wait or run, makes what was saved durable, and ends the
 * thread.  Every ticket has ended then.  Does nothing where no thread was started.  Afterwards
 * hcache_generate works as before hcache_serve_start, on the caller's thread; hcache_submit is
 * refused until hcache_serve_start is called again. */
void hcache_serve_stop(struct hcache *h);

struct hcache_ticket; /* one request */

/* Copies all it needs of *r.  HCACHE_E_LIMIT where the queue is full or the service is stopping:
 * later it may work.  A prompt that can never fit is told by the result. */
int hcache_submit(struct hcache *h, const struct hcache_request *r,
                  struct hcache_ticket **out, struct hcache_err *err);

struct hcache_logprob {
    int32_t id;
    float logprob;
};

struct hcache_delta {
    const int32_t *ids; /* generated since the last read */
    int n_ids;
    /* [n_ids][1 + n_top]: the chosen token, then the likeliest; NULL where not asked for */
    const struct hcache_logprob *logprobs;
    const char *text; /* whole characters, no part of a stop string */
    size_t n_text;
    bool ended;        /* nothing will follow */
    int cached_tokens; /* of the prompt; 0 before the first token */
    int prompt_done;   /* tokens of the prompt that have their state; 0 without on_prompt */
};
/* Never waits.  *out points to the ticket's memory, until the next read.  One reader per ticket. */
void hcache_ticket_read(struct hcache_ticket *t, struct hcache_delta *out);
/* Waits for the end. The service must have been started. */
void hcache_ticket_wait(struct hcache_ticket *t);
/* The request ends within one step, with finish "cancelled". */
void hcache_ticket_cancel(struct hcache_ticket *t);
/* After the end: 0 with the result (the caller frees it), or the request's error.  Its
 * committed_tokens grow until the state is flushed; what is told is what is durable now. */
int hcache_ticket_result(struct hcache_ticket *t, struct hcache_result *out,
                         struct hcache_err *err);
/* Cancels what still runs.  After it returns notify is not called any more.  NULL is allowed. */
void hcache_ticket_free(struct hcache_ticket *t);

/* Counts since the start, and the state now. */
enum { HCACHE_HIST_BUCKETS = 24 };
struct hcache_hist {
    /* count[i]: values up to hcache_hist_bound_s(i), above the bound before; the
     * last: all others */
    uint64_t count[HCACHE_HIST_BUCKETS + 1];
    double sum_s;
};
double hcache_hist_bound_s(int i);

struct hcache_stats {
    int n_waiting, n_running;
    /* About how long a request submitted now would wait for a place: those before it, times the
     * time that requests lately held theirs. 0: hardly, or nothing is known yet. */
    double wait_s;
    uint64_t n_ended, n_cancelled, n_failed, n_refused, n_timed_out;
    uint64_t prompt_tokens, generated_tokens;
    uint64_t device_tokens;   /* of the prompts: were on the device */
    uint64_t restored_tokens; /* of the prompts: from the store */
    const char *tier;         /* where that is: "dram", "disk"; NULL: there is no store */
    uint64_t dram_tokens;     /* of restored_tokens: from copies in DRAM alone */
    uint64_t remote_tokens;   /* fetched from the remote into the store */
    struct hcache_dram dram;
    uint64_t computed_tokens; /* of the prompts */
    uint64_t restored_bytes;
    uint64_t n_restores,
        n_restores_recompute; /* with a plan; with a plan that recomputes layers */
    uint64_t layers_recompute, layers_hidden, layers_kv;
    uint64_t n_replanned; /* restores that changed kinds of records between layers */
    /* restores that read ahead of their requests' places; of these, those whose bytes were then
     * used */
    uint64_t n_staged, n_staged_used;
    double restore_predicted_s, restore_measured_s, restore_wait_s;
    uint64_t n_misses; /* requests of which not everything wanted was restored */
    /* sequences whose saving ended early: the writer fell behind; no memory for their tails; the
     * store's cap; the disk is full; what they continue was evicted, or could not
     * be read; the store failed */
    uint64_t shed_behind, shed_memory, shed_cap, shed_space, shed_parent, shed_tail,
        shed_fault;
    /* committed; of which partial ones; of which the store had these already */
    uint64_t saved_chunks, saved_tails, shared_chunks;
    uint64_t save_buffer_bytes,
        save_buffer_used_bytes;                   /* chunks in memory: the bound, and now */
    uint64_t n_preempted;                         /* sequences that made room for others */
    uint64_t recovered_tokens, recomputed_tokens; /* of those, when they came back */
    uint64_t n_stairs; /* times that a truncated context's window moved */
    double stairs_s;   /* from the end of a stair until its state had moved, all together */
    int kv_blocks, kv_blocks_free, kv_blocks_kept; /* of the device; kept: until wanted */
    uint64_t kv_blocks_evicted;
    /* Of jobs with blocks on the host: bytes that came over the link, and that went to the host. */
    uint64_t link_bytes, link_down_bytes;
    uint64_t weights_read_bytes; /* of layers that do not stay in memory */
    struct hcache_counts
        plans; /* restores by the methods of their plans: "kv+hidden" ... */
    struct hcache_counts
        surprises; /* restores whose prediction missed, by hcache_plan.surprise */
    /* Restores whose reads hung or crawled, by how they ended: "read"
     * (recomputation raced the reads, which ended first), "recomputed" (it ended
     * first), "left" (prefill computed the rest). */
    struct hcache_counts stalls;
    struct hcache_counts misses;                   /* of look-ups in the store, by why */
    struct hcache_counts evictions;                /* chunks, by why */
    uint64_t n_checksum_failures, n_read_failures; /* records that were not used */
    uint64_t store_bytes, store_cap_bytes, store_read_bytes, store_written_bytes;
    struct hcache_hist queue, ttft, tbt;
    struct hcache_hist restore, restore_predicted;
};
void hcache_stats(struct hcache *h, struct hcache_stats *out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
