/* process.h - which process has a file open: for messages that name who is in the way. */
#ifndef BASE_PROCESS_H
#define BASE_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Writes "process 1234 (hcache serve ...)" for the first other process that has the file open, or for
 * this one, where it does.  False where none is found: other users' processes are visible to root
 * only. */
bool process_with_file(uint64_t device, uint64_t inode, char *out, size_t n);

#endif
