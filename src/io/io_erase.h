/* io_erase.h - freeing bytes so that they are gone from the medium, not only from the file.
 *
 * Punching a hole, cutting a file, removing it and renaming another over it free blocks. The file
 * system keeps the bytes in free blocks until it gives the blocks to another file. The functions
 * below overwrite the bytes with zeros first, sync, and only then free:
 *
 *     zeros over [begin, end)   ->   sync   ->   punch, truncate or unlink
 *
 * They skip holes, so erasing what was punched before costs nothing and needs no space.
 *
 * What survives a crash. A crash in between leaves the file with its old bytes, with zeros, or with
 * a mixture. So a name that others trust must lose its meaning first (the caller removes or renames
 * the record that refers to it). A sector at the beginning is overwritten and synced alone, so that
 * a file with a header (SQLite's log) is never read in part.
 *
 * Pace. Overwriting takes at most about half of the time of the device: after each piece it rests
 * as long as the piece took.
 *
 * Limits. A file system that writes elsewhere than in place keeps the old bytes. io_medium_check
 * tells. Flash and copies (snapshots, backups) are beyond any program: SECURITY.md. */
#ifndef IO_IO_ERASE_H
#define IO_IO_ERASE_H

#include "io/io.h"

/* Overwrites [begin, end) of a file with zeros, as far as the file holds data there, and sets *any
 * to whether it does. Does not sync, except now and then in a file that goes through the page
 * cache. For a direct file both ends are multiples of IO_ALIGN. */
int io_file_zero(struct io_file *f, uint64_t begin, uint64_t end, bool *any,
                 struct err *err);

/* Overwrites the bytes from size_bytes on, syncs, and truncates the file there, if it is longer. */
int io_file_cut(struct io_file *f, uint64_t size_bytes, struct err *err);

/* Overwrites a file, syncs, and removes its name. The caller syncs the folder. Returns -ENOENT if
 * there is no file, and -EISDIR for a folder. A link is removed and not followed. If another name
 * leads to the same file, only the name is removed, because the other name still needs the
 * bytes. */
int io_erase(struct io *io, const char *path, struct err *err);

/* Renames a synced file over `to`, syncs the folder, and erases the file that was `to`. A crash, or
 * a failure after the rename, may leave the old file under the name `from`. So the caller erases a
 * leftover `from` when it starts. Returns 0 also if only the erasing failed: `to` is the new file
 * then, and *old_rc (NULL allowed) is the code. */
int io_replace(struct io *io, const char *from, const char *to, int *old_rc,
               struct err *err);

/* Returns true if a file in this folder is overwritten in place, as far as a program can see. Else
 * `why` names the reason: a file system that copies on write or keeps a log, a journal of data, a
 * snapshot of the volume. Looks only at the system's own tables, in microseconds. */
bool io_medium_check(struct io *io, const char *path, char *why, size_t n);
/* Returns whether another file shares blocks of this one (a reflink), and so keeps old bytes. */
bool io_file_is_shared(const struct io_file *f);

#endif
