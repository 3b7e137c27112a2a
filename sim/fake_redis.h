/* fake_redis.h - a Redis in this process, for tests: strings with a time to live, one stream, one
 * hash. It counts the commands, and refuses, drops or withholds answers when a test says so.
 *
 * Any thread may call these functions. */
#ifndef SIM_FAKE_REDIS_H
#define SIM_FAKE_REDIS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_redis;

/* Listens on a port of its own on loopback. */
struct fake_redis *fake_redis_start(void);
/* Closes all connections and frees everything. */
void fake_redis_stop(struct fake_redis *f);
/* Returns "redis://127.0.0.1:PORT", valid until fake_redis_stop. */
const char *fake_redis_url(const struct fake_redis *f);

/* What goes wrong with the next n commands of a name. */
enum fake_trouble {
    FAKE_REFUSES, /* answers "-OOM no room" */
    FAKE_DROPS,   /* closes the connection */
    /* sends no answer; fake_redis_answer then closes the connection */
    FAKE_WITHHOLDS,
    FAKE_DRIPS /* sends the answer byte by byte, one each millisecond */
};
void fake_redis_trouble(struct fake_redis *f, const char *command, enum fake_trouble what,
                        int n);
/* Ends all troubles. Connections whose answers were withheld are closed without an answer. */
void fake_redis_answer(struct fake_redis *f);

/* Returns the number of commands of this name that have come. */
uint64_t fake_redis_count(struct fake_redis *f, const char *command);

/* --- strings ---------------------------------------------------------------------------------- */

/* Returns the length of a value, or 0 if there is none. *ttl_s (may be NULL) gets the time to live
 * that the last write set. */
size_t fake_redis_value(struct fake_redis *f, const char *name, int64_t *ttl_s);
/* Copies the value to out, which must have room for the value's length. */
void fake_redis_get(struct fake_redis *f, const char *name, uint8_t *out);
void fake_redis_put(struct fake_redis *f, const char *name, const void *bytes, size_t n);

/* --- the stream and the hash ------------------------------------------------------------------ */

/* Returns the number of entries that were ever added to the stream. */
uint64_t fake_redis_n_added(struct fake_redis *f);
/* Adds an entry whose field "e" has these bytes. Without bytes it is one of another program: it has
 * two fields, with texts that look like those of the stream itself. */
void fake_redis_add(struct fake_redis *f, const void *bytes, size_t n);
/* Adds an entry that was added at this time, in ms since 1970, by the Redis's clock. */
void fake_redis_add_at(struct fake_redis *f, int64_t ms, const void *bytes, size_t n);
/* Drops all entries but the newest n. */
void fake_redis_trim(struct fake_redis *f, int n);
/* Begins a new stream without entries. */
void fake_redis_forget(struct fake_redis *f);
/* Returns the number of fields of the hash. */
int fake_redis_n_fields(struct fake_redis *f);
void fake_redis_set_field(struct fake_redis *f, const char *field, const char *value);

#endif
