/* gate.h - decides whether a request may come in, by its head alone. */
#ifndef SERVER_GATE_H
#define SERVER_GATE_H

#include "server/call.h"

/* What to do with a request, by its head. */
enum gate {
    GATE_OPEN,
    GATE_REFUSE, /* *f has the reason */
    /* a browser asks whether a page may send a request, and the answer is yes */
    GATE_PREFLIGHT,
};

/* Finds the route, the key's salt, and the Origin that the answer must name, and stores them in
 * the call. A wrong key also sets c->hold_ns. */
enum gate gate_check(struct call *c, const char *url, const char *method, struct fault *f);
/* Checks whether the server's state lets the route answer now. Returns 0, or -1 with *f. */
int gate_state(struct call *c, struct fault *f);

/* Adds the headers that every answer has, for browsers. c->route NULL: the request has no route. */
void gate_headers(const struct call *c, struct MHD_Response *r);
/* Adds the headers of an answer to a preflight. */
void gate_preflight_headers(const struct call *c, struct MHD_Response *r);

#endif
