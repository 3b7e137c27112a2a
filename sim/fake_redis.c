/* fake_redis.c - see fake_redis.h. */
#include "sim/fake_redis.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/textbuf.h"

enum {
    MAX_CONNECTIONS = 64,
    MAX_ARGS = 16,
    MAX_VALUES = 256,
    MAX_FIELDS = 16,
    MAX_NAMES = 32
};

struct value {
    char *name;
    uint8_t *bytes;
    size_t n;
    int64_t ttl_s;
};

struct command_state {
    char name[16];
    uint64_t n_come;
    enum fake_trouble trouble;
    int n_troubled; /* the trouble is for the next n_troubled commands of this name */
};

struct connection {
    struct fake_redis *f;
    int fd;
    pthread_t thread;
};

struct fake_redis {
    int listener;
    char url[64];
    pthread_t accepter;
    pthread_mutex_t lock; /* protects all fields from `ends` on */
    pthread_cond_t news;  /* signalled when connections with withheld answers shall end */
    bool ends;
    int n_connections;
    struct connection connection[MAX_CONNECTIONS];
    struct value value[MAX_VALUES]; /* [n_values] */
    int n_values;
    char *walk[MAX_VALUES]; /* [n_walk] names that existed when the last SCAN began */
    int n_walk;
    struct value *entry; /* [n_entries] the stream, oldest first */
    int n_entries;
    uint64_t n_added;
    char last_id[32];
    bool has_stream;
    struct value field[MAX_FIELDS]; /* [n_fields] the hash */
    int n_fields;
    struct command_state command[MAX_NAMES]; /* [n_commands] */
    int n_commands;
    uint64_t n_answered; /* calls of fake_redis_answer */
};

/* --- data ------------------------------------------------------------------------------------- */

static void value_set(struct value *v, const void *bytes, size_t n)
{
    free(v->bytes);
    v->bytes = (uint8_t *)xmemdup(bytes, n);
    v->n = n;
}

static void value_free(struct value *v)
{
    free(v->name);
    free(v->bytes);
}

static struct value *find(struct value *all, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(all[i].name, name) == 0)
            return &all[i];
    return NULL;
}

/* [lock] Returns the value with this name. Adds it if it does not exist. */
static struct value *find_or_add(struct value *all, int *n, int max, const char *name)
{
    struct value *v = find(all, *n, name);
    if (v != NULL)
        return v;
    CHECK(*n < max);
    v = &all[(*n)++];
    *v = (struct value){.name = xstrdup(name)};
    return v;
}

static void drop_value(struct fake_redis *f, struct value *v)
{
    value_free(v);
    *v = f->value[--f->n_values];
}

static void forget_walk(struct fake_redis *f)
{
    while (f->n_walk > 0)
        free(f->walk[--f->n_walk]);
}

/* The id of an entry begins with `number`. */
static void add_entry(struct fake_redis *f, uint64_t number, const void *bytes, size_t n)
{
    f->entry = xrealloc(f->entry, ((size_t)f->n_entries + 1) * sizeof *f->entry);
    struct value *e = &f->entry[f->n_entries++];
    *e = (struct value){.name = xasprintf("%llu-0", (unsigned long long)number)};
    snprintf(f->last_id, sizeof f->last_id, "%s", e->name);
    value_set(e, bytes, n);
    f->n_added++;
    f->has_stream = true;
}

static struct command_state *state_of(struct fake_redis *f, const char *name)
{
    for (int i = 0; i < f->n_commands; i++)
        if (strcasecmp(f->command[i].name, name) == 0)
            return &f->command[i];
    CHECK(f->n_commands < MAX_NAMES && strlen(name) < sizeof f->command[0].name);
    struct command_state *c = &f->command[f->n_commands++];
    *c = (struct command_state){0};
    strcpy(c->name, name);
    return c;
}

/* --- answers ---------------------------------------------------------------------------------- */

struct arg {
    char *text; /* with a final zero */
    size_t n;
};

static void put_number(struct textbuf *out, int64_t n)
{
    textbuf_addf(out, ":%lld\r\n", (long long)n);
}

static void put_bytes(struct textbuf *out, const void *bytes, size_t n)
{
    textbuf_addf(out, "$%zu\r\n", n);
    textbuf_add(out, bytes, n);
    textbuf_add(out, "\r\n", 2);
}

static void put_text(struct textbuf *out, const char *text)
{
    put_bytes(out, text, strlen(text));
}

static void put_list(struct textbuf *out, int n)
{
    textbuf_addf(out, "*%d\r\n", n);
}

static int64_t wall_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void do_strings(struct fake_redis *f, const struct arg *a, struct textbuf *out)
{
    const char *name = a[0].text;
    struct value *v = find(f->value, f->n_values, a[1].text);
    if (strcmp(name, "STRLEN") == 0) {
        put_number(out, v != NULL ? (int64_t)v->n : 0);
    } else if (strcmp(name, "UNLINK") == 0) {
        put_number(out, v != NULL);
        if (v != NULL)
            drop_value(f, v);
    } else if (strcmp(name, "SET") == 0) {
        CHECK(strcmp(a[3].text, "PXAT") == 0);
        v = find_or_add(f->value, &f->n_values, MAX_VALUES, a[1].text);
        value_set(v, a[2].text, a[2].n);
        v->ttl_s = (atoll(a[4].text) - wall_ms()) / 1000;
        textbuf_addf(out, "+OK\r\n");
    } else if (strcmp(name, "EXPIRE") == 0) {
        if (v != NULL)
            v->ttl_s = atoll(a[2].text);
        put_number(out, v != NULL);
    } else if (v == NULL) {
        textbuf_addf(out, strcmp(name, "GETEX") == 0 ? "$-1\r\n" : "$0\r\n\r\n");
    } else if (strcmp(name, "GETEX") == 0) {
        put_bytes(out, v->bytes, v->n);
    } else { /* GETRANGE */
        size_t first = (size_t)atoll(a[2].text), end = (size_t)atoll(a[3].text) + 1;
        end = end < v->n ? end : v->n;
        put_bytes(out, v->bytes + (first < end ? first : 0), first < end ? end - first : 0);
    }
}

/* A SCAN takes two calls. The first call answers with half of the names that existed at its time,
 * the second with the other half. */
static void do_scan(struct fake_redis *f, const struct arg *a, struct textbuf *out)
{
    bool is_first = strcmp(a[1].text, "0") == 0;
    if (is_first) {
        forget_walk(f);
        for (; f->n_walk < f->n_values; f->n_walk++)
            f->walk[f->n_walk] = xstrdup(f->value[f->n_walk].name);
    }
    int half = f->n_walk / 2, from = is_first ? 0 : half, end = is_first ? half : f->n_walk;
    put_list(out, 2);
    put_text(out, is_first ? "17" : "0");
    put_list(out, end - from);
    for (int i = from; i < end; i++)
        put_text(out, f->walk[i]);
}

static void put_entry(struct textbuf *out, const struct value *e)
{
    static const char *const of_another_program[] = {"entries-added", "0", "9-9", ""};
    put_list(out, 2);
    put_text(out, e->name);
    put_list(out, e->n > 0 ? 2 : 4);
    for (int i = 0; i < 4 && e->n == 0; i++)
        put_text(out, of_another_program[i]);
    if (e->n > 0) {
        put_text(out, "e");
        put_bytes(out, e->bytes, e->n);
    }
}

static void do_stream(struct fake_redis *f, const struct arg *a, int n, struct textbuf *out)
{
    if (strcmp(a[0].text, "XADD") == 0) {
        add_entry(f, f->n_added + 1, a[n - 1].text, a[n - 1].n);
        put_text(out, f->entry[f->n_entries - 1].name);
        return;
    }
    if (strcmp(a[0].text, "XINFO") == 0) {
        if (!f->has_stream) {
            textbuf_addf(out, "-ERR no such key\r\n");
            return;
        }
        put_list(out, f->n_entries > 0 ? 10 : 8);
        put_text(out, "length");
        put_number(out, f->n_entries);
        put_text(out, "radix-tree-keys");
        put_number(out, 1);
        put_text(out, "last-generated-id");
        put_text(out, f->last_id);
        put_text(out, "entries-added");
        put_number(out, (int64_t)f->n_added);
        if (f->n_entries > 0) {
            put_text(out, "last-entry");
            put_entry(out, &f->entry[f->n_entries - 1]);
        }
        return;
    }
    int from = 0, most = (int)strtol(a[5].text, NULL, 10);
    while (from < f->n_entries && atoll(f->entry[from].name) < atoll(a[2].text))
        from++;
    int n_here = f->n_entries - from < most ? f->n_entries - from : most;
    put_list(out, n_here);
    for (int i = from; i < from + n_here; i++)
        put_entry(out, &f->entry[i]);
}

static void do_time(struct textbuf *out)
{
    char seconds[24], rest[24];
    int64_t ms = wall_ms();
    snprintf(seconds, sizeof seconds, "%lld", (long long)(ms / 1000));
    snprintf(rest, sizeof rest, "%lld", (long long)(ms % 1000 * 1000));
    put_list(out, 2);
    put_text(out, seconds);
    put_text(out, rest);
}

static void do_hash(struct fake_redis *f, const struct arg *a, struct textbuf *out)
{
    if (strcmp(a[0].text, "HSET") == 0) {
        value_set(find_or_add(f->field, &f->n_fields, MAX_FIELDS, a[2].text), a[3].text,
                  a[3].n);
        put_number(out, 1);
        return;
    }
    put_list(out, 2 * f->n_fields);
    for (int i = 0; i < f->n_fields; i++) {
        put_text(out, f->field[i].name);
        put_bytes(out, f->field[i].bytes, f->field[i].n);
    }
}

/* [lock] Writes the answer to a command. */
static void answer(struct fake_redis *f, const struct arg *a, int n, struct textbuf *out)
{
    static const char *const strings[] = {"STRLEN", "UNLINK", "SET",
                                          "EXPIRE", "GETEX",  "GETRANGE"};
    const char *name = a[0].text;
    for (int i = 0; i < 6; i++) {
        if (strcmp(name, strings[i]) == 0) {
            do_strings(f, a, out);
            return;
        }
    }
    if (strcmp(name, "TIME") == 0)
        do_time(out);
    else if (strcmp(name, "SCAN") == 0)
        do_scan(f, a, out);
    else if (name[0] == 'X')
        do_stream(f, a, n, out);
    else if (name[0] == 'H')
        do_hash(f, a, out);
    else if (strcmp(name, "PING") == 0)
        textbuf_addf(out, "+PONG\r\n");
    else if (strcmp(name, "CLUSTER") == 0)
        textbuf_addf(out, "-ERR This instance has cluster support disabled\r\n");
    else if (strcmp(name, "SELECT") == 0 || strcmp(name, "AUTH") == 0)
        textbuf_addf(out, "+OK\r\n");
    else {
        fprintf(stderr, "fake_redis does not know %s\n", name);
        CHECK(!"a command that it knows");
    }
}

/* --- connections ------------------------------------------------------------------------------ */

static bool read_exactly(int fd, void *buf, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t got = recv(fd, (uint8_t *)buf + at, n - at, 0);
        if (got <= 0)
            return false;
        at += (size_t)got;
    }
    return true;
}

/* Reads "*N\r\n" or "$N\r\n". Returns N, or -1. */
static int64_t read_count(int fd, char kind)
{
    char line[32], c;
    size_t n = 0;
    while (n < sizeof line - 1 && read_exactly(fd, &c, 1) && c != '\n')
        line[n++] = c;
    line[n] = 0;
    return n > 1 && line[0] == kind ? atoll(line + 1) : -1;
}

static bool read_command(int fd, struct arg *a, int *n)
{
    int64_t n_args = read_count(fd, '*');
    for (*n = 0; *n < n_args && *n < MAX_ARGS; ++*n) {
        int64_t length = read_count(fd, '$');
        if (length < 0)
            return false;
        a[*n] = (struct arg){xmalloc((size_t)length + 2), (size_t)length};
        if (!read_exactly(fd, a[*n].text, (size_t)length + 2)) {
            free(a[*n].text);
            return false;
        }
        a[*n].text[length] = 0;
    }
    return n_args > 0 && *n == n_args;
}

static bool send_all(int fd, const struct textbuf *out, bool drips)
{
    for (size_t at = 0; at < out->n;) {
        ssize_t sent = send(fd, out->p + at, drips ? 1 : out->n - at, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        at += (size_t)sent;
        if (drips)
            usleep(1000);
    }
    return true;
}

/* Carries out one command. Returns false if the connection must end. *drips: the answer must be
 * sent slowly. */
static bool carry_out(struct fake_redis *f, const struct arg *a, int n, struct textbuf *out,
                      bool *drips)
{
    pthread_mutex_lock(&f->lock);
    struct command_state *c = state_of(f, a[0].text);
    bool stays = !f->ends, is_troubled = c->n_troubled > 0;
    c->n_come++;
    c->n_troubled -= is_troubled;
    *drips = is_troubled && c->trouble == FAKE_DRIPS;
    if (!is_troubled || *drips)
        answer(f, a, n, out);
    else if (c->trouble == FAKE_REFUSES)
        textbuf_addf(out, "-OOM no room\r\n");
    else if (c->trouble == FAKE_DROPS)
        stays = false;
    else
        for (uint64_t seen = f->n_answered; !f->ends && f->n_answered == seen;
             stays = false)
            pthread_cond_wait(&f->news, &f->lock);
    pthread_mutex_unlock(&f->lock);
    return stays;
}

static void *connection_main(void *arg)
{
    struct connection *c = arg;
    struct arg a[MAX_ARGS];
    struct textbuf out = {0};
    bool stays = true;
    while (stays) {
        int n = 0;
        stays = read_command(c->fd, a, &n);
        out.n = 0;
        bool drips;
        stays = stays && carry_out(c->f, a, n, &out, &drips) &&
                send_all(c->fd, &out, drips);
        for (int i = 0; i < n; i++)
            free(a[i].text);
    }
    textbuf_free(&out);
    shutdown(c->fd, SHUT_RDWR);
    return NULL;
}

static void *accepter_main(void *arg)
{
    struct fake_redis *f = arg;
    int fd;
    while ((fd = accept(f->listener, NULL, NULL)) >= 0) {
        pthread_mutex_lock(&f->lock);
        CHECK(f->n_connections < MAX_CONNECTIONS);
        struct connection *c = &f->connection[f->n_connections++];
        *c = (struct connection){.f = f, .fd = fd};
        CHECK(pthread_create(&c->thread, NULL, connection_main, c) == 0);
        pthread_mutex_unlock(&f->lock);
    }
    return NULL;
}

/* --- life ------------------------------------------------------------------------------------- */

struct fake_redis *fake_redis_start(void)
{
    struct fake_redis *f = xcalloc(1, sizeof *f);
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->news, NULL);
    f->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(f->listener, (struct sockaddr *)&a, sizeof a) == 0);
    CHECK(listen(f->listener, 16) == 0);
    CHECK(getsockname(f->listener, (struct sockaddr *)&a, &n) == 0);
    snprintf(f->url, sizeof f->url, "redis://127.0.0.1:%d", ntohs(a.sin_port));
    CHECK(pthread_create(&f->accepter, NULL, accepter_main, f) == 0);
    return f;
}

void fake_redis_stop(struct fake_redis *f)
{
    shutdown(f->listener, SHUT_RDWR);
    pthread_join(f->accepter, NULL);
    close(f->listener);
    pthread_mutex_lock(&f->lock);
    f->ends = true;
    pthread_cond_broadcast(&f->news);
    pthread_mutex_unlock(&f->lock);
    for (int i = 0; i < f->n_connections; i++) {
        shutdown(f->connection[i].fd, SHUT_RDWR);
        pthread_join(f->connection[i].thread, NULL);
        close(f->connection[i].fd);
    }
    fake_redis_forget(f);
    forget_walk(f);
    for (int i = 0; i < f->n_values; i++)
        value_free(&f->value[i]);
    for (int i = 0; i < f->n_fields; i++)
        value_free(&f->field[i]);
    pthread_cond_destroy(&f->news);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

const char *fake_redis_url(const struct fake_redis *f)
{
    return f->url;
}

/* --- what a test does and sees ---------------------------------------------------------------- */

void fake_redis_trouble(struct fake_redis *f, const char *command, enum fake_trouble what,
                        int n)
{
    pthread_mutex_lock(&f->lock);
    struct command_state *c = state_of(f, command);
    c->trouble = what;
    c->n_troubled = n;
    pthread_mutex_unlock(&f->lock);
}

void fake_redis_answer(struct fake_redis *f)
{
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < f->n_commands; i++)
        f->command[i].n_troubled = 0;
    f->n_answered++;
    pthread_cond_broadcast(&f->news);
    pthread_mutex_unlock(&f->lock);
}

uint64_t fake_redis_count(struct fake_redis *f, const char *command)
{
    pthread_mutex_lock(&f->lock);
    uint64_t n = state_of(f, command)->n_come;
    pthread_mutex_unlock(&f->lock);
    return n;
}

size_t fake_redis_value(struct fake_redis *f, const char *name, int64_t *ttl_s)
{
    pthread_mutex_lock(&f->lock);
    const struct value *v = find(f->value, f->n_values, name);
    size_t n = v != NULL ? v->n : 0;
    if (ttl_s != NULL)
        *ttl_s = v != NULL ? v->ttl_s : 0;
    pthread_mutex_unlock(&f->lock);
    return n;
}

void fake_redis_get(struct fake_redis *f, const char *name, uint8_t *out)
{
    pthread_mutex_lock(&f->lock);
    const struct value *v = find(f->value, f->n_values, name);
    CHECK(v != NULL);
    memcpy(out, v->bytes, v->n);
    pthread_mutex_unlock(&f->lock);
}

void fake_redis_put(struct fake_redis *f, const char *name, const void *bytes, size_t n)
{
    pthread_mutex_lock(&f->lock);
    value_set(find_or_add(f->value, &f->n_values, MAX_VALUES, name), bytes, n);
    pthread_mutex_unlock(&f->lock);
}

uint64_t fake_redis_n_added(struct fake_redis *f)
{
    pthread_mutex_lock(&f->lock);
    uint64_t n = f->n_added;
    pthread_mutex_unlock(&f->lock);
    return n;
}

void fake_redis_add(struct fake_redis *f, const void *bytes, size_t n)
{
    pthread_mutex_lock(&f->lock);
    add_entry(f, f->n_added + 1, bytes, n);
    pthread_mutex_unlock(&f->lock);
}

void fake_redis_add_at(struct fake_redis *f, int64_t ms, const void *bytes, size_t n)
{
    pthread_mutex_lock(&f->lock);
    add_entry(f, (uint64_t)ms, bytes, n);
    pthread_mutex_unlock(&f->lock);
}

void fake_redis_trim(struct fake_redis *f, int n)
{
    pthread_mutex_lock(&f->lock);
    int n_gone = f->n_entries > n ? f->n_entries - n : 0;
    for (int i = 0; i < n_gone; i++)
        value_free(&f->entry[i]);
    f->n_entries -= n_gone;
    if (n_gone > 0)
        memmove(f->entry, f->entry + n_gone, (size_t)f->n_entries * sizeof *f->entry);
    pthread_mutex_unlock(&f->lock);
}

void fake_redis_forget(struct fake_redis *f)
{
    fake_redis_trim(f, 0);
    pthread_mutex_lock(&f->lock);
    free(f->entry);
    f->entry = NULL;
    f->n_added = 0;
    f->has_stream = false;
    pthread_mutex_unlock(&f->lock);
}

int fake_redis_n_fields(struct fake_redis *f)
{
    pthread_mutex_lock(&f->lock);
    int n = f->n_fields;
    pthread_mutex_unlock(&f->lock);
    return n;
}

void fake_redis_set_field(struct fake_redis *f, const char *field, const char *value)
{
    pthread_mutex_lock(&f->lock);
    value_set(find_or_add(f->field, &f->n_fields, MAX_FIELDS, field), value, strlen(value));
    pthread_mutex_unlock(&f->lock);
}
