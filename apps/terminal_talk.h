/* terminal_talk.h - the conversation behind `hcache run -i`, which this process or a server keeps.
 *
 *     terminal_local.c    uses kept conversations (api/talk.h): in the store's file, or in memory
 *     terminal_remote.c   uses a running server's API (--url)
 *
 * One thread. Functions return 0, or a code with *err. */
#ifndef APPS_TERMINAL_TALK_H
#define APPS_TERMINAL_TALK_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "apps/talk.h"

/* Facts about an answer that has ended. */
struct terminal_end {
    char finish[32]; /* why the answer ended: "stop", "length", "cancelled", "timeout" */
    int n_tokens;    /* tokens of the answer */
    /* Tokens of the conversation so far, and of the context; 0: not known. */
    int used, context;
    /* The answer's result, valid until the next call; NULL: a server made the answer. */
    const struct hcache_result *result;
};

/* Receives an answer as it is generated. */
struct terminal_sink {
    /* Gets the next piece of the answer. A non-zero result stops the answer. */
    int (*text)(void *arg, const char *text, size_t n);
    /* Gets the number of tokens of the prompt that have their state. */
    void (*prompt)(void *arg, int n_done);
    /* Called often, also before the first text. If it returns true, the answer is stopped. */
    bool (*is_stopped)(void *arg);
    void *arg;
};

struct terminal_talk; /* each implementation has a struct that begins with this one */

struct terminal_ops {
    void (*close)(struct terminal_talk *t);
    /* Changes to the conversation that has this id or title, or begins one with this title. name
     * NULL: begins one without a title. After a failure the present conversation stays. */
    int (*go)(struct terminal_talk *t, const char *name, struct err *err);
    /* Sends a message. text NULL: asks the last question again, on a branch. An answer that is
     * stopped is kept as far as it came. */
    int (*say)(struct terminal_talk *t, const char *text, size_t n,
               const struct terminal_sink *sink, struct terminal_end *end, struct err *err);
    /* Makes a branch that ends `back` answers ago, and changes to it. */
    int (*branch)(struct terminal_talk *t, int back, struct err *err);
    /* prints a list of the conversations */
    int (*list)(struct terminal_talk *t, struct err *err);
    int (*n_turns)(struct terminal_talk *t);
    /* returns the title; NULL: it has none */
    const char *(*title)(struct terminal_talk *t);
    /* returns the last answer, which the caller frees; NULL: there is none */
    char *(*last_answer)(struct terminal_talk *t);
};

/* Every implementation has this struct as its first member. */
struct terminal_talk {
    const struct terminal_ops *ops;
};

/* Options of sampling, and the state for retries. */
struct terminal_sampling {
    struct hcache_request q; /* its max_tokens may be -1: the rest of the context */
    /* A retry at temperature 0 would give the same answer, so retries use 0.7. */
    bool retries_vary;
    int n_retries; /* number of retries so far; each has a seed of its own */
};
/* Returns the request of the next answer. is_retry: the request repeats the last question. */
struct hcache_request terminal_request(struct terminal_sampling *s, bool is_retry);

struct terminal_local_opts {
    struct talk_opts talk;   /* talk.conversations is set from `path` */
    const char *path;        /* file of the conversations; NULL: they are kept in memory */
    const struct seal *seal; /* encrypts that file; NULL: it is plain */
    struct terminal_sampling sampling;
};
int terminal_local(const struct terminal_local_opts *o, struct terminal_talk **out,
                   struct err *err);

struct terminal_remote_opts {
    const char *url, *key; /* address of the server, and the API key; key NULL: none */
    const char *system;    /* system's message of a new conversation; NULL: none */
    struct terminal_sampling sampling;
};
/* Opens a conversation of a server. Asks the server for its model first, so that a wrong address
 * fails at once. */
int terminal_remote(const struct terminal_remote_opts *o, struct terminal_talk **out,
                    struct err *err);

/* Prints one line of a list of conversations, for both implementations. */
void terminal_list_line(const char *id, int n_turns, const char *title);

#endif
