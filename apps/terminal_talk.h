/* terminal_talk.h - the conversation behind `hcache run -i`: of this process, or of a server.
 *
 *     terminal_local.c    over kept conversations (sessions/talk.h): in the store's file, or in memory
 *     terminal_remote.c   over a running server's API (--url)
 *
 * One thread.  Functions return 0, or a code with *err. */
#ifndef APPS_TERMINAL_TALK_H
#define APPS_TERMINAL_TALK_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "sessions/talk.h"

/* How an answer has ended. */
struct terminal_end {
    char finish[32]; /* "stop", "length", "cancelled", "timeout" */
    int n_tokens;    /* of the answer */
    int used,
        context; /* tokens of the conversation by now, and that the context holds; 0: not known */
    const struct hcache_result *result; /* until the next call; NULL: a server's answer */
};

/* Receives an answer as it comes. */
struct terminal_sink {
    int (*text)(void *arg, const char *text, size_t n); /* non-zero stops the answer */
    void (*prompt)(void *arg, int n_done); /* tokens of the prompt have their state */
    bool (*is_stopped)(void *arg);         /* asked often, before the first text, too */
    void *arg;
};

struct terminal_talk; /* the implementation's */

struct terminal_ops {
    void (*close)(struct terminal_talk *t);
    /* Goes to the conversation of that id or title, or begins one; name NULL: one without a
     * title.  Where it fails t stays in its own. */
    int (*go)(struct terminal_talk *t, const char *name, struct err *err);
    /* text NULL: the last question again, on a branch.  A stopped answer is kept as
     * far as it came. */
    int (*say)(struct terminal_talk *t, const char *text, size_t n,
               const struct terminal_sink *sink, struct terminal_end *end, struct err *err);
    int (*branch)(struct terminal_talk *t, int back,
                  struct err *err);                        /* from `back` answers ago on */
    int (*list)(struct terminal_talk *t, struct err *err); /* prints the conversations */
    int (*n_turns)(struct terminal_talk *t);
    const char *(*title)(struct terminal_talk *t); /* NULL: none */
    char *(*last_answer)(struct terminal_talk *t); /* the caller frees it; NULL: none */
};

/* The head of every implementation. */
struct terminal_talk {
    const struct terminal_ops *ops;
};

/* How answers are sampled. */
struct terminal_sampling {
    struct hcache_request q; /* max_tokens -1: what is left of the context */
    bool retries_vary; /* a retry at temperature 0 would be the same answer: it has 0.7 */
    int n_retries;     /* so far; each has a seed of its own */
};
/* Returns the request of the next answer. is_retry: of the last question, again. */
struct hcache_request terminal_request(struct terminal_sampling *s, bool is_retry);

struct terminal_local_opts {
    struct talk_opts talk; /* conversations: of `path`, set here */
    const char *path;      /* the file of conversations; NULL: in memory */
    struct terminal_sampling sampling;
};
int terminal_local(const struct terminal_local_opts *o, struct terminal_talk **out,
                   struct err *err);

struct terminal_remote_opts {
    const char *url, *key; /* key NULL: none */
    const char *system; /* the system's message of a conversation that begins; NULL: none */
    struct terminal_sampling sampling;
};
/* Asks the server for its model, so that a wrong address fails at once. */
int terminal_remote(const struct terminal_remote_opts *o, struct terminal_talk **out,
                    struct err *err);

/* A line of a list of conversations, as both print it. */
void terminal_list_line(const char *id, int n_turns, const char *title);

#endif
