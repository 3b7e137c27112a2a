/* presence.c - checks whether the store is still where it was opened.
 *
 * A folder that is removed or replaced under a running process keeps taking writes through open
 * files, and all of them are lost when the process ends. So each commit compares device and
 * inode of the superblocks and the index with those at open. */
#include <errno.h>
#include <stdlib.h>

#include "io/io.h"
#include "store/store_impl.h"

static int file_id(struct store *s, const char *dir, const char *name,
                   struct store_file_id *out)
{
    struct io_stat st = {0};
    char *path = store_path(dir, name);
    int rc = io_stat(s->io, path, &st, NULL);
    *out = (struct store_file_id){.device = st.device, .inode = st.inode, .known = rc == 0};
    free(path);
    return rc;
}

void store_note_files(struct store *s)
{
    for (int i = 0; i < s->n_dirs; i++)
        (void)file_id(s, s->dirs[i], "superblock", &s->superblock_id[i]);
    (void)file_id(s, s->dirs[0], "index.db", &s->index_id);
}

static bool is_gone(struct store *s, const char *dir, const char *name,
                    const struct store_file_id *was)
{
    struct store_file_id now;
    int rc = file_id(s, dir, name, &now);
    /* Another error than -ENOENT does not prove that the file was removed. */
    if (!was->known || (rc != 0 && rc != -ENOENT))
        return false;
    return rc == -ENOENT || now.device != was->device || now.inode != was->inode;
}

int store_check_present(struct store *s, struct err *err)
{
    bool gone = is_gone(s, s->dirs[0], "index.db", &s->index_id);
    int at = 0;
    for (int i = 0; i < s->n_dirs && !gone; i++) {
        gone = is_gone(s, s->dirs[i], "superblock", &s->superblock_id[i]);
        at = i;
    }
    return gone ? err_set(err, -ENOENT,
                          "the store in %s was removed or replaced while it was in use: "
                          "restart to begin a new one",
                          s->dirs[at])
                : 0;
}
