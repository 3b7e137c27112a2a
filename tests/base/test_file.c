/* test_file.c - reads a whole file within a limit; a pipe is refused as a part of a folder. */
#include "tests/unit.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "tests/base/tempdir.h"

static char dir[TEMPDIR_BYTES];

/* --- the calls -------------------------------------------------------------------------------- */

/* The C library's function, or the sanitizer's: a signal that comes while it waits is handled. */
#define REAL(name) ((__typeof__(&(name)))(uintptr_t)dlsym(RTLD_NEXT, #name))

/* Whether the next write stores no byte and reports no error, as a FUSE file system may do. */
static bool stores_nothing;

ssize_t write(int fd, const void *bytes, size_t n)
{
    bool none = stores_nothing;
    stores_nothing = false;
    return none ? 0 : REAL(write)(fd, bytes, n);
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at)
{
    bool none = stores_nothing;
    stores_nothing = false;
    return none ? 0 : REAL(pwrite)(fd, bytes, n, at);
}

static size_t largest = SIZE_MAX; /* bytes of the largest allocation that succeeds */

bool mem_test_denies(size_t n, enum mem_ask ask)
{
    (void)ask;
    return n > largest;
}

/* --- reading ---------------------------------------------------------------------------------- */

static const char *at(const char *name)
{
    static char path[TEMPDIR_BYTES + 32];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static int setup(void **state)
{
    *state = dir;
    tempdir_make(dir, "file");
    FILE *f = fopen(at("abc"), "w");
    return f == NULL || fputs("abc", f) < 0 || fclose(f) != 0 ||
           symlink("abc", at("link")) != 0 || mkfifo(at("pipe"), 0600) != 0;
}

typedef int read_fn(const char *path, size_t max_bytes, char **out, size_t *n,
                    struct err *err);

static void expect_abc(read_fn *read_it, const char *path)
{
    struct err err = {0};
    char *text = NULL;
    size_t n = 0;
    if (read_it(path, 3, &text, &n, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(n, 3);
    assert_string_equal(text, "abc");
    free(text);
}

static void expect_refusal(read_fn *read_it, const char *path, int code, const char *part)
{
    struct err err = {0};
    char *text = NULL;
    size_t n;
    assert_int_equal(read_it(path, 2, &text, &n, &err), code);
    assert_null(text);
    assert_non_null(strstr(err.msg, path));
    assert_non_null(strstr(err.msg, part));
}

TEST(files_are_read_within_bounds)
{
    read_fn *const both[] = {file_read, file_read_regular};
    for (int i = 0; i < 2; i++) {
        expect_abc(both[i], at("abc"));
        expect_abc(both[i], at("link")); /* symbolic links, as in Hugging Face's cache */
        expect_refusal(both[i], at("abc"), ERR_LIMIT, "larger than the limit of 2 bytes");
        expect_refusal(both[i], at("none"), -ENOENT, "No such file");
    }
    /* open() succeeds, read() fails */
    expect_refusal(file_read, dir, -EISDIR, "Is a directory");
}

enum { LARGE = 300000 };

/* A prompt may come from another program (<(...), /dev/stdin). */
TEST(pipes_are_read_where_they_may_be)
{
    int end[2];
    char path[32];
    assert_int_equal(pipe(end), 0);
    assert_int_equal(write(end[1], "abc", 3), 3);
    close(end[1]);
    snprintf(path, sizeof path, "/dev/fd/%d", end[0]);
    expect_abc(file_read, path);
    close(end[0]);
}

/* The text's memory has one byte more, in which a file that has grown is noticed, and one for the
 * final zero. The size of a pipe is not known: it begins with one byte. */
TEST(memory_is_as_large_as_the_file)
{
    enum { PIPE = 2 * 1 + 4096 };
    int end[2];
    char path[32], bytes[PIPE - 1], *text = NULL;
    size_t n;
    largest = 3 + 2;
    expect_abc(file_read, at("abc"));
    largest--;
    assert_int_equal(file_read(at("abc"), 3, &text, &n, NULL), -ENOMEM);
    memset(bytes, 'x', sizeof bytes);
    for (int i = 0; i < 2; i++) {
        largest = SIZE_MAX;
        assert_int_equal(pipe(end), 0);
        assert_int_equal(write(end[1], bytes, sizeof bytes), sizeof bytes);
        close(end[1]);
        snprintf(path, sizeof path, "/dev/fd/%d", end[0]);
        largest = (size_t)(PIPE + 1 - i);
        assert_int_equal(file_read(path, LARGE, &text, &n, NULL), i == 0 ? 0 : -ENOMEM);
        close(end[0]);
    }
    largest = SIZE_MAX;
    assert_int_equal(n, sizeof bytes);
    free(text);
}

/* Starts a process that writes LARGE bytes to a pipe. Returns the end to read from. */
static int large_pipe(void)
{
    int end[2];
    assert_int_equal(pipe(end), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char byte[LARGE];
        for (int i = 0; i < LARGE; i++)
            byte[i] = (char)(i * 7 + i / 251);
        close(end[0]);
        _exit(file_write_all(end[1], byte, LARGE, -1) == 0 ? 0 : 1);
    }
    close(end[1]);
    return end[0];
}

/* The size of a pipe is not known before it is read. A bound of its size lets it in. */
TEST(a_large_pipe_is_read_to_its_end)
{
    for (size_t most = LARGE + 1; most >= LARGE - 1; most--) {
        struct err err = {0};
        char path[32], *text = NULL;
        size_t n = 0;
        int fd = large_pipe();
        snprintf(path, sizeof path, "/dev/fd/%d", fd);
        int rc = file_read(path, most, &text, &n, &err);
        close(fd);
        assert_true(wait(NULL) > 0);
        assert_int_equal(rc, most >= LARGE ? 0 : ERR_LIMIT);
        if (rc != 0) {
            assert_null(text);
            continue;
        }
        assert_int_equal(n, LARGE);
        for (int i = 0; i < LARGE; i++)
            if (text[i] != (char)(i * 7 + i / 251))
                fail_msg("byte %d differs", i);
        assert_int_equal(text[LARGE], 0);
        free(text);
    }
}

/* The pipe that the signal writes to, or reads from. */
static int alarm_fd;
static bool alarm_writes;
static atomic_int n_alarms;

static void on_alarm(int n)
{
    char bytes[65536];
    (void)n;
    if (alarm_writes && write(alarm_fd, "abc", 3) == 3)
        close(alarm_fd);
    else if (!alarm_writes)
        (void)!read(alarm_fd, bytes, sizeof bytes);
    atomic_fetch_add(&n_alarms, 1);
}

/* A signal interrupts a read of an empty pipe, and a write to a full one. Both go on. */
TEST(a_signal_interrupts_no_file)
{
    const struct sigaction interrupts = {.sa_handler = on_alarm};
    const struct itimerval soon = {.it_value = {0, 20000}};
    struct sigaction old;
    int end[2];
    char path[32], page[4096] = {0};
    assert_int_equal(sigaction(SIGALRM, &interrupts, &old), 0);
    assert_int_equal(pipe(end), 0);
    snprintf(path, sizeof path, "/dev/fd/%d", end[0]);
    alarm_fd = end[1];
    alarm_writes = true;
    assert_int_equal(setitimer(ITIMER_REAL, &soon, NULL), 0);
    expect_abc(file_read, path);
    close(end[0]);
    assert_int_equal(atomic_load(&n_alarms), 1);

    assert_int_equal(pipe(end), 0);
    alarm_fd = end[0];
    alarm_writes = false;
    assert_int_equal(fcntl(end[1], F_SETFL, O_NONBLOCK), 0);
    while (write(end[1], page, sizeof page) > 0)
        ;
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(fcntl(end[1], F_SETFL, 0), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &soon, NULL), 0);
    assert_int_equal(file_write_all(end[1], "x", 1, -1), 0);
    assert_int_equal(atomic_load(&n_alarms), 2);
    close(end[1]);
    ssize_t n;
    char last = 0;
    while ((n = read(end[0], page, sizeof page)) > 0)
        last = page[n - 1];
    assert_int_equal(last, 'x');
    close(end[0]);
    assert_int_equal(sigaction(SIGALRM, &old, NULL), 0);
}

/* Nobody writes to the pipe: if the call waited for it, this program would hit the runner's time
 * limit. */
TEST(only_files_belong_to_folders)
{
    expect_refusal(file_read_regular, at("pipe"), ERR_FORMAT, "not a regular file");
    expect_refusal(file_read_regular, "/dev/zero", ERR_FORMAT, "not a regular file");
    expect_refusal(file_read_regular, dir, ERR_FORMAT, "not a regular file");
}

/* A program without standard input reads its files as descriptor 0. */
TEST(a_file_may_be_the_first_descriptor)
{
    struct err err = {0};
    char *text = NULL;
    size_t n = 0;
    const char *path = at("abc");
    int own = dup(STDIN_FILENO);
    assert_true(own >= 0);
    close(STDIN_FILENO);
    int rc = file_read(path, 3, &text, &n, &err);
    struct stat st;
    int is_open = fstat(STDIN_FILENO, &st);
    assert_int_equal(dup2(own, STDIN_FILENO), STDIN_FILENO);
    close(own);
    assert_int_equal(rc, 0);
    assert_int_equal(is_open, -1);
    assert_int_equal(n, 3);
    free(text);
}

/* Bytes are written at the descriptor's position, or at an offset, which leaves the position
 * alone. */
TEST(writes_all_bytes)
{
    char *text;
    size_t n;
    int fd = open(at("out"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(file_write_all(fd, "one ", 4, -1), 0);
    assert_int_equal(file_write_all(fd, "two", 3, -1), 0);
    assert_int_equal(file_write_all(fd, "ON", 2, 0), 0);
    assert_int_equal(file_write_all(fd, "!", 1, 9), 0);
    assert_int_equal(file_write_all(fd, "", 0, -1), 0);
    assert_int_equal(lseek(fd, 0, SEEK_CUR), 7);
    close(fd);
    assert_int_equal(file_read(at("out"), 100, &text, &n, NULL), 0);
    assert_int_equal(n, 10);
    assert_memory_equal(text, "ONe two\0\0!", 10);
    free(text);
    fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    assert_int_equal(file_write_all(fd, "x", 1, -1), -ENOSPC);
    close(fd);
    fd = open(at("out"), O_RDONLY | O_CLOEXEC);
    assert_int_equal(file_write_all(fd, "x", 1, 3), -EBADF);
    close(fd);
}

/* The file's size is limited to N bytes. The first write() stores N bytes, and the write() of the
 * remaining 5 bytes fails. */
TEST(a_part_is_followed_by_the_rest)
{
    enum { N = 1 << 20 };
    struct rlimit old, small;
    struct stat st;
    char *bytes = calloc(1, N + 5);
    int fd = open(at("large"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){.rlim_cur = N, .rlim_max = old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        int rc = file_write_all(fd, bytes, N + 5, i == 0 ? -1 : 0);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(rc, -EFBIG);
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(st.st_size, N);
    }
    signal(SIGXFSZ, SIG_DFL);
    close(fd);
    free(bytes);
}

TEST(a_write_of_nothing_is_a_fault)
{
    int fd = open(at("nothing"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    for (int offset = -1; offset < 1; offset++) {
        stores_nothing = true;
        assert_int_equal(file_write_all(fd, "x", 1, offset), -EIO);
    }
    close(fd);
}

int main(void)
{
    return unit_run(setup, tempdir_end);
}
