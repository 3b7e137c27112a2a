/* test_messages.c - what a store tells the person at the terminal when it repairs, rebuilds or
 * postpones something. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit.h"
#include "base/log.h"
#include "io/io.h"
#include "sim/io_sim.h"
#include "storetest.h"
#include "store/superblock.h"
#include "tests/base/said.h"

enum { N = 3 };

static const struct st_ctx ours = {.base = 1, .own = 1, .salt = "ours"};
static struct st_place place;
static struct err err;

static void listen(void)
{
    said_begin(LOG_INFO);
}

/* Compares all messages since listen() with a text. */
static void must_have_said(const char *want)
{
    assert_string_equal(said_end(), want);
}

static void saved(int n_dirs)
{
    struct store *s = st_begin(&place, "sim", n_dirs);
    st_must_save(s, &ours, N);
    store_close(s);
}

static void change(const char *path, uint64_t at, const void *bytes, size_t n)
{
    struct io_file *f;
    assert_int_equal(io_file_open(place.io, path, 0, &f, &err), 0);
    assert_int_equal(io_file_pwrite(f, bytes, n, at, &err), 0);
    assert_int_equal(io_file_sync(f, &err), 0);
    io_file_close(f);
}

static void open_and_close(void)
{
    store_close(st_open(&place));
}

TEST(superblocks)
{
    static const uint8_t bad[8] = {1};
    saved(2);
    listen();
    open_and_close();
    must_have_said("");
    change("/st/d0/superblock", 100, bad, sizeof bad);
    listen();
    open_and_close();
    open_and_close(); /* it is repaired */
    must_have_said(
        "hcache: /st/d0: a copy of the superblock, damaged, was written again\n");
    change("/st/d1/superblock", SUPERBLOCK_BYTES + 100, bad, sizeof bad);
    assert_int_equal(io_unlink(place.io, "/st/d0/superblock", &err), 0);
    listen();
    open_and_close();
    must_have_said(
        "hcache: /st/d0: the superblock, lost or damaged, was written again\n"
        "hcache: /st/d1: a copy of the superblock, damaged, was written again\n");
    change("/st/d1/superblock", 100, bad, sizeof bad);
    struct io_sim_fault fault = {.kind = IO_SIM_FAIL,
                                 .on = IO_SIM_ON_WRITE,
                                 .path = "superblock",
                                 .code = -EROFS,
                                 .count = 1};
    assert_int_equal(io_sim_fault_add(place.io, &fault), 0);
    listen();
    open_and_close(); /* goes on without the second copy */
    must_have_said(
        "hcache: warning: /st/d1: a copy of the superblock, damaged, could not be "
        "repaired (write 4096 bytes at 0 of /st/d1/superblock: Read-only file "
        "system)\n");
    io_sim_fault_clear(place.io);
    open_and_close();
    st_place_close(&place);
}

/* A store without chunks has no extent that could show whose folder it is; its index does. */
TEST(an_empty_store_is_found_again)
{
    assert_true(st_place_open(&place, "sim", 1));
    open_and_close();
    assert_int_equal(io_unlink(place.io, "/st/d0/superblock", &err), 0);
    listen();
    open_and_close();
    must_have_said("hcache: /st/d0: the superblock, lost or damaged, was written again\n");
    st_place_close(&place);
}

/* The index is lost, and so is one of the chunks. */
TEST(a_rebuild)
{
    saved(1);
    assert_int_equal(io_unlink(place.io, "/st/d0/index.db", &err), 0);
    assert_int_equal(io_sim_flip(place.io, "/st/d0/seg-000000.hc", 4096 + 17, 3), 0);
    listen();
    open_and_close();
    open_and_close();
    must_have_said(
        "hcache: index rebuilt: 2 extents, 1 damaged or overwritten ones left out\n"
        "hcache: warning: pins and guarantees of saved state were in the index: "
        "none is left\n");
    st_place_close(&place);
}

/* The first commit finds that the index cannot be written. */
TEST(a_rebuild_to_come)
{
    enum { WRITE_VERSION = 18 }; /* in SQLite's header */
    for (int denied = 0; denied < 2; denied++) {
        saved(1);
        assert_int_equal(io_sim_flip(place.io, "/st/d0/index.db", WRITE_VERSION, 6), 0);
        struct store *s = st_open(&place);
        struct io_sim_fault fault = {.kind = IO_SIM_FAIL,
                                     .on = IO_SIM_ON_NAME,
                                     .path = "index.rebuild",
                                     .code = -EACCES};
        if (denied)
            assert_int_equal(io_sim_fault_add(place.io, &fault), 0);
        listen();
        assert_int_equal(store_commit(s, &err), ERR_CORRUPT);
        must_have_said(
            denied ? "hcache: warning: the index in /st/d0 is damaged; remove index.db* to "
                     "have it rebuilt (open /st/d0/index.rebuild: Permission denied)\n"
                   : "hcache: warning: the index in /st/d0 is damaged; it will be rebuilt "
                     "when "
                     "the store is opened next\n");
        store_close(s);
        st_place_close(&place);
    }
}

/* An erasure that a read-only store has noted is carried out by the next opening. */
TEST(an_erasure_that_waited)
{
    struct sha256 keys[N];
    struct store_erased e;
    for (int n = 1; n <= 2; n++) {
        saved(1);
        st_keys(&ours, N, keys);
        place.opts.read_only = true;
        struct store *s = st_open(&place);
        assert_int_equal(store_erase(s, &keys[N - n], n, &e, &err), -EROFS);
        assert_true(e.is_noted && e.n_owed == (uint64_t)n);
        store_close(s);
        place.opts.read_only = false;
        listen();
        open_and_close();
        open_and_close();
        must_have_said(
            n == 1
                ? "hcache: 1 erasure that had waited for the store to be writable: done\n"
                : "hcache: 2 erasures that had waited for the store to be writable: "
                  "done\n");
        st_place_close(&place);
    }
}

/* Wiping fails, in the erasure and at the next opening. */
TEST(bytes_that_cannot_be_wiped)
{
    struct sha256 keys[N];
    struct store_erased e;
    struct io_sim_fault fault = {
        .kind = IO_SIM_FAIL, .on = IO_SIM_ON_WRITE, .path = "seg-", .code = -EIO};
    saved(1);
    st_keys(&ours, N, keys);
    struct store *s = st_open(&place);
    assert_int_equal(io_sim_fault_add(place.io, &fault), 0);
    assert_int_equal(store_erase(s, keys, N, &e, &err), -EIO);
    store_close(s);
    listen();
    open_and_close();
    must_have_said(
        "hcache: erased chunks could not be wiped yet: write 172032 bytes at 0 of "
        "/st/d0/seg-000000.hc: Input/output error\n"
        "hcache: free space could not be wiped yet: write 45056 bytes at 172032 of "
        "/st/d0/seg-000000.hc: Input/output error\n");
    io_sim_fault_clear(place.io);
    listen();
    open_and_close();
    must_have_said("");
    st_place_close(&place);
}

TEST(a_broken_guarantee)
{
    struct sha256 keys[N];
    struct store_hit hit;
    saved(1);
    st_keys(&ours, N, keys);
    struct store *s = st_open(&place);
    assert_int_equal(store_guarantee(s, keys, N, INT64_MAX / 4, NULL, &err), 0);
    assert_true(store_pin(s, &keys[1], &hit));
    listen();
    store_condemn(s, &hit, "a test says so");
    must_have_said(
        "hcache: warning: damage (a test says so) breaks 1 guarantee of saved state, "
        "which is computed again\n");
    store_release(s, &hit, 1);
    store_close(s);
    st_place_close(&place);
}
