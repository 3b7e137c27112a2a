/* test_tls.c - connections over TLS: which files and certificates are accepted, and that bytes
 * arrive in both directions. The server is `openssl s_server`, which sends each line back in
 * reverse. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "redis/tls.h"
#include "redis/wire.h"
#include "tests/base/tempdir.h"
#include "tests/remote/listening.h"

#define SECOND ((int64_t)1000000000)

static char dir[TEMPDIR_BYTES];

static const char *in_dir(const char *name)
{
    static char path[4][TEMPDIR_BYTES + 32];
    static int n;
    char *p = path[n++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static int64_t soon(void)
{
    return clock_now_ns() + 60 * SECOND;
}

/* Makes a certificate that signs itself, for these names. */
static void certify(const char *name, const char *names)
{
    char command[800];
    snprintf(command, sizeof command,
             "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
             "-subj /CN=any -addext subjectAltName=%s -keyout %s/%s.key -out %s/%s.pem "
             "2>%s/openssl.log",
             names, dir, name, dir, name, dir);
    assert_int_equal(system(command), 0);
}

static int prepare(void **state)
{
    alarm(300);
    tempdir_make(dir, "tls");
    certify("good", "IP:127.0.0.1");
    certify("named", "DNS:localhost");
    certify("other", "IP:127.0.0.1");
    return 0;
}

static int clean(void **state)
{
    tempdir_remove(dir);
    return 0;
}

/* --- files ------------------------------------------------------------------------------------ */

TEST(files_are_checked)
{
    const char *pem = in_dir("good.pem"), *key = in_dir("good.key");
    const char *no = "/no/such/file", *other = in_dir("other.key");
    const struct {
        struct tls_opts o;
        int rc;
        const char *text;
    } cases[] = {
        {{NULL, NULL, NULL}, 0, ""},
        {{pem, NULL, NULL}, 0, ""},
        {{pem, pem, key}, 0, ""},
        {{no, NULL, NULL},
         ERR_USAGE,
         "--remote-ca: no certificates can be read from /no/such/file: "},
        {{key, NULL, NULL}, ERR_USAGE, "--remote-ca: no certificates can be read from "},
        {{pem, pem, NULL}, ERR_USAGE, "--remote-cert and --remote-key need each other"},
        {{pem, NULL, key}, ERR_USAGE, "--remote-cert and --remote-key need each other"},
        {{pem, no, key},
         ERR_USAGE,
         "--remote-cert: no certificate can be read from /no/such/file: "},
        {{pem, key, key}, ERR_USAGE, "--remote-cert: no certificate can be read from "},
        {{pem, pem, no},
         ERR_USAGE,
         "--remote-key: /no/such/file has no key for the certificate: "},
        {{pem, pem, other}, ERR_USAGE, "has no key for the certificate: "},
        {{pem, pem, pem}, ERR_USAGE, "has no key for the certificate: "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tls *t = NULL;
        struct err err = {0};
        if (tls_open(&cases[i].o, &t, &err) != cases[i].rc)
            fail_msg("case %zu: %s", i, err.msg);
        if (strstr(err.msg, cases[i].text) == NULL)
            fail_msg("case %zu: %s", i, err.msg);
        assert_int_equal(t != NULL, cases[i].rc == 0);
        size_t n = strlen(err.msg);
        assert_true(n == 0 || err.msg[n - 1] != ' '); /* the reason is given */
        assert_null(strstr(err.msg, "no reason is given"));
        tls_close(t);
    }
    tls_close(NULL);
    tls_session_close(NULL);
}

/* --- a server --------------------------------------------------------------------------------- */

struct server {
    pid_t pid;
    int port;
};

static int free_port(void)
{
    int port, fd = listen_here(&port);
    close(fd);
    return port;
}

/* Waits until a server accepts connections. */
static void await_server(int port)
{
    struct wire w;
    struct err err = {0};
    while (wire_open(&w, "127.0.0.1", port, -1, NULL, soon(), &err) != 0)
        usleep(2000);
    wire_close(&w);
}

static struct server serve(const char *name, const char *option)
{
    struct server s = {.port = free_port()};
    char accepts[32], pem[300], key[300];
    snprintf(accepts, sizeof accepts, "127.0.0.1:%d", s.port);
    snprintf(pem, sizeof pem, "%s/%s.pem", dir, name);
    snprintf(key, sizeof key, "%s/%s.key", dir, name);
    s.pid = fork();
    if (s.pid == 0) {
        if (freopen("/dev/null", "r", stdin) != NULL &&
            freopen("/dev/null", "w", stdout) != NULL &&
            freopen("/dev/null", "w", stderr) != NULL)
            execlp("openssl", "openssl", "s_server", "-accept", accepts, "-cert", pem,
                   "-key", key, "-rev", option, (char *)NULL);
        _exit(127);
    }
    await_server(s.port);
    return s;
}

static void stop(struct server *s)
{
    int status;
    kill(s->pid, SIGKILL);
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
}

static int connect_as(struct wire *w, const struct server *s, const char *host,
                      const char *ca, struct tls **t, struct err *err)
{
    const struct tls_opts o = {.ca_file = in_dir(ca)};
    assert_int_equal(tls_open(&o, t, err), 0);
    *err = (struct err){0};
    return wire_open(w, host, s->port, -1, *t, soon(), err);
}

/* A certificate is accepted if it is signed by the authority, and was issued for the name or the
 * address that is asked for. */
TEST(a_server_proves_its_identity)
{
    static const struct {
        const char *certificate, *host, *ca;
        int rc;
    } cases[] = {{"good", "127.0.0.1", "good.pem", 0},
                 {"good", "127.0.0.1", "other.pem", -EACCES},
                 {"good", "localhost", "good.pem", -EACCES},
                 {"named", "localhost", "named.pem", 0},
                 {"named", "127.0.0.1", "named.pem", -EACCES}};
    struct server s = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct wire w;
        struct tls *t = NULL;
        struct err err = {0};
        char want[80];
        if (i == 0 || strcmp(cases[i].certificate, cases[i - 1].certificate) != 0) {
            if (i > 0)
                stop(&s);
            s = serve(cases[i].certificate, "-quiet");
        }
        int rc = connect_as(&w, &s, cases[i].host, cases[i].ca, &t, &err);
        if (rc != cases[i].rc)
            fail_msg("case %zu: %d: %s", i, rc, err.msg);
        snprintf(want, sizeof want,
                 "the certificate of '%s' is not accepted: ", cases[i].host);
        assert_int_equal(strstr(err.msg, want) == err.msg, rc != 0);
        assert_int_equal(w.session != NULL, rc == 0);
        wire_close(&w);
        tls_close(t);
    }
    stop(&s);
}

/* Leaves an error in OpenSSL's queue, as any part of a program may do. */
static void leave_an_error(void)
{
    struct tls *t = NULL;
    struct err err = {0};
    assert_int_equal(tls_open(&(struct tls_opts){.ca_file = "/no/such/file"}, &t, &err),
                     ERR_USAGE);
}

/* Large lines fill the socket in both directions. */
TEST(bytes_go_both_ways)
{
    enum { LINE = 12000, LINES = 30 };
    struct wire w;
    struct tls *t = NULL;
    struct err err = {0};
    struct server s = serve("good", "-quiet");
    static char line[LINE], back[LINE];
    assert_int_equal(connect_as(&w, &s, "127.0.0.1", "good.pem", &t, &err), 0);
    /* nothing comes unasked, and an older error is not this connection's */
    leave_an_error();
    assert_int_equal(wire_receive(&w, back, 1, clock_now_ns() + 2000000, &err), -ETIMEDOUT);
    for (int k = 0; k < LINES; k++) {
        size_t n_sent = 0, at = 0;
        for (int i = 0; i < LINE - 1; i++)
            line[i] = (char)('a' + (i * 7 + k) % 26);
        line[LINE - 1] = '\n';
        assert_int_equal(wire_send(&w, line, LINE, &n_sent, soon(), &err), 0);
        assert_int_equal(n_sent, LINE);
        while (at < LINE) {
            ssize_t n = wire_receive(&w, back + at, LINE - at, soon(), &err);
            if (n <= 0)
                fail_msg("%s", err.msg);
            at += (size_t)n;
        }
        for (int i = 0; i < LINE - 1; i++)
            assert_int_equal(back[i], line[LINE - 2 - i]);
    }
    stop(&s);
    assert_int_equal(wire_receive(&w, back, 1, soon(), &err), -EPIPE);
    assert_string_equal(err.msg, "the remote has closed the connection");
    wire_close(&w);
    tls_close(t);
}

/* Old versions of TLS are refused, and so is a peer that does not speak TLS. */
TEST(other_protocols_are_refused)
{
    struct wire w;
    struct tls *t = NULL;
    struct err err = {0};
    struct server s = serve("good", "-tls1_1");
    int rc = connect_as(&w, &s, "127.0.0.1", "good.pem", &t, &err);
    assert_int_equal(rc, -EPROTO);
    assert_ptr_equal(strstr(err.msg, "TLS: "), err.msg);
    assert_null(strstr(err.msg, "no reason is given"));
    tls_close(t);
    stop(&s);
    int pair[2];
    struct tls_session *session = NULL;
    short events = 0;
    assert_int_equal(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(tls_open(&(struct tls_opts){0}, &t, &err), 0);
    assert_int_equal(tls_session_open(t, pair[0], "localhost", &session, &err), 0);
    leave_an_error();
    assert_int_equal(tls_shake(session, &events, &err), 0);
    assert_int_equal(events, POLLIN);
    assert_int_equal(send(pair[1], "-ERR no TLS here\r\n", 18, 0), 18);
    assert_int_equal(tls_shake(session, &events, &err), -EPROTO);
    tls_session_close(session);
    tls_close(t);
    close(pair[0]);
    close(pair[1]);
}

int main(void)
{
    return unit_run(prepare, clean);
}
