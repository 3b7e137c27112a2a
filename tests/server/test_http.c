/* test_http.c - a server's life: where it listens, what it says while it loads and stops, what it
 * does without a file of answers, and its own counters. */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/textbuf.h"
#include "server/server.h"
#include "api/conversations.h"
#include "tests/base/tempdir.h"

enum { PATIENCE_S = 300 };

static struct hcache *h;

static int open_model(void **state)
{
    const struct hcache_opts o = {.model = "models/demo", .threads = 1, .max_context = 128};
    struct hcache_err err;
    return hcache_open(&o, &h, &err) != 0 || hcache_serve_start(h, 0, &err) != 0;
}

static int close_model(void **state)
{
    hcache_serve_stop(h);
    hcache_close(h);
    return 0;
}

static struct server_opts options(void)
{
    static const char *const only[] = {"127.0.0.1"};
    return (struct server_opts){.hosts = only,
                                .n_hosts = 1,
                                .model_name = "demo",
                                .http_threads = 2,
                                .max_connections = 8,
                                .read_timeout_s = PATIENCE_S,
                                .write_timeout_s = PATIENCE_S,
                                .idle_timeout_s = PATIENCE_S,
                                .max_body_bytes = 1 << 12,
                                .max_bodies_bytes = 1 << 16};
}

static struct server *started(const struct server_opts *o)
{
    struct server *s = NULL;
    struct err err = {0};
    if (server_start(o, &s, &err) != 0)
        fail_msg("%s", err.msg);
    return s;
}

/* Sends a text to the server at an address and returns the answer. */
static char *exchange(const struct sockaddr *to, socklen_t n_to, const char *text)
{
    struct textbuf got = {0};
    char piece[4096];
    int fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, to, n_to), 0);
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
    for (ssize_t n; (n = recv(fd, piece, sizeof piece, 0)) > 0;)
        textbuf_add(&got, piece, (size_t)n);
    close(fd);
    textbuf_add(&got, "", 0);
    return got.p;
}

/* Asks a server for a path, with a key unless it is NULL, and a body unless it is NULL. */
static char *ask(const struct server *s, const char *line, const char *key,
                 const char *body)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)server_port(s)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char *text = xasprintf("%s HTTP/1.0\r\nHost: localhost\r\n%s%s%sContent-Length: %zu\r\n"
                           "\r\n%s",
                           line, key != NULL ? "Authorization: Bearer " : "",
                           key != NULL ? key : "", key != NULL ? "\r\n" : "",
                           body != NULL ? strlen(body) : 0, body != NULL ? body : "");
    char *got = exchange((struct sockaddr *)&to, sizeof to, text);
    free(text);
    return got;
}

static void answers(const struct server *s, const char *line, int status, const char *part)
{
    char want[20];
    char *got = ask(s, line, NULL, NULL);
    snprintf(want, sizeof want, "HTTP/1.1 %d ", status);
    if (strncmp(got, want, strlen(want)) != 0 && strncmp(got + 5, "1.0 ", 4) != 0)
        fail_msg("%s: %s", line, got);
    if (strstr(got, part) == NULL || atoi(got + 9) != status)
        fail_msg("%s: %s", line, got);
    free(got);
}

/* --- listening -------------------------------------------------------------------------------- */

static void refused(const struct server_opts *o, int code, const char *part)
{
    struct server *s = NULL;
    struct err err = {0};
    int rc = server_start(o, &s, &err);
    if (rc != code || strstr(err.msg, part) == NULL)
        fail_msg("%d instead of %d: %s", rc, code, err.msg);
    assert_null(s);
}

TEST(a_server_listens_where_it_is_told)
{
    struct server_opts o = options();
    const char *hosts[] = {"127.0.0.1", "host.example"};
    o.hosts = hosts;
    o.n_hosts = 2;
    refused(&o, ERR_USAGE,
            "--host host.example: it must be localhost or a numeric address");
    o.n_hosts = 1;
    hosts[0] = "localhost"; /* always 127.0.0.1 */
    struct server *s = started(&o);
    assert_true(server_port(s) > 0);
    answers(s, "GET /health", 503, "\"loading\"");
    o.port = server_port(s);
    char want[100];
    snprintf(want, sizeof want, "cannot listen on localhost port %d: %s", o.port,
             strerror(EADDRINUSE));
    refused(&o, -EADDRINUSE, want);
    server_stop(s);
    s = started(&o); /* the port is free again at once */
    assert_int_equal(server_port(s), o.port);
    answers(s, "GET /health", 503, "\"loading\"");
    server_stop(s);
    static const char *const wrong[] = {"http://"};
    o.origins = (struct origin_rules){.origins = wrong, .n_origins = 1};
    refused(&o, ERR_USAGE, "--allow-origin http://");
    server_stop(NULL);
}

/* Beside IPv4 or alone. */
TEST(a_server_may_listen_on_ipv6)
{
    struct server_opts o = options();
    struct server *s = NULL;
    struct err err = {0};
    static const char *const hosts[] = {"::1", "127.0.0.1"};
    o.hosts = hosts;
    o.n_hosts = 2;
    if (server_start(&o, &s, &err) != 0) {
        printf("skipped: %s\n", err.msg);
        skip();
    }
    struct sockaddr_in6 to = {.sin6_family = AF_INET6,
                              .sin6_port = htons((uint16_t)server_port(s)),
                              .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    assert_true(server_port(s) > 0);
    char *got = exchange((struct sockaddr *)&to, sizeof to,
                         "GET /health HTTP/1.0\r\nHost: [::1]\r\n\r\n");
    assert_non_null(strstr(got, "\"loading\""));
    free(got);
    answers(s, "GET /health", 503, "\"loading\"");
    server_stop(s);
}

/* --- from loading to stopping ----------------------------------------------------------------- */

TEST(each_state_is_told)
{
    const struct server_opts o = options();
    struct server *s = started(&o);
    struct err err = {0};
    answers(s, "GET /health", 503, "{\"status\": \"loading\"}");
    answers(s, "GET /health", 503, "Retry-After: 1\r\n");
    answers(s, "GET /v1/models", 503, "\"the model is still loading\"");
    answers(s, "GET /v1/models", 503, "Retry-After: 1\r\n");
    answers(s, "GET /", 200, "<html");
    assert_int_equal(server_ready(s, h, &err), 0);
    answers(s, "GET /health", 200, "{\"status\": \"ok\"}"); /* nothing is to be saved */
    answers(s, "GET /v1/models", 200, "\"max_model_len\": 128");
    while (server_n_active(s) > 0)
        clock_sleep_ns(1000000);
    server_drain(s);
    server_drain(s);
    /* a drained server accepts no connections */
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)server_port(s)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), -1);
    close(fd);
    server_stop(s);
}

struct early {
    pthread_t thread;
    const struct server *s;
    char *got;
};

static void *ask_early(void *arg)
{
    struct early *e = arg;
    e->got = ask(e->s, "POST /tokenize", NULL, "{\"content\":\"a\"}");
    return NULL;
}

/* Sends a request while the model loads. Returns once it waits. */
static void wait_early(struct early *e, const struct server *s)
{
    *e = (struct early){.s = s};
    assert_int_equal(pthread_create(&e->thread, NULL, ask_early, e), 0);
    for (bool waits = false; !waits;) {
        char *health = ask(s, "GET /health", NULL, NULL);
        waits = strstr(health, "{\"status\": \"loading\", \"waiting\": 1}") != NULL;
        free(health);
        clock_sleep_ns(1000000);
    }
}

/* A request that comes before the model waits for it, if the server lets requests wait and the
 * queue has room. A server that stops refuses the request. */
TEST(requests_wait_for_the_model)
{
    struct server_opts o = options();
    struct err err = {0};
    o.wait_ready = true;
    o.max_queue = 1;
    for (int loads = 0; loads < 2; loads++) {
        struct server *s = started(&o);
        struct early e;
        wait_early(&e, s);
        answers(s, "GET /v1/models", 503, "\"the model is still loading\"");
        if (loads) {
            assert_int_equal(server_ready(s, h, &err), 0);
            pthread_join(e.thread, NULL);
            assert_non_null(strstr(e.got, " 200 "));
            assert_non_null(strstr(e.got, "\"tokens\""));
            answers(s, "GET /health", 200, "{\"status\": \"ok\"}");
            server_stop(s);
        } else {
            server_stop(s);
            pthread_join(e.thread, NULL);
            assert_null(strstr(e.got, " 200 "));
        }
        free(e.got);
    }
}

/* Without its file of answers a server goes on, unless the file is required. */
TEST(the_file_of_answers_may_be_done_without)
{
    char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 20];
    struct stat st;
    tempdir_make(dir, "http");
    snprintf(path, sizeof path, "%s/answers", dir);
    struct server_opts o = options();
    struct err err = {0};
    o.answers = path;
    struct server *s = started(&o);
    assert_int_equal(server_ready(s, h, &err), 0);
    server_stop(s);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > 0);
    o.answers = "/proc/no/such/folder/answers";
    for (int required = 0; required < 2; required++) {
        o.store_required = required;
        s = started(&o);
        int rc = server_ready(s, h, &err);
        assert_int_equal(rc, required ? -ENOENT : 0);
        answers(s, "GET /health", required ? 503 : 200, required ? "loading" : "ok");
        server_stop(s);
    }
    tempdir_remove(dir);
}

/* Nothing is kept in the folder of another user, who could read and replace it. */
TEST(no_answers_are_kept_in_another_users_folder)
{
    if (geteuid() != 0) {
        print_message("only root can make another user's folder\n");
        skip();
    }
    char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 20];
    struct stat st;
    tempdir_make(dir, "http");
    assert_int_equal(chown(dir, 23456, 23456) | chmod(dir, 0777), 0);
    snprintf(path, sizeof path, "%s/answers", dir);
    const struct hcache_opts ho = {.model = "models/demo",
                                   .threads = 1,
                                   .max_context = 128,
                                   .store = (const char *const[]){dir},
                                   .n_store = 1,
                                   .store_optional = true};
    struct server_opts o = options();
    struct hcache *model;
    struct hcache_err herr = {0};
    struct err err = {0};
    assert_int_equal(seteuid(34567), 0);
    assert_int_equal(hcache_open(&ho, &model, &herr), 0);
    o.answers = path;
    struct server *s = started(&o);
    assert_int_equal(server_ready(s, model, &err), 0);
    server_stop(s);
    hcache_close(model);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(stat(path, &st), -1);
    tempdir_remove(dir);
}

/* --- counters --------------------------------------------------------------------------------- */

static void counter_is(const char *metrics, const char *name, int want)
{
    char line[120];
    snprintf(line, sizeof line, "\nhcache_%s %d\n", name, want);
    if (strstr(metrics, line) == NULL)
        fail_msg("no '%s' in %s", line + 1, metrics);
}

TEST(requests_are_counted_by_answer_and_thread)
{
    static const char *const keys[] = {"one", "admin"};
    const struct conversations_opts co = {0};
    struct conversations *c = NULL;
    struct server_opts o = options();
    struct err err = {0};
    o.api_keys = keys;
    o.n_api_keys = 2;
    o.n_admin_keys = 1;
    struct server *s = started(&o);
    free(ask(s, "GET /v1/models", "one", NULL)); /* 503: it loads */
    assert_int_equal(conversations_open(&co, &c, &err), 0);
    server_keep(s, c);
    assert_int_equal(server_ready(s, h, &err), 0);
    free(ask(s, "GET /health", NULL, NULL));
    free(ask(s, "GET /v1/models", "one", NULL));
    free(ask(s, "GET /v1/conversations", "one", NULL));
    free(ask(s, "POST /tokenize", "one", "{\"content\":\"a\"}"));
    free(ask(s, "POST /v1/completions", "one", "{\"prompt\":\"a\",\"max_tokens\":2}"));
    free(ask(s, "GET /v1/nothing", "one", NULL));
    free(ask(s, "GET /v1/models", "wrong", NULL));
    free(ask(s, "GET /v1/models", NULL, NULL)); /* no key is no wrong key */
    int n_asked = 1;
    char *all = ask(s, "GET /metrics", "admin", NULL);
    /* the answers before are counted when their connections have ended */
    while (strstr(all, "\nhcache_http_requests_active 1\n") == NULL) {
        free(all);
        clock_sleep_ns(1000000);
        all = ask(s, "GET /metrics", "admin", NULL);
        n_asked++;
    }
    counter_is(all, "http_requests_total", 9 + n_asked);
    counter_is(all, "http_requests_active", 1);
    counter_is(all, "http_requests_answered_total{thread=\"http\"}", 2 + n_asked);
    counter_is(all, "http_requests_answered_total{thread=\"disk\"}", 1);
    counter_is(all, "http_requests_answered_total{thread=\"text\"}", 2);
    counter_is(all, "http_responses_total{status=\"1xx\"}", 0);
    counter_is(all, "http_responses_total{status=\"2xx\"}", 4 + n_asked);
    counter_is(all, "http_responses_total{status=\"4xx\"}", 3);
    counter_is(all, "http_responses_total{status=\"5xx\"}", 1);
    counter_is(all, "wrong_keys_total", 1);
    counter_is(all, "http_body_bytes", 0);
    counter_is(all, "requests_total{end=\"done\"}", 1);
    counter_is(all, "generated_tokens_total", 2);
    counter_is(all, "answers_kept", 0);
    assert_non_null(strstr(all, "\nhcache_http_connections "));
    free(all);
    char *own = ask(s, "GET /metrics", "one", NULL);
    counter_is(own, "http_requests_total",
               6); /* with this one, without the one too early */
    counter_is(own, "requests_open", 0);
    counter_is(own, "requests_total{end=\"done\"}", 1);
    assert_null(strstr(own, "hcache_wrong_keys_total"));
    free(own);
    server_stop(s);
    conversations_close(c);
}

int main(void)
{
    return unit_run(open_model, close_model);
}
