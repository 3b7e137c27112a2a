/* http_load.h - many concurrent streamed chat requests to an OpenAI-compatible server, on one
 * thread.
 *
 *     http_load_create(url, key, &l, &err);
 *     http_load_send(l, body, user);                a JSON text, copied; at any time, also from on_end
 *     while (http_load_poll(l, 50) > 0) ...         calls on_text and on_end */
#ifndef BENCH_HTTP_LOAD_H
#define BENCH_HTTP_LOAD_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct http_load;

/* Counts from the last chunks of a stream. */
struct http_usage {
    int64_t prompt_tokens, cached_tokens, completion_tokens; /* -1: not reported */
};

struct http_load_calls {
    /* A piece of the answer's text has arrived (n may be 0 for a token without text). */
    void (*on_text)(void *user, const char *text, size_t n);
    /* The stream has ended. status is the HTTP status, or 0 if there was no answer. `error` is the
     * message of the server or of the HTTP library, or "". */
    void (*on_end)(void *user, int status, const struct http_usage *usage,
                   const char *error);
};

int http_load_create(const char *url, const char *key, const struct http_load_calls *calls,
                     struct http_load **out, struct err *err);
void http_load_destroy(struct http_load *l); /* ends running requests; l may be NULL */
/* Sends POST url/v1/chat/completions with this body. */
void http_load_send(struct http_load *l, const char *body, void *user);
/* Closes the connection of the request that was sent with this `user`. on_end is not called for
 * it. */
void http_load_cancel(struct http_load *l, const void *user);
/* Waits at most timeout_ms for an event. Returns the number of requests in flight. */
int http_load_poll(struct http_load *l, int timeout_ms);

#endif
