/* io_dir.c - the front of folders and names.  See io.h. */
#include "io/io_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"

static int path_err(const char *verb, const char *path, int rc, struct err *err)
{
    return rc == 0 ? 0 : err_set(err, io_code(rc), "%s %s: %s", verb, path, err_name(rc));
}

/* Returns the folder that holds the last component of a path; the caller frees it. */
static char *parent_of(const char *path)
{
    char *s = xstrdup(path);
    size_t n = strlen(s);
    while (n > 1 && s[n - 1] == '/')
        s[--n] = 0;
    char *slash = strrchr(s, '/');
    if (slash == NULL)
        strcpy(s, n > 0 ? "." : "");
    else
        slash[slash == s] = 0;
    return s;
}

int io_mkdir(struct io *io, const char *path, struct err *err)
{
    return path_err("mkdir", path, io->ops->mkdir(io, path), err);
}

int io_make_private(struct io *io, const char *path, struct err *err)
{
    return path_err("chmod", path, io->ops->make_private(io, path), err);
}

/* Creates the folder `path`, whose parent exists, and adds 1 to *n_made. If the folder exists, does
 * nothing and returns 0. */
static int mkdir_one(struct io *io, const char *path, int *n_made, struct err *err)
{
    struct io_stat st;
    int rc = io->ops->stat(io, path, &st);
    if (rc == 0)
        return st.is_dir ? 0 : path_err("mkdir", path, -ENOTDIR, err);
    if (rc != -ENOENT)
        return path_err("mkdir", path, rc, err);
    rc = io->ops->mkdir(io, path);
    if (rc == -EEXIST) /* another process has created the folder meanwhile */
        return 0;
    if (rc != 0)
        return path_err("mkdir", path, rc, err);
    rc = io_parent_sync(io, path, err);
    if (rc != 0)
        (void)io->ops->unlink(io, path);
    *n_made += rc == 0;
    return rc;
}

int io_mkdirs(struct io *io, const char *path, int *n_made, struct err *err)
{
    char *s = xstrdup(path);
    int rc = 0, made = 0;
    for (char *p = s + 1; rc == 0 && s[0] != 0; p++) {
        if (*p != '/' && *p != 0)
            continue;
        char end = *p;
        *p = 0;
        rc = mkdir_one(io, s, &made, err);
        if (rc != 0) {
            char *last = parent_of(s);
            io_rmdirs(io, last, made);
            free(last);
        }
        *p = end;
        if (end == 0)
            break;
    }
    free(s);
    if (n_made != NULL)
        *n_made = rc == 0 ? made : 0;
    return rc;
}

void io_rmdirs(struct io *io, const char *path, int n)
{
    char *s = xstrdup(path);
    for (; n > 0 && io->ops->unlink(io, s) == 0; n--) {
        char *parent = parent_of(s);
        free(s);
        s = parent;
    }
    free(s);
}

int io_list(struct io *io, const char *path, struct io_names *out, struct err *err)
{
    *out = (struct io_names){0};
    int rc = io->ops->list(io, path, out);
    if (rc != 0) {
        io_names_free(out);
        return path_err("list", path, rc, err);
    }
    if (out->n > 1)
        qsort(out->name, out->n, sizeof out->name[0], text_order);
    return 0;
}

void io_names_free(struct io_names *names)
{
    for (size_t i = 0; i < names->n; i++)
        free(names->name[i]);
    free(names->name);
    *names = (struct io_names){0};
}

int io_stat(struct io *io, const char *path, struct io_stat *out, struct err *err)
{
    return path_err("stat", path, io->ops->stat(io, path, out), err);
}

bool io_exists(struct io *io, const char *path)
{
    struct io_stat st;
    return io->ops->stat(io, path, &st) == 0;
}

int io_unlink(struct io *io, const char *path, struct err *err)
{
    return path_err("unlink", path, io->ops->unlink(io, path), err);
}

int io_rename(struct io *io, const char *from, const char *to, struct err *err)
{
    int rc = io->ops->rename(io, from, to);
    return rc == 0
               ? 0
               : err_set(err, io_code(rc), "rename %s to %s: %s", from, to, err_name(rc));
}

int io_dir_sync(struct io *io, const char *path, struct err *err)
{
    return path_err("sync folder", path, io->ops->dir_sync(io, path), err);
}

int io_parent_sync(struct io *io, const char *path, struct err *err)
{
    char *parent = parent_of(path);
    int rc = io_dir_sync(io, parent, err);
    free(parent);
    return rc;
}

int io_space(struct io *io, const char *path, uint64_t *free_bytes, uint64_t *total_bytes,
             struct err *err)
{
    return path_err("space of", path, io->ops->space(io, path, free_bytes, total_bytes),
                    err);
}
