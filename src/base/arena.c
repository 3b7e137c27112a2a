/* arena.c - see arena.h. */
#include "base/arena.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/mem.h"

#define ARENA_ALIGN 16

int arena_init(struct arena *a, size_t max_bytes)
{
    CHECK(max_bytes > 0);
    *a = (struct arena){.base = mem_map_sparse(max_bytes), .max_bytes = max_bytes};
    return a->base != NULL ? 0 : -errno;
}

void arena_deinit(struct arena *a)
{
    mem_unmap(a->base, a->max_bytes);
    *a = (struct arena){0};
}

void *arena_alloc(struct arena *a, size_t n)
{
    size_t begin = round_up(a->used_bytes, ARENA_ALIGN);
    if (begin > a->max_bytes || n > a->max_bytes - begin)
        return NULL;
    a->used_bytes = begin + n;
    return a->base + begin;
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *p = n < SIZE_MAX ? arena_alloc(a, n + 1) : NULL;
    if (p == NULL)
        return NULL;
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}
