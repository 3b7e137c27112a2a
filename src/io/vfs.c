/* vfs.c - an SQLite VFS whose files are io files. See vfs.h.
 *
 * It owns only the translation. Invariants:
 * 1. The name of a file that this VFS created is synced with the file's first xSync, and a
 *    deletion is synced when SQLite asks. So no committed transaction depends on a name that a
 *    crash can remove.
 * 2. The lock on the database is taken whole at the first SHARED and given up at NONE. There are
 *    no levels in between, since no other user can be inside.
 * 3. Reads past the end are zero-filled, as SQLite requires.
 * 4. What is cut from a file or deleted with it is overwritten first (io_erase.h): a log holds the
 *    rows that were dropped. Its header goes first, durably, so no part of it is ever replayed.
 * 5. A VFS that does not write changes nothing. SQLite makes a log for each database in WAL mode;
 *    here a missing log is an empty file without io_file.
 * 6. An encrypted file is written in whole blocks of 16 bytes. SQLite syncs up to the beginning of
 *    a sector and never writes before it again. So no block with synced bytes is written again. */
#include "io/vfs.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/minmax.h"
#include "io/io.h"
#include "io/io_erase.h"
#include "seal/seal_file.h"

#define MAX_PATH 1024

struct vfs {
    sqlite3_vfs base;
    struct io *io;
    char *name;
    const struct seal *seal; /* NULL: files are not encrypted */
    enum vfs_use use;
};

/* Kinds of pages (seal.h). Encrypted files are cut into pages of UNIT bytes, which all sizes of
 * SQLite's pages are a multiple of. A page's blocks can be decrypted one by one. */
enum { KIND_DATABASE = 16, KIND_LOG, KIND_OTHER };
enum { UNIT = 512, BLOCK = 16 };

struct vfs_file { /* lies in memory that SQLite allocates */
    sqlite3_file base;
    struct vfs *vfs;
    struct io_file *file; /* NULL: the file was copied, or it is a log that is missing */
    uint8_t *copy;        /* [n_copied] the file's bytes with VFS_COPY; else NULL */
    size_t n_copied;
    bool name_unsynced; /* its folder has not been synced since the file was opened */
    bool locked;
    uint64_t kind;
};

static struct vfs *vfs_of(sqlite3_vfs *v)
{
    return (struct vfs *)v;
}

static struct vfs_file *file_of(sqlite3_file *f)
{
    return (struct vfs_file *)f;
}

static bool vfs_is_read_only(sqlite3_file *f)
{
    return file_of(f)->vfs->use != VFS_WRITE;
}

/* Code of this thread's last failure, for SQLite's log and sqlite3_system_errno. */
static _Thread_local int last_code;

static int failed(int sqlite_code, const struct err *err)
{
    last_code = err->code < 0 && err->code > -4000 ? -err->code : EIO;
    sqlite3_log(sqlite_code, "%s", err->msg);
    return sqlite_code;
}

/* ---- Files ------------------------------------------------------------------------------- */

static int file_close(sqlite3_file *base)
{
    io_file_close(file_of(base)->file);
    free(file_of(base)->copy);
    return SQLITE_OK;
}

/* Reads n bytes at a place, or as many as there are, from the file or its copy. */
static int bytes_read(const struct vfs_file *f, void *buf, size_t n, uint64_t at,
                      size_t *got, struct err *err)
{
    if (f->file != NULL)
        return io_file_pread_some(f->file, buf, n, at, got, err);
    *got = at < f->n_copied ? MIN(n, f->n_copied - (size_t)at) : 0;
    if (*got > 0)
        memcpy(buf, f->copy + at, *got);
    return 0;
}

/* Reads an open file into memory, and closes it. */
static int file_copy(struct vfs_file *f, struct err *err)
{
    uint64_t size = 0;
    int rc = io_file_size(f->file, &size, err);
    if (rc == 0 && (f->copy = mem_try(size + 1)) == NULL)
        rc = err_set(err, -ENOMEM, "no memory for a copy of %s", io_file_path(f->file));
    if (rc == 0)
        rc = io_file_pread_some(f->file, f->copy, size, 0, &f->n_copied, err);
    io_file_close(f->file);
    f->file = NULL;
    if (rc != 0)
        free(f->copy);
    return rc;
}

static const char sqlite_magic[SEAL_HEAD_BYTES] = "SQLite format 3";

/* Encrypts or decrypts n bytes in place, which begin at a unit. */
static void units_crypt(const struct vfs_file *f, uint8_t *bytes, size_t n, uint64_t at,
                        bool encrypts)
{
    const struct seal *s = f->vfs->seal;
    for (size_t i = 0; i < n; i += UNIT)
        (encrypts ? seal_page : seal_page_open)(s, f->kind, at + i, bytes + i,
                                                MIN(n - i, UNIT));
    if (f->kind == KIND_DATABASE && at == 0 && n > 0 && encrypts)
        seal_head(s, bytes); /* SQLite's own first bytes are always the same */
    else if (f->kind == KIND_DATABASE && at == 0 && n > 0)
        memcpy(bytes, sqlite_magic, sizeof sqlite_magic);
}

/* Reads and decrypts the units that hold [at, at + n), or as much of them as the file has. Returns
 * memory for all of them, from *first on, which the caller frees. */
static uint8_t *units_read(const struct vfs_file *f, uint64_t at, size_t n, uint64_t *first,
                           size_t *n_all, size_t *got, int *rc, struct err *err)
{
    *first = at - at % UNIT;
    *n_all = (size_t)(round_up(at + n, UNIT) - *first);
    uint8_t *all = xcalloc(1, *n_all);
    *rc = bytes_read(f, all, *n_all, *first, got, err);
    *got = *rc == 0 ? *got - *got % BLOCK : 0;
    units_crypt(f, all, *got, *first, false);
    return all;
}

static int sealed_read(const struct vfs_file *f, void *buf, size_t n, uint64_t at,
                       size_t *got, struct err *err)
{
    uint64_t first;
    size_t n_all, here;
    int rc;
    uint8_t *all = units_read(f, at, n, &first, &n_all, &here, &rc, err);
    size_t skip = (size_t)(at - first);
    *got = here > skip ? MIN(n, here - skip) : 0;
    memcpy(buf, all + skip, *got);
    free(all);
    return rc;
}

/* Writes the blocks that hold the bytes, and no others of their units. */
static int sealed_write(struct vfs_file *f, const uint8_t *buf, size_t n, uint64_t at,
                        struct err *err)
{
    uint64_t first, begin = at - at % BLOCK;
    size_t n_all, got;
    int rc;
    uint8_t *all = units_read(f, at, n, &first, &n_all, &got, &rc, err);
    memset(all + got, 0, n_all - got);
    memcpy(all + (at - first), buf, n);
    units_crypt(f, all, n_all, first, true);
    if (rc == 0)
        rc = io_file_pwrite(f->file, all + (begin - first),
                            (size_t)(round_up(at + n, BLOCK) - begin), begin, err);
    free(all);
    return rc;
}

static int file_read(sqlite3_file *base, void *buf, int n, sqlite3_int64 offset)
{
    struct vfs_file *f = file_of(base);
    struct err err;
    size_t got = 0;
    int rc = (f->vfs->seal != NULL ? sealed_read : bytes_read)(
        f, buf, (size_t)n, (uint64_t)offset, &got, &err);
    if (rc != 0)
        return failed(SQLITE_IOERR_READ, &err);
    if (got == (size_t)n)
        return SQLITE_OK;
    memset((char *)buf + got, 0, (size_t)n - got);
    return SQLITE_IOERR_SHORT_READ;
}

static int file_write(sqlite3_file *base, const void *buf, int n, sqlite3_int64 offset)
{
    struct vfs_file *f = file_of(base);
    struct err err;
    if (vfs_is_read_only(base))
        return SQLITE_READONLY;
    int rc = f->vfs->seal != NULL
                 ? sealed_write(f, buf, (size_t)n, (uint64_t)offset, &err)
                 : io_file_pwrite(f->file, buf, (size_t)n, (uint64_t)offset, &err);
    if (rc == 0)
        return SQLITE_OK;
    return failed(rc == -ENOSPC ? SQLITE_FULL : SQLITE_IOERR_WRITE, &err);
}

static int file_truncate(sqlite3_file *base, sqlite3_int64 size)
{
    struct err err;
    if (vfs_is_read_only(base))
        return SQLITE_READONLY;
    struct io_file *file = file_of(base)->file;
    uint64_t now = 0;
    int rc = io_file_size(file, &now, &err);
    if (rc == 0)
        rc = now > (uint64_t)size ? io_file_cut(file, (uint64_t)size, &err)
                                  : io_file_truncate(file, (uint64_t)size, &err);
    return rc == 0 ? SQLITE_OK : failed(SQLITE_IOERR_TRUNCATE, &err);
}

static int file_sync(sqlite3_file *base, int flags)
{
    /* SQLITE_SYNC_NORMAL and _FULL: io_file_sync covers the length in either case */
    (void)flags;
    struct vfs_file *f = file_of(base);
    struct err err;
    if (vfs_is_read_only(base))
        return SQLITE_OK; /* nothing was written to the file */
    if (io_file_sync(f->file, &err) != 0)
        return failed(SQLITE_IOERR_FSYNC, &err);
    if (f->name_unsynced && io_parent_sync(f->vfs->io, io_file_path(f->file), &err) != 0)
        return failed(SQLITE_IOERR_DIR_FSYNC, &err);
    f->name_unsynced = false;
    return SQLITE_OK;
}

static int file_size(sqlite3_file *base, sqlite3_int64 *size)
{
    struct io_file *file = file_of(base)->file;
    struct err err;
    uint64_t size_bytes = file_of(base)->n_copied;
    if (file != NULL && io_file_size(file, &size_bytes, &err) != 0)
        return failed(SQLITE_IOERR_FSTAT, &err);
    *size = (sqlite3_int64)size_bytes;
    return SQLITE_OK;
}

static int file_lock(sqlite3_file *base, int level)
{
    struct vfs_file *f = file_of(base);
    struct err err;
    if (level == SQLITE_LOCK_NONE || f->locked || f->file == NULL)
        return SQLITE_OK;
    int rc = io_file_lock(f->file, &err);
    if (rc == ERR_BUSY)
        return SQLITE_BUSY;
    if (rc != 0)
        return failed(SQLITE_IOERR_LOCK, &err);
    f->locked = true;
    return SQLITE_OK;
}

static int file_unlock(sqlite3_file *base, int level)
{
    struct vfs_file *f = file_of(base);
    struct err err;
    if (level != SQLITE_LOCK_NONE || !f->locked)
        return SQLITE_OK;
    f->locked = false;
    return io_file_unlock(f->file, &err) == 0 ? SQLITE_OK
                                              : failed(SQLITE_IOERR_UNLOCK, &err);
}

/* Only the holder of the lock calls this, so no other user can have reserved anything. */
static int file_check_reserved(sqlite3_file *base, int *reserved)
{
    (void)base;
    *reserved = 0;
    return SQLITE_OK;
}

static int file_control(sqlite3_file *base, int op, void *arg)
{
    (void)base;
    (void)op;
    (void)arg;
    return SQLITE_NOTFOUND;
}

static int file_sector_size(sqlite3_file *base)
{
    (void)base;
    return IO_ALIGN;
}

/* Promises nothing: writes are not atomic, not in order, and may damage bytes beside them. */
static int file_characteristics(sqlite3_file *base)
{
    (void)base;
    return 0;
}

static const sqlite3_io_methods file_methods = {
    .iVersion = 1, /* version 1 has neither shared memory nor mmap */
    .xClose = file_close,
    .xRead = file_read,
    .xWrite = file_write,
    .xTruncate = file_truncate,
    .xSync = file_sync,
    .xFileSize = file_size,
    .xLock = file_lock,
    .xUnlock = file_unlock,
    .xCheckReservedLock = file_check_reserved,
    .xFileControl = file_control,
    .xSectorSize = file_sector_size,
    .xDeviceCharacteristics = file_characteristics,
};

/* ---- The file system --------------------------------------------------------------------- */

static unsigned open_flags(const struct vfs *v, int flags)
{
    if (v->use != VFS_WRITE || (flags & SQLITE_OPEN_READONLY) != 0)
        return IO_READ_ONLY;
    unsigned f = (flags & SQLITE_OPEN_CREATE) != 0 ? IO_CREATE : 0;
    return f | ((flags & SQLITE_OPEN_EXCLUSIVE) != 0 ? IO_EXCL : 0);
}

static int vfs_open(sqlite3_vfs *base, const char *path, sqlite3_file *out, int flags,
                    int *out_flags)
{
    struct vfs *v = vfs_of(base);
    struct vfs_file *f = file_of(out);
    struct err err;
    *f = (struct vfs_file){.vfs = v,
                           .kind = (flags & SQLITE_OPEN_MAIN_DB) != 0 ? KIND_DATABASE
                                   : (flags & SQLITE_OPEN_WAL) != 0   ? KIND_LOG
                                                                      : KIND_OTHER};
    if (path == NULL || (flags & SQLITE_OPEN_DELETEONCLOSE) != 0) {
        err_set(&err, ERR_UNSUPPORTED,
                "temporary files are not supported: set temp_store = MEMORY");
        return failed(SQLITE_CANTOPEN, &err);
    }
    int rc = io_file_open(v->io, path, open_flags(v, flags), &f->file, &err);
    if (rc == 0 && v->use == VFS_COPY)
        rc = file_copy(f, &err);
    else if (rc == -ENOENT && v->use != VFS_WRITE && (flags & SQLITE_OPEN_WAL) != 0)
        rc = 0;
    if (rc != 0)
        return failed(rc == -ENOMEM ? SQLITE_NOMEM : SQLITE_CANTOPEN, &err);
    f->name_unsynced = true;
    f->base.pMethods = &file_methods;
    if (out_flags != NULL)
        *out_flags = flags;
    return SQLITE_OK;
}

static int vfs_delete(sqlite3_vfs *base, const char *path, int sync_folder)
{
    struct io *io = vfs_of(base)->io;
    struct err err;
    if (vfs_of(base)->use != VFS_WRITE)
        return SQLITE_READONLY;
    int rc = io_erase(io, path, &err);
    if (rc == -ENOENT)
        return SQLITE_IOERR_DELETE_NOENT;
    if (rc != 0)
        return failed(SQLITE_IOERR_DELETE, &err);
    if (sync_folder && io_parent_sync(io, path, &err) != 0)
        return failed(SQLITE_IOERR_DIR_FSYNC, &err);
    return SQLITE_OK;
}

/* Returns whether a file exists. An empty journal counts as missing, as in SQLite's own VFS. */
static int vfs_access(sqlite3_vfs *base, const char *path, int flags, int *result)
{
    struct io_stat st;
    struct err err;
    int rc = io_stat(vfs_of(base)->io, path, &st, &err);
    if (rc != 0 && rc != -ENOENT && rc != -ENOTDIR)
        return failed(SQLITE_IOERR_ACCESS, &err);
    *result = rc == 0 && (flags != SQLITE_ACCESS_EXISTS || st.is_dir || st.size_bytes > 0);
    return SQLITE_OK;
}

/* Copies the path unchanged: the store names its files absolutely or never changes its folder. */
static int vfs_full_path(sqlite3_vfs *base, const char *path, int room, char *out)
{
    (void)base;
    size_t n = strlen(path) + 1;
    if (n > (size_t)room)
        return SQLITE_CANTOPEN;
    memcpy(out, path, n);
    return SQLITE_OK;
}

static int vfs_randomness(sqlite3_vfs *base, int n, char *out)
{
    return io_random(vfs_of(base)->io, out, (size_t)n, NULL) == 0 ? n : 0;
}

static int vfs_sleep(sqlite3_vfs *base, int us)
{
    (void)base;
    clock_sleep_ns((int64_t)us * 1000);
    return us;
}

#define JULIAN_DAY_OF_1970 2440587.5

static int vfs_time_ms(sqlite3_vfs *base, sqlite3_int64 *ms)
{
    (void)base;
    *ms = (sqlite3_int64)(JULIAN_DAY_OF_1970 * 86400000.0) + 1000 * clock_wall_s();
    return SQLITE_OK;
}

static int vfs_time(sqlite3_vfs *base, double *days)
{
    sqlite3_int64 ms;
    vfs_time_ms(base, &ms);
    *days = (double)ms / 86400000.0;
    return SQLITE_OK;
}

static int vfs_last_error(sqlite3_vfs *base, int n, char *out)
{
    (void)base;
    (void)n;
    (void)out;
    return last_code;
}

/* ---- Registration ------------------------------------------------------------------------ */

int vfs_register(struct io *io, const char *name, enum vfs_use use, struct err *err)
{
    if (sqlite3_vfs_find(name) != NULL)
        return err_set(err, ERR_BUSY, "SQLite already has a VFS named %s", name);
    struct vfs *v = xcalloc(1, sizeof *v);
    v->io = io;
    v->name = xstrdup(name);
    v->use = use;
    v->base = (sqlite3_vfs){
        .iVersion = 2,
        .szOsFile = sizeof(struct vfs_file),
        .mxPathname = MAX_PATH,
        .zName = v->name,
        .xOpen = vfs_open,
        .xDelete = vfs_delete,
        .xAccess = vfs_access,
        .xFullPathname = vfs_full_path,
        .xRandomness = vfs_randomness,
        .xSleep = vfs_sleep,
        .xCurrentTime = vfs_time,
        .xGetLastError = vfs_last_error,
        .xCurrentTimeInt64 = vfs_time_ms,
    };
    if (sqlite3_vfs_register(&v->base, 0) != SQLITE_OK) {
        free(v->name);
        free(v);
        return err_set(err, ERR_LIMIT, "SQLite refuses the VFS %s", name);
    }
    return 0;
}

void vfs_use_seal(const char *name, const struct seal *seal)
{
    vfs_of(sqlite3_vfs_find(name))->seal = seal;
}

void vfs_unregister(const char *name)
{
    sqlite3_vfs *base = sqlite3_vfs_find(name);
    if (base == NULL || base->xOpen != vfs_open)
        return;
    sqlite3_vfs_unregister(base);
    free(vfs_of(base)->name);
    free(base);
}
