/* slots.h - a map from keys to indices of an array that has the keys.
 *
 * The caller hashes keys and compares them.  The map is one array with open addressing, at most
 * half full.  A slot is 32 bits: an index + 1 in the low ones, and above them bits of its key's
 * hash, which nearly always tell other keys apart; 0: it is empty.  A caller looks a key up with
 *
 *     uint32_t *s = slots_next(m, hash, NULL);
 *     while (*s != 0 && KEY OF slots_index(m, *s) IS ANOTHER)
 *         s = slots_next(m, hash, s);
 */
#ifndef BPE_SLOTS_H
#define BPE_SLOTS_H

#include <stdint.h>
#include <stdlib.h>

#include "base/mem.h"

struct slots {
    uint32_t *at; /* NULL: there is no map */
    uint32_t n, low;
    size_t count, max; /* number of keys, and the most of them */
};

/* Makes room for max keys with indices below max_index. */
static inline void slots_init(struct slots *m, size_t max, size_t max_index)
{
    *m = (struct slots){.n = (uint32_t)(2 * max + 1), .max = max};
    while (m->low < max_index)
        m->low = 2 * m->low + 1;
    m->at = xcalloc(m->n, sizeof *m->at);
}

static inline void slots_deinit(struct slots *m)
{
    free(m->at);
    *m = (struct slots){0};
}

/* Returns the index that a slot holds; -1: it is empty. */
static inline int64_t slots_index(const struct slots *m, uint32_t slot)
{
    return (int64_t)(slot & m->low) - 1;
}

/* Returns the first slot for a hash if slot is NULL, else the next one, that is empty or may hold a
 * key of this hash. */
static inline uint32_t *slots_next(const struct slots *m, uint64_t hash, uint32_t *slot)
{
    uint32_t i = slot == NULL ? (uint32_t)((hash & UINT32_MAX) * m->n >> 32)
                              : (uint32_t)(slot - m->at) + 1;
    for (;; i++) {
        i = i < m->n ? i : 0;
        if (m->at[i] == 0 || ((m->at[i] ^ (uint32_t)(hash >> 32)) & ~m->low) == 0)
            return &m->at[i];
    }
}

/* Gives a slot that slots_next returned an index. At most max empty slots may get one. */
static inline void slots_set(struct slots *m, uint32_t *slot, uint64_t hash, size_t index)
{
    m->count += *slot == 0;
    *slot = ((uint32_t)(hash >> 32) & ~m->low) | (uint32_t)(index + 1);
}

#endif
