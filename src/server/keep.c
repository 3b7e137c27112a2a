/* keep.c - see keep.h. */
#include "server/keep.h"

#include <stdlib.h>
#include <string.h>

int keep_fault(const struct err *err, struct fault *f)
{
    switch (err->code) {
    case ERR_NOT_FOUND:
        return fault_set(f, 404, "not_found", NULL, "%s", err->msg);
    case ERR_LIMIT:
        return fault_set(f, 400, "storage_full", NULL, "%s", err->msg);
    case ERR_MISMATCH:
        return fault_set(f, 409, "conflict", NULL, "%s", err->msg);
    default:
        return fault_set(f, 500, NULL, NULL, "%s", err->msg);
    }
}

int keep_none(struct fault *f)
{
    return fault_set(f, 400, "not_kept", "store",
                     "this server keeps no conversations (--conversations none): send "
                     "\"store\": false, and the whole conversation with every request");
}

int keep_page(struct call *c, int default_limit, struct items_page *out, struct fault *f)
{
    const char *limit = call_query(c, "limit"), *order = call_query(c, "order");
    char *end = NULL;
    long n = limit != NULL ? strtol(limit, &end, 10) : default_limit;
    if (limit != NULL && (end == limit || *end != 0 || n < 1 || n > 100))
        return fault_set(f, 400, NULL, "limit", "'limit' must be a number from 1 to 100");
    if (order != NULL && strcmp(order, "asc") != 0 && strcmp(order, "desc") != 0)
        return fault_set(f, 400, NULL, "order", "'order' must be asc or desc");
    *out = (struct items_page){.limit = (int)n,
                               .oldest_first = order != NULL && strcmp(order, "asc") == 0,
                               .after = call_query(c, "after")};
    return 0;
}

const char *keep_split(char *tail)
{
    char *slash = strchr(tail, '/');
    if (slash == NULL)
        return "";
    *slash = 0;
    return slash + 1;
}

struct json *keep_deleted(struct call *c, const char *id, const char *object,
                          const struct erased *gone)
{
    struct json *o = json_new_object();
    (void)c;
    json_put_string(o, "id", id);
    json_put_string(o, "object", object);
    json_put_bool(o, "deleted", true);
    json_put_int(o, "erased_turns", gone->n_turns);
    json_put_int(o, "shared_turns", gone->n_shared);
    return o;
}
