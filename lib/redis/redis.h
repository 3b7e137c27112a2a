/* redis.h - the protocol of Redis over a wire: commands out, answers in, many in flight.
 *
 * hiredis reads the answers. Their size is bounded, so a remote that lies about sizes cannot
 * make this process allocate without bound. After an error (a code, not an answer REDIS_REFUSED)
 * the connection can no longer be used: answers in flight are lost. One thread at a time. */
#ifndef REDIS_REDIS_H
#define REDIS_REDIS_H

#include <stdbool.h>

#include "redis/url.h"
#include "redis/wire.h"

struct redis;

struct redis_opts {
    const struct remote_url *url; /* gives user, password and database */
    const struct tls *tls;        /* NULL: no TLS */
    int stop_fd; /* descriptor that stops every call when it is readable (wire.h) */
    size_t max_answer_bytes; /* a larger answer returns ERR_LIMIT */
};

/* Connects, authenticates, selects the database, and waits for an answer. */
int redis_open(const struct redis_opts *o, const char *host, int port, int64_t deadline_ns,
               struct redis **out, struct err *err);
void redis_close(struct redis *r); /* closes the connection; NULL is allowed */

/* One argument of a command. */
struct redis_arg {
    const void *bytes;
    size_t n_bytes;
};
#define REDIS_TEXT(s) ((struct redis_arg){(s), strlen(s)})

/* Queues a command. Large arguments are sent at once. */
int redis_command(struct redis *r, const struct redis_arg *args, int n_args,
                  int64_t deadline_ns, struct err *err);
/* Sends queued commands. After -ETIMEDOUT the call may be repeated. */
int redis_flush(struct redis *r, int64_t deadline_ns, struct err *err);

enum redis_kind {
    REDIS_NONE,   /* nil: there is no value */
    REDIS_NUMBER, /* an integer, in `number` */
    REDIS_BYTES,  /* a string or a status, in `bytes` */
    /* the remote refused the command; `bytes` has the reason, in printable ASCII */
    REDIS_REFUSED,
    /* A list of any depth, as its strings one behind the other: see redis_next. Its numbers are
     * strings of digits. */
    REDIS_LIST
};

struct redis_answer {
    enum redis_kind kind;
    int64_t number;
    uint8_t *bytes; /* memory of the answer, with a final zero that is not counted */
    size_t n_bytes, max_bytes;
    /* bytes received of an incomplete answer, including bytes of the protocol */
    size_t n_here;
};
void redis_answer_deinit(struct redis_answer *a);
/* Returns the next string of a list; *at is 0 before the first call. Returns false behind the
 * last. */
bool redis_next(const struct redis_answer *a, size_t *at, const char **bytes,
                size_t *n_bytes);
/* Returns in how many lists the next string lies: 1 for a string of the answer's own list. Returns
 * 0 behind the last string. */
int redis_depth(const struct redis_answer *a, size_t at);

/* Receives some bytes. If they complete the next answer, in the order of the commands, hands it out
 * and sets *complete. *out has no bytes before the first call for an answer. Returns -ETIMEDOUT at
 * the deadline. */
int redis_receive_some(struct redis *r, int64_t deadline_ns, struct redis_answer *out,
                       bool *complete, struct err *err);
/* Sends queued commands and waits for the whole of the next answer. Returns -ETIMEDOUT after
 * timeout_ns. */
int redis_receive(struct redis *r, int64_t timeout_ns, struct redis_answer *out,
                  struct err *err);
/* Sends a command, with nothing in flight before it, and waits for its answer. Sending and the
 * answer may each take timeout_ns. */
int redis_ask(struct redis *r, const struct redis_arg *args, int n_args, int64_t timeout_ns,
              struct redis_answer *out, struct err *err);

#endif
