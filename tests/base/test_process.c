/* test_process.c - the memory that the control groups of a process leave to it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <sys/stat.h>

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
    (void)state;
    tempdir_make(root, "process");
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    tempdir_remove(root);
    return 0;
}

/* 1000 of 3000 bytes are used, 300 of them by files that nobody has used lately. */
static void version_2_counts_idle_files_as_left(void **state)
{
    (void)state;
    folder("a");
    put("a/memory.max", "3000\n");
    put("a/memory.current", "1000\n");
    assert_int_equal(left("0::/a\n"), 2000);
    put("a/memory.stat", "anon 600\ninactive_file 300\nactive_file 100\n");
    assert_int_equal(left("0::/a\n"), 2300);
    put("a/memory.max", "max\n");
    assert_true(left("0::/a\n") == UINT64_MAX);
}

static void a_group_above_bounds_those_below(void **state)
{
    (void)state;
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
static void version_1_has_files_of_its_own(void **state)
{
    (void)state;
    const char *groups = "11:cpu,cpuacct:/x\n5:memoryless:/y\n4:memory:/job/one\n0::/job\n";
    folder("memory");
    folder("memory/job");
    folder("memory/job/one");
    put("memory/job/one/memory.limit_in_bytes", "8000\n");
    put("memory/job/one/memory.usage_in_bytes", "2000\n");
    put("memory/job/one/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n");
    assert_int_equal(left(groups), 6500);
    assert_true(left("5:memoryless:/job/one\n") == UINT64_MAX);
    assert_int_equal(left("3:hugetlb,memory:/job/one\n"), 6500);
}

/* A container without a name space of its own reads the host's path, which it cannot see. */
static void a_container_finds_its_group_at_the_top(void **state)
{
    (void)state;
    folder("memory");
    put("memory/memory.limit_in_bytes", "700\n");
    put("memory/memory.usage_in_bytes", "50\n");
    assert_int_equal(left("4:memory:/docker/0123\n"), 650);
    assert_true(left("no line of a group\n") == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(version_2_counts_idle_files_as_left, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(a_group_above_bounds_those_below, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(version_1_has_files_of_its_own, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(a_container_finds_its_group_at_the_top, make_root,
                                        remove_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
