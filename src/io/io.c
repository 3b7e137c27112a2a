/* io.c - the front of a file system: checks, full transfers, messages. See io.h.
 *
 * It knows no system call and no backend. Invariants:
 * 1. A transfer that breaks the alignment of its file never reaches a backend.
 * 2. A short transfer is continued; only the end of the file or a code ends it early.
 * 3. A file whose sync has failed once never reports a successful sync again. */
#include "io/io_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/mem.h"

void io_init(struct io *io, const char *name, const struct io_ops *ops,
             const struct io_queue_ops *queue_ops)
{
    io->name = name;
    io->ops = ops;
    io->queue_ops = queue_ops;
    io_throttle_init(&io->throttle[IO_READ]);
    io_throttle_init(&io->throttle[IO_WRITE]);
}

void io_deinit(struct io *io)
{
    io_throttle_deinit(&io->throttle[IO_READ]);
    io_throttle_deinit(&io->throttle[IO_WRITE]);
}

void io_share_disk(struct io *io, struct io_turn *turn, bool goes_first)
{
    io->turn = turn;
    io->goes_first = goes_first;
}

void io_close(struct io *io)
{
    if (io != NULL)
        io->ops->close(io);
}

const char *io_name(const struct io *io)
{
    return io->name;
}

void io_throttle(struct io *io, uint64_t read_rate, uint64_t write_rate)
{
    if (io->ops->throttle != NULL)
        io->ops->throttle(io, read_rate, write_rate);
    for (int op = 0; op < 2 && io->ops->throttle == NULL; op++)
        io_throttle_set(&io->throttle[op], op == IO_READ ? read_rate : write_rate);
}

int io_random(struct io *io, void *buf, size_t n, struct err *err)
{
    int rc = io->ops->random(io, buf, n);
    return rc == 0 ? 0 : err_set(err, rc, "random bytes: %s", err_name(rc));
}

/* ---- Files ------------------------------------------------------------------------------- */

int io_code(int rc)
{
    return rc == -EDQUOT || rc == -EFBIG ? -ENOSPC : rc;
}

static int file_err(const struct io_file *f, const char *verb, int rc, struct err *err)
{
    return rc == 0 ? 0
                   : err_set(err, io_code(rc), "%s %s: %s", verb, f->path, err_name(rc));
}

int io_file_open(struct io *io, const char *path, unsigned flags, struct io_file **out,
                 struct err *err)
{
    *out = NULL;
    if ((flags & IO_READ_ONLY) != 0 && (flags & IO_CREATE) != 0)
        return err_set(err, -EINVAL, "open %s: cannot create a read-only file", path);
    struct io_file *f = NULL;
    int rc = io->ops->file_open(io, path, flags, &f);
    if (rc != 0)
        return err_set(err, io_code(rc), "open %s: %s", path,
                       rc == ERR_CRASHED ? "the simulated disk has lost power"
                       : rc == -ELOOP    ? "it is a symbolic link, which is not followed"
                       : rc == -ESPIPE || rc == -ENXIO ? "it is not a regular file"
                                                       : err_name(rc));
    f->io = io;
    f->path = xstrdup(path);
    f->flags = flags;
    if (f->read_align == 0)
        f->read_align = IO_ALIGN;
    atomic_init(&f->sync_failed, 0);
    *out = f;
    return 0;
}

void io_file_close(struct io_file *f)
{
    if (f == NULL)
        return;
    free(f->path);
    f->io->ops->file_close(f);
}

const char *io_file_path(const struct io_file *f)
{
    return f->path;
}

uint32_t io_file_read_align(const struct io_file *f)
{
    return f->read_align;
}

int io_file_fd(const struct io_file *f)
{
    bool throttled = f->io->throttle[IO_READ].bytes_per_s != 0;
    return f->io->ops->file_fd == NULL || throttled ? -1 : f->io->ops->file_fd(f);
}

static bool is_aligned(uint64_t n)
{
    return n % IO_ALIGN == 0;
}

/* Returns whether a file can have these bytes. */
static bool is_place(uint64_t offset, uint64_t n_bytes)
{
    int64_t end;
    return !__builtin_add_overflow(offset, n_bytes, &end);
}

/* Returns the alignment of buffer, offset and length that a direct transfer needs. */
static uint32_t align_of(const struct io_file *f, enum io_op op)
{
    return op == IO_READ ? f->read_align : IO_ALIGN;
}

int io_check_transfer(const struct io_file *f, enum io_op op, const void *buf, size_t n,
                      uint64_t offset)
{
    if (!is_place(offset, n))
        return -EINVAL;
    if ((f->flags & IO_DIRECT) == 0)
        return 0;
    return (((uintptr_t)buf | n | offset) & (align_of(f, op) - 1)) == 0 ? 0 : -EINVAL;
}

/* A short direct transfer whose length is not a multiple of a sector has met the end of the file:
 * the kernel stops one elsewhere only between sectors. */
int io_attempt_result(const struct io_file *f, enum io_op op, size_t n, ssize_t r,
                      size_t *step)
{
    *step = 0;
    if (r == -EINTR || r == -EAGAIN)
        return 0;
    if (r < 0)
        return (int)r;
    CHECK((size_t)r <= n);
    *step = (size_t)r;
    if ((size_t)r == n)
        return 0;
    if (r == 0 || (f->direct && (size_t)r % align_of(f, op) != 0))
        return op == IO_READ ? -ENODATA : -EIO;
    return 0;
}

int io_transfer_err(const struct io_file *f, enum io_op op, size_t n, uint64_t offset,
                    int code, struct err *err)
{
    const char *why = err_name(code);
    char aligned[80];
    snprintf(aligned, sizeof aligned,
             "buffer, offset and length of a direct file must be multiples of %u",
             align_of(f, op));
    if (code == -ENODATA)
        why = "the file ends before";
    else if (code == -EINVAL && (f->flags & IO_DIRECT) != 0)
        why = aligned;
    return err_set(err, io_code(code), "%s %zu bytes at %llu of %s: %s",
                   op == IO_READ ? "read" : "write", n, (unsigned long long)offset, f->path,
                   why);
}

/* Transfers n bytes. Returns 0 or a code; *done gets the transferred bytes in either case. */
static int transfer(struct io_file *f, enum io_op op, uint8_t *buf, size_t n,
                    uint64_t offset, size_t *done)
{
    const struct io_ops *ops = f->io->ops;
    *done = 0;
    int rc = io_check_transfer(f, op, buf, n, offset);
    int64_t ready_ns = rc == 0 ? io_throttle_reserve(&f->io->throttle[op], n) : 0;
    while (rc == 0 && *done < n) {
        uint8_t *p = buf + *done;
        size_t left = n - *done, step;
        uint64_t at = offset + *done;
        ssize_t r = op == IO_READ ? ops->file_pread(f, p, left, at)
                                  : ops->file_pwrite(f, p, left, at);
        rc = io_attempt_result(f, op, left, r, &step);
        *done += step;
    }
    io_throttle_wait(&f->io->throttle[op], ready_ns);
    return rc;
}

int io_file_pread(struct io_file *f, void *buf, size_t n, uint64_t offset, struct err *err)
{
    size_t done;
    int rc = transfer(f, IO_READ, buf, n, offset, &done);
    return rc == 0 ? 0 : io_transfer_err(f, IO_READ, n, offset, rc, err);
}

int io_file_pread_some(struct io_file *f, void *buf, size_t n, uint64_t offset, size_t *got,
                       struct err *err)
{
    int rc = transfer(f, IO_READ, buf, n, offset, got);
    if (rc == 0 || rc == -ENODATA)
        return 0;
    return io_transfer_err(f, IO_READ, n, offset, rc, err);
}

int io_read_head(struct io *io, const char *path, void *out, size_t n, size_t *got,
                 struct err *err)
{
    struct io_file *f = NULL;
    memset(out, 0, n);
    *got = 0;
    int rc = io_file_open(io, path, IO_READ_ONLY, &f, err);
    if (rc == 0)
        rc = io_file_pread_some(f, out, n, 0, got, err);
    io_file_close(f);
    return rc == -ENOENT ? 0 : rc;
}

int io_write_durably(struct io *io, const char *path, unsigned flags, const void *bytes,
                     size_t n, uint64_t offset, struct err *err)
{
    struct io_file *f = NULL;
    int rc = io_file_open(io, path, flags, &f, err);
    if (rc == 0)
        rc = io_file_pwrite(f, bytes, n, offset, err);
    if (rc == 0)
        rc = io_file_sync(f, err);
    io_file_close(f);
    return rc;
}

int io_touch(struct io *io, const char *path, struct err *err)
{
    struct io_file *f = NULL;
    int rc = io_file_open(io, path, IO_CREATE, &f, err);
    io_file_close(f);
    return rc == 0 ? io_parent_sync(io, path, err) : rc;
}

int io_file_pwrite(struct io_file *f, const void *buf, size_t n, uint64_t offset,
                   struct err *err)
{
    size_t done;
    /* The cast is safe: one loop serves both directions, and a write only reads the buffer. */
    int rc = transfer(f, IO_WRITE, (uint8_t *)(uintptr_t)buf, n, offset, &done);
    return rc == 0 ? 0 : io_transfer_err(f, IO_WRITE, n, offset, rc, err);
}

int io_file_sync(struct io_file *f, struct err *err)
{
    int rc = atomic_load(&f->sync_failed);
    if (rc != 0)
        return err_set(err, rc,
                       "sync %s: an earlier sync failed (%s), its writes may be lost",
                       f->path, err_name(rc));
    rc = f->io->ops->file_sync(f);
    if (rc != 0)
        atomic_store(&f->sync_failed, rc);
    return file_err(f, "sync", rc, err);
}

int io_file_size(struct io_file *f, uint64_t *size_bytes, struct err *err)
{
    return file_err(f, "size of", f->io->ops->file_size(f, size_bytes), err);
}

int io_file_truncate(struct io_file *f, uint64_t size_bytes, struct err *err)
{
    int rc = size_bytes > INT64_MAX ? -EINVAL : f->io->ops->file_truncate(f, size_bytes);
    return file_err(f, "truncate", rc, err);
}

int io_file_allocate(struct io_file *f, uint64_t offset, uint64_t length, struct err *err)
{
    bool fits = is_place(offset, length) && length > 0;
    return file_err(f, "allocate",
                    fits ? f->io->ops->file_allocate(f, offset, length) : -EINVAL, err);
}

int io_file_punch(struct io_file *f, uint64_t offset, uint64_t length, struct err *err)
{
    bool fits = is_place(offset, length) && length > 0 && is_aligned(offset) &&
                is_aligned(length);
    return file_err(f, "punch", fits ? f->io->ops->file_punch(f, offset, length) : -EINVAL,
                    err);
}

int io_file_next_data(struct io_file *f, uint64_t at, uint64_t *begin, uint64_t *end,
                      struct err *err)
{
    *begin = *end = at;
    int rc = at > INT64_MAX ? -EINVAL : f->io->ops->file_next_data(f, at, begin, end);
    return rc == -ENXIO ? 0 : file_err(f, "find data in", rc, err);
}

int io_file_lock(struct io_file *f, struct err *err)
{
    int rc = f->io->ops->file_lock(f);
    if (rc == ERR_BUSY)
        return err_set(err, rc, "lock %s: held by another process or another opening",
                       f->path);
    return file_err(f, "lock", rc, err);
}

int io_file_unlock(struct io_file *f, struct err *err)
{
    return file_err(f, "unlock", f->io->ops->file_unlock(f), err);
}
