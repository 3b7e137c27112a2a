/* index.c - see index.h. The only file of the store, besides the VFS, that knows SQLite.
 *
 * Invariants:
 * 1. meta's n_rows and sum describe exactly the extent rows of the same transaction.
 * 2. No data from SQLite is used before its length and checksum have been checked.
 * 3. No frame is appended to a log that existed at open. The log's end may be torn in the middle of
 *    a sector, and a power failure while that sector is written again would destroy the last
 *    commit before it. So the first transaction folds the log into the database and begins a new
 *    log. */
#include "store/index.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/err_sqlite.h"
#include "base/mem.h"
#include "io/io.h"
#include "io/vfs.h"

#define FORMAT_VERSION 2
/* A log's first bytes. They hold salts that change when the log begins anew. */
#define LOG_HEADER_BYTES 32
#define COPY_TRIES       50

enum {
    M_CHECKSUM = 0,
    M_VERSION = 8,
    M_DEVICES_N = 12,
    M_UUID = 16,
    M_SEGMENT = 32,
    M_NEXT_ID = 40,
    M_ROWS_N = 48,
    M_SUM = 56,
    META_BYTES = 64,
    M_MARK = 64,
    META_SEALED_BYTES = 72 /* bytes of an encrypted store's row, which has a mark */
};
enum {
    R_CHECKSUM = 0,
    R_ID = 8,
    R_OFFSET = 16,
    R_SEGMENT = 24,
    R_BLOCKS_N = 28,
    R_CHUNK_IDX = 32,
    R_DEVICE = 36,
    R_RECORDS_N = 38,
    R_KEY = 40,
    R_PARENT = 72,
    R_FINGERPRINT = 104,
    R_MASK = 136,
    R_OWNER = 168,
    R_TOKENS_N = 176,
    R_FLAGS = 180,
    ROW_BYTES = 184
};
enum { TABLE_BYTES = CHUNK_MAX_RECORDS * CHUNK_RECORD_CODE + 8 };
enum {
    W_CHECKSUM = 0,
    W_ID = 8,
    W_OFFSET = 16,
    W_SEGMENT = 24,
    W_BLOCKS_N = 28,
    W_DEVICE = 32,
    WIPE_BYTES = 40
};

/* In the file this is added to the end time of a pin that is a guarantee. */
#define PIN_GUARANTEED (INT64_C(1) << 62)

/* The column used_wall_s holds three values: the time of the last use in its lower half, the
 * time to live in the upper half, and in the highest bit whether the chunk was dropped. */
#define USE_DROPPED (UINT64_C(1) << 63)

static sqlite3_int64 use_encode(uint32_t used_wall_s, uint32_t ttl_s, bool is_dropped)
{
    uint64_t use = (uint64_t)(ttl_s & INT32_MAX) << 32 | used_wall_s;
    return (sqlite3_int64)(is_dropped ? use | USE_DROPPED : use);
}

enum statement {
    ADD_EXTENT,
    ADD_RECORDS,
    GET_ROW,
    GET_RECORDS,
    GET_PAGES,
    GET_SPARE_PAGES,
    DROP_EXTENT,
    DROP_RECORDS,
    TOUCH,
    SET_PIN,
    DROP_PIN,
    ADD_WIPE,
    DROP_WIPE,
    SET_META,
    N_STATEMENTS
};

static const char *const statement_sql[N_STATEMENTS] = {
    [ADD_EXTENT] = "INSERT INTO extent(id, tick, used_wall_s, row) VALUES(?1, ?2, ?3, ?4)",
    [ADD_RECORDS] = "INSERT INTO record(id, tab) VALUES(?1, ?2)",
    [GET_ROW] = "SELECT row FROM extent WHERE id = ?1",
    [GET_RECORDS] = "SELECT tab FROM record WHERE id = ?1",
    [GET_PAGES] = "PRAGMA page_count",
    [GET_SPARE_PAGES] = "PRAGMA freelist_count",
    [DROP_EXTENT] = "DELETE FROM extent WHERE id = ?1",
    [DROP_RECORDS] = "DELETE FROM record WHERE id = ?1",
    [TOUCH] = "UPDATE extent SET tick = ?2, used_wall_s = ?3 WHERE id = ?1",
    [SET_PIN] = "INSERT OR REPLACE INTO pin(key, until_wall_s) VALUES(?1, ?2)",
    [DROP_PIN] = "DELETE FROM pin WHERE key = ?1",
    [ADD_WIPE] = "INSERT OR REPLACE INTO wipe(id, row) VALUES(?1, ?2)",
    [DROP_WIPE] = "DELETE FROM wipe WHERE id = ?1",
    [SET_META] = "INSERT OR REPLACE INTO meta(id, row) VALUES(1, ?1)",
};

struct index {
    sqlite3 *db;
    char *vfs_name, *path;
    sqlite3_stmt *st[N_STATEMENTS];
    struct index_meta meta;
    const struct seal *seal;
    bool read_only;
    bool is_folded; /* no frame of the log is from before the opening */
    /* number of rows and sum of their checksums, as of the last commit */
    uint64_t n_rows, sum;
    /* number of rows and sum of their checksums, as the open transaction leaves them */
    uint64_t new_n_rows, new_sum;
    uint64_t live_bytes;
};

/* --- errors ----------------------------------------------------------------------------------- */

/* Returns the code of SQLite's last error, and describes it in err. */
static int db_err(struct index *ix, const char *what, struct err *err)
{
    int rc = err_of_sqlite(sqlite3_extended_errcode(ix->db));
    /* If a file was opened for writing, and its header says that it must not be written, the file
     * is damaged. */
    if (rc == -EROFS && !ix->read_only)
        rc = ERR_CORRUPT;
    if (rc == ERR_BUSY)
        return err_set(err, rc, "the store is in use by another process (%s is locked)",
                       ix->path);
    return err_set(err, rc, "index %s: %s: %s", ix->path, what, sqlite3_errmsg(ix->db));
}

static int exec(struct index *ix, const char *what, const char *sql, struct err *err)
{
    return sqlite3_exec(ix->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0
                                                                    : db_err(ix, what, err);
}

/* Runs a bound statement that returns no rows. */
static int run(struct index *ix, enum statement which, struct err *err)
{
    int step = sqlite3_step(ix->st[which]);
    int rc = step == SQLITE_DONE ? 0 : db_err(ix, statement_sql[which], err);
    sqlite3_reset(ix->st[which]);
    sqlite3_clear_bindings(ix->st[which]);
    return rc;
}

/* --- encoding --------------------------------------------------------------------------------- */

static void row_encode(const struct seal *seal, const struct index_row *r,
                       uint8_t out[ROW_BYTES])
{
    put_u64(out + R_ID, r->id);
    put_u64(out + R_OFFSET, r->offset);
    put_u32(out + R_SEGMENT, r->segment);
    put_u32(out + R_BLOCKS_N, r->n_blocks);
    put_u32(out + R_CHUNK_IDX, r->chunk_idx);
    put_u16(out + R_DEVICE, r->device);
    put_u16(out + R_RECORDS_N, r->n_records);
    memcpy(out + R_KEY, r->key.b, sizeof r->key.b);
    memcpy(out + R_PARENT, r->parent.b, sizeof r->parent.b);
    memcpy(out + R_FINGERPRINT, r->fingerprint.b, sizeof r->fingerprint.b);
    for (int k = 0; k < STORE_KINDS; k++)
        for (int w = 0; w < 2; w++)
            put_u64(out + R_MASK + 16 * k + 8 * w, r->mask.has[k][w]);
    put_u64(out + R_OWNER, r->owner);
    put_u32(out + R_TOKENS_N, r->n_tokens);
    put_u32(out + R_FLAGS, r->yields ? STORE_FLAG_YIELDS : 0);
    seal_page(seal, PAGE_ROW, r->id, out + R_KEY, ROW_BYTES - R_KEY);
    put_u64(out + R_CHECKSUM, checksum64(out + R_ID, ROW_BYTES - R_ID));
}
_Static_assert(STORE_MAX_LAYERS == 128 && STORE_KINDS == 2, "the row's mask has 4 words");

static int mask_count(const struct store_mask *m)
{
    int n = 0;
    for (int k = 0; k < STORE_KINDS; k++)
        for (int w = 0; w < 2; w++)
            n += __builtin_popcountll(m->has[k][w]);
    return n;
}

static int row_decode(const struct seal *seal, const uint8_t *in, size_t n_bytes,
                      struct index_row *r)
{
    uint8_t open[ROW_BYTES];
    if (n_bytes != ROW_BYTES ||
        get_u64(in + R_CHECKSUM) != checksum64(in + R_ID, n_bytes - R_ID))
        return ERR_CORRUPT;
    in = memcpy(open, in, sizeof open);
    seal_page_open(seal, PAGE_ROW, get_u64(in + R_ID), open + R_KEY, ROW_BYTES - R_KEY);
    *r = (struct index_row){
        .id = get_u64(in + R_ID),
        .offset = get_u64(in + R_OFFSET),
        .segment = get_u32(in + R_SEGMENT),
        .n_blocks = get_u32(in + R_BLOCKS_N),
        .chunk_idx = get_u32(in + R_CHUNK_IDX),
        .device = get_u16(in + R_DEVICE),
        .n_records = get_u16(in + R_RECORDS_N),
        .owner = get_u64(in + R_OWNER),
        .n_tokens = get_u32(in + R_TOKENS_N),
    };
    r->yields = r->n_tokens < STORE_CHUNK_TOKENS &&
                (get_u32(in + R_FLAGS) & STORE_FLAG_YIELDS) != 0;
    memcpy(r->key.b, in + R_KEY, sizeof r->key.b);
    memcpy(r->parent.b, in + R_PARENT, sizeof r->parent.b);
    memcpy(r->fingerprint.b, in + R_FINGERPRINT, sizeof r->fingerprint.b);
    for (int k = 0; k < STORE_KINDS; k++)
        for (int w = 0; w < 2; w++)
            r->mask.has[k][w] = get_u64(in + R_MASK + 16 * k + 8 * w);
    if (r->n_records < 1 || r->n_records > CHUNK_MAX_RECORDS ||
        mask_count(&r->mask) != r->n_records || r->chunk_idx >= CHUNK_MAX_IDX ||
        r->n_blocks <= r->n_records || r->n_tokens < 1 || r->n_tokens > STORE_CHUNK_TOKENS)
        return ERR_CORRUPT;
    return 0;
}

static size_t meta_bytes(const struct index *ix)
{
    return ix->meta.mark != 0 ? META_SEALED_BYTES : META_BYTES;
}

static void meta_encode(const struct index *ix, uint64_t next_id,
                        uint8_t out[META_SEALED_BYTES])
{
    put_u32(out + M_VERSION, FORMAT_VERSION);
    put_u32(out + M_DEVICES_N, ix->meta.n_devices);
    memcpy(out + M_UUID, ix->meta.uuid, STORE_UUID_BYTES);
    put_u64(out + M_SEGMENT, ix->meta.segment_bytes);
    put_u64(out + M_NEXT_ID, next_id);
    put_u64(out + M_ROWS_N, ix->new_n_rows);
    put_u64(out + M_SUM, ix->new_sum);
    put_u64(out + M_MARK, ix->meta.mark);
    put_u64(out + M_CHECKSUM, checksum64(out + M_VERSION, meta_bytes(ix) - M_VERSION));
}

static int meta_decode(struct index *ix, const uint8_t *in, size_t n_bytes, struct err *err)
{
    if ((n_bytes != META_BYTES && n_bytes != META_SEALED_BYTES) ||
        get_u64(in + M_CHECKSUM) != checksum64(in + M_VERSION, n_bytes - M_VERSION))
        return err_set(err, ERR_CORRUPT, "index %s: its description is damaged", ix->path);
    if (get_u32(in + M_VERSION) != FORMAT_VERSION)
        return err_set(err, ERR_UNSUPPORTED,
                       "index %s has version %u; this build knows only %d", ix->path,
                       get_u32(in + M_VERSION), FORMAT_VERSION);
    ix->meta.n_devices = get_u32(in + M_DEVICES_N);
    memcpy(ix->meta.uuid, in + M_UUID, STORE_UUID_BYTES);
    ix->meta.segment_bytes = get_u64(in + M_SEGMENT);
    ix->meta.next_id = get_u64(in + M_NEXT_ID);
    ix->meta.mark = n_bytes == META_BYTES ? 0 : get_u64(in + M_MARK);
    if (ix->meta.next_id >= INDEX_MAX_ID) /* later ids would wrap */
        return err_set(err, ERR_CORRUPT, "index %s: its next id is out of range", ix->path);
    ix->n_rows = ix->new_n_rows = get_u64(in + M_ROWS_N);
    ix->sum = ix->new_sum = get_u64(in + M_SUM);
    return 0;
}

/* --- life cycle ------------------------------------------------------------------------------- */

static int db_open(struct index *ix, int flags, struct err *err)
{
    if (sqlite3_open_v2(ix->path, &ix->db, flags | SQLITE_OPEN_NOMUTEX, ix->vfs_name) !=
        SQLITE_OK)
        return db_err(ix, "open", err);
    sqlite3_extended_result_codes(ix->db, 1);
    return exec(ix, "open",
                /* secure_delete: pages keep no remains of dropped rows. */
                "PRAGMA locking_mode = EXCLUSIVE; PRAGMA temp_store = MEMORY;"
                "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;"
                "PRAGMA secure_delete = ON;"
                "PRAGMA cache_size = -16384",
                err);
}

static int db_prepare(struct index *ix, struct err *err)
{
    for (int i = 0; i < N_STATEMENTS; i++)
        if (sqlite3_prepare_v3(ix->db, statement_sql[i], -1, SQLITE_PREPARE_PERSISTENT,
                               &ix->st[i], NULL) != SQLITE_OK)
            return db_err(ix, "prepare", err);
    return 0;
}

static int index_new(struct io *io, const char *path, enum vfs_use use, struct index **out,
                     struct err *err)
{
    static atomic_uint counter;
    char *vfs_name = xasprintf("hcache-index-%u", atomic_fetch_add(&counter, 1));
    int rc = vfs_register(io, vfs_name, use, err);
    if (rc != 0) {
        free(vfs_name);
        return rc;
    }
    struct index *ix = xcalloc(1, sizeof *ix);
    ix->path = xstrdup(path);
    ix->vfs_name = vfs_name;
    ix->read_only = use != VFS_WRITE;
    *out = ix;
    return 0;
}

void index_close(struct index *ix)
{
    if (ix == NULL)
        return;
    for (int i = 0; i < N_STATEMENTS; i++)
        sqlite3_finalize(ix->st[i]);
    int rc = sqlite3_close(ix->db);
    CHECK(rc == SQLITE_OK); /* every statement is finalized, so closing cannot fail */
    vfs_unregister(ix->vfs_name);
    free(ix->vfs_name);
    free(ix->path);
    free(ix);
}

static int meta_load(struct index *ix, struct err *err)
{
    sqlite3_stmt *st;
    if (sqlite3_prepare_v2(ix->db, "SELECT row FROM meta", -1, &st, NULL) != SQLITE_OK)
        return db_err(ix, "meta", err);
    int rc, step = sqlite3_step(st);
    if (step == SQLITE_ROW)
        rc = meta_decode(ix, sqlite3_column_blob(st, 0),
                         (size_t)sqlite3_column_bytes(st, 0), err);
    else if (step == SQLITE_DONE)
        rc = err_set(err, ERR_CORRUPT, "index %s is not complete", ix->path);
    else
        rc = db_err(ix, "meta", err);
    sqlite3_finalize(st);
    return rc;
}

static int count_pages(struct index *ix, enum statement which, uint64_t *out,
                       struct err *err)
{
    int step = sqlite3_step(ix->st[which]);
    int rc = step == SQLITE_ROW ? 0 : db_err(ix, statement_sql[which], err);
    *out = rc == 0 ? (uint64_t)sqlite3_column_int64(ix->st[which], 0) : 0;
    sqlite3_reset(ix->st[which]);
    return rc;
}

/* Measures the bytes of pages in use now, with the changes of an open transaction. */
static int measure(struct index *ix, uint64_t *live_bytes, struct err *err)
{
    uint64_t all, spare;
    int rc = count_pages(ix, GET_PAGES, &all, err);
    if (rc == 0)
        rc = count_pages(ix, GET_SPARE_PAGES, &spare, err);
    if (rc == 0)
        *live_bytes = spare < all ? (all - spare) * INDEX_PAGE_BYTES : 0;
    return rc;
}

uint64_t index_live_bytes(const struct index *ix)
{
    return ix->live_bytes;
}

void index_use_seal(struct index *ix, const struct seal *seal)
{
    ix->seal = seal;
}

int index_limit_log(struct index *ix, uint32_t n_frames, struct err *err)
{
    char sql[64];
    snprintf(sql, sizeof sql, "PRAGMA wal_autocheckpoint = %u", n_frames);
    return exec(ix, "limit the log", sql, err);
}

/* Finishes an opening whose earlier steps have returned rc. Returns 0 with *out and *meta; after an
 * error ix is closed. */
static int index_opened(struct index *ix, int rc, struct index **out,
                        struct index_meta *meta, struct err *err)
{
    if (rc == 0)
        rc = meta_load(ix, err);
    if (rc == 0)
        rc = db_prepare(ix, err);
    if (rc == 0)
        rc = measure(ix, &ix->live_bytes, err);
    if (rc != 0) {
        index_close(ix);
        return rc;
    }
    *meta = ix->meta;
    *out = ix;
    return 0;
}

static int index_open_as(struct io *io, const char *path, enum vfs_use use,
                         struct index **out, struct index_meta *meta, struct err *err)
{
    struct index *ix;
    if (!io_exists(io, path))
        return err_set(err, ERR_NOT_FOUND, "no index at %s", path);
    int rc = index_new(io, path, use, &ix, err);
    if (rc != 0)
        return rc;
    rc = db_open(ix, use == VFS_WRITE ? SQLITE_OPEN_READWRITE : SQLITE_OPEN_READONLY, err);
    /* The WAL is recovered in memory, and nothing is folded back. */
    if (rc == 0 && use != VFS_WRITE) {
        sqlite3_db_config(ix->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
        rc = exec(ix, "open", "PRAGMA wal_autocheckpoint = 0; PRAGMA query_only = ON", err);
    }
    if (rc == 0 && use == VFS_WRITE)
        rc = exec(ix, "open", "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL", err);
    return index_opened(ix, rc, out, meta, err);
}

int index_open(struct io *io, const char *path, bool read_only, struct index **out,
               struct index_meta *meta, struct err *err)
{
    return index_open_as(io, path, read_only ? VFS_READ : VFS_WRITE, out, meta, err);
}

/* SQLite opens, and so copies, the database before its log. A checkpoint that runs meanwhile writes
 * only pages that the log holds, and the log holds them until it begins anew. So equal log headers
 * before and after prove that the two copies belong together. */
int index_open_beside(struct io *io, const char *path, struct index **out,
                      struct index_meta *meta, struct err *err)
{
    char *log_path = xasprintf("%s-wal", path);
    uint8_t before[LOG_HEADER_BYTES], after[LOG_HEADER_BYTES];
    size_t got;
    int rc = io_read_head(io, log_path, before, sizeof before, &got, err);
    for (int i = 0; i < COPY_TRIES && rc == 0; i++) {
        struct index *ix = NULL;
        int opened = index_open_as(io, path, VFS_COPY, &ix, meta, err);
        rc = io_read_head(io, log_path, after, sizeof after, &got, err);
        if (rc == 0 && memcmp(before, after, sizeof before) == 0) {
            free(log_path);
            *out = ix;
            return opened;
        }
        index_close(ix);
        memcpy(before, after, sizeof before);
    }
    free(log_path);
    return rc != 0
               ? rc
               : err_set(err, ERR_BUSY, "the index %s changes too fast to be read", path);
}

int index_create(struct io *io, const char *path, const struct index_meta *meta,
                 struct index **out, struct err *err)
{
    struct index *ix;
    int rc = index_new(io, path, VFS_WRITE, &ix, err);
    if (rc != 0)
        return rc;
    ix->meta = *meta;
    ix->is_folded = true;
    rc = db_open(ix, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, err);
    if (rc == 0)
        rc = exec(ix, "create",
                  "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; BEGIN IMMEDIATE;"
                  "CREATE TABLE meta(id INTEGER PRIMARY KEY, row BLOB NOT NULL);"
                  "CREATE TABLE extent(id INTEGER PRIMARY KEY, tick INTEGER NOT NULL,"
                  " used_wall_s INTEGER NOT NULL, row BLOB NOT NULL);"
                  "CREATE TABLE record(id INTEGER PRIMARY KEY, tab BLOB NOT NULL);"
                  "CREATE TABLE pin(key BLOB PRIMARY KEY, until_wall_s INTEGER NOT NULL)"
                  " WITHOUT ROWID;"
                  "CREATE TABLE wipe(id INTEGER PRIMARY KEY, row BLOB NOT NULL)",
                  err);
    if (rc == 0)
        rc = db_prepare(ix, err);
    if (rc != 0) {
        index_close(ix);
        return rc;
    }
    *out = ix;
    return 0;
}

/* --- reading ---------------------------------------------------------------------------------- */

uint64_t index_n_rows(const struct index *ix)
{
    return ix->n_rows;
}

int index_load(struct index *ix, int (*fn)(void *arg, const struct index_row *row),
               void *arg, struct err *err)
{
    sqlite3_stmt *st;
    if (sqlite3_prepare_v2(ix->db,
                           "SELECT id, tick, used_wall_s, row FROM extent ORDER BY id", -1,
                           &st, NULL) != SQLITE_OK)
        return db_err(ix, "load", err);
    uint64_t n_rows = 0, sum = 0;
    int rc = 0, step = SQLITE_ROW;
    while (rc == 0 && (step = sqlite3_step(st)) == SQLITE_ROW) {
        struct index_row row;
        const uint8_t *blob = sqlite3_column_blob(st, 3);
        rc = row_decode(ix->seal, blob, (size_t)sqlite3_column_bytes(st, 3), &row);
        if (rc == 0 && (row.id != (uint64_t)sqlite3_column_int64(st, 0) ||
                        row.device >= ix->meta.n_devices || row.id >= ix->meta.next_id))
            rc = ERR_CORRUPT;
        if (rc != 0) {
            err_set(err, rc, "index %s: a row is damaged", ix->path);
            break;
        }
        row.tick = (uint64_t)sqlite3_column_int64(st, 1);
        uint64_t use = (uint64_t)sqlite3_column_int64(st, 2);
        row.used_wall_s = (uint32_t)use;
        row.ttl_s = (uint32_t)(use >> 32) & INT32_MAX;
        row.is_dropped = (use & USE_DROPPED) != 0;
        n_rows++;
        sum += get_u64(blob + R_CHECKSUM);
        rc = fn(arg, &row);
    }
    if (rc == 0 && step != SQLITE_DONE)
        rc = db_err(ix, "load", err);
    sqlite3_finalize(st);
    if (rc == 0 && (n_rows != ix->n_rows || sum != ix->sum))
        rc = err_set(err, ERR_CORRUPT,
                     "index %s: its rows are not those that were committed", ix->path);
    return rc;
}

/* Returns the checksum at a table blob's end, made from the table and its extent's id. */
static uint64_t table_checksum(const uint8_t *table, size_t n, uint64_t id)
{
    return checksum64(table, n) ^ (id * 0x9e3779b97f4a7c15u);
}

int index_records(struct index *ix, uint64_t id, int n_records, uint64_t extent_bytes,
                  struct chunk_record *out, struct err *err)
{
    CHECK(n_records >= 1 && n_records <= CHUNK_MAX_RECORDS);
    sqlite3_stmt *st = ix->st[GET_RECORDS];
    size_t n = (size_t)n_records * CHUNK_RECORD_CODE;
    int rc = ERR_CORRUPT;
    sqlite3_bind_int64(st, 1, (sqlite3_int64)id);
    int step = sqlite3_step(st);
    if (step == SQLITE_ROW && (size_t)sqlite3_column_bytes(st, 0) == n + 8) {
        uint8_t table[TABLE_BYTES];
        memcpy(table, sqlite3_column_blob(st, 0), n + 8);
        seal_page_open(ix->seal, PAGE_TABLE, id, table, n + 8);
        if (get_u64(table + n) == table_checksum(table, n, id))
            rc = chunk_table_decode(table, n_records, extent_bytes, out);
    }
    if (step != SQLITE_ROW && step != SQLITE_DONE)
        rc = db_err(ix, "records", err);
    else if (rc != 0)
        err_set(err, rc, "index %s: the records of extent %llu are damaged", ix->path,
                (unsigned long long)id);
    sqlite3_reset(st);
    return rc;
}

int index_load_pins(struct index *ix, int (*fn)(void *arg, const struct index_pin *pin),
                    void *arg, struct err *err)
{
    sqlite3_stmt *st;
    if (sqlite3_prepare_v2(ix->db, "SELECT key, until_wall_s FROM pin", -1, &st, NULL) !=
        SQLITE_OK)
        return db_err(ix, "pins", err);
    int rc = 0, step = SQLITE_ROW;
    while (rc == 0 && (step = sqlite3_step(st)) == SQLITE_ROW) {
        struct index_pin pin;
        int64_t until = sqlite3_column_int64(st, 1);
        if (sqlite3_column_bytes(st, 0) != sizeof pin.key.b) {
            rc = err_set(err, ERR_CORRUPT, "index %s: a pin is damaged", ix->path);
            break;
        }
        memcpy(pin.key.b, sqlite3_column_blob(st, 0), sizeof pin.key.b);
        seal_page_open(ix->seal, PAGE_PIN, 0, pin.key.b, sizeof pin.key.b);
        pin.is_guaranteed = until > PIN_GUARANTEED;
        pin.until_wall_s = pin.is_guaranteed ? until - PIN_GUARANTEED : until;
        rc = fn(arg, &pin);
    }
    if (rc == 0 && step != SQLITE_DONE)
        rc = db_err(ix, "pins", err);
    sqlite3_finalize(st);
    return rc;
}

static int wipe_decode(const uint8_t *in, size_t n_bytes, struct index_place *out)
{
    if (n_bytes != WIPE_BYTES ||
        get_u64(in + W_CHECKSUM) != checksum64(in + W_ID, WIPE_BYTES - W_ID))
        return ERR_CORRUPT;
    *out = (struct index_place){
        .id = get_u64(in + W_ID),
        .offset = get_u64(in + W_OFFSET),
        .segment = get_u32(in + W_SEGMENT),
        .n_blocks = get_u32(in + W_BLOCKS_N),
        .device = get_u16(in + W_DEVICE),
    };
    return 0;
}

int index_load_wipes(struct index *ix,
                     int (*fn)(void *arg, const struct index_place *place), void *arg,
                     struct err *err)
{
    sqlite3_stmt *st;
    if (sqlite3_prepare_v2(ix->db, "SELECT row FROM wipe", -1, &st, NULL) != SQLITE_OK)
        return db_err(ix, "wipes", err);
    int rc = 0, step = SQLITE_ROW;
    while (rc == 0 && (step = sqlite3_step(st)) == SQLITE_ROW) {
        struct index_place place;
        rc = wipe_decode(sqlite3_column_blob(st, 0), (size_t)sqlite3_column_bytes(st, 0),
                         &place);
        if (rc == 0 && place.device >= ix->meta.n_devices)
            rc = ERR_CORRUPT;
        if (rc == 0)
            rc = fn(arg, &place);
        else
            err_set(err, rc, "index %s: a place to be wiped is damaged", ix->path);
    }
    if (rc == 0 && step != SQLITE_DONE)
        rc = db_err(ix, "wipes", err);
    sqlite3_finalize(st);
    return rc;
}

/* Rolls back the open transaction, if there is one. Returns rc, the error that caused it. Without
 * memory it fails, and the transaction stays open until rollback_rest. */
static int rollback(struct index *ix, int rc)
{
    if (!sqlite3_get_autocommit(ix->db))
        sqlite3_exec(ix->db, "ROLLBACK", NULL, NULL, NULL);
    ix->new_n_rows = ix->n_rows;
    ix->new_sum = ix->sum;
    return rc;
}

/* Rolls back a failed transaction for which rollback had no memory. Call it before the next
 * operation. Returns 0 if no transaction is open now. */
static int rollback_rest(struct index *ix, struct err *err)
{
    rollback(ix, 0);
    return sqlite3_get_autocommit(ix->db) ? 0 : db_err(ix, "ROLLBACK", err);
}

int index_compact(struct index *ix, struct err *err)
{
    int rc = rollback_rest(ix, err);
    if (rc != 0)
        return rc;
    if (sqlite3_wal_checkpoint_v2(ix->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL) !=
        SQLITE_OK)
        return db_err(ix, "checkpoint", err);
    ix->is_folded = true;
    return 0;
}

/* --- writing ---------------------------------------------------------------------------------- */

int index_begin(struct index *ix, struct err *err)
{
    int rc = rollback_rest(ix, err);
    if (rc == 0 && !ix->is_folded)
        rc = index_compact(ix, err);
    if (rc == 0)
        rc = exec(ix, "begin", "BEGIN IMMEDIATE", err);
    return rc == 0 ? 0 : rollback(ix, rc);
}

int index_add(struct index *ix, const struct index_row *row,
              const struct chunk_record *records, struct err *err)
{
    uint8_t blob[ROW_BYTES], table[TABLE_BYTES];
    size_t n = (size_t)row->n_records * CHUNK_RECORD_CODE;
    row_encode(ix->seal, row, blob);
    chunk_table_encode(records, row->n_records, table);
    put_u64(table + n, table_checksum(table, n, row->id));
    seal_page(ix->seal, PAGE_TABLE, row->id, table, n + 8);

    sqlite3_stmt *st = ix->st[ADD_EXTENT];
    sqlite3_bind_int64(st, 1, (sqlite3_int64)row->id);
    sqlite3_bind_int64(st, 2, (sqlite3_int64)row->tick);
    sqlite3_bind_int64(st, 3, use_encode(row->used_wall_s, row->ttl_s, row->is_dropped));
    sqlite3_bind_blob(st, 4, blob, ROW_BYTES, SQLITE_STATIC);
    int rc = run(ix, ADD_EXTENT, err);
    if (rc == 0) {
        sqlite3_bind_int64(ix->st[ADD_RECORDS], 1, (sqlite3_int64)row->id);
        sqlite3_bind_blob(ix->st[ADD_RECORDS], 2, table, (int)(n + 8), SQLITE_STATIC);
        rc = run(ix, ADD_RECORDS, err);
    }
    if (rc != 0)
        return rollback(ix, rc);
    ix->new_n_rows++;
    ix->new_sum += get_u64(blob + R_CHECKSUM);
    return 0;
}

int index_drop(struct index *ix, uint64_t id, struct err *err)
{
    sqlite3_stmt *st = ix->st[GET_ROW];
    sqlite3_bind_int64(st, 1, (sqlite3_int64)id);
    int step = sqlite3_step(st);
    uint64_t checksum = 0;
    bool found = step == SQLITE_ROW;
    if (found && sqlite3_column_bytes(st, 0) >= ROW_BYTES)
        checksum = get_u64(sqlite3_column_blob(st, 0));
    int rc = found || step == SQLITE_DONE ? 0 : db_err(ix, "drop", err);
    sqlite3_reset(st);
    if (rc == 0 && found) {
        sqlite3_bind_int64(ix->st[DROP_EXTENT], 1, (sqlite3_int64)id);
        rc = run(ix, DROP_EXTENT, err);
        ix->new_n_rows--;
        ix->new_sum -= checksum;
    }
    if (rc == 0 && found) {
        sqlite3_bind_int64(ix->st[DROP_RECORDS], 1, (sqlite3_int64)id);
        rc = run(ix, DROP_RECORDS, err);
    }
    return rc == 0 ? 0 : rollback(ix, rc);
}

int index_pin(struct index *ix, const struct index_pin *pin, struct err *err)
{
    enum statement which = pin->until_wall_s != 0 ? SET_PIN : DROP_PIN;
    int64_t until = pin->until_wall_s + (pin->is_guaranteed ? PIN_GUARANTEED : 0);
    struct sha256 key = pin->key;
    seal_page(ix->seal, PAGE_PIN, 0, key.b, sizeof key.b);
    sqlite3_bind_blob(ix->st[which], 1, key.b, sizeof key.b, SQLITE_STATIC);
    if (which == SET_PIN)
        sqlite3_bind_int64(ix->st[which], 2, until);
    int rc = run(ix, which, err);
    return rc == 0 ? 0 : rollback(ix, rc);
}

int index_wipe(struct index *ix, const struct index_place *place, struct err *err)
{
    uint8_t blob[WIPE_BYTES] = {0};
    put_u64(blob + W_ID, place->id);
    put_u64(blob + W_OFFSET, place->offset);
    put_u32(blob + W_SEGMENT, place->segment);
    put_u32(blob + W_BLOCKS_N, place->n_blocks);
    put_u16(blob + W_DEVICE, place->device);
    put_u64(blob + W_CHECKSUM, checksum64(blob + W_ID, WIPE_BYTES - W_ID));
    sqlite3_bind_int64(ix->st[ADD_WIPE], 1, (sqlite3_int64)place->id);
    sqlite3_bind_blob(ix->st[ADD_WIPE], 2, blob, WIPE_BYTES, SQLITE_STATIC);
    int rc = run(ix, ADD_WIPE, err);
    return rc == 0 ? 0 : rollback(ix, rc);
}

int index_wiped(struct index *ix, uint64_t id, struct err *err)
{
    sqlite3_bind_int64(ix->st[DROP_WIPE], 1, (sqlite3_int64)id);
    int rc = run(ix, DROP_WIPE, err);
    return rc == 0 ? 0 : rollback(ix, rc);
}

int index_touch(struct index *ix, uint64_t id, const struct index_use *use, struct err *err)
{
    sqlite3_stmt *st = ix->st[TOUCH];
    sqlite3_bind_int64(st, 1, (sqlite3_int64)id);
    sqlite3_bind_int64(st, 2, (sqlite3_int64)use->tick);
    sqlite3_bind_int64(st, 3, use_encode(use->used_wall_s, use->ttl_s, use->is_dropped));
    int rc = run(ix, TOUCH, err);
    return rc == 0 ? 0 : rollback(ix, rc);
}

int index_commit(struct index *ix, uint64_t next_id, struct err *err)
{
    uint8_t blob[META_SEALED_BYTES];
    uint64_t live_bytes = 0;
    CHECK(next_id >= ix->meta.next_id);
    meta_encode(ix, next_id, blob);
    sqlite3_bind_blob(ix->st[SET_META], 1, blob, (int)meta_bytes(ix), SQLITE_STATIC);
    int rc = run(ix, SET_META, err);
    if (rc == 0)
        rc = measure(ix, &live_bytes, err);
    if (rc == 0)
        rc = exec(ix, "commit", "COMMIT", err);
    if (rc != 0)
        return rollback(ix, rc);
    ix->live_bytes = live_bytes;
    ix->meta.next_id = next_id;
    ix->n_rows = ix->new_n_rows;
    ix->sum = ix->new_sum;
    return 0;
}
