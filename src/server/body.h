/* body.h - reads a request's body into JSON values, and bounds the memory of both.
 *
 * server_opts.max_bodies_bytes bounds the bytes and values of all requests together. The values
 * of one body may take as much memory as its text, plus BODY_FREE_BYTES. Sensible requests take
 * far less; 16 MB of "{},{},..." would take 1.2 GB. Fields that change nothing are checked and
 * not built (base/json_scan.h). */
#ifndef SERVER_BODY_H
#define SERVER_BODY_H

#include "server/call.h"

enum { BODY_FREE_BYTES = 16 << 20 };

/* Adds n bytes to the body. Returns MHD_NO if the connection must be closed. */
enum MHD_Result body_add(struct call *c, const char *bytes, size_t n);
/* Returns 0 if the whole body was taken, or -1 with *f. */
int body_check(const struct call *c, struct fault *f);
/* Returns the model that an unparsed body names, from malloc, or NULL if it names none. */
char *body_model(const struct call *c);
/* Frees the body. A large one is freed by the text worker. */
void body_release(struct call *c);

#endif
