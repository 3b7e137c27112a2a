/* io_queue.c - requests in, pieces out: the part of an asynchronous queue that backends share.
 *
 *   submit -> waiting (requests) -> started (pieces, at most depth) -> held? -> done (requests)
 *
 * A request is cut into pieces of IO_PIECE_BYTES as pieces become free; only the first waiting
 * request is ever partly cut. A piece that came back short goes out again for the rest. A piece
 * that came back before its throttle allows is held. It counts toward the depth until then, as it
 * would on a device of that speed. A request is done when it is wholly cut and its last piece has
 * ended; after a first failure no more of its pieces are started. All memory is allocated at open,
 * or belongs to the caller. */
#include "io/io_alarm.h"
#include "io/io_impl.h"

#include <errno.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"

#define MAX_DEPTH   1024u
#define MAX_BUFFERS 64u
/* A wait checks its alarm at this interval if the backend has no descriptor to poll. */
#define DEAF_NS 1000000
/* A time that does not come */
#define NEVER INT64_MAX

int io_queue_open(struct io *io, unsigned depth, struct io_queue **out, struct err *err)
{
    *out = NULL;
    if (depth < 1 || depth > MAX_DEPTH)
        return err_set(err, -EINVAL, "queue depth %u: must be 1 to %u", depth, MAX_DEPTH);
    struct io_queue *q = xcalloc(1, sizeof *q);
    q->io = io;
    q->ops = io->queue_ops;
    q->depth = depth;
    q->waiting_tail = &q->waiting;
    q->done_tail = &q->done;
    q->pieces = xcalloc(depth, sizeof q->pieces[0]);
    for (unsigned i = 0; i < depth; i++) {
        q->pieces[i].next = q->free_pieces;
        q->free_pieces = &q->pieces[i];
    }
    int rc = q->ops->open(q);
    if (rc != 0) {
        free(q->pieces);
        free(q);
        return err_set(err, rc, "open %s queue of depth %u: %s", io->name, depth,
                       err_name(rc));
    }
    *out = q;
    return 0;
}

int io_queue_register_buffers(struct io_queue *q, const struct io_buffer *buffers,
                              unsigned n, struct err *err)
{
    CHECK(q->n_buffers == 0 && q->n_outstanding == 0);
    if (n == 0 || n > MAX_BUFFERS)
        return err_set(err, -EINVAL, "register %u buffers: must be 1 to %u", n,
                       MAX_BUFFERS);
    int rc = q->ops->register_buffers(q, buffers, n);
    if (rc != 0)
        return err_set(err, rc, "register %u buffers: %s", n, err_name(rc));
    q->buffers = xcalloc(n, sizeof q->buffers[0]);
    for (unsigned i = 0; i < n; i++)
        q->buffers[i] = buffers[i];
    q->n_buffers = n;
    return 0;
}

unsigned io_queue_outstanding(const struct io_queue *q)
{
    return q->n_outstanding;
}

unsigned io_queue_in_flight(const struct io_queue *q)
{
    return q->n_started;
}

int io_req_err(const struct io_req *req, struct err *err)
{
    if (req->result == 0)
        return 0;
    return io_transfer_err(req->file, req->op, req->length, req->offset, req->result, err);
}

static int find_buffer(const struct io_queue *q, const uint8_t *buf, size_t n)
{
    for (unsigned i = 0; i < q->n_buffers; i++) {
        const uint8_t *base = q->buffers[i].base;
        if (buf >= base && buf + n <= base + q->buffers[i].length)
            return (int)i;
    }
    return -1;
}

static void append(struct io_req ***tail, struct io_req *req)
{
    req->next = NULL;
    **tail = req;
    *tail = &req->next;
}

static struct io_req *take_first(struct io_req **head, struct io_req ***tail)
{
    struct io_req *req = *head;
    *head = req->next;
    if (*head == NULL)
        *tail = head;
    req->next = NULL;
    return req;
}

static void finish_req(struct io_queue *q, struct io_req *req)
{
    append(&q->done_tail, req);
    q->n_done++;
}

static void start_piece(struct io_queue *q, struct io_piece *p)
{
    q->n_started++;
    if (q->io->turn != NULL && q->io->goes_first)
        atomic_fetch_add(&q->io->turn->n_first, 1);
    q->ops->start(q, p);
}

/* Counts n pieces as ended: the kernel has given them back, or never will. */
static void end_pieces(struct io_queue *q, unsigned n)
{
    q->n_started -= n;
    if (q->io->turn != NULL && q->io->goes_first)
        atomic_fetch_sub(&q->io->turn->n_first, n);
}

void io_queue_close(struct io_queue *q)
{
    if (q == NULL)
        return;
    while (q->n_started > 0) {
        struct io_piece *list;
        if (q->ops->reap(q, -1, &list) != 0)
            break;
        for (; list != NULL; list = list->next)
            end_pieces(q, 1);
    }
    end_pieces(q, q->n_started);
    q->ops->close(q);
    free(q->buffers);
    free(q->pieces);
    free(q);
}

static bool gives_way(const struct io_queue *q)
{
    const struct io_turn *turn = q->io->turn;
    return turn != NULL && !q->io->goes_first && q->n_started > 0 &&
           atomic_load(&turn->n_first) > 0;
}

/* Cuts the next piece off the request and starts it, through the page cache if it has the bytes. */
static void cut_piece(struct io_queue *q, struct io_req *req)
{
    struct io_piece *p = q->free_pieces;
    q->free_pieces = p->next;
    size_t left = req->length - req->issued_bytes;
    *p = (struct io_piece){
        .req = req,
        .file = req->file,
        .op = req->op,
        .buf = (uint8_t *)req->buf + req->issued_bytes,
        .length = MIN(left, IO_PIECE_BYTES),
        .offset = req->offset + req->issued_bytes,
    };
    p->is_cached = req->may_hit && p->op == IO_READ && q->io->ops->file_is_cached != NULL &&
                   q->io->throttle[IO_READ].bytes_per_s == 0 &&
                   q->io->ops->file_is_cached(p->file, p->offset, p->length);
    p->buffer_idx = find_buffer(q, p->buf, p->length);
    p->ready_ns = io_throttle_reserve(&q->io->throttle[p->op], p->length);
    req->issued_bytes += p->length;
    req->n_pieces++;
    start_piece(q, p);
}

static void start_waiting(struct io_queue *q)
{
    while (q->waiting != NULL && q->free_pieces != NULL && !gives_way(q)) {
        struct io_req *req = q->waiting;
        cut_piece(q, req);
        if (req->issued_bytes == req->length)
            take_first(&q->waiting, &q->waiting_tail);
    }
}

/* Abandons a failed request: its uncut part is not transferred. */
static void abandon(struct io_queue *q, struct io_req *req)
{
    if (req->issued_bytes == req->length)
        return;
    CHECK(q->waiting == req);
    take_first(&q->waiting, &q->waiting_tail);
    req->issued_bytes = req->length;
}

static void finish_piece(struct io_queue *q, struct io_piece *p, int rc)
{
    struct io_req *req = p->req;
    if (rc != 0 && req->result == 0) {
        req->result = rc;
        abandon(q, req);
    }
    p->next = q->free_pieces;
    q->free_pieces = p;
    if (--req->n_pieces == 0 && req->issued_bytes == req->length)
        finish_req(q, req);
}

/* Takes one piece that has come back from the backend. A read that did not come through the page
 * cache in one attempt is made again, directly. */
static void take_piece(struct io_queue *q, struct io_piece *p, int64_t now_ns)
{
    size_t step;
    end_pieces(q, 1);
    int rc = io_attempt_result(p->file, p->op, p->length, p->result, &step);
    if (p->is_cached && rc == 0 && step == p->length) {
        p->req->cached_bytes += p->length;
        finish_piece(q, p, 0);
    } else if (p->is_cached && p->result != -ECANCELED) {
        p->is_cached = false;
        start_piece(q, p);
    } else if (rc == 0 && step < p->length) {
        p->buf += step;
        p->offset += step;
        p->length -= step;
        start_piece(q, p);
    } else if (p->ready_ns > now_ns) {
        p->result = rc;
        p->next = q->held;
        q->held = p;
    } else {
        finish_piece(q, p, rc);
    }
}

/* Releases held pieces whose time has come. Returns the time at which the next held piece may be
 * released, or NEVER if none is held. */
static int64_t release_held(struct io_queue *q, int64_t now_ns)
{
    int64_t next_ns = NEVER;
    for (struct io_piece **at = &q->held; *at != NULL;) {
        struct io_piece *p = *at;
        if (p->ready_ns <= now_ns) {
            *at = p->next;
            finish_piece(q, p, (int)p->result);
            continue;
        }
        next_ns = MIN(next_ns, p->ready_ns);
        at = &p->next;
    }
    return next_ns;
}

void io_queue_submit(struct io_queue *q, struct io_req *const reqs[], unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct io_req *req = reqs[i];
        req->issued_bytes = 0;
        req->n_pieces = 0;
        req->cached_bytes = 0;
        req->result = io_check_transfer(req->file, req->op, req->buf, req->length,
                                        req->offset);
        q->n_outstanding++;
        if (req->result != 0 || req->length == 0)
            finish_req(q, req);
        else
            append(&q->waiting_tail, req);
    }
    start_waiting(q);
    if (q->n_started > 0)
        q->ops->flush(q);
}

void io_queue_cancel(struct io_queue *q)
{
    while (q->waiting != NULL) {
        struct io_req *req = take_first(&q->waiting, &q->waiting_tail);
        req->issued_bytes = req->length;
        if (req->result == 0)
            req->result = -ECANCELED;
        if (req->n_pieces == 0)
            finish_req(q, req);
    }
    if (q->n_started > 0 && q->ops->cancel != NULL)
        q->ops->cancel(q);
}

/* Sleeps until the alarm rings, a started piece may have ended, or timeout_ns (negative: for ever)
 * has passed. Returns for how many ns the backend should then still wait for a piece. */
static int64_t listen(struct io_queue *q, int64_t timeout_ns)
{
    bool is_deaf = q->n_started > 0 && q->ops->fd == NULL;
    if (is_deaf) {
        q->has_rung = io_alarm_wait(q->alarm, -1, 0);
        return q->has_rung                              ? 0
               : timeout_ns < 0 || timeout_ns > DEAF_NS ? DEAF_NS
                                                        : timeout_ns;
    }
    q->ops->flush(q);
    q->has_rung = io_alarm_wait(q->alarm, q->n_started > 0 ? q->ops->fd(q) : -1,
                                timeout_ns);
    return 0;
}

/* Waits until a started piece ends, the alarm rings, or the time until_ns has come. */
static int reap(struct io_queue *q, int64_t until_ns, bool listens)
{
    int64_t now_ns = clock_now_ns();
    int64_t timeout_ns = until_ns == NEVER ? -1 : MAX(until_ns - now_ns, 0);
    if (listens && timeout_ns != 0)
        timeout_ns = listen(q, timeout_ns);
    if (q->n_started == 0) { /* all pieces are held by the throttle */
        clock_sleep_ns(listens ? 0 : until_ns - now_ns); /* `listen` has slept already */
        return 0;
    }
    struct io_piece *list;
    int rc = q->ops->reap(q, timeout_ns, &list);
    if (rc != 0)
        return rc;
    now_ns = clock_now_ns();
    while (list != NULL) {
        struct io_piece *p = list;
        list = p->next;
        take_piece(q, p, now_ns);
    }
    return 0;
}

/* Moves everything that can move without waiting. Returns the time at which the next held piece may
 * be released, or NEVER if none is held. */
static int64_t settle(struct io_queue *q)
{
    int64_t held_ns = release_held(q, clock_now_ns());
    start_waiting(q);
    return held_ns;
}

/* Waits until `want` requests are done, until_ns has come, or an alarm rings (only if `listens`).
 * want 0: takes what has come back, once, without waiting. */
static int wait_for(struct io_queue *q, unsigned want, int64_t until_ns, bool listens)
{
    int64_t held_ns = settle(q);
    bool poll = want == 0 && q->n_done < q->n_outstanding;
    int rc = 0;
    q->has_rung = false;
    while (rc == 0 && !q->has_rung && (q->n_done < want || poll)) {
        rc = reap(q, poll ? 0 : MIN(until_ns, held_ns), listens);
        held_ns = settle(q);
        poll = false;
        if (clock_now_ns() >= until_ns)
            break;
    }
    if (q->n_started > 0)
        q->ops->flush(q);
    return rc;
}

static int await(struct io_queue *q, unsigned min, int64_t timeout_ns, bool listens,
                 struct err *err)
{
    unsigned want = MIN(min, q->n_outstanding);
    int rc = wait_for(q, want, timeout_ns < 0 ? NEVER : clock_now_ns() + timeout_ns,
                      listens);
    return rc == 0 ? 0 : err_set(err, rc, "%s queue: %s", q->io->name, err_name(rc));
}

void io_queue_listen(struct io_queue *q, struct io_alarm *alarm)
{
    q->alarm = alarm;
}

bool io_queue_has_rung(const struct io_queue *q)
{
    return q->has_rung;
}

int io_queue_await(struct io_queue *q, int64_t timeout_ns, bool *is_done, struct err *err)
{
    int rc = await(q, 1, timeout_ns, q->alarm != NULL, err);
    *is_done = q->done != NULL;
    return rc;
}

int io_queue_wait(struct io_queue *q, unsigned min, unsigned max, int64_t timeout_ns,
                  struct io_req *done[], unsigned *n_done, struct err *err)
{
    *n_done = 0;
    CHECK(min <= max);
    int rc = await(q, min, timeout_ns, false, err);
    if (rc != 0)
        return rc;
    while (*n_done < max && q->done != NULL) {
        done[(*n_done)++] = take_first(&q->done, &q->done_tail);
        q->n_done--;
        q->n_outstanding--;
    }
    return 0;
}
