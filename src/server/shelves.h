/* shelves.h - what the routes of files and of batches share; private to src/server. */
#ifndef SERVER_SHELVES_H
#define SERVER_SHELVES_H

#include "batch/shelf.h"
#include "server/call.h"

enum { SHELVES_MAX_PAGE = 100 };

/* The shelf; NULL after a fault was answered: this server has none. */
struct shelf *shelves_of(struct call *c);
/* The fault of the shelf is the call's answer. */
void shelves_fault(struct call *c, const struct err *err);
/* The query's limit, order and after, and the call's tenant.  0, or -1 after a
 * fault was answered. */
int shelves_page(struct call *c, struct shelf_page *out);
/* A list object.  data is taken; its elements have ids. */
void shelves_list(struct call *c, struct json *data, bool has_more);

#endif
