/* life_device.c - see life_device.h. */
#include "tests/restore/life_device.h"

#include <errno.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "io/io_impl.h"
#include "tensor/device.h"

enum { MAX_FILES = 256, FIRST_FD = 1000, BATCH_MOST = 8 };

static struct device_vtable split_vtable;
static struct io_ops disk_ops;
static struct io *disk;
static const struct io_file *files[MAX_FILES];
static int n_files;
static struct rng rng;
static struct life_reader_counts counts;

struct batch {
    struct file_read *reads;
    void *user;
    int n, n_left;
    struct io_req req[BATCH_MOST];
};

struct reader {
    struct file_reader base;
    struct io_queue *queue;
    int n_batches, first, n;
    struct batch batch[]; /* a ring: batches [first, first + n) are under way */
};

/* --- descriptors ------------------------------------------------------------------------------ */

static int fd_of(const struct io_file *f)
{
    int i = 0;
    while (i < n_files && files[i] != f)
        i++;
    if (i == n_files) {
        CHECK(n_files < MAX_FILES);
        files[n_files++] = f;
    }
    return FIRST_FD + i;
}

static struct io_file *file_of(int fd)
{
    CHECK(fd >= FIRST_FD && fd < FIRST_FD + n_files);
    return (struct io_file *)(uintptr_t)files[fd - FIRST_FD];
}

/* --- the reader ------------------------------------------------------------------------------- */

static struct batch *batch_at(struct reader *r, int i)
{
    return &r->batch[(r->first + i) % r->n_batches];
}

static int reader_submit(struct file_reader *base, struct file_read *reads, int n,
                         void *user, struct err *err)
{
    struct reader *r = (struct reader *)base;
    CHECK(n > 0 && n <= BATCH_MOST && r->n < r->n_batches);
    if (rng_below(&rng, 200) == 0) {
        counts.n_refused++;
        return err_set(err, ERR_UNSUPPORTED, "the seed refuses a batch");
    }
    struct batch *b = batch_at(r, r->n++);
    b->reads = reads;
    b->user = user;
    b->n = b->n_left = n;
    for (int i = 0; i < n; i++) {
        struct io_req *q = &b->req[i];
        reads[i].status = -EINPROGRESS;
        b->req[i] = (struct io_req){.file = file_of(reads[i].fd),
                                    .op = IO_READ,
                                    .buf = reads[i].dst,
                                    .length = reads[i].bytes,
                                    .offset = reads[i].offset,
                                    .user = &reads[i]};
        io_queue_submit(r->queue, &q, 1);
    }
    counts.n_batches++;
    return 0;
}

/* Notes that a request has ended. Its read belongs to a batch that is under way. */
static void ended(struct reader *r, const struct io_req *q)
{
    struct file_read *read = q->user;
    read->status = q->result;
    for (int i = 0; i < r->n; i++) {
        struct batch *b = batch_at(r, i);
        if (read >= b->reads && read < b->reads + b->n)
            b->n_left--;
    }
}

/* Waits for the batch, for at most most_ns nanoseconds. */
static void await(struct reader *r, const struct batch *b, int64_t most_ns)
{
    int64_t until = clock_now_ns() + most_ns;
    for (int64_t left = most_ns; b->n_left > 0 && left > 0; left = until - clock_now_ns()) {
        struct io_req *done = NULL;
        unsigned n = 0;
        struct err err = {0};
        int rc = io_queue_wait(r->queue, 1, 1, left, &done, &n, &err);
        CHECK(rc == 0);
        if (n > 0)
            ended(r, done);
    }
}

static int reader_wait(struct file_reader *base, int64_t timeout_ns, void **user,
                       struct err *err)
{
    struct reader *r = (struct reader *)base;
    struct batch *b = batch_at(r, 0);
    int rc = 0;
    *user = NULL;
    CHECK(r->n > 0);
    await(r, b, timeout_ns);
    if (rng_below(&rng, 200) == 0) {
        rc = err_set(err, -EIO, "the seed breaks the reader");
        counts.n_broken++;
        while (b->n_left > 0) {
            io_queue_cancel(r->queue);
            await(r, b, 1000000);
        }
    }
    if (b->n_left > 0)
        return 0;
    *user = b->user;
    r->first = (r->first + 1) % r->n_batches;
    r->n--;
    return rc;
}

static void reader_cancel(struct file_reader *base)
{
    counts.n_cancels++;
    io_queue_cancel(((struct reader *)base)->queue);
}

static void reader_close(struct file_reader *base)
{
    struct reader *r = (struct reader *)base;
    CHECK(r->n == 0);
    io_queue_close(r->queue);
    free(r);
}

static int reader_open(struct device *d, const struct buf *into, int n_batches,
                       struct file_reader **out, struct err *err)
{
    (void)d, (void)into;
    struct reader *r = xcalloc(1, sizeof *r + (size_t)n_batches * sizeof r->batch[0]);
    r->base = (struct file_reader){reader_submit, reader_wait, reader_cancel, reader_close};
    r->n_batches = n_batches;
    int rc = io_queue_open(disk, 64, &r->queue, err);
    if (rc != 0) {
        free(r);
        return rc;
    }
    *out = &r->base;
    return 0;
}

/* --- set up ----------------------------------------------------------------------------------- */

void life_device_split(struct device *dev)
{
    split_vtable = *dev->v;
    split_vtable.file_reader_open = reader_open;
    dev->v = &split_vtable;
    dev->unified = false;
}

void life_device_disk(struct io *io, uint64_t seed)
{
    disk_ops = *io->ops;
    disk_ops.file_fd = fd_of;
    io->ops = &disk_ops;
    disk = io;
    n_files = 0;
    rng.s = rng_mix(seed ^ 0x66696c65);
}

struct life_reader_counts life_device_counts(void)
{
    return counts;
}
