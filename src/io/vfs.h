/* vfs.h - SQLite over src/io: database, WAL and journal of a connection go through a `struct
 * io`.
 *
 * So the simulated disk sees every byte that SQLite writes, and tests can crash the store's
 * index like its data. Open with sqlite3_open_v2(path, &db, flags, name) and, before any other
 * access, run
 *
 *   PRAGMA locking_mode = EXCLUSIVE     (there is no shared memory: WAL works in this mode only)
 *   PRAGMA temp_store = MEMORY          (files without a name cannot be opened)
 *   PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL
 *
 * The first access takes io's lock on the database file and keeps it until close. A second
 * connection, in this process or another, gets SQLITE_BUSY, so this is also the store's
 * two-process lock. The VFS does not claim that a write leaves the rest of its sector alone
 * (SQLITE_IOCAP_POWERSAFE_OVERWRITE), so SQLite pads WAL commits to 4 KiB. */
#ifndef IO_VFS_H
#define IO_VFS_H

#include <stdbool.h>

#include "base/err.h"

struct io;
struct seal;

enum vfs_use {
    VFS_WRITE,
    VFS_READ, /* Every file is opened for reading only. A missing log counts as empty. */
    /* As VFS_READ, and each file is read into memory when it is opened, without a lock. SQLite
     * opens a database's log at the first read. */
    VFS_COPY,
};
/* Registers the VFS under `name` (copied), never as the default. The io must outlive the
 * registration. Returns ERR_BUSY if the name is taken. */
int vfs_register(struct io *io, const char *name, enum vfs_use use, struct err *err);
/* Encrypts the files of a VFS (seal_file.h, in place) from now on, unless seal is NULL. No file may
 * be open. The seal must outlive the registration. */
void vfs_use_seal(const char *name, const struct seal *seal);
/* Unregisters the VFS. All connections that use it must be closed. An unknown name is allowed. */
void vfs_unregister(const char *name);

#endif
