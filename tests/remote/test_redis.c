/* The client of the Redis protocol, against a peer that the test controls. The peer sends valid
 * answers of every kind in pieces of any size, and invalid ones. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "redis/redis.h"
#include "redis/tls.h"
#include "tests/remote/listening.h"

#define SECOND ((int64_t)1000000000)

/* A server that answers the greeting's PING. After the next command it sends `text` in pieces of
 * `step` bytes. */
struct peer {
    int listener, port;
    const char *text;
    size_t n, step;
    /* the last n_held bytes of `text` are sent when the test sets is_released */
    atomic_size_t n_held;
    atomic_bool is_released;
    bool stays;        /* whether it then stays silent instead of closing the connection */
    atomic_bool drips; /* whether it sends without end, until the test sets is_over */
    atomic_bool is_over;
    char heard[4096];
    pthread_t thread;
};

static size_t hear(struct peer *p, int fd, size_t n)
{
    ssize_t k = recv(fd, p->heard + n, sizeof p->heard - 1 - n, 0);
    n += k > 0 ? (size_t)k : 0;
    p->heard[n] = 0;
    return n;
}

static void send_in_pieces(const struct peer *p, int fd, size_t at, size_t end)
{
    for (; at < end; at += p->step) {
        size_t k = end - at < p->step ? end - at : p->step;
        if (send(fd, p->text + at, k, MSG_NOSIGNAL) < 0)
            break;
    }
}

static void *peer_main(void *arg)
{
    struct peer *p = arg;
    int fd = accept(p->listener, NULL, NULL);
    size_t n = hear(p, fd, 0);
    (void)!send(fd, "+PONG\r\n", 7, MSG_NOSIGNAL);
    n = hear(p, fd, n);
    send_in_pieces(p, fd, 0, p->n - p->n_held);
    while (p->n_held > 0 && !atomic_load(&p->is_released))
        usleep(1000);
    send_in_pieces(p, fd, p->n - p->n_held, p->n);
    for (int i = 0; p->drips && i < 6000 && !atomic_load(&p->is_over); i++) {
        (void)!send(fd, "x", 1, MSG_NOSIGNAL);
        usleep(10000);
    }
    if (p->drips)
        (void)!send(fd, "\r\n", 2, MSG_NOSIGNAL);
    if (p->stays)
        while (recv(fd, p->heard, sizeof p->heard, 0) > 0) {
        }
    close(fd);
    return NULL;
}

static struct redis *meet(struct peer *p, const char *text, size_t n, size_t step,
                          bool stays, size_t max_bytes)
{
    int port;
    struct remote_url url;
    struct redis *r = NULL;
    struct err err = {0};
    char text_url[64];
    *p = (struct peer){.text = text, .n = n, .step = step, .stays = stays};
    p->listener = listen_here(&port);
    assert_int_equal(pthread_create(&p->thread, NULL, peer_main, p), 0);
    snprintf(text_url, sizeof text_url, "redis://127.0.0.1:%d", port);
    assert_int_equal(remote_url_parse(text_url, &url, &err), 0);
    const struct redis_opts o = {.url = &url, .stop_fd = -1, .max_answer_bytes = max_bytes};
    if (redis_open(&o, url.host, url.port, clock_now_ns() + 60 * SECOND, &r, &err) != 0)
        fail_msg("%s", err.msg);
    return r;
}

static void part(struct peer *p, struct redis *r)
{
    redis_close(r);
    pthread_join(p->thread, NULL);
    close(p->listener);
}

static const struct redis_arg get[] = {{"GET", 3}, {"a key", 5}};

TEST(answers_of_every_kind)
{
    static const char text[] =
        "$5\r\nab\0cd\r\n:-42\r\n$-1\r\n-ERR no "
        "such\r\n+OK\r\n*2\r\n$1\r\n7\r\n*3\r\n$2\r\nk1"
        "\r\n$0\r\n\r\n$2\r\nk3\r\n$1\r\nz\r\n*2\r\n:-7\r\n*1\r\n:12\r\n";
    for (size_t step = 1; step < sizeof text; step += step < 20 ? 1 : 17) {
        struct peer p;
        struct redis_answer a = {0};
        struct redis *r = meet(&p, text, sizeof text - 1, step, true, 1000);
        assert_int_equal(redis_ask(r, get, 2, 60 * SECOND, &a, NULL), 0);
        assert_true(a.kind == REDIS_BYTES && a.n_bytes == 5);
        assert_memory_equal(a.bytes, "ab\0cd", 6); /* compares the final zero byte, too */
        assert_int_equal(redis_receive(r, 60 * SECOND, &a, NULL), 0);
        assert_true(a.kind == REDIS_NUMBER && a.number == -42);
        assert_int_equal(redis_receive(r, 60 * SECOND, &a, NULL), 0);
        assert_int_equal(a.kind, REDIS_NONE);
        assert_int_equal(redis_receive(r, 60 * SECOND, &a, NULL), 0);
        assert_int_equal(a.kind, REDIS_REFUSED);
        assert_string_equal((const char *)a.bytes, "ERR no such");
        assert_int_equal(redis_receive(r, 60 * SECOND, &a, NULL), 0);
        assert_int_equal(a.kind, REDIS_BYTES);
        assert_int_equal(redis_receive(r, 60 * SECOND, &a, NULL), 0);
        assert_int_equal(a.kind, REDIS_LIST);
        static const char *const want[] = {"7", "k1", "", "k3"};
        const char *s;
        size_t at = 0, n;
        for (int i = 0; i < 4; i++) { /* "7" alone lies in the list itself */
            assert_int_equal(redis_depth(&a, at), i == 0 ? 1 : 2);
            assert_true(redis_next(&a, &at, &s, &n));
            assert_true(n == strlen(want[i]) && memcmp(s, want[i], n) == 0);
        }
        assert_false(redis_next(&a, &at, &s, &n) || redis_depth(&a, at) != 0);
        assert_int_equal(redis_receive(r, 60 * SECOND, &a, NULL), 0);
        assert_true(a.kind == REDIS_BYTES && a.n_bytes == 1);
        assert_int_equal(redis_receive(r, 60 * SECOND, &a, NULL), 0);
        at = 0; /* a number in a list is a string of digits */
        assert_true(redis_next(&a, &at, &s, &n) && n == 2 && memcmp(s, "-7", 2) == 0);
        assert_true(redis_next(&a, &at, &s, &n) && n == 2 && memcmp(s, "12", 2) == 0);
        assert_false(redis_next(&a, &at, &s, &n));
        redis_answer_deinit(&a);
        part(&p, r);
        assert_non_null(strstr(p.heard, "*2\r\n$3\r\nGET\r\n$5\r\na key\r\n"));
    }
}

/* Large strings are received into the answer's own memory. Here they come between short answers and
 * after each other. */
TEST(large_strings)
{
    enum { KINDS = 6, LARGEST = 300000 };
    static const int sizes[KINDS] = {65536, 3, 65535, LARGEST, 65537, 100000};
    static char text[1 << 20];
    size_t n = 0;
    for (int i = 0; i < KINDS; i++) {
        n += (size_t)sprintf(text + n, "$%d\r\n", sizes[i]);
        for (int b = 0; b < sizes[i]; b++)
            text[n++] = (char)(i + b % 251);
        n += (size_t)sprintf(text + n, "\r\n:%d\r\n", i);
        n += i % 2 == 0 ? (size_t)sprintf(text + n, "$-1\r\n") : 0;
    }
    static const size_t steps[] = {sizeof text, 65536, 4099, 70};
    for (size_t k = 0; k < sizeof steps / sizeof steps[0]; k++) {
        struct peer p;
        struct redis_answer a = {0};
        struct err err = {0};
        struct redis *r = meet(&p, text, n, steps[k], true, LARGEST);
        for (int i = 0; i < KINDS; i++) {
            int rc = i == 0 ? redis_ask(r, get, 2, 60 * SECOND, &a, &err)
                            : redis_receive(r, 60 * SECOND, &a, &err);
            if (rc != 0)
                fail_msg("string %d in steps of %zu: %s", i, steps[k], err.msg);
            assert_int_equal(a.kind, REDIS_BYTES);
            assert_int_equal(a.n_bytes, sizes[i]);
            for (int b = 0; b < sizes[i]; b++)
                if (a.bytes[b] != (uint8_t)(i + b % 251))
                    fail_msg("string %d in steps of %zu: byte %d", i, steps[k], b);
            assert_int_equal(a.bytes[sizes[i]], 0);
            assert_int_equal(redis_receive(r, 60 * SECOND, &a, &err), 0);
            assert_true(a.kind == REDIS_NUMBER && a.number == i);
            if (i % 2 != 0)
                continue;
            assert_int_equal(redis_receive(r, 60 * SECOND, &a, &err), 0);
            assert_int_equal(a.kind, REDIS_NONE);
        }
        assert_true(a.max_bytes <= 2 * LARGEST + 16);
        redis_answer_deinit(&a);
        part(&p, r);
    }
}

/* After a large string at most 64 bytes are received at first, so that the next large string comes
 * into its answer without a copy. */
TEST(behind_a_large_string_few_bytes_are_received)
{
    enum { N = 65536 };
    static char text[2 * N + 64];
    size_t n = 0;
    for (int i = 0; i < 2; i++) {
        n += (size_t)sprintf(text + n, "$%d\r\n", N);
        memset(text + n, 'a' + i, N);
        n += N + (size_t)sprintf(text + n + N, "\r\n");
    }
    struct peer p;
    struct redis_answer a = {0}, b = {0};
    struct err err = {0};
    bool complete = false;
    struct redis *r = meet(&p, text, n, n, true, N);
    assert_int_equal(redis_ask(r, get, 2, 60 * SECOND, &a, &err), 0);
    int64_t deadline_ns = clock_now_ns() + 60 * SECOND;
    assert_int_equal(redis_receive_some(r, deadline_ns, &b, &complete, &err), 0);
    assert_false(complete);
    assert_in_range(b.n_here, 1, 64);
    for (int rc = 0; !complete; assert_int_equal(rc, 0))
        rc = redis_receive_some(r, deadline_ns, &b, &complete, &err);
    assert_int_equal(b.n_bytes, N);
    assert_true(b.bytes[0] == 'b' && b.bytes[N - 1] == 'b');
    redis_answer_deinit(&a);
    redis_answer_deinit(&b);
    part(&p, r);
}

/* A string of the largest allowed size is taken although its header, its last byte or the end of
 * its line comes later than the rest. One byte more is refused, also if all of it comes at once. */
TEST(the_largest_string_comes_in_two_parts)
{
    enum { LARGEST = 1000 };
    static const size_t held[] = {0, 1, 2, 3, LARGEST + 2, LARGEST + 4};
    for (size_t i = 0; i < 2 * sizeof held / sizeof held[0]; i++) {
        int size = LARGEST + (int)(i % 2);
        char text[LARGEST + 64];
        int n = sprintf(text, "$%d\r\n", size);
        memset(text + n, 'x', (size_t)size);
        n += size;
        n += sprintf(text + n, "\r\n");
        struct peer p;
        struct redis_answer a = {0};
        struct err err = {0};
        bool complete = false;
        int rc = 0;
        struct redis *r = meet(&p, text, (size_t)n, (size_t)n, true, LARGEST);
        /* set before the command, because the peer reads it when the command comes */
        atomic_store(&p.n_held, held[i / 2]);
        assert_int_equal(redis_command(r, get, 2, clock_now_ns() + 60 * SECOND, &err), 0);
        assert_int_equal(redis_flush(r, clock_now_ns() + 60 * SECOND, &err), 0);
        while (rc == 0 && !complete && a.n_here < (size_t)n - p.n_held)
            rc = redis_receive_some(r, clock_now_ns() + 60 * SECOND, &a, &complete, &err);
        atomic_store(&p.is_released, true);
        if (rc == 0 && !complete)
            rc = redis_receive(r, 60 * SECOND, &a, &err);
        assert_int_equal(rc, size > LARGEST ? ERR_LIMIT : 0);
        if (rc == 0)
            assert_true(a.kind == REDIS_BYTES && a.n_bytes == LARGEST);
        redis_answer_deinit(&a);
        part(&p, r);
    }
}

/* A string that does not end where its length says is an error. */
TEST(a_large_string_has_an_end)
{
    enum { N = 65536 };
    static char text[N + 64];
    struct peer p;
    struct redis_answer a = {0};
    struct err err = {0};
    int n = sprintf(text, "$%d\r\n", N);
    memset(text + n, 'x', N + 2);
    struct redis *r = meet(&p, text, (size_t)n + N + 2, 5000, true, N);
    assert_int_equal(redis_ask(r, get, 2, 60 * SECOND, &a, &err), ERR_FORMAT);
    redis_answer_deinit(&a);
    part(&p, r);
}

/* Invalid and endless answers are errors, and use no memory to speak of. */
TEST(lies_are_errors)
{
    static const struct {
        const char *text;
        int rc;
    } cases[] = {
        {"HTTP/1.1 400 Bad Request\r\n", ERR_FORMAT},
        {"$x\r\n", ERR_FORMAT},
        {"$-7\r\n", ERR_FORMAT},
        {"$99999999999999999999\r\n", ERR_FORMAT},
        {"$100\r\nab", -EPIPE},      /* the peer closes in the middle of the string */
        {"*2147483647\r\n", -EPIPE}, /* a list that is larger than memory */
        {"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", ERR_FORMAT},
        {"", -EPIPE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct peer p;
        struct redis_answer a = {0};
        struct err err = {0};
        struct redis *r = meet(&p, cases[i].text, strlen(cases[i].text), 1000, false, 1000);
        int rc = redis_ask(r, get, 2, 60 * SECOND, &a, &err);
        if (rc != cases[i].rc && rc != -ECONNRESET)
            fail_msg("%s: %d (%s)", cases[i].text, rc, err.msg);
        assert_true(err.msg[0] != 0);
        redis_answer_deinit(&a);
        part(&p, r);
    }
}

TEST(sizes_are_bounded)
{
    enum { N = 100000 };
    static char large[N + 64], list[N + 64];
    int n_large = snprintf(large, sizeof large, "$%d\r\n", N), n_list = 0;
    memset(large + n_large, 'x', N);
    n_list = snprintf(list, sizeof list, "*99999999\r\n");
    while (n_list < N)
        n_list += snprintf(list + n_list, sizeof list - (size_t)n_list, "$1\r\ny\r\n");
    for (int i = 0; i < 2; i++) {
        struct peer p;
        struct redis_answer a = {0};
        struct err err = {0};
        struct redis *r = meet(&p, i == 0 ? large : list, N, 4096, false, 10000);
        int rc = redis_ask(r, get, 2, 60 * SECOND, &a, &err);
        assert_int_equal(rc, ERR_LIMIT);
        assert_true(a.max_bytes <= 2 * 10000 + 16);
        redis_answer_deinit(&a);
        part(&p, r);
    }
}

/* A list of numbers can claim any length without using memory. A list that goes on and on is
 * refused at some length. */
TEST(a_list_without_an_end_ends)
{
    enum { N = 600000 };
    static const char *const items[] = {":1\r\n", "$-1\r\n", "*0\r\n"};
    static char list[N + 64];
    for (size_t i = 0; i < sizeof items / sizeof items[0]; i++) {
        struct peer p;
        struct redis_answer a = {0};
        struct err err = {0};
        int n = snprintf(list, sizeof list, "*2147483647\r\n");
        while (n < N)
            n += snprintf(list + n, sizeof list - (size_t)n, "%s", items[i]);
        struct redis *r = meet(&p, list, (size_t)n, 4096, false, 10000);
        assert_int_equal(redis_ask(r, get, 2, 60 * SECOND, &a, &err), ERR_LIMIT);
        redis_answer_deinit(&a);
        part(&p, r);
    }
}

/* The time limit is for a whole answer, not for each of its pieces. */
TEST(drips_end)
{
    struct peer p;
    struct redis_answer a = {0};
    struct err err = {0};
    struct redis *r = meet(&p, "+a", 2, 2, true, 100000);
    /* set before the command, because the peer reads it when the command comes */
    atomic_store(&p.drips, true);
    assert_int_equal(redis_ask(r, get, 2, SECOND / 20, &a, &err), -ETIMEDOUT);
    atomic_store(&p.is_over, true);
    redis_answer_deinit(&a);
    part(&p, r);
}

/* The text of an error answer appears in logs and in answers of the API, so it must be
 * printable. */
TEST(refusals_are_printable)
{
    static const char text[] = "-ERR \x1b[31m \xff\xfe\n\tno\r\n";
    struct peer p;
    struct redis_answer a = {0};
    struct redis *r = meet(&p, text, sizeof text - 1, 1000, true, 1000);
    assert_int_equal(redis_ask(r, get, 2, 60 * SECOND, &a, NULL), 0);
    assert_int_equal(a.kind, REDIS_REFUSED);
    assert_string_equal((const char *)a.bytes, "ERR ?[31m ????no");
    redis_answer_deinit(&a);
    part(&p, r);
}

/* --- the greeting ----------------------------------------------------------------------------- */

/* A server that answers every command with `answer` and keeps the bytes that it received. */
struct greeter {
    int listener, port;
    const char *answer;
    char heard[4096];
    pthread_t thread;
};

static void *greeter_main(void *arg)
{
    struct greeter *g = arg;
    size_t n = 0;
    int fd = accept(g->listener, NULL, NULL);
    for (;;) {
        ssize_t k = recv(fd, g->heard + n, sizeof g->heard - 1 - n, 0);
        if (k <= 0)
            break;
        n += (size_t)k;
        (void)!send(fd, g->answer, strlen(g->answer), MSG_NOSIGNAL);
    }
    close(fd);
    return NULL;
}

/* Opens a connection with this URL, with %d for the port. Returns the code. */
static int greet(struct greeter *g, const char *form, const char *answer, struct err *err)
{
    int port;
    struct remote_url url;
    struct redis *r = NULL;
    *g = (struct greeter){.answer = answer};
    g->listener = listen_here(&port);
    assert_int_equal(pthread_create(&g->thread, NULL, greeter_main, g), 0);
    assert_int_equal(remote_url_parse(form, &url, err), 0);
    const struct redis_opts o = {.url = &url, .stop_fd = -1, .max_answer_bytes = 1000};
    int rc = redis_open(&o, url.host, port, clock_now_ns() + 60 * SECOND, &r, err);
    assert_int_equal(r != NULL, rc == 0);
    redis_close(r);
    pthread_join(g->thread, NULL);
    close(g->listener);
    return rc;
}

/* A connection begins with what the URL asks for, and ends with a PING. */
TEST(a_connection_begins_with_a_greeting)
{
#define PING   "*1\r\n$4\r\nPING\r\n"
#define AUTH_P "*2\r\n$4\r\nAUTH\r\n$3\r\npwd\r\n"
    static const struct {
        const char *url, *heard;
    } cases[] = {
        {"redis://127.0.0.1", PING},
        {"redis://127.0.0.1/0", PING},
        {"redis://127.0.0.1/12", "*2\r\n$6\r\nSELECT\r\n$2\r\n12\r\n" PING},
        {"redis://:pwd@127.0.0.1", AUTH_P PING},
        {"redis://:pwd@127.0.0.1/1", AUTH_P "*2\r\n$6\r\nSELECT\r\n$1\r\n1\r\n" PING},
        {"redis://me:pwd@127.0.0.1", "*3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n$3\r\npwd\r\n" PING},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct greeter g;
        struct err err = {0};
        assert_int_equal(greet(&g, cases[i].url, "+OK\r\n", &err), 0);
        assert_string_equal(g.heard, cases[i].heard);
        /* the first command that is refused is the last */
        assert_int_equal(greet(&g, cases[i].url, "-NO way\r\n", &err), -EACCES);
        assert_string_equal(err.msg, "the remote refuses: NO way");
        size_t n = strlen(g.heard);
        assert_int_equal(strncmp(g.heard, cases[i].heard, n), 0);
        assert_int_equal(n == strlen(cases[i].heard), i < 2);
    }
}

/* A server that answers the first command and then only listens. */
struct sender {
    int listener;
    char *heard;
    size_t n;
    pthread_t thread;
};

static void *sender_main(void *arg)
{
    struct sender *s = arg;
    int fd = accept(s->listener, NULL, NULL);
    s->heard = malloc(200000);
    for (ssize_t k; (k = recv(fd, s->heard + s->n, 200000 - s->n, 0)) > 0;) {
        if (s->n == 0)
            (void)!send(fd, "+PONG\r\n", 7, MSG_NOSIGNAL);
        s->n += (size_t)k;
    }
    close(fd);
    return NULL;
}

/* Large arguments are sent at once, and small ones with the next flush. */
TEST(arguments_of_any_size_are_sent)
{
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 100000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct remote_url url;
        struct redis *r = NULL;
        int port;
        int listener = listen_here(&port);
        assert_int_equal(remote_url_parse("redis://127.0.0.1", &url, NULL), 0);
        struct sender s = {.listener = listener};
        assert_int_equal(pthread_create(&s.thread, NULL, sender_main, &s), 0);
        const struct redis_opts o = {.url = &url, .stop_fd = -1, .max_answer_bytes = 1000};
        int64_t deadline_ns = clock_now_ns() + 60 * SECOND;
        assert_int_equal(redis_open(&o, "127.0.0.1", port, deadline_ns, &r, NULL), 0);
        char *value = malloc(sizes[i] + 1);
        memset(value, 'v', sizes[i]);
        const struct redis_arg args[] = {{"SET", 3}, {value, sizes[i]}, {"end", 3}};
        assert_int_equal(redis_command(r, args, 3, deadline_ns, NULL), 0);
        assert_int_equal(redis_flush(r, deadline_ns, NULL), 0);
        redis_close(r);
        pthread_join(s.thread, NULL);
        char head[64];
        int n_head = snprintf(head, sizeof head, PING "*3\r\n$3\r\nSET\r\n$%zu\r\n",
                              sizes[i]);
        const char end[] = "\r\n$3\r\nend\r\n";
        assert_int_equal(s.n, (size_t)n_head + sizes[i] + sizeof end - 1);
        assert_memory_equal(s.heard, head, (size_t)n_head);
        assert_memory_equal(s.heard + n_head, value, sizes[i]);
        assert_memory_equal(s.heard + n_head + sizes[i], end, sizeof end - 1);
        free(value);
        free(s.heard);
        close(listener);
    }
}

/* A peer that accepts the connection and never answers the greeting is given up. */
TEST(silence_at_the_greeting_ends)
{
    int port;
    struct remote_url url;
    struct redis *r = NULL;
    struct err err = {0};
    int listener = listen_here(&port);
    assert_int_equal(remote_url_parse("redis://127.0.0.1", &url, &err), 0);
    const struct redis_opts o = {.url = &url, .stop_fd = -1, .max_answer_bytes = 1000};
    int64_t deadline_ns = clock_now_ns() + SECOND / 20;
    assert_int_equal(redis_open(&o, "127.0.0.1", port, deadline_ns, &r, &err), -ETIMEDOUT);
    assert_null(r);
    close(listener);
}

TEST(silence_ends)
{
    struct peer p;
    struct redis_answer a = {0};
    struct err err = {0};
    struct redis *r = meet(&p, "$5\r\nab", 6, 6, true, 1000);
    assert_int_equal(redis_ask(r, get, 2, SECOND / 20, &a, &err), -ETIMEDOUT);
    redis_answer_deinit(&a);
    part(&p, r);
}

TEST(a_stop_ends_a_wait)
{
    struct wire w;
    struct err err = {0};
    int port;
    char byte;
    int listener = listen_here(&port), stop = eventfd(1, 0);
    int64_t far = clock_now_ns() + 3600 * SECOND;
    int rc = wire_open(&w, "127.0.0.1", port, stop, NULL, far, &err);
    if (rc == 0)
        rc = (int)wire_receive(&w, &byte, 1, far, &err);
    assert_int_equal(rc, ERR_CANCELLED);
    wire_close(&w);
    close(listener);
    close(stop);
}

/* A call can be stopped while bytes arrive without a pause. */
TEST(a_stop_ends_a_flood)
{
    struct wire w;
    struct err err = {0};
    int port;
    char byte;
    size_t n_sent = 0;
    int listener = listen_here(&port), stop = eventfd(0, 0);
    int64_t far = clock_now_ns() + 3600 * SECOND;
    assert_int_equal(wire_open(&w, "127.0.0.1", port, stop, NULL, far, &err), 0);
    int peer = accept(listener, NULL, NULL);
    assert_int_equal(send(peer, "xxxx", 4, MSG_NOSIGNAL), 4);
    assert_int_equal(wire_receive(&w, &byte, 1, far, &err), 1);
    assert_int_equal(eventfd_write(stop, 1), 0);
    assert_int_equal(wire_receive(&w, &byte, 1, far, &err), ERR_CANCELLED);
    assert_int_equal(wire_send(&w, "x", 1, &n_sent, far, &err), ERR_CANCELLED);
    wire_close(&w);
    close(peer);
    close(listener);
    close(stop);
}

static volatile sig_atomic_t n_signals;

static void count_signal(int signal)
{
    (void)signal;
    n_signals++;
}

/* A host program of the library may leave SIGPIPE at its default, which ends the process. So
 * sending to a peer that has closed the connection must return an error and raise no signal. */
TEST(a_closed_connection_raises_no_signal)
{
    struct sigaction count = {.sa_handler = count_signal}, before;
    struct err err = {0};
    struct tls *tls = NULL;
    struct tls_session *session = NULL;
    int pair[2];
    size_t n_sent = 0;
    short events;
    sigaction(SIGPIPE, &count, &before);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
    close(pair[1]);

    struct wire plain = {.fd = pair[0], .stop_fd = -1};
    assert_int_equal(wire_send(&plain, "x", 1, &n_sent, clock_now_ns() + SECOND, &err),
                     -EPIPE);
    assert_int_equal(n_sent, 0);

    assert_int_equal(tls_open(&(struct tls_opts){0}, &tls, &err), 0);
    assert_int_equal(tls_session_open(tls, pair[0], "localhost", &session, &err), 0);
    assert_int_equal(tls_shake(session, &events, &err), -EPIPE);
    tls_session_close(session);
    tls_close(tls);

    close(pair[0]);
    sigaction(SIGPIPE, &before, NULL);
    assert_int_equal(n_signals, 0);
}
