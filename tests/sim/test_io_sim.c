/* The simulated disk: which data survive a crash, what faults do, and that the seed decides
 * everything. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <pthread.h>

#include "tests/unit.h"
#include "base/clock.h"
#include "io/io.h"
#include "sim/io_sim.h"
#include "sim/io_sim_node.h"
#include "tests/io/iotest.h"

#define SECTOR IO_ALIGN
#define PART   512u

static struct io *open_sim(uint64_t seed)
{
    struct io *io;
    assert_int_equal(io_sim_open(&(struct io_sim_opts){.seed = seed}, &io, NULL), 0);
    return io;
}

static struct io_file *open_file(struct io *io, const char *path, unsigned flags)
{
    struct io_file *f;
    struct err err = {0};
    if (io_file_open(io, path, flags, &f, &err) != 0)
        fail_msg("%s", err.msg);
    return f;
}

static void power_cycle(struct io *io)
{
    io_sim_crash(io);
    assert_true(io_sim_crashed(io));
    io_sim_restart(io);
}

static void add_fault(struct io *io, struct io_sim_fault fault)
{
    assert_int_equal(io_sim_fault_add(io, &fault), 0);
}

/* ---- Crashes ----------------------------------------------------------------------------- */

TEST(test_synced_data_survive)
{
    uint8_t a[3 * SECTOR], b[3 * SECTOR], in[3 * SECTOR];
    iotest_fill(a, sizeof a, 1);
    iotest_fill(b, sizeof b, 2);
    for (uint64_t seed = 0; seed < 50; seed++) {
        struct io *io = open_sim(seed);
        struct io_file *f = open_file(io, "/f", IO_CREATE);
        assert_int_equal(io_file_pwrite(f, a, sizeof a, 0, NULL), 0);
        assert_int_equal(io_file_sync(f, NULL), 0);
        assert_int_equal(io_dir_sync(io, "/", NULL), 0);
        /* Data that were not synced follow synced data, and must not harm these. */
        assert_int_equal(io_file_pwrite(f, b, sizeof b, sizeof a, NULL), 0);
        assert_int_equal(io_mkdir(io, "/d", NULL), 0);
        power_cycle(io);
        /* every operation fails until the disk is restarted */
        assert_int_equal(io_file_pread(f, in, 1, 0, NULL), ERR_CRASHED);
        assert_int_equal(io_file_unlock(f, NULL), ERR_CRASHED);
        io_file_close(f);
        f = open_file(io, "/f", 0);
        assert_int_equal(io_file_pread(f, in, sizeof in, 0, NULL), 0);
        assert_memory_equal(in, a, sizeof in);
        io_file_close(f);
        io_close(io);
    }
}

/* Counts sectors by their contents after a crash. Each sector held `old` durably and was then
 * overwritten by `new`. */
struct tally {
    unsigned old, new, torn, garbage;
    /* of `garbage`: sectors with garbage in one part, and in all of the sector */
    unsigned garbage_part, garbage_all;
};

static void tally_sector(const uint8_t *p, const uint8_t *old, const uint8_t *new,
                         struct tally *t)
{
    unsigned n_old = 0, n_new = 0;
    for (unsigned at = 0; at < SECTOR; at += PART) {
        n_old += memcmp(p + at, old + at, PART) == 0;
        n_new += memcmp(p + at, new + at, PART) == 0;
    }
    t->old += n_old == SECTOR / PART;
    t->new += n_new == SECTOR / PART;
    t->garbage += n_old + n_new < SECTOR / PART;
    t->garbage_part += n_old + n_new == SECTOR / PART - 1;
    t->garbage_all += n_old + n_new == 0;
    t->torn += n_old + n_new == SECTOR / PART && n_old > 0 && n_new > 0;
}

TEST(test_unsynced_sectors_take_every_fate)
{
    enum { N = 8 };
    uint8_t a[N * SECTOR], b[N * SECTOR], in[N * SECTOR];
    struct tally t = {0};
    iotest_fill(a, sizeof a, 1);
    iotest_fill(b, sizeof b, 2);
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct io *io = open_sim(seed);
        struct io_file *f = open_file(io, "/f", IO_CREATE);
        io_file_pwrite(f, a, sizeof a, 0, NULL);
        io_file_sync(f, NULL);
        io_dir_sync(io, "/", NULL);
        io_file_pwrite(f, b, sizeof b, 0, NULL);
        assert_int_equal(io_file_pread(f, in, sizeof in, 0, NULL), 0);
        assert_memory_equal(in, b, sizeof in); /* a read returns unsynced data at once */
        power_cycle(io);
        io_file_close(f);
        f = open_file(io, "/f", 0);
        assert_int_equal(io_file_pread(f, in, sizeof in, 0, NULL), 0);
        for (unsigned i = 0; i < N; i++)
            tally_sector(in + i * SECTOR, a + i * SECTOR, b + i * SECTOR, &t);
        io_file_close(f);
        io_close(io);
    }
    assert_int_equal(t.old + t.new + t.torn + t.garbage, 200 * N);
    assert_true(t.old > 100 && t.new > 100 && t.torn > 20 && t.garbage > 20);
    /* Garbage covers either a whole sector or one part of a sector. */
    assert_true(t.garbage_part > 5 && t.garbage_all > 5);
    assert_int_equal(t.garbage_part + t.garbage_all, t.garbage);
}

/* The same holds for a sector that is not the file's first one. The sectors before it stay. */
TEST(test_unsynced_sectors_behind_others)
{
    enum { N = 4, LAST = (N - 1) * SECTOR };
    uint8_t a[N * SECTOR], b[SECTOR], in[N * SECTOR];
    struct tally t = {0};
    iotest_fill(a, sizeof a, 1);
    iotest_fill(b, sizeof b, 2);
    for (uint64_t seed = 0; seed < 50; seed++) {
        struct io *io = open_sim(seed);
        struct io_file *f = open_file(io, "/f", IO_CREATE);
        io_file_pwrite(f, a, sizeof a, 0, NULL);
        io_file_sync(f, NULL);
        io_dir_sync(io, "/", NULL);
        io_file_pwrite(f, b, sizeof b, LAST, NULL);
        power_cycle(io);
        io_file_close(f);
        f = open_file(io, "/f", 0);
        assert_int_equal(io_file_pread(f, in, sizeof in, 0, NULL), 0);
        assert_memory_equal(in, a, LAST);
        tally_sector(in + LAST, a + LAST, b, &t);
        io_file_close(f);
        io_close(io);
    }
    assert_true(t.old > 5 && t.new > 5 && t.torn > 0);
}

TEST(test_length_needs_sync_too)
{
    unsigned n_short = 0, n_long = 0, n_between = 0;
    uint8_t b[2 * SECTOR];
    iotest_fill(b, sizeof b, 1);
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct io *io = open_sim(seed);
        struct io_file *f = open_file(io, "/f", IO_CREATE);
        io_dir_sync(io, "/", NULL);
        io_file_pwrite(f, b, sizeof b, 0, NULL);
        power_cycle(io);
        struct io_stat st;
        assert_int_equal(io_stat(io, "/f", &st, NULL), 0);
        n_short += st.size_bytes == 0;
        n_long += st.size_bytes == sizeof b;
        n_between += st.size_bytes == SECTOR;
        io_file_close(f);
        io_close(io);
    }
    assert_true(n_short > 10 && n_long > 10 && n_between > 0);
}

/* A hole and then a cut were not synced. A crash drops both, keeps the older one, or keeps any of
 * them, as its mode says. */
TEST(test_cuts_and_holes_need_sync_too)
{
    /* [was the hole made][was the file cut] */
    static const bool may_be[][2][2] = {[SIM_CRASH_DROP] = {{true, false}, {false, false}},
                                        [SIM_CRASH_PREFIX] = {{true, false}, {true, true}},
                                        [SIM_CRASH_MIX] = {{true, true}, {true, true}},
                                        [SIM_CRASH_GARBAGE] = {{true, true}, {true, true}}};
    uint8_t b[2 * SECTOR];
    struct rng rng = {.s = 1};
    iotest_fill(b, sizeof b, 1);
    struct sim_node *n = sim_node_create(false, NULL);
    sim_node_change(n, SIM_WRITE, b, 0, sizeof b);
    sim_node_sync(n);
    sim_node_change(n, SIM_PUNCH, NULL, 0, SECTOR);
    sim_node_change(n, SIM_TRUNCATE, NULL, SECTOR, 0);
    for (int mode = SIM_CRASH_DROP; mode <= SIM_CRASH_GARBAGE; mode++) {
        bool was[2][2] = {{false}};
        for (int i = 0; i < 64; i++) {
            struct sim_node *after = sim_node_after_crash(n, (enum sim_crash_mode)mode,
                                                          &rng, NULL);
            was[after->current.allocated[0] == 0][after->current.size == SECTOR] = true;
            sim_node_unref(after);
        }
        assert_memory_equal(was, may_be[mode], sizeof was);
    }
    sim_node_unref(n);
}

TEST(test_names_need_their_own_sync)
{
    unsigned n_lost = 0, n_kept = 0, n_old = 0, n_new = 0, n_undead = 0;
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct io *io = open_sim(seed);
        /* io_mkdirs syncs the folders that it makes */
        assert_int_equal(io_mkdirs(io, "/d/e", NULL, NULL), 0);
        struct io_file *f = open_file(io, "/d/e/created", IO_CREATE);
        io_file_pwrite(f, "x", 1, 0, NULL);
        io_file_sync(f, NULL); /* syncing the file alone does not suffice */
        io_file_close(f);
        io_file_close(open_file(io, "/d/deleted", IO_CREATE));
        io_file_close(open_file(io, "/d/old", IO_CREATE));
        io_dir_sync(io, "/d", NULL);
        io_unlink(io, "/d/deleted", NULL);
        io_rename(io, "/d/old", "/d/new", NULL);
        power_cycle(io);
        assert_true(io_exists(io, "/d/e"));
        n_lost += !io_exists(io, "/d/e/created");
        n_kept += io_exists(io, "/d/e/created");
        n_undead += io_exists(io, "/d/deleted");
        n_old += io_exists(io, "/d/old");
        n_new += io_exists(io, "/d/new");
        /* renaming is atomic */
        assert_true(io_exists(io, "/d/old") != io_exists(io, "/d/new"));
        io_close(io);
    }
    assert_true(n_lost > 10 && n_kept > 10 && n_undead > 10 && n_old > 10 && n_new > 10);
}

TEST(test_a_lost_folder_takes_its_files)
{
    unsigned n_lost = 0;
    for (uint64_t seed = 0; seed < 30; seed++) {
        struct io *io = open_sim(seed);
        io_mkdir(io, "/d", NULL); /* "/" is never synced */
        io_file_close(open_file(io, "/d/f", IO_CREATE));
        io_dir_sync(io, "/d", NULL);
        power_cycle(io);
        assert_true(io_exists(io, "/d") == io_exists(io, "/d/f"));
        n_lost += !io_exists(io, "/d");
        io_close(io);
    }
    assert_true(n_lost > 0 && n_lost < 30);
}

/* Makes 11 operations, 3 of them barriers. Returns 0, or the error of the first failing operation
 * after the opening. A crash in the first two operations returns 0, too. */
static int history(struct io *io)
{
    uint8_t b[3 * SECTOR];
    struct io_file *f;
    iotest_fill(b, sizeof b, 9);
    if (io_mkdir(io, "/h", NULL) != 0 || io_file_open(io, "/h/f", IO_CREATE, &f, NULL) != 0)
        return 0;
    int rc = io_file_pwrite(f, b, sizeof b, 0, NULL);
    rc = rc != 0 ? rc : io_file_sync(f, NULL);
    rc = rc != 0 ? rc : io_dir_sync(io, "/h", NULL);
    rc = rc != 0 ? rc : io_dir_sync(io, "/", NULL);
    rc = rc != 0 ? rc : io_file_pwrite(f, b, sizeof b, 100, NULL);
    rc = rc != 0 ? rc : io_file_truncate(f, 9000, NULL);
    rc = rc != 0 ? rc : io_rename(io, "/h/f", "/h/g", NULL);
    rc = rc != 0 ? rc : io_file_punch(f, 0, SECTOR, NULL);
    rc = rc != 0 ? rc : io_unlink(io, "/h/g", NULL);
    io_file_close(f);
    return rc;
}

TEST(test_crash_at)
{
    struct io *io = open_sim(3);
    assert_int_equal(history(io), 0);
    assert_int_equal(io_sim_count(io, IO_SIM_AT_OP), 11);
    assert_int_equal(io_sim_count(io, IO_SIM_AT_BARRIER), 3);
    io_close(io);
    for (uint64_t n = 1; n <= 11; n++) {
        io = open_sim(3);
        io_sim_crash_at(io, IO_SIM_AT_OP, n);
        int rc = history(io);
        /* a crash in operation 1 or 2 (mkdir, open) makes history() return 0 */
        assert_true(rc == ERR_CRASHED || (rc == 0 && n <= 2));
        assert_true(io_sim_crashed(io));
        assert_int_equal(io_sim_count(io, IO_SIM_AT_OP), n);
        struct io_file *f;
        assert_int_equal(io_file_open(io, "/new", IO_CREATE, &f, NULL), ERR_CRASHED);
        io_sim_restart(io);
        if (n > 7) /* by then the folders and the first content are durable */
            assert_true(io_exists(io, "/h"));
        io_close(io);
    }
    io = open_sim(3);
    io_sim_crash_at(io, IO_SIM_AT_BARRIER, 2);
    assert_int_equal(history(io), ERR_CRASHED);
    assert_int_equal(io_sim_count(io, IO_SIM_AT_BARRIER), 2);
    io_sim_restart(io);
    io_sim_crash_at(io, IO_SIM_AT_OP, 1);
    io_sim_crash_at(io, IO_SIM_AT_OP, 0); /* disarmed */
    assert_int_equal(io_mkdir(io, "/x", NULL), 0);
    io_close(io);
}

TEST(test_deterministic)
{
    unsigned n_different = 0;
    for (uint64_t n = 3; n <= 11; n++) {
        uint64_t digest[3];
        for (uint64_t i = 0; i < 3; i++) {
            struct io *io = open_sim(i < 2 ? 77 : 78);
            io_sim_crash_at(io, IO_SIM_AT_OP, n);
            history(io);
            digest[i] = io_sim_digest(io);
            io_close(io);
        }
        assert_true(digest[0] == digest[1]);
        n_different += digest[0] != digest[2];
    }
    assert_true(n_different > 2);
}

TEST(test_fork)
{
    struct io *io = open_sim(1), *image, *same;
    struct io_file *f = open_file(io, "/f", IO_CREATE);
    uint8_t a[2 * SECTOR], in[2 * SECTOR];
    iotest_fill(a, sizeof a, 1);
    io_file_pwrite(f, a, sizeof a, 0, NULL);
    io_file_sync(f, NULL);
    io_dir_sync(io, "/", NULL);
    uint64_t durable = io_sim_digest(io);
    memset(in, 0, sizeof in);
    io_file_pwrite(f, in, sizeof in, 0, NULL);
    unsigned n_different = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        assert_int_equal(io_sim_fork(io, seed, &image, NULL), 0);
        assert_int_equal(io_sim_fork(io, seed, &same, NULL), 0);
        assert_true(io_sim_digest(image) == io_sim_digest(same));
        n_different += io_sim_digest(image) != durable;
        io_close(same);
        io_close(image);
    }
    assert_true(n_different > 3);
    assert_true(io_sim_digest(io) == durable); /* forks leave the original disk unchanged */
    assert_int_equal(io_file_pread(f, in, sizeof in, 0, NULL), 0);
    io_file_close(f);
    io_close(io);
}

TEST(test_crash_with_requests_under_way)
{
    enum { N = 6 };
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct io *io = open_sim(seed);
        struct io_file *f = open_file(io, "/f", IO_CREATE);
        struct io_queue *q;
        uint8_t b[SECTOR];
        iotest_fill(b, sizeof b, seed);
        assert_int_equal(io_queue_open(io, 4, &q, NULL), 0);
        io_sim_crash_at(io, IO_SIM_AT_OP, 3);
        struct io_req reqs[N], *ptr[N], *done[N];
        for (unsigned i = 0; i < N; i++) {
            reqs[i] = (struct io_req){.file = f,
                                      .op = IO_WRITE,
                                      .buf = b,
                                      .length = SECTOR,
                                      .offset = i * SECTOR};
            ptr[i] = &reqs[i];
        }
        io_queue_submit(q, ptr, N);
        unsigned n, n_crashed = 0;
        assert_int_equal(io_queue_wait(q, N, N, -1, done, &n, NULL), 0);
        assert_int_equal(n, N);
        for (unsigned i = 0; i < N; i++)
            n_crashed += reqs[i].result == ERR_CRASHED;
        assert_int_equal(n_crashed, N - 2);
        io_queue_close(q);
        io_file_close(f);
        io_close(io);
    }
}

/* ---- Faults ------------------------------------------------------------------------------ */

TEST(test_fault_rules)
{
    struct io *io = open_sim(1);
    struct io_file *f = open_file(io, "/data", IO_CREATE),
                   *g = open_file(io, "/other", IO_CREATE);
    add_fault(io, (struct io_sim_fault){.kind = IO_SIM_FAIL,
                                        .on = IO_SIM_ON_WRITE,
                                        .path = "data",
                                        .skip = 1,
                                        .count = 2,
                                        .code = -EROFS});
    int want[] = {0, -EROFS, -EROFS, 0};
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(io_file_pwrite(g, "x", 1, 0, NULL), 0);
        assert_int_equal(io_file_pwrite(f, "x", 1, 0, NULL), want[i]);
    }
    assert_int_equal(io_sim_fault_hits(io), 2);
    io_sim_fault_clear(io);

    add_fault(io, (struct io_sim_fault){
                      .kind = IO_SIM_FAIL, .on = IO_SIM_ON_OPEN, .code = -EMFILE});
    struct io_file *h;
    assert_int_equal(io_file_open(io, "/data", 0, &h, NULL), -EMFILE);
    io_sim_fault_clear(io);
    add_fault(io, (struct io_sim_fault){.kind = IO_SIM_FAIL, .on = IO_SIM_ON_NAME});
    assert_int_equal(io_mkdir(io, "/d", NULL), -EIO);
    assert_int_equal(io_file_open(io, "/new", IO_CREATE, &h, NULL), -EIO);
    assert_int_equal(io_unlink(io, "/data", NULL), -EIO);
    assert_int_equal(io_rename(io, "/data", "/d2", NULL), -EIO);
    io_sim_fault_clear(io);
    add_fault(io, (struct io_sim_fault){.kind = IO_SIM_FAIL,
                                        .on = IO_SIM_ON_SPACE | IO_SIM_ON_DIR_SYNC});
    assert_int_equal(io_file_truncate(f, 3, NULL), -EIO);
    assert_int_equal(io_dir_sync(io, "/", NULL), -EIO);
    io_sim_fault_clear(io);
    for (unsigned i = 0; i < 16; i++)
        add_fault(io, (struct io_sim_fault){.kind = IO_SIM_SLOW, .path = "nowhere"});
    assert_int_equal(io_sim_fault_add(io, &(struct io_sim_fault){.kind = IO_SIM_SLOW}),
                     ERR_LIMIT);
    io_file_close(f);
    io_file_close(g);
    io_close(io);
}

TEST(test_lost_and_misdirected_writes)
{
    struct io *io = open_sim(1);
    struct io_file *f = open_file(io, "/f", IO_CREATE | IO_DIRECT);
    size_t n = 20 * SECTOR;
    uint8_t *a = iotest_buffer(n), *b = iotest_buffer(n), *in = iotest_buffer(n);
    iotest_fill(a, n, 1);
    iotest_fill(b, n, 2);
    assert_int_equal(io_file_pwrite(f, a, n, 0, NULL), 0);
    add_fault(io, (struct io_sim_fault){.kind = IO_SIM_LOST});
    assert_int_equal(io_file_pwrite(f, b, SECTOR, 0, NULL), 0);
    io_sim_fault_clear(io);
    assert_int_equal(io_file_pread(f, in, n, 0, NULL), 0);
    assert_memory_equal(in, a, n);

    add_fault(io, (struct io_sim_fault){.kind = IO_SIM_MISDIRECTED});
    assert_int_equal(io_file_pwrite(f, b, SECTOR, 0, NULL), 0);
    assert_int_equal(io_file_pread(f, in, n, 0, NULL), 0);
    assert_memory_equal(in, a, SECTOR);
    unsigned n_hit = 0;
    for (unsigned i = 1; i < 20; i++)
        n_hit += memcmp(in + i * SECTOR, b, SECTOR) == 0;
    assert_int_equal(n_hit, 1);
    io_file_close(f);
    io_close(io);
    free(a);
    free(b);
    free(in);
}

TEST(test_damaged_bits)
{
    struct io *io = open_sim(1);
    struct io_file *f = open_file(io, "/f", IO_CREATE);
    uint8_t b[100] = {0}, in[100], zero[100] = {0};
    assert_int_equal(io_file_pwrite(f, b, sizeof b, 0, NULL), 0);
    add_fault(io, (struct io_sim_fault){.kind = IO_SIM_READ_FLIP, .count = 1});
    assert_int_equal(io_file_pread(f, in, sizeof in, 0, NULL), 0);
    assert_memory_not_equal(in, zero, sizeof in);
    assert_int_equal(io_file_pread(f, in, sizeof in, 0, NULL), 0);
    assert_memory_equal(in, zero, sizeof in);
    io_file_sync(f, NULL);
    io_dir_sync(io, "/", NULL);
    assert_int_equal(io_sim_flip(io, "/f", 42, 3), 0);
    assert_int_equal(io_sim_flip(io, "/f", 100, 3), -EINVAL);
    assert_int_equal(io_sim_flip(io, "/f", 99, 8), -EINVAL);
    assert_int_equal(io_sim_flip(io, "/../f", 0, 3), -EINVAL);
    assert_int_equal(io_sim_flip(io, "/g", 0, 3), -ENOENT);
    power_cycle(io);
    io_file_close(f);
    f = open_file(io, "/f", IO_READ_ONLY);
    assert_int_equal(io_file_pread(f, in, sizeof in, 0, NULL), 0);
    assert_int_equal(in[42], 8);
    io_file_close(f);
    io_close(io);
}

TEST(test_sync_that_fails_and_then_lies)
{
    for (uint64_t seed = 0; seed < 10; seed++) {
        struct io *io = open_sim(seed);
        struct io_file *f = open_file(io, "/f", IO_CREATE), *g = open_file(io, "/f", 0);
        struct err err = {0};
        char c;
        io_dir_sync(io, "/", NULL);
        io_file_pwrite(f, "x", 1, 0, NULL);
        add_fault(io, (struct io_sim_fault){.kind = IO_SIM_SYNC_LIES, .count = 1});
        assert_int_equal(io_file_sync(f, NULL), -EIO);
        /* src/io remembers the first error */
        assert_int_equal(io_file_sync(f, &err), -EIO);
        assert_non_null(strstr(err.msg, "earlier"));
        /* through a new handle the disk reports success */
        assert_int_equal(io_file_sync(g, NULL), 0);
        assert_int_equal(io_file_pread(g, &c, 1, 0, NULL), 0);
        power_cycle(io);
        struct io_stat st;
        assert_int_equal(io_stat(io, "/f", &st, NULL), 0);
        assert_int_equal(st.size_bytes, 0);
        io_file_close(f);
        io_file_close(g);
        io_close(io);
    }
}

TEST(test_slow)
{
    struct io *io = open_sim(1);
    add_fault(io,
              (struct io_sim_fault){.kind = IO_SIM_SLOW, .slow_ns = 5000000, .count = 2});
    int64_t t0 = clock_now_ns();
    assert_int_equal(io_mkdir(io, "/a", NULL), 0);
    assert_int_equal(io_mkdir(io, "/b", NULL), 0);
    assert_true(clock_now_ns() - t0 >= 10000000);
    io_close(io);
}

TEST(test_capacity)
{
    struct io *io;
    struct io_sim_opts opts = {.seed = 1, .capacity_bytes = 10 * SECTOR};
    assert_int_equal(io_sim_open(&opts, &io, NULL), 0);
    struct io_file *f = open_file(io, "/f", IO_CREATE), *g = open_file(io, "/g", IO_CREATE);
    uint8_t b[6 * SECTOR] = {1};
    uint64_t free_bytes, total_bytes;
    assert_int_equal(io_file_pwrite(f, b, 6 * SECTOR, 0, NULL), 0);
    assert_int_equal(io_file_pwrite(g, b, 6 * SECTOR, 0, NULL), -ENOSPC);
    assert_int_equal(io_file_pwrite(g, b, 4 * SECTOR, 0, NULL), 0);
    /* overwrites the file's present space */
    assert_int_equal(io_file_pwrite(f, b, 6 * SECTOR, 0, NULL), 0);
    assert_int_equal(io_space(io, "/", &free_bytes, &total_bytes, NULL), 0);
    assert_int_equal(free_bytes, 0);
    assert_int_equal(total_bytes, 10 * SECTOR);
    assert_int_equal(io_file_punch(f, 0, 2 * SECTOR, NULL), 0);
    assert_int_equal(io_file_truncate(f, 5 * SECTOR, NULL), 0);
    io_space(io, "/", &free_bytes, &total_bytes, NULL);
    assert_int_equal(free_bytes, 3 * SECTOR);
    struct io_stat st;
    assert_int_equal(io_stat(io, "/f", &st, NULL), 0);
    assert_int_equal(st.allocated_bytes, 3 * SECTOR);
    assert_int_equal(io_file_allocate(g, 0, 8 * SECTOR, NULL), -ENOSPC);
    assert_int_equal(io_file_allocate(g, 0, 7 * SECTOR, NULL), 0);
    assert_int_equal(io_unlink(io, "/g", NULL), 0);
    io_space(io, "/", &free_bytes, &total_bytes, NULL);
    assert_int_equal(free_bytes, 0); /* an unlinked file keeps its space while it is open */
    io_file_close(g);
    io_space(io, "/", &free_bytes, &total_bytes, NULL);
    assert_int_equal(free_bytes, 7 * SECTOR);
    /* After a crash the content of f takes its own space only. */
    assert_int_equal(io_file_sync(f, NULL), 0);
    assert_int_equal(io_dir_sync(io, "/", NULL), 0);
    power_cycle(io);
    io_space(io, "/", &free_bytes, &total_bytes, NULL);
    assert_int_equal(free_bytes, 7 * SECTOR);
    io_file_close(f);
    io_close(io);
}

/* ---- Names --------------------------------------------------------------------------------- */

/* io_stat tells folders from files, and one file from another. */
TEST(test_stat)
{
    struct io *io = open_sim(1);
    struct io_stat st, other;
    uint8_t b[3 * SECTOR] = {1};
    assert_int_equal(io_mkdir(io, "/d", NULL), 0);
    struct io_file *f = open_file(io, "/d/f", IO_CREATE);
    struct io_file *g = open_file(io, "/d/g", IO_CREATE);
    assert_int_equal(io_file_pwrite(f, b, 10, 0, NULL), 0);
    assert_int_equal(io_file_pwrite(f, b, 1, 4 * SECTOR, NULL), 0); /* after a hole */
    assert_int_equal(io_stat(io, "/d/f", &st, NULL), 0);
    assert_false(st.is_dir);
    assert_int_equal(st.size_bytes, 4 * SECTOR + 1);
    assert_int_equal(st.allocated_bytes, 2 * SECTOR);
    assert_int_equal(io_stat(io, "/d/g", &other, NULL), 0);
    assert_int_equal(other.size_bytes, 0);
    assert_int_equal(other.allocated_bytes, 0);
    assert_true(other.inode != st.inode && other.inode != 0);
    uint64_t inode = st.inode;
    assert_int_equal(io_rename(io, "/d/f", "/d/h", NULL), 0);
    assert_int_equal(io_stat(io, "/d//h", &st, NULL), 0);
    assert_true(st.inode == inode);
    assert_int_equal(io_stat(io, "/d", &st, NULL), 0);
    assert_true(st.is_dir);
    assert_int_equal(io_stat(io, "/d/f", &st, NULL), -ENOENT);
    io_file_close(f);
    io_file_close(g);
    io_close(io);
}

/* Each operation on a name refuses a name that is missing, is of the wrong kind or leads upwards.
 * It also fails while the disk has no power. */
TEST(test_names_that_are_refused)
{
    struct io *io = open_sim(1);
    struct io_names names = {0};
    struct io_stat st;
    uint64_t free_bytes, total_bytes;
    io_file_close(open_file(io, "/f", IO_CREATE));
    assert_int_equal(io_mkdir(io, "/d", NULL), 0);
    assert_int_equal(io_mkdir(io, "/d", NULL), -EEXIST);
    assert_int_equal(io_list(io, "/f", &names, NULL), -ENOTDIR);
    assert_int_equal(io_list(io, "/none", &names, NULL), -ENOENT);
    assert_int_equal(io_space(io, "/none", &free_bytes, &total_bytes, NULL), -ENOENT);
    assert_int_equal(io_make_private(io, "/none", NULL), -ENOENT);
    assert_int_equal(io_make_private(io, "/f", NULL), 0);
    assert_int_equal(io_unlink(io, "/none", NULL), -ENOENT);
    assert_int_equal(io_rename(io, "/none", "/f", NULL), -ENOENT);
    assert_int_equal(io_dir_sync(io, "/none", NULL), -ENOENT);
    assert_int_equal(io_unlink(io, "/", NULL), -ENOTEMPTY);
    assert_int_equal(io_dir_sync(io, "/f", NULL), -ENOTDIR);
    static const char *const bad[] = {"..", "/d/../f"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(io_mkdir(io, bad[i], NULL), -EINVAL);
        assert_int_equal(io_unlink(io, bad[i], NULL), -EINVAL);
        assert_int_equal(io_rename(io, bad[i], "/g", NULL), -EINVAL);
        assert_int_equal(io_rename(io, "/f", bad[i], NULL), -EINVAL);
        assert_int_equal(io_stat(io, bad[i], &st, NULL), -EINVAL);
    }
    assert_int_equal(io_list(io, "/", &names, NULL), 0);
    assert_int_equal(names.n, 2);
    io_names_free(&names);
    io_sim_crash(io);
    assert_int_equal(io_stat(io, "/f", &st, NULL), ERR_CRASHED);
    assert_int_equal(io_mkdir(io, "/e", NULL), ERR_CRASHED);
    assert_int_equal(io_rename(io, "/f", "/g", NULL), ERR_CRASHED);
    assert_int_equal(io_list(io, "/", &names, NULL), ERR_CRASHED);
    io_close(io);
}

/* ---- Which operations a fault hits --------------------------------------------------------- */

/* Does one operation of each kind. Their results do not matter here. */
static void do_each(struct io *io, struct io_file *f)
{
    char b[1] = {1};
    struct io_file *again = NULL;
    (void)io_file_pread(f, b, 1, 0, NULL);
    (void)io_file_pwrite(f, b, 1, 0, NULL);
    (void)io_dir_sync(io, "/", NULL);
    (void)io_file_open(io, "/f", 0, &again, NULL);
    (void)io_mkdir(io, "/d", NULL);
    (void)io_file_truncate(f, 1, NULL);
    (void)io_file_sync(f, NULL);
    io_file_close(again);
}

/* Without `on`, a fault hits the operations that its kind can harm. */
TEST(test_what_a_fault_hits)
{
    static const struct {
        enum io_sim_fault_kind kind;
        uint64_t n_hits;
    } kinds[] = {
        {IO_SIM_FAIL, 7},        {IO_SIM_SHORT, 2},     {IO_SIM_LOST, 1},
        {IO_SIM_MISDIRECTED, 1}, {IO_SIM_READ_FLIP, 1}, {IO_SIM_SLOW, 7},
        {IO_SIM_STUCK, 0},       {IO_SIM_SYNC_LIES, 1},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct io *io = open_sim(i);
        struct io_file *f = open_file(io, "/f", IO_CREATE);
        assert_int_equal(io_file_pwrite(f, "xyz", 3, 0, NULL), 0);
        add_fault(io, (struct io_sim_fault){.kind = kinds[i].kind});
        uint64_t before = io_sim_count(io, IO_SIM_AT_OP);
        do_each(io, f);
        uint64_t n = io_sim_count(io, IO_SIM_AT_OP) - before;
        assert_int_equal(n, kinds[i].kind == IO_SIM_FAIL ? 0 : 5);
        assert_int_equal(io_sim_fault_hits(io), kinds[i].n_hits);
        int code = kinds[i].kind == IO_SIM_FAIL ? -EIO : 0;
        assert_int_equal(io_sim_fault_count(io, kinds[i].kind, code), kinds[i].n_hits);
        for (int k = 0; k < IO_SIM_FAULT_KINDS; k++)
            if (k != (int)kinds[i].kind)
                assert_int_equal(io_sim_fault_count(io, (enum io_sim_fault_kind)k, -EIO),
                                 0);
        io_file_close(f);
        io_close(io);
    }
}

/* The first eight codes are counted, each by itself. */
TEST(test_failures_count_by_code)
{
    struct io *io = open_sim(1);
    struct io_file *f = open_file(io, "/f", IO_CREATE);
    for (int code = 1; code <= IO_SIM_MAX_CODES + 1; code++) {
        add_fault(io, (struct io_sim_fault){
                          .kind = IO_SIM_FAIL, .on = IO_SIM_ON_WRITE, .code = -100 - code});
        for (int i = 0; i < code; i++)
            assert_int_equal(io_file_pwrite(f, "x", 1, 0, NULL), -100 - code);
        io_sim_fault_clear(io);
    }
    for (int code = 1; code <= IO_SIM_MAX_CODES + 1; code++)
        assert_int_equal(io_sim_fault_count(io, IO_SIM_FAIL, -100 - code),
                         code <= IO_SIM_MAX_CODES ? code : 0);
    assert_int_equal(io_sim_fault_count(io, IO_SIM_FAIL, -EIO), 0);
    assert_int_equal(io_sim_fault_hits(io), 45);
    io_file_close(f);
    io_close(io);
}

/* ---- Paths, renames and locks ---------------------------------------------------------------- */

static void must_list(struct io *io, const char *path, const char *want)
{
    struct io_names names;
    char said[100] = "";
    assert_int_equal(io_list(io, path, &names, NULL), 0);
    for (size_t i = 0; i < names.n; i++) {
        strcat(said, i > 0 ? " " : "");
        strcat(said, names.name[i]);
    }
    assert_string_equal(said, want);
    io_names_free(&names);
}

TEST(test_paths)
{
    struct io *io = open_sim(1);
    static const char *const folders[] = {"/d", "/dd", "/d/e", "/d/e/"};
    static const char *const files[] = {"/d/f", "/dd/g", "/d/e/h", "/.x", "/..y", "z"};
    for (int i = 0; i < 4; i++)
        assert_int_equal(io_mkdir(io, folders[i], NULL), i < 3 ? 0 : -EEXIST);
    for (int i = 0; i < 6; i++)
        io_file_close(open_file(io, files[i], IO_CREATE));
    must_list(io, "/", "..y .x d dd z");
    must_list(io, "/d", "e f");
    must_list(io, "//dd/.", "g");
    must_list(io, "/d/./e", "h");
    static const char *const there[] = {"/",      "",     "/.",    "//",
                                        "/d/./f", "d//f", "/d/f/", "/z"};
    static const char *const gone[] = {"/d/g", "/e", "/x", "/y", "/dd/f"};
    for (int i = 0; i < 8; i++)
        assert_true(io_exists(io, there[i]));
    for (int i = 0; i < 5; i++)
        assert_false(io_exists(io, gone[i]));
    assert_int_equal(io_unlink(io, "/d/e", NULL), -ENOTEMPTY);
    assert_int_equal(io_unlink(io, "/d/e/h", NULL), 0);
    assert_int_equal(io_unlink(io, "/d/e", NULL), 0);
    must_list(io, "/d", "f");
    io_close(io);
}

/* If a folder cannot be made or its name cannot be synced, no folder of the path is left. */
TEST(test_half_made_folders)
{
    static const unsigned on[] = {IO_SIM_ON_DIR_SYNC, IO_SIM_ON_NAME};
    for (uint64_t i = 0; i < 6; i++) {
        struct io *io = open_sim(1);
        int n_made = 7;
        assert_int_equal(io_mkdir(io, "/there", NULL), 0);
        add_fault(io, (struct io_sim_fault){
                          .kind = IO_SIM_FAIL, .on = on[i % 2], .skip = i / 2, .count = 1});
        assert_int_equal(io_mkdirs(io, "/there/a/b/c", &n_made, NULL), -EIO);
        assert_int_equal(n_made, 0);
        must_list(io, "/there", "");
        assert_int_equal(io_mkdirs(io, "/there/a/b/c", &n_made, NULL), 0);
        assert_int_equal(n_made, 3);
        io_rmdirs(io, "/there/a/b/c", 2);
        must_list(io, "/there", "a");
        must_list(io, "/there/a", "");
        io_close(io);
    }
}

TEST(test_renames)
{
    struct io *io = open_sim(1);
    uint64_t before, after, total;
    uint8_t b[3 * SECTOR] = {1};
    assert_int_equal(io_mkdir(io, "/d", NULL), 0);
    struct io_file *f = open_file(io, "/a", IO_CREATE);
    assert_int_equal(io_file_pwrite(f, b, sizeof b, 0, NULL), 0);
    io_file_close(f);
    f = open_file(io, "/b", IO_CREATE);
    assert_int_equal(io_file_pwrite(f, b, SECTOR, 0, NULL), 0);
    io_file_close(f);
    assert_int_equal(io_space(io, "/", &before, &total, NULL), 0);
    assert_int_equal(total, 1 << 30);
    assert_int_equal(before, (1 << 30) - 4 * SECTOR);
    assert_int_equal(io_rename(io, "/a", "/none/a", NULL), -ENOENT);
    assert_int_equal(io_rename(io, "/a", "/b/a", NULL), -ENOTDIR);
    assert_int_equal(io_rename(io, "/d", "/e", NULL), -EISDIR);
    assert_int_equal(io_rename(io, "/a", "/d", NULL), -EISDIR);
    assert_int_equal(io_rename(io, "/a", "/a", NULL), 0);
    must_list(io, "/", "a b d");
    assert_int_equal(io_rename(io, "/a", "/b", NULL), 0); /* the former b is gone */
    must_list(io, "/", "b d");
    assert_int_equal(io_space(io, "/", &after, &total, NULL), 0);
    assert_int_equal(after - before, SECTOR);
    assert_int_equal(io_rename(io, "/b", "/d/c", NULL), 0);
    must_list(io, "/d", "c");
    io_close(io);
}

/* A folder's sync leaves changes in other folders as they are. */
TEST(test_a_folder_is_synced_alone)
{
    unsigned n_lost = 0;
    for (uint64_t seed = 0; seed < 30; seed++) {
        struct io *io = open_sim(seed);
        assert_int_equal(io_mkdirs(io, "/a", NULL, NULL), 0);
        assert_int_equal(io_mkdirs(io, "/b", NULL, NULL), 0);
        for (int i = 0; i < 3; i++) {
            char path[] = "/a/0";
            path[3] = (char)('0' + i);
            io_file_close(open_file(io, path, IO_CREATE));
            path[1] = 'b';
            io_file_close(open_file(io, path, IO_CREATE));
        }
        assert_int_equal(io_dir_sync(io, "/a", NULL), 0);
        io_file_close(open_file(io, "/a/3", IO_CREATE));
        assert_int_equal(io_dir_sync(io, "/a", NULL), 0);
        power_cycle(io);
        must_list(io, "/a", "0 1 2 3");
        struct io_names names;
        assert_int_equal(io_list(io, "/b", &names, NULL), 0);
        n_lost += names.n < 3;
        io_names_free(&names);
        io_close(io);
    }
    assert_true(n_lost > 5);
}

TEST(test_locks)
{
    struct io *io = open_sim(1);
    struct io_file *w = open_file(io, "/f", IO_CREATE), *r[2];
    for (int i = 0; i < 2; i++) {
        r[i] = open_file(io, "/f", IO_READ_ONLY);
        assert_int_equal(io_file_lock(r[i], NULL), 0);
        assert_int_equal(io_file_lock(r[i], NULL), 0); /* has the lock already */
    }
    assert_int_equal(io_file_lock(w, NULL), ERR_BUSY);
    assert_int_equal(io_file_unlock(r[0], NULL), 0);
    assert_int_equal(io_file_unlock(r[0], NULL), 0);
    assert_int_equal(io_file_lock(w, NULL), ERR_BUSY);
    io_file_close(r[1]);
    assert_int_equal(io_file_lock(w, NULL), 0);
    assert_int_equal(io_file_lock(r[0], NULL), ERR_BUSY);
    assert_int_equal(io_file_truncate(r[0], 1, NULL), -EBADF);
    assert_int_equal(io_file_allocate(r[0], 0, 1, NULL), -EBADF);
    assert_int_equal(io_file_punch(r[0], 0, SECTOR, NULL), -EBADF);
    assert_int_equal(io_dir_sync(io, "/", NULL), 0);
    power_cycle(io); /* ends all locks */
    struct io_file *again = open_file(io, "/f", 0);
    assert_int_equal(io_file_lock(r[0], NULL), ERR_CRASHED);
    assert_int_equal(io_file_lock(again, NULL), 0);
    io_file_close(again);
    io_file_close(w);
    io_file_close(r[0]);
    io_close(io);
}

/* A file that was cut and grown again reads as zeros behind the cut, and its space is free. */
TEST(test_cut_and_grown)
{
    static const uint64_t cuts[] = {0, 1, SECTOR - 1, SECTOR, SECTOR + 1, 2 * SECTOR};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        struct io *io = open_sim(1);
        struct io_file *f = open_file(io, "/f", IO_CREATE);
        uint8_t b[3 * SECTOR], want[3 * SECTOR], in[3 * SECTOR];
        struct io_stat st;
        iotest_fill(b, sizeof b, 3);
        memset(want, 0, sizeof want);
        memcpy(want, b, cuts[i]);
        assert_int_equal(io_file_pwrite(f, b, sizeof b, 0, NULL), 0);
        assert_int_equal(io_file_truncate(f, cuts[i], NULL), 0);
        assert_int_equal(io_stat(io, "/f", &st, NULL), 0);
        assert_int_equal(st.size_bytes, cuts[i]);
        assert_int_equal(st.allocated_bytes, (cuts[i] + SECTOR - 1) / SECTOR * SECTOR);
        assert_int_equal(io_file_truncate(f, sizeof b, NULL), 0);
        assert_int_equal(io_file_pread(f, in, sizeof in, 0, NULL), 0);
        assert_memory_equal(in, want, sizeof in);
        assert_int_equal(io_file_allocate(f, SECTOR, 4 * SECTOR, NULL), 0);
        assert_int_equal(io_stat(io, "/f", &st, NULL), 0);
        assert_int_equal(st.size_bytes, 5 * SECTOR);
        assert_int_equal(st.allocated_bytes, (4 + (cuts[i] > 0)) * SECTOR);
        io_file_close(f);
        io_close(io);
    }
}

/* The seed decides random bytes. */
TEST(test_random_bytes)
{
    uint8_t b[3][17] = {{0}};
    for (uint64_t i = 0; i < 3; i++) {
        struct io *io = open_sim(i / 2);
        assert_int_equal(io_random(io, b[i], 16, NULL), 0);
        assert_int_equal(b[i][16], 0);
        io_close(io);
    }
    assert_memory_equal(b[0], b[1], 16);
    assert_memory_not_equal(b[0], b[2], 16);
}

/* ---- Threads ----------------------------------------------------------------------------- */

static void *hammer(void *arg)
{
    struct io *io = arg;
    char path[32];
    uint8_t b[600];
    static _Atomic unsigned n;
    unsigned me = n++;
    snprintf(path, sizeof path, "/t%u", me);
    struct io_file *f;
    if (io_file_open(io, path, IO_CREATE, &f, NULL) != 0)
        return NULL; /* the other threads have used up all operations before the crash */
    for (unsigned i = 0; i < 300; i++) {
        iotest_fill(b, sizeof b, me + i);
        if (io_file_pwrite(f, b, sizeof b, i * 100, NULL) != 0)
            break;
        if (i % 50 == 0 && io_file_sync(f, NULL) != 0)
            break;
    }
    io_file_close(f);
    return NULL;
}

TEST(test_threads)
{
    struct io *io = open_sim(1);
    pthread_t t[4];
    io_sim_crash_at(io, IO_SIM_AT_OP, 900);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, hammer, io), 0);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    assert_true(io_sim_crashed(io));
    assert_int_equal(io_sim_count(io, IO_SIM_AT_OP), 900);
    io_close(io);
}
