/* http_client.h - sends requests to a server's JSON API, one at a time, for commands that are
 * clients.  One thread. */
#ifndef APPS_HTTP_CLIENT_H
#define APPS_HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* A file, from an address. */
struct http_fetch {
    const char *url;
    const char *
        token; /* sent to the url's own server only, never where it redirects to; NULL: none */
    uint64_t from; /* bytes that are there: the others are asked for */
    /* The server sends the whole file although `from` is not 0: what is there is dropped. */
    int (*restart)(void *arg);
    int (*bytes)(void *arg, const void *p, size_t n); /* not 0: the fetch ends with -EIO */
    void *arg;
};
/* Fetches the rest of a file. Returns 0 at its end; -EAGAIN if the connection broke or was silent
 * for a minute, so that the caller asks for the rest; ERR_NOT_FOUND, or ERR_USAGE with the status
 * of the server; -EIO. */
int http_fetch(const struct http_fetch *f, struct err *err);

#endif
