/* test_superblocks.c - damaged copies of a superblock, and formats of other versions. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "sim/io_sim.h"
#include "storetest.h"
#include "store/superblock.h"

enum { N = 3 };
static const struct st_shape shape = {.n_layers = 2, .n_bytes = {600, 1000}};
static const struct st_ctx saved = {.base = 1, .own = 2, .branch = 2};

/* Saves a context in a new store of two directories on a simulated disk. */
static void place_make(struct st_place *p, uint64_t seed)
{
    assert_true(st_place_open(p, "sim", 2));
    io_close(p->io);
    assert_int_equal(io_sim_open(&(struct io_sim_opts){.seed = seed}, &p->io, NULL), 0);
    p->opts.io = p->io;
    struct store *s = st_open(p);
    assert_int_equal(st_save(s, &shape, &saved, N, ST_BOTH, NULL), 0);
    store_close(s);
}

static void reads(struct store *s, const struct st_ctx *c)
{
    struct st_result r;
    assert_int_equal(st_read(s, &shape, c, N, &r, NULL), 0);
    assert_int_equal(r.n_found, N);
    assert_int_equal(r.n_records, N * 4);
    assert_int_equal(r.n_wrong + r.n_corrupt + r.n_unread, 0);
}

static void both_copies_hold(struct io *io, const char *path)
{
    uint8_t b[SUPERBLOCK_FILE_BYTES];
    struct superblock sb;
    struct io_file *f;
    assert_int_equal(io_file_open(io, path, IO_READ_ONLY, &f, NULL), 0);
    assert_int_equal(io_file_pread(f, b, sizeof b, 0, NULL), 0);
    io_file_close(f);
    assert_int_equal(superblock_decode(b, &sb, NULL), 0);
    assert_memory_equal(b, b + SUPERBLOCK_BYTES, SUPERBLOCK_BYTES);
}

/* A damaged copy of the superblock is rewritten at the first opening for writing, wherever power
 * fails meanwhile. The next damage may hit the other copy. */
TEST(a_damaged_copy_is_mended)
{
    uint64_t n_crashes = 0;
    for (int copy = 0; copy < 2; copy++) {
        bool crashed = true;
        for (uint64_t n = 1; crashed; n++) {
            struct st_place p;
            struct store *s = NULL;
            struct err err = {0};
            place_make(&p, 1000 + n);
            assert_int_equal(io_sim_flip(p.io, "/st/d1/superblock",
                                         (uint64_t)copy * SUPERBLOCK_BYTES + 100, 3),
                             0);
            io_sim_crash_at(p.io, IO_SIM_AT_OP, n);
            if (store_open(&p.opts, &s, &err) == 0)
                store_close(s);
            crashed = io_sim_crashed(p.io);
            n_crashes += crashed;
            if (!crashed) {
                io_sim_crash_at(p.io, IO_SIM_AT_OP, 0);
                both_copies_hold(p.io, "/st/d1/superblock");
                io_sim_crash(p.io); /* shows that the rewritten copy is durable */
            }
            io_sim_restart(p.io);
            if (!crashed)
                both_copies_hold(p.io, "/st/d1/superblock");
            s = st_open(&p);
            both_copies_hold(p.io, "/st/d1/superblock");
            reads(s, &saved);
            st_close(s, &p);
        }
    }
    print_message("mending a superblock: power failed at each of %llu operations\n",
                  (unsigned long long)n_crashes);
    /* For each copy, power fails before and after its write and its sync. */
    assert_true(n_crashes >= 4);
}

/* If the damaged copy cannot be rewritten, the store works with the other one. Opening for reading
 * rewrites nothing. */
TEST(a_copy_that_cannot_be_mended)
{
    struct st_place p;
    struct store_verify v;
    struct io_sim_fault fault = {.kind = IO_SIM_FAIL,
                                 .on = IO_SIM_ON_WRITE,
                                 .path = "superblock",
                                 .code = -EIO,
                                 .count = 1};
    place_make(&p, 3);
    assert_int_equal(io_sim_flip(p.io, "/st/d0/superblock", 50, 1), 0);
    p.opts.read_only = true;
    struct store *s = st_open(&p);
    assert_int_equal(store_verify(s, &v, NULL, NULL, NULL, NULL), 0);
    assert_int_equal(v.n_bad, 1);
    store_close(s);
    p.opts.read_only = false;
    assert_int_equal(io_sim_fault_add(p.io, &fault), 0);
    for (int n_bad = 1; n_bad >= 0; n_bad--) {
        s = st_open(&p);
        reads(s, &saved);
        assert_int_equal(store_verify(s, &v, NULL, NULL, NULL, NULL), 0);
        assert_int_equal(v.n_bad, n_bad);
        store_close(s);
        io_sim_fault_clear(p.io);
    }
    st_place_close(&p);
}

/* An index of another version is refused with its number and not changed. */
TEST(other_index_versions)
{
    for (uint32_t version = 0; version < 4; version++) {
        if (version == 2)
            continue;
        struct st_place p;
        struct store *s = NULL;
        struct err err = {0};
        uint8_t uuid[16], all[16384];
        char text[64];
        struct io_file *f;
        place_make(&p, version + 1);
        assert_int_equal(io_file_open(p.io, "/st/d0/superblock", 0, &f, NULL), 0);
        assert_int_equal(io_file_pread(f, uuid, sizeof uuid, 24, NULL), 0);
        io_file_close(f);
        assert_int_equal(io_file_open(p.io, "/st/d0/index.db", 0, &f, NULL), 0);
        assert_int_equal(io_file_pread(f, all, sizeof all, 0, NULL), 0);
        uint8_t *meta = memmem(all, sizeof all, uuid, sizeof uuid);
        assert_non_null(meta);
        meta -= 16;
        put_u32(meta + 8, version);
        put_u64(meta, checksum64(meta + 8, 56));
        assert_int_equal(io_file_pwrite(f, all, sizeof all, 0, NULL), 0);
        assert_int_equal(io_file_sync(f, NULL), 0);
        io_file_close(f);
        assert_int_equal(store_open(&p.opts, &s, &err), ERR_UNSUPPORTED);
        snprintf(text, sizeof text, "version %u", version);
        assert_non_null(strstr(err.msg, text));
        uint8_t after[sizeof all];
        assert_int_equal(io_file_open(p.io, "/st/d0/index.db", 0, &f, NULL), 0);
        assert_int_equal(io_file_pread(f, after, sizeof after, 0, NULL), 0);
        assert_memory_equal(after, all, sizeof all);
        io_file_close(f);
        st_place_close(&p);
    }
}
