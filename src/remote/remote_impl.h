/* remote_impl.h - what the files of the remote share; private to src/remote.
 *
 *   remote.c        life, the queue of offers, statistics
 *   remote_link.c   a connection that comes back by itself, with rests in between
 *   remote_fetch.c  the reader's thread
 *   remote_write.c  the writer's thread
 *
 * Locks: remote.lock protects everything but the links, which belong to their threads.  Nothing is sent,
 * received, read or written under it. */
#ifndef REMOTE_REMOTE_IMPL_H
#define REMOTE_REMOTE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "remote/names.h"
#include "remote/redis.h"
#include "remote/remote.h"
#include "store/parcel.h"

enum {
    MAX_OFFERS = 65536, /* 3 MiB */
    LINK_OPEN_S = 5,    /* for connecting, where nobody waits for it */
};

/* A connection of one thread. */
struct link {
    struct remote *r;
    bool tells;          /* the remote's state is what this link says */
    struct redis *redis; /* NULL: there is none */
    int n_failures;      /* in a row; what the remote has answered ends the row */
    int64_t rest_until_ns;
};

/* What the writer is to do with a chunk. */
struct offer {
    struct sha256 key;
    uint32_t ttl_s;
    bool removes; /* what the remote has under this name is wrong */
};

struct remote_fetch {
    struct remote_fetch *next;
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
    int stop_fd; /* readable when both threads are to end */
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
};

/* --- remote_link.c --- */
/* Whether the link may be used: it is open, or could be opened within timeout_ns.  A link that rests is not
 * opened. */
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

/* --- the threads --- */
void *remote_reader_main(void *remote);
void *remote_writer_main(void *remote);

#endif
