/* test_vfs.c - SQLite over src/io: its behaviour on every implementation, and a workload that
 * crashes at each of its operations on the simulated disk.
 *
 * The oracle: transaction i inserts ROWS rows (i, j, content of (i, j)).  After a crash with k
 * transactions acknowledged, the table holds exactly the first k or k + 1 transactions, whole. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <errno.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "io/io.h"
#include "io/io_sim.h"
#include "store/vfs.h"
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

static struct io *sim_with_folder(uint64_t seed)
{
    struct io *io;
    assert_int_equal(io_sim_open(&(struct io_sim_opts){.seed = seed}, &io, NULL), 0);
    assert_int_equal(io_mkdirs(io, "/db", NULL, NULL), 0);
    assert_int_equal(vfs_register(io, VFS, false, NULL), 0);
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

static void test_crash_wal(void **state)
{
    (void)state;
    crash_everywhere(WAL, 16);
}

static void test_crash_journal(void **state)
{
    (void)state;
    crash_everywhere(JOURNAL, 8);
}

static void test_deterministic(void **state)
{
    (void)state;
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
static void test_lost_syncs_are_noticed(void **state)
{
    (void)state;
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
static void test_faults(void **state)
{
    (void)state;
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

static void test_full_disk(void **state)
{
    (void)state;
    struct io *io;
    assert_int_equal(
        io_sim_open(&(struct io_sim_opts){.seed = 1, .capacity_bytes = 100000}, &io, NULL),
        0);
    assert_int_equal(io_mkdirs(io, "/db", NULL, NULL), 0);
    assert_int_equal(vfs_register(io, VFS, false, NULL), 0);
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

static void test_one_opener(void **state)
{
    (void)state;
    struct io *io = sim_with_folder(1);
    sqlite3 *a, *b;
    assert_int_equal(open_db(DB_PATH, WAL, &a), SQLITE_OK);
    assert_int_equal(open_db(DB_PATH, WAL, &b), SQLITE_BUSY);
    sqlite3_close(a);
    assert_int_equal(open_db(DB_PATH, WAL, &b), SQLITE_OK);
    sqlite3_close(b);
    struct err err = {0};
    assert_int_equal(vfs_register(io, VFS, false, &err), ERR_BUSY);
    vfs_unregister("no such name");
    sim_end(io);
}

/* Runs the same workload on real files; SQLite's own VFS then reads what ours has written. */
static void on_real_files(struct io *io)
{
    char dir[TEMPDIR_BYTES], path[TEMPDIR_BYTES + 16];
    tempdir_make_on_disk(dir, "vfs");
    snprintf(path, sizeof path, "%s/index.sqlite", dir);
    assert_int_equal(vfs_register(io, VFS, false, NULL), 0);
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

static void test_pread(void **state)
{
    (void)state;
    struct io *io;
    assert_int_equal(io_pread_open(&io, NULL), 0);
    on_real_files(io);
}

static void test_uring(void **state)
{
    (void)state;
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
static void test_only_reading(void **state)
{
    (void)state;
    struct io *io = sim_with_folder(9);
    assert_int_equal(run_workload(DB_PATH, WAL), N_TXNS);
    assert_int_equal(vfs_register(io, "only-read", true, NULL), 0);
    for (int with_log = 0; with_log < 2; with_log++) {
        sqlite3 *writer = NULL, *db;
        struct io *copy = io;
        if (with_log) { /* as after a crash: the log exists */
            assert_int_equal(open_db(DB_PATH, WAL, &writer), SQLITE_OK);
            assert_int_equal(insert_txn(writer, N_TXNS), SQLITE_OK);
            assert_int_equal(io_sim_fork(io, 1, &copy, NULL), 0);
            vfs_unregister("only-read");
            assert_int_equal(vfs_register(copy, "only-read", true, NULL), 0);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pread),
        cmocka_unit_test(test_uring),
        cmocka_unit_test(test_one_opener),
        cmocka_unit_test(test_crash_wal),
        cmocka_unit_test(test_crash_journal),
        cmocka_unit_test(test_deterministic),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_lost_syncs_are_noticed),
        cmocka_unit_test(test_only_reading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
