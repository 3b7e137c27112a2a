/* shaping.h - changes the logits as a request asks, before its next token is chosen.
 *
 *     repetition penalty, over prompt and answer:  l > 0 ? l / p : l * p
 *     frequency and presence penalty, over the answer:  l - count * f - (count > 0) * p
 *     bias of single tokens:  l + b
 *     minimum length: before it, tokens that would end the answer cannot be chosen
 *     bound on thoughts: behind it, the tokens that end the thought are chosen
 *
 * They apply in this order, as in other servers.  The functions are pure: the result depends on the
 * tokens alone, so a restored or preempted request continues with the same tokens. */
#ifndef ENGINE_SHAPING_H
#define ENGINE_SHAPING_H

#include "hcache.h"

/* Logit of a token that must not be chosen: finite, so that no sampler meets a NaN. */
#define SHAPING_NEVER (-1e30f)

/* Returns whether g ends the answer at this id; false if g is NULL. */
bool shaping_stops(const struct hcache_shaping *g, int32_t id);
/* Returns whether the shaping may change logits at all. */
bool shaping_changes(const struct hcache_shaping *g);

struct shaping_place {
    /* prompt and answer so far: [n_tokens], the first n_prompt are the prompt */
    const int32_t *tokens;
    int n_prompt, n_tokens;
    const int32_t *end_ids; /* [n_end_ids] other tokens that end the answer */
    int n_end_ids;
};
/* A bound on the thought with which an answer begins. */
struct shaping_thought {
    int max_tokens; /* of the thought, without its tags */
    const char *close;
    const char *open; /* NULL: the prompt has begun the thought */
    /* Answers of messages, whose channel's name stands between these two special tokens.  The bound
     * is that of all thoughts together, those of the channel `open`, and none begins behind it.
     * `close` is not used. message 0: the answer is one text. */
    int32_t channel, message;
    bool begun;         /* the prompt has begun such a thought */
    const int32_t *end; /* [n_end] tokens that end it; n_end 0: no bound */
    int n_end;
    /* Returns the bytes of a token, [*n]. */
    const char *(*bytes)(const void *arg, int32_t id, size_t *n);
    const void *arg;
};
/* Excludes all tokens but the next one of t->end if the thought has reached its bound. */
void shaping_end_thought(const struct shaping_thought *t, const struct shaping_place *at,
                         int n_vocab, float *logits);

/* Changes logits[n_vocab].  counts [n_vocab] is scratch memory: zero before and after. */
void shaping_apply(const struct hcache_shaping *g, const struct shaping_place *at,
                   int n_vocab, int32_t *counts, float *logits);

#endif
