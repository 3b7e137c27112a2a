/* process.h - finds the process that has a file open, and the memory that this process may still
 * use. */
#ifndef BASE_PROCESS_H
#define BASE_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Writes "process 1234 (hcache serve ...)" for the first other process that has the file open. If
 * only this process has it open, writes "this process". Returns false if no process is found: only
 * root sees the files of other users' processes. */
bool process_with_file(uint64_t device, uint64_t inode, char *out, size_t n);

/* Returns how many bytes this process may still allocate: the system's available memory, limited by
 * the rest of its control groups.  0: not known. */
uint64_t process_memory_left(void);
/* Returns the smallest amount of memory left in the process's control groups and their ancestors;
 * UINT64_MAX if none has a limit. groups: the path of /proc/self/cgroup; root: of /sys/fs/cgroup.
 * Reads versions 1 and 2 of control groups. */
uint64_t process_group_memory_left(const char *groups, const char *root);

#endif
