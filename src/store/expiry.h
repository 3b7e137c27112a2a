/* expiry.h - when chunks with a time to live expire: a heap of nodes, the earliest on top.
 *
 * A node's entry may be too early: uses postpone its expiry without moving the entry. The caller
 * that takes the first node checks its last use and enters a later time if needed.
 *
 * Pure; each operation takes O(log n). */
#ifndef STORE_EXPIRY_H
#define STORE_EXPIRY_H

#include <stdint.h>

struct chunk_node;

struct expiry_entry {
    struct chunk_node *node;
    uint32_t at_s; /* earliest expiry, in seconds since 1970 */
};

struct expiry {
    struct expiry_entry *entry; /* [n] entries of a heap */
    uint32_t n, max;
};

void expiry_deinit(struct expiry *x);
/* Enters a node, or moves its entry. */
void expiry_set(struct expiry *x, struct chunk_node *n, uint32_t at_s);
/* Removes a node's entry, if it has one. */
void expiry_clear(struct expiry *x, struct chunk_node *n);
/* Returns the first entry, or NULL if there is none. */
const struct expiry_entry *expiry_first(const struct expiry *x);

#endif
