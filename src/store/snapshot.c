/* snapshot.c - reads the index beside the process that has the store open.
 *
 * Database and log are copied into memory, and the log's committed frames are laid over the
 * database, so that no part of the index is locked or changed. The copy is consistent, because the
 * database is copied before its log. A checkpoint that runs meanwhile writes only pages that the
 * log holds, and the log holds them until it begins anew with another salt. So equal log headers
 * before and after the copying prove that the two belong together.
 *
 * Extents are read from the segment files as they are. An extent that was evicted since may be
 * overwritten. store_verify then calls it damaged, and the caller looks again. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "io/io.h"
#include "store/index.h"

/* SQLite's write-ahead log: a header, then frames of a header and a page. Numbers are big-endian.
 * Each checksum continues the one before it: the header's covers its first 24 bytes, a frame's
 * covers its first 8 bytes and its page. A frame counts if it has the header's salts and its
 * checksum holds. A frame with a size ends a transaction and gives the database's pages. */
enum {
    LOG_HEADER = 32,
    LOG_SALTS = 16,
    FRAME_HEADER = 24,
    FRAME_PAGE = 0,
    FRAME_SIZE = 4,
    FRAME_SALTS = 8,
    FRAME_CHECKSUM = 16,
    TRIES = 50,
    /* A database larger than this multiple of its files is damage. */
    MAX_GROWTH = 16
};
#define LOG_MAGIC 0x377f0682u /* 1 more: the checksums read their words as big-endian */

static uint32_t get_be32(const uint8_t *p)
{
    return __builtin_bswap32(get_u32(p));
}

static void log_sum(const uint8_t *in, size_t n, bool is_big, uint32_t sum[2])
{
    for (size_t i = 0; i < n; i += 8) {
        sum[0] += (is_big ? get_be32(in + i) : get_u32(in + i)) + sum[1];
        sum[1] += (is_big ? get_be32(in + i + 4) : get_u32(in + i + 4)) + sum[0];
    }
}

/* Reads the header of the log; zeros if there is no log. */
static int log_header(struct io *io, const char *path, uint8_t out[LOG_HEADER],
                      struct err *err)
{
    struct io_file *f = NULL;
    size_t got;
    memset(out, 0, LOG_HEADER);
    int rc = io_file_open(io, path, IO_READ_ONLY, &f, err);
    if (rc == 0)
        rc = io_file_pread_some(f, out, LOG_HEADER, 0, &got, err);
    io_file_close(f);
    return rc == -ENOENT ? 0 : rc;
}

/* Reads a file into new memory; a missing one counts as empty. */
static int file_read(struct io *io, const char *path, uint8_t **out, size_t *n,
                     struct err *err)
{
    struct io_file *f = NULL;
    uint64_t size = 0;
    *out = NULL;
    *n = 0;
    int rc = io_file_open(io, path, IO_READ_ONLY, &f, err);
    if (rc == -ENOENT)
        return 0;
    if (rc == 0)
        rc = io_file_size(f, &size, err);
    if (rc == 0 && (*out = mem_try(size + 1)) == NULL)
        rc = err_set(err, -ENOMEM, "no memory for a copy of %s", path);
    if (rc == 0)
        rc = io_file_pread_some(f, *out, size, 0, n, err);
    io_file_close(f);
    return rc;
}

/* Returns how many frames the committed transactions of a log have. *n_pages becomes the number of
 * the database's pages after them. */
static size_t log_committed(const uint8_t *log, size_t n, uint32_t *n_pages)
{
    size_t n_committed = 0;
    uint32_t sum[2] = {0, 0};
    if (n < LOG_HEADER || (get_be32(log) & ~1u) != LOG_MAGIC ||
        get_be32(log + 8) != INDEX_PAGE_BYTES)
        return 0;
    bool is_big = get_be32(log) != LOG_MAGIC;
    log_sum(log, 24, is_big, sum);
    if (get_be32(log + 24) != sum[0] || get_be32(log + 28) != sum[1])
        return 0;
    for (size_t i = 0; i < (n - LOG_HEADER) / INDEX_FRAME_BYTES; i++) {
        const uint8_t *frame = log + LOG_HEADER + i * INDEX_FRAME_BYTES;
        log_sum(frame, 8, is_big, sum);
        log_sum(frame + FRAME_HEADER, INDEX_PAGE_BYTES, is_big, sum);
        if (memcmp(frame + FRAME_SALTS, log + LOG_SALTS, 8) != 0 ||
            get_be32(frame + FRAME_PAGE) == 0 ||
            get_be32(frame + FRAME_CHECKSUM) != sum[0] ||
            get_be32(frame + FRAME_CHECKSUM + 4) != sum[1])
            break;
        if (get_be32(frame + FRAME_SIZE) != 0) {
            n_committed = i + 1;
            *n_pages = get_be32(frame + FRAME_SIZE);
        }
    }
    return n_committed;
}

/* Lays the committed frames of a log over a database. */
static int log_apply(const uint8_t *log, size_t n_log, uint8_t **db, size_t *n_db,
                     struct err *err)
{
    uint32_t n_pages = 0;
    size_t n_frames = log_committed(log, n_log, &n_pages);
    size_t bytes = (size_t)n_pages * INDEX_PAGE_BYTES;
    if (n_frames == 0)
        return 0;
    if (bytes / MAX_GROWTH > *n_db + n_log)
        return err_set(err, ERR_CORRUPT, "the log of the index gives it %u pages", n_pages);
    if (bytes > *n_db) {
        uint8_t *larger = mem_try_realloc(*db, bytes);
        if (larger == NULL)
            return err_set(err, -ENOMEM, "no memory for a copy of the index");
        memset(larger + *n_db, 0, bytes - *n_db);
        *db = larger;
    }
    *n_db = bytes;
    for (size_t i = 0; i < n_frames; i++) {
        const uint8_t *frame = log + LOG_HEADER + i * INDEX_FRAME_BYTES;
        uint32_t page = get_be32(frame + FRAME_PAGE);
        if (page <= n_pages)
            memcpy(*db + (size_t)(page - 1) * INDEX_PAGE_BYTES, frame + FRAME_HEADER,
                   INDEX_PAGE_BYTES);
    }
    return 0;
}

/* Copies the database with its log's frames. *is_good gets whether the two belong together. */
static int copy_once(struct io *io, const char *path, const char *log_path, uint8_t **db,
                     size_t *n_db, bool *is_good, struct err *err)
{
    uint8_t before[LOG_HEADER], after[LOG_HEADER], *log = NULL;
    size_t n_log = 0;
    int rc = log_header(io, log_path, before, err);
    if (rc == 0)
        rc = file_read(io, path, db, n_db, err);
    if (rc == 0)
        rc = file_read(io, log_path, &log, &n_log, err);
    if (rc == 0)
        rc = log_header(io, log_path, after, err);
    *is_good = rc == 0 && memcmp(before, after, LOG_HEADER) == 0;
    if (*is_good)
        rc = log_apply(log, n_log, db, n_db, err);
    free(log);
    return rc;
}

int index_open_beside(struct io *io, const char *path, struct index **out,
                      struct index_meta *meta, struct err *err)
{
    char *log_path = xasprintf("%s-wal", path);
    uint8_t *db = NULL;
    size_t n_db = 0;
    bool is_good = false;
    int rc = 0;
    for (int i = 0; i < TRIES && rc == 0 && !is_good; i++) {
        free(db);
        rc = copy_once(io, path, log_path, &db, &n_db, &is_good, err);
    }
    free(log_path);
    if (rc == 0 && !is_good)
        rc = err_set(err, ERR_BUSY, "the index %s changes too fast to be read", path);
    if (rc == 0)
        return index_open_image(path, db, n_db, out, meta, err);
    free(db);
    return rc;
}
