/* test_routes.c - whole answers of every route: statuses, headers, and all fields of all objects.
 *
 * The scripts in golden/ are requests with their answers. This program plays each script against a
 * server of its own in this process. A block of a script is
 *
 *     METHOD PATH KEY          KEY: an API key, or - for none
 *     Header: value            any number of headers
 *     ~ text                   the request is repeated until its answer has this text
 *     body                     any number of lines
 *     = STATUS
 *     Header: value            those that not all answers have
 *     | body                   any number of lines
 *
 * A blank line ends it. A line that begins with # is a comment. Times, and sizes that depend on
 * the machine, are written as #. A random name is written as its prefix, ID, and the order of its
 * first appearance; later requests name it so. WRITE_ROUTES=FOLDER writes the scripts with the
 * answers of this build: read the differences before you keep them. */
#include <arpa/inet.h>
#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/textbuf.h"
#include "api/shelf.h"
#include "base/json.h"
#include "server/call.h"
#include "server/server.h"
#include "api/conversations.h"
#include "tests/base/said.h"
#include "tests/base/tempdir.h"

/* A server, and the script that it is asked. */
struct stage {
    const char *script;
    /* the model of tests/e2e/scripted_model.py, which calls tools; false: models/demo */
    bool is_scripted;
    /* without keys, and without anything that keeps state */
    bool is_bare;
};

static struct stage stages[] = {
    {.script = "routes.txt"},
    {.script = "edges.txt"},
    {.script = "calls.txt", .is_scripted = true},
    {.script = "bare.txt", .is_bare = true},
};

enum { MAX_IDS = 400, PATIENCE_S = 300 };

/* --- the server ------------------------------------------------------------------------------- */

static char dir[TEMPDIR_BYTES], files[TEMPDIR_BYTES + 8];
static int n_wanted; /* number of headers that all answers of this server have */
static struct hcache *h;
static struct server *server;
static struct conversations *conversations;
static struct shelf *shelf;

/* Writes the scripted model into the test's folder and returns its path. */
static const char *scripted_model(void)
{
    static char path[TEMPDIR_BYTES + 8];
    snprintf(path, sizeof path, "%s/model", dir);
    char *cmd = xasprintf(
        "PYTHONPATH=tests/e2e PYTHONDONTWRITEBYTECODE=1 python3 -c "
        "'import sys, scripted_model; scripted_model.make(sys.argv[1])' %s",
        path);
    assert_int_equal(system(cmd), 0);
    free(cmd);
    return path;
}

static int start(void **state)
{
    const struct stage *at = *state;
    static const char *const keys[] = {"one", "two", "admin"};
    static const char *const origins[] = {"https://page.example"};
    struct server_opts so = {.hosts = (const char *const[]){"127.0.0.1"},
                             .n_hosts = 1,
                             .model_name = "demo",
                             .http_threads = 1,
                             .max_connections = 16,
                             .max_queue = 8,
                             .read_timeout_s = PATIENCE_S,
                             .write_timeout_s = PATIENCE_S,
                             .idle_timeout_s = PATIENCE_S,
                             .max_body_bytes = 1 << 16,
                             .max_bodies_bytes = 1 << 24};
    struct hcache_opts o = {
        .threads = 1, .max_context = 512, .max_sequences = 2, .no_reuse = true};
    const struct conversations_opts co = {.max_turns = 100, .max_bytes = 1 << 24};
    const struct hcache_truncation truncation = {.context = 256, .ratio = 0.5};
    struct err err = {0};
    struct hcache_err herr = {0};
    n_wanted = at->is_bare ? 7
                           : 8; /* without other origins answers do not vary by origin */
    tempdir_make(dir, "routes");
    snprintf(files, sizeof files, "%s/files", dir);
    o.model = at->is_scripted ? scripted_model() : "models/demo";
    conversations = NULL;
    shelf = NULL;
    if (!at->is_bare) {
        so.api_keys = keys;
        so.n_api_keys = 3;
        so.n_admin_keys = 1;
        so.origins = (struct origin_rules){.origins = origins, .n_origins = 1};
        so.plan = "kv";
        so.salt_quota_bytes = o.salt_quota_bytes = 1 << 24;
        o.store_in_memory = true;
        if (conversations_open(&co, &conversations, &err) != 0 ||
            shelf_open(files, 1 << 24, NULL, &shelf, &err) != 0)
            fail_msg("%s", err.msg);
    }
    if (server_start(&so, &server, &err) != 0 || hcache_open(&o, &h, &herr) != 0 ||
        hcache_serve_start(h, so.max_queue, &herr) != 0) {
        fprintf(stderr, "%s%s\n", err.msg, herr.msg);
        return -1;
    }
    if (!at->is_bare) {
        server_keep(server, conversations);
        server_truncate(server, &truncation);
        server_batches(server, shelf, 1);
    }
    return server_ready(server, h, &err);
}

static int stop(void **state)
{
    server_drain(server);
    hcache_serve_stop(h);
    server_stop(server);
    conversations_close(conversations);
    shelf_close(shelf);
    hcache_close(h);
    tempdir_remove(dir);
    return 0;
}

/* --- names and numbers that differ from run to run -------------------------------------------- */

static char *ids[MAX_IDS];
static int n_ids;

/* Returns the length of the random name at s, 0 if there is none. *n_prefix: its part that is
 * always the same. */
static size_t name_at(const char *s, size_t *n_prefix)
{
    static const char *const prefixes[] = {
        "resp_", "conv_",  "msg_", "file-", "batch_", "chatcmpl-", "cmpl-",
        "call_", "toolu_", "req_", "fc_",   "fco_",   "line_",     "turn_"};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        size_t n = strlen(prefixes[i]), more = 0;
        if (strncmp(s, prefixes[i], n) != 0)
            continue;
        while (isxdigit((unsigned char)s[n + more]))
            more++;
        *n_prefix = n;
        if (more >= 16)
            return n + more;
    }
    return 0;
}

/* Returns the number of a name among those with its prefix, from 1 on. */
static int number_of_id(const char *id, size_t n, size_t n_prefix)
{
    int number = 1;
    for (int i = 0; i < n_ids; i++) {
        if (strncmp(ids[i], id, n) == 0 && ids[i][n] == 0)
            return number;
        number += strncmp(ids[i], id, n_prefix) == 0;
    }
    assert_true(n_ids < MAX_IDS);
    ids[n_ids++] = xasprintf("%.*s", (int)n, id);
    return number;
}

/* Returns whether the value of a member differs from run to run, or from machine to machine. */
static bool is_volatile(const char *name, size_t n)
{
    static const char *const whole[] = {"created", "until", "committed_tokens", "ms",
                                        "restore_bubble", "read_bytes", "spans", "surprise",
                                        /* at a stream's start it depends on the time */
                                        "context_used", "guessed_tokens", "guessed_right"};
    static const char *const ends[] = {"_at", "_ms", "_s", "per_second"};
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++) {
        if (n == strlen(whole[i]) && strncmp(name, whole[i], n) == 0)
            return true;
    }
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        size_t m = strlen(ends[i]);
        if (n > m && strncmp(name + n - m, ends[i], m) == 0)
            return true;
    }
    return false;
}

/* Returns the length of a value that differs from run to run: a number, a list in the order of time
 * without its last bracket, or a word or null where is_word is set. */
static size_t length_of_value(const char *value, bool is_word)
{
    if (*value == '[') /* its members are objects with numbers and words */
        return strcspn(value, "]");
    if (is_word)
        return strcspn(value, ",}");
    return strspn(value, "-+.eE0123456789");
}

/* Returns the length of the number at s, if it is a percentage, or has so many digits that it was
 * computed in floating point; else 0. */
static size_t measured_at(const char *s)
{
    size_t whole = strspn(s, "-0123456789");
    size_t more = whole > 0 && s[whole] == '.' ? strspn(s + whole + 1, "0123456789e-") : 0;
    if (whole > 0 && strncmp(s + whole, " %", 2) == 0)
        return whole;
    return more > 5 ? whole + 1 + more : 0;
}

/* Returns the text with names and numbers written as the script has them. */
static char *settled(const char *s)
{
    struct textbuf out = {0};
    size_t n_prefix;
    for (size_t n; *s != 0; s += n) {
        int n_turns, n_table = 0;
        const char *end = *s == '"' ? strchr(s + 1, '"') : NULL;
        if (strncmp(s, "\"turns\": ", 9) == 0 &&
            sscanf(s, "\"turns\": %d, \"used_bytes\": %*d%n", &n_turns, &n_table) == 1 &&
            n_table > 0) { /* the table's keys are random, and so are splits of its pages */
            textbuf_addf(&out, "\"turns\": %d, \"used_bytes\": #", n_turns);
            n = (size_t)n_table;
        } else if (end != NULL && end[1] == ':' &&
                   is_volatile(s + 1, (size_t)(end - s) - 1)) {
            const char *value = end + 2 + strspn(end + 2, " ");
            /* On a busy machine a restore misses its prediction. */
            bool is_word = strncmp(s, "\"surprise\"", 10) == 0;
            size_t n_value = length_of_value(value, is_word);
            n = (size_t)(value - s);
            textbuf_add(&out, s, n);
            if (n_value > 0)
                textbuf_add(&out, "[#" + (*value != '['), *value == '[' ? 2 : 1);
            n += n_value;
        } else if ((n = name_at(s, &n_prefix)) > 0) {
            textbuf_addf(&out, "%.*sID%d", (int)n_prefix, s, number_of_id(s, n, n_prefix));
        } else if ((n = measured_at(s)) > 0) {
            textbuf_add(&out, "#", 1);
        } else {
            n = 1;
            textbuf_add(&out, s, 1);
        }
    }
    textbuf_add(&out, "", 0);
    return out.p;
}

/* Returns the text with the real names. */
static char *unsettled(const char *s)
{
    struct textbuf out = {0};
    while (*s != 0) {
        const char *id = NULL;
        size_t n_name = 1;
        for (int i = 0; i < n_ids; i++) {
            size_t n_prefix = 0, n = name_at(ids[i], &n_prefix);
            char *name = xasprintf("%.*sID%d", (int)n_prefix, ids[i],
                                   number_of_id(ids[i], n, n_prefix));
            size_t len = strlen(name);
            if (strncmp(s, name, len) == 0 && !isdigit((unsigned char)s[len])) {
                id = ids[i];
                n_name = len;
            }
            free(name);
        }
        textbuf_add(&out, id != NULL ? id : s, id != NULL ? strlen(id) : 1);
        s += n_name;
    }
    textbuf_add(&out, "", 0);
    return out.p;
}

/* --- a request -------------------------------------------------------------------------------- */

/* Returns a socket that is not the lowest descriptor. */
static int high_socket(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 64);
    close(fd);
    assert_true(high >= 64);
    return high;
}

/* Sends a text and returns everything that comes back until the server closes. */
static char *exchange(const char *text)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)server_port(server)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct textbuf got = {0};
    char piece[4096];
    int fd = high_socket();
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    for (size_t at = 0, n = strlen(text); at < n;) {
        ssize_t sent = send(fd, text + at, n - at, MSG_NOSIGNAL);
        assert_true(sent > 0);
        at += (size_t)sent;
    }
    for (ssize_t n; (n = recv(fd, piece, sizeof piece, 0)) > 0;)
        textbuf_add(&got, piece, (size_t)n);
    close(fd);
    textbuf_add(&got, "", 0);
    return got.p;
}

/* Every answer has these. */
static const char *const common[] = {
    "Cache-Control: no-store",
    "X-Content-Type-Options: nosniff",
    "X-Frame-Options: DENY",
    "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy: no-referrer",
    "Cross-Origin-Resource-Policy: same-origin",
    "Cross-Origin-Opener-Policy: same-origin",
    "Vary: Origin",
};

/* Returns whether the script leaves a header out. *n_common counts those that all answers have. */
static bool is_left_out(const char *line, size_t n, int *n_common)
{
    static const char *const names[] = {
        "Date:", "Connection:", "Content-Length:", "Process-Start-Time-Unix:"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strncasecmp(line, names[i], strlen(names[i])) == 0)
            return true;
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++) {
        if (strlen(common[i]) == n && strncmp(line, common[i], n) == 0) {
            ++*n_common;
            return true;
        }
    }
    return false;
}

/* Returns an answer as the script has it. */
static char *written(char *answer)
{
    struct textbuf out = {0};
    bool is_body = false;
    int n_common = 0;
    char *space = strchr(answer, ' '), *line = strstr(answer, "\r\n");
    if (space == NULL || line == NULL)
        fail_msg("no answer: %s", answer);
    textbuf_addf(&out, "= %.3s\n", space + 1);
    for (char *end; (line += *line == '\r' ? 2 : 1)[0] != 0; line = end) {
        end = line + strcspn(line, "\r\n");
        bool is_blank = end == line;
        if (!is_blank && (is_body || !is_left_out(line, (size_t)(end - line), &n_common)))
            textbuf_addf(&out, "%s%.*s\n", is_body ? "| " : "", (int)(end - line), line);
        is_body = is_body || is_blank;
        if (*end == 0)
            break;
    }
    if (n_common != n_wanted)
        textbuf_addf(&out, "it has %d of the headers that all answers have\n", n_common);
    textbuf_add(&out, "", 0);
    return out.p;
}

/* A block of the script. */
struct block {
    char *request; /* as it is written in the script */
    char *answer;  /* the rest, from "= " on */
    /* the request is repeated until its answer has this text; NULL: it is sent once */
    char *until;
    struct textbuf sent;
};

/* Makes the HTTP request of a block. */
static void make_request(struct block *b)
{
    struct textbuf head = {0}, body = {0};
    char *text = unsettled(b->request), *rest = NULL;
    char *line = strtok_r(text, "\n", &rest);
    char method[16], path[400], key[32];
    assert_int_equal(sscanf(line, "%15s %399s %31s", method, path, key), 3);
    textbuf_addf(&head, "%s %s HTTP/1.0\r\nHost: localhost\r\n", method, path);
    if (strcmp(key, "-") != 0)
        textbuf_addf(&head, "Authorization: Bearer %s\r\n", key);
    while ((line = strtok_r(NULL, "\n", &rest)) != NULL) {
        size_t n_name = strspn(line,
                               "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-");
        if (strncmp(line, "~ ", 2) == 0)
            b->until = xstrdup(line + 2);
        else if (body.n == 0 && n_name > 0 && line[0] != '-' && line[n_name] == ':')
            textbuf_addf(&head, "%s\r\n", line);
        else
            textbuf_addf(&body, "%s%s", body.n > 0 ? "\r\n" : "",
                         strcmp(line, ".") == 0 ? "" : line);
    }
    if (strcmp(method, "POST") == 0)
        textbuf_addf(&head, "Content-Length: %zu\r\n", body.n);
    textbuf_add(&body, "", 0);
    textbuf_addf(&b->sent, "%s\r\n%s", head.p, body.p);
    textbuf_free(&head);
    textbuf_free(&body);
    free(text);
}

/* Plays a block and returns the answer as the script has it. */
static char *play(struct block *b)
{
    int64_t end = clock_now_ns() + (int64_t)PATIENCE_S * 1000000000;
    make_request(b);
    for (;;) {
        char *raw = exchange(b->sent.p);
        bool is_done = b->until == NULL || strstr(raw, b->until) != NULL;
        char *text = written(raw), *answer = is_done ? settled(text) : NULL;
        if (!is_done && clock_now_ns() > end)
            fail_msg("'%s' does not come: %s", b->until, text);
        free(raw);
        free(text);
        if (is_done)
            return answer;
        clock_sleep_ns(2000000);
    }
}

/* --- the script ------------------------------------------------------------------------------- */

/* Plays a block. Returns whether the answer is the script's, and adds the block to `out`. */
static bool play_block(const char *text, struct textbuf *out)
{
    hcache_cache_flush(h); /* the next request finds the state of the last one */
    const char *equals = strncmp(text, "= ", 2) == 0 ? text : strstr(text, "\n= ");
    size_t n = equals != NULL ? (size_t)(equals - text) + 1 : strlen(text);
    struct block b = {.request = xasprintf("%.*s", (int)n, text)};
    char *want = xstrdup(equals != NULL ? equals + 1 : "");
    char *got = play(&b);
    bool is_same = strcmp(got, want) == 0;
    if (!is_same)
        printf("# %s# is answered by\n%s# instead of\n%s\n", b.request, got, want);
    textbuf_addf(out, "%s%s", b.request, got);
    free(b.request);
    free(b.until);
    textbuf_free(&b.sent);
    free(want);
    free(got);
    return is_same;
}

static void each_route_answers_as_written(void **state)
{
    const struct stage *at = *state;
    char *script, *rest, path[100];
    size_t n;
    int n_wrong = 0, n_played = 0;
    struct err err = {0};
    struct textbuf out = {0}, block = {0};
    snprintf(path, sizeof path, "tests/server/golden/%s", at->script);
    assert_int_equal(file_read(path, 1 << 24, &script, &n, &err), 0);
    for (char *line = script; line != NULL && *line != 0; line = rest) {
        rest = strchr(line, '\n');
        size_t n_line = rest != NULL ? (size_t)(++rest - line) : strlen(line);
        bool is_end = n_line == 1 || rest == NULL || *rest == 0;
        if (n_line > 1 && *line != '#')
            textbuf_add(&block, line, n_line);
        if (*line == '#')
            textbuf_add(&out, line, n_line);
        if (is_end && block.n > 0) {
            textbuf_add(&block, "", 0);
            n_wrong += !play_block(block.p, &out);
            n_played++;
            textbuf_free(&block);
        }
        if (n_line == 1)
            textbuf_add(&out, "\n", 1);
    }
    const char *to = getenv("WRITE_ROUTES");
    if (to != NULL) {
        char *name = xasprintf("%s/%s", to, at->script);
        FILE *f = fopen(name, "w");
        assert_non_null(f);
        fwrite(out.p, 1, out.n, f);
        fclose(f);
        free(name);
    }
    while (n_ids > 0)
        free(ids[--n_ids]);
    textbuf_free(&out);
    free(script);
    assert_true(n_played >= 10);
    assert_int_equal(n_wrong, 0);
}

static const char *path_in_text(const struct route *r)
{
    static char path[100];
    const char *star = strchr(r->path, '*');
    int n = star != NULL ? (int)(star - r->path) : (int)strlen(r->path);
    snprintf(path, sizeof path, "%.*s%s", n, r->path, star != NULL ? star + 1 : "");
    return path;
}

/* The server's description has each route and no other. */
static void the_description_has_each_route(void **state)
{
    struct json *v;
    int n_routes = 0, n_described = 0;
    char *answer = exchange("GET /openapi.json HTTP/1.0\r\nHost: localhost\r\n"
                            "Authorization: Bearer one\r\n\r\n"),
         *body = strstr(answer, "\r\n\r\n");
    assert_non_null(body);
    assert_int_equal(json_parse(&v, body + 4, strlen(body + 4), "it", NULL), 0);
    const struct json *paths = json_member(v, "paths");
    for (const struct route *r = routes; r->path != NULL; r++, n_routes++) {
        char verb[16];
        snprintf(verb, sizeof verb, "%s", r->method);
        for (char *c = verb; *c != 0; c++)
            *c = (char)tolower((unsigned char)*c);
        const struct json *op = json_member(json_member(paths, path_in_text(r)), verb);
        if (op == NULL)
            fail_msg("%s %s is not described", r->method, r->path);
        assert_int_equal(json_count(json_member(op, "parameters")),
                         (strchr(r->path, '{') != NULL) +
                             (strstr(r->path, "}/items/{") != NULL));
    }
    struct json_iter it = json_begin(paths);
    while (json_next(&it))
        for (struct json_iter op = json_begin(it.value); json_next(&op);)
            n_described++;
    assert_int_equal(n_described, n_routes);
    json_free(v);
    free(answer);
}

/* A server that was started without standard input accepts connections as descriptor 0. */
static void a_connection_may_be_descriptor_0(void **state)
{
    int own = dup(STDIN_FILENO);
    close(STDIN_FILENO);
    for (int i = 0; i < 2; i++) {
        char *got = exchange("GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n");
        assert_non_null(strstr(got, "\"status\": \"ok\""));
        free(got);
    }
    while (fcntl(STDIN_FILENO, F_GETFD) != -1) /* the server has not closed it yet */
        clock_sleep_ns(1000000);
    if (own >= 0) {
        assert_int_equal(dup2(own, STDIN_FILENO), STDIN_FILENO);
        close(own);
    }
}

/* --- connections ------------------------------------------------------------------------------ */

static int connected(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)server_port(server)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = high_socket();
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* Asks for the health on a connection that stays open. Returns false if the server closes it. */
static bool is_served(int fd)
{
    static const char ask[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    char got[4096];
    size_t n = 0;
    if (send(fd, ask, sizeof ask - 1, MSG_NOSIGNAL) != (ssize_t)sizeof ask - 1)
        return false;
    do {
        ssize_t more = recv(fd, got + n, sizeof got - 1 - n, 0);
        if (more <= 0)
            return false;
        n += (size_t)more;
        got[n] = 0;
    } while (strstr(got, "\"status\": \"ok\"") == NULL);
    return true;
}

/* A server with as many connections as it may have leaves further ones in the system's queue. They
 * are served when others have ended. */
static void connections_wait_for_their_turn(void **state)
{
    enum { MOST = 16 };
    int fd[MOST + 2];
    for (int i = 0; i < MOST; i++) {
        fd[i] = connected();
        assert_true(is_served(fd[i]));
    }
    fd[MOST] = connected();
    fd[MOST + 1] = connected();
    for (int i = 0; i < 3 * MOST; i++) /* the server could accept meanwhile */
        assert_true(is_served(fd[i % MOST]));
    for (int i = 0; i < 2; i++)
        close(fd[i]);
    for (int i = 2; i < MOST + 2; i++) {
        assert_true(is_served(fd[i]));
        close(fd[i]);
    }
}

/* --- the log ---------------------------------------------------------------------------------- */

/* Returns what was logged so far, with times written as #. The caller frees it. */
static char *logged(void)
{
    const char *text = said_so_far();
    char *out = xstrdup(text), *to = out;
    for (const char *p = text; *p != 0; p++) {
        /* on a busy machine restores miss their predictions, and say so */
        while (strncmp(p, "hcache: restoring ", 18) == 0 && strchr(p, '\n') != NULL)
            p = strchr(p, '\n') + 1;
        *to++ = *p;
        if (*p == 0)
            break;
        if (strncmp(p, " in ", 4) == 0 && isdigit((unsigned char)p[4])) {
            memcpy(to, "in #", 4);
            to += 4;
            p += 3 + strspn(p + 4, "0123456789.");
        }
    }
    *to = 0;
    return out;
}

/* Each request has a line with its route, its status, and its tokens or the reason of its refusal.
 * Polls that are answered have none. */
static void each_request_has_a_line_in_the_log(void **state)
{
    enum { LONG = 100 };
    static const char want[] =
        "hcache: POST /v1/completions 200 in # ms: prompt 100, cached 0, generated 2\n"
        "hcache: POST /v1/completions 200 in # ms: prompt 100, cached 64 (dram R0 H0 K4), "
        "generated 4\n"
        "hcache: POST /v1/completions 200 in # ms: prompt 3, cached 0, generated 2\n"
        "hcache: GET (no route) 404 in # ms: there is no such path\n"
        "hcache: GET /v1/responses/{id} 404 in # ms: not_found\n"
        "hcache: GET /v1/models 200 in # ms\n"
        "hcache: GET / 200 in # ms\n"
        "hcache: POST /v1/completions 400 in # ms: 'top_p' is 7; it must be 0 to 1\n"
        "hcache: GET /v1/cache/stats 401 in # ms: the API key is missing or unknown "
        "(Authorization: Bearer KEY)\n"
        "hcache: DELETE (no route) 405 in # ms: this path has no such method\n";
    struct textbuf prompt = {0};
    for (int i = 0; i < LONG; i++)
        textbuf_addf(&prompt, "%s%d", i > 0 ? "," : "", 40 + i % 20);
    char *const bodies[] = {
        xasprintf("{\"prompt\":[%s],\"max_tokens\":2,\"ignore_eos\":true}", prompt.p),
        xasprintf("{\"prompt\":[%s],\"max_tokens\":2,\"ignore_eos\":true,\"n\":2}",
                  prompt.p),
        xasprintf("{\"prompt\":[[40],[41,42]],\"max_tokens\":1,\"ignore_eos\":true}")};
    said_begin(LOG_INFO);
    for (int i = 0; i < 3; i++) {
        char *text = xasprintf("POST /v1/completions HTTP/1.0\r\nHost: localhost\r\n"
                               "Authorization: Bearer one\r\nContent-Length: %zu\r\n\r\n%s",
                               strlen(bodies[i]), bodies[i]);
        free(exchange(text));
        free(text);
        free(bodies[i]);
        hcache_cache_flush(h);
    }
    static const char *const asked[] = {
        "GET /v1/nothing HTTP/1.0\r\nAuthorization: Bearer one",
        "GET /v1/responses/resp_secret HTTP/1.0\r\nAuthorization: Bearer one",
        "GET /health HTTP/1.0",
        "GET /metrics HTTP/1.0\r\nAuthorization: Bearer one",
        "GET /v1/cache/stats HTTP/1.0\r\nAuthorization: Bearer one",
        "GET /v1/models HTTP/1.0\r\nAuthorization: Bearer one",
        "GET / HTTP/1.0",
        "POST /v1/completions HTTP/1.0\r\nAuthorization: Bearer one\r\nContent-Length: 24",
        "GET /v1/cache/stats HTTP/1.0",
        "DELETE /v1/models HTTP/1.0\r\nAuthorization: Bearer one"};
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        char *text = xasprintf("%s\r\nHost: localhost\r\n\r\n%s", asked[i],
                               i == 7 ? "{\"prompt\":\"x\",\"top_p\":7}" : "");
        free(exchange(text));
        free(text);
    }
    char *got = logged();
    int64_t end = clock_now_ns() + (int64_t)PATIENCE_S * 1000000000;
    while (strlen(got) < strlen(want) && clock_now_ns() < end) {
        /* a line comes when its connection has ended */
        free(got);
        clock_sleep_ns(1000000);
        got = logged();
    }
    said_end();
    assert_string_equal(got, want);
    free(got);
    textbuf_free(&prompt);
}

#define STAGE(f, i) cmocka_unit_test_prestate_setup_teardown(f, start, stop, &stages[i])

int main(void)
{
    const struct CMUnitTest tests[] = {
        STAGE(a_connection_may_be_descriptor_0, 0),
        STAGE(connections_wait_for_their_turn, 0),
        STAGE(each_request_has_a_line_in_the_log, 0),
        STAGE(the_description_has_each_route, 0),
        STAGE(each_route_answers_as_written, 0),
        STAGE(each_route_answers_as_written, 1),
        STAGE(each_route_answers_as_written, 2),
        STAGE(each_route_answers_as_written, 3),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
