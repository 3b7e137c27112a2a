/* redis.c - see redis.h. */
#include "redis/redis.h"

#include <errno.h>
#include <hiredis/read.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/textbuf.h"

/* Arguments up to this size are gathered and sent together. */
enum { SMALL_BYTES = 4096 };
enum { RECEIVE_BYTES = 256 << 10 };
/* A string of this size or more is received directly into its answer. */
enum { LARGE_BYTES = 64 << 10 };
/* After a large string another large one probably follows. So only this many bytes are received at
 * first: enough for its header. The rest is received in place. */
enum { SNIFF_BYTES = 64 };
/* Largest header of a string: "$", the digits of the size, and the end of the line. */
enum { HEADER_BYTES = 24, MOST_DIGITS = 15 };

struct redis {
    struct wire wire;
    size_t max_answer_bytes;
    struct textbuf out;
    size_t n_sent; /* bytes of `out` that were sent */
    redisReader *reader;
    struct redis_answer *to; /* answer that is being filled */
    char *receive; /* [RECEIVE_BYTES] received bytes; [at, end) were not read yet */
    size_t at, end;
    /* large_bytes: size of the large string that is being received, with the end of its line; 0:
     * none is. n_large: how many of these bytes have come. */
    size_t large_bytes, n_large;
    bool sniffs;      /* the last answer was a large string */
    bool is_too_long; /* hiredis refused a string because it is longer than allowed */
    uint64_t n_come;  /* bytes received since the last answer was complete */
};

/* --- answers ---------------------------------------------------------------------------------- */

void redis_answer_deinit(struct redis_answer *a)
{
    free(a->bytes);
    *a = (struct redis_answer){0};
}

/* Makes room for n bytes and a final zero. The old content is lost. Returns false if there is no
 * memory. */
static bool answer_reserve(struct redis_answer *a, size_t n)
{
    if (n < a->max_bytes)
        return true;
    free(a->bytes);
    a->bytes = mem_try(n + 1);
    a->max_bytes = a->bytes != NULL ? n + 1 : 0;
    return a->bytes != NULL;
}

/* Appends n bytes, and a final zero that is not counted. Returns false if there is no memory. */
static bool answer_add(struct redis_answer *a, const void *bytes, size_t n)
{
    size_t need = a->n_bytes + n + 1;
    if (need > a->max_bytes) {
        size_t max = MAX(need, 2 * a->max_bytes);
        void *p = mem_try_realloc(a->bytes, max);
        if (p == NULL)
            return false;
        a->bytes = p;
        a->max_bytes = max;
    }
    if (n > 0)
        memcpy(a->bytes + a->n_bytes, bytes, n);
    a->n_bytes += n;
    a->bytes[a->n_bytes] = 0;
    return true;
}

/* A string in a list: its depth, the number of its bytes, and its bytes. */
enum { LIST_HEAD_BYTES = 1 + 4 };

int redis_depth(const struct redis_answer *a, size_t at)
{
    return a->kind == REDIS_LIST && at + LIST_HEAD_BYTES <= a->n_bytes ? a->bytes[at] : 0;
}

bool redis_next(const struct redis_answer *a, size_t *at, const char **bytes,
                size_t *n_bytes)
{
    if (redis_depth(a, *at) == 0)
        return false;
    *n_bytes = get_u32(a->bytes + *at + 1);
    *bytes = (const char *)a->bytes + *at + LIST_HEAD_BYTES;
    *at += LIST_HEAD_BYTES + *n_bytes;
    return true;
}

/* Returns the object that a callback gives to hiredis: any pointer but NULL says that the bytes
 * were taken. NULL (!ok) says that there was no memory. */
static void *taken(const struct redis *r, bool ok)
{
    return ok ? r->to : NULL;
}

/* Replaces all but printable ASCII, because a refusal goes into logs and answers. */
static void make_printable(struct redis_answer *a)
{
    for (size_t i = 0; i < a->n_bytes; i++)
        if (a->bytes[i] < ' ' || a->bytes[i] > '~')
            a->bytes[i] = '?';
}

/* Adds the string of a task to its list. */
static void *list_add(const redisReadTask *t, const char *bytes, size_t n)
{
    struct redis *r = t->privdata;
    struct redis_answer *a = r->to;
    uint8_t head[LIST_HEAD_BYTES] = {0};
    for (; t->parent != NULL && head[0] < UINT8_MAX; t = t->parent)
        head[0]++;
    put_u32(head + 1, (uint32_t)n);
    a->kind = REDIS_LIST;
    r->is_too_long = n > UINT32_MAX || a->n_bytes + n > r->max_answer_bytes;
    return taken(r, !r->is_too_long && answer_add(a, head, sizeof head) &&
                        answer_add(a, bytes, n));
}

static void *take_string(const redisReadTask *t, char *bytes, size_t n)
{
    struct redis *r = t->privdata;
    struct redis_answer *a = r->to;
    if (t->parent != NULL)
        return list_add(t, bytes, n);
    a->kind = t->type == REDIS_REPLY_ERROR ? REDIS_REFUSED : REDIS_BYTES;
    r->is_too_long = n > r->max_answer_bytes;
    bool ok = !r->is_too_long && answer_add(a, bytes, n);
    if (ok && a->kind == REDIS_REFUSED)
        make_printable(a);
    return taken(r, ok);
}

static void *take_number(const redisReadTask *t, long long n)
{
    struct redis *r = t->privdata;
    char text[32];
    int n_text = snprintf(text, sizeof text, "%lld", n);
    /* lists inside lists are flattened, so a list contains only strings */
    if (t->parent != NULL)
        return list_add(t, text, (size_t)n_text);
    r->to->kind = REDIS_NUMBER;
    r->to->number = n;
    return r->to;
}

static void *take_nil(const redisReadTask *t)
{
    struct redis *r = t->privdata;
    if (t->parent == NULL)
        r->to->kind = REDIS_NONE;
    return r->to;
}

/* Lists are flattened: hiredis builds no array, so no list is too large for it. */
static redisReplyObjectFunctions functions = {
    .createString = take_string, .createInteger = take_number, .createNil = take_nil};

/* --- sending commands ------------------------------------------------------------------------- */

int redis_flush(struct redis *r, int64_t deadline_ns, struct err *err)
{
    int rc = wire_send(&r->wire, r->out.p, r->out.n, &r->n_sent, deadline_ns, err);
    if (rc == 0)
        r->out.n = r->n_sent = 0;
    return rc;
}

int redis_command(struct redis *r, const struct redis_arg *args, int n_args,
                  int64_t deadline_ns, struct err *err)
{
    int rc = 0;
    textbuf_addf(&r->out, "*%d\r\n", n_args);
    for (int i = 0; rc == 0 && i < n_args; i++) {
        textbuf_addf(&r->out, "$%zu\r\n", args[i].n_bytes);
        if (args[i].n_bytes <= SMALL_BYTES) {
            textbuf_add(&r->out, args[i].bytes, args[i].n_bytes);
        } else {
            size_t n_sent = 0;
            rc = redis_flush(r, deadline_ns, err);
            if (rc == 0)
                rc = wire_send(&r->wire, args[i].bytes, args[i].n_bytes, &n_sent,
                               deadline_ns, err);
        }
        textbuf_add(&r->out, "\r\n", 2);
    }
    return rc;
}

/* --- receiving answers ------------------------------------------------------------------------ */

/* Returns the size in the header of a string, or -1 if these bytes are no such header, and hiredis
 * must read them. */
static int64_t string_bytes(const char *p, size_t n, size_t *n_header)
{
    int64_t size = 0;
    size_t i = 1;
    if (n < 4 || p[0] != '$')
        return -1;
    for (; i < n && p[i] >= '0' && p[i] <= '9' && i <= MOST_DIGITS; i++)
        size = 10 * size + (p[i] - '0');
    if (i == 1 || i + 2 > n || p[i] != '\r' || p[i + 1] != '\n')
        return -1;
    *n_header = i + 2;
    return size;
}

static int too_long(const struct redis *r, struct err *err)
{
    return err_set(err, ERR_LIMIT, "the remote's answer is longer than %zu bytes",
                   r->max_answer_bytes);
}

/* Returns whether the next byte begins an answer: hiredis has read all that it was given. */
static bool is_between_answers(const struct redis *r)
{
    return r->reader->ridx == -1 && r->reader->pos == r->reader->len;
}

/* If a large string begins, moves its first bytes to *out and sets large_bytes. */
static int large_begin(struct redis *r, struct redis_answer *out, struct err *err)
{
    size_t n_header = 0, n_here = r->end - r->at;
    int64_t n = string_bytes(r->receive + r->at, n_here, &n_header);
    if (n < LARGE_BYTES)
        return 0;
    if ((uint64_t)n > r->max_answer_bytes)
        return too_long(r, err);
    if (!answer_reserve(out, (size_t)n + 2))
        return err_set(err, -ENOMEM, "no memory for the remote's answer");
    r->large_bytes = (size_t)n + 2;
    r->at += n_header;
    n_here -= n_header;
    r->n_large = MIN(n_here, r->large_bytes);
    memcpy(out->bytes, r->receive + r->at, r->n_large);
    r->at += r->n_large;
    return 0;
}

static int large_end(struct redis *r, struct redis_answer *out, struct err *err)
{
    size_t n = r->large_bytes - 2;
    r->large_bytes = 0;
    r->sniffs = true;
    if (out->bytes[n] != '\r' || out->bytes[n + 1] != '\n')
        return err_set(err, ERR_FORMAT,
                       "the remote does not speak Redis's protocol: a string has no end");
    out->kind = REDIS_BYTES;
    out->n_bytes = n;
    out->bytes[n] = 0;
    return 0;
}

/* Returns how many of the received bytes hiredis gets. If the end of a short answer is known,
 * hiredis gets only that answer, so that a large string behind it is not copied. */
static size_t short_answer_bytes(const struct redis *r)
{
    const char *p = r->receive + r->at;
    size_t n = r->end - r->at, n_header = 0, n_answer = n;
    if (!is_between_answers(r) || n == 0)
        return n;
    int64_t n_string = string_bytes(p, n, &n_header);
    const char *line = memchr(p, '\n', n);
    if (n_string >= 0)
        n_answer = n_header + (size_t)n_string + 2;
    else if (line != NULL && line > p && line[-1] == '\r' && memchr(":+-", p[0], 3) != NULL)
        n_answer = (size_t)(line + 1 - p);
    return MIN(n_answer, n);
}

static int parse_short(struct redis *r, bool *complete, struct err *err)
{
    void *object = NULL;
    size_t n = short_answer_bytes(r);
    /* hiredis would take 0 bytes for the beginning of an answer */
    if (n == 0 && is_between_answers(r))
        return 0;
    if (redisReaderFeed(r->reader, r->receive + r->at, n) != REDIS_OK)
        return err_set(err, -ENOMEM, "no memory for the remote's answer");
    r->at += n;
    if (redisReaderGetReply(r->reader, &object) != REDIS_OK)
        return r->is_too_long ? too_long(r, err)
                              : err_set(err, ERR_FORMAT,
                                        "the remote does not speak Redis's protocol: %s",
                                        r->reader->errstr);
    *complete = object != NULL;
    r->sniffs = r->sniffs && !*complete;
    /* hiredis keeps an incomplete string together with its header and the end of its line */
    if (!*complete &&
        r->reader->len - r->reader->pos > r->max_answer_bytes + HEADER_BYTES + 2)
        return too_long(r, err);
    return 0;
}

/* Takes the next answer from the received bytes. */
static int parse(struct redis *r, struct redis_answer *out, bool *complete, struct err *err)
{
    int rc = 0;
    r->to = out;
    *complete = false;
    if (r->large_bytes == 0 && is_between_answers(r))
        rc = large_begin(r, out, err);
    if (rc == 0 && r->large_bytes == 0) {
        rc = parse_short(r, complete, err);
    } else if (rc == 0 && r->n_large == r->large_bytes) {
        *complete = true;
        rc = large_end(r, out, err);
    }
    if (*complete)
        r->n_come = 0;
    return rc;
}

/* Receives some bytes. Bytes of a large string go into its answer, all others into r->receive. */
static int receive(struct redis *r, int64_t deadline_ns, struct redis_answer *out,
                   struct err *err)
{
    bool is_large = r->large_bytes != 0;
    /* parse_short has taken all bytes, unless it has completed an answer */
    CHECK(is_large || r->at == r->end);
    r->at = r->end = 0;
    uint8_t *to = is_large ? out->bytes + r->n_large : (uint8_t *)r->receive;
    size_t room = is_large    ? r->large_bytes - r->n_large
                  : r->sniffs ? SNIFF_BYTES
                              : RECEIVE_BYTES;
    ssize_t n = wire_receive(&r->wire, to, room, deadline_ns, err);
    if (n < 0)
        return (int)n;
    *(is_large ? &r->n_large : &r->end) += (size_t)n;
    r->n_come += (uint64_t)n;
    return 0;
}

int redis_receive_some(struct redis *r, int64_t deadline_ns, struct redis_answer *out,
                       bool *complete, struct err *err)
{
    int rc = parse(r, out, complete, err);
    /* A list of empty lists takes no memory, so only the number of its bytes shows that it never
     * ends. */
    if (rc == 0 && !*complete && r->n_come > r->max_answer_bytes + RECEIVE_BYTES)
        return too_long(r, err);
    if (rc == 0 && !*complete)
        rc = receive(r, deadline_ns, out, err);
    if (rc == 0 && !*complete)
        rc = parse(r, out, complete, err);
    out->n_here = *complete ? 0 : (size_t)r->n_come;
    return rc;
}

/* Empties *a for a new answer, and keeps its memory. */
static void answer_begin(struct redis_answer *a)
{
    a->kind = REDIS_NONE;
    a->number = 0;
    a->n_bytes = 0;
}

int redis_receive(struct redis *r, int64_t timeout_ns, struct redis_answer *out,
                  struct err *err)
{
    int64_t deadline_ns = clock_now_ns() + timeout_ns;
    bool complete = false;
    int rc = redis_flush(r, deadline_ns, err);
    answer_begin(out);
    while (rc == 0 && !complete) {
        rc = redis_receive_some(r, deadline_ns, out, &complete, err);
        /* The pieces of an answer do not extend its deadline. */
        if (rc == 0 && !complete && clock_now_ns() >= deadline_ns)
            rc = err_set(err, -ETIMEDOUT, "the end of the remote's answer does not come");
    }
    return rc;
}

int redis_ask(struct redis *r, const struct redis_arg *args, int n_args, int64_t timeout_ns,
              struct redis_answer *out, struct err *err)
{
    int rc = redis_command(r, args, n_args, clock_now_ns() + timeout_ns, err);
    return rc == 0 ? redis_receive(r, timeout_ns, out, err) : rc;
}

/* --- life cycle ------------------------------------------------------------------------------- */

/* Sends one command of the greeting, which the remote must accept. */
static int greet(struct redis *r, const struct redis_arg *args, int n_args,
                 int64_t deadline_ns, struct err *err)
{
    struct redis_answer a = {0};
    int rc = redis_ask(r, args, n_args, deadline_ns - clock_now_ns(), &a, err);
    if (rc == 0 && a.kind == REDIS_REFUSED)
        rc = err_set(err, -EACCES, "the remote refuses: %.200s", (const char *)a.bytes);
    redis_answer_deinit(&a);
    return rc;
}

static int greet_all(struct redis *r, const struct remote_url *u, int64_t deadline_ns,
                     struct err *err)
{
    char db[16];
    int rc = 0;
    snprintf(db, sizeof db, "%d", u->db);
    struct redis_arg auth[3] = {REDIS_TEXT("AUTH")};
    const struct redis_arg select[2] = {REDIS_TEXT("SELECT"), REDIS_TEXT(db)};
    const struct redis_arg ping = REDIS_TEXT("PING");
    if (u->password[0] != 0) {
        int n_auth = 1;
        if (u->user[0] != 0)
            auth[n_auth++] = REDIS_TEXT(u->user);
        auth[n_auth++] = REDIS_TEXT(u->password);
        rc = greet(r, auth, n_auth, deadline_ns, err);
    }
    if (rc == 0 && u->db != 0)
        rc = greet(r, select, 2, deadline_ns, err);
    return rc == 0 ? greet(r, &ping, 1, deadline_ns, err) : rc;
}

int redis_open(const struct redis_opts *o, const char *host, int port, int64_t deadline_ns,
               struct redis **out, struct err *err)
{
    struct redis *r = xcalloc(1, sizeof *r);
    r->wire.fd = -1;
    r->max_answer_bytes = o->max_answer_bytes;
    r->receive = xmalloc(RECEIVE_BYTES);
    r->reader = redisReaderCreateWithFunctions(&functions);
    int rc = r->reader == NULL ? err_set(err, -ENOMEM, "no memory for a connection") : 0;
    if (rc == 0) {
        r->reader->privdata = r;
        /* hiredis keeps its buffer. Otherwise memory for each value would be mapped anew. */
        r->reader->maxbuf = 0;
        rc = wire_open(&r->wire, host, port, o->stop_fd, o->tls, deadline_ns, err);
    }
    if (rc == 0)
        rc = greet_all(r, o->url, deadline_ns, err);
    if (rc != 0) {
        redis_close(r);
        return rc;
    }
    *out = r;
    return 0;
}

void redis_close(struct redis *r)
{
    if (r == NULL)
        return;
    wire_close(&r->wire);
    if (r->reader != NULL)
        redisReaderFree(r->reader);
    textbuf_free(&r->out);
    free(r->receive);
    free(r);
}
