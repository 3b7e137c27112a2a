/* remote.h - saved state that several servers share: chunks in a Redis, behind each
 * server's own store.
 *
 * The store stays the home of what a server serves.  A chunk is named by its content, so
 * servers need not agree on anything:
 *
 *     committed here   -- remote_offer ------> [queue] --> writer --> SETEX, where it is not there yet
 *     missing here     -- remote_fetch_begin -> [list] --> reader --> GETEX of the whole chain in one round
 *                                                                     trip --> verified --> store_append,
 *                                                                     store_commit --> done
 *
 * What was fetched is a chunk of the local store like any other: restores know nothing
 * of the remote.
 *
 * Trust.  A value is used after parcel_check has verified every byte, and after its key,
 * fingerprint and owner were compared with those that were asked for.  Anything else is
 * a miss, counted by its reason.
 *
 * Faults.  A remote that is slow, full, gone or lying costs a miss.  A fetch is given up as
 * policy/remote_pace.h says, with the chunks that have come.  After a fault the remote rests
 * (policy/backoff.h): nobody waits for it, and the reader tries to reach it meanwhile.
 *
 * Threads.  Two of its own, the reader and the writer, each with a connection.  Any
 * thread may call these functions; none of them waits for the network, but for
 * remote_close, which ends both threads. */
#ifndef REMOTE_REMOTE_H
#define REMOTE_REMOTE_H

#include "policy/remote_pace.h"
#include "store/store.h"

struct remote;

/* When a chunk is offered to the remote. */
enum remote_when {
    REMOTE_WHEN_COMMITTED, /* "always": as soon as it is in the store */
    REMOTE_WHEN_ENDED,     /* "idle": when the request that made it has ended */
    REMOTE_WHEN_USED       /* "use": when a later request uses it */
};
/* "always" (NULL: as well), "idle", "use"; else ERR_USAGE. */
int remote_when_parse(const char *text, enum remote_when *out, struct err *err);

struct remote_opts {
    const char *url; /* see url.h; copied */
    /* PEM files, of rediss:// only: see tls.h. */
    const char *ca_file, *cert_file, *key_file;
    enum remote_when when;
    struct store *store;
    struct sha256
        fingerprint;        /* chunks of other fingerprints are neither read nor written */
    uint32_t ttl_s;         /* what nobody has fetched for so long goes; > 0 */
    size_t max_chunk_bytes; /* a larger value is not fetched */
    int64_t stuck_ns; /* silences that end everything, also what is waited for; 0: 5 s */
    /* Folder in which the server keeps how far it has read what others have erased;
     * NULL: nowhere. */
    const char *place_dir;
};

/* ERR_USAGE or ERR_UNSUPPORTED where the URL cannot be used.  Whether the remote is
 * there shows later. */
int remote_open(const struct remote_opts *o, struct remote **out, struct err *err);
/* Waits up to ten seconds for the writer, while the remote takes what is offered, and ends both
 * threads.  No fetch may be left.  NULL is allowed. */
void remote_close(struct remote *r);

/* --- writing ---------------------------------------------------------------------------------- */

/* Whether chunks are offered at this moment.  False where r is NULL. */
bool remote_wants(const struct remote *r, enum remote_when when);

/* A chunk was committed in the store: it is written to the remote when the writer comes to it.
 * Never waits: where the queue is full the offer is dropped, and counted.  ttl_s: of the
 * chunk, 0: none.  r may be NULL. */
void remote_offer(struct remote *r, const struct sha256 *key, uint32_t ttl_s);

/* --- fetching --------------------------------------------------------------------------------- */

/* Why a fetch brought less than was asked for. */
enum remote_miss {
    REMOTE_MISS_NONE,
    REMOTE_MISS_ABSENT,    /* the remote does not have it */
    REMOTE_MISS_RESTING,   /* the remote cannot be reached, or has failed lately */
    REMOTE_MISS_SILENT,    /* it did not answer in time */
    REMOTE_MISS_SLOW,      /* recomputing is faster */
    REMOTE_MISS_FAILED,    /* the connection failed in the middle */
    REMOTE_MISS_WRONG,     /* what came is not what was asked for, or is damaged */
    REMOTE_MISS_STORE,     /* the local store has no room for it, or failed */
    REMOTE_MISS_CANCELLED, /* the request has ended */
    REMOTE_MISSES
};
/* "absent", "resting", ... */
const char *remote_miss_name(enum remote_miss why);

struct remote_want {
    const struct sha256 *keys; /* [n], a part of one chain; copied */
    int n;
    uint64_t owner;
    struct store_use use;
    double recompute_s; /* price of computing all of it; 0: it is waited for */
    double
        restore_s; /* price of restoring all of it once it is in the store; 0: not known */
    /* Called once, on the reader's thread, with no lock held, also behind remote_fetch_cancel. */
    void (*done)(void *arg);
    void *arg;
};

struct remote_fetch;
/* NULL with `why` where the remote cannot be reached or has failed lately; `done`
 * is not called then. */
struct remote_fetch *remote_fetch_begin(struct remote *r, const struct remote_want *w,
                                        char *why, int n_why);
/* It is not wanted any more: `done` comes soon. */
void remote_fetch_cancel(struct remote_fetch *f);

struct remote_fetched {
    int n_chunks; /* keys[0, n_chunks) are in the store */
    uint64_t n_bytes;
    enum remote_miss why; /* not more */
    char text[160];       /* the same in words */
};
/* Fills *out with the result of a fetch and frees f.  Call it after `done` was called. */
void remote_fetch_end(struct remote_fetch *f, struct remote_fetched *out);
/* When anything came last (clock_now_ns). */
int64_t remote_fetch_heard_ns(const struct remote_fetch *f);

/* --- erasing ---------------------------------------------------------------------------------- */

/* Around every erasure in the store: what is taken away in between is removed from the remote,
 * and every other server erases it, those that run within seconds.  owner: all its chunks.
 * keys [n]: these, parents first; NULL: what the store has taken away.  Both return at once,
 * but wait for another erasure to end.  r may be NULL. */
void remote_erase_begin(struct remote *r);
void remote_erase_end(struct remote *r, const uint64_t *owner, const struct sha256 *keys,
                      int n);
/* `fn` is called when chunks of the store were erased because another server has;
 * on the writer's thread, with a lock held: it may only take note of it.  NULL: no
 * more calls once this returns. */
void remote_on_erased(struct remote *r, void (*fn)(void *arg), void *arg);
/* False until the server has heard once of all that others had erased while it was not there:
 * state from before may not be used.  True where r is NULL. */
bool remote_is_current(struct remote *r);

/* --- what there is to tell -------------------------------------------------------------------- */

struct remote_stats {
    char url[300]; /* without the password */
    bool is_up;
    char why_down[160];
    uint64_t n_fetches, n_fetched, fetched_bytes; /* requests; chunks */
    uint64_t n_round_trips; /* times that a fetch asked and had nothing else in flight */
    uint64_t misses[REMOTE_MISSES];    /* requests, by reason */
    uint64_t n_written, written_bytes; /* chunks */
    uint64_t n_known;                  /* offers that the remote had already */
    uint64_t n_dropped;                /* offers that found no place in the queue */
    uint64_t n_gone;                   /* offers whose chunk had left the store */
    uint64_t n_refused;                /* chunks that the remote did not take: it is full */
    uint64_t n_failures;               /* connections that failed */
    uint64_t n_queued;                 /* offers that wait now */
    /* Erasures: of this server, not published yet; published by all, as far as this one has
     * read; as far as all servers have that run now; how many these are. */
    uint64_t n_unpublished, n_erasures, n_erasures_everywhere, n_servers;
    struct remote_pace pace;
};
/* r may be NULL: all is 0. */
void remote_stats(struct remote *r, struct remote_stats *out);

#endif
