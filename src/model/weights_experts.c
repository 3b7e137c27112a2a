/* weights_experts.c - see weights_experts.h. */
#include "model/weights_experts.h"

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
#include "model/expert_cache.h"

/* Experts that are being read at once. */
enum { MOST_READS = 8 };
/* How often a pass that waits for the disk checks for new requests. */
#define POLL_NS ((int64_t)50 * 1000000)

struct expert_read {
    struct pack_job job;
    int slot; /* -1: unused */
    int expert;
};

struct weights_experts {
    struct weights_stream_opts o;
    int n_experts;
    struct expert_cache cache;
    struct buf mem;
    struct layer_weights lw; /* the matrices of the expert that is lent */
    struct pack_reader reader;
    struct expert_read reads[MOST_READS];
    int n_reading;
    /* The experts that the layer needs. n_begun of them are pinned, in memory or being read, and
     * n_lent have been lent. */
    int32_t list[MODEL_MAX_EXPERTS];
    int n_list, n_begun, n_lent;
    int64_t busy_from; /* time at which the present reads began */
    int broken;        /* the queue's own error: nothing will arrive any more */
    atomic_bool stopped;
    pthread_mutex_t lock; /* protects stats */
    struct weights_stream_stats stats;
};

static size_t part_of(const struct weights_experts *x, int32_t expert)
{
    return pack_expert_part(x->o.shape->cfg, expert / x->n_experts, expert % x->n_experts);
}

static void *memory_of(const struct weights_experts *x, int slot)
{
    return (uint8_t *)x->mem.ptr + (size_t)slot * x->o.slot_bytes;
}

/* --- reading ---------------------------------------------------------------------------------- */

static void begin_read(struct weights_experts *x, int slot, int32_t expert)
{
    struct expert_read *r = x->reads;
    while (r->slot >= 0)
        r++;
    r->slot = slot;
    r->expert = expert;
    r->job.user = r;
    expert_cache_put(&x->cache, slot, expert);
    x->cache.reading[slot] = true;
    CHECK(pack_reader_begin(&x->reader, &r->job, part_of(x, expert), memory_of(x, slot)));
    if (x->n_reading++ == 0)
        x->busy_from = clock_now_ns();
}

/* Begins reads of the list's experts, in its order, as long as there are slots. */
static void begin_reads(struct weights_experts *x)
{
    for (; x->n_begun < x->n_list && x->n_reading < MOST_READS; x->n_begun++) {
        int32_t expert = x->list[x->n_begun];
        int slot = x->cache.slot_of[expert];
        if (slot < 0) {
            if ((slot = expert_cache_victim(&x->cache)) < 0)
                return;
            begin_read(x, slot, expert);
        }
        x->cache.pinned[slot] = true;
    }
}

static void count_fault(struct weights_experts *x, int layer, const char *msg)
{
    pthread_mutex_lock(&x->lock);
    x->stats.n_failed++;
    snprintf(x->stats.fault, sizeof x->stats.fault, "%s", msg);
    pthread_mutex_unlock(&x->lock);
    log_warn("layer %d: %s", layer, msg);
}

/* Takes an expert that has been read, or has failed. Returns its code, with the message in *why. */
static int end_read(struct weights_experts *x, struct expert_read *r, struct err *why)
{
    int rc = r->job.rc, slot = r->slot;
    *why = r->job.err;
    r->slot = -1;
    x->n_reading--;
    x->cache.reading[slot] = false;
    if (rc != 0)
        expert_cache_put(&x->cache, slot, -1);
    return rc;
}

/* Checks what arrives within timeout_ns, and returns the number of pieces.  If an expert's read has
 * ended, *expert gets its number, *rc its code and *why the message; else *expert is -1. */
static unsigned take(struct weights_experts *x, int64_t timeout_ns, int32_t *expert,
                     int *rc, struct err *why)
{
    struct pack_job *done = NULL;
    unsigned n = 0;
    *expert = -1;
    *rc = 0;
    if ((x->broken = pack_reader_step(&x->reader, timeout_ns, &n, &done, why)) != 0) {
        count_fault(x, x->cache.layer, why->msg);
        return n;
    }
    if (done != NULL) {
        struct expert_read *r = done->user;
        *expert = r->expert;
        *rc = end_read(x, r, why);
    }
    int64_t now = clock_now_ns();
    pthread_mutex_lock(&x->lock);
    x->stats.read_bytes = x->reader.n_bytes;
    x->stats.verify_ns = x->reader.verify_ns;
    x->stats.read_ns += now - x->busy_from;
    pthread_mutex_unlock(&x->lock);
    x->busy_from = now;
    return n;
}

/* Waits until an expert of the list is in memory. Returns 0 with *slot, or the code with which the
 * pass fails. */
static int wait_for(struct weights_experts *x, int32_t expert, int *slot)
{
    int64_t progress = clock_now_ns();
    int n_tries = 0, rc;
    int32_t ended;
    struct err why = {0};
    for (;;) {
        if (x->stopped)
            return ERR_CANCELLED;
        *slot = x->cache.slot_of[expert];
        if (expert_cache_has(&x->cache, expert))
            return 0;
        if (x->broken != 0)
            return x->broken;
        /* Its read was cancelled or has failed: a second one repairs damage in transit. The
         * experts behind it in the list may have all slots; they give way. */
        if (*slot < 0) {
            expert_cache_unpin(&x->cache);
            x->n_begun = x->n_lent;
            if ((*slot = expert_cache_victim(&x->cache)) >= 0 && x->n_reading < MOST_READS)
                begin_read(x, *slot, expert);
        }
        if (take(x, POLL_NS, &ended, &rc, &why) > 0)
            progress = clock_now_ns();
        if (ended == expert && rc != 0 && rc != -ECANCELED && ++n_tries == 2) {
            count_fault(x, expert / x->n_experts, why.msg);
            return rc;
        }
        if (clock_now_ns() - progress >= x->o.stuck_ns) {
            err_set(&why, -ETIMEDOUT, "%s: no bytes for %.0f s: the disk does not answer",
                    x->o.f->path, (double)x->o.stuck_ns / 1e9);
            count_fault(x, expert / x->n_experts, why.msg);
            pack_reader_cancel(&x->reader);
            return -ETIMEDOUT;
        }
    }
}

/* --- the layer_source ------------------------------------------------------------------------- */

static void expect(void *arg, int l, const int32_t *ids, int n)
{
    struct weights_experts *x = arg;
    expert_cache_unpin(&x->cache);
    for (int i = 0; i < n; i++) {
        x->list[i] = l * x->n_experts + ids[i];
        expert_cache_use(&x->cache, x->list[i]);
        if (x->cache.slot_of[x->list[i]] >= 0)
            x->cache.pinned[x->cache.slot_of[x->list[i]]] = true;
    }
    x->n_list = n;
    x->n_begun = x->n_lent = 0;
    begin_reads(x);
}

/* Lends the next expert of the list, and unpins the one lent before. Begins further reads. */
static int lend(void *arg, int l, int e, struct weight *up, struct weight *down)
{
    struct weights_experts *x = arg;
    int32_t expert = l * x->n_experts + e;
    int slot;
    CHECK(x->n_lent < x->n_list && x->list[x->n_lent] == expert);
    if (x->n_lent > 0)
        x->cache.pinned[x->cache.slot_of[x->list[x->n_lent - 1]]] = false;
    begin_reads(x);
    int64_t t0 = clock_now_ns();
    int rc = wait_for(x, expert, &slot);
    pthread_mutex_lock(&x->lock);
    x->stats.wait_ns += clock_now_ns() - t0;
    if (rc == 0)
        x->stats.fault[0] = 0;
    pthread_mutex_unlock(&x->lock);
    if (rc != 0)
        return rc;
    x->n_lent++;
    x->n_begun = MAX(x->n_begun, x->n_lent);
    x->cache.pinned[slot] = true;
    struct buf mem = {memory_of(x, slot), x->o.slot_bytes, x->mem.kind};
    image_bind(&x->o.images[l - x->o.shape->cfg->n_dense_layers], x->o.shape, &mem, x->o.w,
               &x->lw);
    *up = x->lw.w_up;
    *down = x->lw.w_down;
    return 0;
}

static int acquire(void *arg, int l, struct stream *s, const struct layer_weights **out)
{
    struct weights_experts *x = arg;
    (void)s;
    *out = &x->o.w->layers[l];
    return x->stopped ? ERR_CANCELLED : 0;
}

static void stats(void *arg, struct weights_stream_stats *out)
{
    struct weights_experts *x = arg;
    pthread_mutex_lock(&x->lock);
    *out = x->stats;
    pthread_mutex_unlock(&x->lock);
    int64_t ns = out->read_ns + x->o.load_ns;
    if (ns > 0)
        out->disk_bytes_per_s = (double)(out->read_bytes + x->o.load_bytes) / (double)ns *
                                1e9;
}

static void stop(void *arg, bool stops)
{
    struct weights_experts *x = arg;
    x->stopped = stops;
}

static void close_experts(void *arg)
{
    struct weights_experts *x = arg;
    if (x->n_reading > 0)
        pack_reader_cancel(&x->reader);
    pack_reader_close(&x->reader); /* closed before the memory into which it reads */
    for (int i = 0; i < MOST_READS; i++)
        pack_job_deinit(&x->reads[i].job);
    buf_free(x->o.shape->dev, &x->mem);
    expert_cache_deinit(&x->cache);
    pthread_mutex_destroy(&x->lock);
    free(x);
}

int weights_experts_open(const struct weights_stream_opts *o, struct layer_source *out,
                         struct err *err)
{
    const struct model_config *c = o->shape->cfg;
    struct weights_experts *x = xcalloc(1, sizeof *x);
    int n_streamed = c->n_layers - c->n_dense_layers, n_all = n_streamed * c->n_experts;
    CHECK(o->n_slots > c->n_experts_used && o->n_slots <= n_all);
    x->o = *o;
    x->n_experts = c->n_experts;
    for (int i = 0; i < MOST_READS; i++)
        x->reads[i].slot = -1;
    x->stats = (struct weights_stream_stats){.n_layers = c->n_layers,
                                             .n_streamed = n_streamed,
                                             .of_experts = true,
                                             .layer_bytes = (uint64_t)o->slot_bytes *
                                                            (uint64_t)(n_all - o->n_slots) /
                                                            (uint64_t)n_streamed};
    pthread_mutex_init(&x->lock, NULL);
    expert_cache_init(&x->cache, c->n_layers, c->n_experts, o->n_slots);
    int rc = pack_reader_open(&x->reader, o->f, o->io, err);
    if (rc == 0)
        rc = stage_alloc(o->shape->dev, 0, (size_t)o->n_slots * o->slot_bytes, &x->mem,
                         err);
    if (rc != 0) {
        close_experts(x);
        return rc;
    }
    *out = (struct layer_source){.acquire = acquire,
                                 .expect = expect,
                                 .lend = lend,
                                 .arg = x,
                                 .stats = stats,
                                 .stop = stop,
                                 .close = close_experts};
    return 0;
}
