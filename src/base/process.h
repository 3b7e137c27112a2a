/* process.h - which process has a file open, and how much memory this one may still take. */
#ifndef BASE_PROCESS_H
#define BASE_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Writes "process 1234 (hcache serve ...)" for the first other process that has the file
 * open, or for this one, where it does.  False where none is found: other users'
 * processes are visible to root only. */
bool process_with_file(uint64_t device, uint64_t inode, char *out, size_t n);

/* Returns how many bytes this process may still take: what the system calls available, and no more
 * than its control group has left.  0 where neither says anything. */
uint64_t process_memory_left(void);
/* Returns the most memory that this process has had resident, in bytes. */
uint64_t process_memory_peak(void);

#endif
