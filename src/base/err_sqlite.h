/* err_sqlite.h - translates SQLite's result codes into this program's convention (err.h).
 *
 * SQLite keeps two files: the store's index and the server's conversations.  The two files belong
 * to layers that may not include each other, so both layers translate the codes with this file. */
#ifndef BASE_ERR_SQLITE_H
#define BASE_ERR_SQLITE_H

/* Returns -errno, ERR_BUSY (another process holds the file) or ERR_CORRUPT (the file is damaged).
 * sqlite_code is a primary or extended result code other than SQLITE_OK, SQLITE_ROW and
 * SQLITE_DONE. */
int err_of_sqlite(int sqlite_code);

#endif
