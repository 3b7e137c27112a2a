/* file.c - see file.h. */
#include "base/file.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The size that fstat gives is a hint only: pipes say 0, and a file may grow while it is
 * read. */
static int read_all(int fd, size_t hint, size_t max_bytes, char **out, size_t *n)
{
    size_t cap = hint < max_bytes ? hint + 1 : max_bytes + 1, len = 0;
    char *buf = mem_try(cap + 1);
    if (buf == NULL)
        return -ENOMEM;
    for (;;) {
        ssize_t got = read(fd, buf + len, cap - len);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            int code = -errno;
            free(buf);
            return code;
        }
        len += (size_t)got;
        if (got == 0)
            break;
        if (len > max_bytes) {
            free(buf);
            return ERR_LIMIT;
        }
        if (len == cap) {
            cap = cap * 2 + 4096 < max_bytes + 1 ? cap * 2 + 4096 : max_bytes + 1;
            char *grown = mem_try(cap + 1);
            if (grown != NULL)
                memcpy(grown, buf, len);
            free(buf);
            if (grown == NULL)
                return -ENOMEM;
            buf = grown;
        }
    }
    buf[len] = '\0';
    *out = buf;
    *n = len;
    return 0;
}

int file_read(const char *path, size_t max_bytes, char **out, size_t *n, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        int code = -errno;
        return err_set(err, code, "%s: %s", path, strerror(-code));
    }
    struct stat st;
    size_t hint = fstat(fd, &st) == 0 && st.st_size > 0 ? (size_t)st.st_size : 0;
    int rc = read_all(fd, hint, max_bytes, out, n);
    close(fd);
    if (rc == ERR_LIMIT)
        return err_set(err, rc, "%s: larger than the limit of %zu bytes", path, max_bytes);
    if (rc != 0)
        return err_set(err, rc, "%s: %s", path, strerror(-rc));
    return 0;
}
