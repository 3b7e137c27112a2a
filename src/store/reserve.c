/* reserve.c - a small file that holds space for erasing on a full disk.
 *
 * Erasing frees space, but first writes rows into the index.  The file `reserve` in the first
 * directory holds blocks for these rows.  Erase and gc give it up when the index meets a full disk,
 * and fill it again when there is space.  Saving never takes it. */
#include <errno.h>
#include <stdlib.h>

#include "base/minmax.h"
#include "io/io.h"
#include "store/store_impl.h"

/* Returns the reserve's size. It is smaller on small disks and under small caps. */
static uint64_t reserve_bytes(const struct store *s)
{
    uint64_t free_bytes, total_bytes, want = STORE_RESERVE_BYTES;
    if (io_space(s->io, s->dirs[0], &free_bytes, &total_bytes, NULL) != 0)
        return 0;
    want = MIN(total_bytes / 32, want);
    want = s->cap_bytes > 0 && s->cap_bytes / 32 < want ? s->cap_bytes / 32 : want;
    return want / STORE_ALIGN * STORE_ALIGN;
}

/* Fills the reserve. Lack of space is no error: the next call tries again. */
void store_fill_reserve(struct store *s)
{
    struct io_file *file = NULL;
    struct io_stat st;
    uint64_t want;
    if (s->io == NULL || s->read_only || (want = reserve_bytes(s)) == 0)
        return;
    char *path = store_path(s->dirs[0], STORE_RESERVE_FILE);
    bool missing = io_stat(s->io, path, &st, NULL) != 0 || st.allocated_bytes < want;
    if (missing && io_file_open(s->io, path, IO_CREATE, &file, NULL) == 0) {
        if (io_file_allocate(file, 0, want, NULL) != 0)
            (void)io_file_truncate(file, 0, NULL);
        io_file_close(file);
    }
    free(path);
}

bool store_release_reserve(struct io *io, const char *dir)
{
    struct io_stat st;
    char *path = store_path(dir, STORE_RESERVE_FILE);
    bool released = io_stat(io, path, &st, NULL) == 0 && st.allocated_bytes > 0 &&
                    io_unlink(io, path, NULL) == 0;
    free(path);
    return released;
}
