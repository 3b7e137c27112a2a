/* origin.h - decides whether a request may come from the web page that sent it. Pure.
 *
 * A browser lets any page send requests to this server. Three headers, which pages cannot forge,
 * identify the page:
 *
 *     Host             the name that the browser asked for. A foreign page can point a name of its own at
 *                      our address (DNS rebinding), and its requests then count as its own origin's.
 *                      So only address literals, names that always mean this machine, and the names
 *                      of --allow-host are served. A page that rebinds a name has no API key: where
 *                      one is required, every name is served.
 *     Origin           the page that asks. It must be this server's own page, or one of --allow-origin.
 *     Sec-Fetch-Site   the browser's own judgement. It comes with requests without Origin: images, scripts, links.
 *
 * A body that a page sends must be declared as JSON, or as a form with files. A page can send forms
 * without a preflight (the OPTIONS request in which a browser first asks for permission), so its
 * Origin alone must keep it out. */
#ifndef SERVER_ORIGIN_H
#define SERVER_ORIGIN_H

#include <stdbool.h>

#include "base/err.h"
#include "api/fault.h"

struct origin_rules {
    const char *const *hosts; /* names that the Host header may have, without a port */
    int n_hosts;
    /* allowed origins: SCHEME://HOST[:PORT], "localhost" for all of this machine, "null", or "*" for
     * all */
    const char *const *origins;
    int n_origins;
    bool any_host;        /* requests need a key, so every name is allowed */
    const char *own_host; /* this machine's name; NULL or "": unknown */
};

/* Checks the form of all rules. Returns 0, or ERR_USAGE with the malformed rule in the message. */
int origin_rules_check(const struct origin_rules *r, struct err *err);

/* The headers of one request that the rules judge. The strings are borrowed. */
struct origin_head {
    int n_host, n_origin, n_site, n_type;
    const char *host, *origin, *site, *mode, *dest, *type;
    bool has_body;
};

void origin_add(struct origin_head *h, const char *name, const char *value);

/* Returns 0, or -1 with *f: 400, 403 or 415. *allowed is the request's Origin, borrowed from the
 * head, if the answer needs CORS headers; else NULL. is_page: the request GETs a page, to which
 * other pages may link. */
int origin_check(const struct origin_rules *r, const struct origin_head *h, bool is_page,
                 const char **allowed, struct fault *f);

#endif
