/* server.h - the OpenAI-compatible HTTP server in front of a struct hcache.
 *
 *     server_start(&opts, &s, &err);     listens; /health says 503 "loading"; other requests
 *                                        wait or are refused (wait_ready)
 *     hcache_open(...); hcache_serve_start(h, ...); server_keep(s, conversations);
 *     server_ready(s, h);                requests are answered
 *     server_drain(s);                   new requests get 503; running ones go on
 *     while (server_n_active(s) > 0) ... wait, up to the drain time
 *     hcache_serve_stop(h);              ends running requests: no connection waits any more
 *     server_stop(s); hcache_close(h);
 *
 * Threads: opts.http_threads that run the library (loops.h), and one watcher (watch.h) that
 * closes slow connections and notices clients that have gone. None of them ever waits for the
 * engine, nor the engine for them. docs/SERVER.md is the users' manual. */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "hcache.h"
#include "api/client.h"
#include "server/origin.h"

struct conversations;
struct models;
struct dates;
struct shelf;
struct server;

enum { SERVER_MAX_HOSTS = 8 };

struct server_opts {
    /* addresses to listen on, each numeric or localhost; borrowed until server_stop */
    const char *const *hosts;
    int n_hosts;              /* from 1 to SERVER_MAX_HOSTS */
    int port;                 /* on all of them; 0: any free port */
    const char *model_name;   /* name that answers show */
    struct model_names names; /* n 0: model_name alone; borrowed until server_stop */
    const char *const *api_keys;
    int n_api_keys;              /* 0: no key is needed */
    int n_admin_keys;            /* the last n_admin_keys keys see all counters */
    struct origin_rules origins; /* borrowed until server_stop */
    int http_threads;
    int max_connections;
    int max_queue; /* as in hcache_serve_start; 0: unknown */
    /* Requests that come before server_ready wait for it, at most max_queue of them. Others, and
     * all if this is false, get 503. */
    bool wait_ready;
    /* Requests for one of several models wait until it is loaded, at most max_queue of them. */
    bool wait_load;
    int read_timeout_s;  /* time within which a whole request must have arrived */
    int write_timeout_s; /* a client that reads nothing for this time is dropped */
    int idle_timeout_s;  /* longest time between two requests of a connection */
    int keep_alive_s;    /* interval of the comments that a silent stream gets; 0: none */
    uint64_t max_body_bytes;
    uint64_t max_bodies_bytes; /* bound on the bodies of all requests together, in bytes */
    /* plan of every restore: "auto" (NULL), "hidden", "kv" or "recompute" */
    const char *plan;
    int64_t seed;       /* of requests that name none; 0: each draws its own */
    bool plain_chat;    /* chat without a chat template: see docs/SERVER.md */
    bool parse_special; /* special tokens spelled in messages count as special tokens */
    struct dates
        *dates; /* decides on the date that a prompt shows; NULL: the present one */
    /* file that remembers the tokens of this server's answers; NULL: no file */
    const char *answers;
    const struct seal *seal; /* encrypts that file; NULL: it is plain */
    int64_t
        answers_ttl_s; /* answers are forgotten this time after they were given; 0: never */
    bool store_required; /* an unusable file of answers is an error, not a warning */
    /* Stored chunks that were not used for this time are evicted; 0: never. */
    int64_t idle_ttl_s;
    /* As in hcache_opts. No request may set a higher quota; 0: no bound. */
    uint64_t salt_quota_bytes;
};

int server_start(const struct server_opts *o, struct server **out, struct err *err);
int server_port(const struct server *s);
/* Sets where conversations are kept, before server_ready. Borrowed. By default none are kept. */
void server_keep(struct server *s, struct conversations *c);
/* Sets where files and batches are kept; call it before server_ready. Borrowed. Without this call
 * there are none. n_sequences: answers of batches that are generated at once. */
void server_batches(struct server *s, struct shelf *shelf, int n_sequences);
/* Sets how requests that ask for it are truncated; call it before server_ready. Without this call
 * no request can be truncated. */
void server_truncate(struct server *s, const struct hcache_truncation *t);
/* Serves several models, which names[0, n) name; call it before server_ready. Both borrowed. */
void server_models(struct server *s, struct models *m, const struct model_names *names,
                   int n);
/* Wakes the requests that wait for a model: one was loaded, or could not be. arg: the server. */
void server_models_changed(void *arg);
/* Begins to answer requests. h: the model, or models_store. Returns -errno if the file of answers
 * cannot be used and store_required is set. */
int server_ready(struct server *s, struct hcache *h, struct err *err);
/* Refuses new requests. When it returns, batches have stopped. They continue when a server is
 * started again. */
void server_drain(struct server *s);
/* Returns the number of requests that are not answered yet. */
int server_n_active(const struct server *s);
void server_stop(struct server *s); /* NULL is allowed */

#endif
