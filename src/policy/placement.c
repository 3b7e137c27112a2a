/* placement.c - see placement.h. */
#include "policy/placement.h"

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
                    struct placement_window *window, struct placement_learn *learn)
{
    *p = (struct placement){.kind = kind, .window = window, .learn = learn};
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

/* The item's rank or order has changed. */
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

static uint64_t turn_of(const struct placement *p, const struct placement_item *item)
{
    return placement_looks_ahead(p->kind) && p->window != NULL && item->id != 0
               ? placement_window_turn(p->window, item->id)
               : PLACEMENT_NO_TURN;
}

/* An item whose next use is known gives one use for the time until then.  Where that is less than
 * the price it is worth nothing; else it is kept until twice that time has passed. */
static uint64_t worth_until(const struct placement *p, const struct placement_item *item)
{
    uint64_t wait = item->due_time > item->used_time ? item->due_time - item->used_time : 1;
    return p->learn == NULL || (double)wait * p->learn->price <= 1 ? 2 * wait : 0;
}

static uint64_t worth_of(const struct placement *p, const struct placement_item *item,
                         uint64_t lot)
{
    if (item->due_time != 0)
        return worth_until(p, item);
    return p->learn != NULL
               ? placement_learn_worth(p->learn,
                                       placement_class_used(item->class, item->n_uses), lot)
               : 0;
}

/* Sets the order that follows from what the item remembers.  That of fifo, lfu and belady follows
 * from the use alone (order_at_use), and stays. */
static void order_from_memory(const struct placement *p, struct placement_item *item)
{
    if (p->kind == PLACEMENT_LRU || p->kind == PLACEMENT_ATTENTIONSTORE)
        item->order = item->used_at;
    else if (p->kind == PLACEMENT_OURS)
        item->order = (uint64_t)item->used_time + item->worth;
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

/* The rank, and the order within the upcoming ones or that of the policy. */
static void rank(const struct placement *p, struct placement_item *item)
{
    uint64_t turn = turn_of(p, item);
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
    item->class = use->class;
    if (item->n_uses < UINT16_MAX)
        item->n_uses++;
    if (p->learn != NULL)
        placement_learn_used(p->learn, item->id,
                             placement_class_used(item->class, item->n_uses), use->time);
    item->worth = (uint32_t)worth_of(p, item, use->lot);
    order_from_memory(p, item);
    order_at_use(p, item, is_first, use);
    rank(p, item);
    reorder(h, item);
}

void placement_evicted(struct placement *p, const struct placement_item *item,
                       uint64_t n_items)
{
    if (p->kind == PLACEMENT_LFU && item->rank == PLACEMENT_ORDINARY)
        p->age = item->order;
    if (p->learn != NULL)
        placement_learn_evicted(p->learn, n_items);
}

/* --- what may be evicted ---------------------------------------------------------------------- */

void placement_insert(struct placement *p, struct placement_part *h,
                      struct placement_item *item)
{
    CHECK(item->slot == 0 && h->n < h->max);
    rank(p, item); /* the window may have changed while it was in no part */
    h->slot[h->n] = item;
    move_up(h, h->n++);
}

void placement_remove(struct placement_part *h, struct placement_item *item)
{
    CHECK(item->slot > 0 && item->slot <= h->n && h->slot[item->slot - 1] == item);
    uint32_t at = item->slot - 1;
    item->slot = 0;
    struct placement_item *last = h->slot[--h->n];
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

bool placement_audit(const struct placement_part *h, const struct placement_item *item)
{
    if (item->slot == 0)
        return true;
    uint32_t at = item->slot - 1;
    return at < h->n && h->slot[at] == item &&
           (at == 0 || !placement_goes_before(item, h->slot[(at - 1) / 2]));
}
