/* home.h - the folders and files of a store, and its identity.
 *
 * Invariants:
 * 1. Everything here is set while the store is opened and does not change afterwards. So it is read
 *    without a lock.
 * 2. The lock file is held from before the first other file is touched until the store is closed;
 *    a store that reads beside another process does not hold it.
 * 3. io NULL: the store is in memory, and has no directories. */
#ifndef STORE_HOME_H
#define STORE_HOME_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "store/chunk.h"

/* Identity of the file that a name referred to when the store was opened. */
struct home_file {
    uint64_t device, inode;
    bool is_known;
};

struct home {
    struct io *io;
    char *dirs[STORE_MAX_DEVICES];
    int n_dirs;
    struct io_file *lock_file; /* in the first directory */
    bool is_beside;   /* the store reads a copy of the index beside another process */
    char holder[200]; /* text about the process that has the store open, or "" */
    bool read_only;
    int64_t stuck_ns; /* as in store_opts */
    uint8_t uuid[STORE_UUID_BYTES];
    struct seal *seal;         /* NULL: the store is not encrypted */
    struct owner_keys *owners; /* NULL: the store is not encrypted */
    struct home_file superblock[STORE_MAX_DEVICES], index;
};

void home_deinit(struct home *h);

/* Returns "dir/name"; the caller frees it. */
char *home_path(const char *dir, const char *name);

/* Remembers which files the store's names refer to. Call it when all files exist. */
void home_note_files(struct home *h);
/* Returns -ENOENT if one of the names of home_note_files has gone or refers to another file, else
 * 0. A folder that is removed or replaced under a running process keeps taking writes through open
 * files, and all of them are lost when the process ends. */
int home_check_present(struct home *h, struct err *err);

/* The reserve: a small file that holds space for erasing on a full disk. Erasing frees space, but
 * first writes rows into the index. Erase and gc give the reserve up when the index meets a full
 * disk, and fill it again when there is space. Saving never takes it. */
#define HOME_RESERVE_FILE  "reserve"
#define HOME_RESERVE_BYTES ((uint64_t)1 << 20) /* the reserve's largest size */
/* Fills the reserve, as far as there is space. cap_bytes: bound on the store's extents; 0: none. */
void home_fill_reserve(const struct home *h, uint64_t cap_bytes);
/* Gives up the reserve's space. Returns false if there was no reserve. */
bool home_release_reserve(struct io *io, const char *dir);

#endif
