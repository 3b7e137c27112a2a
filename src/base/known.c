/* known.c - see known.h. */
#include "base/known.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/file.h"
#include "base/mem.h"

enum { KEY_CHARS = 64, SUM_CHARS = 16, HEAD_CHARS = KEY_CHARS + 1 + SUM_CHARS + 1 };
#define FILE_MAX_BYTES ((size_t)KNOWN_MAX * (HEAD_CHARS + KNOWN_TEXT_BYTES) * 2)

/* Returns the user's folder for caches, from malloc; NULL: there is none. */
static char *cache_folder(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache != NULL && cache[0] == '/')
        return xstrdup(cache);
    return home != NULL && home[0] == '/' ? xasprintf("%s/.cache", home) : NULL;
}

/* Returns the path of a file or folder of this program, from malloc, or NULL if the user has no
 * home directory. With `makes` missing folders above it are made. */
static char *path_of(const char *name, bool makes)
{
    char *folder = cache_folder();
    if (folder == NULL)
        return NULL;
    char *own = xasprintf("%s/hcache", folder), *path = xasprintf("%s/%s", own, name);
    if (makes) {
        (void)mkdir(folder, 0700);
        (void)mkdir(own, 0700);
    }
    free(folder);
    free(own);
    return path;
}

char *known_folder(const char *name, bool makes)
{
    char *path = path_of(name, makes);
    struct stat st;
    if (path != NULL && makes)
        (void)mkdir(path, 0700);
    if (path != NULL && lstat(path, &st) == 0 && S_ISDIR(st.st_mode) &&
        st.st_uid == geteuid() && (st.st_mode & 022) == 0)
        return path;
    free(path);
    return NULL;
}

/* Opens the file. Returns -1 if there is none that may be used. */
static int open_known(bool to_write)
{
    char *path = path_of("known", to_write);
    struct stat st;
    if (path == NULL)
        return -1;
    int flags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    int fd = open(path, to_write ? flags | O_RDWR | O_CREAT : flags | O_RDONLY, 0600);
    if (fd >= 0 && (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
                    (st.st_mode & 022) != 0)) {
        close(fd);
        fd = -1;
    }
    free(path);
    return fd;
}

/* Reads the whole file. *out ends with a zero byte; the caller frees it. Returns its bytes. */
static size_t read_all(int fd, char **out)
{
    struct stat st;
    size_t n = fstat(fd, &st) == 0 && st.st_size > 0 ? (size_t)st.st_size : 0;
    n = n > FILE_MAX_BYTES ? 0 : n;
    *out = xcalloc(1, n + 1);
    return file_read_at(fd, *out, n, 0) == 0 ? n : 0;
}

static void key_text(const struct sha256 *key, char out[KEY_CHARS + 1])
{
    sha256_hex(key, out);
}

static uint64_t sum_of(const char *key, const char *text, size_t n)
{
    char all[KEY_CHARS + KNOWN_TEXT_BYTES];
    memcpy(all, key, KEY_CHARS);
    memcpy(all + KEY_CHARS, text, n);
    return checksum64(all, KEY_CHARS + n);
}

/* Returns the text of a line of n bytes if it is intact; NULL if it is not. */
static const char *text_of(const char *line, size_t n)
{
    uint64_t sum;
    if (n < HEAD_CHARS || n - HEAD_CHARS >= KNOWN_TEXT_BYTES ||
        sscanf(line + KEY_CHARS + 1, "%16" SCNx64, &sum) != 1)
        return NULL;
    return sum == sum_of(line, line + HEAD_CHARS, n - HEAD_CHARS) ? line + HEAD_CHARS
                                                                  : NULL;
}

bool known_get(const struct sha256 *key, char *out)
{
    char *all, want[KEY_CHARS + 1];
    bool found = false;
    int fd = open_known(false);
    if (fd < 0)
        return false;
    key_text(key, want);
    read_all(fd, &all);
    close(fd);
    for (char *line = all, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        size_t n = (size_t)(end - line);
        const char *text = n >= KEY_CHARS && memcmp(line, want, KEY_CHARS) == 0
                               ? text_of(line, n)
                               : NULL;
        if (text != NULL) {
            snprintf(out, KNOWN_TEXT_BYTES, "%.*s", (int)(end - text), text);
            found = true;
        }
    }
    free(all);
    return found;
}

/* Returns where the newest KNOWN_MAX / 2 lines begin if there are KNOWN_MAX or more; else `all`. */
static const char *newest(const char *all)
{
    int n = 0;
    for (const char *p = all; (p = strchr(p, '\n')) != NULL; p++)
        n++;
    for (int drop = n < KNOWN_MAX ? 0 : n - KNOWN_MAX / 2; drop > 0; drop--)
        all = strchr(all, '\n') + 1;
    return all;
}

void known_put(const struct sha256 *key, const char *text)
{
    char *all, line[HEAD_CHARS + KNOWN_TEXT_BYTES + 2], name[KEY_CHARS + 1];
    size_t n_text = strlen(text);
    CHECK(n_text < KNOWN_TEXT_BYTES && strchr(text, '\n') == NULL);
    int fd = open_known(true);
    if (fd < 0)
        return;
    key_text(key, name);
    int n = snprintf(line, sizeof line, "%s %016" PRIx64 " %s\n", name,
                     sum_of(name, text, n_text), text);
    if (flock(fd, LOCK_EX) == 0) {
        size_t bytes = read_all(fd, &all);
        const char *keep = newest(all);
        bool torn = bytes > 0 && all[bytes - 1] != '\n';
        if (bytes == 0 || keep != all) { /* begins anew, with the newest lines */
            size_t n_keep = bytes - (size_t)(keep - all);
            if (ftruncate(fd, 0) == 0 && file_write_all(fd, keep, n_keep, 0) == 0)
                bytes = n_keep;
        }
        if (torn && file_write_all(fd, "\n", 1, (off_t)bytes) == 0)
            bytes++;
        (void)file_write_all(fd, line, (size_t)n, (off_t)bytes);
        free(all);
    }
    close(fd);
}
