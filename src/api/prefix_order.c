/* prefix_order.c - see prefix_order.h.
 *
 * In the list sorted by tokens, the item that shares the most with a prompt stands beside the
 * prompt's place. The number of tokens that two items share is the smallest one that any two
 * neighbours between them share. */
#include "api/prefix_order.h"

#include <stddef.h>
#include <string.h>

#include "base/check.h"
#include "base/minmax.h"

int prefix_shared(const struct prefix_item *a, const struct prefix_item *b)
{
    int n = MIN(a->n, b->n), i = 0;
    if (a->group != b->group)
        return 0;
    while (i < n && a->tokens[i] == b->tokens[i])
        i++;
    return i;
}

/* Compares for sorting: by group, then by tokens (a prefix before its continuations), then by
 * number. */
static int compare(const struct prefix_item *a, const struct prefix_item *b)
{
    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    int i = prefix_shared(a, b);
    if (i < a->n && i < b->n)
        return a->tokens[i] < b->tokens[i] ? -1 : 1;
    if (a->n != b->n)
        return a->n < b->n ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

/* Returns the first place whose item is not before `item`. */
static int place_of(const struct prefix_order *o, const struct prefix_item *item)
{
    int lo = 0, hi = o->n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (compare(o->items[mid], item) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void measure_left(struct prefix_order *o, int at)
{
    if (at < o->n)
        o->items[at]->with_left = at > 0 ? prefix_shared(o->items[at - 1], o->items[at])
                                         : 0;
}

void prefix_order_init(struct prefix_order *o, struct prefix_item **items, int cap)
{
    *o = (struct prefix_order){.items = items, .cap = cap};
}

void prefix_order_add(struct prefix_order *o, struct prefix_item *item)
{
    CHECK(o->n < o->cap);
    int at = place_of(o, item);
    memmove(&o->items[at + 1], &o->items[at], (size_t)(o->n - at) * sizeof(void *));
    o->items[at] = item;
    o->n++;
    measure_left(o, at);
    measure_left(o, at + 1);
}

static struct prefix_item *take_at(struct prefix_order *o, int at)
{
    struct prefix_item *item = o->items[at];
    o->n--;
    memmove(&o->items[at], &o->items[at + 1], (size_t)(o->n - at) * sizeof(void *));
    if (at < o->n && o->items[at]->with_left > item->with_left)
        o->items[at]->with_left = item->with_left;
    return item;
}

/* Returns the place of the better of the neighbours at - 1 and at, which share `left` and `right`
 * tokens with a prompt. More tokens are better; with equal numbers, the earlier item is. At an end
 * of the list, returns the only neighbour. */
static int better(const struct prefix_order *o, int at, int left, int right)
{
    if (at == 0 || at == o->n)
        return at == 0 ? 0 : at - 1;
    if (left != right)
        return left > right ? at - 1 : at;
    return o->items[at - 1]->number < o->items[at]->number ? at - 1 : at;
}

/* Returns the place of the item that begins a new path. It is one of the two neighbours that share
 * the most tokens, the earlier one. If no two share a block, it is the earliest item of all. */
static int begin_path(const struct prefix_order *o)
{
    int best = 0, first = 0;
    for (int i = 1; i < o->n; i++) {
        first = o->items[i]->number < o->items[first]->number ? i : first;
        best = o->items[i]->with_left > o->items[best]->with_left ? i : best;
    }
    if (o->items[best]->with_left < PREFIX_BLOCK_TOKENS)
        return first;
    return o->items[best - 1]->number < o->items[best]->number ? best - 1 : best;
}

struct prefix_item *prefix_order_take(struct prefix_order *o,
                                      const struct prefix_item *last)
{
    if (o->n == 0)
        return NULL;
    if (last != NULL) {
        int at = place_of(o, last);
        int left = at > 0 ? prefix_shared(o->items[at - 1], last) : 0;
        int right = at < o->n ? prefix_shared(o->items[at], last) : 0;
        if (left >= PREFIX_BLOCK_TOKENS || right >= PREFIX_BLOCK_TOKENS)
            return take_at(o, better(o, at, left, right));
    }
    return take_at(o, begin_path(o));
}
