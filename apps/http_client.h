/* http_client.h - sends requests to a server's JSON API, one at a time, for commands that are
 * clients.  One thread. */
#ifndef APPS_HTTP_CLIENT_H
#define APPS_HTTP_CLIENT_H

#include <stdbool.h>

#include "base/err.h"
#include "format/json.h"

struct http_client;

/* key: sent as a bearer token; NULL: none. */
int http_client_open(const char *url, const char *key, struct http_client **out,
                     struct err *err);
void http_client_close(struct http_client *c); /* NULL is allowed */

/* body is taken; NULL: none.  *out is the answer's JSON, which the caller frees; out may be NULL.
 * A refusal is ERR_NOT_FOUND (404), ERR_LIMIT (the context is full) or ERR_USAGE, with the server's
 * message. ERR_UNSUPPORTED: the server cannot be reached. */
int http_client_call(struct http_client *c, const char *method, const char *path,
                     struct json *body, struct json **out, struct err *err);

struct http_stream {
    /* receives each object of the stream, in order */
    void (*event)(void *arg, const struct json *o);
    bool (*is_stopped)(
        void *
            /* called about once a second and after each arrival; true closes the connection */
            arg);
    void *arg;
};
/* Sends a POST whose answer is a stream.  Returns 0 at its end, and after is_stopped has closed it.
 */
int http_client_stream(struct http_client *c, const char *path, struct json *body,
                       const struct http_stream *s, struct err *err);

#endif
