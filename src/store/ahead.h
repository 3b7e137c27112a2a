/* ahead.h - threads that have the system provide a region's memory before it is used; private to
 * src/store.
 *
 * The system provides and zeroes memory page by page at its first use. That takes 0.1 to 0.3 ns a
 * byte, or 1.2 ns if the host of a virtual machine must provide the page, too (docs/perf/). It is
 * more than receiving the same bytes from another server takes. Beside decodes it was 40 times the
 * processor time of the rest of a fetch from the disk. So memory is provided before its use:
 *
 *     region   |#### used ####|==== provided ====|......................|
 *                             '-- ahead_bytes ---'
 *
 * AHEAD_BESIDE: one thread that uses idle processor time only, beside other work.
 * AHEAD_AT_ONCE: one thread per processor, at most 8, for memory that the caller waits for.
 *
 * If no thread starts, memory comes at its first use. The lock is private: no other lock is taken
 * inside it. */
#ifndef STORE_AHEAD_H
#define STORE_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

/* The usual value of ahead_bytes. 64 MiB were too few for contexts of 67 MB that follow each other
 * without a pause. */
#define AHEAD_BYTES ((uint64_t)256 << 20)

struct ahead;
enum ahead_pace { AHEAD_BESIDE, AHEAD_AT_ONCE };

/* Creates the threads. They provide memory ahead: ahead_bytes behind the last used byte. Returns
 * NULL if no thread can be created. All functions below allow NULL, on any thread. */
struct ahead *ahead_create(uint64_t ahead_bytes, enum ahead_pace pace);
void ahead_destroy(struct ahead *a);

/* Follows this region from now on, from its first byte, and stops following the previous region. */
void ahead_follow(struct ahead *a, uint8_t *base, uint64_t n_bytes);
/* Notes that the region's bytes up to end_bytes are in use. */
void ahead_use(struct ahead *a, const uint8_t *base, uint64_t end_bytes);
/* Stops following the region. Its memory may be given back after the return. */
void ahead_leave(struct ahead *a, const uint8_t *base);

/* Waits until the memory ahead of the followed region's used bytes is provided. Returns true then,
 * or false after timeout_ns. *n_bytes gets the end of the part provided so far; 0 without a
 * region. */
bool ahead_await(struct ahead *a, int64_t timeout_ns, uint64_t *n_bytes);
/* Returns the processor time, in seconds, that the system would take to provide memory for n_bytes
 * more of the region. Of the memory that is provided ahead, n_promised bytes are promised to others
 * and do not count. Returns 0 until the first piece is timed, and if the whole region is
 * provided. */
double ahead_price_s(struct ahead *a, uint64_t n_bytes, uint64_t n_promised);

#endif
