/* err_sqlite.h - what a code of SQLite is in this program's convention (err.h).
 *
 * SQLite keeps two files: the store's index and the server's conversations, in layers that may
 * not see each other.  What its codes mean to a user is the same for both. */
#ifndef BASE_ERR_SQLITE_H
#define BASE_ERR_SQLITE_H

/* sqlite_code: a primary or an extended result code that is neither SQLITE_OK nor a
 * row's.  Returns -errno, ERR_BUSY (another process holds the file) or ERR_CORRUPT (what
 * is there is not what was written). */
int err_of_sqlite(int sqlite_code);

#endif
