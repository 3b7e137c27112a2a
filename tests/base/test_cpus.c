/* test_cpus.c - the number of usable processors under an affinity or a quota. */
#include "tests/unit.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cpus.h"

/* Contents of the files of control groups. NULL: the file does not exist. */
static const char *cpu_max, *quota_us, *period_us;
/* The machine has more processors than cpu_set_t has bits. */
static bool is_huge;

/* Replaces the C library's function: shows the control groups of the test. */
FILE *fopen(const char *path, const char *mode)
{
    const char *text = strcmp(path, "/sys/fs/cgroup/cpu.max") == 0 ? cpu_max
                       : strcmp(path, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us") == 0
                           ? quota_us
                           : period_us;
    (void)mode;
    FILE *f = text != NULL ? tmpfile() : NULL;
    if (f != NULL) {
        fputs(text, f);
        rewind(f);
    }
    return f;
}

/* Replaces the C library's function. */
int sched_getaffinity(pid_t pid, size_t n, cpu_set_t *set)
{
    memset(set, 0, n);
    if (!is_huge)
        return syscall(SYS_sched_getaffinity, pid, n, set) < 0 ? -1 : 0;
    errno = EINVAL;
    return -1;
}

TEST(quotas)
{
    assert_int_equal(cpus_under_quota(64, 200000, 100000), 2);
    /* two and a half count as three */
    assert_int_equal(cpus_under_quota(64, 250000, 100000), 3);
    assert_int_equal(cpus_under_quota(64, 30000, 100000), 1);
    assert_int_equal(cpus_under_quota(2, 6400000, 100000), 2);
    assert_int_equal(cpus_under_quota(8, -1, 100000), 8);
    assert_int_equal(cpus_under_quota(8, 0, 0), 8);
    assert_int_equal(cpus_under_quota(8, LLONG_MAX, 1), 8);
}

TEST(only_those_it_may_run_on)
{
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    assert_in_range(cpus_usable(), 1, CPU_COUNT(&all));
    CPU_ZERO(&one);
    for (int i = 0; CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(cpus_usable(), 1);
    /* where the affinity cannot be read, all processors count */
    is_huge = true;
    int n = cpus_usable();
    is_huge = false;
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(n, sysconf(_SC_NPROCESSORS_ONLN));
    assert_int_equal(cpus_usable(), CPU_COUNT(&all));
}

/* Version 2 of control groups has one file, version 1 has two. Version 2 is asked first. */
TEST(a_control_group_limits_the_processors)
{
    static const struct {
        const char *max, *quota, *period;
        bool is_one; /* whether one processor may be used, or all */
    } rows[] = {
        {"100000 100000\n", NULL, NULL, true}, {"50000 100000\n", NULL, NULL, true},
        {"max 100000\n", NULL, NULL, false},   {"max 100000\n", "1\n", "1\n", false},
        {"100000\n", NULL, NULL, false},       {NULL, "100000\n", "100000\n", true},
        {NULL, "-1\n", "100000\n", false},     {NULL, "100000\n", NULL, false},
        {NULL, NULL, "100000\n", false},       {NULL, "none\n", "100000\n", false},
        {NULL, "100000\n", "none\n", false},   {NULL, NULL, NULL, false},
    };
    cpu_set_t all;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cpu_max = rows[i].max;
        quota_us = rows[i].quota;
        period_us = rows[i].period;
        int n = cpus_usable();
        if (n != (rows[i].is_one ? 1 : CPU_COUNT(&all)))
            fail_msg("row %zu: %d of %d", i, n, CPU_COUNT(&all));
    }
    cpu_max = quota_us = period_us = NULL;
}
