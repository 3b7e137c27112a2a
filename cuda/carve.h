/* carve.h - records which parts of one large piece of memory are taken.  Pure: it never touches the
 * memory.
 *
 * It is for few, large, long-lived parts (weights, caches, staging): first fit in a sorted array.
 * The caller serialises calls. */
#ifndef CUDA_CARVE_H
#define CUDA_CARVE_H

#include <stdbool.h>
#include <stddef.h>

struct carve_part {
    size_t begin, end;
};

struct carve {
    size_t bytes;
    struct carve_part *taken; /* taken parts, in ascending order and disjoint */
    int n, cap;
};

/* Parts begin and end on multiples of this. */
#define CARVE_ALIGN ((size_t)4096)

void carve_init(struct carve *c, size_t bytes);
void carve_deinit(struct carve *c);
/* Takes n_bytes (> 0) and sets *at to their offset. Returns false if no gap is large enough. */
bool carve_take(struct carve *c, size_t n_bytes, size_t *at);
/* Frees the part that begins at `at`. Returns false if there is none. */
bool carve_give(struct carve *c, size_t at);
size_t carve_unused(const struct carve *c); /* total size of all gaps */

#endif
