/* idset.c - see idset.h. */
#include "api/idset.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

static const unsigned char empty[16];

static void digest(const void *name, size_t n, unsigned char out[16])
{
    struct sha256 h = sha256_of(name, n);
    memcpy(out, h.b, 16);
}

/* Returns the digest's slot, or the empty slot where it belongs. */
static unsigned char *slot_of(const struct idset *s, const unsigned char d[16])
{
    uint64_t at;
    memcpy(&at, d, sizeof at);
    for (;; at++) {
        unsigned char *slot = s->slots[at & (s->cap - 1)];
        if (memcmp(slot, d, 16) == 0 || memcmp(slot, empty, 16) == 0)
            return slot;
    }
}

static void grow(struct idset *s)
{
    struct idset big = {.cap = s->cap > 0 ? 2 * s->cap : 256, .n = s->n};
    big.slots = xcalloc(big.cap, sizeof *big.slots);
    for (size_t i = 0; i < s->cap; i++)
        if (memcmp(s->slots[i], empty, 16) != 0)
            memcpy(slot_of(&big, s->slots[i]), s->slots[i], 16);
    free(s->slots);
    *s = big;
}

bool idset_add(struct idset *s, const void *name, size_t n)
{
    unsigned char d[16];
    if (2 * s->n >= s->cap)
        grow(s);
    digest(name, n, d);
    unsigned char *slot = slot_of(s, d);
    if (memcmp(slot, d, 16) == 0)
        return false;
    memcpy(slot, d, 16);
    s->n++;
    return true;
}

bool idset_has(const struct idset *s, const void *name, size_t n)
{
    unsigned char d[16];
    if (s->cap == 0)
        return false;
    digest(name, n, d);
    return memcmp(slot_of(s, d), d, 16) == 0;
}

void idset_free(struct idset *s)
{
    free(s->slots);
    *s = (struct idset){0};
}
