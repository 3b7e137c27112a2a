/* io_sim_queue.c - queues whose pieces execute and come back in an order that the seed decides.
 *
 * Some pieces execute when they are started and some when they are reaped. So a crash finds
 * writes that have happened and were never reported, and reports arrive out of order. A stuck
 * piece neither executes nor comes back until the disk is unstuck, or the piece is cancelled. */
#include "sim/io_sim_queue.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"

struct slot {
    struct io_piece *piece;
    bool executed, stuck;
};

struct shuffle {
    struct rng rng;
    uint64_t n_unsticks; /* value of io_sim_unsticks when this queue last looked */
    unsigned n;
    struct slot slot[]; /* [depth] */
};

static int shuffle_open(struct io_queue *q)
{
    struct shuffle *s = xcalloc(1, sizeof *s + q->depth * sizeof s->slot[0]);
    s->rng.s = io_sim_next_seed(q->io);
    s->n_unsticks = io_sim_unsticks(q->io);
    q->backend = s;
    return 0;
}

static void shuffle_close(struct io_queue *q)
{
    free(q->backend);
}

static int shuffle_register_buffers(struct io_queue *q, const struct io_buffer *buffers,
                                    unsigned n)
{
    (void)q;
    (void)buffers;
    (void)n;
    return 0;
}

static void execute(struct io_queue *q, struct slot *slot)
{
    struct io_piece *p = slot->piece;
    p->result = p->op == IO_READ
                    ? q->io->ops->file_pread(p->file, p->buf, p->length, p->offset)
                    : q->io->ops->file_pwrite(p->file, p->buf, p->length, p->offset);
    slot->executed = true;
}

static void shuffle_start(struct io_queue *q, struct io_piece *p)
{
    struct shuffle *s = q->backend;
    struct slot *slot = &s->slot[s->n++];
    *slot = (struct slot){.piece = p, .stuck = io_sim_gets_stuck(p)};
    if (rng_below(&s->rng, 2) == 0 && !slot->stuck)
        execute(q, slot);
}

static void shuffle_flush(struct io_queue *q)
{
    (void)q;
}

static void unstick(struct io_queue *q)
{
    struct shuffle *s = q->backend;
    uint64_t n = io_sim_unsticks(q->io);
    if (n == s->n_unsticks)
        return;
    s->n_unsticks = n;
    for (unsigned i = 0; i < s->n; i++)
        s->slot[i].stuck = false;
}

static void shuffle_cancel(struct io_queue *q)
{
    struct shuffle *s = q->backend;
    for (unsigned i = 0; i < s->n; i++) {
        if (!s->slot[i].stuck)
            continue;
        s->slot[i].stuck = false;
        s->slot[i].executed = true;
        s->slot[i].piece->result = -ECANCELED;
    }
}

/* Picks a piece that is not stuck; waits for one if needed. Returns false if there is none within
 * timeout_ns. */
static bool pick(struct io_queue *q, int64_t timeout_ns, unsigned *at)
{
    struct shuffle *s = q->backend;
    int64_t end_ns = timeout_ns < 0 ? INT64_MAX : clock_now_ns() + timeout_ns;
    for (;; clock_sleep_ns(200000)) {
        unstick(q);
        unsigned first = (unsigned)rng_below(&s->rng, s->n);
        for (unsigned i = 0; i < s->n; i++) {
            *at = (first + i) % s->n;
            if (!s->slot[*at].stuck)
                return true;
        }
        if (clock_now_ns() >= end_ns)
            return false;
    }
}

static int shuffle_reap(struct io_queue *q, int64_t timeout_ns, struct io_piece **done)
{
    struct shuffle *s = q->backend;
    unsigned i;
    *done = NULL;
    if (!pick(q, timeout_ns, &i))
        return 0;
    if (!s->slot[i].executed)
        execute(q, &s->slot[i]);
    *done = s->slot[i].piece;
    (*done)->next = NULL;
    s->slot[i] = s->slot[--s->n];
    return 0;
}

const struct io_queue_ops io_sim_queue_ops = {
    .open = shuffle_open,
    .close = shuffle_close,
    .register_buffers = shuffle_register_buffers,
    .start = shuffle_start,
    .flush = shuffle_flush,
    .reap = shuffle_reap,
    .cancel = shuffle_cancel,
};
