/* placement.c - see placement.h. */
#include "policy/placement.h"

#include <stddef.h>
#include <string.h>

#include "base/check.h"

bool placement_goes_before(const struct placement_item *x, const struct placement_item *y)
{
    return x->is_kept != y->is_kept ? y->is_kept : x->used_at < y->used_at;
}

static void put(struct placement *p, uint32_t at, struct placement_item *item)
{
    p->slot[at] = item;
    item->slot = at + 1;
}

static void move_up(struct placement *p, uint32_t at)
{
    struct placement_item *item = p->slot[at];
    while (at > 0 && placement_goes_before(item, p->slot[(at - 1) / 2])) {
        put(p, at, p->slot[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put(p, at, item);
}

static void move_down(struct placement *p, uint32_t at)
{
    struct placement_item *item = p->slot[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= p->n)
            break;
        if (child + 1 < p->n && placement_goes_before(p->slot[child + 1], p->slot[child]))
            child++;
        if (!placement_goes_before(p->slot[child], item))
            break;
        put(p, at, p->slot[child]);
        at = child;
    }
    put(p, at, item);
}

/* The item's order has changed. */
static void reorder(struct placement *p, const struct placement_item *item)
{
    if (item->slot == 0)
        return;
    move_up(p, item->slot - 1);
    move_down(p, item->slot - 1);
}

void placement_set_slots(struct placement *p, struct placement_item **slot, uint32_t max)
{
    CHECK(max >= p->n);
    p->slot = slot;
    p->max = max;
}

void placement_insert(struct placement *p, struct placement_item *item)
{
    CHECK(item->slot == 0 && p->n < p->max);
    p->slot[p->n] = item;
    move_up(p, p->n++);
}

void placement_remove(struct placement *p, struct placement_item *item)
{
    CHECK(item->slot > 0 && item->slot <= p->n && p->slot[item->slot - 1] == item);
    uint32_t at = item->slot - 1;
    item->slot = 0;
    struct placement_item *last = p->slot[--p->n];
    if (last == item)
        return;
    put(p, at, last);
    reorder(p, last);
}

void placement_touch(struct placement *p, struct placement_item *item, uint64_t used_at)
{
    item->used_at = used_at;
    reorder(p, item);
}

void placement_keep(struct placement *p, struct placement_item *item, bool is_kept)
{
    item->is_kept = is_kept;
    reorder(p, item);
}

struct placement_item *placement_victim(const struct placement *p)
{
    return p->n > 0 ? p->slot[0] : NULL;
}

bool placement_audit(const struct placement *p, const struct placement_item *item)
{
    if (item->slot == 0)
        return true;
    uint32_t at = item->slot - 1;
    return at < p->n && p->slot[at] == item &&
           (at == 0 || !placement_goes_before(item, p->slot[(at - 1) / 2]));
}
