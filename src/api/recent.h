/* recent.h - how the state of the last requests came back, by the id of the answer.
 *
 * Agents keep their conversations themselves, so the server keeps no turn of theirs. These records
 * say of their requests what a kept turn says of its own (provenance.h). Of texts they hold only
 * the few words that a miss reason quotes. They are in memory and end with the server.
 *
 * A tenant may have max_records / n_tenants of them, in as many bytes' share of max_bytes; its
 * oldest make room. Any thread may call any function; none waits for the disk. */
#ifndef API_RECENT_H
#define API_RECENT_H

#include <stddef.h>
#include <stdint.h>

#include "base/json.h"

struct recent;

struct recent_opts {
    int max_records;
    size_t max_bytes;
    int n_tenants; /* tenants that share the bounds; 0 counts as 1 */
};

struct recent *recent_create(const struct recent_opts *o);
void recent_destroy(struct recent *r); /* NULL is allowed */

struct recent_request {
    const char *id;    /* of the answer, as "msg_.." */
    const char *agent; /* how the client names itself; NULL: it does not */
    int64_t created_s;
    const struct json *told; /* provenance_json's object */
};

/* Adds a record, copied. It replaces none: an id of several answers has a record of each, and the
 * newest is found. */
void recent_add(struct recent *r, const char *tenant, const struct recent_request *q);

/* Returns the newest record of that id: {"id", "object": "request", "created_at", "agent",
 * "restoration"}, which the caller owns. NULL: the tenant has none. */
struct json *recent_find(struct recent *r, const char *tenant, const char *id);

/* Returns the tenant's records, newest first, at most `limit`, without plans, lanes and timings, as
 * a list that the caller owns. */
struct json *recent_list(struct recent *r, const char *tenant, int limit);

/* Forgets the records that are older than that, of all tenants. */
void recent_expire(struct recent *r, int64_t before_s);

/* Forgets the tenant's records of an id; NULL: all of the tenant's records. */
void recent_forget(struct recent *r, const char *tenant, const char *id);

#endif
