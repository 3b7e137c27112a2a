/* gguf_files.c - see gguf_files.h. */
#include "checkpoint/gguf_files.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/minmax.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FILES = 1000 };

bool gguf_files_is(const char *path)
{
    return file_begins(path, "GGUF", 4);
}

/* Bytes of a file that are read first. Directories of models with a large vocabulary take some MiB.
 * A directory of more than DIRECTORY_MAX_BYTES is refused. */
#define DIRECTORY_BYTES     ((size_t)4 << 20)
#define DIRECTORY_MAX_BYTES ((size_t)256 << 20)

/* Reads the first n bytes of a file again and again, four times as many, until they contain its
 * directory. */
static int read_directory(struct gguf_file *f, struct err *err)
{
    for (size_t n = DIRECTORY_BYTES;; n *= 4) {
        n = (size_t)MIN(n, f->n_bytes);
        f->directory = xrealloc(f->directory, n);
        int rc = file_read_at(f->fd, f->directory, n, 0);
        if (rc != 0)
            return err_set(err, rc, "%s: %s", f->path,
                           rc == -ENODATA ? "the file was cut while it was read"
                                          : strerror(-rc));
        gguf_deinit(&f->g);
        rc = gguf_parse(&f->g, f->directory, n, f->n_bytes, f->path, err);
        if (rc != -EAGAIN)
            return rc;
        if (n >= DIRECTORY_MAX_BYTES)
            return err_set(err, ERR_FORMAT,
                           "%s: the directory needs more than %zu bytes; download the file "
                           "again",
                           f->path, n);
    }
}

static int open_file(struct gguf_file *f, char *path, struct err *err)
{
    struct stat st;
    f->path = path;
    /* O_NONBLOCK: opening a pipe does not wait */
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0)
        return err_set(err, -errno, "%s: %s", path, strerror(errno));
    if (fstat(f->fd, &st) != 0)
        return err_set(err, -errno, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_size < 4)
        return err_set(err, ERR_FORMAT, "%s: not a GGUF file", path);
    f->n_bytes = (uint64_t)st.st_size;
    return read_directory(f, err);
}

/* --- split models ------------------------------------------------------------------------- */

static int64_t split_number(const struct gguf_file *f, const char *key, int64_t dflt)
{
    int64_t n = dflt;
    gguf_int(gguf_find(&f->g, key), 0, &n);
    return n;
}

/* Returns the path without "-00001-of-00003.gguf", with which the first of `count` files must end.
 */
static char *split_prefix(const char *path, int64_t count, struct err *err)
{
    char tail[64];
    snprintf(tail, sizeof tail, "-%05d-of-%05" PRId64 ".gguf", 1, count);
    size_t n = strlen(path), k = strlen(tail);
    if (n > k && strcmp(path + n - k, tail) == 0)
        return xasprintf("%.*s", (int)(n - k), path);
    err_set(err, ERR_MISMATCH,
            "%s: is the first of %" PRId64 " files, whose names must end with %s and so on",
            path, count, tail);
    return NULL;
}

static int check_split(const struct gguf_file *f, int64_t no, int64_t count,
                       struct err *err)
{
    if (split_number(f, "split.no", -1) == no &&
        split_number(f, "split.count", -1) == count)
        return 0;
    return err_set(err, ERR_MISMATCH,
                   "%s: its metadata does not say that it is file %" PRId64 " of %" PRId64,
                   f->path, no + 1, count);
}

static int check_tensor_count(const struct gguf_files *f, struct err *err)
{
    int64_t want = split_number(&f->files[0], "split.tensors.count", -1);
    size_t n = 0;
    for (size_t i = 0; i < f->n; i++)
        n += f->files[i].g.n_tensors;
    if (want < 0 || n == (size_t)want)
        return 0;
    return err_set(err, ERR_MISMATCH,
                   "%s: the files have %zu tensors together; %" PRId64 " are announced",
                   f->files[0].path, n, want);
}

static int open_rest(struct gguf_files *f, int64_t count, struct err *err)
{
    char *prefix = split_prefix(f->files[0].path, count, err);
    int rc = prefix != NULL ? check_split(&f->files[0], 0, count, err) : ERR_MISMATCH;
    for (int64_t i = 1; rc == 0 && i < count; i++) {
        char *path = xasprintf("%s-%05" PRId64 "-of-%05" PRId64 ".gguf", prefix, i + 1,
                               count);
        struct gguf_file *next = &f->files[f->n++];
        rc = open_file(next, path, err);
        if (rc == 0)
            rc = check_split(next, i, count, err);
        else if (rc == -ENOENT)
            err_wrap(err, "incomplete download: a file of the model is missing");
    }
    free(prefix);
    return rc != 0 ? rc : check_tensor_count(f, err);
}

int gguf_files_open(struct gguf_files *out, const char *path, bool all, struct err *err)
{
    *out = (struct gguf_files){.n = 1, .files = xcalloc(1, sizeof *out->files)};
    out->files[0].fd = -1;
    int rc = open_file(&out->files[0], xstrdup(path), err);
    if (rc != 0)
        return rc;
    int64_t count = split_number(&out->files[0], "split.count", 1);
    int64_t no = split_number(&out->files[0], "split.no", 0);
    if (count < 0 || count > MAX_FILES)
        return err_set(err, ERR_FORMAT, "%s: 'split.count' is %" PRId64, path, count);
    if (no != 0)
        return err_set(err, ERR_USAGE,
                       "%s: is file %" PRId64 " of %" PRId64 " of a model: give the first",
                       path, no + 1, count);
    if (!all || count <= 1)
        return 0;
    out->files = xrealloc(out->files, (size_t)count * sizeof *out->files);
    for (int64_t i = 1; i < count; i++)
        out->files[i] = (struct gguf_file){.fd = -1};
    return open_rest(out, count, err);
}

void gguf_files_close(struct gguf_files *f)
{
    for (size_t i = 0; i < f->n; i++) {
        gguf_deinit(&f->files[i].g);
        free(f->files[i].directory);
        if (f->files[i].fd >= 0)
            close(f->files[i].fd);
        free(f->files[i].path);
    }
    free(f->files);
    *f = (struct gguf_files){0};
}

/* --- looking things up -------------------------------------------------------------------- */

const struct gguf_tensor *gguf_files_find(const struct gguf_files *f, const char *name,
                                          const struct gguf_file **in)
{
    for (size_t i = 0; i < f->n; i++) {
        const struct gguf_tensor *t = gguf_find_tensor(&f->files[i].g, name);
        if (t != NULL && in != NULL)
            *in = &f->files[i];
        if (t != NULL)
            return t;
    }
    return NULL;
}

const char *gguf_files_arch(const struct gguf_files *f, char *buf, size_t n,
                            struct err *err)
{
    const char *s;
    size_t len;
    if (!gguf_string(gguf_find(&f->files[0].g, "general.architecture"), &s, &len) ||
        len == 0 || len >= n || memchr(s, 0, len) != NULL) {
        err_set(err, ERR_FORMAT, "%s: 'general.architecture' is missing or not a name",
                f->files[0].path);
        return NULL;
    }
    memcpy(buf, s, len);
    buf[len] = '\0';
    return buf;
}
