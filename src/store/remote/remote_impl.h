/* remote_impl.h - shared by the files of the remote; private to src/store/remote.
 *
 *   remote.c        life, the queue of offers, statistics
 *   remote_link.c   a connection that reopens by itself, with rests in between
 *   remote_fetch.c  the reader's thread
 *   storing.c       a thread verifies and stores the chunks that the reader has received
 *   remote_write.c  the writer's thread
 *   remote_erase.c  this server's erasures; all but begin and end on the writer's thread
 *   remote_follow.c other servers' erasures, on the writer's thread
 *   remote_lease.c  chunks live only a short time in the remote until they are confirmed
 *
 * Locks: remote.lock protects everything but the links, which belong to their threads. No I/O is
 * done under it. erase_lock: one erasure at a time; held while the store erases. append_lock,
 * taken within erase_lock: held while a fetched chunk goes into the store, or an erasure begins.
 * Both are taken before remote.lock. */
#ifndef STORE_REMOTE_REMOTE_IMPL_H
#define STORE_REMOTE_REMOTE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "store/remote/erasure.h"
#include "store/remote/names.h"
#include "redis/cluster.h"
#include "store/remote/remote.h"
#include "store/parcel.h"

enum {
    MAX_OFFERS = 65536, /* queue of offers: 3 MiB */
    MAX_BANS = 32768,   /* an erased chunk takes two places */
    MAX_BANNED_OWNERS = 64,
    STREAM_ID_BYTES = 48,
    LINK_OPEN_S = 5, /* bound on the time for connecting while no request waits */
    LEASE_MS = 45000,
    MAX_LEASES = 8192, /* leases at most: 300 KiB */
};

/* Erased chunks are not fetched for this time. It is longer than a running server takes to read an
 * erasure, and longer than LEASE_MS. */
#define BAN_NS ((int64_t)60 * 1000 * 1000 * 1000)

/* A connection of one thread. */
struct link {
    struct remote *r;
    bool tells;              /* failures and successes of this link set stats.is_up */
    struct cluster *cluster; /* NULL: the link is closed */
    size_t max_chunk_bytes;  /* the bound on values when it was opened */
    struct cluster_seeds seeds;
    int n_failures; /* number of failures in a row; an answer of the remote sets it to 0 */
    int64_t rest_until_ns;
};

/* A piece of the writer's work: to write or remove one chunk. */
struct offer {
    struct sha256 key;
    uint32_t ttl_s;
    /* the offer is to remove the value: the remote's value of this name is wrong */
    bool removes;
};

/* A chunk that this server has written or used, and has not confirmed yet (remote_lease.c). */
struct lease {
    struct sha256 key;
    uint32_t ttl_s;
};

/* Recently erased chunks. They are not fetched. */
struct bans {
    struct banned {
        struct sha256 key;
        int64_t until_ns;
    } * key; /* [MAX_BANS] a ring */
    struct banned_owner {
        uint64_t owner;
        int64_t until_ns;
    } owner[MAX_BANNED_OWNERS]; /* a ring */
    uint64_t n_keys, n_owners;  /* places of each ring that were ever taken since open */
    /* More was erased than the rings can hold, so nothing is fetched until this time. */
    int64_t all_until_ns;
};

/* An erasure by this server that waits to be published. */
struct published {
    struct published *next;
    /* the entry is in the stream; its chunks must still be removed from the remote */
    bool is_told;
    struct erasure e;
    struct sha256 keys[];
};

struct remote_fetch {
    struct remote_fetch *next;
    uint64_t epoch; /* remote.epoch when the fetch began */
    struct remote *r;
    struct remote_want want;
    int64_t t_begin;
    atomic_llong t_heard;
    atomic_bool is_cancelled;
    struct remote_fetched out;
    struct sha256 keys[];
};

/* Tasks of the writer whose failures are told: erasures, and chunks. */
enum writer_task { WRITER_ERASURES, WRITER_CHUNKS, WRITER_TASKS };

struct remote {
    struct remote_opts o;
    struct remote_url url;
    struct tls *tls; /* NULL: no TLS */
    int stop_fd;     /* descriptor that becomes readable when the threads must end */
    pthread_t reader, writer;
    bool has_reader, has_writer;
    struct link read_link, write_link;
    struct remote_pace pace; /* for the reader only */
    struct storing *storing;

    pthread_mutex_t lock;
    pthread_cond_t for_reader, for_writer;
    /* Signalled when the writer has settled a batch, or has failed. */
    pthread_cond_t drained;
    bool quit;
    struct remote_fetch *fetches; /* waiting fetches, oldest first */
    struct offer *offers;         /* [MAX_OFFERS] a ring: n_offers from first_offer on */
    uint32_t first_offer, n_offers;
    struct remote_stats stats;
    struct names names;
    atomic_size_t max_chunk_bytes; /* opts.max_chunk_bytes, or more since (remote_allow) */
    atomic_bool said_skips;        /* skipped entries of the stream were reported */
    atomic_bool has_other_secrets; /* servers of another secret have used the remote */
    /* why the writer's last attempt failed, for each of its tasks; "": it succeeded */
    char writer_why[WRITER_TASKS][160];
    bool writer_is_full[WRITER_TASKS]; /* it failed because the remote is full */
    /* Number of erasures begun here. Fetches from before an erasure store nothing more. */
    uint64_t epoch;
    int n_erasing; /* number of erasures that have begun and not ended */
    /* [n_taken] chunks that the store has taken away in the present erasure */
    struct sha256 *taken;
    int n_taken;
    struct published *publish; /* erasures to publish, oldest first */
    uint64_t n_uncounted; /* published erasures that stats.n_erasures does not count yet */
    struct bans bans;
    bool is_current; /* all erasures by others were read once since open */
    /* The stream was read to its end once since open. Until then nothing is fetched. */
    bool may_fetch;
    struct lease *leases; /* [n_leases] with room for MAX_LEASES; NULL: no lease yet */
    uint32_t n_leases;

    pthread_mutex_t erase_lock, append_lock;
    void (*on_erased)(void *arg); /* guarded by erase_lock */
    void *on_erased_arg;

    /* The following fields belong to the writer's thread. */
    uint64_t server; /* a random number that identifies this process */
    /* Number of entries seen in the stream of erasures, counted from its very first entry. */
    uint64_t n_seen;
    char seen_id[STREAM_ID_BYTES]; /* id of the last entry that was seen */
    bool has_place;                /* this server has once read the stream to its end */
    /* The store was empty at open, so the entries of the stream at that time do not concern this
     * server. */
    bool skips;
    char *place_path; /* file that keeps seen_id and n_seen across a restart; NULL: none */
    int64_t t_polled;
    /* The remote's clock before the last reading that reached the end of the stream, in ms; 0:
     * there was none. */
    int64_t read_ms;
    bool has_bans; /* the chunks that were erased shortly before open are banned */
    /* Erasures were published or carried out since leases were last settled. */
    bool has_erased;
};

/* --- remote_link.c --- */
/* Returns whether the link may be used: it is open, or could be opened within timeout_ns. A link
 * that rests is not opened. */
bool link_ready(struct link *l, int64_t timeout_ns);
/* Notes how a task of the writer has ended, and logs a change. why NULL: it succeeded. */
void remote_writer_tell(struct remote *r, enum writer_task task, const struct err *why);
/* Sets *err to the remote's refusal, or to an answer of an unexpected kind. Returns -ENOSPC if the
 * remote is full, else -EACCES. */
int remote_refused(const struct redis_answer *a, struct err *err);

/* Closes a failed link and lets it rest. */
void link_fail(struct link *l, const struct err *why);
/* Closes a link that has not failed: answers in flight are no longer needed. */
void link_drop(struct link *l);
/* Notes a successful command, which ends a series of failures. */
void link_praise(struct link *l);
/* Returns the nanoseconds until a closed link may be opened; 0: now. */
int64_t link_rest_ns(const struct link *l);

/* --- remote.c --- */
void remote_put_offer(struct remote *r, const struct offer *o);
/* [lock] Waits until c is signalled, or until ns have passed. */
void remote_wait(struct remote *r, pthread_cond_t *c, int64_t ns);

/* --- remote_erase.c --- */
void remote_erase_init(struct remote *r);
void remote_erase_deinit(struct remote *r);
/* [append_lock] Returns whether a fetched chunk may be stored: nothing was erased since its
 * fetch began, and this chunk was not erased lately. */
bool remote_may_store(struct remote *r, const struct remote_fetch *f,
                      const struct sha256 *key);
/* Call these around an erasure in the store. erase_lock is held in between. */
void remote_erase_enter(struct remote *r);
void remote_erase_leave(struct remote *r);
/* [lock] Keeps the chunks of an erasure from being fetched for a while. */
void remote_ban(struct remote *r, const struct erasure *e);
/* Runs one command of the writer. An answer of another kind than expected is an error. */
int remote_ask(struct remote *r, const struct redis_arg *args, int n_args,
               enum redis_kind kind, struct redis_answer *a, struct err *err);
int remote_unlink_keys(struct remote *r, const struct sha256 *keys, int n,
                       struct redis_answer *a, struct err *err);
int remote_publish_all(struct remote *r, struct redis_answer *a, struct err *err);

/* --- remote_lease.c --- */
/* Notes a chunk that must be confirmed. Any thread. */
void remote_lease_add(struct remote *r, const struct sha256 *key, uint32_t ttl_s);
uint32_t remote_n_leases(struct remote *r);
/* Returns a chunk's time to live in the remote. own_s: its time to live in the store, or 0. */
uint32_t remote_ttl_s(const struct remote *r, uint32_t own_s);
/* Returns the time at which a chunk that is written now expires unless it is confirmed, in ms by
 * the remote's clock. */
int64_t remote_lease_until_ms(const struct remote *r, uint32_t ttl_s);
/* Asks for the remote's clock, in ms since 1970. */
int remote_ask_time(struct remote *r, int64_t *ms, struct redis_answer *a, struct err *err);
/* Confirms or removes the chunks of the oldest n leases, which were noted before the stream was
 * last read to its end. */
int remote_leases_settle(struct remote *r, uint32_t n, struct redis_answer *a,
                         struct err *err);

/* --- remote_follow.c --- */
/* Prepares the following of erasures. is_empty says whether the store has no chunk. */
void remote_follow_init(struct remote *r, bool is_empty);
/* [lock] Returns the nanoseconds until the writer must call remote_erasures_run; 0: now. */
int64_t remote_erasures_due_ns(const struct remote *r);
/* Publishes this server's erasures, carries out others'. Returns false if the link was closed. */
bool remote_erasures_run(struct remote *r);

/* --- the threads --- */
void *remote_reader_main(void *remote);
void *remote_writer_main(void *remote);

#endif
