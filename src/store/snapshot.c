/* snapshot.c - reads a store beside the process that has it open.
 *
 * The index is copied into memory and opened there, so that no part of it is locked or changed. The
 * copy is consistent, because the database is copied before its log. A checkpoint that runs
 * meanwhile writes only pages that the log holds, and the log holds them until it begins anew with
 * another salt. So equal log headers before and after the copying prove that the two belong
 * together.
 *
 * Extents are read from the segment files as they are. An extent that was evicted since may be
 * overwritten. store_verify then calls it damaged, and the caller looks again. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "io/io.h"
#include "io/io_sim.h"
#include "store/store_impl.h"

enum { LOG_HEADER = 32, TRIES = 50, COPY_BYTES = 1 << 20 };

/* Reads the header of the log; zeros if there is none. */
static int log_header(struct io *io, const char *path, uint8_t out[LOG_HEADER],
                      struct err *err)
{
    struct io_file *f = NULL;
    size_t got;
    memset(out, 0, LOG_HEADER);
    int rc = io_file_open(io, path, IO_READ_ONLY, &f, err);
    if (rc == 0)
        rc = io_file_pread_some(f, out, LOG_HEADER, 0, &got, err);
    io_file_close(f);
    return rc == -ENOENT ? 0 : rc;
}

static int file_copy(struct io *from, const char *path, struct io *to, const char *as,
                     struct err *err)
{
    struct io_file *in = NULL, *out = NULL;
    uint8_t *bytes = xmalloc(COPY_BYTES);
    size_t got = COPY_BYTES;
    int rc = io_file_open(from, path, IO_READ_ONLY, &in, err);
    if (rc == -ENOENT) { /* a missing log counts as empty */
        free(bytes);
        return 0;
    }
    if (rc == 0)
        rc = io_file_open(to, as, IO_CREATE, &out, err);
    if (rc == 0)
        rc = io_file_truncate(out, 0, err);
    for (uint64_t at = 0; rc == 0 && got == COPY_BYTES; at += got) {
        rc = io_file_pread_some(in, bytes, COPY_BYTES, at, &got, err);
        if (rc == 0 && got > 0)
            rc = io_file_pwrite(out, bytes, got, at, err);
    }
    io_file_close(in);
    io_file_close(out);
    free(bytes);
    return rc;
}

static int copy_once(struct io *io, const char *index, const char *log, struct io *to,
                     bool *good, struct err *err)
{
    uint8_t before[LOG_HEADER], after[LOG_HEADER];
    int rc = log_header(io, log, before, err);
    if (rc == 0)
        rc = file_copy(io, index, to, STORE_SNAPSHOT_PATH, err);
    if (rc == 0)
        rc = file_copy(io, log, to, STORE_SNAPSHOT_PATH "-wal", err);
    if (rc == 0)
        rc = log_header(io, log, after, err);
    *good = rc == 0 && memcmp(before, after, LOG_HEADER) == 0;
    return rc;
}

int store_snapshot_index(struct store *s, struct err *err)
{
    char *log = xasprintf("%s-wal", s->index_path);
    bool good = false;
    int rc = 0;
    for (int i = 0; i < TRIES && rc == 0 && !good; i++) {
        struct io_sim_opts o = {.capacity_bytes = (uint64_t)1 << 40};
        io_close(s->snapshot);
        s->snapshot = NULL;
        rc = io_sim_open(&o, &s->snapshot, err);
        if (rc == 0)
            rc = copy_once(s->io, s->index_path, log, s->snapshot, &good, err);
    }
    if (rc == 0 && !good)
        rc = err_set(err, ERR_BUSY, "the index in %s changes too fast to be read",
                     s->dirs[0]);
    free(log);
    return rc;
}
