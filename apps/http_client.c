/* http_client.c - see http_client.h; it uses libcurl. */
#include "apps/http_client.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/textbuf.h"

struct http_client {
    CURL *easy;
    struct curl_slist *headers;
    char *url;
    /* The answer; of a stream, the bytes after the last complete event. */
    struct textbuf got;
    const struct http_stream *stream; /* the callbacks of the running request; NULL: none */
};

int http_client_open(const char *url, const char *key, struct http_client **out,
                     struct err *err)
{
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return err_set(err, ERR_UNSUPPORTED, "libcurl cannot start");
    struct http_client *c = xcalloc(1, sizeof *c);
    size_t n = strlen(url);
    while (n > 0 && url[n - 1] == '/')
        n--;
    c->easy = curl_easy_init();
    c->url = xasprintf("%.*s", (int)n, url);
    c->headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (key != NULL) {
        char *line = xasprintf("Authorization: Bearer %s", key);
        c->headers = curl_slist_append(c->headers, line);
        free(line);
    }
    *out = c;
    return 0;
}

void http_client_close(struct http_client *c)
{
    if (c == NULL)
        return;
    curl_easy_cleanup(c->easy);
    curl_slist_free_all(c->headers);
    textbuf_free(&c->got);
    free(c->url);
    free(c);
    curl_global_cleanup();
}

/* --- receiving -------------------------------------------------------------------------------- */

/* Passes complete events on to the callback. An event is a line "data: JSON" and an empty line. */
static void read_events(struct http_client *c)
{
    size_t from = 0;
    for (char *end; (end = memchr(c->got.p + from, '\n', c->got.n - from)) != NULL;) {
        const char *line = c->got.p + from;
        size_t n = (size_t)(end - line);
        struct json *o = NULL;
        from += n + 1;
        if (n > 6 && memcmp(line, "data: ", 6) == 0 && line[6] == '{' &&
            json_parse(&o, line + 6, n - 6, "an event", NULL) == 0)
            c->stream->event(c->stream->arg, o);
        json_free(o);
    }
    memmove(c->got.p, c->got.p + from, c->got.n - from);
    c->got.n -= from;
}

static size_t on_bytes(char *p, size_t size, size_t n, void *arg)
{
    struct http_client *c = arg;
    long status = 0;
    textbuf_add(&c->got, p, size * n);
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    if (c->stream != NULL && status == 200)
        read_events(c);
    return size * n;
}

static int on_time(void *arg, curl_off_t a, curl_off_t b, curl_off_t x, curl_off_t y)
{
    const struct http_client *c = arg;
    (void)a, (void)b, (void)x, (void)y;
    return c->stream != NULL && c->stream->is_stopped(c->stream->arg);
}

/* --- requests --------------------------------------------------------------------------------- */

static int code_of(long status, const char *code)
{
    return code != NULL && strcmp(code, "context_length_exceeded") == 0 ? ERR_LIMIT
           : status == 404                                              ? ERR_NOT_FOUND
                                                                        : ERR_USAGE;
}

static int refusal(const struct http_client *c, long status, const struct json *answer,
                   struct err *err)
{
    const struct json *e = json_member(answer, "error");
    const char *message = json_string_of(json_member(e, "message"), NULL);
    if (message == NULL)
        return err_set(err, ERR_USAGE, "%s answers with status %ld", c->url, status);
    return err_set(err, code_of(status, json_string_of(json_member(e, "code"), NULL)), "%s",
                   message);
}

/* Sends a request and reads its whole answer into c->got. */
static int perform(struct http_client *c, const char *method, const char *path,
                   struct json *body, long *status, struct err *err)
{
    char *url = xasprintf("%s%s", c->url, path),
         *text = body != NULL ? json_text(body, 0) : NULL;
    json_free(body);
    c->got.n = 0;
    curl_easy_reset(c->easy);
    curl_easy_setopt(c->easy, CURLOPT_URL, url);
    curl_easy_setopt(c->easy, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(c->easy, CURLOPT_CUSTOMREQUEST, method);
    if (text != NULL)
        curl_easy_setopt(c->easy, CURLOPT_POSTFIELDS, text);
    curl_easy_setopt(c->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c->easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(c->easy, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(c->easy, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c->easy, CURLOPT_XFERINFOFUNCTION, on_time);
    curl_easy_setopt(c->easy, CURLOPT_XFERINFODATA, c);
    CURLcode code = curl_easy_perform(c->easy);
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, status);
    free(url);
    free(text);
    if (code == CURLE_OK || code == CURLE_ABORTED_BY_CALLBACK)
        return 0;
    return err_set(err, ERR_UNSUPPORTED, "%s: %s", c->url, curl_easy_strerror(code));
}

int http_client_call(struct http_client *c, const char *method, const char *path,
                     struct json *body, struct json **out, struct err *err)
{
    long status = 0;
    struct json *answer = NULL;
    int rc = perform(c, method, path, body, &status, err);
    if (rc != 0)
        return rc;
    if (c->got.n > 0)
        (void)json_parse(&answer, c->got.p, c->got.n, path, NULL);
    if (status != 200)
        rc = refusal(c, status, answer, err);
    else if (answer == NULL)
        rc = err_set(err, ERR_UNSUPPORTED,
                     "%s%s does not answer with JSON: is it an hcache server?", c->url,
                     path);
    if (rc == 0 && out != NULL)
        *out = answer;
    else
        json_free(answer);
    return rc;
}

int http_client_stream(struct http_client *c, const char *path, struct json *body,
                       const struct http_stream *s, struct err *err)
{
    long status = 0;
    struct json *answer = NULL;
    c->stream = s;
    int rc = perform(c, "POST", path, body, &status, err);
    c->stream = NULL;
    if (rc != 0 || status == 200 || status == 0)
        return rc;
    if (c->got.n > 0)
        (void)json_parse(&answer, c->got.p, c->got.n, path, NULL);
    rc = refusal(c, status, answer, err);
    json_free(answer);
    return rc;
}

/* --- files ------------------------------------------------------------------------------------ */

enum { MAX_REDIRECTS = 8, SILENCE_S = 60, CONNECT_S = 30, NOTE_BYTES = 400 };

struct fetching {
    const struct http_fetch *f;
    CURL *easy;
    bool has_begun, failed;
    char note[NOTE_BYTES]; /* beginning of a refusal's text */
    size_t n_note;
};

static size_t on_file(char *p, size_t size, size_t n, void *arg)
{
    struct fetching *g = arg;
    long status = 0;
    curl_easy_getinfo(g->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200 && status != 206) {
        for (size_t i = 0; i < size * n && g->n_note + 1 < sizeof g->note; i++)
            g->note[g->n_note++] = p[i];
        return size * n;
    }
    if (!g->has_begun && status == 200 && g->f->from > 0)
        g->failed = g->f->restart(g->f->arg) != 0;
    g->has_begun = true;
    g->failed = g->failed || g->f->bytes(g->f->arg, p, size * n) != 0;
    return g->failed ? 0 : size * n;
}

/* Returns whether two addresses name the same scheme, host and port. */
static bool same_server(const char *a, const char *b)
{
    static const CURLUPart parts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
    CURLU *x = curl_url(), *y = curl_url();
    bool same = curl_url_set(x, CURLUPART_URL, a, 0) == CURLUE_OK &&
                curl_url_set(y, CURLUPART_URL, b, 0) == CURLUE_OK;
    for (int i = 0; i < 3 && same; i++) {
        char *s = NULL, *t = NULL;
        same = curl_url_get(x, parts[i], &s, CURLU_DEFAULT_PORT) == CURLUE_OK &&
               curl_url_get(y, parts[i], &t, CURLU_DEFAULT_PORT) == CURLUE_OK &&
               strcmp(s, t) == 0;
        curl_free(s);
        curl_free(t);
    }
    curl_url_cleanup(x);
    curl_url_cleanup(y);
    return same;
}

/* Asks one address. *next gets the address of a redirect, from malloc. */
static int fetch_from(struct fetching *g, const char *url, char **next, long *status)
{
    char range[32], *key = NULL;
    const char *to = NULL;
    struct curl_slist *headers = NULL;
    curl_easy_reset(g->easy);
    if (g->f->token != NULL && same_server(g->f->url, url)) {
        key = xasprintf("Authorization: Bearer %s", g->f->token);
        headers = curl_slist_append(NULL, key);
    }
    snprintf(range, sizeof range, "%llu-", (unsigned long long)g->f->from);
    curl_easy_setopt(g->easy, CURLOPT_URL, url);
    curl_easy_setopt(g->easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(g->easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(g->easy, CURLOPT_USERAGENT, "hcache");
    curl_easy_setopt(g->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(g->easy, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(g->easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(g->easy, CURLOPT_LOW_SPEED_TIME, (long)SILENCE_S);
    curl_easy_setopt(g->easy, CURLOPT_WRITEFUNCTION, on_file);
    curl_easy_setopt(g->easy, CURLOPT_WRITEDATA, g);
    if (g->f->from > 0)
        curl_easy_setopt(g->easy, CURLOPT_RANGE, range);
    int code = curl_easy_perform(g->easy);
    curl_easy_getinfo(g->easy, CURLINFO_RESPONSE_CODE, status);
    curl_easy_getinfo(g->easy, CURLINFO_REDIRECT_URL, &to);
    *next = to != NULL ? xstrdup(to) : NULL;
    curl_slist_free_all(headers);
    free(key);
    return code;
}

int http_fetch(const struct http_fetch *f, struct err *err)
{
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return err_set(err, ERR_UNSUPPORTED, "libcurl cannot start");
    struct fetching g = {.f = f, .easy = curl_easy_init()};
    char *url = xstrdup(f->url), *next = NULL;
    long status = 0;
    int code = 0, rc = 0;
    bool is_safe = strncmp(url, "https:", 6) == 0;
    for (int i = 0; rc == 0; i++) {
        g.n_note = 0;
        code = fetch_from(&g, url, &next, &status);
        if (code != CURLE_OK || status < 300 || status >= 400 || next == NULL)
            break;
        if (i == MAX_REDIRECTS)
            rc = err_set(err, ERR_USAGE, "%s: too many redirects", f->url);
        else if (is_safe && strncmp(next, "https:", 6) != 0)
            rc = err_set(err, ERR_USAGE, "%s redirects to an address without TLS", f->url);
        free(url);
        url = next;
        next = NULL;
    }
    g.note[strcspn(g.note, "\r\n")] = 0;
    if (rc == 0 && g.failed)
        rc = -EIO;
    else if (rc == 0 && code != CURLE_OK)
        rc = err_set(err, code == CURLE_UNSUPPORTED_PROTOCOL ? ERR_USAGE : -EAGAIN,
                     "%s: %s", f->url, curl_easy_strerror((CURLcode)code));
    else if (rc == 0 && status >= 500)
        rc = err_set(err, -EAGAIN, "%s answers with status %ld", f->url, status);
    else if (rc == 0 && status != 200 && status != 206 && !(status == 416 && f->from > 0))
        rc = err_set(err, status == 404 ? ERR_NOT_FOUND : ERR_USAGE,
                     "%s answers with status %ld%s%.200s", f->url, status,
                     g.n_note > 0 ? ": " : "", g.note);
    free(url);
    free(next);
    curl_easy_cleanup(g.easy);
    curl_global_cleanup();
    return rc;
}
