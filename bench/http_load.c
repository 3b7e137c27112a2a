/* http_load.c - see http_load.h; it uses libcurl's multi interface. */
#include "bench/http_load.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/json.h"

struct http_load {
    CURLM *multi;
    struct curl_slist *headers;
    char *url;
    struct http_load_calls calls;
    struct transfer *all; /* all transfers in a list, for http_load_destroy */
    int n_running;
};

struct transfer {
    struct http_load *l;
    struct transfer *next, **link;
    CURL *easy;
    void *user;
    char *rest; /* bytes of a line that has not arrived completely */
    size_t n_rest, cap_rest;
    struct http_usage usage;
    char error[200];
};

int http_load_create(const char *url, const char *key, const struct http_load_calls *calls,
                     struct http_load **out, struct err *err)
{
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return err_set(err, ERR_UNSUPPORTED, "libcurl cannot start");
    struct http_load *l = xcalloc(1, sizeof *l);
    l->multi = curl_multi_init();
    l->calls = *calls;
    l->url = xasprintf("%s/v1/chat/completions", url);
    l->headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (key != NULL) {
        char *line = xasprintf("Authorization: Bearer %s", key);
        l->headers = curl_slist_append(l->headers, line);
        free(line);
    }
    *out = l;
    return 0;
}

static void transfer_free(struct transfer *t)
{
    curl_multi_remove_handle(t->l->multi, t->easy);
    curl_easy_cleanup(t->easy);
    *t->link = t->next;
    if (t->next != NULL)
        t->next->link = t->link;
    t->l->n_running--;
    free(t->rest);
    free(t);
}

void http_load_destroy(struct http_load *l)
{
    if (l == NULL)
        return;
    while (l->all != NULL)
        transfer_free(l->all);
    curl_multi_cleanup(l->multi);
    curl_slist_free_all(l->headers);
    free(l->url);
    free(l);
    curl_global_cleanup();
}

/* --- receiving -------------------------------------------------------------------------------- */

static void read_usage(struct http_usage *u, const struct json *usage)
{
    const struct json *details = json_member(usage, "prompt_tokens_details");
    json_int_of(json_member(usage, "prompt_tokens"), &u->prompt_tokens);
    json_int_of(json_member(usage, "completion_tokens"), &u->completion_tokens);
    json_int_of(json_member(details, "cached_tokens"), &u->cached_tokens);
}

static void read_event(struct transfer *t, const char *text, size_t n)
{
    struct json *v = NULL;
    if ((n == 6 && memcmp(text, "[DONE]", 6) == 0) ||
        json_parse(&v, text, n, "event", NULL) != 0)
        return;
    const struct json *choice = json_at(json_member(v, "choices"), 0);
    const struct json *content = json_member(json_member(choice, "delta"), "content");
    const char *message = json_string_of(json_member(json_member(v, "error"), "message"),
                                         NULL);
    size_t n_piece = 0;
    const char *piece = json_string_of(content, &n_piece);
    if (message != NULL)
        snprintf(t->error, sizeof t->error, "%s", message);
    if (piece != NULL && n_piece > 0)
        t->l->calls.on_text(t->user, piece, n_piece);
    if (json_kind(json_member(v, "usage")) == JSON_KIND_OBJECT)
        read_usage(&t->usage, json_member(v, "usage"));
    json_free(v);
}

static void read_line(struct transfer *t, const char *line, size_t n)
{
    if (n > 0 && line[n - 1] == '\r')
        n--;
    if (n > 5 && memcmp(line, "data:", 5) == 0) {
        size_t skip = line[5] == ' ' ? 6 : 5;
        read_event(t, line + skip, n - skip);
    } else if (n > 0 && line[0] == '{') { /* a JSON object in place of a stream: an error */
        read_event(t, line, n);
    }
}

static size_t on_bytes(char *bytes, size_t size, size_t n, void *arg)
{
    struct transfer *t = arg;
    n *= size;
    if (t->n_rest + n > t->cap_rest) {
        t->cap_rest = 2 * (t->n_rest + n);
        t->rest = xrealloc(t->rest, t->cap_rest);
    }
    memcpy(t->rest + t->n_rest, bytes, n);
    t->n_rest += n;
    size_t from = 0;
    for (char *end; (end = memchr(t->rest + from, '\n', t->n_rest - from)) != NULL;) {
        size_t to = (size_t)(end - t->rest);
        read_line(t, t->rest + from, to - from);
        from = to + 1;
    }
    memmove(t->rest, t->rest + from, t->n_rest - from);
    t->n_rest -= from;
    return n;
}

static void finish(struct transfer *t, CURLcode code)
{
    long status = 0;
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    if (t->n_rest > 0)
        read_line(t, t->rest, t->n_rest);
    if (code != CURLE_OK)
        snprintf(t->error, sizeof t->error, "%s", curl_easy_strerror(code));
    t->l->calls.on_end(t->user, (int)status, &t->usage, t->error);
    transfer_free(t);
}

/* --- sending ---------------------------------------------------------------------------------- */

void http_load_send(struct http_load *l, const char *body, void *user)
{
    struct transfer *t = xcalloc(1, sizeof *t);
    *t = (struct transfer){.l = l,
                           .next = l->all,
                           .link = &l->all,
                           .easy = curl_easy_init(),
                           .user = user,
                           .usage = {-1, -1, -1}};
    if (l->all != NULL)
        l->all->link = &t->next;
    l->all = t;
    l->n_running++;
    curl_easy_setopt(t->easy, CURLOPT_URL, l->url);
    curl_easy_setopt(t->easy, CURLOPT_HTTPHEADER, l->headers);
    curl_easy_setopt(t->easy, CURLOPT_COPYPOSTFIELDS, body);
    curl_easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(t->easy, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(t->easy, CURLOPT_PRIVATE, t);
    curl_easy_setopt(t->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(t->easy, CURLOPT_TCP_NODELAY, 1L);
    curl_multi_add_handle(l->multi, t->easy);
}

void http_load_cancel(struct http_load *l, const void *user)
{
    for (struct transfer *t = l->all; t != NULL; t = t->next)
        if (t->user == user) {
            transfer_free(t);
            return;
        }
}

int http_load_poll(struct http_load *l, int timeout_ms)
{
    int n = 0;
    curl_multi_perform(l->multi, &n);
    for (CURLMsg *m; (m = curl_multi_info_read(l->multi, &n)) != NULL;) {
        struct transfer *t = NULL;
        CURLcode code = m->data.result;
        if (m->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&t);
        finish(t, code);
    }
    curl_multi_poll(l->multi, NULL, 0, timeout_ms, NULL);
    return l->n_running;
}
