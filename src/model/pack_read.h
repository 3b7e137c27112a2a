/* pack_read.h - reads parts of a packed file with O_DIRECT, and checks every MiB as it arrives.
 *
 *   pack_reader_begin(r, job, part, dst)   queues the part; several may be in flight
 *   pack_reader_step(r, ...)               checks arrived bytes, and returns a job that has ended
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
    /* Totals since the reader was opened. */
    uint64_t n_bytes;
    int64_t verify_ns; /* the thread's time for checksums */
};

/* One part that is being read.  The caller keeps the struct where it is until the job has ended. */
struct pack_job {
    size_t part;
    uint8_t *dst;
    void *user;
    int rc; /* 0, or the first error, whose message is in err */
    struct err err;
    /* Private to pack_read.c. */
    size_t n_left;
    struct io_req *reqs;
    struct io_req **list;
    size_t room;
};

/* Opens a reader. f must outlive the reader. io is borrowed; NULL: the machine's best one. */
int pack_reader_open(struct pack_reader *r, const struct pack_file *f, struct io *io,
                     struct err *err);
/* Closes a reader. Waits for reads in flight. */
void pack_reader_close(struct pack_reader *r);

/* Queues a part to be read to dst, which is page-aligned.  Returns false if the part is empty; the
 * job has then already ended. */
bool pack_reader_begin(struct pack_reader *r, struct pack_job *j, size_t part, void *dst);
void pack_job_deinit(struct pack_job *j);

/* Waits at most timeout_ns (negative: forever) for bytes, and checks them. *n gets the number of
 * MiB that have ended; *done gets a job that has ended, or NULL. A returned error is the queue's
 * own, and makes the reader unusable. */
int pack_reader_step(struct pack_reader *r, int64_t timeout_ns, unsigned *n,
                     struct pack_job **done, struct err *err);

/* Asks all reads to end early: jobs end with -ECANCELED, unless the device keeps a request. */
static inline void pack_reader_cancel(struct pack_reader *r)
{
    io_queue_cancel(r->q);
}

/* Reads one part and waits for it. */
int pack_reader_read(struct pack_reader *r, size_t part, void *dst, struct err *err);

#endif
