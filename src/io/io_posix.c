/* io_posix.c - struct io_ops over Linux system calls.
 *
 * One attempt per call, only codes; the front does the rest. Files are made 0600 and folders
 * 0700, whatever the umask allows. The lock is an open-file-description lock over all bytes.
 * Unlike POSIX record locks it also excludes other openings in this process, and unlike flock it
 * conflicts with the record locks of an sqlite3 shell. */
#include "io/io_posix.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/minmax.h"

struct posix_file {
    struct io_file base;
    int fd;
    /* Descriptor of the same file for reads through the page cache; UNOPENED until the first such
     * read, -1 if it cannot be opened. */
    atomic_int cached_fd;
};

enum { UNOPENED = -2 };

static int fd_of(const struct io_file *f)
{
    return ((const struct posix_file *)f)->fd;
}

int io_posix_fd(const struct io_file *f)
{
    return fd_of(f);
}

int io_posix_cached_fd(const struct io_file *f)
{
    return atomic_load(&((const struct posix_file *)f)->cached_fd);
}

ssize_t io_posix_read_cached(const struct io_piece *p)
{
    ssize_t r = pread(io_posix_cached_fd(p->file), p->buf, p->length, (off_t)p->offset);
    return r < 0 ? -errno : r;
}

static int code(int r)
{
    return r < 0 ? -errno : 0;
}

struct io *io_posix_create(const char *name, const struct io_queue_ops *queue_ops)
{
    struct io *io = xcalloc(1, sizeof *io);
    io_init(io, name, &io_posix_ops, queue_ops);
    return io;
}

static void posix_close(struct io *io)
{
    io_deinit(io);
    free(io);
}

static int posix_random(struct io *io, void *buf, size_t n)
{
    (void)io;
    for (uint8_t *p = buf; n > 0;) {
        ssize_t r = getrandom(p, n, 0);
        if (r < 0 && errno != EINTR)
            return -errno;
        if (r > 0) {
            p += r;
            n -= (size_t)r;
        }
    }
    return 0;
}

/* ---- Files ------------------------------------------------------------------------------- */

/* Opens with O_NONBLOCK, because opening a pipe would wait for another process. */
static int open_retrying(const char *path, int flags)
{
    int fd;
    do
        fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* Returns 0 for a regular file. A folder can be opened too, and would fail only when it is read, so
 * it is refused here. Also clears O_NONBLOCK: with that flag io_uring would not wait for the
 * transfers of a regular file. */
static int check_and_wait(int fd)
{
    struct stat st;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0 || fstat(fd, &st) != 0)
        return -errno;
    return S_ISDIR(st.st_mode) ? -EISDIR : S_ISREG(st.st_mode) ? 0 : -ESPIPE;
}

/* Returns the alignment that direct transfers of an open file need, or 0 if it is not known. */
static uint32_t direct_align(int fd)
{
#ifdef STATX_DIOALIGN /* Linux 6.1 */
    struct statx st;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) != 0 ||
        (st.stx_mask & STATX_DIOALIGN) == 0)
        return 0;
    uint32_t n = MAX(st.stx_dio_offset_align, st.stx_dio_mem_align);
    return n > 0 && IO_ALIGN % n == 0 ? n : 0;
#else
    (void)fd;
    return 0;
#endif
}

static int posix_file_open(struct io *io, const char *path, unsigned flags,
                           struct io_file **out)
{
    (void)io;
    bool direct = (flags & IO_DIRECT) != 0;
    int o = (flags & IO_READ_ONLY) != 0 ? O_RDONLY : O_RDWR;
    o |= (flags & IO_CREATE) != 0 ? O_CREAT : 0;
    int excl = (flags & IO_EXCL) != 0 ? O_EXCL : 0;
    int fd = open_retrying(path, o | excl | (direct ? O_DIRECT : 0));
    if (fd < 0 && errno == EINVAL && direct) {
        /* The file system has no direct I/O. The refused open may have created the file, so the
         * next one must be without O_EXCL. The first attempt has checked that the file did not
         * exist. */
        direct = false;
        fd = open_retrying(path, o);
    }
    int rc = fd < 0 ? -errno : check_and_wait(fd);
    if (rc != 0) {
        if (fd >= 0)
            close(fd);
        return rc;
    }
    struct posix_file *f = xcalloc(1, sizeof *f);
    f->fd = fd;
    f->cached_fd = UNOPENED;
    f->base.direct = direct;
    f->base.read_align = direct ? direct_align(fd) : 0;
    *out = &f->base;
    return 0;
}

static void posix_file_close(struct io_file *f)
{
    if (io_posix_cached_fd(f) >= 0)
        close(io_posix_cached_fd(f));
    close(fd_of(f));
    free(f);
}

/* ---- The page cache ---- */

/* Opens the descriptor for reads through the page cache, once. */
static int open_cached(struct posix_file *f)
{
    int fd = atomic_load(&f->cached_fd), unopened = UNOPENED;
    char self[32];
    if (fd != UNOPENED)
        return fd;
    snprintf(self, sizeof self, "/proc/self/fd/%d", f->fd);
    fd = open(self, O_RDONLY | O_CLOEXEC);
    if (atomic_compare_exchange_strong(&f->cached_fd, &unopened, fd))
        return fd;
    if (fd >= 0)
        close(fd);
    return unopened; /* another thread was first */
}

/* Asks with cachestat (Linux 6.5), which has no side effect. A read with RWF_NOWAIT was tried: on
 * Linux 6.18 a miss begins to read the pages, and the disk then reads them twice. */
static bool posix_file_is_cached(struct io_file *file, uint64_t offset, size_t n)
{
    enum { SYS_CACHESTAT = 451 };
    struct {
        uint64_t offset, length;
    } range = {offset, n};
    struct {
        uint64_t n_cached, n_dirty, n_writeback, n_evicted, n_recent;
    } found = {0};
    struct posix_file *f = (struct posix_file *)file;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t n_pages = (offset % page + n + page - 1) / page;
    return file->direct && open_cached(f) >= 0 &&
           syscall(SYS_CACHESTAT, open_cached(f), &range, &found, 0) == 0 &&
           found.n_cached == n_pages;
}

static ssize_t posix_file_pread(struct io_file *f, void *buf, size_t n, uint64_t offset)
{
    ssize_t r = pread(fd_of(f), buf, n, (off_t)offset);
    return r < 0 ? -errno : r;
}

static ssize_t posix_file_pwrite(struct io_file *f, const void *buf, size_t n,
                                 uint64_t offset)
{
    ssize_t r = pwrite(fd_of(f), buf, n, (off_t)offset);
    return r < 0 ? -errno : r;
}

static int posix_file_sync(struct io_file *f)
{
    return code(fdatasync(fd_of(f)));
}

static int posix_file_size(struct io_file *f, uint64_t *size_bytes)
{
    struct stat st;
    if (fstat(fd_of(f), &st) != 0)
        return -errno;
    *size_bytes = (uint64_t)st.st_size;
    return 0;
}

static int posix_file_truncate(struct io_file *f, uint64_t size_bytes)
{
    return code(ftruncate(fd_of(f), (off_t)size_bytes));
}

static int posix_file_allocate(struct io_file *f, uint64_t offset, uint64_t length)
{
    return code(fallocate(fd_of(f), 0, (off_t)offset, (off_t)length));
}

/* Overwrites the existing part of a range with zeros. */
static int write_zeros(struct io_file *f, uint64_t offset, uint64_t length)
{
    static const _Alignas(IO_ALIGN) uint8_t zeros[16 * IO_ALIGN];
    uint64_t size = 0;
    int rc = posix_file_size(f, &size);
    uint64_t end = MIN(offset + length, size);
    while (rc == 0 && offset < end) {
        size_t n = end - offset < sizeof zeros ? (size_t)(end - offset) : sizeof zeros;
        ssize_t r = posix_file_pwrite(f, zeros, n, offset);
        if (r < 0 && r != -EINTR)
            rc = (int)r;
        offset += (uint64_t)MAX(r, 0);
    }
    return rc;
}

static int posix_file_punch(struct io_file *f, uint64_t offset, uint64_t length)
{
    int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    if (fallocate(fd_of(f), mode, (off_t)offset, (off_t)length) == 0)
        return 0;
    return errno == EOPNOTSUPP ? write_zeros(f, offset, length) : -errno;
}

static int posix_file_next_data(struct io_file *f, uint64_t at, uint64_t *begin,
                                uint64_t *end)
{
    off_t from = lseek(fd_of(f), (off_t)at, SEEK_DATA);
    off_t to = from < 0 ? -1 : lseek(fd_of(f), from, SEEK_HOLE);
    if (to >= 0) {
        *begin = (uint64_t)from;
        *end = (uint64_t)to;
        return 0;
    }
    /* EINVAL: the file system knows no holes. */
    if (errno != EINVAL)
        return -errno;
    *begin = at;
    int rc = posix_file_size(f, end);
    *end = MAX(*end, at);
    return rc;
}

static int set_lock(struct io_file *f, short type)
{
    /* An l_len of 0 locks the whole file, whatever its length. */
    struct flock l = {.l_type = type, .l_whence = SEEK_SET};
    if (fcntl(fd_of(f), F_OFD_SETLK, &l) == 0)
        return 0;
    return errno == EAGAIN || errno == EACCES ? ERR_BUSY : -errno;
}

static int posix_file_lock(struct io_file *f)
{
    return set_lock(f, (f->flags & IO_READ_ONLY) != 0 ? F_RDLCK : F_WRLCK);
}

static int posix_file_unlock(struct io_file *f)
{
    return set_lock(f, F_UNLCK);
}

/* ---- Folders ----------------------------------------------------------------------------- */

static int posix_mkdir(struct io *io, const char *path)
{
    (void)io;
    return code(mkdir(path, 0700));
}

static int posix_make_private(struct io *io, const char *path)
{
    (void)io;
    return code(chmod(path, 0700));
}

static int posix_list(struct io *io, const char *path, struct io_names *out)
{
    (void)io;
    DIR *d = opendir(path);
    if (d == NULL)
        return -errno;
    size_t room = 0;
    struct dirent *e;
    while (errno = 0, (e = readdir(d)) != NULL) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        GROW(out->name, out->n, room);
        out->name[out->n++] = xstrdup(e->d_name);
    }
    int rc = -errno;
    closedir(d);
    return rc;
}

static int posix_stat(struct io *io, const char *path, struct io_stat *out)
{
    (void)io;
    struct stat st;
    if (stat(path, &st) != 0)
        return -errno;
    *out = (struct io_stat){
        .is_dir = S_ISDIR(st.st_mode),
        .size_bytes = (uint64_t)st.st_size,
        .allocated_bytes = (uint64_t)st.st_blocks * 512,
        .device = st.st_dev,
        .inode = st.st_ino,
        .n_names = st.st_nlink,
        .is_foreign = st.st_uid != geteuid() && st.st_uid != 0 && geteuid() != 0,
    };
    return 0;
}

static int posix_unlink(struct io *io, const char *path)
{
    (void)io;
    if (unlink(path) == 0)
        return 0;
    return errno == EISDIR ? code(rmdir(path)) : -errno;
}

static int posix_rename(struct io *io, const char *from, const char *to)
{
    (void)io;
    return code(rename(from, to));
}

static int posix_exchange(struct io *io, const char *a, const char *b)
{
    (void)io;
    return code(renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE));
}

static int posix_dir_sync(struct io *io, const char *path)
{
    (void)io;
    int fd;
    do /* without O_NOFOLLOW, because the path of a folder may be a symbolic link */
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return -errno;
    int rc = code(fsync(fd));
    close(fd);
    return rc;
}

static int posix_space(struct io *io, const char *path, uint64_t *free_bytes,
                       uint64_t *total_bytes)
{
    (void)io;
    struct statvfs s;
    if (statvfs(path, &s) != 0)
        return -errno;
    /* The part reserved for root does not count as free. */
    *free_bytes = (uint64_t)s.f_bavail * s.f_frsize;
    *total_bytes = (uint64_t)s.f_blocks * s.f_frsize;
    return 0;
}

const struct io_ops io_posix_ops = {
    .close = posix_close,
    .random = posix_random,
    .file_open = posix_file_open,
    .file_close = posix_file_close,
    .file_pread = posix_file_pread,
    .file_pwrite = posix_file_pwrite,
    .file_sync = posix_file_sync,
    .file_size = posix_file_size,
    .file_truncate = posix_file_truncate,
    .file_allocate = posix_file_allocate,
    .file_punch = posix_file_punch,
    .file_next_data = posix_file_next_data,
    .file_lock = posix_file_lock,
    .file_unlock = posix_file_unlock,
    .file_fd = io_posix_fd,
    .file_is_cached = posix_file_is_cached,
    .mkdir = posix_mkdir,
    .make_private = posix_make_private,
    .list = posix_list,
    .stat = posix_stat,
    .unlink = posix_unlink,
    .rename = posix_rename,
    .exchange = posix_exchange,
    .medium_check = io_medium_posix,
    .dir_sync = posix_dir_sync,
    .space = posix_space,
};
