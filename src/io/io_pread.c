/* io_pread.c - io_pread_open: works everywhere.
 *
 * Its queues transfer nothing in the background: each reap transfers one piece, in the order in
 * which the pieces were started. A program runs unchanged, but transfers do not overlap its other
 * work. */
#include "io/io_posix.h"

#include <stdlib.h>

#include "base/mem.h"

struct fifo {
    struct io_piece *first, **tail;
};

static int fifo_open(struct io_queue *q)
{
    struct fifo *fifo = xcalloc(1, sizeof *fifo);
    fifo->tail = &fifo->first;
    q->backend = fifo;
    return 0;
}

static void fifo_close(struct io_queue *q)
{
    free(q->backend);
}

static int fifo_register_buffers(struct io_queue *q, const struct io_buffer *buffers,
                                 unsigned n)
{
    (void)q;
    (void)buffers;
    (void)n;
    return 0;
}

static void fifo_start(struct io_queue *q, struct io_piece *p)
{
    struct fifo *fifo = q->backend;
    p->next = NULL;
    *fifo->tail = p;
    fifo->tail = &p->next;
}

static void fifo_flush(struct io_queue *q)
{
    (void)q;
}

static int fifo_reap(struct io_queue *q, int64_t timeout_ns, struct io_piece **done)
{
    (void)timeout_ns;
    struct fifo *fifo = q->backend;
    struct io_piece *p = fifo->first;
    fifo->first = p->next;
    if (fifo->first == NULL)
        fifo->tail = &fifo->first;
    p->next = NULL;
    p->result = p->is_cached ? io_posix_read_cached(p)
                : p->op == IO_READ
                    ? io_posix_ops.file_pread(p->file, p->buf, p->length, p->offset)
                    : io_posix_ops.file_pwrite(p->file, p->buf, p->length, p->offset);
    *done = p;
    return 0;
}

const struct io_queue_ops io_pread_queue_ops = {
    .open = fifo_open,
    .close = fifo_close,
    .register_buffers = fifo_register_buffers,
    .start = fifo_start,
    .flush = fifo_flush,
    .reap = fifo_reap,
};

struct io *io_pread_open(void)
{
    return io_posix_create("pread", &io_pread_queue_ops);
}
