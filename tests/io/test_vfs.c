/* test_vfs.c - SQLite over src/io: its behaviour on every implementation, and a workload that
 * crashes at each of its operations on the simulated disk.
 *
 * The oracle: transaction i inserts ROWS rows (i, j, content of (i, j)).  After a crash with k
 * transactions acknowledged, the table holds exactly the first k or k + 1 transactions, whole. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <errno.h>
#include <sys/stat.h>

#include "tests/unit.h"
#include <sqlite3.h>

#include "base/clock.h"
#include "io/io.h"
#include "sim/io_sim.h"
#include "io/vfs.h"
#include "seal/seal_file.h"
#include "tests/base/tempdir.h"

#define VFS     "test-vfs"
#define N_TXNS  12
#define ROWS    5
#define DB_PATH "/db/index.sqlite"

static const char WAL[] = "PRAGMA locking_mode=EXCLUSIVE; PRAGMA temp_store=MEMORY;"
                          "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
                          "PRAGMA wal_autocheckpoint=12;";
static const char JOURNAL[] = "PRAGMA locking_mode=EXCLUSIVE; PRAGMA temp_store=MEMORY;"
                              "PRAGMA journal_mode=TRUNCATE; PRAGMA synchronous=EXTRA;";

static int exec(sqlite3 *db, const char *sql)
{
    return sqlite3_exec(db, sql, NULL, NULL, NULL);
}

static int open_db(const char *path, const char *pragmas, sqlite3 **db)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    int rc = sqlite3_open_v2(path, db, flags, VFS);
    if (rc == SQLITE_OK)
        rc = exec(*db, pragmas);
    if (rc == SQLITE_OK)
        rc = exec(*db,
                  "CREATE TABLE IF NOT EXISTS t(i INT, j INT, x TEXT, PRIMARY KEY(i, j))");
    if (rc != SQLITE_OK) {
        sqlite3_close(*db);
        *db = NULL;
    }
    return rc;
}

static int insert_txn(sqlite3 *db, int i)
{
    char sql[600];
    int rc = exec(db, "BEGIN");
    for (int j = 0; j < ROWS && rc == SQLITE_OK; j++) {
        snprintf(sql, sizeof sql, "INSERT INTO t VALUES(%d, %d, printf('%%0300d', %d))", i,
                 j, i * 1000 + j);
        rc = exec(db, sql);
    }
    return rc == SQLITE_OK ? exec(db, "COMMIT") : rc;
}

/* Runs until the first error; returns the number of acknowledged transactions. */
static int run_workload(const char *path, const char *pragmas)
{
    sqlite3 *db;
    int n = 0;
    if (open_db(path, pragmas, &db) != SQLITE_OK)
        return 0;
    while (n < N_TXNS && insert_txn(db, n) == SQLITE_OK)
        n++;
    sqlite3_close(db);
    return n;
}

static int64_t query_int(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *st;
    int64_t v = -1;
    if (sqlite3_prepare_v2(db, sql, -1, &st, NULL) == SQLITE_OK &&
        sqlite3_step(st) == SQLITE_ROW)
        v = sqlite3_column_int64(st, 0);
    sqlite3_finalize(st);
    return v;
}

static bool is_sound(sqlite3 *db)
{
    sqlite3_stmt *st;
    bool ok = sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &st, NULL) ==
                  SQLITE_OK &&
              sqlite3_step(st) == SQLITE_ROW &&
              strcmp((const char *)sqlite3_column_text(st, 0), "ok") == 0;
    sqlite3_finalize(st);
    return ok;
}

/* Returns the number of transactions in the database, or -1 if they are not whole and consecutive
 * from the first on. */
static int count_txns(sqlite3 *db)
{
    int64_t n = query_int(db, "SELECT count(DISTINCT i) FROM t");
    int64_t wrong = query_int(
        db, "SELECT count(*) FROM t WHERE x != printf('%0300d', i*1000+j)");
    int64_t rows = query_int(db, "SELECT count(*) FROM t");
    int64_t last = query_int(db, "SELECT coalesce(max(i), -1) FROM t");
    return wrong == 0 && rows == n * ROWS && last == n - 1 ? (int)n : -1;
}

static struct seal *seal; /* encrypts the files in sim_with_folder; NULL: they are plain */

static struct io *sim_with_folder(uint64_t seed)
{
    struct io *io;
    assert_int_equal(io_sim_open(&(struct io_sim_opts){.seed = seed}, &io, NULL), 0);
    assert_int_equal(io_mkdirs(io, "/db", NULL, NULL), 0);
    assert_int_equal(vfs_register(io, VFS, VFS_WRITE, NULL), 0);
    vfs_use_seal(VFS, seal);
    /* SQLite's own generator (WAL salts) is global: give it the same state in every run. */
    sqlite3_test_control(SQLITE_TESTCTRL_PRNG_SEED, 42, NULL);
    return io;
}

static void sim_end(struct io *io)
{
    vfs_unregister(VFS);
    io_close(io);
}

static uint64_t count_ops(const char *pragmas)
{
    struct io *io = sim_with_folder(1);
    uint64_t before = io_sim_count(io, IO_SIM_AT_OP);
    assert_int_equal(run_workload(DB_PATH, pragmas), N_TXNS);
    uint64_t n = io_sim_count(io, IO_SIM_AT_OP) - before;
    sim_end(io);
    return n;
}

/* Opens after a crash and compares with the oracle.  Returns false if the recovery itself crashed.
 */
static bool check_recovered(struct io *io, const char *pragmas, int acknowledged,
                            uint64_t op, uint64_t seed)
{
    sqlite3 *db;
    int rc = open_db(DB_PATH, pragmas, &db);
    if (io_sim_crashed(io)) {
        sqlite3_close(db);
        return false;
    }
    if (rc != SQLITE_OK)
        fail_msg("op %d seed %d: cannot open: %d", (int)op, (int)seed, rc);
    int found = count_txns(db);
    if (!is_sound(db) || found < acknowledged || found > acknowledged + 1)
        fail_msg("op %d seed %d: acknowledged %d, found %d", (int)op, (int)seed,
                 acknowledged, found);
    /* the database accepts further transactions */
    assert_int_equal(insert_txn(db, found), SQLITE_OK);
    sqlite3_close(db);
    return true;
}

/* Crashes at one operation, and again once or twice during the recovery.  Returns a digest. */
static uint64_t crash_once(const char *pragmas, uint64_t op, uint64_t seed)
{
    struct io *io = sim_with_folder(seed);
    io_sim_crash_at(io, IO_SIM_AT_OP, op);
    int acknowledged = run_workload(DB_PATH, pragmas);
    assert_true(io_sim_crashed(io));
    io_sim_restart(io);
    uint64_t digest = io_sim_digest(io);
    for (uint64_t again = 0; again < 2; again++) {
        sqlite3 *db;
        io_sim_crash_at(io, IO_SIM_AT_OP, 1 + (op + seed + again) % 5);
        open_db(DB_PATH, pragmas, &db);
        sqlite3_close(db);
        io_sim_crash_at(io, IO_SIM_AT_OP, 0);
        io_sim_restart(io);
    }
    assert_true(check_recovered(io, pragmas, acknowledged, op, seed));
    sim_end(io);
    return digest;
}

static void crash_everywhere(const char *pragmas, uint64_t n_seeds)
{
    uint64_t n_ops = count_ops(pragmas);
    assert_true(n_ops > 50);
    for (uint64_t op = 1; op <= n_ops; op++)
        for (uint64_t seed = 0; seed < n_seeds; seed++)
            crash_once(pragmas, op, op * 1000 + seed);
    print_message("%d operations, %d crashes\n", (int)n_ops, (int)(n_ops * n_seeds));
}

TEST(test_crash_wal)
{
    crash_everywhere(WAL, 16);
}

TEST(test_crash_journal)
{
    crash_everywhere(JOURNAL, 8);
}

/* Encrypted files survive every crash, too, and show nothing. */
TEST(test_encrypted)
{
    static const uint8_t secret[SEAL_KEY_BYTES] = {7};
    static const char *const sizes[] = {"", "PRAGMA page_size=512;",
                                        "PRAGMA page_size=16384;"};
    char pragmas[400];
    uint8_t head[SEAL_HEAD_BYTES];
    size_t got;
    seal = seal_shared(secret);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct io_file *f;
        snprintf(pragmas, sizeof pragmas, "%s%s", sizes[i], WAL);
        struct io *io = sim_with_folder(i);
        assert_int_equal(run_workload(DB_PATH, pragmas), N_TXNS);
        assert_int_equal(io_sim_raw_count(io, "0000000000000000", 16), 0);
        assert_int_equal(io_sim_raw_count(io, "CREATE TABLE", 12), 0);
        assert_int_equal(io_file_open(io, DB_PATH, 0, &f, NULL), 0);
        assert_int_equal(io_file_pread_some(f, head, sizeof head, 0, &got, NULL), 0);
        assert_int_equal(seal_head_check(seal, head, got, "it", NULL), 0);
        io_file_close(f);
        assert_true(check_recovered(io, pragmas, N_TXNS, 0, i));
        sim_end(io);
        crash_everywhere(pragmas, i == 1 ? 1 : 4);
    }
    crash_everywhere(JOURNAL, 2);
    seal_free(seal);
    seal = NULL;
}

TEST(test_deterministic)
{
    uint64_t n_ops = count_ops(WAL);
    assert_int_equal(count_ops(WAL), n_ops);
    unsigned n_different = 0;
    for (uint64_t op = 3; op < n_ops; op += 17) {
        uint64_t digest = crash_once(WAL, op, 5);
        assert_true(crash_once(WAL, op, 5) == digest);
        n_different += crash_once(WAL, op, 6) != digest;
    }
    assert_true(n_different > 0);
}

/* Shows that this suite can fail: if syncs do nothing, it finds lost transactions. */
TEST(test_lost_syncs_are_noticed)
{
    unsigned n_lost = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct io *io = sim_with_folder(seed);
        io_sim_fault_add(io,
                         &(struct io_sim_fault){.kind = IO_SIM_LOST, .on = IO_SIM_ON_SYNC});
        int acknowledged = run_workload(DB_PATH, WAL);
        io_sim_crash(io);
        io_sim_restart(io);
        sqlite3 *db;
        n_lost += open_db(DB_PATH, WAL, &db) != SQLITE_OK || count_txns(db) < acknowledged;
        sqlite3_close(db);
        sim_end(io);
    }
    assert_true(n_lost > 0);
}

/* Each kind of failure at many moments: the caller gets an error and nothing committed is lost. */
TEST(test_faults)
{
    static const struct io_sim_fault faults[] = {
        {.kind = IO_SIM_FAIL, .code = -EIO},
        {.kind = IO_SIM_FAIL, .code = -ENOSPC, .on = IO_SIM_ON_WRITE},
        {.kind = IO_SIM_FAIL, .code = -EIO, .on = IO_SIM_ON_SYNC},
        {.kind = IO_SIM_FAIL, .code = -EROFS, .on = IO_SIM_ON_WRITE | IO_SIM_ON_NAME},
        {.kind = IO_SIM_FAIL, .code = -EMFILE, .on = IO_SIM_ON_OPEN},
        {.kind = IO_SIM_SHORT, .chance = 0.5},
        {.kind = IO_SIM_SYNC_LIES},
    };
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        for (uint64_t skip_n = 0; skip_n < 120; skip_n += 7) {
            struct io *io = sim_with_folder(skip_n);
            struct io_sim_fault fault = faults[i];
            fault.skip = skip_n;
            fault.count = fault.kind == IO_SIM_SHORT ? 0 : 1 + skip_n % 3;
            io_sim_fault_add(io, &fault);
            int acknowledged = run_workload(DB_PATH, WAL);
            io_sim_fault_clear(io);
            io_sim_crash(io);
            io_sim_restart(io);
            assert_true(check_recovered(io, WAL, acknowledged, i, skip_n));
            sim_end(io);
        }
    }
}

/* A row that was dropped leaves the medium: the pages by secure_delete, the log because it is
 * overwritten before it is cut, or before the connection's end removes it. */
TEST(test_dropped_rows_leave_the_medium)
{
    static const char *const ends[] = {"PRAGMA wal_checkpoint(TRUNCATE)", NULL};
    for (int i = 0; i < 2; i++) {
        struct io *io;
        struct io_sim_opts o = {.seed = 1, .keeps_freed = true};
        sqlite3 *db;
        assert_int_equal(io_sim_open(&o, &io, NULL), 0);
        assert_int_equal(io_mkdirs(io, "/db", NULL, NULL), 0);
        assert_int_equal(vfs_register(io, VFS, VFS_WRITE, NULL), 0);
        assert_int_equal(open_db(DB_PATH, WAL, &db), SQLITE_OK);
        assert_int_equal(exec(db, "PRAGMA secure_delete = ON"), SQLITE_OK);
        assert_int_equal(exec(db, "INSERT INTO t VALUES(1, 1, 'a secret of the log')"),
                         SQLITE_OK);
        assert_int_equal(insert_txn(db, 2), SQLITE_OK);
        assert_true(io_sim_raw_count(io, "a secret of the log", 19) > 0);
        assert_int_equal(exec(db, "DELETE FROM t WHERE i = 1"), SQLITE_OK);
        if (ends[i] != NULL)
            assert_int_equal(exec(db, ends[i]), SQLITE_OK);
        else
            assert_int_equal(sqlite3_close(db), SQLITE_OK);
        assert_int_equal(io_dir_sync(io, "/db", NULL), 0);
        assert_int_equal(io_sim_raw_count(io, "a secret of the log", 19), 0);
        if (ends[i] != NULL)
            assert_int_equal(sqlite3_close(db), SQLITE_OK);
        sim_end(io);
    }
}

TEST(test_full_disk)
{
    struct io *io;
    assert_int_equal(
        io_sim_open(&(struct io_sim_opts){.seed = 1, .capacity_bytes = 100000}, &io, NULL),
        0);
    assert_int_equal(io_mkdirs(io, "/db", NULL, NULL), 0);
    assert_int_equal(vfs_register(io, VFS, VFS_WRITE, NULL), 0);
    sqlite3 *db;
    assert_int_equal(open_db(DB_PATH, WAL, &db), SQLITE_OK);
    int n = 0, rc;
    while ((rc = insert_txn(db, n)) == SQLITE_OK)
        n++;
    assert_int_equal(rc, SQLITE_FULL);
    exec(db, "ROLLBACK");
    assert_int_equal(count_txns(db), n);
    assert_true(is_sound(db));
    sqlite3_close(db);
    sim_end(io);
}

TEST(test_one_opener)
{
    struct io *io = sim_with_folder(1);
    sqlite3 *a, *b;
    assert_int_equal(open_db(DB_PATH, WAL, &a), SQLITE_OK);
    assert_int_equal(open_db(DB_PATH, WAL, &b), SQLITE_BUSY);
    sqlite3_close(a);
    assert_int_equal(open_db(DB_PATH, WAL, &b), SQLITE_OK);
    sqlite3_close(b);
    struct err err = {0};
    assert_int_equal(vfs_register(io, VFS, VFS_WRITE, &err), ERR_BUSY);
    vfs_unregister("no such name");
    sim_end(io);
}

/* Runs the same workload on real files; SQLite's own VFS then reads what ours has written. */
static void on_real_files(struct io *io)
{
    char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 16];
    tempdir_make_on_disk(dir, "vfs");
    snprintf(path, sizeof path, "%s/index.sqlite", dir);
    assert_int_equal(vfs_register(io, VFS, VFS_WRITE, NULL), 0);
    assert_int_equal(run_workload(path, WAL), N_TXNS);
    sqlite3 *db, *other;
    assert_int_equal(open_db(path, WAL, &db), SQLITE_OK);
    assert_int_equal(count_txns(db), N_TXNS);
    assert_int_equal(insert_txn(db, N_TXNS), SQLITE_OK);
    /* SQLite's own VFS respects the lock of the VFS over src/io. */
    assert_int_equal(sqlite3_open_v2(path, &other, SQLITE_OPEN_READWRITE, "unix"),
                     SQLITE_OK);
    assert_int_equal(exec(other, "SELECT count(*) FROM t"), SQLITE_BUSY);
    sqlite3_close(db);
    assert_int_equal(count_txns(other), N_TXNS + 1);
    assert_true(is_sound(other));
    sqlite3_close(other);
    vfs_unregister(VFS);
    io_close(io);
    tempdir_remove(dir);
}

TEST(test_pread)
{
    on_real_files(io_pread_open());
}

TEST(test_uring)
{
    struct io *io;
    struct err err = {0};
    if (io_uring_open(&io, &err) == ERR_UNSUPPORTED) {
        print_message("SKIP: %s\n", err.msg);
        skip();
    }
    on_real_files(io);
}

/* A read-only VFS reads a database with a log or without one, and writes, creates and removes no
 * file. */
TEST(test_only_reading)
{
    struct io *io = sim_with_folder(9);
    assert_int_equal(run_workload(DB_PATH, WAL), N_TXNS);
    assert_int_equal(vfs_register(io, "only-read", VFS_READ, NULL), 0);
    for (int with_log = 0; with_log < 2; with_log++) {
        sqlite3 *writer = NULL, *db;
        struct io *copy = io;
        if (with_log) { /* as after a crash: the log exists */
            assert_int_equal(open_db(DB_PATH, WAL, &writer), SQLITE_OK);
            assert_int_equal(insert_txn(writer, N_TXNS), SQLITE_OK);
            assert_int_equal(io_sim_fork(io, 1, &copy, NULL), 0);
            vfs_unregister("only-read");
            assert_int_equal(vfs_register(copy, "only-read", VFS_READ, NULL), 0);
        }
        assert_int_equal(io_exists(copy, DB_PATH "-wal"), with_log);
        uint64_t before = io_sim_digest(copy);
        assert_int_equal(sqlite3_open_v2(DB_PATH, &db, SQLITE_OPEN_READWRITE, "only-read"),
                         SQLITE_OK);
        sqlite3_exec(db, WAL, NULL, NULL, NULL);
        assert_int_equal(count_txns(db), N_TXNS + with_log);
        assert_int_not_equal(insert_txn(db, N_TXNS + with_log), SQLITE_OK);
        assert_int_not_equal(
            sqlite3_exec(db, "PRAGMA wal_checkpoint(TRUNCATE)", NULL, NULL, NULL) |
                sqlite3_exec(db, "DELETE FROM t", NULL, NULL, NULL),
            SQLITE_OK);
        sqlite3_close(db);
        assert_true(io_sim_digest(copy) == before);
        if (with_log) {
            vfs_unregister("only-read");
            io_close(copy);
            sqlite3_close(writer);
        }
    }
    sim_end(io);
}

/* --- the methods, without SQLite above them --------------------------------------------------- */

static sqlite3_file *file_open(sqlite3_vfs *vfs, const char *path, int flags)
{
    sqlite3_file *f = calloc(1, (size_t)vfs->szOsFile);
    int said = 0;
    assert_int_equal(vfs->xOpen(vfs, path, f, flags, &said), SQLITE_OK);
    assert_int_equal(said, flags);
    return f;
}

static void file_end(sqlite3_file *f)
{
    assert_int_equal(f->pMethods->xClose(f), SQLITE_OK);
    free(f);
}

static void fault_add(struct io *io, unsigned on, int code)
{
    struct io_sim_fault fault = {.kind = IO_SIM_FAIL, .on = on, .code = code};
    assert_int_equal(io_sim_fault_add(io, &fault), 0);
}

enum { READWRITE = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_MAIN_DB };

/* Bytes behind the end of the file read as zeros. A read writes no byte behind its buffer. */
TEST(test_reads_fill_their_buffer)
{
    struct io *io = sim_with_folder(1);
    sqlite3_vfs *vfs = sqlite3_vfs_find(VFS);
    sqlite3_file *f = file_open(vfs, "/db/f", READWRITE);
    char out[100], in[200], want[200];
    sqlite3_int64 size = -1;
    memset(out, 'x', sizeof out);
    assert_int_equal(f->pMethods->xWrite(f, out, 100, 10), SQLITE_OK);
    assert_int_equal(f->pMethods->xFileSize(f, &size), SQLITE_OK);
    assert_int_equal(size, 110);
    static const struct {
        int n, offset, n_there, code;
    } reads[] = {
        {110, 0, 110, SQLITE_OK},
        {100, 10, 100, SQLITE_OK},
        {101, 10, 100, SQLITE_IOERR_SHORT_READ},
        {20, 100, 10, SQLITE_IOERR_SHORT_READ},
        {20, 110, 0, SQLITE_IOERR_SHORT_READ},
        {20, 5000, 0, SQLITE_IOERR_SHORT_READ},
    };
    for (size_t i = 0; i < sizeof reads / sizeof reads[0]; i++) {
        memset(in, '#', sizeof in);
        memset(want, '#', sizeof want);
        for (int k = 0; k < reads[i].n; k++)
            want[k] = k < reads[i].n_there && reads[i].offset + k >= 10 ? 'x' : 0;
        assert_int_equal(f->pMethods->xRead(f, in, reads[i].n, reads[i].offset),
                         reads[i].code);
        assert_memory_equal(in, want, sizeof in);
    }
    assert_int_equal(f->pMethods->xTruncate(f, 50), SQLITE_OK);
    assert_int_equal(f->pMethods->xFileSize(f, &size), SQLITE_OK);
    assert_int_equal(size, 50);
    file_end(f);
    sim_end(io);
}

/* Each failure has SQLite's code for it, and the system's code for SQLite's log. */
TEST(test_each_failure_has_its_code)
{
    struct io *io = sim_with_folder(1);
    sqlite3_vfs *vfs = sqlite3_vfs_find(VFS);
    sqlite3_file *f = file_open(vfs, "/db/f", READWRITE);
    const sqlite3_io_methods *m = f->pMethods;
    sqlite3_file *g = calloc(1, (size_t)vfs->szOsFile);
    char b[8] = "content";
    sqlite3_int64 size;
    int exists = -1;
    assert_int_equal(m->xWrite(f, b, 8, 0), SQLITE_OK);
    static const struct {
        unsigned on;
        int code, said, error;
    } faults[] = {
        {IO_SIM_ON_READ, -EIO, SQLITE_IOERR_READ, EIO},
        {IO_SIM_ON_WRITE, -EROFS, SQLITE_IOERR_WRITE, EROFS},
        {IO_SIM_ON_WRITE, -ENOSPC, SQLITE_FULL, ENOSPC},
        {IO_SIM_ON_SPACE, -EPERM, SQLITE_IOERR_TRUNCATE, EPERM},
        {IO_SIM_ON_OPEN, -EMFILE, SQLITE_CANTOPEN, EMFILE},
        {IO_SIM_ON_NAME, -EACCES, SQLITE_IOERR_DELETE, EACCES},
        {IO_SIM_ON_DIR_SYNC, -EBADF, SQLITE_IOERR_DIR_FSYNC, EBADF},
        {IO_SIM_ON_SYNC, -ENOLCK, SQLITE_IOERR_FSYNC, ENOLCK},
    };
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        unsigned on = faults[i].on;
        fault_add(io, on, faults[i].code);
        int rc = on == IO_SIM_ON_READ    ? m->xRead(f, b, 8, 0)
                 : on == IO_SIM_ON_WRITE ? m->xWrite(f, b, 8, 0)
                 : on == IO_SIM_ON_SPACE ? m->xTruncate(f, 4)
                 : on == IO_SIM_ON_OPEN  ? vfs->xOpen(vfs, "/db/f", g, READWRITE, NULL)
                 : on == IO_SIM_ON_NAME  ? vfs->xDelete(vfs, "/db/f", 0)
                                         : m->xSync(f, SQLITE_SYNC_NORMAL);
        assert_int_equal(rc, faults[i].said);
        assert_int_equal(vfs->xGetLastError(vfs, 0, NULL), faults[i].error);
        io_sim_fault_clear(io);
    }
    /* a code that the system does not have counts as EIO */
    io_sim_crash(io);
    assert_int_equal(m->xFileSize(f, &size), SQLITE_IOERR_FSTAT);
    assert_int_equal(vfs->xGetLastError(vfs, 0, NULL), EIO);
    assert_int_equal(m->xLock(f, SQLITE_LOCK_SHARED), SQLITE_IOERR_LOCK);
    assert_int_equal(vfs->xAccess(vfs, "/db/f", SQLITE_ACCESS_EXISTS, &exists),
                     SQLITE_IOERR_ACCESS);
    assert_int_equal(m->xUnlock(f, SQLITE_LOCK_NONE), SQLITE_OK); /* no lock was taken */
    file_end(f);
    io_sim_restart(io);
    f = file_open(vfs, "/db/f", READWRITE);
    assert_int_equal(m->xLock(f, SQLITE_LOCK_SHARED), SQLITE_OK);
    io_sim_crash(io);
    assert_int_equal(m->xUnlock(f, SQLITE_LOCK_NONE), SQLITE_IOERR_UNLOCK);
    file_end(f);
    free(g);
    sim_end(io);
}

/* The first sync of a file also syncs its name, later ones do not. A deletion is synced if SQLite
 * asks for it. */
TEST(test_names_are_synced_once)
{
    struct io *io = sim_with_folder(1);
    sqlite3_vfs *vfs = sqlite3_vfs_find(VFS);
    sqlite3_file *f = file_open(vfs, "/db/f", READWRITE);
    static const uint64_t n_barriers[] = {2, 1, 1};
    for (int i = 0; i < 3; i++) {
        uint64_t before = io_sim_count(io, IO_SIM_AT_BARRIER);
        assert_int_equal(f->pMethods->xSync(f, SQLITE_SYNC_FULL), SQLITE_OK);
        assert_int_equal(io_sim_count(io, IO_SIM_AT_BARRIER) - before, n_barriers[i]);
    }
    for (int sync = 0; sync < 2; sync++) {
        file_end(f);
        uint64_t before = io_sim_count(io, IO_SIM_AT_BARRIER);
        assert_int_equal(vfs->xDelete(vfs, "/db/f", sync), SQLITE_OK);
        assert_int_equal(io_sim_count(io, IO_SIM_AT_BARRIER) - before, sync);
        assert_int_equal(vfs->xDelete(vfs, "/db/f", sync), SQLITE_IOERR_DELETE_NOENT);
        f = file_open(vfs, "/db/f", READWRITE);
    }
    file_end(f);
    f = file_open(vfs, "/db/f", READWRITE);
    fault_add(io, IO_SIM_ON_DIR_SYNC, -EIO);
    file_end(f);
    assert_int_equal(vfs->xDelete(vfs, "/db/f", 1), SQLITE_IOERR_DIR_FSYNC);
    sim_end(io);
}

TEST(test_one_lock_at_all_levels)
{
    struct io *io = sim_with_folder(1);
    sqlite3_vfs *vfs = sqlite3_vfs_find(VFS);
    sqlite3_file *f = file_open(vfs, "/db/f", READWRITE),
                 *g = file_open(vfs, "/db/f", READWRITE);
    const sqlite3_io_methods *m = f->pMethods;
    int reserved = -1;
    assert_int_equal(m->xLock(f, SQLITE_LOCK_NONE), SQLITE_OK); /* takes no lock */
    assert_int_equal(m->xLock(g, SQLITE_LOCK_SHARED), SQLITE_OK);
    assert_int_equal(m->xLock(f, SQLITE_LOCK_SHARED), SQLITE_BUSY);
    assert_int_equal(m->xLock(g, SQLITE_LOCK_EXCLUSIVE), SQLITE_OK);
    assert_int_equal(m->xUnlock(g, SQLITE_LOCK_SHARED), SQLITE_OK); /* keeps the lock */
    assert_int_equal(m->xLock(f, SQLITE_LOCK_SHARED), SQLITE_BUSY);
    assert_int_equal(m->xCheckReservedLock(g, &reserved), SQLITE_OK);
    assert_int_equal(reserved, 0);
    assert_int_equal(m->xUnlock(g, SQLITE_LOCK_NONE), SQLITE_OK);
    assert_int_equal(m->xLock(f, SQLITE_LOCK_SHARED), SQLITE_OK);
    assert_int_equal(m->xLock(g, SQLITE_LOCK_SHARED), SQLITE_BUSY);
    file_end(f); /* closing gives up the lock */
    assert_int_equal(m->xLock(g, SQLITE_LOCK_SHARED), SQLITE_OK);
    file_end(g);
    sim_end(io);
}

/* A copy is read beside the writer, who has the lock, and holds what was committed before it. */
TEST(test_copies)
{
    struct io *io = sim_with_folder(1);
    sqlite3 *writer, *db;
    assert_int_equal(run_workload(DB_PATH, WAL), N_TXNS);
    assert_int_equal(vfs_register(io, "copies", VFS_COPY, NULL), 0);
    assert_int_equal(open_db(DB_PATH, WAL, &writer), SQLITE_OK);
    assert_int_equal(insert_txn(writer, N_TXNS), SQLITE_OK);
    assert_int_equal(sqlite3_open_v2(DB_PATH, &db, SQLITE_OPEN_READONLY, "copies"),
                     SQLITE_OK);
    sqlite3_exec(db, "PRAGMA locking_mode = EXCLUSIVE", NULL, NULL, NULL);
    assert_int_equal(count_txns(db), N_TXNS + 1);
    assert_int_equal(insert_txn(writer, N_TXNS + 1), SQLITE_OK);
    assert_int_equal(
        sqlite3_exec(writer, "PRAGMA wal_checkpoint(TRUNCATE)", NULL, NULL, NULL),
        SQLITE_OK);
    assert_int_equal(count_txns(db), N_TXNS + 1);
    sqlite3_close(db);
    sqlite3_close(writer);
    vfs_unregister("copies");
    sim_end(io);
}

TEST(test_which_files_are_opened)
{
    struct io *io = sim_with_folder(1);
    assert_int_equal(vfs_register(io, "only-read", VFS_READ, NULL), 0);
    sqlite3_vfs *vfs = sqlite3_vfs_find(VFS), *reads = sqlite3_vfs_find("only-read");
    sqlite3_file *f = calloc(1, (size_t)vfs->szOsFile);
    char b[4] = "abc", in[4];
    sqlite3_int64 size = -1;
    static const struct {
        const char *path;
        int flags;
    } refused[] = {
        {NULL, READWRITE},
        {"/db/new", READWRITE | SQLITE_OPEN_DELETEONCLOSE},
        {"/db/new", SQLITE_OPEN_READWRITE | SQLITE_OPEN_MAIN_DB},
        {"/db/new", SQLITE_OPEN_READONLY | SQLITE_OPEN_MAIN_DB},
        {"/db/there", READWRITE | SQLITE_OPEN_EXCLUSIVE},
        {"/none/new", READWRITE},
    };
    file_end(file_open(vfs, "/db/there", READWRITE | SQLITE_OPEN_EXCLUSIVE));
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        assert_int_equal(vfs->xOpen(vfs, refused[i].path, f, refused[i].flags, NULL),
                         SQLITE_CANTOPEN);
        assert_null(f->pMethods);
        assert_false(io_exists(io, "/db/new"));
    }
    free(f);
    f = file_open(vfs, "/db/there", SQLITE_OPEN_READONLY | SQLITE_OPEN_MAIN_DB);
    assert_int_equal(f->pMethods->xWrite(f, b, 3, 0), SQLITE_IOERR_WRITE);
    file_end(f);
    /* A VFS for reading only opens what is there, and a missing log as an empty one. */
    f = file_open(reads, "/db/there", READWRITE);
    assert_int_equal(f->pMethods->xWrite(f, b, 3, 0), SQLITE_READONLY);
    assert_int_equal(f->pMethods->xTruncate(f, 0), SQLITE_READONLY);
    assert_int_equal(f->pMethods->xSync(f, SQLITE_SYNC_NORMAL), SQLITE_OK);
    file_end(f);
    assert_int_equal(reads->xDelete(reads, "/db/there", 0), SQLITE_READONLY);
    assert_true(io_exists(io, "/db/there"));
    f = file_open(reads, "/db/log", SQLITE_OPEN_READWRITE | SQLITE_OPEN_WAL);
    assert_int_equal(f->pMethods->xFileSize(f, &size), SQLITE_OK);
    assert_int_equal(size, 0);
    memset(in, '#', sizeof in);
    assert_int_equal(f->pMethods->xRead(f, in, 3, 0), SQLITE_IOERR_SHORT_READ);
    assert_memory_equal(in, "\0\0\0#", 4);
    file_end(f);
    f = calloc(1, (size_t)vfs->szOsFile);
    assert_int_equal(reads->xOpen(reads, "/db/log", f, READWRITE, NULL), SQLITE_CANTOPEN);
    fault_add(io, IO_SIM_ON_OPEN, -EIO); /* only a missing log is empty */
    assert_int_equal(
        reads->xOpen(reads, "/db/log", f, SQLITE_OPEN_READWRITE | SQLITE_OPEN_WAL, NULL),
        SQLITE_CANTOPEN);
    free(f);
    vfs_unregister("only-read");
    assert_null(sqlite3_vfs_find("only-read"));
    vfs_unregister("unix"); /* not one of this module's */
    assert_non_null(sqlite3_vfs_find("unix"));
    sim_end(io);
}

/* An empty journal counts as missing; an empty file may be read and written. */
TEST(test_access)
{
    struct io *io = sim_with_folder(1);
    sqlite3_vfs *vfs = sqlite3_vfs_find(VFS);
    static const int kinds[] = {SQLITE_ACCESS_EXISTS, SQLITE_ACCESS_READWRITE,
                                SQLITE_ACCESS_READ};
    static const char *const paths[] = {"/db/none", "/db/empty", "/db/full", "/db",
                                        "/db/full/none"};
    static const int want[][3] = {{0, 0, 0}, {0, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}};
    sqlite3_file *f = file_open(vfs, "/db/full", READWRITE);
    assert_int_equal(f->pMethods->xWrite(f, "x", 1, 0), SQLITE_OK);
    file_end(f);
    file_end(file_open(vfs, "/db/empty", READWRITE));
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 3; k++) {
            int exists = -1;
            assert_int_equal(vfs->xAccess(vfs, paths[i], kinds[k], &exists), SQLITE_OK);
            assert_int_equal(exists, want[i][k]);
        }
    sim_end(io);
}

TEST(test_what_the_system_tells)
{
    struct io *io = sim_with_folder(1);
    sqlite3_vfs *vfs = sqlite3_vfs_find(VFS);
    sqlite3_file *f = file_open(vfs, "/db/f", READWRITE);
    char path[8] = "#######", random[2][16] = {{0}};
    assert_int_equal(f->pMethods->xSectorSize(f), 4096);
    assert_int_equal(f->pMethods->xDeviceCharacteristics(f), 0);
    assert_int_equal(f->pMethods->xFileControl(f, SQLITE_FCNTL_SIZE_HINT, NULL),
                     SQLITE_NOTFOUND);
    file_end(f);
    assert_int_equal(vfs->xFullPathname(vfs, "/db/f", 5, path), SQLITE_CANTOPEN);
    assert_memory_equal(path, "#######", 8);
    assert_int_equal(vfs->xFullPathname(vfs, "/db/f", 6, path), SQLITE_OK);
    assert_memory_equal(path, "/db/f\0#", 8);
    for (int i = 0; i < 2; i++)
        assert_int_equal(vfs->xRandomness(vfs, 15, random[i]), 15);
    assert_memory_not_equal(random[0], random[1], 15);
    assert_int_equal(random[0][15] | random[1][15], 0);
    int64_t before_ns = clock_now_ns();
    assert_int_equal(vfs->xSleep(vfs, 1500), 1500);
    assert_true(clock_now_ns() - before_ns >= 1500000);
    /* 1 January 1970 is the Julian day 2440587.5. */
    sqlite3_int64 ms = 0, before_ms = 210866760000000 + 1000 * clock_wall_s();
    double days = 0;
    assert_int_equal(vfs->xCurrentTimeInt64(vfs, &ms), SQLITE_OK);
    assert_int_equal(vfs->xCurrentTime(vfs, &days), SQLITE_OK);
    sqlite3_int64 after_ms = 210866760000000 + 1000 * clock_wall_s();
    assert_true(ms >= before_ms && ms <= after_ms);
    assert_true(days >= (double)ms / 86400000.0 && days <= (double)after_ms / 86400000.0);
    sim_end(io);
}
