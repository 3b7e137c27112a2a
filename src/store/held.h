/* held.h - names of chunks whose state the store's caller holds in its own memory; private to
 * src/store.
 *
 * A counted set: a name that was added twice must be removed twice. Pure, except for its memory;
 * the store's lock protects it. If there is no memory for another name, the name is not known,
 * and nothing else changes: the set only affects the order in which copies are dropped. */
#ifndef STORE_HELD_H
#define STORE_HELD_H

#include <stdbool.h>
#include <stdint.h>

struct held_name {
    uint64_t name; /* 0: the place is free */
    uint32_t n;
};

struct held {
    struct held_name *place; /* [n_places]; n_places is a power of two, or 0 */
    uint32_t n_places, n_used;
};

void held_deinit(struct held *h);
/* Adds a name, which must not be 0. */
void held_add(struct held *h, uint64_t name);
/* Removes a name once. Does nothing if the name is not known. */
void held_remove(struct held *h, uint64_t name);
bool held_has(const struct held *h, uint64_t name);

#endif
