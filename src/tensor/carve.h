/* carve.h - which parts of one large piece of memory are taken.  Pure: it never touches the memory.
 *
 * For few, large parts that live long (weights, caches, staging): first fit in a sorted
 * array.  The caller serialises. */
#ifndef TENSOR_CARVE_H
#define TENSOR_CARVE_H

#include <stdbool.h>
#include <stddef.h>

struct carve_part {
    size_t begin, end;
};

struct carve {
    size_t bytes;
    struct carve_part *taken; /* in ascending order, disjoint */
    int n, cap;
};

/* Parts begin and end on multiples of this. */
#define CARVE_ALIGN ((size_t)4096)

void carve_init(struct carve *c, size_t bytes);
void carve_deinit(struct carve *c);
/* Takes n_bytes (> 0) at *at; false where no gap is as large. */
bool carve_take(struct carve *c, size_t n_bytes, size_t *at);
/* Gives the part that begins at `at` back; false where none does. */
bool carve_give(struct carve *c, size_t at);
size_t carve_unused(const struct carve *c); /* in all gaps */

#endif
