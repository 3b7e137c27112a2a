/* keep.h - what the routes of kept conversations share; private to src/server. */
#ifndef SERVER_KEEP_H
#define SERVER_KEEP_H

#include "server/call.h"
#include "server/items.h"

enum { KEEP_TITLE_BYTES = 80 };

/* What the store of conversations says, as the API tells it; -1. */
int keep_fault(const struct err *err, struct fault *f);
/* This server keeps none; -1. */
int keep_none(struct fault *f);

/* The query's limit (default_limit; 1 to 100), order (desc) and after. */
int keep_page(struct call *c, int default_limit, struct items_page *out, struct fault *f);

/* Cuts "ID/REST" in two; returns REST, "" where there is none. */
const char *keep_split(char *tail);

/* {"id", "object", "deleted", ...}: and what else is gone. */
struct json *keep_deleted(struct call *c, const char *id, const char *object,
                          const struct erased *gone);

#endif
