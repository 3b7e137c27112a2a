/* shape.h - the form of completions on the wire, and a generation's insides; for the files that
 * make answers. */
#ifndef API_SHAPE_H
#define API_SHAPE_H

#include <pthread.h>
#include <stdatomic.h>

#include "api/generation.h"

struct choice {
    struct generation *gen;
    struct hcache_ticket *ticket;
    int index, n_prompt;
    int n_cached; /* cached tokens of the prompt, once a token was read */
    bool started; /* the first chunk of this choice was sent */
    bool is_told; /* the tenant's counters know that this choice has ended */
    bool finished;
    struct hcache_result result;
    /* Of a chat: the parts of the answer. n_read bytes and n_special tokens were given to it. */
    struct hcache_answer *answer;
    size_t n_read;
    int n_special;
    /* In a stream: the part that is sent next, and how many of its bytes were sent. */
    int part;
    size_t n_sent;
    /* Log-probabilities that were read and not yet sent: struct hcache_logprob [][1 + n_top]. */
    struct textbuf logprobs;
    struct textbuf
        ids; /* int32_t []: tokens that were read and not yet sent, if they are wanted */
    int32_t first_id; /* of the prompt, for its log-probabilities */
    int n_progress;   /* tokens of the prompt whose progress was sent */
    int n_tokens;     /* tokens that were read, the first at first_ns */
    int64_t first_ns;
    bool lacks_logprobs; /* there was no memory for log probabilities */
    int64_t n_chars;     /* number of characters of all sent tokens, for text_offset */
};

struct generation {
    struct client client;
    const struct dialect *dialect;
    void *own; /* the data that the route gave to generation_start for the dialect */
    struct gen_params params;
    char *salt;               /* salt of the request's state; NULL: no salt */
    struct hcache_form *form; /* of the answers; NULL: any */
    struct json *callable;    /* the tools that the answers may call; NULL: none */
    char *unenforced;         /* keywords that the form does not enforce; NULL: none */
    char id[48], miss[200];
    /* Answers to each prompt that are sent, the best of params.n; 0: all. */
    int n_best;
    bool hides_logprobs; /* log-probabilities are for that choice only */
    int64_t begun_ns;
    uint64_t seed;      /* of the first choice */
    int64_t max_tokens; /* of each answer, if the request's was cut to this; else 0 */
    int64_t created_s;
    atomic_int n_ended;
    /* Prompts [n_submitted, n / params.n) wait outside the engine's queue; NULL: none ever did. */
    struct prompt_ids *waiting;
    int n_submitted;
    /* Protects the creation of tickets that waited, and is_cancelled. */
    pthread_mutex_t lock;
    bool is_cancelled, has_failed;
    struct fault failure; /* why the rest was not submitted, if has_failed */
    /* For a stream: whether its first event was written, and whether its last event was. */
    bool has_begun, is_over;
    bool is_kept; /* the dialect's keep was called, with or without success */
    /* The conversation's text and tokens. If text is NULL, its answers are not remembered. */
    struct prompt_text text;
    struct prompt_ids prompt;
    int n;
    struct choice choice[];
};

/* Chats and text completions, as in OpenAI's API. */
extern const struct dialect shape_completions;

/* Moves the log-probabilities that were not sent into a list, as in a chat's `content`. */
struct json *shape_logprobs(struct generation *g, struct choice *ch);
/* Returns the stop string that ended the text; NULL: no stop string did. */
const char *shape_stop(const struct generation *g, const struct choice *ch);
/* Returns the progress of a choice's prompt, in llama-server's form. */
struct json *shape_progress(const struct generation *g, const struct choice *ch);
/* Adds counts and times under the names that llama-server uses. */
void shape_llama_timings(struct json *timings, const struct choice *ch);
/* Returns the timings of one choice, for any API. */
struct json *shape_timings(const struct generation *g, const struct choice *ch);
/* Adds to a usage object what the request asked for and did not get: ignored, a list of names, and
 * max_tokens, if it was cut to the rest of the context. */
void shape_adapted(struct json *usage, const struct generation *g);
/* Adds to a usage object how full the context of the fullest choice is: context_used,
 * context_window, and from 80 % on context_warning, a sentence. Adds unenforced: the keywords of a
 * schema that were left out. */
void shape_context(struct json *usage, const struct generation *g);
/* Returns whether the answer has part i. An answer that is no chat has one part, its text. */
bool shape_part(const struct choice *ch, int i, struct hcache_part *out);
/* Returns whether the answer calls a tool, and was not cut off. */
bool shape_has_calls(const struct choice *ch);
/* Returns the texts of all parts of a kind in a row. */
struct json *shape_texts(const struct choice *ch, enum hcache_part_kind kind);
/* Returns how many tokens the thoughts have: 0 if there is no thought, else an estimate from their
 * share of the bytes. */
int shape_thought_tokens(const struct choice *ch);
/* Writes the id of the call in part i: 29 letters, digits and underscores, the same every time. */
void shape_id(const struct choice *ch, int i, char out[32]);

#endif
