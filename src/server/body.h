/* body.h - reads a request's body into JSON values, and bounds the memory of both.
 *
 * Bytes and values of all requests together are bounded by server_opts.max_bodies_bytes.  The
 * values of one body may take as much memory as its text, and BODY_FREE_BYTES: sensible
 * requests take far less, and 16 MB of "{},{},..." would take 1.2 GB.  Fields that change
 * nothing are checked and not built (format/json_scan.h). */
#ifndef SERVER_BODY_H
#define SERVER_BODY_H

#include "server/call.h"

enum { BODY_FREE_BYTES = 16 << 20 };

/* Takes more of the body.  MHD_NO: the connection is to be closed. */
enum MHD_Result body_add(struct call *c, const char *bytes, size_t n);
/* Whether all of it was taken. 0, or -1 with *f. */
int body_check(const struct call *c, struct fault *f);
/* What takes long to free is left to the text worker. */
void body_release(struct call *c);

#endif
