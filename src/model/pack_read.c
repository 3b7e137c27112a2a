/* pack_read.c - see pack_read.h. */
#include "model/pack_read.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

/* Number of MiB in flight: 4 to 8 in the kernel reach the disk's full speed, and the others are
 * being checked. */
enum { DEPTH = 12 };

int pack_reader_open(struct pack_reader *r, const struct pack_file *f, struct io *io,
                     struct err *err)
{
    *r = (struct pack_reader){.f = f, .io = io};
    if (io == NULL) {
        struct err why = {0};
        r->owns_io = true;
        r->io = io_machine_open(&why);
        if (why.code != 0)
            log_info("%s; weights are read with plain reads", why.msg);
    }
    int rc = io_file_open(r->io, f->path, IO_READ_ONLY | IO_DIRECT, &r->file, err);
    return rc == 0 ? io_queue_open(r->io, DEPTH, &r->q, err) : rc;
}

void pack_reader_close(struct pack_reader *r)
{
    io_queue_close(r->q);
    io_file_close(r->file);
    if (r->owns_io)
        io_close(r->io);
    *r = (struct pack_reader){0};
}

bool pack_reader_begin(struct pack_reader *r, struct pack_job *j, size_t part, void *dst)
{
    const struct pack_part *p = &r->f->parts[part];
    size_t n = pack_part_sums(p);
    if (n > j->room) {
        j->reqs = xrealloc(j->reqs, n * sizeof *j->reqs);
        j->list = xrealloc(j->list, n * sizeof(struct io_req *));
        j->room = n;
    }
    j->part = part;
    j->dst = dst;
    j->rc = 0;
    j->n_left = n;
    for (size_t i = 0; i < n; i++) {
        uint64_t at = (uint64_t)i * PACK_SUM_BYTES, left = p->bytes - at;
        j->reqs[i] = (struct io_req){.file = r->file,
                                     .op = IO_READ,
                                     .buf = j->dst + at,
                                     .length = left < PACK_SUM_BYTES ? (size_t)left
                                                                     : PACK_SUM_BYTES,
                                     .offset = p->at + at,
                                     .user = j};
        j->list[i] = &j->reqs[i];
    }
    if (n > 0)
        io_queue_submit(r->q, j->list, (unsigned)n);
    return n > 0;
}

void pack_job_deinit(struct pack_job *j)
{
    free(j->reqs);
    free(j->list);
    *j = (struct pack_job){0};
}

static void check(struct pack_reader *r, struct pack_job *j, const struct io_req *q)
{
    const struct pack_part *p = &r->f->parts[j->part];
    size_t i = (size_t)(q - j->reqs);
    if (q->result != 0) {
        if (j->rc == 0)
            j->rc = io_req_err(q, &j->err);
        return;
    }
    int64_t t0 = clock_now_ns();
    bool good = checksum64(q->buf, q->length) == r->f->sums[p->first_sum + i];
    r->verify_ns += clock_now_ns() - t0;
    r->n_bytes += q->length;
    if (!good && j->rc == 0)
        j->rc = err_set(
            &j->err, ERR_CORRUPT,
            "%s: the weights are damaged at byte %llu (checksum): pack the model again",
            r->f->path, (unsigned long long)q->offset);
}

int pack_reader_step(struct pack_reader *r, int64_t timeout_ns, unsigned *n,
                     struct pack_job **done, struct err *err)
{
    struct io_req *q = NULL;
    *done = NULL;
    int rc = io_queue_wait(r->q, 1, 1, timeout_ns, &q, n, err);
    if (rc != 0 || *n == 0)
        return rc;
    struct pack_job *j = q->user;
    CHECK(j->n_left > 0);
    check(r, j, q);
    if (--j->n_left == 0)
        *done = j;
    return 0;
}

int pack_reader_read(struct pack_reader *r, size_t part, void *dst, struct err *err)
{
    struct pack_job j = {0}, *done = NULL;
    unsigned n;
    int rc = 0;
    if (pack_reader_begin(r, &j, part, dst))
        while (rc == 0 && done == NULL)
            rc = pack_reader_step(r, -1, &n, &done, err);
    if (rc == 0 && j.rc != 0) {
        rc = j.rc;
        if (err != NULL)
            *err = j.err;
    }
    pack_job_deinit(&j);
    return rc;
}
