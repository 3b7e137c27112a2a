/* test_io_syscalls.c - failing system calls under the real backends.
 *
 * This file defines every call that io_posix.c and io_uring.c make. Each definition passes the call
 * on to the function of the C library or of liburing, and fails when a test asks. After a failure
 * the operation's error names call and place, nothing stays half done, and later calls work
 * again. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "tests/unit.h"
#include "io/io_erase.h"
#include "iotest.h"

/* --- the calls -------------------------------------------------------------------------------- */

/* The next `count` calls of `name` fail with `error`. If `error` is 0, they transfer at most
 * short_bytes instead. */
struct fault {
    const char *name;
    int error;
    size_t short_bytes;
    unsigned count, n_hits;
};
static struct fault armed[2];

static struct fault *arm(const char *name, int error, unsigned count)
{
    struct fault *f = armed[0].name == NULL ? &armed[0] : &armed[1];
    assert_null(f->name);
    *f = (struct fault){.name = name, .error = error, .count = count};
    return f;
}

/* Removes the armed faults. Returns how many calls they changed. */
static unsigned disarm(void)
{
    unsigned n = armed[0].n_hits + armed[1].n_hits;
    memset(armed, 0, sizeof armed);
    return n;
}

static const struct fault *hit_of(const char *name)
{
    for (struct fault *f = armed; f < armed + 2; f++)
        if (f->name != NULL && strcmp(f->name, name) == 0 && f->n_hits < f->count) {
            f->n_hits++;
            return f;
        }
    return NULL;
}

/* For calls of the C library that return -1 on failure. Returns whether this call shall fail, and
 * sets errno. */
static bool fails(const char *name)
{
    const struct fault *f = hit_of(name);
    if (f != NULL)
        errno = f->error;
    return f != NULL;
}

/* For calls that transfer n bytes. Returns -1 with errno set, or the number of bytes that this call
 * may transfer. */
static ssize_t transfer(const char *name, size_t n)
{
    const struct fault *f = hit_of(name);
    if (f == NULL)
        return (ssize_t)n;
    errno = f->error;
    return f->error != 0 ? -1 : (ssize_t)(n < f->short_bytes ? n : f->short_bytes);
}

/* The function of the C library or of liburing with this name, which the definition in this file
 * hides. */
#define REAL(name) ((__typeof__(&(name)))(uintptr_t)dlsym(RTLD_NEXT, #name))

int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    if ((flags & O_DIRECT) != 0 && fails("open direct"))
        return -1;
    return fails("open") ? -1 : REAL(open)(path, flags, mode);
}

int fcntl(int fd, int op, ...)
{
    va_list ap;
    va_start(ap, op);
    void *arg = va_arg(ap, void *);
    va_end(ap);
    return fails("fcntl") ? -1 : REAL(fcntl)(fd, op, arg);
}

ssize_t pread(int fd, void *buf, size_t n, off_t offset)
{
    ssize_t r = transfer("pread", n);
    return r <= 0 ? r : REAL(pread)(fd, buf, (size_t)r, offset);
}

ssize_t pwrite(int fd, const void *buf, size_t n, off_t offset)
{
    ssize_t r = transfer("pwrite", n);
    return r <= 0 ? r : REAL(pwrite)(fd, buf, (size_t)r, offset);
}

ssize_t getrandom(void *buf, size_t n, unsigned flags)
{
    ssize_t r = transfer("getrandom", n);
    return r <= 0 ? r : REAL(getrandom)(buf, (size_t)r, flags);
}

#define PASS(type, name, parameters, arguments)                                            \
    type name parameters                                                                   \
    {                                                                                      \
        return fails(#name) ? (type)-1 : REAL(name) arguments;                             \
    }
PASS(int, fstat, (int fd, struct stat *st), (fd, st))
PASS(int, stat, (const char *path, struct stat *st), (path, st))
PASS(int, fdatasync, (int fd), (fd))
PASS(int, fsync, (int fd), (fd))
PASS(int, ftruncate, (int fd, off_t n), (fd, n))
PASS(int, fallocate, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n))
PASS(off_t, lseek, (int fd, off_t at, int from), (fd, at, from))
PASS(int, renameat2,
     (int from_dir, const char *from, int to_dir, const char *to, unsigned flags),
     (from_dir, from, to_dir, to, flags))
PASS(int, mkdir, (const char *path, mode_t mode), (path, mode))
PASS(int, chmod, (const char *path, mode_t mode), (path, mode))
PASS(int, unlink, (const char *path), (path))
PASS(int, rmdir, (const char *path), (path))
PASS(int, rename, (const char *from, const char *to), (from, to))
PASS(int, statvfs, (const char *path, struct statvfs *s), (path, s))

DIR *opendir(const char *path)
{
    return fails("opendir") ? NULL : REAL(opendir)(path);
}

struct dirent *readdir(DIR *d)
{
    return fails("readdir") ? NULL : REAL(readdir)(d);
}

/* Defines a call of liburing, which returns the negative error. */
#define RING(name, parameters, arguments)                                                  \
    int name parameters                                                                    \
    {                                                                                      \
        const struct fault *f = hit_of(#name);                                             \
        return f != NULL ? -f->error : REAL(name) arguments;                               \
    }
RING(io_uring_queue_init, (unsigned n, struct io_uring *r, unsigned flags), (n, r, flags))
RING(io_uring_register_buffers, (struct io_uring * r, const struct iovec *v, unsigned n),
     (r, v, n))
RING(io_uring_submit_and_wait, (struct io_uring * r, unsigned n), (r, n))
RING(io_uring_submit_and_wait_timeout,
     (struct io_uring * r, struct io_uring_cqe **cqe, unsigned n,
      struct __kernel_timespec *t, sigset_t *mask),
     (r, cqe, n, t, mask))

static int last_op; /* operation of the last request that a ring got, IORING_OP_ */

int io_uring_submit(struct io_uring *r)
{
    const struct fault *f = hit_of("io_uring_submit");
    if (r->sq.sqe_tail != r->sq.sqe_head)
        last_op = r->sq.sqes[(r->sq.sqe_tail - 1) & r->sq.ring_mask].opcode;
    return f != NULL ? -f->error : REAL(io_uring_submit)(r);
}

/* --- each operation --------------------------------------------------------------------------- */

/* A file of two sectors, and a folder. */
struct place {
    struct iotest *t;
    struct io_file *f;
    const char *folder, *fresh; /* an existing folder, and a name that does not exist */
    /* calls failed by faults that an operation disarmed itself */
    unsigned n_hits;
};

static int do_open(struct place *p, struct err *err)
{
    struct io_file *f;
    int rc = io_file_open(p->t->io, p->fresh, IO_CREATE, &f, err);
    io_file_close(f);
    return rc;
}

static int do_size(struct place *p, struct err *err)
{
    uint64_t n = 0;
    int rc = io_file_size(p->f, &n, err);
    if (rc == 0)
        assert_int_equal(n, 2 * IO_ALIGN);
    return rc;
}

static int do_read(struct place *p, struct err *err)
{
    uint8_t got[100], want[100];
    iotest_fill(want, sizeof want, 1);
    int rc = io_file_pread(p->f, got, sizeof got, 0, err);
    if (rc == 0)
        assert_memory_equal(got, want, sizeof want);
    return rc;
}

static int do_write(struct place *p, struct err *err)
{
    uint8_t bytes[100];
    iotest_fill(bytes, sizeof bytes, 1);
    return io_file_pwrite(p->f, bytes, sizeof bytes, 0, err);
}

static int do_truncate(struct place *p, struct err *err)
{
    return io_file_truncate(p->f, 2 * IO_ALIGN, err);
}

static int do_allocate(struct place *p, struct err *err)
{
    return io_file_allocate(p->f, 0, 2 * IO_ALIGN, err);
}

static int do_punch(struct place *p, struct err *err)
{
    return io_file_punch(p->f, IO_ALIGN, IO_ALIGN, err);
}

static int do_lock(struct place *p, struct err *err)
{
    int rc = io_file_lock(p->f, err);
    return rc == 0 ? io_file_unlock(p->f, err) : rc;
}

static int do_unlock(struct place *p, struct err *err)
{
    return io_file_unlock(p->f, err);
}

static int do_mkdir(struct place *p, struct err *err)
{
    int rc = io_mkdir(p->t->io, p->fresh, err);
    assert_int_equal(io_exists(p->t->io, p->fresh), rc == 0);
    return rc;
}

static int do_list(struct place *p, struct err *err)
{
    struct io_names names;
    int rc = io_list(p->t->io, p->t->dir, &names, err);
    assert_int_equal(names.n, rc == 0 ? 2 : 0); /* on failure the list is empty */
    io_names_free(&names);
    return rc;
}

static int do_stat(struct place *p, struct err *err)
{
    struct io_stat st;
    int rc = io_stat(p->t->io, p->folder, &st, err);
    if (rc == 0)
        assert_true(st.is_dir);
    return rc;
}

static int do_unlink(struct place *p, struct err *err)
{
    int rc = io_unlink(p->t->io, p->folder, err);
    p->n_hits = disarm();
    assert_int_equal(io_exists(p->t->io, p->folder), rc != 0);
    return rc;
}

static int do_rename(struct place *p, struct err *err)
{
    int rc = io_rename(p->t->io, p->folder, p->fresh, err);
    assert_int_equal(io_exists(p->t->io, p->fresh), rc == 0);
    return rc;
}

static int do_dir_sync(struct place *p, struct err *err)
{
    return io_dir_sync(p->t->io, p->folder, err);
}

static int do_space(struct place *p, struct err *err)
{
    uint64_t n_free, n_total;
    return io_space(p->t->io, p->folder, &n_free, &n_total, err);
}

static int do_random(struct place *p, struct err *err)
{
    uint8_t b[16];
    return io_random(p->t->io, b, sizeof b, err);
}

static int do_make_private(struct place *p, struct err *err)
{
    return io_make_private(p->t->io, p->folder, err);
}

static int do_mkdirs(struct place *p, struct err *err)
{
    return io_mkdirs(p->t->io, p->fresh, NULL, err);
}

static const struct op {
    int (*run)(struct place *p, struct err *err);
    const char *call;
    int error, code; /* code: expected result of the operation */
    const char *says;
} ops[] = {
    {do_open, "open", EMFILE, -EMFILE, "open "},
    {do_open, "open", ENOSPC, -ENOSPC, "open "},
    {do_open, "open", EDQUOT, -ENOSPC, "open "},
    {do_open, "open", EINVAL, -EINVAL, "open "},
    {do_open, "fstat", EIO, -EIO, "open "},
    {do_size, "fstat", EIO, -EIO, "size of "},
    {do_read, "pread", EIO, -EIO, "read 100 bytes at 0 of "},
    {do_write, "pwrite", EIO, -EIO, "write 100 bytes at 0 of "},
    {do_write, "pwrite", ENOSPC, -ENOSPC, "write 100 bytes at 0 of "},
    {do_write, "pwrite", EDQUOT, -ENOSPC, "write 100 bytes at 0 of "},
    {do_write, "pwrite", EFBIG, -ENOSPC, "write 100 bytes at 0 of "},
    {do_write, "pwrite", EROFS, -EROFS, "write 100 bytes at 0 of "},
    {do_truncate, "ftruncate", EIO, -EIO, "truncate "},
    {do_allocate, "fallocate", ENOSPC, -ENOSPC, "allocate "},
    {do_allocate, "fallocate", EDQUOT, -ENOSPC, "allocate "},
    {do_allocate, "fallocate", EFBIG, -ENOSPC, "allocate "},
    {do_allocate, "fallocate", EOPNOTSUPP, -EOPNOTSUPP, "allocate "},
    {do_punch, "fallocate", EIO, -EIO, "punch "},
    {do_lock, "fcntl", ENOLCK, -ENOLCK, "lock "},
    {do_lock, "fcntl", EAGAIN, ERR_BUSY, "held by another process"},
    {do_lock, "fcntl", EACCES, ERR_BUSY, "held by another process"},
    {do_unlock, "fcntl", EIO, -EIO, "unlock "},
    {do_mkdir, "mkdir", ENOSPC, -ENOSPC, "mkdir "},
    {do_mkdir, "mkdir", EDQUOT, -ENOSPC, "mkdir "},
    {do_make_private, "chmod", EPERM, -EPERM, "chmod "},
    {do_mkdirs, "mkdir", EROFS, -EROFS, "mkdir "},
    {do_mkdirs, "stat", EACCES, -EACCES, "mkdir "},
    {do_mkdirs, "open", EMFILE, -EMFILE, "sync folder "},
    {do_list, "opendir", EMFILE, -EMFILE, "list "},
    {do_list, "readdir", EIO, -EIO, "list "},
    {do_stat, "stat", EIO, -EIO, "stat "},
    {do_unlink, "unlink", EACCES, -EACCES, "unlink "},
    {do_unlink, "rmdir", EBUSY, -EBUSY, "unlink "},
    {do_rename, "rename", EXDEV, -EXDEV, "rename "},
    {do_dir_sync, "open", ENFILE, -ENFILE, "sync folder "},
    {do_dir_sync, "fsync", EIO, -EIO, "sync folder "},
    {do_space, "statvfs", EIO, -EIO, "space of "},
    {do_random, "getrandom", ENOSYS, -ENOSYS, "random bytes"},
};

static struct place place_make(void **state)
{
    struct iotest *t = *state;
    if (t->io == NULL)
        skip();
    struct place p = {
        .t = t, .folder = iotest_path(t, "folder"), .fresh = iotest_path(t, "fresh")};
    uint8_t bytes[2 * IO_ALIGN];
    assert_int_equal(io_mkdir(t->io, p.folder, NULL), 0);
    assert_int_equal(io_file_open(t->io, iotest_path(t, "file"), IO_CREATE, &p.f, NULL), 0);
    iotest_fill(bytes, sizeof bytes, 1);
    assert_int_equal(io_file_pwrite(p.f, bytes, sizeof bytes, 0, NULL), 0);
    return p;
}

static void place_clear(struct place *p)
{
    io_file_close(p->f);
    io_unlink(p->t->io, p->fresh, NULL);
    io_unlink(p->t->io, p->folder, NULL);
    io_unlink(p->t->io, iotest_path(p->t, "file"), NULL);
}

/* Each call fails with its code and a message that names call and reason. Then the same operation
 * works on the same file. */
static void test_each_operation(void **state)
{
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        const struct op *op = &ops[i];
        struct place p = place_make(state);
        struct err err = {0};
        arm(op->call, op->error, 1);
        int rc = op->run(&p, &err);
        unsigned n_hits = disarm() + p.n_hits;
        if (rc != op->code || n_hits != 1 || err.code != op->code ||
            strstr(err.msg, op->says) == NULL)
            fail_msg("%s fails with %s %u times: %d, %s", op->call, strerror(op->error),
                     n_hits, rc, err.msg);
        rc = op->run(&p, &err);
        disarm();
        if (rc != 0)
            fail_msg("%s, which had failed with %s, again: %s", op->call,
                     strerror(op->error), err.msg);
        place_clear(&p);
    }
}

/* The file's writes may be lost, so no later sync of this opening may report success. */
static void test_sync_stays_failed(void **state)
{
    struct place p = place_make(state);
    struct err err = {0};
    arm("fdatasync", EIO, 1);
    assert_int_equal(io_file_sync(p.f, &err), -EIO);
    disarm();
    assert_int_equal(io_file_sync(p.f, &err), -EIO);
    assert_non_null(strstr(err.msg, "an earlier sync failed"));
    io_file_close(p.f);
    assert_int_equal(io_file_open(p.t->io, iotest_path(p.t, "file"), 0, &p.f, NULL), 0);
    assert_int_equal(io_file_sync(p.f, &err), 0);
    place_clear(&p);
}

/* --- results that are not errors
 * ------------------------------------------------------------------ */

static void test_interrupted(void **state)
{
    struct place p = place_make(state);
    static const struct op again[] = {
        {do_open, "open", EINTR, 0, ""},        {do_read, "pread", EINTR, 0, ""},
        {do_write, "pwrite", EINTR, 0, ""},     {do_write, "pwrite", EAGAIN, 0, ""},
        {do_random, "getrandom", EINTR, 0, ""}, {do_dir_sync, "open", EINTR, 0, ""},
    };
    for (size_t i = 0; i < sizeof again / sizeof again[0]; i++) {
        arm(again[i].call, again[i].error, 3);
        assert_int_equal(again[i].run(&p, NULL), 0);
        assert_int_equal(disarm(), 3);
    }
    place_clear(&p);
}

/* A short transfer is continued. A transfer of 0 bytes ends the operation. */
static void test_short(void **state)
{
    struct place p = place_make(state);
    struct err err = {0};
    static uint8_t out[10000], back[10000];
    iotest_fill(out, sizeof out, 5);
    arm("pwrite", 0, 7)->short_bytes = 1000;
    assert_int_equal(io_file_pwrite(p.f, out, sizeof out, 300, &err), 0);
    assert_int_equal(disarm(), 7);
    arm("pread", 0, 9)->short_bytes = 1000;
    assert_int_equal(io_file_pread(p.f, back, sizeof back, 300, &err), 0);
    assert_int_equal(disarm(), 9);
    assert_memory_equal(out, back, sizeof out);
    arm("getrandom", 0, 2)->short_bytes = 5;
    assert_int_equal(do_random(&p, &err), 0);
    assert_int_equal(disarm(), 2);
    arm("pwrite", 0, 1); /* transfers 0 bytes */
    assert_int_equal(io_file_pwrite(p.f, out, 10, 0, &err), -EIO);
    assert_non_null(strstr(err.msg, "write 10 bytes at 0"));
    disarm();
    place_clear(&p);
}

/* Another process makes the folder between the check and the creation. */
static void test_mkdirs_race(void **state)
{
    struct place p = place_make(state);
    arm("stat", ENOENT, 100);
    assert_int_equal(io_mkdirs(p.t->io, p.folder, NULL, NULL), 0);
    disarm();
    place_clear(&p);
}

/* A file system without direct I/O: the page cache is used, with the same rules. */
static void test_no_direct(void **state)
{
    struct place p = place_make(state);
    struct err err = {0};
    struct io_file *f;
    uint8_t *b = iotest_buffer(IO_ALIGN);
    iotest_fill(b, IO_ALIGN, 2);
    arm("open direct", EINVAL, 1);
    assert_int_equal(
        io_file_open(p.t->io, p.fresh, IO_CREATE | IO_EXCL | IO_DIRECT, &f, &err), 0);
    disarm();
    assert_int_equal(io_file_pwrite(f, b, IO_ALIGN, IO_ALIGN, &err), 0);
    assert_int_equal(io_file_pwrite(f, b, 100, 0, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "multiples of 4096"));
    io_file_close(f);
    arm("open direct", EMFILE, 1); /* an error that has nothing to do with direct I/O */
    assert_int_equal(io_file_open(p.t->io, p.fresh, IO_DIRECT, &f, &err), -EMFILE);
    disarm();
    free(b);
    place_clear(&p);
}

/* On a file system without holes, punching overwrites the content with zeros. */
static void test_punch_without_holes(void **state)
{
    struct place p = place_make(state);
    static uint8_t big[40 * IO_ALIGN], back[40 * IO_ALIGN], zeros[39 * IO_ALIGN];
    iotest_fill(big, sizeof big, 3);
    assert_int_equal(io_file_pwrite(p.f, big, sizeof big, 0, NULL), 0);
    arm("fallocate", EOPNOTSUPP, 1);
    /* the range may reach beyond the file's end */
    assert_int_equal(io_file_punch(p.f, IO_ALIGN, 100 * IO_ALIGN, NULL), 0);
    disarm();
    uint64_t size;
    assert_int_equal(io_file_size(p.f, &size, NULL), 0);
    assert_int_equal(size, sizeof big);
    assert_int_equal(io_file_pread(p.f, back, sizeof back, 0, NULL), 0);
    assert_memory_equal(back, big, IO_ALIGN);
    assert_memory_equal(back + IO_ALIGN, zeros, sizeof zeros);
    place_clear(&p);
}

/* If the zeros cannot be written, punching fails. */
static void test_punch_without_zeros(void **state)
{
    struct place p = place_make(state);
    struct err err = {0};
    arm("fallocate", EOPNOTSUPP, 1);
    arm("pwrite", EIO, 1);
    assert_int_equal(io_file_punch(p.f, 0, IO_ALIGN, &err), -EIO);
    assert_non_null(strstr(err.msg, "punch "));
    assert_int_equal(disarm(), 2);
    arm("fallocate", EOPNOTSUPP, 1);
    arm("pwrite", EINTR, 1);
    assert_int_equal(io_file_punch(p.f, 0, IO_ALIGN, &err), 0);
    assert_int_equal(disarm(), 2);
    arm("fallocate", EOPNOTSUPP, 1);
    arm("fstat", EIO, 1);
    assert_int_equal(io_file_punch(p.f, IO_ALIGN, IO_ALIGN, &err), -EIO);
    assert_int_equal(disarm(), 2);
    uint8_t back[2 * IO_ALIGN], want[2 * IO_ALIGN];
    iotest_fill(want, sizeof want, 1);
    memset(want, 0, IO_ALIGN);
    assert_int_equal(io_file_pread(p.f, back, sizeof back, 0, NULL), 0);
    assert_memory_equal(back, want, sizeof want);
    place_clear(&p);
}

/* Where the file system knows no holes, all of the file is overwritten. Where it cannot exchange
 * names, the old file is held open while the new one takes its name. */
static void test_erase_elsewhere(void **state)
{
    struct place p = place_make(state);
    struct err err = {0};
    uint64_t begin, end;
    arm("lseek", EINVAL, 1);
    assert_int_equal(io_file_next_data(p.f, 0, &begin, &end, &err), 0);
    assert_int_equal(disarm(), 1);
    assert_true(begin == 0 && end > 0);
    arm("lseek", EIO, 1);
    assert_int_equal(io_file_next_data(p.f, 0, &begin, &end, &err), -EIO);
    assert_non_null(strstr(err.msg, "find data in "));
    disarm();
    arm("lseek", EIO, 1);
    assert_int_equal(io_file_cut(p.f, 1, &err), -EIO);
    disarm();
    char *to = strdup(iotest_path(p.t, "to"));
    struct io_file *f, *old;
    uint8_t back[2] = {0};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(io_file_open(p.t->io, p.fresh, IO_CREATE, &f, &err), 0);
        assert_int_equal(io_file_pwrite(f, i == 0 ? "a" : "b", 1, 0, &err), 0);
        io_file_close(f);
        if (i == 1)
            assert_int_equal(io_file_open(p.t->io, to, 0, &old, &err), 0);
        arm("renameat2", EINVAL, 1);
        assert_int_equal(io_replace(p.t->io, p.fresh, to, NULL, &err), 0);
        assert_int_equal(disarm(), 1);
    }
    assert_int_equal(io_file_pread(old, back, 1, 0, &err), 0);
    assert_int_equal(back[0], 0); /* the old file was overwritten */
    io_file_close(old);
    assert_int_equal(io_file_open(p.t->io, to, 0, &f, &err), 0);
    assert_int_equal(io_file_pread(f, back, 1, 0, &err), 0);
    assert_int_equal(back[0], 'b');
    io_file_close(f);
    free(to);
    place_clear(&p);
}

/* --- io_uring --------------------------------------------------------------------------------- */

static void test_ring_absent(void **state)
{
    static const int absent[] = {ENOSYS, EPERM, EACCES, ENOMEM};
    struct io *io;
    struct err err = {0};
    for (size_t i = 0; i < 3; i++) {
        arm("io_uring_queue_init", absent[i], 1);
        assert_int_equal(io_uring_open(&io, &err), ERR_UNSUPPORTED);
        assert_int_equal(disarm(), 1);
        assert_non_null(strstr(err.msg, "io_uring is not available here"));
        assert_null(io);
    }
    arm("io_uring_queue_init", EMFILE, 1);
    assert_int_equal(io_uring_open(&io, &err), -EMFILE);
    assert_non_null(strstr(err.msg, "io_uring: "));
    disarm();
}

static struct io_queue *queue_of(struct iotest *t)
{
    struct io_queue *q;
    assert_int_equal(io_queue_open(t->io, 4, &q, NULL), 0);
    return q;
}

/* A read by the queue returns the bytes that place_make wrote. */
static void queue_reads(struct io_queue *q, struct io_file *f, uint8_t *b)
{
    uint8_t want[IO_ALIGN];
    struct io_req req = {.file = f, .op = IO_READ, .buf = b, .length = IO_ALIGN},
                  *list[] = {&req}, *done[1];
    unsigned n;
    io_queue_submit(q, list, 1);
    assert_int_equal(io_queue_wait(q, 1, 1, -1, done, &n, NULL), 0);
    iotest_fill(want, IO_ALIGN, 1);
    assert_int_equal(req.result, 0);
    assert_memory_equal(b, want, IO_ALIGN);
}

static void test_ring_limits(void **state)
{
    struct place p = place_make(state);
    struct err err = {0};
    struct io_queue *q;
    uint8_t *b = iotest_buffer(IO_ALIGN);
    struct io_buffer buffer = {b, IO_ALIGN};
    arm("io_uring_queue_init", EMFILE, 1);
    assert_int_equal(io_queue_open(p.t->io, 4, &q, &err), -EMFILE);
    assert_non_null(strstr(err.msg, "open uring queue of depth 4"));
    assert_null(q);
    disarm();
    /* If no memory may be locked for a ring, the queue works without one. */
    arm("io_uring_queue_init", ENOMEM, 1);
    q = queue_of(p.t);
    assert_int_equal(disarm(), 1);
    queue_reads(q, p.f, b);
    io_queue_close(q);
    /* If buffers cannot be registered, the queue works without them. */
    q = queue_of(p.t);
    arm("io_uring_register_buffers", ENOMEM, 1);
    assert_int_equal(io_queue_register_buffers(q, &buffer, 1, &err), -ENOMEM);
    assert_non_null(strstr(err.msg, "register 1 buffers"));
    disarm();
    queue_reads(q, p.f, b);
    io_queue_close(q);
    free(b);
    place_clear(&p);
}

/* A transfer from or into a registered buffer tells the kernel so; any other transfer does not. */
static void test_ring_names_buffers(void **state)
{
    enum { A = IO_ALIGN };
    static const struct {
        size_t from, length;
        enum io_op op;
        int expected;
    } cases[] = {
        {A, 2 * A, IO_READ, IORING_OP_READ_FIXED},
        {A, 2 * A, IO_WRITE, IORING_OP_WRITE_FIXED},
        {2 * A, A, IO_READ, IORING_OP_READ_FIXED},
        {0, 2 * A, IO_READ, IORING_OP_READ},
        {2 * A, 2 * A, IO_READ, IORING_OP_READ},
        {2 * A, 2 * A, IO_WRITE, IORING_OP_WRITE},
    };
    struct place p = place_make(state);
    struct io_queue *q = queue_of(p.t);
    uint8_t *b = iotest_buffer(4 * A);
    struct io_buffer buffer = {b + A, 2 * A};
    /* a low limit of locked memory (ulimit -l) may forbid registered buffers */
    bool may_lock = io_queue_register_buffers(q, &buffer, 1, NULL) == 0;
    for (size_t i = 0; may_lock && i < sizeof cases / sizeof cases[0]; i++) {
        struct io_req req = {.file = p.f,
                             .op = cases[i].op,
                             .buf = b + cases[i].from,
                             .length = cases[i].length},
                      *list[] = {&req}, *done[1];
        unsigned n;
        last_op = -1;
        io_queue_submit(q, list, 1);
        assert_int_equal(last_op, cases[i].expected);
        assert_int_equal(io_queue_wait(q, 1, 1, -1, done, &n, NULL), 0);
        assert_int_equal(req.result, 0);
    }
    io_queue_close(q);
    free(b);
    place_clear(&p);
    if (!may_lock)
        skip();
}

/* If the kernel lacks a resource for a moment, the request is still carried out. */
static void test_ring_goes_on(void **state)
{
    static const int moments[] = {EINTR, ETIME, EAGAIN, EBUSY};
    static const char *const calls[] = {"io_uring_submit", "io_uring_submit_and_wait",
                                        "io_uring_submit_and_wait_timeout"};
    struct place p = place_make(state);
    struct io_queue *q = queue_of(p.t);
    uint8_t b[IO_ALIGN], want[IO_ALIGN];
    iotest_fill(want, IO_ALIGN, 1);
    for (size_t i = 0; i < 12; i++) {
        struct io_req req = {.file = p.f, .op = IO_READ, .buf = b, .length = IO_ALIGN},
                      *list[] = {&req}, *done[1];
        struct err err = {0};
        unsigned n;
        memset(b, 0, sizeof b);
        arm(calls[i / 4], moments[i % 4], i / 4 == 0 ? 1 : 3);
        io_queue_submit(q, list, 1);
        int64_t timeout_ns = i / 4 == 2 ? INT64_C(60000000000) : -1;
        int rc = io_queue_wait(q, 1, 1, timeout_ns, done, &n, &err);
        disarm();
        if (rc != 0 || n != 1 || req.result != 0)
            fail_msg("%s fails with %s: %s", calls[i / 4], strerror(moments[i % 4]),
                     err.msg);
        assert_memory_equal(b, want, IO_ALIGN);
    }
    io_queue_close(q);
    place_clear(&p);
}

/* If the queue itself breaks, it reports that and can be closed. */
static void test_ring_breaks(void **state)
{
    struct place p = place_make(state);
    struct io_queue *q = queue_of(p.t);
    uint8_t b[IO_ALIGN];
    struct io_req req = {.file = p.f, .op = IO_READ, .buf = b, .length = IO_ALIGN},
                  *list[] = {&req}, *done[1];
    struct err err = {0};
    unsigned n = 7;
    /* the submit fails; the next wait reports its error */
    arm("io_uring_submit", EBADF, 1);
    io_queue_submit(q, list, 1);
    assert_int_equal(disarm(), 1);
    /* the wait fails, and so does the one when the queue is closed */
    arm("io_uring_submit_and_wait", EBADF, 2);
    assert_int_equal(io_queue_wait(q, 1, 1, -1, done, &n, &err), -EBADF);
    assert_non_null(strstr(err.msg, "uring queue: "));
    assert_int_equal(n, 0);
    io_queue_close(q);
    assert_int_equal(disarm(), 2);
    place_clear(&p);
}

#define ON(kind, test)                                                                     \
    {                                                                                      \
#test " on " kind, test, iotest_setup, iotest_teardown, (void *)(uintptr_t)kind    \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON("pread", test_each_operation),      ON("pread", test_sync_stays_failed),
        ON("pread", test_interrupted),         ON("pread", test_short),
        ON("pread", test_mkdirs_race),         ON("pread", test_no_direct),
        ON("pread", test_punch_without_holes), ON("pread", test_punch_without_zeros),
        ON("pread", test_erase_elsewhere),     ON("uring", test_each_operation),
        cmocka_unit_test(test_ring_absent),    ON("uring", test_ring_names_buffers),
        ON("uring", test_ring_limits),         ON("uring", test_ring_goes_on),
        ON("uring", test_ring_breaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
