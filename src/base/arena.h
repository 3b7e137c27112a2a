/* arena.h - many small allocations that are freed together, for example those of one request.
 *
 * An arena is one region with a fixed bound.  An allocation advances used_bytes; no allocation is
 * freed alone. Pointers stay valid until arena_deinit.  The region's pages use memory only once
 * they are written. An arena belongs to one thread at a time. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>

struct arena {
    char *base;
    size_t used_bytes;
    size_t max_bytes;
};

/* Makes an arena of at most max_bytes. Returns 0, or -errno if there is no address space. */
int arena_init(struct arena *a, size_t max_bytes);
void arena_deinit(struct arena *a);

/* Returns n bytes, 16-byte aligned and not initialised, or NULL if the bound would be exceeded.
 * Callers must check: user input decides how much a request needs. */
void *arena_alloc(struct arena *a, size_t n);
/* returns a copy of s[0..n) that ends with a zero byte */
char *arena_strndup(struct arena *a, const char *s, size_t n);

#endif
