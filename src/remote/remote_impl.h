/* remote_impl.h - what the files of the remote share; private to src/remote.
 *
 *   remote.c        life, the queue of offers, statistics
 *   remote_link.c   a connection that comes back by itself, with rests in between
 *   remote_fetch.c  the reader's thread
 *   remote_write.c  the writer's thread
 *   remote_erase.c  what this server erases; all but its beginning and end on the writer's thread
 *   remote_follow.c what others erase, on the writer's thread
 *
 * Locks: remote.lock protects everything but the links, which belong to their threads.  Nothing
 * is sent, received, read or written under it.  erase_lock: one erasure at a time; held while
 * the store erases.  append_lock: a fetched chunk goes into the store, or an erasure begins;
 * within erase_lock.  Both are taken before remote.lock. */
#ifndef REMOTE_REMOTE_IMPL_H
#define REMOTE_REMOTE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "remote/erasure.h"
#include "remote/names.h"
#include "remote/cluster.h"
#include "remote/remote.h"
#include "store/parcel.h"

enum {
    MAX_OFFERS = 65536, /* 3 MiB */
    MAX_BANS = 16384,
    MAX_BANNED_OWNERS = 64,
    STREAM_ID_BYTES = 48,
    LINK_OPEN_S = 5, /* for connecting, where nobody waits for it */
};

/* A connection of one thread. */
struct link {
    struct remote *r;
    bool tells;              /* the remote's state is what this link says */
    struct cluster *cluster; /* NULL: there is none */
    struct cluster_seeds seeds;
    int n_failures; /* in a row; what the remote has answered ends the row */
    int64_t rest_until_ns;
};

/* What the writer is to do with a chunk. */
struct offer {
    struct sha256 key;
    uint32_t ttl_s;
    bool removes; /* what the remote has under this name is wrong */
};

/* Chunks that were erased lately.  They are not fetched. */
struct bans {
    struct banned {
        struct sha256 key;
        int64_t until_ns;
    } * key; /* [MAX_BANS], a ring */
    struct banned_owner {
        uint64_t owner;
        int64_t until_ns;
    } owner[MAX_BANNED_OWNERS]; /* likewise */
    uint64_t n_keys, n_owners;  /* ever */
    int64_t all_until_ns;       /* more was erased than the rings hold */
};

/* An erasure of this server's that waits to be published. */
struct published {
    struct published *next;
    struct erasure e;
    struct sha256 keys[];
};

struct remote_fetch {
    struct remote_fetch *next;
    uint64_t epoch; /* remote.epoch at its beginning */
    struct remote *r;
    struct remote_want want;
    int64_t t_begin;
    atomic_llong t_heard;
    atomic_bool is_cancelled;
    struct remote_fetched out;
    struct sha256 keys[];
};

struct remote {
    struct remote_opts o;
    struct remote_url url;
    struct tls *tls; /* NULL: none */
    int stop_fd;     /* readable when both threads are to end */
    pthread_t reader, writer;
    bool has_reader, has_writer;
    struct link read_link, write_link;
    struct remote_pace pace; /* the reader's */

    pthread_mutex_t lock;
    pthread_cond_t for_reader, for_writer;
    pthread_cond_t drained; /* the writer has settled a batch, or has failed */
    bool quit;
    struct remote_fetch *fetches; /* that wait, oldest first */
    struct offer *offers;         /* [MAX_OFFERS], a ring: n_offers from first_offer on */
    uint32_t first_offer, n_offers;
    struct remote_stats stats;
    uint64_t
        epoch; /* erasures that have begun here: fetches from before store nothing more */
    int n_erasing;        /* that have begun and not ended */
    struct sha256 *taken; /* [n_taken]: chunks that the store has taken away meanwhile */
    int n_taken;
    struct published *publish; /* oldest first */
    struct bans bans;
    bool is_current; /* all erasures of others were heard of, once since open */

    pthread_mutex_t erase_lock, append_lock;
    void (*on_erased)(void *arg); /* under erase_lock */
    void *on_erased_arg;

    /* The writer's: */
    uint64_t server; /* a random number: this process */
    uint64_t n_seen; /* entries of the stream of erasures, from its very first on */
    char seen_id[STREAM_ID_BYTES]; /* of the last of them */
    bool has_place;                /* this server has read the stream to its end once */
    bool
        skips; /* the store was empty: entries that are there at first concern nobody here */
    char *place_path; /* file in which both survive a restart; NULL: they do not */
    int64_t t_polled;
};

/* --- remote_link.c --- */
/* Whether the link may be used: it is open, or could be opened within timeout_ns.  A
 * link that rests is not opened. */
bool link_ready(struct link *l, int64_t timeout_ns);
/* It has failed: it is closed, and rests. */
void link_fail(struct link *l, const struct err *why);
/* It is closed without blame: answers that nobody wants are in flight. */
void link_drop(struct link *l);
/* The remote has done what it was asked for. */
void link_praise(struct link *l);
/* Nanoseconds until a link that is not open may be opened; 0: now. */
int64_t link_rest_ns(const struct link *l);

/* --- remote.c --- */
void remote_put_offer(struct remote *r, const struct offer *o);
/* [lock] Waits for news, or until the time has passed. */
void remote_wait(struct remote *r, pthread_cond_t *c, int64_t ns);

/* --- remote_erase.c --- */
void remote_erase_init(struct remote *r);
void remote_erase_deinit(struct remote *r);
/* [append_lock] Whether a chunk that a fetch has brought may be stored: nothing was erased
 * since it began, nor this chunk lately. */
bool remote_may_store(struct remote *r, const struct remote_fetch *f,
                      const struct sha256 *key);
/* Around an erasure in the store.  erase_lock is held in between. */
void remote_erase_enter(struct remote *r);
void remote_erase_leave(struct remote *r);
/* [lock] What the erasure names is not fetched for a while. */
void remote_ban(struct remote *r, const struct erasure *e);
/* One command of the writer's.  An answer of another kind is an error. */
int remote_ask(struct remote *r, const struct redis_arg *args, int n_args,
               enum redis_kind kind, struct redis_answer *a, struct err *err);
int remote_unlink_keys(struct remote *r, const struct sha256 *keys, int n,
                       struct redis_answer *a, struct err *err);
int remote_publish_all(struct remote *r, struct redis_answer *a, struct err *err);

/* --- remote_follow.c --- */
/* is_empty: the store has no chunk. */
void remote_follow_init(struct remote *r, bool is_empty);
/* [lock] Nanoseconds until the writer has to run the next one; 0: now. */
int64_t remote_erasures_due_ns(const struct remote *r);
/* Publishes what was erased here, and does what others have erased.  False where
 * the link was closed. */
bool remote_erasures_run(struct remote *r);

/* --- the threads --- */
void *remote_reader_main(void *remote);
void *remote_writer_main(void *remote);

#endif
