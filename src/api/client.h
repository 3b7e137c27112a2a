/* client.h - the client of a generation: the model, the settings, and the calls that wake it.
 *
 * An HTTP call and a job of many requests (batch) are clients. Nothing here knows HTTP. */
#ifndef API_CLIENT_H
#define API_CLIENT_H

#include <stdbool.h>

#include "hcache.h"
#include "api/answers.h"
#include "api/fault.h"
#include "api/recent.h"

/* How an answer ended. */
enum answer_end {
    ANSWER_DONE,
    ANSWER_CANCELLED,
    ANSWER_FAILED,
    ANSWER_TIMEOUT,
    ANSWER_ENDS
};

/* Functions that are NULL are not called. */
struct client_calls {
    /* There is something to read. Called with the engine's lock held, so it must not wait. */
    void (*wake)(void *arg);
    /* An answer was submitted. */
    void (*began)(void *arg);
    /* An answer has ended. r: its result, or NULL. missed: the result has a miss reason. */
    void (*ended)(void *arg, enum answer_end end, const struct hcache_result *r,
                  bool missed);
};

/* The names by which requests may name the model. */
struct model_names {
    const char *const *items; /* the first one is shown in answers */
    int n;
    const char *in_file; /* the name in the file's metadata; NULL: none */
    bool any;            /* every other name is accepted, too */
    /* The model's file, for messages; NULL: unknown. */
    const char *path;
    uint64_t file_bytes; /* bytes of its files; 0: unknown */
    /* All models of the server, of which this is one. The names of the others are refused. n_served
     * 0: there is one model. */
    const struct model_names *served;
    int n_served;
};

/* A generation copies this struct, and borrows all that it points to until it is freed. */
struct dates;

struct client {
    struct hcache *h;
    const char *model_name; /* names.items[0], which answers show */
    struct model_names names;
    /* Remembers the tokens of earlier answers; NULL: nothing is remembered. */
    struct answers *answers;
    struct recent
        *recent; /* notes how the state of answers came back; NULL: nothing is noted */
    const char *agent; /* how the client names itself; NULL: it does not */
    const char *salt;  /* salt of the client's API key; NULL: no salt */
    const char *plan;  /* plan of every restore; NULL: auto */
    /* Decides on the date that a prompt shows (api/dates.h); NULL: the present one. */
    struct dates *dates;
    const char *moment; /* moment that counts as the present one; NULL: the clock's */
    /* Switches of the server, as in struct server_opts (server/server.h). */
    bool plain_chat, parse_special;
    /* Numbers for requests that truncate; ratio 0: no request can truncate. */
    struct hcache_truncation truncation;
    /* The answer is a function of the request alone. Its id, time and seed come from the fields
     * below. It leaves out timings and cached tokens, which depend on earlier runs. */
    bool repeatable, has_seed;
    const char *request_name; /* at most 32 characters */
    int64_t created_s;
    uint64_t seed; /* of requests that name none; without has_seed each draws its own */
    int max_queue; /* most requests that may wait; 0: unknown */
    int own_queue; /* requests of this salt that may wait although max_queue others do */
    const struct client_calls *calls;
    void *arg;
};

/* Checks that `name` is a name of the client's model: a listed one, the one in the file's metadata,
 * or "default". ".gguf" or ":latest" at the end, and an organisation in front of a model's own
 * name, make no difference. Without a name (NULL) it passes. Returns 0, or -1 with *f, which lists
 * them. */
int client_check_model(const struct client *c, const char *name, struct fault *f);
/* Returns the index of the model with that name, or -1 if none of the n models has it. NULL and
 * "default" name the first model. */
int client_find_model(const struct model_names *models, int n, const char *name);
/* Returns the salt of a request's state, made from its key's salt and its own cache_salt (NULL: it
 * has none). The result is from malloc; NULL is the empty salt. */
char *client_state_salt(const struct client *c, const char *cache_salt);

#endif
