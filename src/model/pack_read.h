/* pack_read.h - reads parts of a packed file with O_DIRECT, and checks every MiB as it arrives.
 *
 *   pack_reader_begin(r, job, part, dst)   queues the part; several may be under way
 *   pack_reader_step(r, ...)               checks what has arrived, and says which job has ended
 *
 * Disk and checksums overlap: while one MiB is checked, the queue reads the next ones.  A reader
 * belongs to one thread at a time. */
#ifndef MODEL_PACK_READ_H
#define MODEL_PACK_READ_H

#include "io/io.h"
#include "model/pack_file.h"

struct pack_reader {
    const struct pack_file *f;
    struct io *io;
    bool owns_io;
    struct io_file *file;
    struct io_queue *q;
    /* Totals since it was opened. */
    uint64_t n_bytes;
    int64_t verify_ns; /* of the thread's time: the checksums */
};

/* One part that is being read, in the caller's memory until it has ended. */
struct pack_job {
    size_t part;
    uint8_t *dst;
    void *user;
    int rc; /* 0, or what went wrong first; err says it */
    struct err err;
    /* private */
    size_t n_left;
    struct io_req *reqs;
    struct io_req **list;
    size_t room;
};

/* f outlives the reader.  io: borrowed; NULL: the machine's best way to read. */
int pack_reader_open(struct pack_reader *r, const struct pack_file *f, struct io *io,
                     struct err *err);
void pack_reader_close(struct pack_reader *r); /* waits for what is in flight */

/* Queues the part's bytes for dst, which is page-aligned.  A part of no bytes has ended at once:
 * false. */
bool pack_reader_begin(struct pack_reader *r, struct pack_job *j, size_t part, void *dst);
void pack_job_deinit(struct pack_job *j);

/* Waits at most timeout_ns (negative: for ever) for bytes, and checks them. *n: how many MiB
 * have ended; *done: a job that has, else NULL.  An error is the queue's own: it is of no use
 * any more. */
int pack_reader_step(struct pack_reader *r, int64_t timeout_ns, unsigned *n,
                     struct pack_job **done, struct err *err);

/* Asks for an early end of all that is under way: the jobs end with -ECANCELED, unless the device
 * keeps a request. */
static inline void pack_reader_cancel(struct pack_reader *r)
{
    io_queue_cancel(r->q);
}

/* Reads one part, waiting for it. */
int pack_reader_read(struct pack_reader *r, size_t part, void *dst, struct err *err);

#endif
