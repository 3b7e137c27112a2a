/* http_client.h - sends requests to a server's JSON API, one at a time, for commands that are
 * clients.  One thread. */
#ifndef APPS_HTTP_CLIENT_H
#define APPS_HTTP_CLIENT_H

#include <stdbool.h>

#include "base/err.h"
#include "base/json.h"

struct http_client;

/* Opens a client for the server at url. key: sent as a bearer token; NULL: no key is sent. */
int http_client_open(const char *url, const char *key, struct http_client **out,
                     struct err *err);
void http_client_close(struct http_client *c); /* NULL is allowed */

/* Sends a request and waits for its answer. Frees body; NULL: the request has no body. *out is
 * the answer's JSON, which the caller frees; out may be NULL. A refusal returns ERR_NOT_FOUND
 * (404), ERR_LIMIT (the context is full) or ERR_USAGE, with the server's message. Returns
 * ERR_UNSUPPORTED if the server cannot be reached. */
int http_client_call(struct http_client *c, const char *method, const char *path,
                     struct json *body, struct json **out, struct err *err);

struct http_stream {
    /* Receives each object of the stream, in order. */
    void (*event)(void *arg, const struct json *o);
    /* Called about once a second, and after each arrival. If it returns true, the connection is
     * closed. */
    bool (*is_stopped)(void *arg);
    void *arg;
};
/* Sends a POST request whose answer is a stream. Frees body. Returns 0 at the end of the stream,
 * and after is_stopped has ended it. */
int http_client_stream(struct http_client *c, const char *path, struct json *body,
                       const struct http_stream *s, struct err *err);

#endif
