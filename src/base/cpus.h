/* cpus.h - how many processors this process may use. */
#ifndef BASE_CPUS_H
#define BASE_CPUS_H

/* Returns the number of processors that this process may be scheduled on (taskset, cpusets),
 * limited by its control group's quota (a container with 2 of 64 processors sees all 64).  At least
 * 1. Any thread may call it. */
int cpus_usable(void);

/* Returns how many of n processors a quota of `quota` per `period` (same unit) allows, rounded up.
 * quota <= 0 or period <= 0 means no quota, and n is returned. */
int cpus_under_quota(int n, long long quota, long long period);

#endif
