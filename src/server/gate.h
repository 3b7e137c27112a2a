/* gate.h - whether a request may come in, judged by its head alone. */
#ifndef SERVER_GATE_H
#define SERVER_GATE_H

#include "server/call.h"

/* What the head of a request leads to. */
enum gate {
    GATE_OPEN,
    GATE_REFUSE,    /* *f says why */
    GATE_PREFLIGHT, /* a browser asks whether a page may send a request: yes */
};

/* Finds the route, the key's salt, and the Origin that the answer must name; all of them the
 * call's. A wrong key also sets c->hold_ns. */
enum gate gate_check(struct call *c, const char *url, const char *method, struct fault *f);
/* Whether the server's state lets the route answer now. 0, or -1 with *f. */
int gate_state(struct call *c, struct fault *f);

/* The headers that every answer has, for browsers; route NULL: there is none. */
void gate_headers(const struct call *c, struct MHD_Response *r);
/* The headers of an answer to a preflight. */
void gate_preflight_headers(const struct call *c, struct MHD_Response *r);

#endif
