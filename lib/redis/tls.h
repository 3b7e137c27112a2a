/* tls.h - TLS under a connection to a remote, by OpenSSL.
 *
 * A `struct tls` holds the trusted certificates and this process's own certificate. Many
 * connections of many threads share one. A connection is used only after the peer's certificate
 * was verified: signed by a trusted authority, valid today, and issued for the host's name or
 * address. TLS 1.2 is the minimum. */
#ifndef REDIS_TLS_H
#define REDIS_TLS_H

#include <stddef.h>
#include <sys/types.h>

#include "base/err.h"

struct tls;

struct tls_opts {
    const char *ca_file; /* PEM: trusted authorities; NULL: the system's authorities */
    /* PEM: this process's own certificate and key; NULL: it has none. */
    const char *cert_file, *key_file;
};

/* Loads the certificates and keys. Returns ERR_USAGE if a file cannot be used; the message names
 * the file. */
int tls_open(const struct tls_opts *o, struct tls **out, struct err *err);
void tls_close(struct tls *t); /* NULL is allowed */

/* One connection over a non-blocking socket. The socket stays the caller's. */
struct tls_session;
int tls_session_open(const struct tls *t, int fd, const char *host,
                     struct tls_session **out, struct err *err);
void tls_session_close(struct tls_session *s); /* NULL is allowed */

/* Each returns the bytes moved (tls_shake: 1 when the session is ready), a negative code, or 0 if
 * the socket must first be ready for *events (flags of poll). -EPIPE means that the peer has closed
 * the connection. */
ssize_t tls_shake(struct tls_session *s, short *events, struct err *err);
ssize_t tls_send(struct tls_session *s, const void *bytes, size_t n, short *events,
                 struct err *err);
ssize_t tls_receive(struct tls_session *s, void *bytes, size_t n, short *events,
                    struct err *err);

#endif
