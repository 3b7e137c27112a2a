/* carve.c - see carve.h. */
#include "cuda/carve.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/mem.h"

void carve_init(struct carve *c, size_t bytes)
{
    *c = (struct carve){.bytes = bytes / CARVE_ALIGN * CARVE_ALIGN};
}

void carve_deinit(struct carve *c)
{
    free(c->taken);
    *c = (struct carve){0};
}

/* Gap i lies between taken[i - 1] and taken[i]; the first gap begins at 0, the last one ends at the
 * end of the memory. */
static size_t gap_begin(const struct carve *c, int i)
{
    return i > 0 ? c->taken[i - 1].end : 0;
}
static size_t gap_end(const struct carve *c, int i)
{
    return i < c->n ? c->taken[i].begin : c->bytes;
}

bool carve_take(struct carve *c, size_t n_bytes, size_t *at)
{
    CHECK(n_bytes > 0);
    if (n_bytes > c->bytes)
        return false;
    size_t room = round_up(n_bytes, CARVE_ALIGN);
    int i = 0;
    while (i <= c->n && gap_end(c, i) - gap_begin(c, i) < room)
        i++;
    if (i > c->n)
        return false;
    GROW(c->taken, c->n, c->cap);
    *at = gap_begin(c, i);
    memmove(&c->taken[i + 1], &c->taken[i], (size_t)(c->n++ - i) * sizeof *c->taken);
    c->taken[i] = (struct carve_part){*at, *at + room};
    return true;
}

bool carve_give(struct carve *c, size_t at)
{
    int i = 0;
    while (i < c->n && c->taken[i].begin != at)
        i++;
    if (i == c->n)
        return false;
    memmove(&c->taken[i], &c->taken[i + 1], (size_t)(--c->n - i) * sizeof *c->taken);
    return true;
}

size_t carve_unused(const struct carve *c)
{
    size_t bytes = 0;
    for (int i = 0; i <= c->n; i++)
        bytes += gap_end(c, i) - gap_begin(c, i);
    return bytes;
}
