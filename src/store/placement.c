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
                    struct placement_window *window, struct placement_learn *learn)
{
    *p = (struct placement){.kind = kind, .window = window, .learn = learn};
}

/* --- the heaps of a part ---------------------------------------------------------------------- */

enum order { BY_POLICY, BY_USE };

static bool goes_before(enum order by, const struct placement_item *x,
                        const struct placement_item *y)
{
    if (x->rank != y->rank)
        return x->rank < y->rank;
    bool by_order = by == BY_POLICY || x->rank == PLACEMENT_UPCOMING;
    if (by_order && x->order != y->order)
        return x->order < y->order;
    return x->used_at < y->used_at;
}

/* Returns the order in which the tier evicts. When `ours` may not depart from LRU's order any
 * further, it follows LRU. An alternative was tried: evict the policy's victim if LRU would not
 * hold it either. An adversary who asks for the content that LRU is about to evict made this
 * policy 9.6 points worse than LRU, and no trace gained. */
static enum order order_of(const struct placement *p)
{
    bool is_bound = p != NULL && p->kind == PLACEMENT_OURS && p->learn != NULL &&
                    !placement_learn_may_depart(p->learn);
    return is_bound ? BY_USE : BY_POLICY;
}

bool placement_goes_before(const struct placement *p, const struct placement_item *x,
                           const struct placement_item *y)
{
    return goes_before(order_of(p), x, y);
}

static struct placement_item *item_at(const struct placement_part *h, enum order by,
                                      uint32_t at)
{
    return by == BY_POLICY ? h->slot[at].item : h->slot[at].oldest;
}

static uint32_t place_of(const struct placement_item *item, enum order by)
{
    return by == BY_POLICY ? item->slot : item->age_slot;
}

static void put(struct placement_part *h, enum order by, uint32_t at,
                struct placement_item *item)
{
    if (by == BY_POLICY) {
        h->slot[at].item = item;
        item->slot = at + 1;
    } else {
        h->slot[at].oldest = item;
        item->age_slot = at + 1;
    }
}

static void move_up(struct placement_part *h, enum order by, uint32_t at)
{
    struct placement_item *item = item_at(h, by, at);
    while (at > 0 && goes_before(by, item, item_at(h, by, (at - 1) / 2))) {
        put(h, by, at, item_at(h, by, (at - 1) / 2));
        at = (at - 1) / 2;
    }
    put(h, by, at, item);
}

static void move_down(struct placement_part *h, enum order by, uint32_t at)
{
    struct placement_item *item = item_at(h, by, at);
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= h->n)
            break;
        if (child + 1 < h->n &&
            goes_before(by, item_at(h, by, child + 1), item_at(h, by, child)))
            child++;
        if (!goes_before(by, item_at(h, by, child), item))
            break;
        put(h, by, at, item_at(h, by, child));
        at = child;
    }
    put(h, by, at, item);
}

static void heap_update(struct placement_part *h, enum order by,
                        const struct placement_item *item)
{
    uint32_t place = place_of(item, by);
    if (place == 0)
        return;
    CHECK(place <= h->n && item_at(h, by, place - 1) == item);
    move_up(h, by, place - 1);
    move_down(h, by, place_of(item, by) - 1);
}

/* Moves an item to its place in both heaps. Call when its rank, order or last use has changed. */
static void heaps_update(struct placement_part *h, const struct placement_item *item)
{
    heap_update(h, BY_POLICY, item);
    heap_update(h, BY_USE, item);
}

/* Takes an item out of a heap of h->n + 1 items. */
static void take_out(struct placement_part *h, enum order by, struct placement_item *item)
{
    uint32_t place = place_of(item, by);
    if (place == 0)
        return;
    CHECK(place <= h->n + 1 && item_at(h, by, place - 1) == item);
    struct placement_item *last = item_at(h, by, h->n);
    if (by == BY_POLICY)
        item->slot = 0;
    else
        item->age_slot = 0;
    if (last == item)
        return;
    put(h, by, place - 1, last);
    heap_update(h, by, last);
}

void placement_set_slots(struct placement_part *h, struct placement_slot *slot,
                         uint32_t max)
{
    CHECK(max >= h->n);
    h->slot = slot;
    h->max = max;
}

/* --- the policies ----------------------------------------------------------------------------- */

/* Returns the turn at which a request in the window needs the content, or PLACEMENT_NO_TURN if none
 * does or the policy does not look ahead. The policy `ours` counts a turn earlier if more requests
 * need the content. */
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

/* Returns how long an item with a known next use is worth keeping. If its value divided by the time
 * until that use is below the price, the result is 0. Otherwise it is twice that time. */
static uint64_t worth_until(const struct placement *p, const struct placement_item *item,
                            double value)
{
    uint64_t wait = item->due_time > item->used_time ? item->due_time - item->used_time : 1;
    return p->learn == NULL || (double)wait * p->learn->price <= value ? 2 * wait : 0;
}

static uint64_t worth_of(const struct placement *p, const struct placement_item *item,
                         uint64_t lot, double value)
{
    if (item->due_time != 0)
        return worth_until(p, item, value);
    return p->learn != NULL
               ? placement_learn_worth(
                     p->learn, placement_class_used(item->class, item->n_uses), lot, value)
               : 0;
}

/* Sets the order under the policies whose order follows from the item's own fields. Under fifo, lfu
 * and belady only a use changes it (order_from_use). */
static void order_from_item(const struct placement *p, struct placement_item *item)
{
    if (p->kind == PLACEMENT_LRU || p->kind == PLACEMENT_ATTENTIONSTORE)
        item->order = item->used_at;
    else if (p->kind == PLACEMENT_OURS)
        item->order = (uint64_t)item->used_time + item->worth;
}

/* Sets the order under fifo, lfu and belady. */
static void order_from_use(const struct placement *p, struct placement_item *item,
                           bool is_first, const struct placement_use *use)
{
    if (p->kind == PLACEMENT_FIFO && is_first)
        item->order = use->at;
    else if (p->kind == PLACEMENT_LFU)
        item->order = item->n_uses + p->age;
    else if (p->kind == PLACEMENT_BELADY)
        item->order = ~use->next;
}

/* Sets the item's rank. An upcoming item's order becomes its turn; an item that is upcoming no more
 * gets the policy's order back. */
static void rank_update(const struct placement *p, struct placement_item *item)
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
        order_from_item(p, item);
}

void placement_touch(struct placement *p, struct placement_part *h,
                     struct placement_item *item, const struct placement_use *use)
{
    bool is_first = item->used_at == 0;
    double value = use->value > 0 ? use->value : 1;
    item->used_at = use->at;
    item->used_time = use->time;
    item->due_time = use->reuse_in > 0 ? use->time + use->reuse_in : 0;
    item->class = use->class;
    if (item->n_uses < UINT16_MAX)
        item->n_uses++;
    if (p->learn != NULL)
        placement_learn_used(p->learn,
                             &(struct placement_learn_use){
                                 .id = item->id,
                                 .class = placement_class_used(item->class, item->n_uses),
                                 .time = use->time,
                                 .lot = use->lot,
                                 .value = value,
                                 .was_there = !is_first});
    item->worth = (uint32_t)worth_of(p, item, use->lot, value);
    order_from_item(p, item);
    order_from_use(p, item, is_first, use);
    rank_update(p, item); /* replaces this order if the item is upcoming */
    heaps_update(h, item);
}

void placement_evicted(struct placement *p, const struct placement_item *item,
                       uint64_t n_items)
{
    if (p->kind == PLACEMENT_LFU && item->rank == PLACEMENT_ORDINARY)
        p->age = item->order;
    if (p->learn != NULL)
        placement_learn_evicted(p->learn, item->id, n_items);
}

/* --- the items that may be evicted ------------------------------------------------------------ */

void placement_insert(struct placement *p, struct placement_part *h,
                      struct placement_item *item)
{
    CHECK(item->slot == 0 && h->n < h->max);
    rank_update(p, item); /* the window may have changed while the item was in no part */
    h->policy = p;
    uint32_t at = h->n++;
    put(h, BY_POLICY, at, item);
    move_up(h, BY_POLICY, at);
    if (p->kind != PLACEMENT_OURS)
        return;
    put(h, BY_USE, at, item);
    move_up(h, BY_USE, at);
}

void placement_remove(struct placement_part *h, struct placement_item *item)
{
    CHECK(item->slot > 0 && h->n > 0);
    h->n--;
    take_out(h, BY_POLICY, item);
    take_out(h, BY_USE, item);
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
        rank_update(p, item);
    heaps_update(h, item);
}

struct placement_item *placement_victim(const struct placement_part *h)
{
    return h->n > 0 ? item_at(h, order_of(h->policy), 0) : NULL;
}

bool placement_admits(const struct placement *p, const struct placement_item *victim,
                      uint64_t id, uint64_t next)
{
    if (p->kind == PLACEMENT_BELADY)
        return next < ~victim->order;
    return p->kind != PLACEMENT_OURS || victim->rank != PLACEMENT_UPCOMING ||
           turn_of(p, id) < ~victim->order;
}

static bool is_in_order(const struct placement_part *h, enum order by,
                        const struct placement_item *item)
{
    uint32_t at = place_of(item, by) - 1;
    return at < h->n && item_at(h, by, at) == item &&
           (at == 0 || !goes_before(by, item, item_at(h, by, (at - 1) / 2)));
}

bool placement_audit(const struct placement_part *h, const struct placement_item *item)
{
    if (item->slot == 0)
        return item->age_slot == 0;
    return is_in_order(h, BY_POLICY, item) &&
           (item->age_slot == 0 || is_in_order(h, BY_USE, item));
}
