/* held.c - see held.h. Open addressing: a name lies at the first free place from its own place on,
 * so all places between the two are in use. */
#include "store/held.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/mem.h"

enum { LEAST_PLACES = 64 };

void held_deinit(struct held *h)
{
    free(h->place);
    *h = (struct held){0};
}

/* Returns the place at which the search for a name begins. Names are parts of hashes, so they are
 * uniform; all are odd, so the lowest bit is dropped. */
static uint32_t first_place(const struct held *h, uint64_t name)
{
    return (uint32_t)(name >> 1) & (h->n_places - 1);
}

/* Returns the name's place, or the free place where it would lie. There is always a free one. */
static uint32_t find(const struct held *h, uint64_t name)
{
    uint32_t i = first_place(h, name);
    while (h->place[i].name != 0 && h->place[i].name != name)
        i = (i + 1) & (h->n_places - 1);
    return i;
}

/* Doubles the table. Returns false if there is no memory; then it stays as it is. */
static bool grow(struct held *h)
{
    struct held old = *h;
    uint32_t n = old.n_places == 0 ? LEAST_PLACES : 2 * old.n_places;
    struct held_name *place = mem_try_calloc(n, sizeof *place);
    if (place == NULL)
        return false;
    h->place = place;
    h->n_places = n;
    for (uint32_t i = 0; i < old.n_places; i++)
        if (old.place[i].name != 0)
            h->place[find(h, old.place[i].name)] = old.place[i];
    free(old.place);
    return true;
}

void held_add(struct held *h, uint64_t name)
{
    CHECK(name != 0);
    if (2 * (h->n_used + 1) > h->n_places && !grow(h))
        return;
    struct held_name *p = &h->place[find(h, name)];
    h->n_used += p->n == 0;
    p->name = name;
    p->n++;
}

/* Fills the free place `gap` with a later name that may lie there, then does the same with the
 * place that this name has left. */
static void close_gap(struct held *h, uint32_t gap)
{
    uint32_t mask = h->n_places - 1;
    for (uint32_t i = (gap + 1) & mask; h->place[i].name != 0; i = (i + 1) & mask) {
        uint32_t first = first_place(h, h->place[i].name);
        if (((i - first) & mask) < ((i - gap) & mask))
            continue;
        h->place[gap] = h->place[i];
        gap = i;
    }
    h->place[gap] = (struct held_name){0};
}

void held_remove(struct held *h, uint64_t name)
{
    if (h->n_used == 0)
        return;
    uint32_t i = find(h, name);
    if (h->place[i].name == 0 || --h->place[i].n > 0)
        return;
    h->n_used--;
    close_gap(h, i);
}

bool held_has(const struct held *h, uint64_t name)
{
    return h->n_used > 0 && h->place[find(h, name)].name != 0;
}
