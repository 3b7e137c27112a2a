/* home.c - see home.h. */
#include "store/home.h"

#include <errno.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/minmax.h"
#include "io/io.h"

void home_deinit(struct home *h)
{
    owner_keys_close(h->owners);
    seal_free(h->seal);
    io_file_close(h->lock_file);
    for (int i = 0; i < h->n_dirs; i++)
        free(h->dirs[i]);
}

char *home_path(const char *dir, const char *name)
{
    return xasprintf("%s/%s", dir, name);
}

/* --- whether the files are still there -------------------------------------------------------- */

static int file_id(const struct home *h, const char *dir, const char *name,
                   struct home_file *out)
{
    struct io_stat st = {0};
    char *path = home_path(dir, name);
    int rc = io_stat(h->io, path, &st, NULL);
    *out = (struct home_file){.device = st.device, .inode = st.inode, .is_known = rc == 0};
    free(path);
    return rc;
}

void home_note_files(struct home *h)
{
    for (int i = 0; i < h->n_dirs; i++)
        (void)file_id(h, h->dirs[i], "superblock", &h->superblock[i]);
    (void)file_id(h, h->dirs[0], "index.db", &h->index);
}

static bool is_gone(const struct home *h, const char *dir, const char *name,
                    const struct home_file *was)
{
    struct home_file now;
    int rc = file_id(h, dir, name, &now);
    /* Another error than -ENOENT does not prove that the file was removed. */
    if (!was->is_known || (rc != 0 && rc != -ENOENT))
        return false;
    return rc == -ENOENT || now.device != was->device || now.inode != was->inode;
}

int home_check_present(struct home *h, struct err *err)
{
    bool gone = is_gone(h, h->dirs[0], "index.db", &h->index);
    int at = 0;
    for (int i = 0; i < h->n_dirs && !gone; i++) {
        gone = is_gone(h, h->dirs[i], "superblock", &h->superblock[i]);
        at = i;
    }
    return gone ? err_set(err, -ENOENT,
                          "the store in %s was removed or replaced while it was in use: "
                          "restart to begin a new one",
                          h->dirs[at])
                : 0;
}

/* --- the reserve ------------------------------------------------------------------------------ */

/* Returns the reserve's size. It is smaller on small disks and under small caps. */
static uint64_t reserve_bytes(const struct home *h, uint64_t cap_bytes)
{
    uint64_t free_bytes, total_bytes, want = HOME_RESERVE_BYTES;
    if (io_space(h->io, h->dirs[0], &free_bytes, &total_bytes, NULL) != 0)
        return 0;
    want = MIN(total_bytes / 32, want);
    want = cap_bytes > 0 && cap_bytes / 32 < want ? cap_bytes / 32 : want;
    return want / STORE_ALIGN * STORE_ALIGN;
}

void home_fill_reserve(const struct home *h, uint64_t cap_bytes)
{
    struct io_file *file = NULL;
    struct io_stat st;
    uint64_t want;
    if (h->io == NULL || h->read_only || (want = reserve_bytes(h, cap_bytes)) == 0)
        return;
    char *path = home_path(h->dirs[0], HOME_RESERVE_FILE);
    bool missing = io_stat(h->io, path, &st, NULL) != 0 || st.allocated_bytes < want;
    if (missing && io_file_open(h->io, path, IO_CREATE, &file, NULL) == 0) {
        if (io_file_allocate(file, 0, want, NULL) != 0)
            (void)io_file_truncate(file, 0, NULL);
        io_file_close(file);
    }
    free(path);
}

bool home_release_reserve(struct io *io, const char *dir)
{
    struct io_stat st;
    char *path = home_path(dir, HOME_RESERVE_FILE);
    bool released = io_stat(io, path, &st, NULL) == 0 && st.allocated_bytes > 0 &&
                    io_unlink(io, path, NULL) == 0;
    free(path);
    return released;
}
