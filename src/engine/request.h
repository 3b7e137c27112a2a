/* request.h - the one copy of a request inside the library. The queue, the engine and the sequence
 * read it; none of them copies its fields.
 *
 * The ticket of a request and its sequence share it.
 *
 * Invariants:
 * 1. The pointers of `ask` lead to memory of this struct. Its callbacks are not copied: they
 *    belong to the caller.
 * 2. Once engine_add has taken the request, only `tokens` behind the prompt change: the sequence
 *    writes the generated tokens there. */
#ifndef ENGINE_REQUEST_H
#define ENGINE_REQUEST_H

#include "hcache.h"
#include "engine/shaping.h"
#include "save/saver.h"
#include "store/truncation.h"

struct form;

struct request {
    int n_shares;
    struct hcache_request ask;     /* the caller's request */
    int32_t *tokens;               /* the prompt, then room for the generated tokens */
    struct hcache_shaping shaping; /* ask.shaping points to it, or is NULL */
    size_t stop_bytes[HCACHE_MAX_STOP];
    struct shaping_thought thought; /* owns thought.end, which is from malloc */

    int32_t *prediction; /* [n_prediction] tokens of ask.prediction, malloc; NULL: none */
    int n_prediction;

    /* The code that creates a request fills in the rest. */
    int32_t judges[2]; /* HCACHE_READS_JUDGEMENT: the ids of "yes" and "no" */
    /* Form that the answer must have; NULL: any. The ticket owns the share. */
    struct form *form;
    struct save_policy save;
    /* How the context continues beyond its window; context 0: it may not outgrow the model's
     * window. */
    struct truncation truncation;
    /* Value of store_epoch when the request was made; 0: engine_add sets it. */
    uint64_t epoch;
    /* Time of clock_now_ns by which the sequence must have ended; 0: no deadline. */
    int64_t deadline_ns;
    /* For comparison: prefill begins when all layers are restored, as in the paper. */
    bool restore_first;
    /* Called when the sequence gets a place for the first time; NULL: not called. */
    void (*on_admit)(void *arg);
    /* Called for every generated token; non-zero cancels. NULL: not called. */
    int (*on_token)(void *arg, int32_t id);
    void *arg; /* of the two functions above */
};

/* Copies a request that was checked, with room for max_answer tokens. Returns NULL if there is no
 * memory for the tokens. */
struct request *request_create(const struct hcache_request *ask, int max_answer);
/* The last release frees. Shares are taken and released by one thread at a time. */
struct request *request_share(struct request *r);
void request_release(struct request *r); /* NULL is allowed */

/* Excludes tokens from the answer, whatever the request says: ids[n] below n_vocab. */
void request_forbid(struct request *r, const int32_t *ids, int n, int n_vocab);

/* Returns the place of the generated tokens. */
static inline int32_t *request_answer(const struct request *r)
{
    return r->tokens + r->ask.n_prompt;
}

#endif
