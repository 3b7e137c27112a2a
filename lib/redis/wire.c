/* wire.c - see wire.h. */
#include "redis/wire.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "redis/tls.h"
#include "base/thread.h"

#define STOPPED "stopped waiting for the remote"

/* Waits until the socket is ready for `events`. */
static int await(const struct wire *w, short events, int64_t deadline_ns, struct err *err)
{
    for (;;) {
        struct pollfd p[2] = {{.fd = w->fd, .events = events},
                              {.fd = w->stop_fd, .events = POLLIN}};
        int64_t left_ns = deadline_ns - clock_now_ns();
        int64_t ms = left_ns > 0 ? (left_ns + 999999) / 1000000 : 0;
        int n = poll(p, 2, (int)MIN(ms, 60000));
        if (n < 0 && errno != EINTR)
            return err_set(err, -errno, "waiting for the remote: %s", strerror(errno));
        if (n > 0 && p[1].revents != 0)
            return err_set(err, ERR_CANCELLED, STOPPED);
        if (n > 0 && p[0].revents != 0)
            return 0;
        if (clock_now_ns() >= deadline_ns)
            return err_set(err, -ETIMEDOUT, "the remote does not answer");
    }
}

/* Returns ERR_CANCELLED once the stop descriptor is readable, else 0. This check is needed because
 * a peer that always sends is never waited for, so that waiting alone would not notice the stop. */
static int check_stop(const struct wire *w, struct err *err)
{
    struct pollfd p = {.fd = w->stop_fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0 ? err_set(err, ERR_CANCELLED, STOPPED) : 0;
}

static int connect_to(struct wire *w, const struct addrinfo *a, int64_t deadline_ns,
                      struct err *err)
{
    int on = 1, fault = 0;
    socklen_t n = sizeof fault;
    w->fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                   a->ai_protocol);
    if (w->fd < 0)
        return err_set(err, -errno, "no socket: %s", strerror(errno));
    (void)setsockopt(w->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(w->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    if (connect(w->fd, a->ai_addr, a->ai_addrlen) == 0)
        return 0;
    if (errno != EINPROGRESS)
        return err_set(err, -errno, "connecting: %s", strerror(errno));
    int rc = await(w, POLLOUT, deadline_ns, err);
    if (rc == 0 && getsockopt(w->fd, SOL_SOCKET, SO_ERROR, &fault, &n) != 0)
        fault = errno;
    return rc != 0 || fault == 0 ? rc
                                 : err_set(err, -fault, "connecting: %s", strerror(fault));
}

/* Starts TLS, in which the peer proves its identity. */
static int shake(struct wire *w, const struct tls *tls, const char *host,
                 int64_t deadline_ns, struct err *err)
{
    int rc = tls_session_open(tls, w->fd, host, &w->session, err);
    while (rc == 0) {
        short events;
        ssize_t n = tls_shake(w->session, &events, err);
        if (n != 0)
            return n > 0 ? 0 : (int)n;
        rc = await(w, events, deadline_ns, err);
    }
    return rc;
}

/* --- names ------------------------------------------------------------------------------------ */

/* The look-up of a name. The C library can neither bound nor cancel it, so it has a thread of its
 * own, which a caller that gives up leaves behind. The last of both frees it. */
struct lookup {
    atomic_int n_users;
    int done_fd; /* readable when the look-up has ended */
    char *host, service[16];
    struct addrinfo *list;
    atomic_int rc; /* stored behind list: who has read it may read list */
};

/* Threads that look names up. A resolver that hangs holds each for its own time, often 10 s. */
enum { MAX_LOOKUPS = 8 };
static atomic_int n_lookups;

static void lookup_drop(struct lookup *l)
{
    if (atomic_fetch_sub(&l->n_users, 1) > 1)
        return;
    if (l->list != NULL)
        freeaddrinfo(l->list);
    close(l->done_fd);
    free(l->host);
    free(l);
}

static void *lookup_main(void *arg)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct lookup *l = arg;
    atomic_store(&l->rc, getaddrinfo(l->host, l->service, &hints, &l->list));
    (void)eventfd_write(l->done_fd, 1);
    atomic_fetch_sub(&n_lookups, 1);
    lookup_drop(l);
    return NULL;
}

static int lookup_start(struct lookup *l, struct err *err)
{
    pthread_t id;
    if (l->done_fd < 0)
        return err_set(err, -errno, "no descriptor: %s", strerror(errno));
    if (atomic_fetch_add(&n_lookups, 1) >= MAX_LOOKUPS) {
        atomic_fetch_sub(&n_lookups, 1);
        return err_set(err, -ETIMEDOUT, "host '%s': earlier look-ups of names hang",
                       l->host);
    }
    atomic_store(&l->n_users, 2);
    int rc = thread_create(&id, lookup_main, l);
    if (rc == 0) {
        pthread_detach(id);
        return 0;
    }
    atomic_fetch_sub(&n_lookups, 1);
    atomic_store(&l->n_users, 1);
    return err_set(err, -rc, "no thread: %s", strerror(rc));
}

/* Resolves a name. A numeric address needs no thread. The caller frees *out. */
static int resolve(struct wire *w, const char *host, const char *service,
                   int64_t deadline_ns, struct addrinfo **out, struct err *err)
{
    const struct addrinfo numeric = {.ai_socktype = SOCK_STREAM,
                                     .ai_flags = AI_NUMERICHOST};
    if (getaddrinfo(host, service, &numeric, out) == 0)
        return 0;
    struct lookup *l = xcalloc(1, sizeof *l);
    atomic_init(&l->n_users, 1);
    l->host = xstrdup(host);
    snprintf(l->service, sizeof l->service, "%s", service);
    l->done_fd = w->fd = eventfd(0, EFD_CLOEXEC);
    int rc = lookup_start(l, err);
    if (rc == 0 && (rc = await(w, POLLIN, deadline_ns, err)) == -ETIMEDOUT)
        err_set(err, rc, "host '%s': the look-up of its name does not end", host);
    w->fd = -1;
    int found = rc == 0 ? atomic_load(&l->rc) : 0;
    if (found != 0)
        rc = err_set(err, ERR_NOT_FOUND, "host '%s': %s", host, gai_strerror(found));
    if (rc == 0) {
        *out = l->list;
        l->list = NULL;
    }
    lookup_drop(l);
    return rc;
}

int wire_open(struct wire *w, const char *host, int port, int stop_fd,
              const struct tls *tls, int64_t deadline_ns, struct err *err)
{
    struct addrinfo *list = NULL;
    char service[16];
    *w = (struct wire){.fd = -1, .stop_fd = stop_fd};
    snprintf(service, sizeof service, "%d", port);
    int rc = resolve(w, host, service, deadline_ns, &list, err);
    if (rc != 0)
        return rc;
    rc = ERR_NOT_FOUND;
    for (const struct addrinfo *a = list; a != NULL && rc != 0; a = a->ai_next) {
        wire_close(w);
        rc = connect_to(w, a, deadline_ns, err);
        if (rc == ERR_CANCELLED)
            break;
    }
    freeaddrinfo(list);
    if (rc == 0 && tls != NULL)
        rc = shake(w, tls, host, deadline_ns, err);
    if (rc != 0)
        wire_close(w);
    return rc;
}

void wire_close(struct wire *w)
{
    tls_session_close(w->session);
    w->session = NULL;
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
}

/* Returns how many bytes were sent, a code, or 0 if the socket must first be ready for *events. */
static ssize_t send_some(struct wire *w, const void *bytes, size_t n, short *events,
                         struct err *err)
{
    if (w->session != NULL)
        return tls_send(w->session, bytes, n, events, err);
    ssize_t k = send(w->fd, bytes, n, MSG_NOSIGNAL);
    *events = POLLOUT;
    if (k < 0 && errno != EAGAIN && errno != EINTR)
        return err_set(err, -errno, "sending: %s", strerror(errno));
    return MAX(k, 0);
}

int wire_send(struct wire *w, const void *bytes, size_t n, size_t *n_sent,
              int64_t deadline_ns, struct err *err)
{
    int stopped = check_stop(w, err);
    if (stopped != 0)
        return stopped;
    while (*n_sent < n) {
        short events;
        ssize_t k = send_some(w, (const char *)bytes + *n_sent, n - *n_sent, &events, err);
        int rc = k == 0 ? await(w, events, deadline_ns, err) : k < 0 ? (int)k : 0;
        if (rc != 0)
            return rc;
        *n_sent += (size_t)k;
    }
    return 0;
}

static ssize_t receive_some(struct wire *w, void *bytes, size_t n, short *events,
                            struct err *err)
{
    if (w->session != NULL)
        return tls_receive(w->session, bytes, n, events, err);
    ssize_t k = recv(w->fd, bytes, n, 0);
    *events = POLLIN;
    if (k == 0)
        return err_set(err, -EPIPE, "the remote has closed the connection");
    if (k < 0 && errno != EAGAIN && errno != EINTR)
        return err_set(err, -errno, "receiving: %s", strerror(errno));
    return MAX(k, 0);
}

ssize_t wire_receive(struct wire *w, void *bytes, size_t n, int64_t deadline_ns,
                     struct err *err)
{
    int stopped = check_stop(w, err);
    if (stopped != 0)
        return stopped;
    for (;;) {
        short events;
        ssize_t k = receive_some(w, bytes, n, &events, err);
        int rc = k == 0 ? await(w, events, deadline_ns, err) : 0;
        if (k != 0 || rc != 0)
            return k != 0 ? k : rc;
    }
}
