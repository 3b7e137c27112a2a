/* fetch.c - reads ahead: state that waiting requests need goes from the disk to DRAM before they
 * are served (AttentionStore, section 3.3.1).
 *
 *     store_fetch_want       a request waits: its chunks join the list, ordered by turn
 *     store_fetch_step       starts, continues or ends the fetch of one chunk; never waits
 *     store_fetch_want_end   the request waits no longer, or was cancelled
 *
 * store/read_ahead.h chooses the next fetch. Chunks whose state the caller holds in memory of its
 * own (store_tell_held) need none. The restore of a request whose fetch has failed finds out the
 * cause.
 *
 * Every record's checksum is compared before the copy can be found. A chunk that fails is
 * condemned, and leaves the list. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "io/io.h"
#include "store/store_impl.h"

enum {
    FETCH_MIN_CHUNKS = 4, /* 256 tokens: fewer are not worth a request to the disk */
    MAX_WANTS = 1024,
    PIECES = 4, /* pieces in flight; a restore may have to wait for them */
};
#define PIECE_BYTES ((uint64_t)1 << 20)

/* Chunks that a waiting request needs. */
struct store_want {
    /* must be first, because the list's wants are converted to struct store_want */
    struct read_ahead_want ahead;
    const void *id;
    /* bytes of the copies that were missing when the request was announced */
    uint64_t n_bytes;
    struct sha256 keys[];
};

struct store_fetcher {
    struct store *store;
    struct io_queue *queue;
    /* Ends waits early when it rings; NULL: waits do not end early. */
    struct io_alarm *alarm;
    struct store_hit hit; /* the chunk that is being fetched; hit.impl NULL: none */
    bool waits_for_room;  /* the last step found no room for the next fetch */
    const void *id;       /* id of the want that the fetch serves */
    struct extent *x;
    struct tier_copy *copy;
    /* bytes of the copy: read, requested from the disk, and in all */
    uint64_t done_bytes, asked_bytes, all_bytes;
    int64_t t_asked; /* time of the last request to the disk, or of its last answer */
    int status;
    struct io_req reqs[PIECES];
    bool busy[PIECES];
};

/* --- the waiting requests' wants -------------------------------------------------------------- */

/* [lock] Returns a request's want, or NULL. */
static struct store_want *want_find(const struct store *s, const void *id)
{
    struct read_ahead_want *w = s->wants.first;
    while (w != NULL && ((struct store_want *)w)->id != id)
        w = w->next;
    return (struct store_want *)w;
}

/* [lock] Removes and frees a request's want. */
static void want_remove(struct store *s, const void *id)
{
    struct store_want *w = want_find(s, id);
    if (w == NULL)
        return;
    read_ahead_remove(&s->wants, &w->ahead);
    free(w);
}

/* [lock] Returns the first LIVE extent of a node that has no copy in DRAM, or NULL. */
static struct extent *extent_alone(const struct chunk_node *n)
{
    struct extent *x = n->extents;
    while (x != NULL && (x->state != EXTENT_LIVE || x->copy != NULL))
        x = x->next;
    return x;
}

/* [lock] Returns the node of a key if its chunk is stored, else NULL. */
static struct chunk_node *node_of(const struct store *s, const struct sha256 *key)
{
    struct chunk_node *n = catalog_find(&s->catalog, key);
    return n == NULL || n->n_live == 0 || n->doomed ? NULL : n;
}

/* [lock] Returns the bytes of the copies that the keys' chunks lack, up to the first key that is
 * not stored. */
static uint64_t bytes_to_copy(const struct store *s, const struct sha256 *keys, int n)
{
    uint64_t n_bytes = 0;
    for (int i = 0; i < n; i++) {
        const struct chunk_node *node = node_of(s, &keys[i]);
        if (node == NULL)
            break;
        for (const struct extent *x = node->extents; x != NULL; x = x->next)
            if (x->state == EXTENT_LIVE && x->copy == NULL)
                n_bytes += extent_bytes(x) - CHUNK_HEADER_BYTES;
    }
    return n_bytes;
}

/* [lock] Returns the bytes of all copies that waiting requests still need. */
static uint64_t bytes_promised(const struct store *s)
{
    uint64_t n_bytes = 0;
    for (const struct read_ahead_want *w = s->wants.first; w != NULL; w = w->next)
        n_bytes += ((const struct store_want *)w)->n_bytes / (uint64_t)w->n *
                   (uint64_t)(w->n - w->at);
    return n_bytes;
}

double store_fetch_price_s(struct store *s, const struct sha256 *keys, int n)
{
    if (s->tier == NULL)
        return 0;
    pthread_mutex_lock(&s->lock);
    double price_s = tier_price_s(s->tier, bytes_to_copy(s, keys, n), bytes_promised(s));
    pthread_mutex_unlock(&s->lock);
    return price_s;
}

void store_fetch_want(struct store *s, const void *id, const struct sha256 *keys, int n,
                      uint64_t turn)
{
    if (s->tier == NULL)
        return;
    struct store_want *w = n >= FETCH_MIN_CHUNKS
                               ? mem_try(sizeof *w + (size_t)n * sizeof w->keys[0])
                               : NULL;
    if (w != NULL) {
        *w = (struct store_want){.ahead = {.turn = turn, .n = n}, .id = id};
        memcpy(w->keys, keys, (size_t)n * sizeof w->keys[0]);
    }
    pthread_mutex_lock(&s->lock);
    want_remove(s, id);
    if (w != NULL && s->wants.n < MAX_WANTS) {
        w->n_bytes = bytes_to_copy(s, keys, n);
        read_ahead_add(&s->wants, &w->ahead);
        w = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    free(w);
}

void store_fetch_want_end(struct store *s, const void *id)
{
    pthread_mutex_lock(&s->lock);
    want_remove(s, id);
    pthread_mutex_unlock(&s->lock);
}

bool store_tell_held(struct store *s, const struct store_held *changes, int n)
{
    if (s->tier == NULL)
        return true;
    if (pthread_mutex_trylock(&s->lock) != 0)
        return false;
    for (int i = 0; i < n; i++)
        tier_hold(s->tier, changes[i].name, changes[i].is_held,
                  catalog_named(&s->catalog, changes[i].name));
    pthread_mutex_unlock(&s->lock);
    return true;
}

void store_free_wants(struct store *s)
{
    while (s->wants.first != NULL)
        want_remove(s, ((struct store_want *)s->wants.first)->id);
}

/* --- the next fetch --------------------------------------------------------------------------- */

static const struct sha256 *key_of(const struct read_ahead_want *w, int i)
{
    return &((const struct store_want *)w)->keys[i];
}

/* [lock] Returns where the state of the want's chunk i is. */
static enum read_ahead_place chunk_place(void *arg, const struct read_ahead_want *w, int i)
{
    const struct store *s = arg;
    const struct chunk_node *n = node_of(s, key_of(w, i));
    if (n == NULL)
        return READ_AHEAD_NOWHERE;
    return extent_alone(n) == NULL || tier_is_held(s->tier, n) ? READ_AHEAD_HERE
                                                               : READ_AHEAD_DISK;
}

/* [lock] Returns the room that the DRAM tier has for the next copy of the want's chunk i. */
static struct read_ahead_room chunk_room(void *arg, const struct read_ahead_want *w, int i)
{
    const struct store *s = arg;
    return tier_room(s->tier, extent_bytes(extent_alone(node_of(s, key_of(w, i)))));
}

/* [lock] Chooses the next chunk to fetch, takes room for it and pins it. Returns false if there is
 * none, or if it must wait for room. Only in the second case f->waits_for_room is set. */
static bool fetch_choose(struct store_fetcher *f)
{
    struct store *s = f->store;
    const struct read_ahead_view v = {s, chunk_place, chunk_room, FETCH_MIN_CHUNKS};
    struct read_ahead_want *w;
    int at;
    enum read_ahead_next next = read_ahead_choose(&s->wants, &v, &w, &at);
    f->waits_for_room = next == READ_AHEAD_NO_ROOM;
    if (next != READ_AHEAD_FETCH)
        return false;
    struct chunk_node *n = node_of(s, key_of(w, at));
    struct extent *x = extent_alone(n);
    f->waits_for_room = !tier_has_room(s->tier, extent_bytes(x));
    if (f->waits_for_room) /* the tier's thread makes room meanwhile */
        return false;
    struct tier_copy *copy = tier_take(s->tier, extent_bytes(x));
    CHECK(copy != NULL);
    read_ahead_begin(w, at);
    f->id = ((const struct store_want *)w)->id;
    f->x = x;
    f->copy = x->copy = copy;
    f->hit = store_pin_node(s, n);
    return true;
}

/* --- one fetch -------------------------------------------------------------------------------- */

static void pieces_submit(struct store_fetcher *f)
{
    const struct store *s = f->store;
    struct io_file *file = s->media->ops->file(s->media, f->x->device, f->x->segment);
    for (int i = 0; i < PIECES && f->asked_bytes < f->all_bytes && f->status == 0; i++) {
        if (f->busy[i])
            continue;
        uint64_t left = f->all_bytes - f->asked_bytes;
        uint64_t offset = CHUNK_HEADER_BYTES + f->asked_bytes;
        struct io_req *req = &f->reqs[i];
        *req = (struct io_req){.file = file,
                               .op = IO_READ,
                               .buf = tier_at(s->tier, f->copy, offset),
                               .length = MIN(left, PIECE_BYTES),
                               .offset = f->x->offset + offset};
        f->busy[i] = true;
        f->asked_bytes += req->length;
        io_queue_submit(f->queue, &req, 1);
    }
}

/* Collects complete pieces without waiting. Returns false if there were none. A broken queue ends
 * the fetch: f->status gets its error, and no piece counts as in flight. */
static bool pieces_collect(struct store_fetcher *f)
{
    struct io_req *done[PIECES];
    unsigned n;
    int rc = io_queue_wait(f->queue, 0, PIECES, 0, done, &n, NULL);
    if (rc != 0) { /* closing the queue waits for pieces in flight */
        io_queue_close(f->queue);
        f->queue = NULL;
        f->status = rc;
        f->done_bytes = f->asked_bytes;
        memset(f->busy, 0, sizeof f->busy);
        return true;
    }
    for (unsigned i = 0; i < n; i++) {
        f->busy[done[i] - f->reqs] = false;
        f->done_bytes += done[i]->length;
        if (done[i]->result != 0 && f->status == 0)
            f->status = done[i]->result;
    }
    return n > 0;
}

/* Returns whether the fetched bytes are those that were written. */
static bool is_good(const struct store_fetcher *f)
{
    const struct extent *x = f->x;
    for (int i = 0; i < x->n_records; i++) {
        const struct chunk_record *r = &x->records[i];
        const uint8_t *bytes = tier_at(f->store->tier, f->copy, r->offset);
        if (checksum64(bytes, r->n_bytes) != r->checksum)
            return false;
    }
    return true;
}

/* [lock] Moves the fetched chunk's want on to its next chunk if stays is true; otherwise ends the
 * want's fetches. */
static void want_settle(struct store_fetcher *f, bool stays)
{
    struct store_want *w = want_find(f->store, f->id);
    if (w == NULL)
        return;
    /* The request may have been announced anew meanwhile. */
    bool is_there = w->ahead.at < w->ahead.n &&
                    memcmp(&w->keys[w->ahead.at], &f->hit.key, sizeof f->hit.key) == 0;
    read_ahead_end(&w->ahead, stays, is_there && extent_alone(f->hit.impl) == NULL);
}

/* Ends a fetch of which no piece is in flight. The tier keeps the copy if it is good; a chunk whose
 * checksum does not hold is condemned. */
static void fetch_end(struct store_fetcher *f)
{
    struct store *s = f->store;
    bool is_read = f->status == 0, is_damaged = is_read && !is_good(f);
    pthread_mutex_lock(&s->lock);
    bool stays = is_read && !is_damaged && f->x->copy == f->copy;
    if (stays)
        tier_enter(s->tier, f->x, TIER_PROMOTED);
    else /* the fetch failed, or its chunk was erased or condemned meanwhile */
        tier_abandon(s->tier, f->x, f->copy);
    if (is_damaged) {
        atomic_fetch_add_explicit(&s->counts.n_checksum_failures, 1, memory_order_relaxed);
        store_condemn_node(s, f->hit.impl,
                           "its checksum does not hold (found while reading ahead)");
    }
    want_settle(f, stays);
    if (is_read)
        s->counts.read_bytes += f->all_bytes;
    else
        atomic_fetch_add_explicit(&s->counts.n_read_failures, 1, memory_order_relaxed);
    store_unpin(s, f->hit.impl);
    pthread_mutex_unlock(&s->lock);
    f->hit.impl = NULL;
}

static int queue_open(struct store_fetcher *f, struct err *err)
{
    int rc = io_queue_open(f->store->home.io, PIECES, &f->queue, err);
    if (rc == 0)
        io_queue_listen(f->queue, f->alarm);
    return rc;
}

/* Chooses a chunk and submits its first pieces. A chunk whose extents cannot be loaded ends its
 * fetch at once. */
static enum store_fetch fetch_begin(struct store_fetcher *f)
{
    struct store *s = f->store;
    struct err why = {0};
    if (f->queue == NULL && queue_open(f, &why) != 0)
        return STORE_FETCH_NONE;
    f->waits_for_room = false;
    pthread_mutex_lock(&s->lock);
    bool chosen = fetch_choose(f);
    pthread_mutex_unlock(&s->lock);
    if (!chosen)
        return f->waits_for_room ? STORE_FETCH_NO_ROOM : STORE_FETCH_NONE;
    f->status = store_load_node(s, f->hit.impl, &why);
    f->done_bytes = f->asked_bytes = 0;
    f->all_bytes = extent_bytes(f->x) - CHUNK_HEADER_BYTES;
    f->t_asked = clock_now_ns();
    if (f->status == 0)
        pieces_submit(f);
    else
        fetch_end(f);
    return STORE_FETCH_WORKED;
}

enum store_fetch store_fetch_step(struct store_fetcher *f)
{
    if (f->hit.impl == NULL)
        return fetch_begin(f);
    bool any = pieces_collect(f);
    int64_t now = clock_now_ns();
    if (any)
        f->t_asked = now;
    if (!any && now - f->t_asked > f->store->home.stuck_ns) {
        io_queue_cancel(f->queue); /* pieces that come back now have failed */
        f->t_asked = now;
    }
    if (f->status == 0 && f->asked_bytes < f->all_bytes)
        pieces_submit(f);
    if (f->done_bytes < f->asked_bytes)
        return any ? STORE_FETCH_WORKED : STORE_FETCH_IN_FLIGHT;
    fetch_end(f);
    return STORE_FETCH_WORKED;
}

bool store_fetch_in_flight(const struct store_fetcher *f)
{
    return f->hit.impl != NULL;
}

bool store_fetch_lacks_room(const struct store_fetcher *f)
{
    return f->waits_for_room;
}

void store_fetch_wait(struct store_fetcher *f, int64_t timeout_ns)
{
    bool unused;
    if (f->queue != NULL)
        (void)io_queue_await(f->queue, timeout_ns, &unused, NULL);
}

void store_fetch_listen(struct store_fetcher *f, struct io_alarm *alarm)
{
    f->alarm = alarm;
    if (f->queue != NULL)
        io_queue_listen(f->queue, alarm);
}

/* --- life cycle ------------------------------------------------------------------------------- */

int store_fetcher_open(struct store *s, struct store_fetcher **out, struct err *err)
{
    *out = NULL;
    if (s->tier == NULL)
        return 0;
    struct store_fetcher *f = xcalloc(1, sizeof *f);
    f->store = s;
    int rc = queue_open(f, err);
    if (rc != 0) {
        free(f);
        return rc;
    }
    *out = f;
    return 0;
}

void store_fetcher_close(struct store_fetcher *f)
{
    if (f == NULL)
        return;
    if (f->hit.impl != NULL) {
        struct io_req *done[PIECES];
        unsigned n = 1;
        io_queue_cancel(f->queue);
        while (n > 0 && io_queue_outstanding(f->queue) > 0 &&
               io_queue_wait(f->queue, 1, PIECES, -1, done, &n, NULL) == 0) {
        }
        f->status = -ECANCELED;
        fetch_end(f);
    }
    io_queue_close(f->queue);
    free(f);
}
