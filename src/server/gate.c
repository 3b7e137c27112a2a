/* gate.c - see gate.h.
 *
 * Order of checks: the page's origin (origin.h), lengths (head.h), the key, whether the path
 * exists. A web page that may not send requests here learns nothing about keys and paths. Without a
 * right key all paths but the public ones get the same answer. */
#include "server/gate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/auth.h"
#include "server/guesses.h"
#include "server/head.h"
#include "server/origin.h"

/* The page loads only its own files and makes requests only to this server. No other page may
 * show it in a frame. */
#define PAGE_POLICY                                                                        \
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "        \
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
#define DATA_POLICY "default-src 'none'; frame-ancestors 'none'"

/* --- headers of answers ----------------------------------------------------------------------- */

static void put(struct MHD_Response *r, const char *name, const char *value)
{
    (void)MHD_add_response_header(r, name, value);
}

void gate_headers(const struct call *c, struct MHD_Response *r)
{
    bool is_page = c->route != NULL && strcmp(c->route->path, "/") == 0;
    put(r, "X-Content-Type-Options", "nosniff");
    put(r, "X-Frame-Options", "DENY");
    put(r, "Content-Security-Policy", is_page ? PAGE_POLICY : DATA_POLICY);
    put(r, "Referrer-Policy", "no-referrer");
    put(r, "Cross-Origin-Resource-Policy", "same-origin");
    put(r, "Cross-Origin-Opener-Policy", "same-origin");
    if (c->s->o.origins.n_origins > 0)
        put(r, "Vary", "Origin");
    if (c->route != NULL && strcmp(c->route->path, "/metrics") == 0) {
        char seconds[24]; /* a name of llama-server's */
        snprintf(seconds, sizeof seconds, "%lld", (long long)c->s->created_s);
        put(r, "Process-Start-Time-Unix", seconds);
    }
    if (c->allowed_origin != NULL) {
        put(r, "Access-Control-Allow-Origin", c->allowed_origin);
        put(r, "Access-Control-Expose-Headers", "Retry-After");
    }
}

static const char *header(const struct call *c, const char *name)
{
    return MHD_lookup_connection_value(c->connection, MHD_HEADER_KIND, name);
}

void gate_preflight_headers(const struct call *c, struct MHD_Response *r)
{
    const char *wanted = header(c, "Access-Control-Request-Headers");
    if (c->allowed_origin == NULL)
        return;
    put(r, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    /* The wanted headers are all allowed: official clients send dozens of their own, and all are
     * harmless here. */
    if (wanted != NULL)
        put(r, "Access-Control-Allow-Headers", wanted);
    if (header(c, "Access-Control-Request-Private-Network") != NULL)
        put(r, "Access-Control-Allow-Private-Network", "true");
    put(r, "Access-Control-Max-Age", "600");
}

/* --- the path --------------------------------------------------------------------------------- */

/* Looks the path up among the routes. Returns whether a route has it. If one has the method, too,
 * sets c->route and c->tail. */
static bool look_up(struct call *c, const char *url, const char *method)
{
    bool known = false;
    for (const struct route *r = routes; r->path != NULL; r++) {
        if (!head_path_is(r->path, url))
            continue;
        known = true;
        if (strcmp(r->method, method) == 0) {
            c->route = r;
            snprintf(c->tail, sizeof c->tail, "%s", url + strcspn(r->path, "{"));
        }
    }
    return known;
}

/* A path that no route has is tried with /v1 in front of it. */
static int find_route(struct call *c, const char *url, const char *method, struct fault *f)
{
    if (strcmp(method, "HEAD") == 0)
        method = "GET";
    bool known = look_up(c, url, method);
    if (!known) {
        char *longer = xasprintf("/v1%s", url);
        known = look_up(c, longer, method);
        free(longer);
    }
    if (c->route != NULL)
        return 0;
    return known ? fault_set(f, 405, "method_not_allowed", NULL,
                             "this path has no such method")
                 : fault_set(f, 404, "unknown_url", NULL, "there is no such path");
}

int gate_state(struct call *c, struct fault *f)
{
    if (!c->route->needs_model)
        return 0;
    if (atomic_load(&c->s->h) == NULL)
        return fault_set(f, 503, "loading", NULL, "the model is still loading");
    if (atomic_load(&c->s->draining))
        return fault_set(f, 503, "stopping", NULL, "the server is stopping");
    struct err err;
    if (mem_check(&err) != 0)
        return fault_set(f, 503, "out_of_memory", NULL, "%s", err.msg);
    return 0;
}

/* --- the key ---------------------------------------------------------------------------------- */

/* Counts a wrong key and sets the delay of its answer. */
static void note_guess(struct call *c)
{
    struct guess g;
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(
        c->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    guesses_add(c->s->guesses, i != NULL ? i->client_addr : NULL, clock_now_ns(), &g);
    c->hold_ns = g.hold_ns;
    if (g.tell && g.n_untold == 0)
        log_warn("a wrong API key came from %s", g.address);
    else if (g.tell)
        log_warn(
            "a wrong API key came from %s, and %llu other wrong keys have come since the "
            "last such line",
            g.address, (unsigned long long)g.n_untold);
}

/* Checks the request's key, which is a bearer token, or in a header of Anthropic's clients.
 * *is_shown says whether the request has a key at all. */
static bool key_is_right(struct call *c, bool *is_shown)
{
    const char *bearer = header(c, MHD_HTTP_HEADER_AUTHORIZATION);
    const char *key = header(c, "x-api-key");
    *is_shown = bearer != NULL || key != NULL;
    bool right = auth_check(c->s->auth, bearer, &c->salt);
    if (!right && key != NULL) {
        char *text = xasprintf("Bearer %s", key);
        right = auth_check(c->s->auth, text, &c->salt);
        free(text);
    }
    return right;
}

/* --- the gate --------------------------------------------------------------------------------- */

struct heads {
    struct head lengths;
    struct origin_head origin;
};

static enum MHD_Result read_header(void *arg, enum MHD_ValueKind kind, const char *name,
                                   const char *value)
{
    struct heads *h = arg;
    (void)kind;
    head_add(&h->lengths, name, value);
    origin_add(&h->origin, name, value);
    return MHD_YES;
}

enum gate gate_check(struct call *c, const char *url, const char *method, struct fault *f)
{
    struct heads h = {
        .lengths = {.uri_bytes = c->uri_bytes, .uri_has_zero = c->uri_has_zero}};
    struct fault no_route;
    const char *allowed;
    bool is_shown;
    (void)MHD_get_connection_values(c->connection, MHD_HEADER_KIND, read_header, &h);
    int rc = find_route(c, url, method, &no_route);
    bool is_page = c->route != NULL && strcmp(c->route->path, "/") == 0;
    bool may_ask = origin_check(&c->s->o.origins, &h.origin, is_page, &allowed, f) == 0;
    c->allowed_origin = allowed != NULL ? xstrdup(allowed) : NULL;
    bool is_preflight = strcmp(method, "OPTIONS") == 0 &&
                        header(c, "Access-Control-Request-Method") != NULL;
    /* A browser takes an answer without CORS headers as a no. */
    if (!may_ask && is_preflight && strcmp(f->code, "origin_not_allowed") == 0)
        return GATE_PREFLIGHT;
    if (!may_ask)
        return GATE_REFUSE;
    if (head_check(&h.lengths, c->s->o.max_body_bytes, f) != 0)
        return GATE_REFUSE;
    /* A preflight never has a key, so it passes without one. */
    if (allowed != NULL && is_preflight)
        return GATE_PREFLIGHT;
    if (!key_is_right(c, &is_shown) && (rc != 0 || !c->route->is_public)) {
        if (is_shown)
            note_guess(c);
        (void)fault_set(f, 401, "invalid_api_key", NULL,
                        "the API key is missing or unknown (Authorization: Bearer KEY)");
        return GATE_REFUSE;
    }
    if (rc != 0)
        *f = no_route;
    /* A call that comes before the model waits once its body is there (http.c). */
    bool is_early = c->s->o.wait_ready && atomic_load(&c->s->h) == NULL;
    return rc == 0 && (is_early || gate_state(c, f) == 0) ? GATE_OPEN : GATE_REFUSE;
}
