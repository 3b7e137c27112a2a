/* save_down.c - see save_down.h.
 *
 * Invariants:
 * 1. Layers are done in the order in which they were queued. So the ring's free bytes lie
 *    between the end of the last layer and the beginning of the oldest one that is not done.
 * 2. A layer's bytes lie in one piece of the ring: the rest at the ring's end is skipped. */
#include "save/save_down.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/step.h"
#include "base/thread.h"
#include "tensor/group.h"

enum { N_JOBS = 64, ALIGN = 256 };

struct move {
    uint8_t *to;
    const uint8_t *from;
    size_t n_bytes;
    atomic_bool *lost;
};

/* A layer on its way down. */
struct job {
    uint64_t begin, end; /* positions in the ring, counted on without wrapping around */
    struct event *is_down;
    struct move *moves;
    int n_moves;
};

struct save_down {
    struct save_down_opts o;
    struct stream *copy;
    struct event *is_computed;
    struct buf ring;
    struct job job[N_JOBS];
    pthread_t sorter;
    bool has_thread;

    /* The compute thread's: the layer between save_down_begin and save_down_end. */
    struct job *now;
    struct {
        struct mat m;
        bool is_rank_own;
        uint8_t *to;
    } copies[2];
    int n_copies;

    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t changed;
    uint64_t n_queued, n_done;
    bool quit;
};

/* --- the sorter ------------------------------------------------------------------------------- */

/* Copies rows into chunks without a lock: nobody reads these rows before n_done has grown. */
static void sort_rows(struct job *j)
{
    int rc = event_sync(j->is_down);
    for (int i = 0; i < j->n_moves; i++) {
        const struct move *m = &j->moves[i];
        shared_turn();
        if (rc == 0)
            memcpy(m->to, m->from, m->n_bytes);
        else
            shared_store(m->lost, true);
    }
}

/* Waits until the device has copied the oldest layer down, then copies its rows into chunks. */
static enum step sorter_step(struct save_down *d)
{
    pthread_mutex_lock(&d->lock);
    bool has_job = d->n_done < d->n_queued, ends = !has_job && d->quit;
    struct job *j = &d->job[d->n_done % N_JOBS];
    pthread_mutex_unlock(&d->lock);
    if (!has_job)
        return ends ? STEP_ENDED : STEP_WAITS;
    sort_rows(j);
    pthread_mutex_lock(&d->lock);
    d->n_done++;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    return STEP_WORKED;
}

/* Call behind STEP_WAITS. Sleeps until a layer is queued or the sorter may end. */
static void sorter_wait(struct save_down *d)
{
    pthread_mutex_lock(&d->lock);
    while (d->n_done == d->n_queued && !d->quit)
        pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

static void *sorter_main(void *arg)
{
    enum step did;
    while ((did = sorter_step(arg)) != STEP_ENDED) {
        if (did == STEP_WAITS)
            sorter_wait(arg);
    }
    return NULL;
}

bool save_down_has_sorted(struct save_down *d, uint64_t n)
{
    pthread_mutex_lock(&d->lock);
    bool has = d->n_done >= n;
    pthread_mutex_unlock(&d->lock);
    return has;
}

void save_down_await(struct save_down *d, uint64_t n)
{
    pthread_mutex_lock(&d->lock);
    while (d->n_done < n)
        pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

uint64_t save_down_queued(const struct save_down *d)
{
    return d->n_queued; /* only the calling thread writes n_queued */
}

/* --- life cycle ------------------------------------------------------------------------------- */

static int make_jobs(struct save_down *d, struct err *err)
{
    int rc = event_create(d->o.dev, &d->is_computed, err);
    for (int i = 0; rc == 0 && i < N_JOBS; i++) {
        d->job[i].moves = xcalloc((size_t)d->o.max_moves, sizeof *d->job[i].moves);
        rc = event_create(d->o.dev, &d->job[i].is_down, err);
    }
    return rc;
}

int save_down_create(const struct save_down_opts *o, struct save_down **out,
                     struct err *err)
{
    struct save_down *d = xcalloc(1, sizeof *d);
    d->o = *o;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    int rc = buf_alloc(o->dev, MEM_PINNED, o->ring_bytes, &d->ring, err);
    if (rc == 0)
        rc = stream_create(o->dev, STREAM_COPY, &d->copy, err);
    if (rc == 0)
        rc = make_jobs(d, err);
    if (rc == 0 && (rc = thread_create(&d->sorter, sorter_main, d)) != 0)
        rc = err_set(err, -rc, "no thread: %s", strerror(rc));
    d->has_thread = rc == 0;
    if (rc != 0) {
        save_down_destroy(d);
        return err_wrap(err, "copying saved state down");
    }
    *out = d;
    return 0;
}

void save_down_destroy(struct save_down *d)
{
    if (d == NULL)
        return;
    if (d->has_thread) {
        pthread_mutex_lock(&d->lock);
        d->quit = true;
        pthread_cond_broadcast(&d->changed);
        pthread_mutex_unlock(&d->lock);
        pthread_join(d->sorter, NULL);
    }
    for (int i = 0; i < N_JOBS; i++) {
        event_destroy(d->job[i].is_down);
        free(d->job[i].moves);
    }
    event_destroy(d->is_computed);
    stream_destroy(d->copy);
    buf_free(d->o.dev, &d->ring);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

size_t save_down_bytes(const struct save_down *d)
{
    return d->ring.bytes;
}

/* --- one layer -------------------------------------------------------------------------------- */

/* Returns the layer that was queued last, or NULL if there was none. */
static const struct job *job_before(const struct save_down *d)
{
    return d->n_queued > 0 ? &d->job[(d->n_queued - 1) % N_JOBS] : NULL;
}

void save_down_begin(struct save_down *d)
{
    CHECK(d->now == NULL);
    if (d->n_queued >= N_JOBS)
        save_down_await(d, d->n_queued + 1 - N_JOBS);
    const struct job *before = job_before(d);
    d->now = &d->job[d->n_queued % N_JOBS];
    d->now->n_moves = 0;
    d->now->begin = d->now->end = before != NULL ? before->end : 0;
    d->n_copies = 0;
}

/* Waits until ring positions up to `end` are free: every unfinished job begins less than a whole
 * ring before `end`. */
static void await_room(struct save_down *d, uint64_t end)
{
    pthread_mutex_lock(&d->lock);
    while (d->n_done < d->n_queued &&
           end > d->job[d->n_done % N_JOBS].begin + d->ring.bytes)
        pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

const uint8_t *save_down_rows(struct save_down *d, struct mat m, bool is_rank_own,
                              int64_t row, int64_t n)
{
    struct job *j = d->now;
    int64_t cols = is_rank_own ? m.cols * d->o.dev->n_ranks : m.cols;
    uint64_t bytes = round_up((uint64_t)(n * cols) * dtype_bytes(m.dtype), ALIGN);
    uint64_t ring = d->ring.bytes, at = j->end;
    CHECK(m.ld == m.cols && bytes <= ring && d->n_copies < 2);
    /* Does not fit in one piece: begin at the ring's start. */
    if (at % ring + bytes > ring)
        at = (at / ring + 1) * ring;
    await_room(d, at + bytes);
    uint8_t *to = (uint8_t *)d->ring.ptr + at % ring;
    d->copies[d->n_copies].m = mat_rows(m, row, n);
    d->copies[d->n_copies].is_rank_own = is_rank_own;
    d->copies[d->n_copies++].to = to;
    j->end = at + bytes;
    CHECK(j->end - j->begin <= ring);
    return to;
}

void save_down_move(struct save_down *d, uint8_t *to, const uint8_t *from, size_t n_bytes,
                    atomic_bool *lost)
{
    CHECK(d->now->n_moves < d->o.max_moves);
    d->now->moves[d->now->n_moves++] = (struct move){to, from, n_bytes, lost};
}

/* Queues the layer's copies on the copy stream, behind the work that s has so far. */
static int queue_copies(struct save_down *d, struct stream *s)
{
    int rc = event_record(s, d->is_computed);
    if (rc == 0)
        rc = event_wait(d->copy, d->is_computed);
    for (int i = 0; rc == 0 && i < d->n_copies; i++) {
        struct mat m = d->copies[i].m;
        rc = d->copies[i].is_rank_own
                 ? kv_rows_down(d->copy, d->copies[i].to, m)
                 : stream_copy(d->copy, d->copies[i].to, m.data,
                               (size_t)(m.rows * m.cols) * dtype_bytes(m.dtype));
    }
    return rc == 0 ? event_record(d->copy, d->now->is_down) : rc;
}

int save_down_end(struct save_down *d, struct stream *s)
{
    const struct job *before = job_before(d);
    int rc = queue_copies(d, s);
    /* Work queued on s from now on may overwrite the matrices of the layer before this one, so s
     * waits for their copy. This layer's own copy runs beside that work. */
    if (rc == 0 && before != NULL)
        rc = event_wait(s, before->is_down);
    d->now = NULL;
    if (rc != 0) {
        log_warn("saving: %s",
                 stream_fault(d->copy)[0] != 0 ? stream_fault(d->copy) : stream_fault(s));
        (void)stream_recover(d->copy);
        return rc;
    }
    pthread_mutex_lock(&d->lock);
    d->n_queued++;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    return 0;
}

int save_down_join(struct save_down *d, struct stream *s)
{
    const struct job *last = job_before(d);
    return last != NULL ? event_wait(s, last->is_down) : 0;
}
