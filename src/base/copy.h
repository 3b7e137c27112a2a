/* copy.h - copies that bypass the caches.
 *
 * An ordinary copy first reads the cache lines that it overwrites and then keeps them in the
 * caches, where they displace other lines.  If a device reads the copy next, or nobody reads it
 * soon, these extra reads gain nothing and double the memory traffic. */
#ifndef BASE_COPY_H
#define BASE_COPY_H

#include <stddef.h>

/* Copies src to dst[0..n); whole cache lines bypass the caches.  Other threads may read dst only
 * after the copying thread has called copy_past_caches_end. */
void copy_past_caches(void *dst, const void *src, size_t n);
void copy_past_caches_end(void);

#endif
