/* err_sqlite.c - see err_sqlite.h. */
#include "base/err_sqlite.h"

#include <errno.h>
#include <sqlite3.h>

#include "base/err.h"

int err_of_sqlite(int sqlite_code)
{
    switch (sqlite_code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return ERR_BUSY;
    case SQLITE_FULL:
        return -ENOSPC;
    case SQLITE_NOMEM:
        return -ENOMEM;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    /* SQLITE_ERROR means for example "no such table": a half-made database or a damaged schema */
    case SQLITE_ERROR:
    case SQLITE_MISMATCH:
    case SQLITE_CONSTRAINT:
    case SQLITE_TOOBIG:
        return ERR_CORRUPT;
    case SQLITE_READONLY:
        return -EROFS;
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
        return -EACCES;
    default:
        return -EIO;
    }
}
