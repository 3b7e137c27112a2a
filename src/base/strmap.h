/* strmap.h - a map from byte strings to ids, built at open and then only read.
 *
 * Keys are borrowed: their bytes must outlive the map.  It is one array with open addressing, at
 * most half full; a lookup is a hash and nearly always one comparison. */
#ifndef BASE_STRMAP_H
#define BASE_STRMAP_H

#include <stddef.h>
#include <stdint.h>

struct strmap_slot {
    const char *key; /* NULL: the slot is empty */
    uint32_t n;
    int32_t id;
};

struct strmap {
    struct strmap_slot *slots;
    size_t mask; /* number of slots - 1 */
    size_t count, max;
};

void strmap_init(struct strmap *m, size_t max_keys);
void strmap_deinit(struct strmap *m); /* frees the map; a zeroed map is allowed */

/* Makes room for max_keys different keys in total. The room at least doubles each time, so
 * reserving keys one by one is cheap. */
void strmap_reserve(struct strmap *m, size_t max_keys);

/* Adds a key and returns id. If the key has an id already, changes nothing and returns that id. id
 * >= 0; n < 2^32. There may be at most max_keys different keys. */
int32_t strmap_add(struct strmap *m, const char *key, size_t n, int32_t id);

/* Returns the key's id, or -1 if the key is not there. */
int32_t strmap_find(const struct strmap *m, const char *key, size_t n);

#endif
