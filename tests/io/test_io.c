/* Files and folders behave the same on uring, pread and the simulated disk. */
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <sys/stat.h>

#include "tests/unit.h"
#include "base/minmax.h"
#include "io/io.h"
#include "iotest.h"

static struct io_file *open_new(struct iotest *t, const char *name, unsigned flags)
{
    struct io_file *f;
    struct err err = {0};
    int rc = io_file_open(t->io, iotest_path(t, name), IO_CREATE | flags, &f, &err);
    if (rc != 0)
        fail_msg("%s", err.msg);
    return f;
}

static void test_write_read(void **state)
{
    struct iotest *t = iotest_begin(state);
    struct io_file *f = open_new(t, "f", 0);
    uint8_t out[1000], in[1000];
    iotest_fill(out, sizeof out, 1);
    assert_int_equal(io_file_pwrite(f, out, sizeof out, 77, NULL), 0);
    assert_int_equal(io_file_pread(f, in, sizeof in, 77, NULL), 0);
    assert_memory_equal(in, out, sizeof in);
    uint64_t size;
    assert_int_equal(io_file_size(f, &size, NULL), 0);
    assert_int_equal(size, 1077);
    assert_int_equal(io_file_pread(f, in, 77, 0, NULL), 0);
    for (int i = 0; i < 77; i++)
        assert_int_equal(in[i], 0);
    assert_int_equal(io_file_sync(f, NULL), 0);
    assert_string_equal(io_file_path(f), iotest_path(t, "f"));
    io_file_close(f);
}

/* Files of the machine have a descriptor, unless their reads are slowed: reads through it would
 * not be. */
static void test_descriptor(void **state)
{
    struct iotest *t = iotest_begin(state);
    struct io_file *f = open_new(t, "f", 0);
    bool is_sim = strcmp(io_name(t->io), "sim") == 0;
    struct stat st, of_path;
    for (int i = 0; i < 4; i++) {
        bool slow_reads = (i & 1) != 0, slow_writes = (i & 2) != 0;
        io_throttle(t->io, slow_reads ? 1000000000 : 0, slow_writes ? 1000000000 : 0);
        int fd = io_file_fd(f);
        if (is_sim || slow_reads) {
            assert_int_equal(fd, -1);
            continue;
        }
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(stat(iotest_path(t, "f"), &of_path), 0);
        assert_true(st.st_ino == of_path.st_ino);
    }
    io_throttle(t->io, 0, 0);
    io_file_close(f);
}

static void test_end_of_file(void **state)
{
    struct iotest *t = iotest_begin(state);
    struct io_file *f = open_new(t, "f", 0);
    uint8_t b[100] = {1};
    struct err err = {0};
    size_t got;
    assert_int_equal(io_file_pwrite(f, b, 60, 0, NULL), 0);
    assert_int_equal(io_file_pread(f, b, 100, 0, &err), -ENODATA);
    assert_non_null(strstr(err.msg, "/f"));
    assert_int_equal(io_file_pread_some(f, b, 100, 0, &got, NULL), 0);
    assert_int_equal(got, 60);
    assert_int_equal(io_file_pread_some(f, b, 100, 1000, &got, NULL), 0);
    assert_int_equal(got, 0);
    io_file_close(f);
}

static void test_open_flags(void **state)
{
    struct iotest *t = iotest_begin(state);
    struct io_file *f;
    struct err err = {0};
    const char *path = iotest_path(t, "f");
    assert_int_equal(io_file_open(t->io, path, 0, &f, &err), -ENOENT);
    assert_null(f);
    assert_non_null(strstr(err.msg, path));
    io_file_close(open_new(t, "f", IO_EXCL));
    assert_int_equal(io_file_open(t->io, path, IO_CREATE | IO_EXCL, &f, NULL), -EEXIST);
    assert_int_equal(io_file_open(t->io, path, IO_CREATE | IO_READ_ONLY, &f, NULL),
                     -EINVAL);
    assert_int_equal(io_file_open(t->io, t->dir, IO_READ_ONLY, &f, NULL), -EISDIR);
    assert_int_equal(io_file_open(t->io, path, IO_READ_ONLY, &f, NULL), 0);
    assert_int_equal(io_file_pwrite(f, "x", 1, 0, NULL), -EBADF);
    io_file_close(f);
}

/* Opening a pipe in place of a file must not wait for its writer. */
static void test_no_regular_file(void **state)
{
    struct iotest *t = iotest_begin(state);
    struct io_file *f;
    struct err err = {0};
    const char *path = iotest_path(t, "pipe");
    if (strcmp(io_name(t->io), "sim") == 0) /* the simulated disk has no pipes */
        return;
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(io_file_open(t->io, path, IO_READ_ONLY, &f, &err), -ESPIPE);
    assert_non_null(strstr(err.msg, "not a regular file"));
    assert_int_equal(io_file_open(t->io, path, IO_CREATE, &f, NULL), -ESPIPE);
    assert_int_equal(io_file_open(t->io, path, IO_DIRECT, &f, NULL), -ESPIPE);
    assert_int_equal(io_unlink(t->io, path, NULL), 0);
}

static void test_modes(void **state)
{
    struct iotest *t = iotest_begin(state);
    mode_t old = umask(0);
    io_file_close(open_new(t, "f", 0));
    assert_int_equal(io_mkdir(t->io, iotest_path(t, "d"), NULL), 0);
    umask(old);
    struct stat st;
    assert_int_equal(stat(iotest_path(t, "f"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(stat(iotest_path(t, "d"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
}

static void test_truncate_and_punch(void **state)
{
    struct iotest *t = iotest_begin(state);
    struct io_file *f = open_new(t, "f", 0);
    size_t n = 8 * IO_ALIGN;
    uint8_t *out = iotest_buffer(n), *in = iotest_buffer(n);
    iotest_fill(out, n, 2);
    assert_int_equal(io_file_pwrite(f, out, n, 0, NULL), 0);
    assert_int_equal(io_file_punch(f, IO_ALIGN, 3 * IO_ALIGN, NULL), 0);
    memset(out + IO_ALIGN, 0, 3 * IO_ALIGN);
    assert_int_equal(io_file_pread(f, in, n, 0, NULL), 0);
    assert_memory_equal(in, out, n);
    assert_int_equal(io_file_punch(f, 100, IO_ALIGN, NULL), -EINVAL);
    assert_int_equal(io_file_punch(f, UINT64_MAX - IO_ALIGN + 1, IO_ALIGN, NULL), -EINVAL);

    assert_int_equal(io_file_truncate(f, n - 10, NULL), 0);
    assert_int_equal(io_file_truncate(f, n, NULL), 0);
    memset(out + n - 10, 0, 10);
    assert_int_equal(io_file_pread(f, in, n, 0, NULL), 0);
    assert_memory_equal(in, out, n);

    uint64_t size;
    int rc = io_file_allocate(f, 0, 2 * n, NULL);
    if (rc != -EOPNOTSUPP) {
        assert_int_equal(rc, 0);
        assert_int_equal(io_file_size(f, &size, NULL), 0);
        assert_int_equal(size, 2 * n);
    }
    io_file_close(f);
    free(out);
    free(in);
}

static void test_alignment(void **state)
{
    struct iotest *t = iotest_begin(state);
    struct io_file *f = open_new(t, "f", IO_DIRECT);
    uint8_t *b = iotest_buffer(4 * IO_ALIGN);
    struct err err = {0};
    iotest_fill(b, 4 * IO_ALIGN, 3);
    assert_int_equal(io_file_pwrite(f, b, 4 * IO_ALIGN, 0, NULL), 0);
    assert_int_equal(io_file_pwrite(f, b, IO_ALIGN, 512, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "4096"));
    assert_int_equal(io_file_pwrite(f, b, 512, 0, NULL), -EINVAL);
    assert_int_equal(io_file_pread(f, b + 16, IO_ALIGN, 0, NULL), -EINVAL);
    assert_int_equal(io_file_pread(f, b, IO_ALIGN, UINT64_MAX - IO_ALIGN + 1, NULL),
                     -EINVAL);
    assert_int_equal(io_file_pread(f, b, IO_ALIGN, 3 * IO_ALIGN, NULL), 0);
    assert_int_equal(io_file_pread(f, b, 2 * IO_ALIGN, 3 * IO_ALIGN, NULL), -ENODATA);
    /* A read may need less alignment than a write. */
    uint8_t want[512], *more = iotest_buffer(IO_ALIGN);
    uint32_t align = io_file_read_align(f);
    assert_true(align >= 16 && IO_ALIGN % align == 0);
    iotest_fill(b, 4 * IO_ALIGN, 3);
    memcpy(want, b + IO_ALIGN + align, sizeof want);
    assert_int_equal(io_file_pread(f, more, MAX(align, 512), IO_ALIGN + align, NULL), 0);
    assert_memory_equal(more, want, sizeof want);
    assert_int_equal(io_file_pread(f, more, align, IO_ALIGN + align / 2, &err), -EINVAL);
    assert_int_equal(io_file_pread(f, more, align / 2, IO_ALIGN, NULL), -EINVAL);
    free(more);
    /* The file may end inside a sector. */
    assert_int_equal(io_file_truncate(f, IO_ALIGN + 100, NULL), 0);
    size_t got;
    assert_int_equal(io_file_pread_some(f, b, 4 * IO_ALIGN, 0, &got, NULL), 0);
    assert_int_equal(got, IO_ALIGN + 100);
    io_file_close(f);
    free(b);
}

static void test_lock(void **state)
{
    struct iotest *t = iotest_begin(state);
    struct io_file *a = open_new(t, "f", 0), *b = open_new(t, "f", 0), *r;
    struct err err = {0};
    assert_int_equal(io_file_open(t->io, iotest_path(t, "f"), IO_READ_ONLY, &r, NULL), 0);
    assert_int_equal(io_file_lock(a, NULL), 0);
    /* succeeds: this process already has the lock */
    assert_int_equal(io_file_lock(a, NULL), 0);
    assert_int_equal(io_file_lock(b, &err), ERR_BUSY);
    assert_int_equal(io_file_lock(r, NULL), ERR_BUSY);
    assert_int_equal(io_file_unlock(a, NULL), 0);
    assert_int_equal(io_file_lock(r, NULL), 0);
    assert_int_equal(io_file_lock(b, NULL), ERR_BUSY);
    io_file_close(r);
    assert_int_equal(io_file_lock(b, NULL), 0);
    io_file_close(b);
    assert_int_equal(io_file_lock(a, NULL), 0);
    io_file_close(a);
}

static void test_names(void **state)
{
    struct iotest *t = iotest_begin(state);
    struct io *io = t->io;
    assert_int_equal(io_mkdirs(io, iotest_path(t, "x/y//z/"), NULL, NULL), 0);
    assert_int_equal(io_mkdirs(io, iotest_path(t, "x/y/z"), NULL, NULL), 0);
    assert_int_equal(io_mkdir(io, iotest_path(t, "x"), NULL), -EEXIST);
    assert_int_equal(io_mkdir(io, iotest_path(t, "no/x"), NULL), -ENOENT);
    io_file_close(open_new(t, "b", 0));
    io_file_close(open_new(t, "a", 0));
    assert_int_equal(io_mkdirs(io, iotest_path(t, "a/z"), NULL, NULL), -ENOTDIR);

    /* io_rmdirs removes the last n_made folders of a path, if they are empty. */
    int n_made = -1;
    assert_int_equal(io_mkdirs(io, iotest_path(t, "x/m/n//o/"), &n_made, NULL), 0);
    assert_int_equal(n_made, 3);
    io_file_close(open_new(t, "x/m/file", 0));
    io_rmdirs(io, iotest_path(t, "x/m/n//o/"), n_made);
    assert_false(io_exists(io, iotest_path(t, "x/m/n")));
    assert_int_equal(io_mkdirs(io, iotest_path(t, "x/m"), &n_made, NULL), 0);
    assert_int_equal(n_made, 0);
    assert_int_equal(io_unlink(io, iotest_path(t, "x/m/file"), NULL), 0);
    io_rmdirs(io, iotest_path(t, "x/m"), 0);
    assert_true(io_exists(io, iotest_path(t, "x/m")));
    io_rmdirs(io, iotest_path(t, "x/m"), 1);
    assert_false(io_exists(io, iotest_path(t, "x/m")));

    struct io_names names;
    assert_int_equal(io_list(io, t->dir, &names, NULL), 0);
    assert_int_equal(names.n, 3);
    assert_string_equal(names.name[0], "a");
    assert_string_equal(names.name[1], "b");
    assert_string_equal(names.name[2], "x");
    io_names_free(&names);
    assert_int_equal(io_list(io, iotest_path(t, "no"), &names, NULL), -ENOENT);
    assert_int_equal(io_list(io, iotest_path(t, "a"), &names, NULL), -ENOTDIR);

    assert_int_equal(io_unlink(io, iotest_path(t, "x"), NULL), -ENOTEMPTY);
    assert_int_equal(io_unlink(io, iotest_path(t, "x/y/z"), NULL), 0);
    assert_int_equal(io_unlink(io, iotest_path(t, "x/y/z"), NULL), -ENOENT);
    assert_int_equal(io_dir_sync(io, iotest_path(t, "x"), NULL), 0);
    assert_int_equal(io_dir_sync(io, iotest_path(t, "no"), NULL), -ENOENT);
    assert_int_equal(io_parent_sync(io, iotest_path(t, "x"), NULL), 0);
}

static void test_rename(void **state)
{
    struct iotest *t = iotest_begin(state);
    struct io_file *f = open_new(t, "new", 0);
    assert_int_equal(io_file_pwrite(f, "new", 3, 0, NULL), 0);
    struct io_file *old = open_new(t, "old", 0);
    assert_int_equal(io_file_pwrite(old, "former", 6, 0, NULL), 0);
    assert_int_equal(io_rename(t->io, iotest_path(t, "new"), iotest_path(t, "old"), NULL),
                     0);
    assert_int_equal(io_rename(t->io, iotest_path(t, "new"), iotest_path(t, "old"), NULL),
                     -ENOENT);
    assert_false(io_exists(t->io, iotest_path(t, "new")));
    struct io_stat st;
    assert_int_equal(io_stat(t->io, iotest_path(t, "old"), &st, NULL), 0);
    assert_int_equal(st.size_bytes, 3);
    assert_false(st.is_dir);
    char b[6];
    /* an open file stays readable under its old handle */
    assert_int_equal(io_file_pread(old, b, 6, 0, NULL), 0);
    assert_memory_equal(b, "former", 6);
    io_file_close(f);
    io_file_close(old);
}

static void test_space_and_random(void **state)
{
    struct iotest *t = iotest_begin(state);
    uint64_t free_bytes, total_bytes;
    assert_int_equal(io_space(t->io, t->dir, &free_bytes, &total_bytes, NULL), 0);
    assert_true(free_bytes > 0 && free_bytes <= total_bytes);
    assert_int_equal(io_space(t->io, iotest_path(t, "no"), &free_bytes, &total_bytes, NULL),
                     -ENOENT);
    uint8_t a[16] = {0}, b[16] = {0};
    assert_int_equal(io_random(t->io, a, sizeof a, NULL), 0);
    assert_int_equal(io_random(t->io, b, sizeof b, NULL), 0);
    assert_memory_not_equal(a, b, sizeof a);
}

/* Sizes that no file can have are refused before any system call, and change nothing. */
static void test_bounds(void **state)
{
    struct iotest *t = iotest_begin(state);
    struct err err = {0};
    struct io_file *f = open_new(t, "f", 0);
    uint8_t b[8];
    uint64_t size;
    static const uint64_t beyond[] = {UINT64_MAX, UINT64_MAX - 7, INT64_MAX, INT64_MAX - 7};
    assert_int_equal(io_file_pwrite(f, "bounded", 7, 0, NULL), 0);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(io_file_pread(f, b, sizeof b, beyond[i], &err), -EINVAL);
        assert_non_null(strstr(err.msg, "read 8 bytes at "));
        assert_int_equal(io_file_pwrite(f, b, sizeof b, beyond[i], &err), -EINVAL);
        assert_int_equal(io_file_pread_some(f, b, sizeof b, beyond[i], &(size_t){0}, &err),
                         -EINVAL);
        assert_int_equal(io_file_allocate(f, beyond[i], 8, &err), -EINVAL);
    }
    assert_int_equal(io_file_pread(f, b, sizeof b, INT64_MAX - 8, NULL), -ENODATA);
    assert_int_equal(io_file_truncate(f, (uint64_t)INT64_MAX + 1, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "truncate "));
    assert_int_equal(io_file_allocate(f, 0, 0, &err), -EINVAL);
    assert_int_equal(io_file_punch(f, 0, 0, &err), -EINVAL);
    assert_int_equal(io_file_punch(f, 1, IO_ALIGN, &err), -EINVAL);
    assert_int_equal(io_file_punch(f, 0, 1, &err), -EINVAL);
    assert_int_equal(io_file_punch(f, UINT64_MAX - IO_ALIGN + 1, 2 * IO_ALIGN, &err),
                     -EINVAL);
    assert_int_equal(io_file_punch(f, (uint64_t)INT64_MAX + 1, IO_ALIGN, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "punch "));
    if (strcmp(io_name(t->io), "sim") == 0) { /* the largest sizes reach the disk */
        assert_int_equal(io_file_truncate(f, INT64_MAX, &err), -ENOSPC);
        assert_int_equal(io_file_allocate(f, INT64_MAX - 8, 8, &err), -ENOSPC);
    }
    assert_int_equal(io_file_size(f, &size, NULL), 0);
    assert_int_equal(size, 7);
    assert_int_equal(io_file_pread(f, b, 7, 0, NULL), 0);
    assert_memory_equal(b, "bounded", 7);
    io_file_close(f);
    io_file_close(NULL);
    io_close(NULL);
}

/* A name without a folder lies in the current folder. */
static void test_parents(void **state)
{
    struct iotest *t = iotest_begin(state);
    char *slashes = strdup(iotest_path(t, "x///"));
    assert_int_equal(io_mkdir(t->io, iotest_path(t, "x"), NULL), 0);
    assert_int_equal(io_parent_sync(t->io, slashes, NULL), 0);
    assert_int_equal(io_parent_sync(t->io, "/x", NULL), 0);
    assert_int_equal(io_parent_sync(t->io, "x", NULL), 0);
    assert_int_equal(io_parent_sync(t->io, "", NULL), -ENOENT);
    /* the empty path needs no folder */
    assert_int_equal(io_mkdirs(t->io, "", NULL, NULL), 0);
    free(slashes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ALL(test_write_read),
        ALL(test_descriptor),
        ALL(test_end_of_file),
        ALL(test_open_flags),
        ALL(test_no_regular_file),
        ON("uring", test_modes),
        ON("pread", test_modes),
        ALL(test_truncate_and_punch),
        ALL(test_alignment),
        ALL(test_lock),
        ALL(test_names),
        ALL(test_rename),
        ALL(test_space_and_random),
        ALL(test_bounds),
        ON("uring", test_parents),
        ON("pread", test_parents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
