/* conversations_file.c - checks whether a file may hold conversations, before anything is
 * changed.
 *
 * The path comes from the command line, so it may name anything: a device, a link, another
 * user's file, a picture, another program's database. All of these are refused and stay
 * unchanged. No file is opened for writing, and no mode is set, before the file is known to be
 * ours. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "api/conversations_db.h"
#include "seal/seal_file.h"

/* SQLite's header: the format's name, and the value 2 in bytes 18 and 19, which means a write-ahead
 * log. Every database that conversations_open made has it. */
enum { HEADER_BYTES = 20 };

static int refuse(const char *path, const char *what, struct err *err)
{
    return err_set(err, ERR_CORRUPT,
                   "%s %s; it is not changed: give a new file for the conversations", path,
                   what);
}

static int cannot_open(const char *path, int code, struct err *err)
{
    if (code == -ELOOP)
        return refuse(path, "is a symbolic link", err);
    return err_set(err, code, "cannot open the conversations in %s: %s", path,
                   strerror(-code));
}

static int content_check(int fd, const char *path, const struct seal *seal, struct err *err)
{
    static const char magic[16] = "SQLite format 3";
    unsigned char header[HEADER_BYTES];
    ssize_t n = pread(fd, header, sizeof header, 0);
    if (n < 0)
        return cannot_open(path, -errno, err);
    int rc = seal_head_check(seal, header, (size_t)n, path, err);
    if (n == 0 || rc != 0 || seal != NULL)
        return rc;
    if (n < HEADER_BYTES || memcmp(header, magic, sizeof magic) != 0)
        return refuse(path, "is not a database", err);
    return header[18] == 2 && header[19] == 2
               ? 0
               : refuse(path, "is a database of another program", err);
}

static int stat_check(int fd, const char *path, const struct seal *seal, struct err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return cannot_open(path, -errno, err);
    if (!S_ISREG(st.st_mode))
        return refuse(path, "is not a regular file", err);
    if (st.st_uid != geteuid())
        return refuse(path, "belongs to another user", err);
    return content_check(fd, path, seal, err);
}

/* Makes the file with mode 0600. SQLite would make it according to the process's umask. Its logs
 * get the mode of the file. */
static int file_make(const char *path, struct err *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return cannot_open(path, -errno, err);
    close(fd);
    return 0;
}

int db_file_check(const char *path, const struct seal *seal, struct err *err)
{
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? file_make(path, err) : cannot_open(path, -errno, err);
    int rc = stat_check(fd, path, seal, err);
    close(fd);
    return rc;
}

int db_file_make_private(const char *path, struct err *err)
{
    char *log = xasprintf("%s-wal", path);
    int rc = chmod(path, 0600) != 0 ? -errno : 0;
    if (rc == 0 && chmod(log, 0600) != 0 && errno != ENOENT)
        rc = -errno;
    free(log);
    return rc == 0 ? 0 : cannot_open(path, rc, err);
}

/* Accepts a database without tables, which is left when a process is killed while it makes the
 * database. */
int db_tables_check(struct conversations *c, struct err *err)
{
    int64_t n_all, n_ours = 0;
    int rc = db_int(c, "SELECT count(*) FROM sqlite_master WHERE type = 'table'", 0, &n_all,
                    err);
    if (rc == 0)
        rc = db_int(c,
                    "SELECT count(*) FROM sqlite_master WHERE type = 'table'"
                    " AND name IN ('turn', 'conversation', 'chunk', 'doomed')",
                    0, &n_ours, err);
    if (rc == 0 && n_all > 0 && n_ours < 4)
        rc = refuse(c->path, "is a database of another program", err);
    return rc;
}

/* --- space for deleting ----------------------------------------------------------------------- */

/* Size of the reserve. A deletion writes overwritten pages into the log before it frees space. */
enum { RESERVE_BYTES = 512 << 10 };

static char *reserve_path(const struct conversations *c)
{
    return xasprintf("%s-reserve", c->path);
}

void db_reserve_fill(struct conversations *c)
{
    struct stat st;
    if (c->o.path == NULL)
        return;
    char *path = reserve_path(c);
    int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    /* A reserve that is not complete is removed: its blocks are more useful as free space. */
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_blocks * 512 < RESERVE_BYTES &&
        fallocate(fd, 0, 0, RESERVE_BYTES) != 0)
        (void)unlink(path);
    if (fd >= 0)
        close(fd);
    free(path);
}

bool db_reserve_release(struct conversations *c)
{
    if (c->o.path == NULL)
        return false;
    char *path = reserve_path(c);
    bool released = unlink(path) == 0;
    free(path);
    return released;
}
