/* wire.h - a connection to a remote that never waits beyond its deadline.
 *
 * Every call has a deadline (of clock_now_ns), after which it returns -ETIMEDOUT. It returns
 * ERR_CANCELLED at once when the stop descriptor becomes readable. After any error but
 * -ETIMEDOUT the connection can no longer be used. No call raises SIGPIPE, which could end a
 * program that uses this library. One thread at a time. */
#ifndef REDIS_WIRE_H
#define REDIS_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

struct tls;
struct tls_session;

struct wire {
    int fd, stop_fd;
    struct tls_session *session; /* NULL: no TLS */
};

/* Connects to a server. tls NULL: without TLS. */
int wire_open(struct wire *w, const char *host, int port, int stop_fd,
              const struct tls *tls, int64_t deadline_ns, struct err *err);
void wire_close(struct wire *w);

/* Sends bytes [*n_sent, n), and increases *n_sent by the bytes sent. After -ETIMEDOUT the call may
 * be repeated. */
int wire_send(struct wire *w, const void *bytes, size_t n, size_t *n_sent,
              int64_t deadline_ns, struct err *err);
/* Returns how many bytes came (at least one), or a negative code. */
ssize_t wire_receive(struct wire *w, void *bytes, size_t n, int64_t deadline_ns,
                     struct err *err);

#endif
