/* shape.h - what answers look like on the wire; private to src/server. */
#ifndef SERVER_SHAPE_H
#define SERVER_SHAPE_H

#include <stdatomic.h>

#include "server/generation.h"

struct choice {
    struct generation *gen;
    struct hcache_ticket *ticket;
    int index, n_prompt;
    bool started; /* its first chunk was sent */
    bool finished;
    struct hcache_result result;
    struct textbuf text; /* with tools, of a stream: all of it, of which n_sent went out */
    size_t n_sent;
    struct json *calls; /* content and tool_calls; NULL: none, or not known yet */
    /* read, and not yet sent: struct hcache_logprob [][1 + n_top] */
    struct textbuf logprobs;
    int64_t n_chars; /* of all tokens sent: text_offset */
};

struct generation {
    struct call *call;
    struct gen_params params;
    char id[48], miss[200];
    int64_t created_s;
    atomic_int n_ended;
    bool is_over;
    char *text; /* of the conversation, and its tokens; NULL: answers are not remembered */
    struct prompt_ids prompt;
    int n;
    struct choice choice[];
};

struct json *shape_answer(struct generation *g); /* every choice has its result */
/* A piece of text, or (last) the end of a choice with its reason. */
struct json *shape_chunk(struct generation *g, struct choice *ch, const char *text,
                         size_t n, bool last);
struct json *shape_usage_chunk(struct generation *g);

#endif
