/* idset.h - a set of names of any length at 16 bytes each. It holds the names of finished lines,
 * and of lines seen.
 *
 * A name is kept as the first half of its SHA-256.  One thread may use a set. */
#ifndef API_IDSET_H
#define API_IDSET_H

#include <stdbool.h>
#include <stddef.h>

struct idset {
    unsigned char (*slots)[16]; /* [cap] digests; all zeros: an empty slot */
    /* n: digests in the set; cap: number of slots, a power of two, or 0 */
    size_t n, cap;
};

/* {0} is an empty set.  idset_add returns whether the name is new. */
bool idset_add(struct idset *s, const void *name, size_t n);
bool idset_has(const struct idset *s, const void *name, size_t n);
void idset_free(struct idset *s);

#endif
