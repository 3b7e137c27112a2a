/* remote_write.c - the writer's thread: takes offers to the remote.
 *
 *     STRLEN of up to ROUND_OFFERS keys   chunks that the remote has are not written again
 *     parcel_read, SET                    one chunk after the other: memory for only one chunk
 *
 * An offer leaves the queue when the remote has answered. If the connection fails, the offer stays
 * in the queue until the remote is back. If the remote refuses the chunk because it is full, the
 * offer is dropped, and the writer rests. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/minmax.h"
#include "store/remote/remote_impl.h"

/* Number of connection failures after which a chunk is dropped: it may be their cause. */
enum { MOST_TRIES = 3 };
enum { ROUND_OFFERS = 64, READS_IN_FLIGHT = 16, WRITER_NICE = 10 };

/* The oldest offers, which are settled together. */
struct round {
    struct remote *r;
    struct store_reader **reader;
    struct parcel *parcel, *sealed; /* the chunk, and the value if it is encrypted */
    struct redis_answer answer;
    struct offer offer[ROUND_OFFERS];
    bool is_there[ROUND_OFFERS];
    int n, n_done;
    /* the first n_done offers are settled, and the next one is being written */
    bool writes;
    struct err err; /* code != 0: the connection has failed, or the remote has refused */
};

/* Adds n to one of the statistics. Takes lock. */
static void count(struct remote *r, uint64_t *what, uint64_t n)
{
    pthread_mutex_lock(&r->lock);
    *what += n;
    pthread_mutex_unlock(&r->lock);
}

/* --- one offer -------------------------------------------------------------------------------- */

/* Sends a command and waits for its answer. Returns false if the connection failed. */
static bool ask(struct round *b, const struct redis_arg *args, int n_args)
{
    return cluster_ask(b->r->write_link.cluster, args, n_args, b->r->o.stuck_ns, &b->answer,
                       &b->err) == 0;
}

static bool remove_value(struct round *b, const struct offer *o)
{
    char name[NAME_BYTES];
    name_chunk(&b->r->names, &o->key, name);
    const struct redis_arg args[] = {REDIS_TEXT("UNLINK"), REDIS_TEXT(name)};
    return ask(b, args, 2);
}

/* Reads the chunk from the store. Returns false if the store does not have it or cannot read it. */
static bool read_chunk(struct round *b, const struct offer *o)
{
    struct remote *r = b->r;
    struct err err = {0};
    int rc = *b->reader == NULL
                 ? store_reader_open(r->o.store, READS_IN_FLIGHT, NULL, 0, b->reader, &err)
                 : 0;
    if (rc == 0)
        rc = parcel_read(r->o.store, *b->reader, &o->key, b->parcel, &err);
    /* the disk of the store has failed */
    if (rc != 0 && rc != ERR_NOT_FOUND && rc != ERR_CORRUPT) {
        store_reader_close(*b->reader);
        *b->reader = NULL;
    }
    if (rc != 0)
        log_debug("a chunk is not written to the remote: %s", err.msg);
    return rc == 0;
}

/* Encrypts the chunk that was read. Returns false without memory. */
static bool seal_chunk(struct round *b, const struct offer *o)
{
    struct chunk_header h;
    const struct parcel *p = b->parcel;
    const struct names *names = &b->r->names;
    if (parcel_reserve(b->sealed, p->n_bytes + VALUE_TAIL, NULL) != 0 ||
        chunk_header_decode(p->bytes, &h, NULL) != 0)
        return false;
    value_seal(names, o->key.b, sizeof o->key.b, p->bytes, p->n_bytes, b->sealed->bytes);
    put_u64(b->sealed->bytes + p->n_bytes + SEAL_BYTES, name_owner(names, h.owner));
    return true;
}

/* Writes a chunk to the remote. Returns false if the remote has failed or refused. A chunk that the
 * store no longer has is left out. */
static bool write_chunk(struct round *b, const struct offer *o)
{
    struct remote *r = b->r;
    char name[NAME_BYTES], until[32];
    uint32_t ttl_s = remote_ttl_s(r, o->ttl_s);
    const struct parcel *value = r->names.seal != NULL ? b->sealed : b->parcel;
    if (!read_chunk(b, o) || (r->names.seal != NULL && !seal_chunk(b, o))) {
        count(r, &r->stats.n_gone, 1);
        return true;
    }
    snprintf(until, sizeof until, "%" PRId64, remote_lease_until_ms(r, ttl_s));
    name_chunk(&b->r->names, &o->key, name);
    const struct redis_arg args[] = {REDIS_TEXT("SET"),
                                     REDIS_TEXT(name),
                                     {value->bytes, value->n_bytes},
                                     REDIS_TEXT("PXAT"),
                                     REDIS_TEXT(until)};
    if (!ask(b, args, 5))
        return false;
    if (b->answer.kind == REDIS_REFUSED) {
        count(r, &r->stats.n_refused, 1);
        b->n_done++; /* the offer is dropped */
        (void)remote_refused(&b->answer, &b->err);
        return false;
    }
    remote_lease_add(r, &o->key, ttl_s);
    pthread_mutex_lock(&r->lock);
    r->stats.n_written++;
    r->stats.written_bytes += value->n_bytes;
    pthread_mutex_unlock(&r->lock);
    return true;
}

/* --- a batch ---------------------------------------------------------------------------------- */

/* Asks which of the chunks the remote has. */
static bool look(struct round *b)
{
    struct cluster *cluster = b->r->write_link.cluster;
    char name[NAME_BYTES];
    for (int i = 0; i < b->n; i++) {
        name_chunk(&b->r->names, &b->offer[i].key, name);
        const struct redis_arg args[] = {REDIS_TEXT("STRLEN"), REDIS_TEXT(name)};
        if (cluster_command(cluster, args, 2, clock_now_ns() + b->r->o.stuck_ns, &b->err) !=
            0)
            return false;
    }
    for (int i = 0; i < b->n; i++) {
        if (cluster_receive(cluster, b->r->o.stuck_ns, &b->answer, &b->err) != 0)
            return false;
        if (b->answer.kind == REDIS_REFUSED) {
            (void)remote_refused(&b->answer, &b->err);
            return false;
        }
        b->is_there[i] = b->answer.kind == REDIS_NUMBER && b->answer.number > 0;
    }
    return true;
}

static bool is_erasure_due(struct remote *r)
{
    pthread_mutex_lock(&r->lock);
    bool is_due = remote_erasures_due_ns(r) == 0;
    pthread_mutex_unlock(&r->lock);
    return is_due;
}

/* Settles the offers until all are settled, an erasure is due, or the remote fails or refuses. */
static void work(struct round *b)
{
    struct remote *r = b->r;
    if (!look(b))
        return;
    b->writes = true;
    for (; b->n_done < b->n && !is_erasure_due(r); b->n_done++) {
        const struct offer *o = &b->offer[b->n_done];
        bool known = b->is_there[b->n_done] && !o->removes;
        /* another server may have written the chunk, and may end before it confirms the chunk */
        if (known) {
            remote_lease_add(r, &o->key, remote_ttl_s(r, o->ttl_s));
            count(r, &r->stats.n_known, 1);
        } else if (o->removes ? !remove_value(b, o) : !write_chunk(b, o)) {
            return;
        }
    }
}

/* [lock] Copies the oldest offers; they stay in the queue. */
static void take(struct remote *r, struct round *b)
{
    b->n = (int)MIN(r->n_offers, ROUND_OFFERS);
    for (int i = 0; i < b->n; i++)
        b->offer[i] = r->offers[(r->first_offer + (uint32_t)i) % MAX_OFFERS];
}

/* Settles the oldest offers and takes the settled ones off the queue. A chunk at which the link
 * failed several times in a row is dropped, since it may be the cause. parcels: memory for a chunk,
 * and for its encrypted value. */
static void run_round(struct remote *r, struct store_reader **reader,
                      struct parcel parcels[2])
{
    struct round b = {
        .r = r, .reader = reader, .parcel = &parcels[0], .sealed = &parcels[1]};
    pthread_mutex_lock(&r->lock);
    take(r, &b);
    pthread_mutex_unlock(&r->lock);
    work(&b);
    if (b.err.code != ERR_CANCELLED)
        remote_writer_tell(r, WRITER_CHUNKS, b.err.code != 0 ? &b.err : NULL);
    if (b.err.code != 0) {
        link_fail(&r->write_link, &b.err);
    } else {
        link_praise(&r->write_link);
        if (cluster_is_old(r->write_link.cluster))
            link_drop(&r->write_link);
    }
    bool is_poison = b.err.code != 0 && b.writes &&
                     r->write_link.n_failures >= MOST_TRIES && b.n_done < b.n;
    b.n_done += is_poison;
    pthread_mutex_lock(&r->lock);
    r->stats.n_dropped += is_poison;
    r->first_offer = (r->first_offer + (uint32_t)b.n_done) % MAX_OFFERS;
    r->n_offers -= (uint32_t)b.n_done;
    pthread_cond_broadcast(&r->drained);
    pthread_mutex_unlock(&r->lock);
    redis_answer_deinit(&b.answer);
}

/* --- the thread ------------------------------------------------------------------------------- */

void *remote_writer_main(void *remote)
{
    struct remote *r = remote;
    struct link *l = &r->write_link;
    struct store_reader *reader = NULL;
    struct parcel parcels[2] = {{0}};
    /* The writer's thread gets a lower priority than decodes. */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), WRITER_NICE);
    pthread_mutex_lock(&r->lock);
    while (!r->quit) {
        int64_t rest_ns = l->cluster == NULL ? link_rest_ns(l) : 0;
        int64_t due_ns = remote_erasures_due_ns(r);
        if (rest_ns > 0 || (r->n_offers == 0 && due_ns > 0)) {
            remote_wait(r, &r->for_writer, rest_ns > 0 ? rest_ns : due_ns);
            continue;
        }
        bool has_offers = r->n_offers > 0;
        pthread_mutex_unlock(&r->lock);
        bool ready = link_ready(l, r->o.stuck_ns);
        if (ready && due_ns == 0)
            ready = remote_erasures_run(r);
        if (ready && has_offers && r->read_ms != 0)
            run_round(r, &reader, parcels);
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    store_reader_close(reader);
    parcel_deinit(&parcels[0]);
    parcel_deinit(&parcels[1]);
    return NULL;
}
