/* url.c - see url.h. */
#include "redis/url.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int bad(struct err *err, const char *what)
{
    return err_set(err, ERR_USAGE,
                   "--remote: %s; the address must have the form "
                   "redis[s]://[user:password@]host[:port][/db]",
                   what);
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Copies [from, end) with percent escapes resolved. Returns false if the text is too long or
 * malformed. */
static bool decode(const char *from, const char *end, char out[REMOTE_URL_BYTES])
{
    int n = 0;
    for (; from < end && n < REMOTE_URL_BYTES - 1; from++) {
        int c = (unsigned char)*from;
        if (c == '%') {
            if (end - from < 3 || hex(from[1]) < 0 || hex(from[2]) < 0)
                return false;
            c = 16 * hex(from[1]) + hex(from[2]);
            from += 2;
        }
        if (c == 0)
            return false;
        out[n++] = (char)c;
    }
    out[n] = 0;
    return from == end;
}

/* Parses a whole number from min to max that ends at `end`. */
static bool number(const char *from, const char *end, int min, int max, int *out)
{
    long n = 0;
    if (from == end || end - from > 9)
        return false;
    for (; from < end; from++) {
        if (*from < '0' || *from > '9')
            return false;
        n = 10 * n + (*from - '0');
    }
    *out = (int)n;
    return n >= min && n <= max;
}

static int parse_user(const char *from, const char *end, struct remote_url *out,
                      struct err *err)
{
    const char *colon = memchr(from, ':', (size_t)(end - from));
    if (colon == NULL)
        return bad(err, "a user needs a password");
    if (!decode(from, colon, out->user) || !decode(colon + 1, end, out->password))
        return bad(err, "user or password is too long, or has a bad percent sign");
    return out->password[0] != 0 ? 0 : bad(err, "the password is empty");
}

static int parse_host(const char *from, const char *end, struct remote_url *out,
                      struct err *err)
{
    const char *colon;
    if (*from == '[') {
        const char *close = memchr(from, ']', (size_t)(end - from));
        if (close == NULL)
            return bad(err, "a bracket is not closed");
        colon = close + 1;
        from++;
        if (!decode(from, close, out->host))
            return bad(err, "the host's name is too long");
    } else {
        colon = memchr(from, ':', (size_t)(end - from));
        if (colon == NULL)
            colon = end;
        if (!decode(from, colon, out->host))
            return bad(err, "the host's name is too long");
    }
    if (out->host[0] == 0)
        return bad(err, "the host is missing");
    if (colon != end && (*colon != ':' || !number(colon + 1, end, 1, 65535, &out->port)))
        return bad(err, "the port is not a number from 1 to 65535");
    return 0;
}

/* Returns the text behind the scheme; NULL if the scheme is not known. *has_tls: the scheme is
 * rediss://. */
static const char *behind_scheme(const char *text, bool *has_tls)
{
    static const char plain[] = "redis://", tls[] = "rediss://";
    *has_tls = strncmp(text, tls, sizeof tls - 1) == 0;
    if (*has_tls)
        return text + sizeof tls - 1;
    return strncmp(text, plain, sizeof plain - 1) == 0 ? text + sizeof plain - 1 : NULL;
}

int remote_url_parse(const char *text, struct remote_url *out, struct err *err)
{
    *out = (struct remote_url){.port = REMOTE_DEFAULT_PORT};
    const char *from = behind_scheme(text, &out->has_tls);
    if (from == NULL)
        return bad(err, "it begins neither with redis:// nor with rediss://");
    const char *end = from + strcspn(from, "/"), *at = NULL;
    for (const char *p = from; p < end; p++)
        at = *p == '@' ? p : at;
    if (*end == '/' && end[1] != 0 &&
        !number(end + 1, end + strlen(end), 0, REMOTE_MAX_DB, &out->db))
        return bad(err, "the database is not a number");
    int rc = at != NULL ? parse_user(from, at, out, err) : 0;
    return rc == 0 ? parse_host(at != NULL ? at + 1 : from, end, out, err) : rc;
}

void remote_url_text(const struct remote_url *u, char *out, int n_out)
{
    bool is_v6 = strchr(u->host, ':') != NULL;
    snprintf(out, (size_t)n_out, "%s://%s%s%s:%d/%d", u->has_tls ? "rediss" : "redis",
             is_v6 ? "[" : "", u->host, is_v6 ? "]" : "", u->port, u->db);
}
