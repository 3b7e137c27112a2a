/* weights_stream.c - see weights_stream.h.
 *
 * One lock protects everything but the reader and the slots' memory.  The reader belongs to the
 * thread. A slot's memory belongs to the reader while the slot is READING, and nobody writes to it
 * while it is lent. */
#include "model/weights_stream.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "base/thread.h"

enum { MAX_SLOTS = 32 };
/* How often a thread that waits for the disk checks for new requests. */
#define POLL_NS ((int64_t)50 * 1000000)

enum slot_state {
    SLOT_EMPTY,
    SLOT_READING,
    SLOT_READY,
    /* rc has the reason; a waiting acquire returns it, a later one tries again */
    SLOT_FAILED,
};

struct ring_slot {
    enum slot_state state;
    int layer; /* number of the slot's layer; valid unless the slot is EMPTY */
    int n_holders;
    int n_tries;
    int rc;
    bool was_wanted; /* a pass was waiting for the layer when it failed */
    struct buf mem;
    struct layer_weights lw;
    struct pack_job job;
};

struct weights_stream {
    struct weights_stream_opts o;
    int n_layers, n_streamed;
    int *layer_of; /* [n_streamed] the streamed layers, ascending */
    int *index_of; /* [n_layers] their indices in layer_of; -1: resident */
    int *n_wanted; /* [n_layers] number of waiting acquires */
    struct pack_reader reader;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t for_thread; /* signalled when a layer is wanted, or a slot may be free */
    pthread_cond_t for_users;  /* signalled when a slot has changed */
    struct ring_slot *slots[MAX_SLOTS];
    int n_slots, n_reading;
    int position;        /* index of the layer that was lent last */
    int64_t progress_ns; /* time at which bytes arrived last */
    /* Time at which the present reads began; 0: no reads are in flight. */
    int64_t busy_from;
    atomic_bool stopped; /* written under the lock */
    /* closing: the thread must end; cancels: it must cancel the reads in flight */
    bool closing, cancels;
    bool hangs; /* a wait for bytes timed out, and none have come since */
    int broken; /* the queue's own error: nothing will arrive any more */
    struct weights_stream_stats stats;
};

/* --- choosing the next layer ------------------------------------------------------------------ */

static struct ring_slot *slot_of(struct weights_stream *st, int layer)
{
    for (int i = 0; i < st->n_slots; i++)
        if (st->slots[i]->state != SLOT_EMPTY && st->slots[i]->layer == layer)
            return st->slots[i];
    return NULL;
}

/* Returns how many streamed layers from now this one is used: 1 for the next one, the largest
 * number for the one that was lent last. */
static int distance(const struct weights_stream *st, int layer)
{
    int d = st->index_of[layer] - st->position;
    return d <= 0 ? d + st->n_streamed : d;
}

/* Returns the layer to read next, or -1: a layer that an acquire waits for, else the next one in
 * the order of passes. */
static int next_layer(struct weights_stream *st, bool *is_wanted)
{
    *is_wanted = true;
    for (int i = 0; i < st->n_streamed; i++)
        if (st->n_wanted[st->layer_of[i]] > 0 && slot_of(st, st->layer_of[i]) == NULL)
            return st->layer_of[i];
    *is_wanted = false;
    for (int d = 1; d <= st->n_slots && d <= st->n_streamed; d++) {
        int l = st->layer_of[(st->position + d) % st->n_streamed];
        if (slot_of(st, l) == NULL)
            return l;
    }
    return -1;
}

/* Returns the slot into which `layer` is read: the one whose layer is used last, among slots that
 * are neither lent nor waited for.  NULL: no slot is free, or each of their layers is used before
 * `layer`.  The second reason does not count if `layer` is wanted now. */
static struct ring_slot *slot_for(struct weights_stream *st, int layer, bool is_wanted)
{
    struct ring_slot *best = NULL;
    int best_distance = is_wanted ? 0 : distance(st, layer);
    for (int i = 0; i < st->n_slots; i++) {
        struct ring_slot *s = st->slots[i];
        if (s->state == SLOT_EMPTY)
            return s;
        if (s->state == SLOT_READING || s->n_holders > 0 || st->n_wanted[s->layer] > 0)
            continue;
        if (distance(st, s->layer) > best_distance) {
            best = s;
            best_distance = distance(st, s->layer);
        }
    }
    return best;
}

/* --- slots ------------------------------------------------------------------------------------ */

static struct ring_slot *slot_add(struct weights_stream *st, struct err *err)
{
    struct ring_slot *s = xcalloc(1, sizeof *s);
    if (st->n_slots == MAX_SLOTS ||
        stage_alloc(st->o.shape->dev, 0, st->o.slot_bytes, &s->mem, err) != 0) {
        free(s);
        return NULL;
    }
    st->slots[st->n_slots++] = s;
    return s;
}

static void slot_free(struct weights_stream *st, struct ring_slot *s)
{
    buf_free(st->o.shape->dev, &s->mem);
    pack_job_deinit(&s->job);
    free(s);
}

static bool all_lent(const struct weights_stream *st)
{
    for (int i = 0; i < st->n_slots; i++)
        if (st->slots[i]->n_holders == 0)
            return false;
    return true;
}

/* Frees a slot beyond the ring's size (invariant 3). */
static void shrink(struct weights_stream *st)
{
    for (int i = st->n_slots - 1; i >= 0 && st->n_slots > st->o.n_slots; i--) {
        struct ring_slot *s = st->slots[i];
        if (s->n_holders > 0 || s->state == SLOT_READING ||
            (s->state != SLOT_EMPTY && st->n_wanted[s->layer] > 0))
            continue;
        st->slots[i] = st->slots[--st->n_slots];
        slot_free(st, s);
    }
}

/* --- the thread ------------------------------------------------------------------------------- */

static void begin_read(struct weights_stream *st, struct ring_slot *s)
{
    s->state = SLOT_READING;
    s->job.user = s;
    CHECK(
        pack_reader_begin(&st->reader, &s->job, pack_streamed_part(s->layer), s->mem.ptr));
    if (st->n_reading++ == 0)
        st->busy_from = clock_now_ns();
}

static void begin_reads(struct weights_stream *st)
{
    shrink(st);
    while (!st->stopped) {
        bool is_wanted;
        int l = next_layer(st, &is_wanted);
        struct ring_slot *s = l < 0 ? NULL : slot_for(st, l, is_wanted);
        if (s == NULL && l >= 0 && is_wanted && all_lent(st))
            s = slot_add(st, NULL);
        if (s == NULL)
            return;
        s->layer = l;
        s->n_tries = 0;
        begin_read(st, s);
    }
}

static void give_up(struct weights_stream *st, struct ring_slot *s)
{
    st->stats.n_failed++;
    snprintf(st->stats.fault, sizeof st->stats.fault, "%s", s->job.err.msg);
    log_warn("layer %d: %s", s->layer, s->job.err.msg);
    s->state = SLOT_FAILED;
    s->rc = s->job.rc;
    s->was_wanted = st->n_wanted[s->layer] > 0;
}

/* Ends a slot's read: the slot is READY, EMPTY after a cancel, read once more, or FAILED. */
static void end_read(struct weights_stream *st, struct ring_slot *s)
{
    int rc = s->job.rc;
    if (--st->n_reading == 0) {
        st->stats.read_ns += clock_now_ns() - st->busy_from;
        st->busy_from = 0;
    }
    if (rc == 0) {
        s->lw = st->o.w->layers[s->layer];
        image_bind(&st->o.images[pack_streamed_part(s->layer)], st->o.shape, &s->mem,
                   st->o.w, &s->lw);
        s->state = SLOT_READY;
    } else if (rc == -ECANCELED) {
        s->state = SLOT_EMPTY;
    } else if (s->n_tries++ == 0 && !st->stopped) {
        /* A second read repairs damage in transit, but not on the disk. */
        begin_read(st, s);
        return;
    } else {
        give_up(st, s);
    }
    pthread_cond_broadcast(&st->for_users);
}

/* [lock held on entry and return, released meanwhile] Waits at most POLL_NS for bytes, and ends the
 * read of a layer that has come. */
static void step(struct weights_stream *st)
{
    struct err err = {0};
    struct pack_job *done = NULL;
    unsigned n = 0;
    bool cancels = st->cancels;
    st->cancels = false;
    pthread_mutex_unlock(&st->lock);
    if (cancels)
        pack_reader_cancel(&st->reader);
    int rc = pack_reader_step(&st->reader, POLL_NS, &n, &done, &err);
    pthread_mutex_lock(&st->lock);
    st->stats.read_bytes = st->reader.n_bytes;
    st->stats.verify_ns = st->reader.verify_ns;
    if (n > 0) {
        st->progress_ns = clock_now_ns();
        st->hangs = false;
    }
    if (done != NULL)
        end_read(st, done->user);
    if (rc != 0) {
        log_warn("weights cannot be read any more: %s", err.msg);
        snprintf(st->stats.fault, sizeof st->stats.fault, "%s", err.msg);
        st->broken = rc;
        pthread_cond_broadcast(&st->for_users);
    }
}

static void *run(void *arg)
{
    struct weights_stream *st = arg;
    pthread_mutex_lock(&st->lock);
    while (!st->closing) {
        if (st->broken == 0)
            begin_reads(st);
        if (st->broken != 0 || st->n_reading == 0)
            pthread_cond_wait(&st->for_thread, &st->lock);
        else
            step(st);
    }
    pthread_mutex_unlock(&st->lock);
    return NULL;
}

/* --- the layer_source ------------------------------------------------------------------------- */

static void wait_until(struct weights_stream *st, int64_t ns)
{
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    pthread_cond_timedwait(&st->for_users, &st->lock, &t);
}

/* [lock] Waits until layer l is in a slot. Returns 0 with *out, or the code with which the pass
 * fails. */
static int wait_for(struct weights_stream *st, int l, struct ring_slot **out)
{
    int64_t t0 = clock_now_ns();
    for (;;) {
        struct ring_slot *s = slot_of(st, l);
        *out = s;
        if (st->stopped)
            return ERR_CANCELLED;
        if (s != NULL && s->state == SLOT_READY) {
            st->stats.fault[0] = 0;
            return 0;
        }
        if (s != NULL && s->state == SLOT_FAILED) {
            s->state = SLOT_EMPTY;
            if (s->was_wanted)
                return s->rc;
            pthread_cond_signal(&st->for_thread);
        }
        if (st->broken != 0)
            return st->broken;
        int64_t since = MAX(st->progress_ns, t0);
        if (st->hangs || clock_now_ns() - since >= st->o.stuck_ns) {
            if (!st->hangs) {
                st->stats.n_failed++;
                snprintf(st->stats.fault, sizeof st->stats.fault,
                         "%s: no bytes for %.0f s: the disk does not answer", st->o.f->path,
                         (double)st->o.stuck_ns / 1e9);
                log_warn("layer %d: %s", l, st->stats.fault);
            }
            st->hangs = st->cancels = true;
            return -ETIMEDOUT;
        }
        wait_until(st, since + st->o.stuck_ns);
    }
}

static int acquire(void *arg, int l, struct stream *s, const struct layer_weights **out)
{
    struct weights_stream *st = arg;
    (void)s;
    if (st->index_of[l] < 0) {
        *out = &st->o.w->layers[l];
        return st->stopped ? ERR_CANCELLED : 0;
    }
    struct ring_slot *slot = NULL;
    int64_t t0 = clock_now_ns();
    pthread_mutex_lock(&st->lock);
    st->n_wanted[l]++;
    pthread_cond_signal(&st->for_thread);
    int rc = wait_for(st, l, &slot);
    st->n_wanted[l]--;
    if (rc == 0) {
        slot->n_holders++;
        *out = &slot->lw;
        st->position = st->index_of[l];
        pthread_cond_signal(&st->for_thread);
    }
    st->stats.wait_ns += clock_now_ns() - t0;
    pthread_mutex_unlock(&st->lock);
    return rc;
}

/* Ends the use of a slot. On a host device, operations have run when they return, so the slot is
 * free at once. */
static void release(void *arg, int l, struct stream *s)
{
    struct weights_stream *st = arg;
    (void)s;
    if (st->index_of[l] < 0)
        return;
    pthread_mutex_lock(&st->lock);
    struct ring_slot *slot = slot_of(st, l);
    CHECK(slot != NULL && slot->n_holders > 0);
    slot->n_holders--;
    pthread_cond_signal(&st->for_thread);
    pthread_mutex_unlock(&st->lock);
}

static void stats(void *arg, struct weights_stream_stats *out)
{
    struct weights_stream *st = arg;
    pthread_mutex_lock(&st->lock);
    *out = st->stats;
    if (st->busy_from != 0)
        out->read_ns += clock_now_ns() - st->busy_from;
    int64_t ns = out->read_ns + st->o.load_ns;
    if (ns > 0)
        out->disk_bytes_per_s = (double)(out->read_bytes + st->o.load_bytes) / (double)ns *
                                1e9;
    if (out->disk_bytes_per_s > 0)
        out->ahead_ns = (int64_t)((double)st->o.n_slots * (double)out->layer_bytes /
                                  out->disk_bytes_per_s * 1e9);
    pthread_mutex_unlock(&st->lock);
}

static void stop(void *arg, bool stops)
{
    struct weights_stream *st = arg;
    pthread_mutex_lock(&st->lock);
    st->stopped = stops;
    st->cancels = stops;
    pthread_cond_broadcast(&st->for_users);
    pthread_cond_signal(&st->for_thread);
    pthread_mutex_unlock(&st->lock);
}

static void destroy(struct weights_stream *st)
{
    pack_reader_close(&st->reader); /* closed before the memory into which it reads */
    for (int i = 0; i < st->n_slots; i++)
        slot_free(st, st->slots[i]);
    free(st->layer_of);
    free(st->index_of);
    free(st->n_wanted);
    pthread_cond_destroy(&st->for_users);
    pthread_cond_destroy(&st->for_thread);
    pthread_mutex_destroy(&st->lock);
    free(st);
}

static void close_stream(void *arg)
{
    struct weights_stream *st = arg;
    stop(st, true);
    pthread_mutex_lock(&st->lock);
    for (int i = 0; i < st->n_slots; i++)
        CHECK(st->slots[i]->n_holders == 0);
    st->closing = true;
    pthread_cond_signal(&st->for_thread);
    pthread_mutex_unlock(&st->lock);
    pthread_join(st->thread, NULL);
    if (st->n_reading > 0)
        pack_reader_cancel(&st->reader);
    destroy(st);
}

int weights_stream_open(const struct weights_stream_opts *o, struct layer_source *out,
                        struct err *err)
{
    struct weights_stream *st = xcalloc(1, sizeof *st);
    int n = o->f->n_layers;
    CHECK(o->n_slots >= 2 && o->n_slots <= MAX_SLOTS && o->n_resident < n);
    st->o = *o;
    st->n_layers = n;
    st->layer_of = xcalloc((size_t)n, sizeof *st->layer_of);
    st->index_of = xcalloc((size_t)n, sizeof *st->index_of);
    st->n_wanted = xcalloc((size_t)n, sizeof *st->n_wanted);
    for (int l = 0; l < n; l++) {
        st->index_of[l] = weights_stays(l, o->n_resident, n) ? -1 : st->n_streamed;
        if (st->index_of[l] >= 0)
            st->layer_of[st->n_streamed++] = l;
    }
    CHECK(st->n_streamed == n - o->n_resident);
    /* The first pass begins with the first layer. */
    st->position = st->n_streamed - 1;
    st->stats.n_layers = n;
    st->stats.n_streamed = st->n_streamed;
    st->stats.layer_bytes = o->slot_bytes;
    pthread_mutex_init(&st->lock, NULL);
    pthread_cond_init(&st->for_thread, NULL);
    clock_cond_init(&st->for_users);
    int rc = pack_reader_open(&st->reader, o->f, o->io, err);
    for (int i = 0; rc == 0 && i < o->n_slots; i++)
        if (slot_add(st, err) == NULL)
            rc = err != NULL ? err->code : -ENOMEM;
    if (rc == 0 && (rc = thread_create(&st->thread, run, st)) != 0)
        rc = err_set(err, -rc, "cannot start the thread that reads weights: %s",
                     strerror(rc));
    if (rc != 0) {
        destroy(st);
        return rc;
    }
    *out = (struct layer_source){.acquire = acquire,
                                 .release = release,
                                 .arg = st,
                                 .stats = stats,
                                 .stop = stop,
                                 .close = close_stream};
    return 0;
}
