/* file.c - see file.h. */
#include "base/file.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads until the end. Returns 0 with *out from malloc, -errno, or ERR_LIMIT. hint is the size from
 * fstat, which may be wrong: it is 0 for pipes, and a file may grow meanwhile. */
static int read_all(int fd, size_t hint, size_t max_bytes, char **out, size_t *n)
{
    size_t cap = hint < max_bytes ? hint + 1 : max_bytes + 1, len = 0;
    char *buf = mem_try(cap + 1);
    int rc = buf == NULL ? -ENOMEM : 0;
    for (ssize_t got = 1; rc == 0 && got != 0;) {
        got = read(fd, buf + len, cap - len);
        if (got < 0) {
            rc = errno == EINTR ? 0 : -errno;
            continue;
        }
        len += (size_t)got;
        if (len > max_bytes) {
            rc = ERR_LIMIT;
        } else if (len == cap) {
            cap = cap * 2 + 4096 < max_bytes + 1 ? cap * 2 + 4096 : max_bytes + 1;
            char *grown = mem_try_realloc(buf, cap + 1);
            rc = grown == NULL ? -ENOMEM : 0;
            buf = grown != NULL ? grown : buf;
        }
    }
    if (rc != 0) {
        free(buf);
        return rc;
    }
    buf[len] = '\0';
    *out = buf;
    *n = len;
    return 0;
}

static int read_fd(int fd, const char *path, bool regular, size_t max_bytes, char **out,
                   size_t *n, struct err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return err_set(err, -errno, "%s: %s", path, strerror(errno));
    if (regular && !S_ISREG(st.st_mode))
        return err_set(err, ERR_FORMAT, "%s: not a regular file", path);
    size_t hint = st.st_size > 0 ? (size_t)st.st_size : 0;
    int rc = read_all(fd, hint, max_bytes, out, n);
    if (rc == ERR_LIMIT)
        return err_set(err, rc, "%s: larger than the limit of %zu bytes", path, max_bytes);
    if (rc != 0)
        return err_set(err, rc, "%s: %s", path, strerror(-rc));
    return 0;
}

static int read_path(const char *path, bool regular, size_t max_bytes, char **out,
                     size_t *n, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | (regular ? O_NONBLOCK : 0));
    if (fd < 0) {
        int code = -errno;
        return err_set(err, code, "%s: %s", path, strerror(-code));
    }
    int rc = read_fd(fd, path, regular, max_bytes, out, n, err);
    close(fd);
    return rc;
}

int file_read(const char *path, size_t max_bytes, char **out, size_t *n, struct err *err)
{
    return read_path(path, false, max_bytes, out, n, err);
}

int file_read_regular(const char *path, size_t max_bytes, char **out, size_t *n,
                      struct err *err)
{
    return read_path(path, true, max_bytes, out, n, err);
}

bool file_begins(const char *path, const void *bytes, size_t n)
{
    struct stat st;
    char first[16];
    if (n > sizeof first || stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool yes = fd >= 0 && file_read_at(fd, first, n, 0) == 0 &&
               memcmp(first, bytes, n) == 0;
    if (fd >= 0)
        close(fd);
    return yes;
}

int file_read_at(int fd, void *bytes, size_t n, uint64_t at)
{
    uint8_t *to = bytes;
    while (n > 0) {
        ssize_t got = pread(fd, to, n, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got == 0 ? -ENODATA : -errno;
        to += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return 0;
}

int file_write_all(int fd, const void *bytes, size_t n, off_t at)
{
    const char *p = bytes;
    while (n > 0) {
        ssize_t k = at >= 0 ? pwrite(fd, p, n, at) : write(fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return k < 0 ? -errno : -EIO;
        p += k;
        n -= (size_t)k;
        at += at >= 0 ? k : 0;
    }
    return 0;
}
