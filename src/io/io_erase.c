/* io_erase.c - see io_erase.h. */
#include "io/io_erase.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/minmax.h"
#include "io/io_impl.h"
#include "io/io_posix.h"

/* Zeros are written in pieces of this size. Through the page cache every SYNC_PIECES pieces are
 * synced, so that their time is the device's and not the memory's. */
enum { PIECE_BYTES = 256 << 10, SYNC_PIECES = 16 };

/* Rests shorter than this are added up. A small erasure does not rest at all. */
#define REST_NS (2 * (int64_t)1000 * 1000)

static _Alignas(IO_ALIGN) uint8_t zeros[PIECE_BYTES]; /* never written */

/* Rests as long as the erasures of this io have worked since their last rest. */
static void rest(struct io *io, int64_t begun_ns)
{
    int64_t worked_ns = clock_now_ns() - begun_ns;
    int64_t owed_ns = atomic_fetch_add(&io->erase_owes_ns, worked_ns) + worked_ns;
    if (owed_ns < REST_NS)
        return;
    atomic_fetch_sub(&io->erase_owes_ns, owed_ns);
    clock_sleep_ns(owed_ns);
}

static int zero_run(struct io_file *f, uint64_t begin, uint64_t end, struct err *err)
{
    int rc = 0;
    for (unsigned i = 1; rc == 0 && begin < end; i++) {
        int64_t begun_ns = clock_now_ns();
        size_t n = (size_t)MIN(end - begin, sizeof zeros);
        rc = io_file_pwrite(f, zeros, n, begin, err);
        begin += n;
        if (rc == 0 && !f->direct && i % SYNC_PIECES == 0)
            rc = io_file_sync(f, err);
        if (rc == 0)
            rest(f->io, begun_ns);
    }
    return rc;
}

int io_file_zero(struct io_file *f, uint64_t begin, uint64_t end, bool *any,
                 struct err *err)
{
    int rc = 0;
    *any = false;
    while (rc == 0 && begin < end) {
        uint64_t from, to;
        rc = io_file_next_data(f, begin, &from, &to, err);
        if (rc != 0 || from >= end || from == to)
            break;
        /* Runs of a direct file are runs of whole blocks, but its last block may be cut short. */
        if (f->direct)
            to = round_up(to, IO_ALIGN);
        *any = true;
        rc = zero_run(f, MAX(from, begin), MIN(to, end), err);
        begin = to;
    }
    return rc;
}

static int zero_and_sync(struct io_file *f, uint64_t begin, uint64_t end, struct err *err)
{
    bool any;
    int rc = io_file_zero(f, begin, end, &any, err);
    return rc == 0 && any ? io_file_sync(f, err) : rc;
}

/* Overwrites [begin, end) and syncs. The first sector goes alone, before the others. */
static int zero_durably(struct io_file *f, uint64_t begin, uint64_t end, struct err *err)
{
    uint64_t first_end = MIN(round_up(begin + 1, IO_ALIGN), end);
    int rc = zero_and_sync(f, begin, first_end, err);
    return rc == 0 ? zero_and_sync(f, first_end, end, err) : rc;
}

bool io_medium_check(struct io *io, const char *path, char *why, size_t n)
{
    if (n > 0)
        why[0] = 0;
    return io->ops->medium_check == NULL || io->ops->medium_check(path, why, n);
}

bool io_file_is_shared(const struct io_file *f)
{
    int fd = io_file_fd(f);
    return fd >= 0 && io_posix_is_shared(fd);
}

int io_file_cut(struct io_file *f, uint64_t size_bytes, struct err *err)
{
    uint64_t now, end;
    int rc = io_file_size(f, &now, err);
    if (rc != 0 || now <= size_bytes)
        return rc;
    /* A direct file of an odd length grows to whole sectors before it is cut. */
    end = (f->flags & IO_DIRECT) != 0 ? round_up(now, IO_ALIGN) : now;
    rc = zero_durably(f, size_bytes, end, err);
    return rc == 0 ? io_file_truncate(f, size_bytes, err) : rc;
}

int io_erase(struct io *io, const char *path, struct err *err)
{
    struct io_file *f = NULL;
    struct io_stat st;
    int rc = io_stat(io, path, &st, err);
    if (rc == -ENOENT) /* also a link that leads nowhere */
        return io_unlink(io, path, err);
    if (rc == 0 && !st.is_dir && st.n_names < 2) {
        rc = io_file_open(io, path, 0, &f, err);
        if (rc == 0)
            rc = zero_durably(f, 0, st.size_bytes, err);
        io_file_close(f);
        if (rc == -ELOOP) /* a link has no bytes of its own */
            rc = 0;
    }
    if (rc == 0 && st.is_dir)
        rc = err_set(err, -EISDIR, "erase %s: it is a folder", path);
    return rc == 0 ? io_unlink(io, path, err) : rc;
}

int io_replace(struct io *io, const char *from, const char *to, int *old_rc,
               struct err *err)
{
    struct err why;
    struct io_stat st;
    /* An exchange would put a folder aside, which a rename refuses. */
    if (io->ops->stat(io, to, &st) == 0 && st.is_dir)
        return err_set(err, -EISDIR, "rename %s to %s: %s", from, to, err_name(-EISDIR));
    int rc = io->ops->exchange != NULL ? io->ops->exchange(io, from, to) : -EINVAL;
    bool is_exchanged = rc == 0;
    if (old_rc != NULL)
        *old_rc = 0;
    if (!is_exchanged) { /* there is no old file, or the file system cannot exchange names */
        struct io_file *old = NULL;
        (void)io_file_open(io, to, 0, &old, NULL);
        rc = io_rename(io, from, to, err);
        if (rc == 0)
            rc = io_parent_sync(io, to, err);
        int erased = 0;
        uint64_t size = 0;
        if (rc == 0 && old != NULL && (erased = io_file_size(old, &size, &why)) == 0)
            erased = zero_durably(old, 0, size, &why);
        io_file_close(old);
        if (old_rc != NULL)
            *old_rc = erased;
        return rc;
    }
    rc = io_parent_sync(io, to, err);
    int erased = rc == 0 ? io_erase(io, from, &why) : 0; /* `from` names the old file now */
    if (old_rc != NULL)
        *old_rc = erased;
    return rc;
}
