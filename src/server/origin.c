/* origin.c - see origin.h.  The headers: RFC 9110 (Host), the Fetch standard
 * (Origin, Sec-Fetch-*). */
#include "server/origin.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* --- names and ports -------------------------------------------------------------------------- */

enum { MAX_NAME = 253 }; /* longest DNS name */

struct authority {
    char name[MAX_NAME + 1]; /* lower case; an address in the form of inet_ntop */
    bool is_address;
    int port; /* -1: no port is given */
};

static bool read_port(const char *p, const char *end, int *port)
{
    *port = -1;
    if (p == end)
        return true;
    if (*p++ != ':' || end - p > 5)
        return false;
    if (p == end) /* "host:" means the default port */
        return true;
    for (*port = 0; p < end; p++) {
        if (*p < '0' || *p > '9')
            return false;
        *port = *port * 10 + (*p - '0');
    }
    return *port <= 65535;
}

/* Reads "[::1]". A zone, as in "[fe80::1%eth0]", is not part of the name. */
static bool read_v6(const char *p, const char *end, struct authority *a)
{
    char text[INET6_ADDRSTRLEN + 1];
    struct in6_addr bytes;
    const char *close = memchr(p, ']', (size_t)(end - p));
    if (close == NULL)
        return false;
    const char *zone = memchr(p, '%', (size_t)(close - p));
    size_t n = (size_t)((zone != NULL ? zone : close) - (p + 1));
    if (n >= sizeof text)
        return false;
    memcpy(text, p + 1, n);
    text[n] = 0;
    a->is_address = true;
    return inet_pton(AF_INET6, text, &bytes) == 1 &&
           inet_ntop(AF_INET6, &bytes, a->name, sizeof a->name) != NULL &&
           read_port(close + 1, end, &a->port);
}

static bool is_name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
           c == '_';
}

/* Reads HOST[:PORT]. Returns false if the text has another form. */
static bool read_authority(const char *text, struct authority *a)
{
    struct in_addr bytes;
    const char *end = text + strlen(text), *p = text;
    size_t n = 0;
    *a = (struct authority){.port = -1};
    if (*text == '[')
        return read_v6(text, end, a);
    for (; p < end && *p != ':'; p++) {
        char c = *p >= 'A' && *p <= 'Z' ? (char)(*p - 'A' + 'a') : *p;
        if (!is_name_byte(c) || n == MAX_NAME)
            return false;
        a->name[n++] = c;
    }
    /* A dot at the end stands for the DNS root. It names the same host, and is dropped. */
    if (n > 0 && a->name[n - 1] == '.')
        a->name[--n] = 0;
    a->is_address = inet_pton(AF_INET, a->name, &bytes) == 1;
    return n > 0 && read_port(p, end, &a->port);
}

static int port_or_default(const struct authority *a, bool is_tls)
{
    return a->port >= 0 ? a->port : is_tls ? 443 : 80;
}

/* Reads the authority of an http or https origin. Returns false for other schemes. */
static bool read_origin(const char *origin, struct authority *a, bool *is_tls)
{
    *is_tls = strncasecmp(origin, "https://", 8) == 0;
    if (!*is_tls && strncasecmp(origin, "http://", 7) != 0)
        return false;
    return read_authority(origin + (*is_tls ? 8 : 7), a);
}

/* --- rules ------------------------------------------------------------------------------------ */

/* Returns whether the text is SCHEME://ANYTHING without a path, as some applications send. */
static bool is_other_origin(const char *text)
{
    const char *name = strstr(text, "://");
    return name != NULL && name > text && name[3] != 0 && strchr(name + 3, '/') == NULL &&
           strncasecmp(text, "http", 4) != 0;
}

int origin_rules_check(const struct origin_rules *r, struct err *err)
{
    struct authority a;
    bool is_tls;
    for (int i = 0; i < r->n_hosts; i++) {
        if (!read_authority(r->hosts[i], &a) || a.port >= 0)
            return err_set(err, ERR_USAGE,
                           "--allow-host %s: give a name without a port, such as "
                           "hcache.example",
                           r->hosts[i]);
    }
    for (int i = 0; i < r->n_origins; i++) {
        const char *o = r->origins[i];
        if (strcmp(o, "*") != 0 && strcmp(o, "null") != 0 && strcmp(o, "localhost") != 0 &&
            !is_other_origin(o) && !read_origin(o, &a, &is_tls))
            return err_set(err, ERR_USAGE,
                           "--allow-origin %s: give SCHEME://HOST[:PORT] without a path, "
                           "such as https://chat.example, or localhost, null, or *",
                           o);
    }
    return 0;
}

static bool host_is_allowed(const struct origin_rules *r, const struct authority *host)
{
    /* names that no other machine can have: containers resolve the last two to their host */
    static const char *const ours[] = {"localhost", "host.docker.internal",
                                       "host.containers.internal"};
    struct authority a;
    size_t n = strlen(host->name);
    if (r->any_host || host->is_address ||
        (n > 10 && strcmp(host->name + n - 10, ".localhost") == 0))
        return true;
    for (int i = 0; i < 3; i++)
        if (strcmp(host->name, ours[i]) == 0)
            return true;
    if (r->own_host != NULL && read_authority(r->own_host, &a) &&
        strcmp(a.name, host->name) == 0)
        return true;
    for (int i = 0; i < r->n_hosts; i++) {
        if (read_authority(r->hosts[i], &a) && strcmp(a.name, host->name) == 0)
            return true;
    }
    return false;
}

static bool same_origin(const char *x, const char *y)
{
    struct authority a, b;
    bool a_tls, b_tls;
    if (!read_origin(x, &a, &a_tls) || !read_origin(y, &b, &b_tls))
        /* compared as texts: "null", or an origin with a scheme of its own */
        return strcasecmp(x, y) == 0;
    return a_tls == b_tls && strcmp(a.name, b.name) == 0 &&
           port_or_default(&a, a_tls) == port_or_default(&b, b_tls);
}

/* Returns whether the page comes from this machine, from any port. */
static bool is_local(const char *origin)
{
    struct authority a;
    bool is_tls;
    return read_origin(origin, &a, &is_tls) &&
           (strcmp(a.name, "localhost") == 0 || strcmp(a.name, "127.0.0.1") == 0 ||
            strcmp(a.name, "::1") == 0);
}

static bool origin_is_allowed(const struct origin_rules *r, const char *origin)
{
    for (int i = 0; i < r->n_origins; i++) {
        if (strcmp(r->origins[i], "*") == 0 || same_origin(r->origins[i], origin) ||
            (strcmp(r->origins[i], "localhost") == 0 && is_local(origin)))
            return true;
    }
    return false;
}

/* Returns whether the page is this server's own. Behind a TLS proxy the page is https and this
 * server http, so schemes are not compared. If page or server omits the port, the default port of
 * the page's scheme is meant. */
static bool is_own_origin(const struct origin_head *h, const struct authority *host)
{
    struct authority a;
    bool is_tls;
    return h->n_host == 1 && read_origin(h->origin, &a, &is_tls) &&
           strcmp(a.name, host->name) == 0 &&
           port_or_default(&a, is_tls) == port_or_default(host, is_tls);
}

/* --- a request -------------------------------------------------------------------------------- */

void origin_add(struct origin_head *h, const char *name, const char *value)
{
    value = value != NULL ? value : "";
    if (strcasecmp(name, "Host") == 0) {
        h->n_host++;
        h->host = value;
    } else if (strcasecmp(name, "Origin") == 0) {
        h->n_origin++;
        h->origin = value;
    } else if (strcasecmp(name, "Sec-Fetch-Site") == 0) {
        h->n_site++;
        h->site = value;
    } else if (strcasecmp(name, "Sec-Fetch-Mode") == 0) {
        h->mode = value;
    } else if (strcasecmp(name, "Sec-Fetch-Dest") == 0) {
        h->dest = value;
    } else if (strcasecmp(name, "Content-Type") == 0) {
        h->n_type++;
        h->type = value;
    } else if (strcasecmp(name, "Content-Length") == 0) {
        h->has_body |= strspn(value, "0") != strlen(value);
    } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
        h->has_body = true;
    }
}

/* Returns whether a content type is application/json or application/KIND+json, with any
 * parameters. */
static bool is_json(const char *type)
{
    static const char tree[] = "application/";
    size_t n = strcspn(type, "; \t"), n_tree = sizeof tree - 1;
    if (n < n_tree || strncasecmp(type, tree, n_tree) != 0)
        return false;
    type += n_tree;
    n -= n_tree;
    return (n == 4 && strncasecmp(type, "json", 4) == 0) ||
           (n > 5 && strncasecmp(type + n - 5, "+json", 5) == 0);
}

/* Returns whether the body is a form with files, or a PDF, from a page that may use this server.
 * Its Origin was checked; without one, the browser itself says that the page is this server's. */
static bool is_upload(const struct origin_head *h)
{
    static const char form[] = "multipart/form-data";
    size_t n = sizeof form - 1;
    bool is_form = strncasecmp(h->type, form, n) == 0 && strchr("; \t", h->type[n]) != NULL;
    return (is_form || strcasecmp(h->type, "application/pdf") == 0) &&
           (h->n_origin == 1 || strcmp(h->site, "same-origin") == 0);
}

static int check_host(const struct origin_rules *r, const struct origin_head *h,
                      struct authority *host, struct fault *f)
{
    *host = (struct authority){.port = -1};
    if (h->n_host > 1)
        return fault_set(f, 400, NULL, NULL, "there is more than one Host header");
    /* a request of HTTP/1.0 may have no Host; no browser sends such a request */
    if (h->n_host == 0)
        return 0;
    if (read_authority(h->host, host) && host_is_allowed(r, host))
        return 0;
    return fault_set(f, 403, "host_not_allowed", NULL,
                     "this server does not answer to the name '%.100s': use its address, "
                     "or start it with --allow-host NAME",
                     h->host);
}

/* Returns whether the request follows a link to this server's page. That is harmless: the page
 * shows nothing before its own requests are answered. */
static bool is_link(const struct origin_head *h, bool is_page)
{
    return is_page && h->mode != NULL && strcmp(h->mode, "navigate") == 0 &&
           h->dest != NULL && strcmp(h->dest, "document") == 0;
}

/* Returns whether the browser says that the request comes from a page of another site. */
static bool is_foreign(const struct origin_head *h)
{
    return h->n_site > 1 || (h->n_site == 1 && strcmp(h->site, "same-origin") != 0 &&
                             strcmp(h->site, "none") != 0);
}

int origin_check(const struct origin_rules *r, const struct origin_head *h, bool is_page,
                 const char **allowed, struct fault *f)
{
    struct authority host;
    *allowed = NULL;
    if (check_host(r, h, &host, f) != 0)
        return -1;
    if (h->n_origin == 1 && origin_is_allowed(r, h->origin))
        *allowed = h->origin;
    else if (h->n_origin > 1 || (h->n_origin == 1 && !is_own_origin(h, &host)))
        return fault_set(f, 403, "origin_not_allowed", NULL,
                         "a page of '%.100s' may not use this server: start it with "
                         "--allow-origin ORIGIN to allow that",
                         h->origin);
    if (*allowed == NULL && is_foreign(h) && !is_link(h, is_page))
        return fault_set(f, 403, "origin_not_allowed", NULL,
                         "a page of another site may not use this server: start it with "
                         "--allow-origin ORIGIN to allow that");
    if (h->has_body && (h->n_origin > 0 || h->n_site > 0) &&
        (h->n_type != 1 || (!is_json(h->type) && !is_upload(h))))
        return fault_set(f, 415, "unsupported_media_type", NULL,
                         "a page must send its body as Content-Type: application/json, "
                         "application/pdf, or multipart/form-data");
    return 0;
}
