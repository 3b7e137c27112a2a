/* remote.h - saved state that several servers share: chunks in a Redis, behind each server's own
 * store.
 *
 * The store stays the home of all chunks that a server serves. A chunk is named by its content, so
 * servers need not coordinate:
 *
 *     committed here -- remote_offer -------> [queue] --> writer --> SET, if the remote lacks it
 *     missing here   -- remote_fetch_begin -> [list] ---> reader --> STRLEN, GETEX of the chain
 *                         --> each chunk verified, store_append --> store_commit --> done
 *
 * A fetched chunk is a chunk of the local store like any other: restores know nothing of the
 * remote.
 *
 * Trust. A value is used after parcel_check has verified every byte, and after its key, fingerprint
 * and owner matched the request. Anything else is a miss, counted by its reason.
 *
 * Faults. A remote that is slow, full, gone or lying costs a miss. store/remote/remote_pace.h
 * decides when a fetch is given up; chunks that have come are used. After a fault the remote rests
 * (backoff_s): no request waits for it, and the reader tries to reach it meanwhile.
 *
 * Threads. A remote has three: the reader and the writer, each with a connection, and one that
 * stores the chunks that the reader has received. Any thread may call these functions. None of them
 * waits for the network, except remote_close, which ends all three. */
#ifndef STORE_REMOTE_REMOTE_H
#define STORE_REMOTE_REMOTE_H

#include "store/remote/remote_pace.h"
#include "store/store.h"

struct remote;

/* The moment at which a chunk is offered to the remote. */
enum remote_when {
    REMOTE_WHEN_COMMITTED, /* "always": as soon as the chunk is in the store */
    REMOTE_WHEN_ENDED,     /* "idle": when the request that made the chunk has ended */
    REMOTE_WHEN_USED       /* "use": when a later request uses the chunk */
};
extern const char *const remote_when_names[];

struct remote_opts {
    const char *url; /* address of the remote (url.h); copied */
    /* PEM files for TLS, only with rediss:// (tls.h). */
    const char *ca_file, *cert_file, *key_file;
    enum remote_when when;
    struct store *store;
    uint32_t ttl_s; /* chunks that no server has fetched for this time are dropped; > 0 */
    /* [SEAL_KEY_BYTES] Secret that encrypts all values; NULL: they are plain. Servers with
     * different secrets do not find each other's chunks. */
    const uint8_t *key;
    size_t max_chunk_bytes; /* a larger value is not fetched; see remote_allow */
    /* A silence this long ends every fetch, even one that waits without a bound; 0: 5 s. */
    int64_t stuck_ns;
    /* Folder for the file with the server's position in the stream of erasures; NULL: the position
     * is not kept. */
    const char *place_dir;
};

/* Returns ERR_USAGE or ERR_UNSUPPORTED if the URL cannot be used. Does not wait for a connection:
 * whether the remote can be reached shows later. */
int remote_open(const struct remote_opts *o, struct remote **out, struct err *err);
/* Raises the bound on values that are fetched, for a model with larger chunks. Any thread. */
void remote_allow(struct remote *r, size_t chunk_bytes);

/* Waits up to ten seconds for the writer, while the remote takes offers, then ends the threads. No
 * fetch may be left. NULL is allowed. */
void remote_close(struct remote *r);

/* --- writing ---------------------------------------------------------------------------------- */

/* Returns whether chunks are offered at the moment `when`. False if r is NULL. */
bool remote_wants(const struct remote *r, enum remote_when when);

/* Offers a committed chunk: the writer will write it to the remote. Never waits: if the queue is
 * full, the offer is dropped, and counted. ttl_s: the chunk's time to live, 0: none. r may be
 * NULL. */
void remote_offer(struct remote *r, const struct sha256 *key, uint32_t ttl_s);

/* --- fetching --------------------------------------------------------------------------------- */

/* Why a fetch brought fewer chunks than were asked for. */
enum remote_miss {
    REMOTE_MISS_NONE,
    REMOTE_MISS_ABSENT,    /* the remote does not have the chunk */
    REMOTE_MISS_SECRET,    /* the same, but servers of another secret have used it */
    REMOTE_MISS_RESTING,   /* the remote cannot be reached, or has failed lately */
    REMOTE_MISS_SILENT,    /* the remote did not answer in time */
    REMOTE_MISS_SLOW,      /* recomputing the chunks is faster */
    REMOTE_MISS_FAILED,    /* the connection failed during the fetch */
    REMOTE_MISS_WRONG,     /* the value is another chunk, or damaged */
    REMOTE_MISS_STORE,     /* the local store has no room, or failed */
    REMOTE_MISS_CANCELLED, /* the request has ended */
    REMOTE_MISSES
};
/* Returns the name of a reason: "absent", "resting", ... */
const char *remote_miss_name(enum remote_miss why);

struct remote_want {
    const struct sha256 *keys; /* [n] keys, a part of one chain; copied */
    int n;
    struct sha256 fingerprint; /* a chunk of another one is wrong */
    uint64_t owner;
    struct store_use use;
    /* Time to compute all of these chunks; 0: the fetch is waited for, however long it takes. */
    double recompute_s;
    /* Time to restore all of these chunks once they are in the store; 0: unknown. */
    double restore_s;
    /* Called once, on the reader's thread, with no lock held. Called even after
     * remote_fetch_cancel. */
    void (*done)(void *arg);
    void *arg;
};

struct remote_fetch;
/* Begins a fetch. Returns NULL with `why` if the remote cannot be reached or has failed lately;
 * then `done` is not called. */
struct remote_fetch *remote_fetch_begin(struct remote *r, const struct remote_want *w,
                                        char *why, int n_why);
/* Cancels a fetch. `done` is called soon after that. */
void remote_fetch_cancel(struct remote_fetch *f);

struct remote_fetched {
    int n_chunks; /* chunks keys[0, n_chunks) are in the store */
    uint64_t n_bytes;
    enum remote_miss why; /* reason why there are no more */
    char text[160];       /* the reason in words */
};
/* Fills *out with the result of a fetch and frees f.  Call it after `done` was called. */
void remote_fetch_end(struct remote_fetch *f, struct remote_fetched *out);
/* Returns the time at which the remote last sent anything (clock_now_ns). */
int64_t remote_fetch_heard_ns(const struct remote_fetch *f);

/* --- erasing ---------------------------------------------------------------------------------- */

/* Call these around every erasure in the store. The remote loses the erased chunks, and every other
 * running server erases them within seconds. These are all chunks of `owner`; with owner NULL the
 * chunks keys[0..n), parents first; with both NULL the chunks that the store has taken away in
 * between. begin waits for the end of another erasure; end never waits. r may be NULL. */
void remote_erase_begin(struct remote *r);
void remote_erase_end(struct remote *r, const uint64_t *owner, const struct sha256 *keys,
                      int n);
/* Ends an erasure of the chunks that hold a whole text, as store_erase_continuing does. keys [n]:
 * the keys of that text. */
void remote_erase_end_text(struct remote *r, const struct sha256 *keys, int n);
/* Sets `fn`, which is called when chunks of the store were erased because another server erased
 * them. It runs on the writer's thread with a lock held, so fn may only note the fact. After a call
 * with NULL returns, there are no more calls. */
void remote_on_erased(struct remote *r, void (*fn)(void *arg), void *arg);
/* Returns false until the server has once read all erasures that others made while it was down:
 * until then older state must not be used. True if r is NULL. */
bool remote_is_current(struct remote *r);

/* --- statistics ----------------------------------------------------------------------------- */

struct remote_stats {
    char url[300]; /* address of the remote, without the password */
    bool is_up;
    bool is_full;       /* it is up, and has refused the last write because it is full */
    char why_down[160]; /* set if it is not up, or full */
    /* fetches; chunks that they brought; bytes of these */
    uint64_t n_fetches, n_fetched, fetched_bytes;
    /* times that a fetch sent a command with nothing else in flight */
    uint64_t n_round_trips;
    /* fetches that brought less than asked for, by reason */
    uint64_t misses[REMOTE_MISSES];
    uint64_t n_written, written_bytes; /* chunks written to the remote, and their bytes */
    uint64_t n_known;                  /* offers of chunks that the remote already had */
    /* offers that were dropped because the queue was full */
    uint64_t n_dropped;
    uint64_t n_gone;     /* offers whose chunk had left the store */
    uint64_t n_refused;  /* chunks that the remote refused because it is full */
    uint64_t n_failures; /* connections that failed */
    /* Offers that wait, and chunks that are written and not confirmed yet. */
    uint64_t n_queued;
    /* Erasures: n_unpublished by this server wait to be published. This server has read n_erasures
     * by all servers, and all running servers have read n_erasures_everywhere. n_servers run
     * now. */
    uint64_t n_unpublished, n_erasures, n_erasures_everywhere, n_servers;
    struct remote_pace pace;
};
/* Fills in *out. r may be NULL: then all fields are 0. */
void remote_stats(struct remote *r, struct remote_stats *out);

#endif
