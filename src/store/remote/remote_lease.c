/* remote_lease.c - a chunk in the remote lives for LEASE_MS until its server confirms it.
 *
 * Another server may erase a chunk while this one writes it, and then remove it from the remote
 * before the write arrives: the server was suspended, or the network has delayed the command. So
 * a written chunk expires unless its server reads the stream of erasures after the write:
 *
 *     TIME (t), XRANGE to the end     this server knows all erasures before t
 *     SET .. PXAT t + LEASE_MS        a write that comes later has expired when it comes
 *     XRANGE to the end               no erasure names the chunk ...
 *     EXPIRE .. ttl                   ... so it gets its time to live
 *
 * Every server that has read an erasure fetches none of its chunks for BAN_NS, which is longer than
 * LEASE_MS. So no server fetches a chunk that was written late, however late the write comes. Only
 * the remote's clock decides about leases: in a cluster, the clock of its slowest server.
 *
 * A fetch is a use and prolongs a chunk's life. The prolonged life is confirmed in the same way. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/minmax.h"
#include "store/remote/remote_impl.h"

enum { COMMANDS_AT_ONCE = 128 };

void remote_lease_add(struct remote *r, const struct sha256 *key, uint32_t ttl_s)
{
    pthread_mutex_lock(&r->lock);
    /* a chunk whose lease finds no room is not confirmed, so it expires */
    if (r->n_leases < MAX_LEASES) {
        r->leases[r->n_leases++] = (struct lease){.key = *key, .ttl_s = ttl_s};
        pthread_cond_signal(&r->for_writer);
    }
    pthread_mutex_unlock(&r->lock);
}

uint32_t remote_n_leases(struct remote *r)
{
    pthread_mutex_lock(&r->lock);
    uint32_t n = r->n_leases;
    pthread_mutex_unlock(&r->lock);
    return n;
}

uint32_t remote_ttl_s(const struct remote *r, uint32_t own_s)
{
    return own_s > 0 && own_s < r->o.ttl_s ? own_s : r->o.ttl_s;
}

int64_t remote_lease_until_ms(const struct remote *r, uint32_t ttl_s)
{
    int64_t ttl_ms = (int64_t)ttl_s * 1000;
    return r->read_ms + MIN(ttl_ms, LEASE_MS);
}

/* --- the remote's clock ----------------------------------------------------------------------- */

/* Parses the answer to TIME: seconds and microseconds, as texts. */
static int time_of(const struct redis_answer *a, int64_t *ms, struct err *err)
{
    const char *part;
    char text[2][24] = {{0}};
    size_t at = 0, n;
    int i = 0;
    for (; i < 2 && redis_next(a, &at, &part, &n) && n < sizeof text[i]; i++)
        memcpy(text[i], part, n);
    int64_t s = i == 2 ? strtoll(text[0], NULL, 10) : 0;
    if (a->kind != REDIS_LIST || s <= 0 || s > INT64_MAX / 2000)
        return remote_refused(a, err);
    *ms = s * 1000 + strtoll(text[1], NULL, 10) / 1000;
    return 0;
}

int remote_ask_time(struct remote *r, int64_t *ms, struct redis_answer *a, struct err *err)
{
    struct cluster *c = r->write_link.cluster;
    int rc = 0, n = cluster_n_nodes(c);
    *ms = INT64_MAX;
    for (int i = 0; rc == 0 && i < n; i++) {
        int64_t one_ms = 0;
        rc = cluster_command_to(c, i, &REDIS_TEXT("TIME"), 1,
                                clock_now_ns() + r->o.stuck_ns, err);
        if (rc == 0)
            rc = cluster_receive(c, r->o.stuck_ns, a, err);
        if (rc == 0)
            rc = time_of(a, &one_ms, err);
        *ms = one_ms < *ms ? one_ms : *ms;
    }
    return rc;
}

/* --- confirming ------------------------------------------------------------------------------- */

/* Sends EXPIRE, or UNLINK if the chunk may have been erased. After an erasure, every chunk that the
 * store no longer has may have been erased. */
static int settle_one(struct remote *r, const struct lease *l, struct err *err)
{
    char name[NAME_BYTES], ttl[16];
    bool ends = r->has_erased && !store_pin(r->o.store, &l->key, NULL);
    name_chunk(&r->names, &l->key, name);
    snprintf(ttl, sizeof ttl, "%" PRIu32, l->ttl_s);
    const struct redis_arg args[] = {ends ? REDIS_TEXT("UNLINK") : REDIS_TEXT("EXPIRE"),
                                     REDIS_TEXT(name), REDIS_TEXT(ttl)};
    return cluster_command(r->write_link.cluster, args, ends ? 2 : 3,
                           clock_now_ns() + r->o.stuck_ns, err);
}

static int settle_some(struct remote *r, const struct lease *leases, int n,
                       struct redis_answer *a, struct err *err)
{
    int rc = 0;
    for (int i = 0; rc == 0 && i < n; i++)
        rc = settle_one(r, &leases[i], err);
    for (int i = 0; rc == 0 && i < n; i++) {
        rc = cluster_receive(r->write_link.cluster, r->o.stuck_ns, a, err);
        if (rc == 0 && a->kind != REDIS_NUMBER)
            rc = remote_refused(a, err);
    }
    return rc;
}

int remote_leases_settle(struct remote *r, uint32_t n, struct redis_answer *a,
                         struct err *err)
{
    struct lease some[COMMANDS_AT_ONCE];
    int rc = 0;
    while (rc == 0 && n > 0) {
        uint32_t now = MIN(n, COMMANDS_AT_ONCE);
        pthread_mutex_lock(&r->lock);
        memcpy(some, r->leases, now * sizeof some[0]);
        pthread_mutex_unlock(&r->lock);
        rc = settle_some(r, some, (int)now, a, err);
        if (rc != 0)
            break;
        pthread_mutex_lock(&r->lock);
        r->n_leases -= now;
        memmove(r->leases, r->leases + now, r->n_leases * sizeof r->leases[0]);
        pthread_cond_broadcast(&r->drained);
        pthread_mutex_unlock(&r->lock);
        n -= now;
    }
    if (rc == 0)
        r->has_erased = false;
    return rc;
}
