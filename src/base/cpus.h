/* cpus.h - how many processors this process may use. */
#ifndef BASE_CPUS_H
#define BASE_CPUS_H

/* Those that it may be scheduled on (taskset, cpusets), but no more than its
 * control group has the time of (a container that is given 2 of 64 processors sees
 * all 64).  At least 1. Any thread. */
int cpus_usable(void);

/* What a quota of `quota` in each `period` (same unit) leaves of n processors: a part of one
 * counts as one. quota <= 0 or period <= 0: no quota. */
int cpus_under_quota(int n, long long quota, long long period);

#endif
