/* test_process.c - which process has a file open, and the memory that the control groups of a
 * process leave to it. */
#include "tests/unit.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/process.h"
#include "tests/base/tempdir.h"

static char root[TEMPDIR_BYTES];

static const char *at(const char *name)
{
    static char path[TEMPDIR_BYTES + 200];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static void put(const char *name, const char *text)
{
    FILE *f = fopen(at(name), "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void folder(const char *name)
{
    assert_int_equal(mkdir(at(name), 0755), 0);
}

static uint64_t left(const char *groups)
{
    char path[TEMPDIR_BYTES + 200];
    put("groups", groups);
    snprintf(path, sizeof path, "%s", at("groups"));
    return process_group_memory_left(path, root);
}

static int make_root(void **state)
{
    tempdir_make(root, "process");
    return 0;
}

static int remove_root(void **state)
{
    tempdir_remove(root);
    return 0;
}

/* 1000 of 3000 bytes are used, 300 of them by files that nobody has used lately. */
TEST_WITH(version_2_counts_idle_files_as_left, make_root, remove_root)
{
    folder("a");
    put("a/memory.max", "3000\n");
    put("a/memory.current", "1000\n");
    assert_int_equal(left("0::/a\n"), 2000);
    put("a/memory.stat", "anon 600\ninactive_file 300\nactive_file 100\n");
    assert_int_equal(left("0::/a\n"), 2400);
    /* more idle files than used memory count for nothing: the files overlap in time */
    put("a/memory.stat", "inactive_file 1000\n");
    assert_int_equal(left("0::/a\n"), 2000);
    put("a/memory.stat", "inactive_file 999\n");
    assert_int_equal(left("0::/a\n"), 2999);
    put("a/memory.stat", "inactive_file many\n");
    assert_int_equal(left("0::/a\n"), 2000);
    put("a/memory.current", "3000\n");
    assert_int_equal(left("0::/a\n"), 0);
    put("a/memory.current", "many\n");
    assert_true(left("0::/a\n") == UINT64_MAX);
    put("a/memory.current", "1000\n");
    put("a/memory.max", "max\n");
    assert_true(left("0::/a\n") == UINT64_MAX);
    assert_true(left("") == UINT64_MAX);
    assert_true(left("0:\n0\n:\n") == UINT64_MAX);
    put("a/memory.max", "3000\n");
    assert_int_equal(left("no line of a group\n0\n5:cpu:/a\n0::/a\n"), 2000);
}

TEST_WITH(a_group_above_bounds_those_below, make_root, remove_root)
{
    folder("a");
    folder("a/b");
    put("a/b/memory.max", "max\n");
    put("a/b/memory.current", "10\n");
    put("a/memory.max", "500\n");
    put("a/memory.current", "100\n");
    assert_int_equal(left("0::/a/b\n"), 400);
    put("a/memory.current", "600\n");
    assert_int_equal(left("0::/a/b\n"), 0);
}

/* In the process's list of groups, lines of other controllers come before that of `memory`; some
 * controllers have a similar name. */
TEST_WITH(version_1_has_files_of_its_own, make_root, remove_root)
{
    const char *groups = "11:cpu,cpuacct:/x\n5:memoryless:/y\n4:memory:/job/one\n0::/job\n";
    folder("memory");
    folder("memory/job");
    folder("memory/job/one");
    put("memory/job/one/memory.limit_in_bytes", "8000\n");
    put("memory/job/one/memory.usage_in_bytes", "2000\n");
    put("memory/job/one/memory.stat", "inactive_file 1\ntotal_inactive_file 300\n"
                                      "total_active_file 200\n");
    assert_int_equal(left(groups), 6500);
    assert_true(left("5:memoryless:/job/one\n") == UINT64_MAX);
    assert_int_equal(left("3:hugetlb,memory:/job/one\n"), 6500);
}

/* A container without a name space of its own reads the host's path, which it cannot see. */
TEST_WITH(a_container_finds_its_group_at_the_top, make_root, remove_root)
{
    folder("memory");
    put("memory/memory.limit_in_bytes", "700\n");
    put("memory/memory.usage_in_bytes", "50\n");
    assert_int_equal(left("4:memory:/docker/0123\n"), 650);
    assert_true(left("no line of a group\n") == UINT64_MAX);
}

/* Two groups bound the process: the smaller rest counts, whichever comes first. */
TEST_WITH(the_smallest_rest_counts, make_root, remove_root)
{
    folder("a");
    put("a/memory.max", "3000\n");
    put("a/memory.current", "1000\n");
    folder("memory");
    folder("memory/b");
    put("memory/b/memory.limit_in_bytes", "1500\n");
    put("memory/b/memory.usage_in_bytes", "1000\n");
    assert_int_equal(left("0::/a\n4:memory:/b\n"), 500);
    assert_int_equal(left("4:memory:/b\n0::/a\n"), 500);
    put("memory/b/memory.limit_in_bytes", "9000\n");
    assert_int_equal(left("0::/a\n4:memory:/b\n"), 2000);
    assert_int_equal(left("4:memory:/b\n0::/a\n"), 2000);
    assert_int_equal(left("4:cpu,memory,io:/b\n"), 8000);
    assert_true(left("4:cpumemory:/b\n") == UINT64_MAX);
}

/* Starts a process that has the file open under that name of a program. */
static pid_t opener(const char *path, const char *name)
{
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int fd = open(path, O_RDONLY);
        dup2(ready[1], STDOUT_FILENO);
        close(ready[0]);
        close(ready[1]);
        if (fd >= 0)
            execl("/bin/sh", name, "-c", "echo; read never", "a\tb", (char *)NULL);
        _exit(1);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

TEST_WITH(the_process_that_has_a_file_is_named, make_root, remove_root)
{
    char path[TEMPDIR_BYTES + 200], said[300] = "", want[300];
    struct stat st, other;
    put("file", "x");
    put("other", "x");
    snprintf(path, sizeof path, "%s", at("file"));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(stat(at("other"), &other), 0);
    assert_false(process_with_file(st.st_dev, st.st_ino, said, sizeof said));
    assert_string_equal(said, "");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(process_with_file(st.st_dev, st.st_ino, said, sizeof said));
    assert_string_equal(said, "this process");
    assert_false(process_with_file(other.st_dev, other.st_ino, said, sizeof said));
    assert_false(process_with_file(st.st_dev + 1, st.st_ino, said, sizeof said));

    int in[2], own = dup(STDIN_FILENO);
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    dup2(in[0], STDIN_FILENO);
    close(in[0]);
    pid_t pid = opener(path, "my server");
    bool found = process_with_file(st.st_dev, st.st_ino, said, sizeof said);
    close(in[1]);
    dup2(own, STDIN_FILENO);
    close(own);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    close(fd);
    assert_true(found);
    /* the other process is named first; a tab would spoil the line */
    snprintf(want, sizeof want, "process %ld (my server -c echo; read never a b)",
             (long)pid);
    assert_string_equal(said, want);
    assert_false(process_with_file(st.st_dev, st.st_ino, said, sizeof said));
}

TEST(left_memory_is_in_bytes)
{
    uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    assert_in_range(process_memory_left(), all / 10000, all);
}
