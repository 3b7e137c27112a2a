/* request.h - the body of a completion request: every field's type and range in one table. Pure.
 *
 * A field outside the table is refused by name, as the original API does: a misspelt
 * "temprature" must not pass silently. A field that is known but not supported passes with its
 * neutral value (null, false, {}, 0 ...), which many clients send, and is refused otherwise. */
#ifndef API_REQUEST_H
#define API_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/textbuf.h"
#include "hcache.h"
#include "api/form.h"
#include "api/fault.h"
#include "api/prompt.h"

enum {
    REQUEST_CHAT = 1,
    REQUEST_COMPLETION = 2,
    REQUEST_RESPONSE = 4, /* /v1/responses */
    REQUEST_MESSAGE = 8,  /* /v1/messages */
    REQUEST_COUNT = 16,   /* /v1/messages/count_tokens */
    /* With REQUEST_CHAT: the fields are those of /api/chat and /api/generate. */
    REQUEST_OLLAMA = 32,
    REQUEST_OPTIONS = 64, /* members of Ollama's `options` */
    /* With REQUEST_COMPLETION: also the fields of llama-server's /completion, of /infill. */
    REQUEST_LLAMA = 128,
    REQUEST_INFILL = 256,
};

enum { REQUEST_MAX_N = 16, REQUEST_PROMPT_END = 63, REQUEST_MAX_IGNORED = 32 };

struct gen_params {
    unsigned kind;     /* one of the first five */
    const char *model; /* NULL: not given. Strings belong to the JSON tree. */
    /* The content to answer; for a response, `prompt` is its input. */
    const struct json *messages, *prompt;
    const struct json *tools; /* NULL: no tools may be used */
    /* The tools that an answer may call, if not all of `tools` are in the prompt; NULL: all are. */
    const struct json *offered;
    const struct json *kwargs; /* arguments of the chat template */
    /* Of a completion: the text behind the hole that the answer fills; and of /infill the text
     * before it, and other files. NULL: not given. */
    const struct json *suffix, *prefix, *extra;
    /* The prompt ends with the beginning of an answer (1) or not (0), -1: not given; and the last
     * message, the assistant's, is that beginning. */
    int generation_prompt, continues;
    /* Fields and tools that change nothing here; their names are the JSON tree's, or static. */
    const char *ignored[REQUEST_MAX_IGNORED];
    int n_ignored;
    char unshown
        [HCACHE_UNSHOWN]; /* members of messages that change nothing, as in hcache_chat */
    /* Switches of the template: "low", "medium", "high" or NULL; and 1 or 0: with thoughts or
     * without, -1: as the template does by itself. */
    const char *effort;
    int thinking;
    int64_t max_thought; /* most tokens of the thought; 0: no bound */
    /* No call is wanted. The prompt still shows the tools, so that its beginning stays as it was;
     * what the model writes is text. */
    bool no_tools;
    struct form_want form; /* of the answer's text */
    struct call_want calls;
    const struct json *choice,
        *text;     /* tool_choice and text as they were sent; NULL: not given */
    bool one_call; /* a wanted call is the only one */
    /* The end of the prompt's text, which shows whether the answer begins with a thought. */
    char prompt_end[REQUEST_PROMPT_END + 1];
    int64_t max_tokens;            /* -1: not given */
    int64_t max_completion_tokens; /* request_parse copies it to max_tokens */
    int64_t best_of;               /* answers of which the best n are sent; 0: not given */
    int64_t n, top_k, n_top, priority, timeout_ms;
    double temperature, top_p, min_p;
    double frequency_penalty, presence_penalty, repetition_penalty; /* 0: not given */
    int64_t min_tokens;
    const struct json *logit_bias, *stop_ids; /* checked; NULL: not given */
    const struct json
        *prediction; /* its content: a text, or parts of text; NULL: not given */
    int64_t seed;
    bool has_seed, ignore_eos, close, stream, include_usage, logprobs;
    enum hcache_reads reads; /* what is read from the prompts */
    bool raw;                /* of Ollama: the prompt is no message */
    bool return_progress, return_tokens, timings_per_token, echo, verbose;
    const struct json *response_fields; /* NULL: all */
    const struct json *samplers;        /* names of the samplers that work; NULL: all */
    bool fills; /* without max_tokens a completion may fill the context; false: 16 tokens */
    const char *stop[HCACHE_MAX_STOP];
    int n_stop;
    const char *cache_salt;  /* NULL: no salt */
    int64_t cache_ttl;       /* seconds; -1: not given */
    int64_t expect_reuse_in; /* seconds; 0: not known */
    int turn;     /* number of the turn: 1 + the answers among the messages; 0: unknown */
    bool durable; /* the request ends when its state is on disk */

    /* Fields of a response: */
    /* A string that may contain zero bytes; NULL: not given. */
    const struct json *instructions;
    const char *previous;
    const struct json *conversation, *metadata;
    bool store;
    /* "auto" (also if the request gives its own numbers) or "disabled"; NULL: not given. */
    const char *truncation;
    /* The request's own numbers; ratio 0: the server's numbers apply. */
    struct hcache_truncation numbers;
    /* The first n_system tokens are never dropped; they include the system's messages. */
    int n_system;
    struct prompt_date date; /* the date in the prompt; set by the code that renders it */
    /* Fields of a message: */
    const struct json *system, *cache_control;
    const struct json *edits; /* context_management.edits; NULL: none */
};

/* Parses a body into *out. Returns 0, or -1 with *f. */
int request_parse(const struct json *body, unsigned kind, struct gen_params *out,
                  struct fault *f);

/* Notes something that changes nothing, once. The name is static, or the JSON tree's. */
void request_note_ignored(struct gen_params *p, const char *name);
/* Returns the kind of a tool that other servers run themselves, or that their models were trained
 * on; NULL for other types. This server leaves tools of these kinds out of the prompt. */
const char *request_server_tool(const char *type);
/* Keeps the end of the prompt's text. */
void request_note_prompt(struct gen_params *p, const char *text, size_t n);

/* Returns whether a request has a field of that name that changes nothing; kind points to the
 * `unsigned` kind. For json_scan. */
bool request_ignores(const void *kind, const char *name, size_t n);

/* Appends the text of p->prediction. */
void request_prediction(const struct gen_params *p, struct textbuf *out);

/* hcache_encode, which a parser does not call by itself: the fuzzers have no service. */
typedef int (*request_encoder)(const struct hcache *h, const char *text, size_t n,
                               unsigned flags, int32_t **ids, int *n_ids,
                               struct hcache_err *err);
/* The fields of p that change the logits, for hcache_request. Contains pointers to itself. Returns
 * 0, or -1 with *f: h knows no tokens for a bias that is given by text, or there are too many. */
struct request_shaping {
    struct hcache_shaping shaping;
    struct hcache_bias bias[HCACHE_MAX_BIAS];
    int32_t stop_ids[HCACHE_MAX_STOP_IDS];
};
int request_shaping(const struct gen_params *p, request_encoder encode,
                    const struct hcache *h, struct request_shaping *out, struct fault *f);

/* Checks a small body without the table of fields. It must be an object whose members are all among
 * `names`, which NULL ends. Returns 0, or -1 with *f. */
int request_known(const struct json *body, const char *const *names, struct fault *f);

/* Returns whether a request may continue past its window: it asks for truncation, or it is part of
 * a conversation and does not refuse truncation. Returns false if `how` has no ratio. */
bool request_truncates(const struct gen_params *p, const struct hcache_truncation *how);
/* Returns the numbers of a request that truncates: the request's own, or `how`. */
struct hcache_truncation request_truncation(const struct gen_params *p,
                                            const struct hcache_truncation *how);
/* Reads a request's `truncation`: auto, disabled, or numbers in the form of --truncate.
 * *truncates: false for disabled. *numbers: the numbers, or ratio 0 if the text has none.
 * Returns 0, or -1 with *f. */
int request_read_truncation(const char *text, bool *truncates,
                            struct hcache_truncation *numbers, struct fault *f);
/* Reads a list of token ids from the field `name`. Returns 0, or -1 with *f. *out is always
 * malloc'd. */
int request_ids(const struct json *list, const char *name, int32_t **out, int *n,
                struct fault *f);

/* Reads metadata that is a whole body: *out is v, or NULL for null. Returns 0, or -1 with *f. */
int request_metadata(const struct json *v, const struct json **out, struct fault *f);

/* Returns the field with the content to answer: "messages", "prompt", "input". */
const char *request_prompt_name(unsigned kind);
/* Returns the field with the most tokens to generate. */
const char *request_max_name(const struct gen_params *p);

/* Returns the table of bounds as JSON Schema properties, for /openapi.json. */
struct json *request_schema(unsigned kind);

#endif
