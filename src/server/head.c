/* head.c - see head.h. */
#include "server/head.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A number of this many digits is larger than any length and does not overflow. */
enum { MAX_DIGITS = 18 };

static void add_length(struct head *h, const char *value)
{
    size_t n = value != NULL ? strlen(value) : 0;
    bool bad = n == 0 || n > MAX_DIGITS || strspn(value, "0123456789") != n;
    h->n_length++;
    h->bad_length |= bad;
    h->length = bad ? 0 : strtoull(value, NULL, 10);
}

static bool is_token(const char *name)
{
    size_t n = strspn(name, "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
                            "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    return n > 0 && name[n] == 0;
}

static bool begins_with(const char *name, const char *with)
{
    return strncasecmp(name, with, strlen(with)) == 0;
}

/* Returns whether a header's name is valid. The library adds a folded line (one that begins with
 * white space) to the *name* of the header before it: "Content-Length:\r\n 16" becomes
 * "Content-Length16", and the length is lost. Behind a proxy that has read the length, this server
 * would take the body for the next request. */
static bool is_name(const char *name)
{
    bool has_more = (begins_with(name, "Content-Length") && name[14] != 0) ||
                    (begins_with(name, "Transfer-Encoding") && name[17] != 0);
    return is_token(name) && !has_more;
}

void head_add(struct head *h, const char *name, const char *value)
{
    h->bad_name |= !is_name(name);
    if (strcasecmp(name, "Content-Length") == 0) {
        add_length(h, value);
    } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
        h->n_encoding++;
        h->bad_encoding |= value == NULL || strcasecmp(value, "chunked") != 0;
    }
}

int head_check(const struct head *h, uint64_t max_body_bytes, struct fault *f)
{
    if (h->bad_name)
        return fault_set(f, 400, NULL, NULL,
                         "a header has no valid name, or is folded into several lines");
    if (h->n_length > 1)
        return fault_set(f, 400, NULL, NULL, "there is more than one Content-Length");
    if (h->n_length > 0 && h->n_encoding > 0)
        return fault_set(f, 400, NULL, NULL,
                         "there is both a Content-Length and a Transfer-Encoding");
    if (h->bad_length)
        return fault_set(f, 400, NULL, NULL, "the Content-Length is not a number of bytes");
    if (h->n_encoding > 1 || h->bad_encoding)
        return fault_set(f, 501, NULL, NULL, "the only Transfer-Encoding known is chunked");
    if (h->length > max_body_bytes)
        return fault_set(f, 413, NULL, NULL,
                         "the body has %llu bytes; at most %llu are allowed",
                         (unsigned long long)h->length, (unsigned long long)max_body_bytes);
    if (h->uri_has_zero)
        return fault_set(f, 400, NULL, NULL, "the URI contains a zero byte (%%00)");
    if (h->uri_bytes > HEAD_MAX_URI_BYTES)
        return fault_set(f, 414, NULL, NULL, "the URI has more than %d bytes",
                         HEAD_MAX_URI_BYTES);
    return 0;
}

bool head_path_is(const char *route, const char *path)
{
    bool ends_with_id = route[strlen(route) - 1] == '}';
    while (*route != 0) {
        if (*route == '{') {
            size_t n = route[1] == '*' ? strlen(path) : strcspn(path, "/");
            if (n == 0)
                return false;
            path += n;
            route += strcspn(route, "}") + 1;
        } else if (*route++ != *path++) {
            return false;
        }
    }
    return *path == 0 || (ends_with_id && strcmp(path, "/") == 0);
}

bool head_path_is_below(const char *prefix, const char *path)
{
    size_t n = strlen(prefix);
    return strncmp(prefix, path, n) == 0 && (path[n] == 0 || path[n] == '/');
}
