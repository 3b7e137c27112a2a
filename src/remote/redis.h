/* redis.h - the protocol of Redis over a wire: commands out, answers in, many in flight.
 *
 * hiredis reads the answers.  Their size is bounded, and so is what a remote that lies about
 * sizes can make this process keep.  After an error (a code, not an answer REDIS_REFUSED) the
 * connection is of no use any more: answers in flight belong to nobody.  One thread at a time. */
#ifndef REMOTE_REDIS_H
#define REMOTE_REDIS_H

#include <stdbool.h>

#include "remote/url.h"
#include "remote/wire.h"

struct redis;

struct redis_opts {
    const struct remote_url *url; /* user, password, database */
    const struct tls *tls;        /* NULL: none */
    int stop_fd;                  /* see wire.h */
    size_t max_answer_bytes;      /* a larger one is ERR_LIMIT */
};

/* Connects, authenticates, selects the database, and hears an answer. */
int redis_open(const struct redis_opts *o, const char *host, int port, int64_t deadline_ns,
               struct redis **out, struct err *err);
void redis_close(struct redis *r); /* NULL is allowed */

/* One argument of a command. */
struct redis_arg {
    const void *bytes;
    size_t n_bytes;
};
#define REDIS_TEXT(s) ((struct redis_arg){(s), strlen(s)})

/* Queues a command; large arguments are sent at once. */
int redis_command(struct redis *r, const struct redis_arg *args, int n_args,
                  int64_t deadline_ns, struct err *err);
/* Sends what is queued.  Behind -ETIMEDOUT it may be called again. */
int redis_flush(struct redis *r, int64_t deadline_ns, struct err *err);

enum redis_kind {
    REDIS_NONE,    /* there is no such thing */
    REDIS_NUMBER,  /* number */
    REDIS_BYTES,   /* bytes: a string, or a status */
    REDIS_REFUSED, /* bytes: why, in printable ASCII */
    /* Strings of a list of any depth, one behind the other: redis_next.  Numbers
     * are strings of digits. */
    REDIS_LIST
};

struct redis_answer {
    enum redis_kind kind;
    int64_t number;
    uint8_t *bytes; /* with a final zero that does not count */
    size_t n_bytes, max_bytes;
};
void redis_answer_deinit(struct redis_answer *a);
/* The next string of a list: *at begins with 0.  False behind the last. */
bool redis_next(const struct redis_answer *a, size_t *at, const char **bytes,
                size_t *n_bytes);

/* Receives some bytes and hands out the next answer where they complete it, in the order of the
 * commands.  *complete is false where more must come.  -ETIMEDOUT at the deadline. */
int redis_receive_some(struct redis *r, int64_t deadline_ns, struct redis_answer *out,
                       bool *complete, struct err *err);
/* Sends what is queued and waits for the whole of the next answer, timeout_ns at
 * most: -ETIMEDOUT. */
int redis_receive(struct redis *r, int64_t timeout_ns, struct redis_answer *out,
                  struct err *err);
/* Sends a command and waits for its answer, with nothing in flight before it.  Sending has
 * timeout_ns, and so has the answer. */
int redis_ask(struct redis *r, const struct redis_arg *args, int n_args, int64_t timeout_ns,
              struct redis_answer *out, struct err *err);

#endif
