/* hcache.h - the public interface: a language model whose conversations are durable.
 *
 * The mental model.  A `struct hcache` is one model on one device, with an optional store of saved
 * state.  A request is a prompt and the rules for generating from it.  The engine looks up the
 * prompt's prefix in the store by content.  It restores the state found there by the mixture of
 * methods that is predicted to be fastest, and computes the rest.  New state is saved while it is
 * computed.  The result is bit for bit that of a run without a store.
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
 * any thread.  Each request gets a ticket, from which the tokens are read as they arrive.
 *
 * Functions return 0 or a negative code, with a message in *err.  Before hcache_serve_start and
 * after hcache_serve_stop, only one thread at a time may use a struct hcache.  Between the two, any
 * thread may call any function except hcache_close.
 *
 * A request, a file or a full disk never ends the process of the library's host: what grows with
 * input asks for its memory first and returns the error. Two things do end it. A small allocation
 * that finds no memory, after the 8 MiB that hcache_open sets aside are spent, exits with status
 * 1. A bug that the library finds in itself aborts. hcache_on_end lets the host act before.
 *
 * The library neither handles nor blocks signals.  A process that may run under a limit on file
 * sizes (ulimit -f) must ignore SIGXFSZ; the store then treats the limit as a full disk. */
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
    int code; /* an HCACHE_E_ code, or -errno */
    char msg[508];
};

enum {
    HCACHE_E_FORMAT = -4001,      /* a file does not follow its format */
    HCACHE_E_UNSUPPORTED = -4002, /* valid input that this build does not support */
    HCACHE_E_MISMATCH = -4003,    /* two things that do not belong together */
    HCACHE_E_LIMIT = -4005,       /* a configured limit is exceeded */
    HCACHE_E_NOT_FOUND = -4006,   /* the named thing does not exist */
    HCACHE_E_USAGE = -4007,       /* the arguments cannot be used */
    HCACHE_E_BUSY = -4009,        /* the store is in use by another process */
};

/* Sets a function that is called once before the library ends the process (see above), on the
 * thread that met the fault. `why` is one line, which has gone to stderr. The function may end the
 * process in its own way; it may not call the library, and if it returns, the process ends. Call
 * it before hcache_open. */
void hcache_on_end(void (*hook)(void *arg, const char *why), void *arg);

/* Maximum number of devices: tensor_parallel times pipeline_parallel. */
enum { HCACHE_MAX_DEVICES = 16 };
/* Value of hcache_opts.dram_bytes that lets the program choose the size. */
#define HCACHE_DRAM_AUTO UINT64_MAX
/* bytes of hcache_opts.store_key */
#define HCACHE_STORE_KEY_BYTES 32

/* Maximum number of tokens in one forward pass. */
enum { HCACHE_MAX_BATCH_ROWS = 16384 };
/* Maximum number of tokens in the KV cache. */
enum { HCACHE_MAX_KV_TOKENS = INT32_MAX };
/* Maximum number of mini-batches in one step. */
enum { HCACHE_MAX_MINI_BATCHES = 64 };

struct hcache_opts {
    /* a Hugging Face folder, a GGUF file, a packed file, or "synth:SHAPE" */
    const char *model;
    const char *device; /* "cpu" (default), "ref", "cuda" */
    /* type of saved state: "f32", "bf16", "f16"; NULL: the checkpoint's */
    const char *dtype;
    /* Format in which weight matrices are held in memory:
     *
     *  - "f32", "bf16": floating point.
     *  - "q8": 8 bits, with one scale per 32 values.
     *  - "q4": 4 bits. A GGUF file's 4-bit tensors are used as they are; others are converted.
     *  - "bf16r": bf16; products round their activations to bf16 as well, which is fast with AMX.
     *  - "auto": measured: 4-bit tensors of the file as they are, or the smallest of "f32", "bf16"
     *    and "q8" that hardly changes the model's predictions.
     *  - "checkpoint" or NULL: the file's own type. Quantised tensors are held as the file has
     *    them; types without kernels become 8 bits. Nothing is measured.
     *
     * State that was computed with one format is never used with another. */
    const char *weights;
    /* Memory limit for a packed model. "6G": bytes for weights, KV cache and all buffers together;
     * "auto": the memory that the machine has left; "50%": this share of the layers.  Layers that
     * do not fit are read from the file for each pass.  NULL: all weights stay in memory. */
    const char *weights_memory;
    /* Keeps an image of a checkpoint's weights, as the CPU computes with them, below the user's
     * cache folder, and maps it at the next start; a server of 1B then starts in half the time.
     * Images take at most 32 GiB and a quarter of the free space.  While one is mapped, the
     * library handles SIGBUS for its addresses and passes others on. False: nothing is kept or
     * mapped. */
    bool images;
    int threads; /* number of compute threads; 0: one per usable core */
    /* Ranks that share each layer, and stages with a run of the layers each; 0: 1.  Each rank of
     * each stage is a process of mpirun, which the program hcache has; with other programs, more
     * than one are refused. */
    int tensor_parallel, pipeline_parallel;
    /* maximum tokens of one forward pass, 512 to 16384; 0: chosen for the device */
    int batch_rows;
    /* Number of mini-batches, of batch_rows tokens each, that one step may compute. All of them
     * pass one layer before any passes the next, so weights that do not stay in memory are read
     * once for all mini-batches. Steps take longer: use it for jobs, not for interactive requests.
     * 0: 1. */
    int mini_batches;
    int max_context;     /* maximum tokens of a context; 0: the model's own limit */
    int64_t max_history; /* maximum tokens of a prompt that is truncated; 0: 16 contexts */
    /* Regular expression: its matches are dropped by hcache_drop_system. NULL: none. */
    const char *drop_system;
    /* A Jinja template (text) that makes the prompts of chats instead of the model's own; NULL: the
     * model's. One that cannot be read fails hcache_open. */
    const char *chat_template;
    /* How an embedding is made of a text's tokens: "mean" averages all, "cls" takes the first, and
     * "last" the last. NULL: as the model's files say; if they say nothing, the model makes none. */
    const char *pooling;
    /* Requests may be truncated.  Without a store, hcache_open then creates a store in memory,
     * sized for twice the model's window.  It is counted in the memory plan, and all requests use
     * it. */
    bool truncates;
    int max_sequences; /* maximum number of sequences that run at once; 0: 1 */
    /* capacity of the KV cache in tokens, for all sequences together, at most
     * HCACHE_MAX_KV_TOKENS; 0: see docs/SERVER.md */
    uint64_t kv_tokens;
    bool no_reuse; /* no request reuses state that finished requests left in the KV cache */
    /* For jobs: contexts that do not fit on the device keep their blocks on the host. The blocks
     * cross the link in each layer of each step, as keys and values ("kv"), as activations ("act"),
     * or as a mixture ("auto", "paper"); see docs/RESTORATION.md, section 6. "recompute", "off" or
     * NULL: no blocks on the host. Blocks on the host cannot be combined with a store. */
    const char *cache_method;
    uint64_t host_bytes;       /* host memory for the blocks of cache_method; 0: none */
    uint64_t link_bytes_per_s; /* limits the link's speed, for experiments; 0: no limit */

    /* the store's directories [n_store], one per device; n_store 0: no store */
    const char *const *store;
    int n_store;
    bool store_in_memory; /* uses a store in DRAM instead, which ends with the process */
    /* hcache_open succeeds even if the store cannot be written (disk full, I/O errors, read-only,
     * permissions denied).  Saved state is used if the store can at least be read; nothing is
     * saved, and hcache_cache_stats gives the reason.  A folder that belongs to another user
     * (-EPERM) is neither read nor written. */
    bool store_optional;
    /* [HCACHE_STORE_KEY_BYTES] Secret with which saved state in `store` is encrypted; NULL: it is
     * not.  A store keeps what it was made with, and opens with the same secret only (SECURITY.md).
     * The bytes must outlive the struct hcache. */
    const unsigned char *store_key;
    /* limit on all files of the store, or on the size of a store in memory; 0: none */
    uint64_t store_cap_bytes;
    /* Memory for copies of saved state, in front of the store's disk.  0: none.  HCACHE_DRAM_AUTO:
     * a part of the machine's free memory, on machines where copies pay (docs/PLACEMENT.md).
     * Dropping a copy loses nothing.  Ignored without a store, and with a store in DRAM. */
    uint64_t dram_bytes;
    /* URL of a Redis that shares saved state between servers, behind the store:
     * "redis://[user:password@]host[:port][/db]", or "rediss://..." over TLS.  NULL: none.  It
     * requires a store.  See docs/CLUSTER.md. */
    const char *remote;
    /* PEM files, for rediss:// only. remote_ca: authorities that may have signed the Redis's
     * certificate; NULL: the system's authorities. remote_cert, remote_key: the certificate and key
     * that this process presents; NULL: none. */
    const char *remote_ca, *remote_cert, *remote_key;
    /* When state is written to the remote.  "always" or NULL: as soon as it is in the store;
     * "idle": when the request that made it has ended; "use": when a later request uses it. */
    const char *remote_write;
    /* seconds without an answer after which the Redis counts as down; 0: 5 seconds */
    int remote_timeout_s;
    /* seconds without a fetch after which the Redis drops state; 0: seven days */
    int remote_ttl_s;
    /* "on" or NULL: with DRAM copies, chunks of waiting requests are read ahead into them. "off":
     * nothing is read ahead. */
    const char *prefetch;
    /* Guesses of the next tokens, which are computed beside the token before them and count where
     * they are right; answers stay the same, bit for bit. "auto" or NULL: as many as make answers
     * faster, on a device whose memory is the host's. "off": none. A number, 1 to 15: so many in
     * each step for which the context proposes some, whether or not they make it faster. */
    const char *speculate;
    /* Rule that chooses which state a full store or KV cache evicts: "lru", "fifo", "lfu",
     * "attentionstore" or "ours"; NULL: the default (docs/PLACEMENT.md). */
    const char *policy;
    /* limit on each salt's saved state unless hcache_cache_quota sets another; 0: none */
    uint64_t salt_quota_bytes;
    /* limit on each salt's guaranteed state; 0: only the salt's own limit bounds it */
    uint64_t guarantee_bytes;
    /* limits the speed of the store's reads, for experiments; 0: no limit */
    uint64_t throttle_bytes_per_s;
    /* memory for state that waits to be written to the store; 0: 256 MiB */
    uint64_t save_buffer_bytes;
    uint64_t staging_bytes; /* size of the memory that restores read into; 0: 64 MiB */
    /* Direct reads from the store into GPU memory. "auto" or NULL: used if cuFile supports it.
     * "off": never used. "on": hcache_open fails if cuFile does not support it. */
    const char *gpu_direct;
    /* Settings for tests and comparisons; struct device_opts in tensor/tensor.h lists their values.
     * NULL: the default. */
    const char *isa, *checksums, *cuda_math, *cuda_graphs, *cuda_early;

    /* Receives warnings, one line per call; NULL: they go to stderr. */
    void (*warn)(void *arg, const char *text);
    void *warn_arg;
    bool verbose; /* prints the memory layout through warn */

    /* The next fields are checked before the weights are loaded, since loading may take minutes. */
    bool needs_tokenizer; /* hcache_open fails if the model has no tokenizer */
    /* a future request, whose plan and save are checked; NULL: none */
    const struct hcache_request *ahead;
    /* "on": saved state is packed without loss, to about two thirds of its bytes, of f32 to five
     * sixths. "auto": it is packed where it is restored as fast, by this machine's profile. "off" or
     * NULL: it is saved as it is. Every setting restores both. */
    const char *pack;
};

/* Opens the model and the store. *out is the caller's; end it with hcache_close. */
int hcache_open(const struct hcache_opts *o, struct hcache **out, struct hcache_err *err);
/* Makes all state that is being saved durable, then frees h. NULL is allowed. */
void hcache_close(struct hcache *h);

enum { HCACHE_MAX_FILE_TYPES = 16 };

/* Description of the model. The strings live as long as the struct hcache. */
struct hcache_model_info {
    const char *name;          /* the name in the metadata of a GGUF file; NULL: none */
    const char *chat_template; /* its text; NULL: none */
    const char *bos, *eos;     /* texts of these tokens; NULL: none, or no chat template */
    const char *family;
    const char *dtype;  /* type of saved state */
    const char *format; /* "safetensors", "gguf", "packed" or "synth" */
    /* format of the matrices in memory: "f32", "f16", "bf16", "q8", "q4", "bf16r" */
    const char *held;
    /* number of element types in the files; for each its name and number of tensors */
    int n_file_types;
    struct {
        const char *name; /* name of the type, such as "Q4_1" or "bf16" */
        int n_tensors;
    } file_types[HCACHE_MAX_FILE_TYPES];
    int n_layers, n_embd, vocab_size, max_context;
    int n_embedding; /* numbers of an embedding, if the model makes any */
    int64_t n_params;
    uint64_t weights_bytes;        /* in memory */
    int64_t max_history;           /* maximum tokens of a prompt that is truncated */
    size_t hidden_bytes, kv_bytes; /* bytes of saved state per token and layer */
    bool has_tokenizer, has_chat_template;
    bool has_tools; /* the model can be told of tools, and its calls can be read */
    /* The chat template shows no tools, or calls in an unknown form: a system message declares the
     * tools and the form of calls. */
    bool declares_tools;
    bool has_thoughts; /* the template knows thoughts */
    int max_sequences;
    /* fingerprint of the saved state (model, weight format, dtype, arithmetic), hexadecimal */
    char fingerprint[65];
    /* How embeddings are pooled: "mean", "cls", "last"; "rank": the model judges documents instead;
     * "other": in a way that is not supported; "none": the model makes no embeddings. */
    const char *pooling;
};
void hcache_model_info(const struct hcache *h, struct hcache_model_info *out);

/* What hcache_open did: its parts one after another, whose times add up to the whole. */
enum { HCACHE_MAX_START_PARTS = 24 };
struct hcache_start {
    int n_parts;
    struct {
        const char *name; /* static */
        double ms;
    } parts[HCACHE_MAX_START_PARTS];
    int64_t n_passes; /* forward passes: measurements, and the probe of the fingerprint */
    /* bytes of the weights that were hashed; 0: the hash was remembered, or a packed file has it */
    uint64_t hashed_bytes;
};
void hcache_start_info(const struct hcache *h, struct hcache_start *out);

/* --- text ----------------------------------------------------------------------------------- */

enum {
    HCACHE_ADD_SPECIAL = 1,   /* adds a BOS token if the model's tokenizer does */
    HCACHE_PARSE_SPECIAL = 2, /* "<|...|>" in the text becomes a special token */
    HCACHE_GUARDED = 4,       /* the text contains guards: see hcache_chat_render_guarded */
};

/* Converts a text to token ids. *ids is the caller's; free it with hcache_free. Invalid UTF-8 is an
 * error that names its offset. */
int hcache_encode(const struct hcache *h, const char *text, size_t n, unsigned flags,
                  int32_t **ids, int *n_ids, struct hcache_err *err);
/* Returns a lower bound on the number of tokens in the text, from its size and without encoding it;
 * 0 if the size gives no bound. */
int64_t hcache_least_tokens(const struct hcache *h, const char *text, size_t n);
/* Converts token ids to a text. *text is the caller's and ends with a zero byte that *n_text does
 * not count. */
int hcache_decode(const struct hcache *h, const int32_t *ids, int n, char **text,
                  size_t *n_text, struct hcache_err *err);
/* Renders a conversation with the model's own chat template, ready for an answer. request is a JSON
 * object with messages and optionally tools and chat_template_kwargs, as in OpenAI's API. *text is
 * the caller's; encode it with HCACHE_PARSE_SPECIAL and no other flag. Returns HCACHE_E_UNSUPPORTED
 * if the model has no template, and HCACHE_E_USAGE if the template refuses the messages. */
int hcache_chat_render(const struct hcache *h, const char *request, size_t n, char **text,
                       size_t *n_text, struct hcache_err *err);
/* Renders a conversation with messages from untrusted authors.  A special token that a message, a
 * tool or a document spells stays text: a guard precedes it, the byte HCACHE_GUARD, which never
 * occurs in UTF-8.  Encode the result with HCACHE_PARSE_SPECIAL | HCACHE_GUARDED.  Without such
 * spellings the text equals that of hcache_chat_render. */
enum { HCACHE_GUARD = 0xFF };
int hcache_chat_render_guarded(const struct hcache *h, const char *request, size_t n,
                               char **text, size_t *n_text, struct hcache_err *err);
/* Renders a conversation that is already parsed, guarded or not. The values are those of the
 * program's own parser (src/base/json.h) and are borrowed for the call. tools or kwargs NULL:
 * there are none. Other programs use the two functions above. */
struct json;
enum { HCACHE_SHOWN_DATE = 64, HCACHE_UNSHOWN = 160, HCACHE_MARKS = 4 };
/* A place between two messages, and its place in the rendered text. */
struct hcache_chat_mark {
    size_t message; /* number of the first message behind it */
    /* Set by rendering: bytes of the text before the first byte from a message behind the place,
     * without guards. The text's size: there is no such byte. */
    size_t at;
};
struct hcache_chat {
    const struct json *messages, *tools, *kwargs;
    bool guarded;
    bool no_answer; /* the text does not end with the beginning of an answer */
    /* local time that the template sees, as "2026-11-28 22:05:00" or "2026-11-28"; NULL: now */
    const char *moment;
    /* [HCACHE_SHOWN_DATE] receives the first text that the template got when it asked for date or
     * time, cut to this size; unchanged if it did not ask. NULL: the text is not wanted. */
    char *shown_date;
    /* [HCACHE_UNSHOWN] receives the names of those members of messages that the prompt does not
     * show and that change nothing else, with blanks between. NULL: they are not wanted. */
    char *unshown;
    struct hcache_chat_mark *marks; /* [n_marks] of at most HCACHE_MARKS */
    int n_marks;
};
int hcache_chat_render_parsed(const struct hcache *h, const struct hcache_chat *chat,
                              char **text, size_t *n_text, struct hcache_err *err);
/* Drops what says nothing to the model from the text of a system message: lines with a client's
 * checksum for billing, and matches of hcache_opts.drop_system. Returns 1 with the rest in
 * *text_out, which is the caller's; 0 if nothing is dropped; or a negative code. */
int hcache_drop_system(const struct hcache *h, const char *text, size_t n, char **text_out,
                       size_t *n_out, struct hcache_err *err);
/* Puts guards before all special tokens of a text that becomes part of a guarded prompt, for
 * example an answer.  A model without a tokenizer has no special tokens.  *out is the caller's. */
void hcache_guard(const struct hcache *h, const char *text, size_t n, char **out,
                  size_t *n_out);
/* Reads an answer of a chat while it is generated: thoughts, text and calls of tools, in the
 * model's own format. Parts are final as soon as they exist: a text only grows. prompt: the text
 * before the answer, which may begin the answer's thought. tools: a list of the tools that may be
 * called, in the form of any API, borrowed; NULL: nothing is a call. The caller closes it. */
struct hcache_answer;
struct hcache_answer *hcache_answer_open(const struct hcache *h, const char *prompt,
                                         size_t n_prompt, const struct json *tools);
void hcache_answer_close(struct hcache_answer *a); /* NULL is allowed */
/* A special token among the text: it is not part of it. */
struct hcache_special {
    size_t at; /* bytes of the text before it */
    int32_t id;
};
/* Adds the text that follows, with its special tokens. */
void hcache_answer_push(struct hcache_answer *a, const char *text, size_t n,
                        const struct hcache_special *special, int n_special);
void hcache_answer_end(struct hcache_answer *a); /* the answer has ended */
enum hcache_part_kind { HCACHE_PART_THOUGHT, HCACHE_PART_TEXT, HCACHE_PART_CALL };
struct hcache_part {
    enum hcache_part_kind kind;
    const char *name; /* of the called tool; NULL: no call */
    const char *text; /* thought, text, or the text of a JSON object with the arguments */
    size_t n;
};
/* Returns whether there is a part i. *out is valid until the next push, end or close. */
bool hcache_answer_part(const struct hcache_answer *a, int i, struct hcache_part *out);
/* Returns the bytes of one token, which may be part of a character; NULL: there is no such token.
 * The memory belongs to h. */
const char *hcache_token_bytes(const struct hcache *h, int32_t id, size_t *n);
void hcache_free(void *p);

/* --- the form of an answer ------------------------------------------------------------------- */

/* A form restricts an answer to the texts of a JSON schema, a grammar, a regular expression or a
 * list.  Tokens that would leave the form are never chosen, and the answer ends only where the form
 * is complete.  docs/STRUCTURED.md says what is enforced and how it is written. */
enum hcache_form_kind {
    HCACHE_FORM_SCHEMA, /* text: a JSON schema */
    HCACHE_FORM_GBNF,   /* text: a GBNF grammar */
    HCACHE_FORM_REGEX,  /* text: a regular expression that the whole answer matches */
    HCACHE_FORM_CHOICE, /* text: a JSON array of the texts of which the answer is one */
    HCACHE_FORM_CALLS, /* text: a JSON array of tools, in any form of the APIs, of which the answer
                         * calls one or more in the model's own syntax */
};

struct hcache_form_opts {
    enum hcache_form_kind kind;
    const char *text;
    size_t n; /* bytes of text */
    /* Keywords of a schema that cannot be enforced are left out and named, instead of refused. */
    bool loose;
    /* The end of the prompt's text, which shows whether the answer begins with a thought.  The form
     * begins behind the thought.  A model whose template has thoughts may begin one itself.  NULL:
     * the form begins at once. */
    const char *prompt_end;
    /* HCACHE_FORM_CALLS: the tool that is called; NULL: any.  many: several calls may be made. */
    const char *only;
    bool many;
    /* HCACHE_FORM_CALLS: text may stand before the calls, or instead of them. */
    bool may_talk;
    /* Another kind: tools as in HCACHE_FORM_CALLS, which the answer may call instead; NULL: none.
     * Arguments follow a schema only if the tool says "strict": true.  The same holds with
     * may_talk. */
    const char *tools;
};

struct hcache_form;

/* Compiles a form, or finds one that was compiled lately.  *out is the caller's; it may be used by
 * any number of requests.  *unenforced (NULL is allowed) gets the names of the keywords that were
 * left out, separated by ", ", and is the caller's (hcache_free); NULL if there are none.
 * HCACHE_E_USAGE: malformed, or no text has the form.  HCACHE_E_UNSUPPORTED: the message names what
 * cannot be enforced.  HCACHE_E_LIMIT: too large. */
int hcache_form_create(struct hcache *h, const struct hcache_form_opts *o,
                       struct hcache_form **out, char **unenforced, struct hcache_err *err);
/* Requests that were submitted keep their form. NULL is allowed. */
void hcache_form_free(struct hcache_form *f);

/* --- generation ----------------------------------------------------------------------------- */

struct hcache_bias {
    int32_t id;
    float bias; /* added to the token's logit; -100..100 */
};
struct hcache_shaping {
    /* subtracted from a token's logit for each time it occurs in the answer, -2..2; 0: off */
    float frequency_penalty;
    /* subtracted once from the logit of a token that occurs in the answer, -2..2; 0: off */
    float presence_penalty;
    /* factor that makes tokens of prompt and answer less likely, 0.01..100; 0 or 1: off */
    float repetition_penalty;
    /* [n_bias] biases of single tokens; at most HCACHE_MAX_BIAS */
    const struct hcache_bias *bias;
    int n_bias;
    /* tokens that end the answer as EOS does; at most HCACHE_MAX_STOP_IDS */
    const int32_t *stop_ids;
    int n_stop_ids;
    /* stop_ids and EOS are excluded until the answer has this many tokens */
    int min_tokens;
    /* Most tokens of the thought with which the answer begins. At the bound the thought is ended as
     * the chat template ends it, and the answer begins. In the channels of gpt-oss, of all thoughts
     * together. 0: no bound. Needs prompt_end, as in hcache_form_opts. */
    int max_thought;
    const char *prompt_end;
};

/* Truncation of a context that outgrows its window of C tokens (docs/TRUNCATION.md). */
struct hcache_truncation {
    /* share of C that is dropped at once, above 0 and below 1; 0: no truncation */
    double ratio;
    /* number of first tokens that are never dropped, a multiple of 64; 0: 64 */
    int keep;
    /* C in tokens, rounded down to a multiple of 64; 0: the model's own context */
    int context;
};
/* Parses "R", "R,keep=K" or "R,keep=K,context=C", in any order, or "off". Returns 0, or
 * HCACHE_E_USAGE with the fault in the message. */
int hcache_truncation_parse(const char *text, struct hcache_truncation *out,
                            struct hcache_err *err);
/* Returns 0 if this model and this KV cache can truncate as t says. Returns HCACHE_E_USAGE if a
 * number does not fit; the message has the numbers. Returns HCACHE_E_UNSUPPORTED if truncation is
 * not possible; the message has the reason. *step (step may be NULL) gets the number of tokens
 * dropped at once. */
int hcache_truncation_check(const struct hcache *h, const struct hcache_truncation *t,
                            int *step, struct hcache_err *err);

/* What a request reads from its prompt. The result has the same bits whatever runs beside the
 * request, and however the prompt was cut. */
enum hcache_reads {
    HCACHE_READS_NOTHING,
    /* result.embedding: the text's embedding, pooled as hcache_model_info.pooling says: "mean",
     * "cls" (the first token) or "last" (the last token; only this one uses saved state). It is
     * not scaled to length 1. */
    HCACHE_READS_EMBEDDING,
    /* result.prompt_logprobs: the log-probability of each token, given those before it. No state
     * is reused: every token is computed. */
    HCACHE_READS_LOGPROBS,
    /* result.embedding[0]: for a model whose pooling is "rank", the probability of "yes" as the
     * next token, if that is "yes" or "no". */
    HCACHE_READS_JUDGEMENT,
};

struct hcache_request {
    const int32_t *prompt;
    int n_prompt;
    int max_tokens;
    bool ignore_eos;
    float temperature; /* 0: greedy, the likeliest token is taken */
    float top_p;       /* 0 counts as 1: off */
    float min_p;
    int top_k;
    uint64_t seed;
    /* strings that end the text, which is cut before the first of them; require a tokenizer */
    const char *const *stop;
    int n_stop; /* number of stop strings, at most HCACHE_MAX_STOP */
    /* returns the log-probability of each token, from the raw logits; see hcache_delta */
    bool logprobs;
    /* returns also the log-probabilities of the n_top likeliest tokens, 0..HCACHE_MAX_TOP; also
     * for HCACHE_READS_LOGPROBS */
    int n_top;
    bool digest; /* computes result.logits_digest, which reads all logits once more */
    /* Changes the logits before a token is chosen; NULL: no change. Log-probabilities are those of
     * the raw logits. */
    const struct hcache_shaping *shaping;
    /* form of the answer; NULL: any. It is needed until the request is submitted. */
    const struct hcache_form *form;
    /* The form is completed within max_tokens, if it has texts of less bytes: where the tokens end,
     * only the shortest completions remain. Such an answer takes a search at each token. */
    bool close;
    /* A text that the answer may repeat in part [n_prediction]; NULL: none. Its tokens are guessed
     * (hcache_opts.speculate), beside those of the prompt. It changes no answer. Requires a
     * tokenizer. */
    const char *prediction;
    size_t n_prediction;
    struct hcache_truncation truncation;
    const char *salt; /* requests share state only if their salts are equal */
    /* requests with a lower number run earlier, -HCACHE_MAX_PRIORITY..HCACHE_MAX_PRIORITY */
    int priority;
    /* time limit from submission, after which finish is "timeout"; 0: none */
    int timeout_ms;
    /* Number of the client, and how many of its requests may wait although the queue is full, so
     * that the others' requests cannot keep it out; 0: none. */
    uint64_t client;
    int client_queue;
    /* Hints about the next use of the request's state. Under the policy "ours" they decide how long
     * a full store keeps it. */
    int turn;            /* number of the turn in its conversation, from 1; 0: not known */
    bool may_call_tools; /* the answer may be a tool call, whose result comes back soon */
    /* seconds until the state is probably used again; 0: not known */
    int expect_reuse_in_s;
    /* Seconds without use after which the state that the request makes or uses expires; 0: never.
     * State that several requests use gets the longest of their times. */
    int cache_ttl_s; /* at most HCACHE_MAX_CACHE_TTL_S */
    /* the request ends only when its saved state is durable; hcache_generate always waits for
     * this */
    bool durable;
    /* Kinds of state to save: "auto", "hidden", "kv", "both" or "none"; or a letter per layer: H,
     * K, B (both), - (none). */
    const char *save;
    /* Methods of the restore: "auto", "hidden", "kv", "recompute", or a letter per layer (R, H, K).
     * Any but "auto" uses the records that the store has and computes the rest; hcache_plan.layers
     * has the methods that ran. */
    const char *plan;
    /* hcache_generate only. Called for every token with its text, which has whole characters and
     * may be empty. A non-zero result cancels the request, and no call follows. Text of an
     * unfinished character or of a possible stop string is held back; a last call with id -1 brings
     * it. */
    int (*on_token)(void *arg, int32_t id, const char *text, size_t n_text);
    /* hcache_generate only.  Called when more tokens of the prompt have their state, restored or
     * computed.  n_done is their total number. */
    void (*on_prompt)(void *arg, int n_done);
    /* hcache_generate only. Called between the engine's steps, also while the prompt is restored or
     * computed. If it returns true, the request is cancelled. NULL: not called. */
    bool (*is_cancelled)(void *arg);
    /* hcache_submit only. Called when the ticket has something to read. The call with `ended` set
     * is the last one. It runs on the engine's thread, which holds a lock meanwhile: the function
     * must neither wait nor call this interface. */
    void (*notify)(void *arg, bool ended);
    void *arg;
    /* What is read from the prompt, beside the answer, or instead of it with max_tokens 0. It
     * cannot be combined with truncation. */
    enum hcache_reads reads;
};

enum {
    HCACHE_MAX_STOP = 16,
    HCACHE_MAX_STOP_BYTES = 256, /* maximum number of bytes of a stop string */
    HCACHE_MAX_TOP = 20,
    HCACHE_MAX_BIAS = 1024,
    HCACHE_MAX_STOP_IDS = 64,
    HCACHE_MAX_PRIORITY = 100,
    HCACHE_MAX_TIMEOUT_MS = 86400000,
    HCACHE_MAX_CACHE_TTL_S = 316224000, /* ten years */
    /* Bound on max_tokens of a truncated context: a ticket keeps the whole answer, and no window
     * bounds it. */
    HCACHE_MAX_TRUNCATED_ANSWER = 1 << 20,
};

struct hcache_plan {
    int recompute, hidden, kv; /* numbers of layers restored by each method */
    /* a letter per layer, as in RRHHKK (hcache_span.method); empty: nothing was restored */
    char layers[260];
    double predicted_ms;
    /* Why the restore took less than half or more than twice the predicted time: "faster", "reads",
     * "compute", "shared" (it waited for other work), "lost" (chunks could not be read). Empty: the
     * time was within these bounds. */
    char surprise[16];
    char reason[192];
};

struct hcache_timings {
    double load_ms, queue_ms, lookup_ms, plan_ms, restore_ms, prefill_ms, decode_ms;
    double ttft_ms; /* time to the first token: queueing, restore and prefill together */
    double decode_tokens_per_s;
    double restore_io_ms, restore_compute_ms, restore_wait_ms;
    /* time to compute new tokens inside the restore; part of restore_ms and of prefill_ms */
    double fused_ms;
    /* idle share of the busier lane, 0..1, over the restore and the prefill fused with it */
    double bubble;
};

/* One piece of work of a restore, on one of its two lanes. */
struct hcache_span {
    float start_ms, end_ms; /* since the restore began */
    int16_t layer;
    char method; /* R recomputed, H from hidden states, K from keys and values */
    bool is_io;  /* true: work of the I/O lane; false: of the compute lane */
};
struct hcache_lanes {
    struct hcache_span *span; /* [n], ordered by start; NULL: not known */
    int n;
    double total_ms; /* time until the last layer was restored */
};

/* A run of restored tokens whose state came from the same source. */
enum { HCACHE_RESTORED_PARTS = 8 };
struct hcache_restored_part {
    int n_tokens;
    /* "dram", "disk", or "dram+disk": each token's state came partly from both */
    const char *source;
};

struct hcache_result {
    int32_t *token_ids; /* generated tokens */
    int n_tokens;
    char *text; /* NULL if the model has no tokenizer */
    size_t n_text;
    struct hcache_special
        *special; /* [n_special] special tokens inside and behind the text */
    int n_special;
    /* "stop", "length", "cancelled" or "timeout". After a timeout before the first token there is
     * no result, but the error -ETIMEDOUT. */
    const char *finish;
    int prompt_tokens, cached_tokens;
    int device_tokens;        /* cached tokens whose state was still on the device */
    int n_preempted;          /* times that the request lost its place and came back */
    int64_t committed_tokens; /* tokens whose state was durable in the store at the end */
    /* tokens that had been dropped from the context at the end */
    int64_t truncated_tokens;
    int64_t recomputed_tokens; /* tokens that this request computed more than once */
    /* Tokens of the answer that were guessed and computed beside the token before them
     * (hcache_opts.speculate), and those of them that were right. */
    int64_t guessed_tokens, guessed_right;
    struct {
        int context, step, keep; /* C, S, K in tokens; C 0: the context is not truncated */
        int steps;               /* times that the window moved */
        /* total time that moves took until the moved state was back */
        double stall_ms;
    } truncation;
    /* digest of the f32 logits of all generated positions; 0: not asked for */
    uint64_t logits_digest;
    uint64_t restored_bytes;
    /* part of restored_bytes that came from DRAM copies (hcache_opts.dram_bytes) */
    uint64_t restored_dram_bytes;
    /* Part of restored_bytes that the system's page cache had: no disk was read. */
    uint64_t restored_page_cache_bytes;
    int dram_tokens;   /* cached tokens whose state came from DRAM copies alone */
    int remote_tokens; /* tokens fetched from the remote into the store for this request */
    char miss[200];    /* reason why no more tokens were restored */
    /* first token of the prompt that differs from a saved one; 0: unknown, or there is none */
    int differs_at;
    /* reason why saving ended early, and advice; NULL: saving did not end early. A static string */
    const char *save_stopped;
    struct hcache_plan plan;
    struct hcache_timings timings;
    /* source of the cached tokens that were not on the device: "dram", "disk", "dram+disk"; NULL:
     * there were none */
    const char *tier;
    /* The cached tokens behind device_tokens, in order. If there are more parts than fit, the last
     * one stands for all the rest. n_restored_parts 0: all tokens came from `tier`. */
    struct hcache_restored_part restored_part[HCACHE_RESTORED_PARTS];
    int n_restored_parts;
    struct hcache_lanes predicted, measured;
    /* [n_embedding] see hcache_request.reads; NULL: not asked for, or not all of the prompt was
     * computed */
    float *embedding;
    int n_embedding;
    /* [prompt_tokens - 1][1 + n_top] of the tokens behind the first: of the token itself, then of
     * the likeliest; NULL as above. */
    struct hcache_logprob *prompt_logprobs;
};

/* Runs one request to its end and returns when the state that it saved is durable. */
int hcache_generate(struct hcache *h, const struct hcache_request *r,
                    struct hcache_result *out, struct hcache_err *err);
void hcache_result_free(struct hcache_result *r);

/* --- control of saved state ---------------------------------------------------------------------
 *
 * State is stored in chunks of 64 tokens, each named by all tokens before it and its own.  Without
 * a store these functions find nothing, and those that can fail return HCACHE_E_UNSUPPORTED.  They
 * wait for the disk. */

/* Computes the keys under which the state of these tokens may be stored, for a salt (NULL: none):
 * first the keys of the n / 64 full chunks in their order, then two keys of the last, unfinished
 * chunk: with the last token, and without it. `context`, `step` and `keep` are the numbers with
 * which the context is truncated (hcache_result.truncation); context 0: it is not truncated.
 * Returns the number of keys; keys has room for n / 64 + 2. */
int hcache_chunk_keys(const struct hcache *h, int context, int step, int keep,
                      const int32_t *ids, int n, const char *salt, uint8_t (*keys)[32]);

/* A context whose state is looked up, pinned or erased. */
struct hcache_context {
    const int32_t *ids;
    int n;
    const char *salt; /* NULL: the empty salt */
    /* as in the requests of this context; ratio 0: not truncated */
    struct hcache_truncation truncation;
};

/* For a truncated context, all counts except truncated_tokens cover only the tokens that its last
 * token sees. */
struct hcache_found {
    int truncated_tokens; /* tokens that the last token no longer sees */
    /* tokens in full chunks that a restore could use; never includes the context's last token */
    int wanted_tokens;
    /* how many of the wanted tokens are stored, from the beginning without a gap */
    int stored_tokens;
    /* kinds of records that all stored chunks have, a letter per layer: H, K, B (both), - */
    char layers[260];
    /* where the stored tokens are: "dram", "disk"; NULL: there is no store */
    const char *tier;
    char why[200]; /* reason why no more tokens are stored */
    /* first token of the context that differs from a stored one; 0: unknown, or there is none */
    int differs_at;
};
int hcache_cache_lookup(struct hcache *h, const struct hcache_context *c,
                        struct hcache_found *out, struct hcache_err *err);

/* Pins chunks: they are not evicted before a time, in seconds since 1970. A time in the past ends a
 * pin. The chunks need not be stored yet, and pins survive restarts. Pins are preferences: the
 * store's limits still hold. */
int hcache_cache_pin(struct hcache *h, uint8_t (*keys)[32], int n, int64_t until_wall_s,
                     struct hcache_err *err);

/* Pins the state that the last token of a context sees. *n_tokens is the number of tokens whose
 * state is pinned. */
int hcache_cache_pin_context(struct hcache *h, const struct hcache_context *c,
                             int64_t until_wall_s, int *n_tokens, struct hcache_err *err);

/* Guarantees state until a time: no limit, quota, idle time or full disk evicts it, also after a
 * restart. It guarantees all state that the context's last token sees. Returns HCACHE_E_NOT_FOUND
 * if a part of that state is not stored, and HCACHE_E_LIMIT if too much would be guaranteed. The
 * message and *out have the amounts. A guarantee ends at its time, with a pin whose time is in the
 * past, or when the state is erased. */
struct hcache_guarantee {
    int n_tokens;     /* tokens in full chunks */
    uint64_t n_bytes; /* bytes that this guarantee adds */
    /* guaranteed bytes of the whole store, and their limit (0: none) */
    uint64_t all_bytes, limit_bytes;
    /* guaranteed bytes of the salt, and their limit (0: none) */
    uint64_t salt_bytes, salt_limit_bytes;
};
int hcache_cache_guarantee(struct hcache *h, const struct hcache_context *c,
                           int64_t until_wall_s, struct hcache_guarantee *out,
                           struct hcache_err *err);

struct hcache_erased {
    /* chunks that were erased, and their bytes, which were overwritten */
    int64_t n_chunks, n_bytes;
    int64_t n_shared; /* chunks that stay, because other chunks continue them */
    /* chunks in use: no look-up finds them, and they are erased after their last use */
    int64_t n_busy;
    /* If the call fails because the disk is full (-ENOSPC), or because the store cannot be written
     * until it is reopened: number of chunks that no look-up finds but whose bytes are still in the
     * files. */
    int64_t n_owed;
    /* For a store that cannot be written: true if the erasure is on record. Then the next open that
     * can write finishes it. False: the erasure is forgotten when h is closed, unless
     * hcache_cache_settle records it before. */
    int is_noted;
    char not_noted_because[200];
};
/* Erases the chunks keys[0..n), one chain in its order, except those that other chunks continue. */
int hcache_cache_erase(struct hcache *h, uint8_t (*keys)[32], int n,
                       struct hcache_erased *out, struct hcache_err *err);
/* Erases all state of a context, including tokens that it no longer sees, except chunks that other
 * contexts continue. */
int hcache_cache_erase_context(struct hcache *h, const struct hcache_context *c,
                               struct hcache_erased *out, struct hcache_err *err);
/* Erases chunks that have the end of an erased text and tokens after it, and all chunks behind
 * them; call it before hcache_cache_erase. keys[] are the keys of one or several texts
 * (hcache_chunk_keys), in any order. The key of such a chunk hashes the tokens after the text, too,
 * so it is not among keys[]. An interrupted answer, for example, has saved such a chunk. */
int hcache_cache_forget(struct hcache *h, uint8_t (*keys)[32], int n,
                        struct hcache_erased *out, struct hcache_err *err);
/* Erases all state stored under a salt. */
int hcache_cache_clear(struct hcache *h, const char *salt, struct hcache_erased *out,
                       struct hcache_err *err);
/* Call it every few seconds.  It retries erasures that a full or unwritable disk has delayed, and
 * looks for damaged headers of chunks that were restored. */
int hcache_cache_settle(struct hcache *h, struct hcache_err *err);
/* Evicts chunks that were not used for idle_s seconds, and overwrites their bytes; *n_chunks is
 * their number.  Pinned chunks, chunks in use, and all chunks that they continue stay.  Free space
 * may keep older copies; use hcache_cache_erase for state that must leave no trace. */
int hcache_cache_evict_idle(struct hcache *h, int64_t idle_s, uint64_t *n_chunks,
                            struct hcache_err *err);
/* Evicts state whose time to live has passed (hcache_request.cache_ttl_s); *n_chunks is the number
 * of chunks.  hcache_open does the same. */
int hcache_cache_evict_expired(struct hcache *h, uint64_t *n_chunks,
                               struct hcache_err *err);
/* Returns when all state computed before the call is durable, or its saving has failed. */
void hcache_cache_flush(struct hcache *h);

/* Limits the state stored under a salt, until the process ends; 0: no limit. */
void hcache_cache_quota(struct hcache *h, const char *salt, uint64_t bytes);

/* Counts by name. The names are static strings. */
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
    uint64_t cap_bytes; /* 0: there are no copies, and all other fields are 0 */
    uint64_t used_bytes, n_chunks;
    /* The following fields count since the start. */
    uint64_t n_written;                  /* copies made while state was written */
    uint64_t n_promoted, promoted_bytes; /* copies read from the disk ahead of requests */
    uint64_t n_unused;   /* promoted copies that were dropped before a request read them */
    uint64_t n_demoted;  /* chunks whose copies were dropped to make room */
    uint64_t n_full;     /* copies that were not made for lack of room */
    uint64_t read_bytes; /* bytes that restores read from copies */
};

/* Statistics of the shared tier (hcache_opts.remote). */
struct hcache_remote {
    /* URL without the password; "": there is no remote, and all other fields are 0 */
    char url[300];
    int is_up;   /* 1 if the remote answers and nothing else keeps it from use, else 0 */
    int is_full; /* 1 if it is up, but has refused the last write because it is full */
    char why_down[160]; /* the reason, if it is not up, or full */
    /* The following fields count since the start. */
    uint64_t n_fetches; /* look-ups that asked the remote for chunks */
    /* round trips of fetches during which no other command was under way */
    uint64_t n_round_trips;
    uint64_t n_fetched, fetched_bytes; /* chunks that arrived undamaged, and their bytes */
    /* look-ups that got fewer chunks than they asked for, counted by reason */
    struct hcache_counts misses;
    uint64_t n_written, written_bytes; /* chunks written to the remote */
    /* chunks not written because the remote already had them */
    uint64_t n_known;
    uint64_t n_dropped;  /* chunks not written because the queue was full */
    uint64_t n_gone;     /* chunks not written because they had left the store */
    uint64_t n_refused;  /* chunks that the remote refused because it is full */
    uint64_t n_failures; /* failed connections */
    uint64_t n_queued;   /* chunks that now wait to be written */
    /* Erasures of this server that wait to be published; erasures that this server has read;
     * erasures that every running server has read; and the number of running servers. */
    uint64_t n_unpublished, n_erasures, n_erasures_everywhere, n_servers;
    double latency_s, bytes_per_s; /* as measured by fetches; 0: not known */
};

struct hcache_cache_stats {
    /* "dram" or "disk": where the chunks are; NULL: there is no store, and all other fields are
     * 0 */
    const char *tier;
    /* rule that chooses the chunks that a full store evicts first: hcache_opts.policy */
    const char *policy;
    uint64_t n_chunks, used_bytes, cap_bytes, file_bytes, pending_bytes, n_pins;
    /* limit on all files of the store, from which cap_bytes follows; 0: none */
    uint64_t files_cap_bytes;
    uint64_t n_expiring;            /* chunks with a time to live */
    uint64_t n_guarantees;          /* pins that are guarantees */
    uint64_t guaranteed_bytes;      /* part of used_bytes that is never evicted */
    uint64_t guarantee_limit_bytes; /* limit of guaranteed_bytes; 0: none */
    /* guarantees broken by damage since the store was opened */
    uint64_t n_guarantees_broken;
    /* The following fields count since the store was opened. */
    uint64_t n_hits, n_misses, n_evicted, n_corrupt, appended_bytes, read_bytes;
    /* look-ups that missed, and evicted chunks, counted by reason */
    struct hcache_counts misses, evictions;
    /* records that were not used, because their checksum was wrong or they could not be read */
    uint64_t n_checksum_failures, n_read_failures;
    int saving_fault;     /* 0, or the error because of which nothing is saved now */
    char saving_why[200]; /* message of saving_fault, or "" */
    struct hcache_dram dram;
    struct hcache_remote remote;
    /* State of the salt that the caller named: */
    uint64_t salt_chunks, salt_bytes, salt_quota_bytes, salt_guaranteed_bytes;
};
void hcache_cache_stats(struct hcache *h, const char *salt, struct hcache_cache_stats *out);

/* Contexts and bytes of saved state that were used within a time. A store of that many bytes keeps
 * every context that comes back within that time. */
enum { HCACHE_ADVICES = 5 };
struct hcache_advice {
    const char *within; /* "hour", "day", "week", "30 days", "all time" */
    int64_t seconds;    /* length of that time; 0: all time */
    /* contexts that were used within that time, and their bytes */
    uint64_t contexts, bytes;
};
/* Fills in a row for each time, the shortest first. The time of a call grows with the number of
 * chunks. Returns HCACHE_E_UNSUPPORTED if there is no store. */
int hcache_cache_advise(struct hcache *h, struct hcache_advice out[HCACHE_ADVICES],
                        struct hcache_err *err);

/* --- serving: many requests at once -------------------------------------------------------------
 *
 *     submit --> [FIFO, at most max_queue] --> engine's thread, at most max_sequences at once
 *                                                 |  notify
 *     hcache_ticket_read <------------------------+   ... ended --> hcache_ticket_result
 *
 * A ticket keeps all generated tokens until they are read.  They are bounded by max_tokens, so the
 * engine never waits for a slow reader. */

/* Starts the engine's thread. max_queue: maximum number of waiting requests; 0: 64. */
int hcache_serve_start(struct hcache *h, int max_queue, struct hcache_err *err);
/* Refuses new requests, cancels those that wait or run, makes saved state durable, and ends the
 * thread.  All tickets have then ended.  Does nothing if no thread was started.  Afterwards
 * hcache_generate runs on the caller's thread again, and hcache_submit fails until the next
 * hcache_serve_start. */
void hcache_serve_stop(struct hcache *h);

struct hcache_ticket; /* one submitted request */

/* Submits a request, and copies everything that is needed from *r. Returns HCACHE_E_LIMIT if the
 * queue is full (but see client_queue) or the service is stopping; a later call may succeed. A
 * prompt that can never fit is reported by hcache_ticket_result. */
int hcache_submit(struct hcache *h, const struct hcache_request *r,
                  struct hcache_ticket **out, struct hcache_err *err);

struct hcache_logprob {
    int32_t id;
    float logprob;
};

struct hcache_delta {
    const int32_t *ids; /* tokens generated since the last read */
    int n_ids;
    /* [n_ids][1 + n_top] log-probabilities: of the chosen token, then of the likeliest; NULL: not
     * asked for */
    const struct hcache_logprob *logprobs;
    const char *text; /* whole characters, without any part of a stop string */
    size_t n_text;
    /* [n_special] special tokens inside and behind this text */
    const struct hcache_special *special;
    int n_special;
    bool ended;        /* the request has ended, and no more will follow */
    int cached_tokens; /* cached tokens of the prompt; 0 before the first generated token */
    /* tokens of the prompt whose state is there; always 0 if on_prompt is NULL */
    int prompt_done;
};
/* Fills in *out with everything new, at once. *out points to the ticket's memory, which is valid
 * until the next read. One thread per ticket may read. */
void hcache_ticket_read(struct hcache_ticket *t, struct hcache_delta *out);
/* Waits until the request has ended. The service must have been started. */
void hcache_ticket_wait(struct hcache_ticket *t);
/* Ends the request within one step, with finish "cancelled". */
void hcache_ticket_cancel(struct hcache_ticket *t);
/* Call it after the end. Returns 0 with the result, which the caller frees, or the request's error.
 * committed_tokens counts the tokens that were durable when the request ended; more may become
 * durable until all state is flushed. */
int hcache_ticket_result(struct hcache_ticket *t, struct hcache_result *out,
                         struct hcache_err *err);
/* Cancels a request that still runs.  notify is not called after this returns.  NULL is allowed. */
void hcache_ticket_free(struct hcache_ticket *t);

enum { HCACHE_HIST_BUCKETS = 24 };
/* A histogram of times in seconds. */
struct hcache_hist {
    /* count[i]: values above hcache_hist_bound_s(i - 1) and up to hcache_hist_bound_s(i); the last
     * element counts all larger values. */
    uint64_t count[HCACHE_HIST_BUCKETS + 1];
    double sum_s;
};
double hcache_hist_bound_s(int i); /* returns the upper bound of bucket i, in seconds */

/* Counters since the start, and the present state. */
struct hcache_stats {
    int n_waiting, n_running;
    /* Estimated wait for a place if a request were submitted now: the number of waiting requests
     * and this one, times how long recent requests held their places, divided by the number of
     * running requests. 0: a place is free, or nothing is known yet. */
    double wait_s;
    uint64_t n_ended, n_cancelled, n_failed, n_refused, n_timed_out;
    uint64_t prompt_tokens, generated_tokens;
    uint64_t guessed_tokens, guessed_right; /* of the generated tokens; see hcache_result */
    uint64_t device_tokens;   /* tokens of prompts whose state was still on the device */
    uint64_t restored_tokens; /* tokens of prompts whose state came from the store */
    uint64_t dram_tokens;     /* part of restored_tokens that came from DRAM copies alone */
    uint64_t remote_tokens;   /* tokens fetched from the remote into the store */
    uint64_t computed_tokens; /* tokens of prompts that were computed */
    uint64_t restored_bytes;
    uint64_t n_restores; /* restores with a plan */
    uint64_t layers_recompute, layers_hidden, layers_kv;
    double restore_measured_s, restore_wait_s;
    uint64_t n_misses; /* requests for which less was restored than possible */
    /* Sequences whose saving ended early, by reason: "writer_behind", "no_memory", "store_cap",
     * "refused" (waiting requests need the stored chunks sooner), "disk_full", "parent_gone" (the
     * parent chunk was evicted), "tail_unreadable", "erased" (the context was erased meanwhile),
     * "store_fault". */
    struct hcache_counts saves_ended;
    /* Chunks that were committed; the partial chunks among them; chunks that the store already
     * had. */
    uint64_t saved_chunks, saved_tails, shared_chunks;
    /* memory for chunks that are not saved yet: the limit, and the present use */
    uint64_t save_buffer_bytes, save_buffer_used_bytes;
    uint64_t n_preempted; /* times that a sequence was preempted */
    /* tokens of preempted sequences when they came back: restored, and computed again */
    uint64_t recovered_tokens, recomputed_tokens;
    uint64_t n_stairs;  /* times that a truncated context's window moved */
    uint64_t n_replays; /* truncated contexts that were computed again without the store */
    double stairs_s;    /* total time from the end of a stair until the state had moved */
    /* Blocks of the device's KV cache: all; blocks that a sequence can take, which include the kept
     * ones; kept blocks, which hold reusable state. */
    int kv_blocks, kv_blocks_free, kv_blocks_kept;
    uint64_t kv_blocks_evicted;
    /* For jobs with blocks on the host: bytes copied to the device, and bytes copied to the
     * host. */
    uint64_t link_bytes, link_down_bytes;
    uint64_t weights_read_bytes; /* bytes read for layers that do not stay in memory */
    /* restores, by the methods of their plans: "kv+hidden" ... */
    struct hcache_counts plans;
    /* restores that departed from their prediction, by hcache_plan.surprise */
    struct hcache_counts surprises;
    /* Restores whose reads hung or crawled, by outcome: "read" (recomputation raced the reads, and
     * the reads ended first), "recomputed" (recomputation ended first), "left" (prefill computed
     * the rest). */
    struct hcache_counts stalls;
    struct hcache_hist queue, ttft, tbt;
    struct hcache_hist restore, restore_predicted;
};
void hcache_stats(struct hcache *h, struct hcache_stats *out);

/* Reports the progress of the present step; a step that streams weights may take seconds. *layer is
 * the number of the layer that the step has reached, from 1 to *n_layers. Between two steps it is
 * that of the last step. Returns false if no step has begun, or if all layers stay in memory. Any
 * thread may call it; it does not wait. */
bool hcache_step_progress(const struct hcache *h, int *layer, int *n_layers);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
