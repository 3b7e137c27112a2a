/* server.h - the OpenAI-compatible HTTP server in front of a struct hcache.
 *
 *     server_start(&opts, &s, &err);     listens; /health says 503 "loading"
 *     hcache_open(...); hcache_serve_start(h, ...); server_keep(s, conversations);
 *     server_ready(s, h);                requests are answered
 *     server_drain(s);                   new requests get 503; those that run go on
 *     while (server_n_active(s) > 0) ... wait, up to the drain time
 *     hcache_serve_stop(h);              ends what still runs: no connection waits any more
 *     server_stop(s); hcache_close(h);
 *
 * Threads: opts.http_threads that run the library (loops.h), and one watcher (watch.h) that
 * closes what is too slow and notices clients that have gone.  None of them ever waits for the
 * engine, nor the engine for them.  docs/SERVER.md is the users' manual. */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "hcache.h"
#include "server/origin.h"

struct conversations;
struct shelf;
struct server;

struct server_opts {
    const char *host;       /* a numeric address, or localhost */
    int port;               /* 0: any free one */
    const char *model_name; /* as /v1/models shows it */
    const char *const *api_keys;
    int n_api_keys;              /* 0: everybody may ask */
    int n_admin_keys;            /* the last of them: they see all counters */
    struct origin_rules origins; /* borrowed until server_stop */
    int http_threads;
    int max_connections;
    int max_queue;       /* as hcache_serve_start was given it; 0: not known */
    int read_timeout_s;  /* a request must have arrived whole within this */
    int write_timeout_s; /* a client that reads nothing for so long is dropped */
    int idle_timeout_s;  /* a connection between requests */
    int keep_alive_s; /* a stream that is silent gets a comment each so many seconds; 0: none */
    uint64_t max_body_bytes;
    uint64_t max_bodies_bytes; /* of all requests together */
    const char *plan;          /* of every restore: auto (NULL), hidden, kv, recompute */
    bool plan_strict;          /* see hcache_request */
    bool plain_chat;           /* chat without a chat template: see docs/SERVER.md */
    bool parse_special;        /* special tokens that messages spell count as such */
    const char *answers; /* the file that remembers our answers' tokens; NULL: no file */
    bool
        store_required; /* a file of answers that cannot be used is an error, not a warning */
    int64_t
        idle_ttl_s; /* stored chunks that nobody used for so long are evicted; 0: never */
    /* as hcache was opened with: no request may set more; 0: no bound */
    uint64_t salt_quota_bytes;
};

int server_start(const struct server_opts *o, struct server **out, struct err *err);
int server_port(const struct server *s);
/* Where conversations are kept, before it is ready; borrowed. Without it none are. */
void server_keep(struct server *s, struct conversations *c);
/* Where files and batches are kept, before it is ready; borrowed.  Without it there are none.
 * n_sequences: answers of batches that are generated at once. */
void server_batches(struct server *s, struct shelf *shelf, int n_sequences);
/* How requests are truncated that ask for it, before it is ready.  Without it none can be. */
void server_truncate(struct server *s, const struct hcache_truncation *t);
/* Begins to answer. -errno where the file of answers cannot be used and store_required is set. */
int server_ready(struct server *s, struct hcache *h, struct err *err);
/* Batches have stopped when it returns; they go on with the next server. */
void server_drain(struct server *s);
int server_n_active(const struct server *s); /* requests that are not answered yet */
void server_stop(struct server *s);          /* NULL is allowed */

#endif
