/* expiry.c - see expiry.h. */
#include "store/expiry.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/mem.h"
#include "store/catalog.h"

void expiry_deinit(struct expiry *x)
{
    free(x->entry);
    *x = (struct expiry){0};
}

static void put(struct expiry *x, uint32_t at, struct expiry_entry e)
{
    x->entry[at] = e;
    e.node->expiry_at = at + 1;
}

static void move_up(struct expiry *x, uint32_t at)
{
    struct expiry_entry e = x->entry[at];
    while (at > 0 && e.at_s < x->entry[(at - 1) / 2].at_s) {
        put(x, at, x->entry[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put(x, at, e);
}

static void move_down(struct expiry *x, uint32_t at)
{
    struct expiry_entry e = x->entry[at];
    for (uint32_t child; (child = 2 * at + 1) < x->n; at = child) {
        if (child + 1 < x->n && x->entry[child + 1].at_s < x->entry[child].at_s)
            child++;
        if (e.at_s <= x->entry[child].at_s)
            break;
        put(x, at, x->entry[child]);
    }
    put(x, at, e);
}

static void settle(struct expiry *x, uint32_t at)
{
    const struct chunk_node *n = x->entry[at].node;
    move_up(x, at);
    move_down(x, n->expiry_at - 1);
}

void expiry_set(struct expiry *x, struct chunk_node *n, uint32_t at_s)
{
    if (n->expiry_at == 0) {
        GROW(x->entry, x->n, x->max);
        n->expiry_at = ++x->n;
    }
    x->entry[n->expiry_at - 1] = (struct expiry_entry){n, at_s};
    settle(x, n->expiry_at - 1);
}

void expiry_clear(struct expiry *x, struct chunk_node *n)
{
    if (n->expiry_at == 0)
        return;
    uint32_t at = n->expiry_at - 1;
    CHECK(at < x->n && x->entry[at].node == n);
    n->expiry_at = 0;
    struct expiry_entry last = x->entry[--x->n];
    if (at == x->n)
        return;
    x->entry[at] = last;
    settle(x, at);
}

const struct expiry_entry *expiry_first(const struct expiry *x)
{
    return x->n > 0 ? &x->entry[0] : NULL;
}
