/* vfs.h - SQLite over src/io: database, WAL and journal of a connection go through a
 * `struct io`.
 *
 * So the simulated disk sees every byte that SQLite writes, and the store's index can be
 * crashed like its data.  Open with sqlite3_open_v2(path, &db, flags, name) and, before
 * anything else,
 *
 *   PRAGMA locking_mode = EXCLUSIVE     (there is no shared memory: WAL works in this mode
 * only) PRAGMA temp_store = MEMORY          (files without a name cannot be opened) PRAGMA
 * journal_mode = WAL; PRAGMA synchronous = FULL
 *
 * The first access takes io's lock on the database file and keeps it until close, so a
 * second connection, in this process or another, gets SQLITE_BUSY: this is also the store's
 * two-process lock.  No claim is made that a write leaves the rest of its sector alone
 * (SQLITE_IOCAP_POWERSAFE_ OVERWRITE), so SQLite pads WAL commits to 4 KiB. */
#ifndef STORE_VFS_H
#define STORE_VFS_H

#include <stdbool.h>

#include "base/err.h"

struct io;

/* Registers under `name` (copied), never as the default. The io must outlive the
 * registration. ERR_BUSY where the name is taken.
 *
 * read_only: every file is opened for reading only, so that a medium that cannot be written
 * will do; a log that is not there is an empty one. */
int vfs_register(struct io *io, const char *name, bool read_only, struct err *err);
/* All connections that use it must be closed. An unknown name is allowed. */
void vfs_unregister(const char *name);

#endif
