/* client.h - the asker of a generation: the model, the settings, and how the asker is woken.
 *
 * An HTTP call and a job of many requests (batch) are clients.  Nothing here knows HTTP. */
#ifndef REQUESTS_CLIENT_H
#define REQUESTS_CLIENT_H

#include <stdbool.h>

#include "hcache.h"
#include "sessions/answers.h"
#include "sessions/fault.h"

/* How an answer has ended. */
enum answer_end {
    ANSWER_DONE,
    ANSWER_CANCELLED,
    ANSWER_FAILED,
    ANSWER_TIMEOUT,
    ANSWER_ENDS
};

/* Functions that are NULL are not called. */
struct client_calls {
    /* There is something to read.  On the engine's thread with its lock held: it must not wait. */
    void (*wake)(void *arg);
    /* An answer was submitted. */
    void (*began)(void *arg);
    /* An answer has ended.  r: its result, NULL where there is none; missed: it
     * names a miss reason. */
    void (*ended)(void *arg, enum answer_end end, const struct hcache_result *r,
                  bool missed);
};

/* A generation copies it.  All that it points to is borrowed until the generation is freed. */
struct client {
    struct hcache *h;
    const char *model_name;
    struct answers
        *answers;     /* what remembers the tokens of earlier answers; NULL: nothing */
    const char *salt; /* of its key; NULL: none */
    const char *plan; /* of every restore; NULL: auto */
    bool plan_strict, plain_chat, parse_special; /* as struct server_opts */
    struct hcache_truncation truncation; /* of requests that truncate; ratio 0: none can */
    /* The answer is a function of the request alone.  Its id, time and seed come
     * from the fields below, and it does not tell timings and cached tokens, which
     * depend on what ran before. */
    bool repeatable;
    const char *request_name; /* at most 32 characters */
    int64_t created_s;
    uint64_t seed; /* where the request names none */
    int max_queue; /* requests that may wait; 0: not known */
    const struct client_calls *calls;
    void *arg;
};

/* Whether the client's model has that name (NULL: any).  0, or -1 with *f. */
int client_check_model(const struct client *c, const char *name, struct fault *f);
/* The salt of the state of a request, from its key's and its own cache_salt (NULL: none):
 * from malloc; NULL: the empty one. */
char *client_state_salt(const struct client *c, const char *cache_salt);

#endif
