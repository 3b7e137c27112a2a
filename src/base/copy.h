/* copy.h - copies of what nobody reads soon.
 *
 * An ordinary copy first reads the lines that it overwrites, and leaves them in the caches
 * instead of what was there: twice the traffic, for nothing where the next to read them is a
 * device, or somebody much later. */
#ifndef BASE_COPY_H
#define BASE_COPY_H

#include <stddef.h>

/* dst[0..n) = src, whole cache lines of it past the caches.  Other threads may look once
 * copy_past_caches_end has been called by the one that copied. */
void copy_past_caches(void *dst, const void *src, size_t n);
void copy_past_caches_end(void);

#endif
