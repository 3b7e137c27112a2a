/* cpus.c - see cpus.h. */
#include "base/cpus.h"
#include "base/minmax.h"

#include <sched.h>
#include <stdio.h>
#include <unistd.h>

/* Returns n limited by the control group's quota.  In a namespace of its own, as in a container, a
 * process sees its own control group at the root of the cgroup file system.  Elsewhere the root has
 * no quota, and n is returned. */
static int under_group(int n)
{
    long long quota, period;
    /* The file holds "max 100000" if there is no quota. */
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (f != NULL) {
        int n_read = fscanf(f, "%lld %lld", &quota, &period);
        fclose(f);
        return n_read == 2 ? cpus_under_quota(n, quota, period) : n;
    }
    /* Version 1 of control groups: the first file holds -1 if there is no quota. */
    f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "re");
    FILE *g = fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "re");
    if (f != NULL && g != NULL && fscanf(f, "%lld", &quota) == 1 &&
        fscanf(g, "%lld", &period) == 1)
        n = cpus_under_quota(n, quota, period);
    if (f != NULL)
        fclose(f);
    if (g != NULL)
        fclose(g);
    return n;
}

int cpus_under_quota(int n, long long quota, long long period)
{
    if (quota <= 0 || period <= 0)
        return n;
    long long at_most = quota / period + (quota % period != 0);
    return at_most < n ? (int)at_most : n;
}

int cpus_usable(void)
{
    cpu_set_t set;
    /* The call fails on a machine with more processors than cpu_set_t has bits. */
    int n = sched_getaffinity(0, sizeof set, &set) == 0
                ? CPU_COUNT(&set)
                : (int)sysconf(_SC_NPROCESSORS_ONLN);
    return under_group(MAX(n, 1));
}
