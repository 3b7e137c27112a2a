/* shelves.h - shared by the routes of files and batches; private to src/server. */
#ifndef SERVER_SHELVES_H
#define SERVER_SHELVES_H

#include "api/shelf.h"
#include "server/call.h"

enum { SHELVES_MAX_PAGE = 100 };

/* Returns the shelf. If this server has none, answers the call with a fault and returns NULL. */
struct shelf *shelves_of(struct call *c);
/* Answers the call with the shelf's fault. */
void shelves_fault(struct call *c, const struct err *err);
/* Reads the query's limit, order and after, and the call's tenant. Returns 0, or -1 after a
 * fault was answered. */
int shelves_page(struct call *c, struct shelf_page *out);
/* Answers with a list object, which then owns data. The elements of data have ids. */
void shelves_list(struct call *c, struct json *data, bool has_more);

#endif
