/* tls.c - see tls.h. */
#include "redis/tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/mem.h"
#include "base/minmax.h"

struct tls {
    SSL_CTX *ctx;
    BIO_METHOD *socket; /* like OpenSSL's socket BIO, but a closed peer raises no SIGPIPE */
};

struct tls_session {
    SSL *ssl;
    char host[256];
};

/* --- the socket ------------------------------------------------------------------------------- */

static int fd_of(BIO *b)
{
    return (int)(intptr_t)BIO_get_data(b);
}

/* Converts the result of send or recv to OpenSSL's convention. */
static int moved(BIO *b, ssize_t n, int retry)
{
    BIO_clear_retry_flags(b);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_flags(b, retry | BIO_FLAGS_SHOULD_RETRY);
    return (int)n;
}

static int socket_write(BIO *b, const char *bytes, int n)
{
    return moved(b, send(fd_of(b), bytes, (size_t)n, MSG_NOSIGNAL), BIO_FLAGS_WRITE);
}

static int socket_read(BIO *b, char *bytes, int n)
{
    return moved(b, recv(fd_of(b), bytes, (size_t)n, 0), BIO_FLAGS_READ);
}

static long socket_ctrl(BIO *b, int what, long n, void *p)
{
    (void)b, (void)n, (void)p;
    return what == BIO_CTRL_FLUSH;
}

static BIO_METHOD *socket_method(void)
{
    BIO_METHOD *m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    if (m != NULL) {
        BIO_meth_set_write(m, socket_write);
        BIO_meth_set_read(m, socket_read);
        BIO_meth_set_ctrl(m, socket_ctrl);
    }
    return m;
}

/* --- certificates ----------------------------------------------------------------------------- */

/* Returns why the last call of OpenSSL failed. */
static const char *reason(void)
{
    unsigned long code = ERR_peek_last_error();
    const char *text = code != 0 ? ERR_reason_error_string(code) : NULL;
    return text != NULL ? text : "no reason is given";
}

static int load(SSL_CTX *ctx, const struct tls_opts *o, struct err *err)
{
    bool ok = o->ca_file != NULL ? SSL_CTX_load_verify_locations(ctx, o->ca_file, NULL) == 1
                                 : SSL_CTX_set_default_verify_paths(ctx) == 1;
    if (!ok)
        return err_set(err, ERR_USAGE,
                       "--remote-ca: no certificates can be read from %s: %s",
                       o->ca_file != NULL ? o->ca_file : "the system's store", reason());
    if ((o->cert_file == NULL) != (o->key_file == NULL))
        return err_set(err, ERR_USAGE, "--remote-cert and --remote-key need each other");
    if (o->cert_file == NULL)
        return 0;
    if (SSL_CTX_use_certificate_chain_file(ctx, o->cert_file) != 1)
        return err_set(err, ERR_USAGE,
                       "--remote-cert: no certificate can be read from %s: %s",
                       o->cert_file, reason());
    if (SSL_CTX_use_PrivateKey_file(ctx, o->key_file, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(ctx) != 1)
        return err_set(err, ERR_USAGE,
                       "--remote-key: %s has no key for the certificate: %s", o->key_file,
                       reason());
    return 0;
}

int tls_open(const struct tls_opts *o, struct tls **out, struct err *err)
{
    struct tls *t = xcalloc(1, sizeof *t);
    ERR_clear_error();
    t->ctx = SSL_CTX_new(TLS_client_method());
    t->socket = socket_method();
    if (t->ctx == NULL || t->socket == NULL) {
        tls_close(t);
        return err_set(err, -ENOMEM, "no memory for TLS");
    }
    SSL_CTX_set_min_proto_version(t->ctx, TLS1_2_VERSION);
    SSL_CTX_set_verify(t->ctx, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(t->ctx,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(t->ctx, 1); /* one call of recv may read several records */
    int rc = load(t->ctx, o, err);
    if (rc != 0) {
        tls_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

void tls_close(struct tls *t)
{
    if (t == NULL)
        return;
    SSL_CTX_free(t->ctx);
    BIO_meth_free(t->socket);
    free(t);
}

/* --- a session -------------------------------------------------------------------------------- */

/* Requires a certificate that was issued for this host. */
static bool expect_host(SSL *ssl, const char *host)
{
    uint8_t address[16];
    bool is_address = inet_pton(AF_INET, host, address) == 1 ||
                      inet_pton(AF_INET6, host, address) == 1;
    if (is_address)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set1_host(ssl, host) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1;
}

int tls_session_open(const struct tls *t, int fd, const char *host,
                     struct tls_session **out, struct err *err)
{
    struct tls_session *s = xcalloc(1, sizeof *s);
    ERR_clear_error();
    s->ssl = SSL_new(t->ctx);
    BIO *b = BIO_new(t->socket);
    if (s->ssl == NULL || b == NULL || !expect_host(s->ssl, host)) {
        BIO_free(b);
        tls_session_close(s);
        return err_set(err, -ENOMEM, "TLS with host '%s' cannot begin: %s", host, reason());
    }
    BIO_set_data(b, (void *)(intptr_t)fd);
    BIO_set_init(b, 1);
    SSL_set_bio(s->ssl, b, b);
    SSL_set_connect_state(s->ssl);
    (void)snprintf(s->host, sizeof s->host, "%.255s", host);
    *out = s;
    return 0;
}

void tls_session_close(struct tls_session *s)
{
    if (s == NULL)
        return;
    SSL_free(s->ssl);
    free(s);
}

/* Interprets the result n of a TLS call. Returns n if bytes were moved, 0 if the socket must first
 * be ready for *events, or a code. */
static ssize_t judge(struct tls_session *s, int n, short *events, struct err *err)
{
    if (n > 0)
        return n;
    int why = SSL_get_error(s->ssl, n), fault = errno;
    *events = why == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN;
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
        return 0;
    long refused = SSL_get_verify_result(s->ssl);
    if (refused != X509_V_OK)
        return err_set(err, -EACCES, "the certificate of '%s' is not accepted: %s", s->host,
                       X509_verify_cert_error_string(refused));
    if (why == SSL_ERROR_SSL)
        return err_set(err, -EPROTO, "TLS: %s", reason());
    if (why == SSL_ERROR_SYSCALL && n < 0 && fault != 0)
        return err_set(err, -fault, "TLS: %s", strerror(fault));
    return err_set(err, -EPIPE, "the remote has closed the connection");
}

static int at_most(size_t n)
{
    return (int)MIN(n, INT_MAX);
}

ssize_t tls_shake(struct tls_session *s, short *events, struct err *err)
{
    ERR_clear_error();
    errno = 0;
    return judge(s, SSL_do_handshake(s->ssl), events, err);
}

ssize_t tls_send(struct tls_session *s, const void *bytes, size_t n, short *events,
                 struct err *err)
{
    ERR_clear_error();
    errno = 0;
    return judge(s, SSL_write(s->ssl, bytes, at_most(n)), events, err);
}

ssize_t tls_receive(struct tls_session *s, void *bytes, size_t n, short *events,
                    struct err *err)
{
    ERR_clear_error();
    errno = 0;
    return judge(s, SSL_read(s->ssl, bytes, at_most(n)), events, err);
}
