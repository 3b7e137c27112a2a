/* test_reserve.c - a full disk: erasing and gc use the reserve and free space, saving does not use
 * the reserve, and opening works. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit.h"
#include "base/mem.h"
#include "sim/io_sim.h"
#include "storetest.h"
#include "store/home.h"

enum { N = 6, DISK_BYTES = 8 << 20 };

static const struct st_ctx kept = {.base = 1, .own = 1}, gone = {.base = 2, .own = 2},
                           later = {.base = 3, .own = 3};

/* A simulated disk of 8 MiB with two saved contexts. */
static struct store *small_disk(struct st_place *p)
{
    struct err err = {0};
    assert_true(st_place_open(p, "sim", 1));
    io_close(p->io);
    assert_int_equal(
        io_sim_open(&(struct io_sim_opts){.seed = 1, .capacity_bytes = DISK_BYTES}, &p->io,
                    &err),
        0);
    p->opts.io = p->io;
    struct store *s = st_open(p);
    assert_int_equal(st_save(s, &st_small, &kept, N, ST_BOTH, &err), 0);
    assert_int_equal(st_save(s, &st_small, &gone, N, ST_BOTH, &err), 0);
    return s;
}

/* Takes all blocks that are left. */
static void fill(const struct st_place *p)
{
    static const uint8_t block[STORE_ALIGN];
    struct io_file *f;
    struct err err = {0};
    assert_int_equal(io_file_open(p->io, "/ballast", IO_CREATE, &f, &err), 0);
    for (uint64_t at = 0; io_file_pwrite(f, block, sizeof block, at, &err) == 0;
         at += sizeof block)
        ;
    assert_int_equal(err.code, -ENOSPC);
    io_file_close(f);
}

static bool has_reserve(const struct st_place *p)
{
    struct io_stat st;
    char path[600];
    snprintf(path, sizeof path, "%s/" HOME_RESERVE_FILE, p->dirs[0]);
    return io_stat(p->io, path, &st, NULL) == 0 && st.allocated_bytes > 0;
}

static void drop_reserve(const struct st_place *p)
{
    assert_true(home_release_reserve(p->io, p->dirs[0]));
}

static int erase(struct store *s, const struct st_ctx *c, struct err *err)
{
    struct sha256 keys[N];
    struct store_erased e;
    st_keys(c, N, keys);
    return store_erase(s, keys, N, &e, err);
}

TEST(erasing_works)
{
    for (int with = 0; with < 2; with++) {
        struct st_place p;
        struct err err = {0};
        struct store *s = small_disk(&p);
        assert_true(has_reserve(&p));
        store_close(s);
        if (!with)
            drop_reserve(&p);
        fill(&p);
        s = NULL; /* the first transaction folds the log, which takes space */
        if (store_open(&p.opts, &s, &err) != 0)
            fail_msg("%s", err.msg);
        int rc = st_save(s, &st_small, &later, N, ST_BOTH, &err);
        assert_int_equal(rc, -ENOSPC);
        assert_int_equal(has_reserve(&p), with); /* saving does not use the reserve */
        rc = erase(s, &gone, &err);
        if (with && rc != 0)
            fail_msg("%s", err.msg);
        print_message("erasing on a full disk %s a reserve: %s\n",
                      with ? "with" : "without", err_name(rc));
        if (with) {
            assert_int_equal(st_n_right(s, &gone, N), 0);
            assert_int_equal(st_n_right(s, &kept, N), N);
        }
        st_close(s, &p);
    }
}

TEST(gc_works)
{
    struct st_place p;
    struct err err = {0};
    uint64_t freed;
    struct store *s = small_disk(&p);
    store_close(s);
    fill(&p);
    s = st_open(&p);
    if (store_gc(s, &freed, &err) != 0)
        fail_msg("%s", err.msg);
    assert_true(freed > 0); /* gives back the space after the last extent */
    assert_int_equal(st_n_right(s, &kept, N) + st_n_right(s, &gone, N), 2 * N);
    assert_true(has_reserve(&p));
    st_close(s, &p);
}

/* The cap is below the bytes stored, and on a full disk the index cannot remove rows. Even so the
 * store opens. */
TEST(a_lower_cap_waits)
{
    struct st_place p;
    struct err err = {0};
    struct store_stats st;
    struct store *s = small_disk(&p);
    store_stats(s, &st);
    store_close(s);
    drop_reserve(&p);
    fill(&p);
    struct store_opts opts = p.opts;
    opts.cap_bytes = st.used_bytes / 2;
    if (store_open(&opts, &s, &err) != 0)
        fail_msg("%s", err.msg);
    store_close(s);
    assert_int_equal(io_unlink(p.io, "/ballast", &err), 0);
    assert_int_equal(store_open(&opts, &s, &err), 0);
    store_stats(s, &st);
    assert_true(st.used_bytes <= opts.cap_bytes);
    st_close(s, &p);
}

/* The reserve takes 1/32 of the disk or of the cap, whole blocks, and at most 1 MiB. */
TEST(its_size)
{
    enum { MIB = 1 << 20 };
    static const struct {
        uint64_t disk_bytes, cap_bytes, reserve_bytes;
    } cases[] = {
        {8 * MIB, 0, MIB / 4},
        {64 * MIB, 0, MIB},
        {64 * MIB, 16 * MIB, MIB / 2},
        {8 * MIB, 16 * MIB, MIB / 4},
        {64 * MIB, 2 * MIB + 4095 * 32, MIB / 16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct st_place p;
        struct err err = {0};
        struct io_stat st;
        assert_true(st_place_open(&p, "sim", 1));
        io_close(p.io);
        assert_int_equal(
            io_sim_open(
                &(struct io_sim_opts){.seed = 1, .capacity_bytes = cases[i].disk_bytes},
                &p.io, &err),
            0);
        p.opts.io = p.io;
        p.opts.cap_bytes = cases[i].cap_bytes;
        store_close(st_open(&p));
        assert_int_equal(io_stat(p.io, "/st/d0/reserve", &st, NULL), 0);
        assert_int_equal(st.allocated_bytes, cases[i].reserve_bytes);
        assert_int_equal(st.size_bytes, cases[i].reserve_bytes);
        /* a reserve that was given up is filled again, once */
        assert_true(home_release_reserve(p.io, p.dirs[0]));
        assert_false(home_release_reserve(p.io, p.dirs[0]));
        store_close(st_open(&p));
        assert_int_equal(io_stat(p.io, "/st/d0/reserve", &st, NULL), 0);
        assert_int_equal(st.allocated_bytes, cases[i].reserve_bytes);
        st_place_close(&p);
    }
}
