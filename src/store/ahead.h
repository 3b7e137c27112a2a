/* ahead.h - a thread that has the system provide a region's memory before it is used; private to
 * src/store.
 *
 * The system provides memory page by page as it is first used, and zeroes it then.  That takes
 * longer than receiving the same bytes from another server, so a store in memory that fetches has
 * its next bytes provided meanwhile:
 *
 *     region   |#### used ####|==== provided ====|......................|
 *                             '-- ahead_bytes ---'
 *
 * The thread has the lowest priority.  Without it, memory comes as it is used. */
#ifndef STORE_AHEAD_H
#define STORE_AHEAD_H

#include <stdint.h>

struct ahead;

/* Provides ahead_bytes behind the last used byte.  Returns NULL if no thread can be created.  All
 * functions below allow NULL, on any thread. */
struct ahead *ahead_create(uint64_t ahead_bytes);
void ahead_destroy(struct ahead *a);

/* Follows this region from now on, from its first byte, and stops following the one before. */
void ahead_follow(struct ahead *a, uint8_t *base, uint64_t n_bytes);
/* The region's bytes up to here are in use. */
void ahead_use(struct ahead *a, const uint8_t *base, uint64_t end_bytes);
/* Leaves the region alone: its memory may be given back after the return. */
void ahead_leave(struct ahead *a, const uint8_t *base);
/* Waits until the memory ahead of the followed region's used bytes is provided; returns its
 * bytes. */
uint64_t ahead_await(struct ahead *a);

#endif
