/* mem.h - allocation.
 *
 * Small allocations cannot usefully fail on a machine that runs models: xmalloc and friends end the
 * program with a message.  Big, configured ones (weights, pools, staging) go through mem_map, which
 * returns NULL so that the caller can say how much was needed and what to change.
 * mem_map memory is page-aligned, zeroed and not touched until used. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stddef.h>

void *xmalloc(size_t n);
void *xcalloc(size_t n, size_t size);
void *xrealloc(void *p, size_t n);
char *xstrdup(const char *s);
char *xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

void *mem_map(size_t n); /* NULL with errno set where it cannot be had */
void mem_unmap(void *p, size_t n);

#endif
