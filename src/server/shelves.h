/* shelves.h - shared by the routes of files and batches; private to src/server. */
#ifndef SERVER_SHELVES_H
#define SERVER_SHELVES_H

#include "api/shelf.h"
#include "server/call.h"

enum { SHELVES_MAX_PAGE = 100 };

/* Answers the call with `answer`. If `answer` returns -1, the fault that it set is sent. If the
 * server has no shelf, the call is refused. */
void shelves_route(struct call *c,
                   int (*answer)(struct call *c, struct shelf *shelf, struct fault *f));
/* Converts the shelf's error to a fault of the API. Returns -1. */
int shelves_fault(const struct err *err, struct fault *f);
/* Reads the query's limit, order and after, and the call's tenant. Returns 0, or -1 with *f. */
int shelves_page(struct call *c, struct shelf_page *out, struct fault *f);
/* Answers with a list object, which then owns data. The elements of data have ids. */
void shelves_list(struct call *c, struct json *data, bool has_more);

#endif
