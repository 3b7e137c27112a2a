/* arena.h - many small allocations that end together: of a request, of a parse.
 *
 * One region of a fixed bound; an allocation moves a mark, nothing is freed singly.  Pointers
 * stay valid until arena_deinit.  The region's pages cost memory only once they
 * are used.  An arena belongs to one thread at a time. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>

struct arena {
    char *base;
    size_t used_bytes;
    size_t max_bytes;
};

/* 0, or -errno where the address space cannot be had. */
int arena_init(struct arena *a, size_t max_bytes);
void arena_deinit(struct arena *a);

/* n bytes, 16-byte aligned, not initialised; NULL where the bound would be passed: user input
 * decides how much a request needs, so callers check. */
void *arena_alloc(struct arena *a, size_t n);
char *arena_strndup(struct arena *a, const char *s, size_t n); /* with a final zero */

#endif
