/* head.h - judges the head of an HTTP request: its lengths and its path. Pure.
 *
 * The library splits the head into lines; their meaning together is decided here. The library
 * would answer requests whose length is given in two ways, and a proxy in front may have read
 * them differently. */
#ifndef SERVER_HEAD_H
#define SERVER_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/request.h"

enum { HEAD_MAX_URI_BYTES = 4 << 10 };

struct head {
    size_t uri_bytes;
    /* the URI has an escaped zero, %00, which would cut the path or a parameter */
    bool uri_has_zero;
    int n_length, n_encoding; /* number of Content-Length and Transfer-Encoding headers */
    bool bad_length, bad_encoding;
    bool bad_name; /* a header has no name, or a name with a folded line at its end */
    uint64_t length;
};

/* Adds one header. value NULL: the header has no value. */
void head_add(struct head *h, const char *name, const char *value);
/* Returns 0, or -1 with *f. Then the caller refuses the request and closes its connection. */
int head_check(const struct head *h, uint64_t max_body_bytes, struct fault *f);
/* Returns whether a URL's path belongs to a route. In a route, "{id}" stands for any text without a
 * slash, and "{*id}" at its end for any text. Behind an id at the end, the path may have a slash. */
bool head_path_is(const char *route, const char *path);
/* Returns whether a URL's path is `prefix` or lies below it. */
bool head_path_is_below(const char *prefix, const char *path);

#endif
