/* erasing.h - what an erasure needs beyond the catalog: the requests that it refuses, the appends
 * that it may meet, and the erasures that wait.
 *
 * An erase takes, one after the other: erase_lock, wipe_lock, the commit's locks, the store's lock.
 *
 *   erase_lock   one erase (or gc) at a time; held across fsync. It protects owed, on_erased and
 *                owes_remains.
 *   wipe_lock    one thread at a time overwrites erased chunks; held across I/O
 *
 * The store's lock protects marks and writing.
 *
 * Invariants:
 * 1. An append that a mark concerns (erasures.h) becomes visible at no time: either it is refused,
 *    or its node is doomed when the mark is set.
 * 2. An owed erasure has taken its chunks out of the catalog. The file erase.owed lists it, if the
 *    disk could take the line. The chunks are wiped once the store can be written (owed.c). */
#ifndef STORE_ERASING_H
#define STORE_ERASING_H

#include <pthread.h>

#include "store/catalog.h"
#include "store/erasures.h"

/* An append that is under way, in the memory of its thread. */
struct store_writing {
    struct store_writing *next;
    const struct store_chunk *chunk;
    struct chunk_node *node;
};

/* Erasures that wait (owed.c): n entries; the file has the first n_noted. */
struct store_owed {
    const struct seal *seal; /* encrypts the entries; NULL: they are plain */
    uint8_t *entries;
    uint32_t n, n_noted;
};

struct erasing {
    pthread_mutex_t erase_lock, wipe_lock;
    struct erasures marks;
    struct store_writing *writing; /* a list */
    struct store_owed owed;
    void (*on_erased)(void *arg, const struct sha256 *keys, int n);
    void *on_erased_arg;
    bool owes_remains; /* an erase met a full disk, so free space must still be wiped */
};

#endif
