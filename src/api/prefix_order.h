/* prefix_order.h - which of many waiting prompts is computed next: the longest common prefix
 * first.
 *
 * The state of a computed prompt stays on the device until others need the room. So the next
 * prompt is the one that shares the most tokens with the prompt before it. If none shares a
 * whole block with it, the next is one of the two waiting prompts that share the most tokens
 * with each other.
 *
 * Taken in this order, prompts walk the tree of their prefixes depth first: all prompts below a
 * common prefix are taken before the walk leaves it. So each prefix is computed once if the
 * device has room for one path of the tree, and no other order computes fewer tokens.
 *
 * Pure: no clock, no allocation. Taking all of n prompts compares each prompt's tokens O(log n)
 * times. */
#ifndef API_PREFIX_ORDER_H
#define API_PREFIX_ORDER_H

#include <stdint.h>

/* State is shared in blocks of this many tokens. */
enum { PREFIX_BLOCK_TOKENS = 64 };

struct prefix_item {
    const int32_t *tokens; /* [n] */
    int n;
    uint64_t group;  /* prompts of different groups share nothing */
    uint64_t number; /* index in the order of arrival; no two are equal */
    int with_left;   /* tokens shared with the item before it in the sorted order */
};

struct prefix_order {
    struct prefix_item **items; /* [cap], the caller's memory; sorted by group and tokens */
    int n, cap;
};

void prefix_order_init(struct prefix_order *o, struct prefix_item **items, int cap);
/* Adds a waiting prompt, which is borrowed until it is taken. Needs o->n < o->cap. */
void prefix_order_add(struct prefix_order *o, struct prefix_item *item);
/* Takes the next prompt out of the order and returns it, or NULL if the order is empty. `last` is
 * the prompt that was taken before this one, or a copy of it; NULL if there was none. */
struct prefix_item *prefix_order_take(struct prefix_order *o,
                                      const struct prefix_item *last);

/* Returns how many tokens a and b have in common from the first one on. */
int prefix_shared(const struct prefix_item *a, const struct prefix_item *b);

#endif
