/* layer_set.h - a set of a model's layers, as a plain value.
 *
 * All functions are pure. */
#ifndef BASE_LAYER_SET_H
#define BASE_LAYER_SET_H

#include <stdbool.h>
#include <stdint.h>

enum { LAYER_SET_MAX = 256 }; /* layers that a set can hold: 0 to 255 */

struct layer_set {
    uint64_t word[LAYER_SET_MAX / 64];
};

static inline bool layer_set_has(const struct layer_set *s, int l)
{
    return l >= 0 && l < LAYER_SET_MAX && (s->word[l / 64] >> (l % 64) & 1);
}

/* Adds layer l; does nothing if no set can hold it. */
static inline void layer_set_add(struct layer_set *s, int l)
{
    if (l >= 0 && l < LAYER_SET_MAX)
        s->word[l / 64] |= (uint64_t)1 << (l % 64);
}

static inline bool layer_set_is_empty(const struct layer_set *s)
{
    return (s->word[0] | s->word[1] | s->word[2] | s->word[3]) == 0;
}

/* Returns the set of layers [first, end) that a set can hold. */
static inline struct layer_set layer_set_run(int first, int end)
{
    struct layer_set s = {{0}};
    for (int l = first; l < end; l++)
        layer_set_add(&s, l);
    return s;
}

/* Returns the last layer in [0, end) that is not in the set; -1: there is none. */
static inline int layer_set_last_out(const struct layer_set *s, int end)
{
    int l = end - 1;
    while (l >= 0 && layer_set_has(s, l))
        l--;
    return l;
}

#endif
