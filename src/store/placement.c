/* placement.c - see placement.h. */
#include "store/placement.h"

#include <stddef.h>
#include <string.h>

#include "base/check.h"

const char *const placement_names[PLACEMENT_KINDS + 1] = {
    "lru", "fifo", "lfu", "attentionstore", "ours", "belady", NULL,
};

int placement_kind_of(const char *name)
{
    for (int i = 0; i < PLACEMENT_KINDS; i++)
        if (strcmp(name, placement_names[i]) == 0)
            return i;
    return -1;
}

bool placement_looks_ahead(enum placement_kind kind)
{
    return kind == PLACEMENT_ATTENTIONSTORE || kind == PLACEMENT_OURS;
}

void placement_init(struct placement *p, enum placement_kind kind,
                    struct placement_window *window)
{
    *p = (struct placement){.kind = kind, .window = window};
}

/* --- the heap of a part ----------------------------------------------------------------------- */

bool placement_goes_before(const struct placement_item *x, const struct placement_item *y)
{
    if (x->rank != y->rank)
        return x->rank < y->rank;
    return x->order != y->order ? x->order < y->order : x->used_at < y->used_at;
}

static void put(struct placement_part *h, uint32_t at, struct placement_item *item)
{
    h->slot[at] = item;
    item->slot = at + 1;
}

static void move_up(struct placement_part *h, uint32_t at)
{
    struct placement_item *item = h->slot[at];
    while (at > 0 && placement_goes_before(item, h->slot[(at - 1) / 2])) {
        put(h, at, h->slot[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put(h, at, item);
}

static void move_down(struct placement_part *h, uint32_t at)
{
    struct placement_item *item = h->slot[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= h->n)
            break;
        if (child + 1 < h->n && placement_goes_before(h->slot[child + 1], h->slot[child]))
            child++;
        if (!placement_goes_before(h->slot[child], item))
            break;
        put(h, at, h->slot[child]);
        at = child;
    }
    put(h, at, item);
}

/* Call when the item's rank, order or last use has changed. */
static void reorder(struct placement_part *h, const struct placement_item *item)
{
    if (item->slot == 0)
        return;
    CHECK(item->slot <= h->n && h->slot[item->slot - 1] == item);
    move_up(h, item->slot - 1);
    move_down(h, item->slot - 1);
}

void placement_set_slots(struct placement_part *h, struct placement_item **slot,
                         uint32_t max)
{
    CHECK(max >= h->n);
    h->slot = slot;
    h->max = max;
}

/* --- the policies ----------------------------------------------------------------------------- */

/* Returns the turn at which content counts as needed. Under `ours` it is earlier if more
 * requests need the content. */
static uint64_t turn_of(const struct placement *p, uint64_t id)
{
    const struct placement_window *w = p->window;
    if (!placement_looks_ahead(p->kind) || w == NULL || id == 0)
        return PLACEMENT_NO_TURN;
    uint64_t turn = placement_window_turn(w, id);
    if (turn == PLACEMENT_NO_TURN || p->kind != PLACEMENT_OURS)
        return turn;
    uint64_t ahead = w->step *
                     (31u - (uint32_t)__builtin_clz(placement_window_count(w, id)));
    return turn > ahead ? turn - ahead : 0;
}

/* Returns how much longer an item counts as used because a client has told when it will be used
 * again. */
static uint64_t hinted(const struct placement_item *item)
{
    if (item->due_time == 0)
        return 0;
    return item->due_time > item->used_time
               ? 2 * (uint64_t)(item->due_time - item->used_time)
               : 2;
}

/* Sets the order that follows from the item's own fields. The order of fifo, lfu and belady
 * follows from the use alone (order_at_use), and stays. */
static void order_from_memory(const struct placement *p, struct placement_item *item)
{
    if (p->kind == PLACEMENT_LRU || p->kind == PLACEMENT_ATTENTIONSTORE)
        item->order = item->used_at;
    else if (p->kind == PLACEMENT_OURS)
        item->order = item->used_time + hinted(item);
}

static void order_at_use(const struct placement *p, struct placement_item *item,
                         bool is_first, const struct placement_use *use)
{
    if (p->kind == PLACEMENT_FIFO && is_first)
        item->order = use->at;
    else if (p->kind == PLACEMENT_LFU)
        item->order = item->n_uses + p->age;
    else if (p->kind == PLACEMENT_BELADY)
        item->order = ~use->next;
}

/* Sets the item's rank, and its order: among upcoming items by turn, else by the policy. */
static void rank(const struct placement *p, struct placement_item *item)
{
    uint64_t turn = turn_of(p, item->id);
    bool was_upcoming = item->rank == PLACEMENT_UPCOMING;
    item->rank = item->is_kept               ? PLACEMENT_KEPT
                 : item->is_dropped          ? PLACEMENT_DROPPED
                 : turn != PLACEMENT_NO_TURN ? PLACEMENT_UPCOMING
                                             : PLACEMENT_ORDINARY;
    if (item->rank == PLACEMENT_UPCOMING)
        item->order = ~turn;
    else if (was_upcoming)
        order_from_memory(p, item);
}

void placement_touch(struct placement *p, struct placement_part *h,
                     struct placement_item *item, const struct placement_use *use)
{
    bool is_first = item->used_at == 0;
    item->used_at = use->at;
    item->used_time = use->time;
    item->due_time = use->reuse_in > 0 ? use->time + use->reuse_in : 0;
    if (item->n_uses < UINT16_MAX)
        item->n_uses++;
    order_from_memory(p, item);
    order_at_use(p, item, is_first, use);
    rank(p, item);
    reorder(h, item);
}

void placement_evicted(struct placement *p, const struct placement_item *item)
{
    if (p->kind == PLACEMENT_LFU && item->rank == PLACEMENT_ORDINARY)
        p->age = item->order;
}

/* --- the items that may be evicted ------------------------------------------------------------ */

void placement_insert(struct placement *p, struct placement_part *h,
                      struct placement_item *item)
{
    CHECK(item->slot == 0 && h->n < h->max);
    rank(p, item); /* the window may have changed while the item was in no part */
    put(h, h->n++, item);
    move_up(h, h->n - 1);
}

void placement_remove(struct placement_part *h, struct placement_item *item)
{
    uint32_t at = item->slot - 1;
    CHECK(item->slot > 0 && at < h->n && h->slot[at] == item);
    struct placement_item *last = h->slot[--h->n];
    item->slot = 0;
    if (last == item)
        return;
    put(h, at, last);
    reorder(h, last);
}

void placement_keep(struct placement *p, struct placement_part *h,
                    struct placement_item *item, bool is_kept)
{
    item->is_kept = is_kept;
    placement_review(p, h, item);
}

void placement_drop(struct placement *p, struct placement_part *h,
                    struct placement_item *item, bool is_dropped)
{
    item->is_dropped = is_dropped;
    placement_review(p, h, item);
}

void placement_review(struct placement *p, struct placement_part *h,
                      struct placement_item *item)
{
    if (p != NULL)
        rank(p, item);
    reorder(h, item);
}

struct placement_item *placement_victim(const struct placement_part *h)
{
    return h->n > 0 ? h->slot[0] : NULL;
}

bool placement_admits(const struct placement *p, const struct placement_item *victim,
                      uint64_t id, uint64_t next)
{
    if (p->kind == PLACEMENT_BELADY)
        return next < ~victim->order;
    return p->kind != PLACEMENT_OURS || victim->rank != PLACEMENT_UPCOMING ||
           turn_of(p, id) < ~victim->order;
}

bool placement_audit(const struct placement_part *h, const struct placement_item *item)
{
    if (item->slot == 0)
        return true;
    uint32_t at = item->slot - 1;
    return at < h->n && h->slot[at] == item &&
           (at == 0 || !placement_goes_before(item, h->slot[(at - 1) / 2]));
}
