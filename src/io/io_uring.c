/* io_uring.c - io_uring_open: queues over io_uring. The only file that includes liburing.
 *
 * There is one ring per queue, with as many entries as the queue has pieces, so neither side can
 * overflow. start only writes the submission entry. flush submits all of them. reap also waits
 * in the same system call. Registered buffers stay pinned, which saves a page-table walk per
 * request. */
#include "io/io_posix.h"

#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/log.h"
#include "base/mem.h"

/* A new ring may get the addresses of one that another thread has just closed. The kernel orders
 * closing before opening. The lock makes this order visible to the thread sanitizer, which does not
 * see liburing's system calls. */
static pthread_mutex_t mapping = PTHREAD_MUTEX_INITIALIZER;

/* Opens a queue without a ring: rings count against RLIMIT_MEMLOCK, which is often small. */
static int open_without_ring(struct io_queue *q)
{
    static atomic_bool said;
    log_warn_once(
        &said, "no memory may be locked for another io_uring queue: its transfers do not "
               "overlap (raise the limit: ulimit -l)");
    q->ops = &io_pread_queue_ops;
    return q->ops->open(q);
}

static int ring_open(struct io_queue *q)
{
    struct io_uring *ring = xcalloc(1, sizeof *ring);
    pthread_mutex_lock(&mapping);
    int rc = io_uring_queue_init(q->depth, ring, 0);
    pthread_mutex_unlock(&mapping);
    if (rc != 0) {
        free(ring);
        return rc == -ENOMEM ? open_without_ring(q) : rc;
    }
    q->backend = ring;
    return 0;
}

static void ring_close(struct io_queue *q)
{
    pthread_mutex_lock(&mapping);
    io_uring_queue_exit(q->backend);
    pthread_mutex_unlock(&mapping);
    free(q->backend);
}

static int ring_register_buffers(struct io_queue *q, const struct io_buffer *buffers,
                                 unsigned n)
{
    struct iovec *v = xcalloc(n, sizeof *v);
    for (unsigned i = 0; i < n; i++)
        v[i] = (struct iovec){.iov_base = buffers[i].base, .iov_len = buffers[i].length};
    int rc = io_uring_register_buffers(q->backend, v, n);
    free(v);
    return rc;
}

static void ring_start(struct io_queue *q, struct io_piece *p)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(q->backend);
    CHECK(sqe != NULL);
    int fd = p->is_cached ? io_posix_cached_fd(p->file) : io_posix_fd(p->file);
    unsigned n = (unsigned)p->length;
    bool is_fixed = p->buffer_idx >= 0;
    if (is_fixed && p->op == IO_READ)
        io_uring_prep_read_fixed(sqe, fd, p->buf, n, p->offset, p->buffer_idx);
    else if (is_fixed)
        io_uring_prep_write_fixed(sqe, fd, p->buf, n, p->offset, p->buffer_idx);
    else if (p->op == IO_READ)
        io_uring_prep_read(sqe, fd, p->buf, n, p->offset);
    else
        io_uring_prep_write(sqe, fd, p->buf, n, p->offset);
    io_uring_sqe_set_data(sqe, p);
}

static struct io_piece *collect(struct io_uring *ring)
{
    struct io_piece *list = NULL, **tail = &list;
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(ring, &cqe) == 0) {
        struct io_piece *p = io_uring_cqe_get_data(cqe);
        if (p == NULL) {
            io_uring_cqe_seen(ring, cqe);
            continue;
        }
        p->result = cqe->res;
        p->next = NULL;
        *tail = p;
        tail = &p->next;
        io_uring_cqe_seen(ring, cqe);
    }
    return list;
}

/* Submits all entries. If that fails, the next reap returns the error. */
static void ring_flush(struct io_queue *q)
{
    io_uring_submit(q->backend);
}

/* Returns whether a code is no failure: interrupted, timed out, or the kernel lacks memory for a
 * moment and takes the rest with the next call. */
static bool is_benign(int rc)
{
    return rc >= 0 || rc == -EINTR || rc == -ETIME || rc == -EAGAIN || rc == -EBUSY;
}

static int ring_reap(struct io_queue *q, int64_t timeout_ns, struct io_piece **done)
{
    struct io_uring *ring = q->backend;
    struct io_uring_cqe *cqe;
    int rc;
    if (timeout_ns < 0) {
        rc = io_uring_submit_and_wait(ring, 1);
    } else if (timeout_ns == 0) {
        rc = io_uring_submit(ring);
    } else {
        struct __kernel_timespec t = {.tv_sec = timeout_ns / 1000000000,
                                      .tv_nsec = timeout_ns % 1000000000};
        rc = io_uring_submit_and_wait_timeout(ring, &cqe, 1, &t, NULL);
    }
    *done = collect(ring);
    return *done != NULL || is_benign(rc) ? 0 : rc;
}

/* Cancels all pieces. `collect` skips the cancel request's own answer, which has no piece. */
static void ring_cancel(struct io_queue *q)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(q->backend);
    if (sqe == NULL)
        return;
    io_uring_prep_cancel64(sqe, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
    io_uring_sqe_set_data(sqe, NULL);
    io_uring_submit(q->backend);
}

static int ring_fd(const struct io_queue *q)
{
    return ((const struct io_uring *)q->backend)->ring_fd;
}

static const struct io_queue_ops ring_ops = {
    .open = ring_open,
    .close = ring_close,
    .register_buffers = ring_register_buffers,
    .start = ring_start,
    .flush = ring_flush,
    .reap = ring_reap,
    .cancel = ring_cancel,
    .fd = ring_fd,
};

int io_uring_open(struct io **out, struct err *err)
{
    *out = NULL;
    struct io_uring probe;
    int rc = io_uring_queue_init(1, &probe, 0);
    if (rc == -ENOSYS || rc == -EPERM || rc == -EACCES || rc == -ENOMEM)
        return err_set(err, ERR_UNSUPPORTED, "io_uring is not available here (%s)",
                       err_name(rc));
    if (rc != 0)
        return err_set(err, rc, "io_uring: %s", err_name(rc));
    io_uring_queue_exit(&probe);
    *out = io_posix_create("uring", &ring_ops);
    return 0;
}

struct io *io_machine_open(struct err *why)
{
    struct err unsupported = {0};
    struct io *io;
    int rc = io_uring_open(&io, why != NULL ? why : &unsupported);
    return rc == 0 ? io : io_pread_open();
}
