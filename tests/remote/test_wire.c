/* test_wire.c - a connection: how it is set up, what it says when it fails, and that bytes are sent
 * later if the socket does not take them at once. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "redis/tls.h"
#include "redis/wire.h"
#include "tests/remote/listening.h"

#define SECOND ((int64_t)1000000000)

static int64_t soon(void)
{
    return clock_now_ns() + 60 * SECOND;
}

/* Returns a port of loopback on which nothing listens. */
static int closed_port(void)
{
    int port, fd = listen_here(&port);
    close(fd);
    return port;
}

static int option_of(int fd, int level, int name)
{
    int on = 0;
    socklen_t n = sizeof on;
    assert_int_equal(getsockopt(fd, level, name, &on, &n), 0);
    return on;
}

/* While it is set, look-ups of names do not end. */
static atomic_bool names_hang;
static atomic_int n_hanging;

/* Replaces the C library's function. "name" is loopback. */
int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                struct addrinfo **out)
{
    static int (*real)(const char *, const char *, const struct addrinfo *,
                       struct addrinfo **);
    bool is_ours = strcmp(host, "name") == 0;
    if (is_ours && (hints->ai_flags & AI_NUMERICHOST) != 0)
        return EAI_NONAME;
    if (is_ours) {
        atomic_fetch_add(&n_hanging, 1);
        while (atomic_load(&names_hang))
            clock_sleep_ns(1000000);
        atomic_fetch_sub(&n_hanging, 1);
    }
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    return real(is_ours ? "127.0.0.1" : host, service, hints, out);
}

/* A resolver that hangs holds nobody up beyond the deadline, nor beyond a stop, and not an address.
 * Look-ups that hang are bounded in number. */
TEST(a_name_has_the_same_deadline)
{
    struct wire w;
    struct err err = {0};
    int port, listener = listen_here(&port), stop = eventfd(0, EFD_CLOEXEC);
    atomic_store(&names_hang, true);
    for (int i = 0; i < 10; i++) {
        int64_t now = clock_now_ns();
        assert_int_equal(wire_open(&w, "name", port, stop, NULL, now + SECOND / 50, &err),
                         -ETIMEDOUT);
        assert_in_range(clock_now_ns() - now, 0, 30 * SECOND);
        assert_non_null(strstr(err.msg, "host 'name': "));
        assert_int_equal(w.fd, -1);
    }
    assert_non_null(strstr(err.msg, "hang"));
    assert_in_range(atomic_load(&n_hanging), 1, 8);
    assert_int_equal(wire_open(&w, "127.0.0.1", port, stop, NULL, soon(), &err), 0);
    wire_close(&w);
    atomic_store(&names_hang, false);
    while (atomic_load(&n_hanging) > 0)
        clock_sleep_ns(1000000);
    clock_sleep_ns(20000000); /* the threads that were left behind free what they have */
    assert_int_equal(wire_open(&w, "name", port, stop, NULL, soon(), &err), 0);
    wire_close(&w);
    atomic_store(&names_hang, true);
    assert_int_equal(eventfd_write(stop, 1), 0);
    assert_int_equal(wire_open(&w, "name", port, stop, NULL, soon(), &err), ERR_CANCELLED);
    atomic_store(&names_hang, false);
    while (atomic_load(&n_hanging) > 0)
        clock_sleep_ns(1000000);
    clock_sleep_ns(20000000);
    close(listener);
    close(stop);
}

/* Commands are small and must not wait for each other. A peer that has vanished must be noticed. No
 * call may block. */
TEST(a_connection_is_set_up)
{
    struct wire w;
    int port, listener = listen_here(&port), stop = eventfd(0, EFD_CLOEXEC);
    assert_int_equal(wire_open(&w, "127.0.0.1", port, stop, NULL, soon(), NULL), 0);
    assert_int_not_equal(option_of(w.fd, IPPROTO_TCP, TCP_NODELAY), 0);
    assert_int_not_equal(option_of(w.fd, SOL_SOCKET, SO_KEEPALIVE), 0);
    assert_true(fcntl(w.fd, F_GETFL) & O_NONBLOCK);
    assert_true(fcntl(w.fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(w.stop_fd, stop);
    assert_null(w.session);
    wire_close(&w);
    assert_int_equal(w.fd, -1);
    wire_close(&w);
    close(listener);
    close(stop);
}

/* A process whose standard input is closed gets descriptor 0 for its connection. */
TEST(the_first_descriptor_is_closed)
{
    struct wire w;
    struct stat st;
    int port, listener = listen_here(&port), own = dup(STDIN_FILENO);
    assert_true(own >= 0);
    close(STDIN_FILENO);
    int opened = wire_open(&w, "127.0.0.1", port, -1, NULL, soon(), NULL), fd = w.fd;
    wire_close(&w);
    int rc = fstat(STDIN_FILENO, &st), code = errno;
    assert_int_equal(dup2(own, STDIN_FILENO), STDIN_FILENO);
    close(own);
    close(listener);
    assert_int_equal(opened, 0);
    assert_int_equal(fd, STDIN_FILENO);
    assert_int_equal(rc, -1);
    assert_int_equal(code, EBADF);
}

TEST(a_failure_says_what_failed)
{
    static const char long_label[] = "no-such-host-whose-name-has-a-label-of-more-than-"
                                     "sixty-three-characters.example";
    struct wire w;
    struct err err = {0};
    assert_int_equal(wire_open(&w, "127.0.0.1", closed_port(), -1, NULL, soon(), &err),
                     -ECONNREFUSED);
    assert_string_equal(err.msg, "connecting: Connection refused");
    assert_int_equal(w.fd, -1);
    assert_int_equal(wire_open(&w, long_label, 1, -1, NULL, soon(), &err), ERR_NOT_FOUND);
    assert_ptr_equal(strstr(err.msg, "host 'no-such-host"), err.msg);
    assert_int_equal(w.fd, -1);
    /* fails at once, before any wait */
    assert_int_equal(wire_open(&w, "255.255.255.255", 1, -1, NULL, soon(), &err),
                     -ENETUNREACH);
    assert_string_equal(err.msg, "connecting: Network is unreachable");
    assert_int_equal(w.fd, -1);
}

TEST(a_process_without_descriptors_cannot_connect)
{
    struct wire w;
    struct err err = {0};
    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int rc = wire_open(&w, "127.0.0.1", 1, -1, NULL, soon(), &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(rc, -EMFILE);
    assert_string_equal(err.msg, "no socket: Too many open files");
}

/* A name may have several addresses: each is tried. */
TEST(every_address_of_a_name_is_tried)
{
    struct wire w;
    struct err err = {0};
    int port, listener = listen_here(&port);
    /* ::1 may come first, and nothing listens there */
    assert_int_equal(wire_open(&w, "localhost", port, -1, NULL, soon(), &err), 0);
    wire_close(&w);
    close(listener);
    assert_int_equal(wire_open(&w, "localhost", closed_port(), -1, NULL, soon(), &err),
                     -ECONNREFUSED);
    assert_int_equal(w.fd, -1);
}

/* --- sending and receiving -------------------------------------------------------------------- */

enum { N = 4 << 20 };

struct drain {
    int fd;
    uint8_t *bytes;
};

static void *drain_main(void *arg)
{
    struct drain *d = arg;
    for (size_t at = 0; at < N;) {
        ssize_t n = recv(d->fd, d->bytes + at, N - at, 0);
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    return NULL;
}

/* A socket that is full is waited for. After a timeout the call is repeated, and goes on where it
 * was. */
TEST(a_full_socket_is_waited_for)
{
    int pair[2];
    pthread_t thread;
    struct err err = {0};
    size_t n_sent = 0;
    uint8_t *bytes = malloc(N);
    for (size_t i = 0; i < N; i++)
        bytes[i] = (uint8_t)(i * 7 + (i >> 11));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(fcntl(pair[0], F_SETFL, O_NONBLOCK), 0);
    struct wire w = {.fd = pair[0], .stop_fd = -1};
    int64_t t0 = clock_now_ns();
    assert_int_equal(wire_send(&w, bytes, N, &n_sent, t0 + 2000000, &err), -ETIMEDOUT);
    assert_true(clock_now_ns() - t0 >= 2000000);
    assert_string_equal(err.msg, "the remote does not answer");
    assert_true(n_sent > 0 && n_sent < N);
    struct drain d = {.fd = pair[1], .bytes = malloc(N)};
    assert_int_equal(pthread_create(&thread, NULL, drain_main, &d), 0);
    assert_int_equal(wire_send(&w, bytes, N, &n_sent, soon(), &err), 0);
    assert_int_equal(n_sent, N);
    pthread_join(thread, NULL);
    assert_memory_equal(d.bytes, bytes, N);
    free(d.bytes);
    free(bytes);
    close(pair[0]);
    close(pair[1]);
}

TEST(what_comes_later_is_waited_for)
{
    int pair[2];
    char text[8] = "";
    struct err err = {0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(fcntl(pair[0], F_SETFL, O_NONBLOCK), 0);
    struct wire w = {.fd = pair[0], .stop_fd = -1};
    int64_t t0 = clock_now_ns();
    assert_int_equal(wire_receive(&w, text, 8, t0 + 2000000, &err), -ETIMEDOUT);
    assert_true(clock_now_ns() - t0 >= 2000000);
    assert_int_equal(send(pair[1], "abc", 3, 0), 3);
    assert_int_equal(wire_receive(&w, text, 8, soon(), &err), 3);
    assert_string_equal(text, "abc");
    assert_int_equal(send(pair[1], "defg", 4, 0), 4);
    assert_int_equal(wire_receive(&w, text, 2, soon(), &err), 2);
    assert_int_equal(wire_receive(&w, text + 2, 6, soon(), &err), 2);
    assert_memory_equal(text, "defg", 4);
    close(pair[1]);
    assert_int_equal(wire_receive(&w, text, 8, soon(), &err), -EPIPE);
    assert_string_equal(err.msg, "the remote has closed the connection");
    close(pair[0]);
    w.fd = -1; /* no socket at all */
    size_t n_sent = 0;
    assert_int_equal(wire_receive(&w, text, 8, soon(), &err), -EBADF);
    assert_string_equal(err.msg, "receiving: Bad file descriptor");
    assert_int_equal(wire_send(&w, text, 8, &n_sent, soon(), &err), -EBADF);
    assert_string_equal(err.msg, "sending: Bad file descriptor");
    assert_int_equal(n_sent, 0);
}

/* The stop descriptor ends a wait at once, and also a call that would not have to wait. */
TEST(a_stop_has_its_own_code)
{
    int pair[2], stop = eventfd(0, EFD_CLOEXEC);
    char byte;
    size_t n_sent = 0;
    struct err err = {0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(fcntl(pair[0], F_SETFL, O_NONBLOCK), 0);
    struct wire w = {.fd = pair[0], .stop_fd = stop};
    assert_int_equal(wire_send(&w, "x", 1, &n_sent, soon(), &err), 0);
    assert_int_equal(eventfd_write(stop, 1), 0);
    assert_int_equal(wire_send(&w, "xy", 2, &n_sent, soon(), &err), ERR_CANCELLED);
    assert_string_equal(err.msg, "stopped waiting for the remote");
    assert_int_equal(n_sent, 1);
    assert_int_equal(wire_receive(&w, &byte, 1, soon(), &err), ERR_CANCELLED);
    close(pair[0]);
    close(pair[1]);
    close(stop);
}

/* Closing a connection over TLS frees the session, once. */
TEST(a_session_is_closed_with_its_connection)
{
    struct tls *tls = NULL;
    struct err err = {0};
    int pair[2];
    assert_int_equal(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    struct wire w = {.fd = pair[0], .stop_fd = -1};
    assert_int_equal(tls_open(&(struct tls_opts){0}, &tls, &err), 0);
    assert_int_equal(tls_session_open(tls, w.fd, "localhost", &w.session, &err), 0);
    wire_close(&w);
    assert_null(w.session);
    assert_int_equal(w.fd, -1);
    wire_close(&w);
    tls_close(tls);
    close(pair[1]);
}

int main(void)
{
    alarm(300);
    return unit_run(NULL, NULL);
}
