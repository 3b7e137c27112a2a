/* Erasing: what is cut, removed or replaced is overwritten on the medium before its blocks are
 * free. The simulated disk keeps the bytes of freed blocks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <unistd.h>

#include "tests/unit.h"
#include "io/io_erase.h"
#include "sim/io_sim.h"
#include "iotest.h"

enum { BYTES = 5 * IO_ALIGN + 100 };

static uint8_t secret[BYTES];

static struct iotest *begin(void **state)
{
    iotest_fill(secret, sizeof secret, 7);
    return iotest_begin(state);
}

static void put(struct io *io, const char *path, const void *bytes, size_t n)
{
    struct io_file *f;
    assert_int_equal(io_file_open(io, path, IO_CREATE, &f, NULL), 0);
    assert_int_equal(io_file_pwrite(f, bytes, n, 0, NULL), 0);
    assert_int_equal(io_file_sync(f, NULL), 0);
    io_file_close(f);
}

/* Returns how many of the file's first five sectors the medium still holds. */
static size_t n_left(struct io *io)
{
    size_t n = 0;
    for (int i = 0; i < 5; i++)
        n += io_sim_raw_count(io, secret + i * IO_ALIGN, 64) > 0;
    return n;
}

static void test_erase(void **state)
{
    struct iotest *t = begin(state);
    const char *path = iotest_path(t, "f");
    struct err err = {0};
    put(t->io, path, secret, sizeof secret);
    assert_int_equal(io_erase(t->io, path, &err), 0);
    assert_false(io_exists(t->io, path));
    assert_int_equal(io_erase(t->io, path, &err), -ENOENT);
    put(t->io, path, secret, 0); /* an empty file has nothing to overwrite */
    assert_int_equal(io_erase(t->io, path, &err), 0);
    assert_int_equal(io_erase(t->io, t->dir, &err), -EISDIR);
}

/* Another name still needs the bytes, and a link has none. */
static void test_erase_names(void **state)
{
    struct iotest *t = begin(state);
    const char *path = iotest_path(t, "f"), *other = iotest_path(t, "g");
    uint8_t back[BYTES];
    struct io_file *f;
    put(t->io, path, secret, sizeof secret);
    assert_int_equal(link(path, other), 0);
    assert_int_equal(io_erase(t->io, other, NULL), 0);
    assert_int_equal(symlink(path, other), 0);
    assert_int_equal(io_erase(t->io, other, NULL), 0);
    assert_int_not_equal(access(other, F_OK), 0);
    assert_int_equal(io_file_open(t->io, path, IO_READ_ONLY, &f, NULL), 0);
    assert_int_equal(io_file_pread(f, back, sizeof back, 0, NULL), 0);
    assert_memory_equal(back, secret, sizeof back);
    io_file_close(f);
}

static void test_cut(void **state)
{
    struct iotest *t = begin(state);
    struct io_file *f;
    uint64_t size;
    uint8_t back[BYTES];
    put(t->io, iotest_path(t, "f"), secret, sizeof secret);
    assert_int_equal(io_file_open(t->io, iotest_path(t, "f"), 0, &f, NULL), 0);
    assert_int_equal(io_file_cut(f, 2 * BYTES, NULL), 0); /* does not grow */
    assert_int_equal(io_file_cut(f, IO_ALIGN + 10, NULL), 0);
    assert_int_equal(io_file_size(f, &size, NULL), 0);
    assert_int_equal(size, IO_ALIGN + 10);
    assert_int_equal(io_file_pread(f, back, IO_ALIGN + 10, 0, NULL), 0);
    assert_memory_equal(back, secret, IO_ALIGN + 10);
    io_file_close(f);
}

/* Only data are overwritten: a hole stays a hole, and so needs no space. */
static void test_holes(void **state)
{
    struct iotest *t = begin(state);
    struct io_file *f;
    struct io_stat before, after;
    const char *path = iotest_path(t, "f");
    bool any;
    put(t->io, path, secret, IO_ALIGN);
    assert_int_equal(io_file_open(t->io, path, 0, &f, NULL), 0);
    assert_int_equal(io_file_pwrite(f, secret, IO_ALIGN, 300 * IO_ALIGN, NULL), 0);
    assert_int_equal(io_file_sync(f, NULL), 0);
    assert_int_equal(io_stat(t->io, path, &before, NULL), 0);
    assert_int_equal(io_file_zero(f, IO_ALIGN, 300 * IO_ALIGN, &any, NULL), 0);
    assert_false(any);
    assert_int_equal(io_file_zero(f, 0, 301 * IO_ALIGN, &any, NULL), 0);
    assert_true(any);
    assert_int_equal(io_file_sync(f, NULL), 0);
    assert_int_equal(io_stat(t->io, path, &after, NULL), 0);
    assert_int_equal(after.allocated_bytes, before.allocated_bytes);
    uint8_t back[IO_ALIGN], zeros[IO_ALIGN] = {0};
    assert_int_equal(io_file_pread(f, back, sizeof back, 300 * IO_ALIGN, NULL), 0);
    assert_memory_equal(back, zeros, sizeof back);
    io_file_close(f);
}

static void test_replace(void **state)
{
    struct iotest *t = begin(state);
    struct err err = {0};
    const char *from = iotest_path(t, "f.new"), *to = iotest_path(t, "f");
    struct io_stat st;
    int old_rc;
    for (int i = 0; i < 2; i++) { /* with no old file, then with one */
        put(t->io, from, secret, 100 + (size_t)i);
        assert_int_equal(io_replace(t->io, from, to, &old_rc, &err), 0);
        assert_int_equal(old_rc, 0);
        assert_false(io_exists(t->io, from));
        assert_int_equal(io_stat(t->io, to, &st, &err), 0);
        assert_int_equal(st.size_bytes, 100 + i);
    }
    assert_int_equal(io_replace(t->io, from, to, NULL, &err), -ENOENT);
}

/* --- the medium ------------------------------------------------------------------------------- */

static struct io *disk(uint64_t seed)
{
    struct io *io;
    struct io_sim_opts o = {.seed = seed, .keeps_freed = true};
    assert_int_equal(io_sim_open(&o, &io, NULL), 0);
    iotest_fill(secret, sizeof secret, 7);
    put(io, "/f", secret, sizeof secret);
    assert_int_equal(io_dir_sync(io, "/", NULL), 0);
    assert_int_equal(n_left(io), 5);
    return io;
}

/* The simulated disk finds what each way of freeing leaves, also if zeros were written but not
 * synced. */
static void test_freeing_is_not_overwriting(void **state)
{
    static const uint8_t zeros[BYTES];
    for (int how = 0; how < 6; how++) {
        struct io *io = disk(1);
        struct io_file *f;
        assert_int_equal(io_file_open(io, "/f", 0, &f, NULL), 0);
        if (how % 2 == 1)
            assert_int_equal(io_file_pwrite(f, zeros, sizeof zeros, 0, NULL), 0);
        if (how / 2 == 0)
            assert_int_equal(io_file_punch(f, 0, 5 * IO_ALIGN, NULL), 0);
        else if (how / 2 == 1)
            assert_int_equal(io_file_truncate(f, 0, NULL), 0);
        else
            assert_int_equal(io_unlink(io, "/f", NULL), 0);
        assert_int_equal(io_file_sync(f, NULL), 0);
        io_file_close(f);
        assert_int_equal(io_dir_sync(io, "/", NULL), 0);
        assert_int_equal(n_left(io), how == 5 ? 0 : 5);
        io_close(io);
    }
}

static void test_nothing_is_left(void **state)
{
    for (int how = 0; how < 3; how++) {
        struct io *io = disk(1);
        struct io_file *f;
        assert_int_equal(io_file_open(io, "/f", 0, &f, NULL), 0);
        if (how == 0)
            assert_int_equal(io_file_cut(f, 0, NULL), 0);
        else if (how == 1)
            assert_int_equal(io_erase(io, "/f", NULL), 0);
        put(io, "/n", "new", 3);
        if (how == 2)
            assert_int_equal(io_replace(io, "/n", "/f", NULL, NULL), 0);
        io_file_close(f);
        assert_int_equal(io_dir_sync(io, "/", NULL), 0);
        assert_int_equal(n_left(io), 0);
        io_close(io);
    }
}

/* At whatever operation power fails, the file's beginning is gone first: no part of the file is
 * there without it. */
static void test_the_beginning_goes_first(void **state)
{
    unsigned n_whole = 0, n_headless = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct io *io = disk(seed), *after;
        struct io_file *f;
        uint8_t back[BYTES];
        size_t got = 0;
        io_sim_crash_at(io, IO_SIM_AT_OP, 1 + seed % 5);
        assert_int_equal(io_file_open(io, "/f", 0, &f, NULL), 0);
        (void)io_file_cut(f, 0, NULL);
        io_file_close(f);
        assert_int_equal(io_sim_fork(io, seed, &after, NULL), 0);
        assert_int_equal(io_file_open(after, "/f", IO_READ_ONLY, &f, NULL), 0);
        assert_int_equal(io_file_pread_some(f, back, sizeof back, 0, &got, NULL), 0);
        io_file_close(f);
        bool has_beginning = got > 0 && memcmp(back, secret, 512) == 0;
        if (has_beginning && got == sizeof back)
            assert_memory_equal(back + IO_ALIGN, secret + IO_ALIGN, sizeof back - IO_ALIGN);
        n_whole += has_beginning;
        n_headless += !has_beginning && got > IO_ALIGN &&
                      memcmp(back + IO_ALIGN, secret + IO_ALIGN, 512) == 0;
        io_close(after);
        io_close(io);
    }
    assert_true(n_whole > 10 && n_headless > 10);
}

static void test_medium(void **state)
{
    struct iotest *t = begin(state);
    char why[100] = "x";
    struct io_file *f;
    bool in_place = io_medium_check(t->io, t->dir, why, sizeof why);
    assert_true(in_place == (why[0] == 0));
    put(t->io, iotest_path(t, "f"), secret, sizeof secret);
    assert_int_equal(io_file_open(t->io, iotest_path(t, "f"), 0, &f, NULL), 0);
    assert_false(io_file_is_shared(f));
    io_file_close(f);
    /* a file system in memory that a program can always find: it has no medium to keep bytes on */
    if (strcmp(io_name(t->io), "sim") != 0)
        assert_true(io_medium_check(t->io, "/proc", why, sizeof why));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ALL(test_erase),
        ON("pread", test_erase_names),
        ALL(test_cut),
        ALL(test_holes),
        ALL(test_replace),
        cmocka_unit_test(test_freeing_is_not_overwriting),
        cmocka_unit_test(test_nothing_is_left),
        cmocka_unit_test(test_the_beginning_goes_first),
        ON("pread", test_medium),
        ON("sim", test_medium),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
