/* arena.h - the memory of copies in DRAM; private to src/store.
 *
 * The system provides the memory before its use (ahead.h):
 *
 *     all of it     from arena_open on, by one thread per processor. arena_await waits for the
 *                   end.
 *     a part ahead  by one thread of the lowest priority: ahead_bytes beyond the last byte that
 *                   was ever used. arena_price_s returns the cost of the rest.
 *
 * Memory from the caller's functions (store_memory) counts as provided. */
#ifndef STORE_ARENA_H
#define STORE_ARENA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "store/store.h"

struct arena;

struct arena_opts {
    uint64_t n_bytes;
    /* Memory provided beyond the last byte that was ever used; 0: 256 MiB. If it is at least
     * n_bytes, all memory is provided from arena_open on. */
    uint64_t ahead_bytes;
    struct store_memory memory; /* memory.get NULL: ordinary memory */
};

/* Maps the memory and starts the threads. Returns -ENOMEM if the memory cannot be mapped, or if all
 * of it is to be provided and the system has less left: in that case the system would kill a
 * process later. */
int arena_open(const struct arena_opts *o, struct arena **out, struct err *err);
/* Ends the threads and gives the memory back without zeroing it. */
void arena_close(struct arena *a);

/* Returns the address of the first byte. */
uint8_t *arena_bytes(const struct arena *a);

/* Notes that bytes before end_bytes are in use. */
void arena_use(struct arena *a, uint64_t end_bytes);

/* Returns the cost of memory for n_bytes more, in seconds of processor time: see ahead_price_s. */
double arena_price_s(struct arena *a, uint64_t n_bytes, uint64_t n_promised);

/* If all memory is provided from the start, waits for the end of that; returns false if it lasts
 * longer than timeout_ns. Otherwise returns true at once. *n_bytes gets the end of the part
 * provided so far. */
bool arena_await(struct arena *a, int64_t timeout_ns, uint64_t *n_bytes);

#endif
