/* remotetest.h - shared by the tests of src/store/remote: servers whose stores are in memory and
 * share chunks through a fake Redis. A failure here fails the test. */
#ifndef TESTS_REMOTE_REMOTETEST_H
#define TESTS_REMOTE_REMOTETEST_H

#include <unistd.h>

#include "store/remote/remote_impl.h"
#include "sim/fake_redis.h"
#include "tests/store/storetest.h"

enum { RT_CHUNKS = 4, RT_TTL_S = 1000 };
#define LONG_NS ((int64_t)600000000000)

/* A context of RT_CHUNKS chunks, their keys, and their names in the Redis. rt_begin makes them. */
extern const struct st_ctx rt_context;
extern struct sha256 rt_keys[RT_CHUNKS];
extern char rt_names[RT_CHUNKS][NAME_BYTES];

/* Begins a group of tests. An alarm ends a program that waits too long. */
int rt_begin(void **state);

/* Waits until the condition holds. */
#define WAIT_FOR(condition)                                                                \
    do {                                                                                   \
        while (!(condition))                                                               \
            usleep(1000);                                                                  \
    } while (0)

struct rt_server {
    struct st_place place;
    struct store *store;
    struct remote *remote;
    atomic_int n_erased; /* number of calls of on_erased */
};

/* Opens a server with an empty store in memory. */
void rt_open(struct rt_server *s, struct fake_redis *f);
/* The same with a store in a place (st_place_open), a cap (0: the place's) and these options. */
void rt_open_with(struct rt_server *s, struct fake_redis *f, const char *place,
                  uint64_t cap_bytes, const struct remote_opts *o);
void rt_close(struct rt_server *s);
/* Opens the remote of a server whose store is open. Fields of *o that are 0 get values for
 * tests. */
void rt_join(struct rt_server *s, const struct remote_opts *o);
struct remote_stats rt_stats(struct rt_server *s);

void rt_offer(struct rt_server *s, int n, uint32_t ttl_s);
/* Has a server save n chunks and write them to the Redis. */
void rt_write(struct rt_server *s, struct fake_redis *f, int n);

struct rt_waiter {
    atomic_int n_done;
};
/* The `done` of a fetch whose `arg` is an rt_waiter. */
void rt_done(void *arg);
/* Fetches until the end. `done` and `arg` of want are set here. */
struct remote_fetched rt_fetch_with(struct rt_server *s, struct remote_want want);
/* Fetches the first n chunks. */
struct remote_fetched rt_fetch(struct rt_server *s, int n);

#endif
