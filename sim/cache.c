/* cache.c - see cache.h. */
#include "sim/cache.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/minmax.h"

void cache_init(struct cache *c, const struct cache_opts *o)
{
    CHECK(o->n_tiers >= 1 && o->n_tiers <= CACHE_TIERS && o->max_blocks[0] > 0);
    *c = (struct cache){.o = *o};
    c->block = xcalloc(o->n_blocks, sizeof c->block[0]);
    for (uint32_t i = 0; i < o->n_blocks; i++)
        c->block[i].place.id = 1 + (uint64_t)i;
    if (o->policy == PLACEMENT_OURS) {
        c->learn = xmalloc(sizeof *c->learn);
        placement_learn_init(c->learn);
    }
    for (int t = 0; t < o->n_tiers; t++) {
        uint64_t max = MIN(o->max_blocks[t], o->n_blocks);
        placement_init(&c->policy[t], o->policy, o->window, c->learn);
        placement_set_slots(&c->part[t], xcalloc(max + 1, sizeof c->part[t].slot[0]),
                            (uint32_t)max + 1);
    }
}

void cache_deinit(struct cache *c)
{
    free(c->block);
    free(c->learn);
    for (int t = 0; t < c->o.n_tiers; t++)
        free(c->part[t].slot);
    *c = (struct cache){0};
}

/* --- leaves ----------------------------------------------------------------------------------- */

static bool is_leaf(const struct cache_block *b)
{
    return b->n_pins == 0 && (b->tier == 1 ? b->n_above == 0 : b->n_children == 0);
}

/* Makes the block evictable if it is a leaf now, else not. Call when the block's children, pins or
 * tier have changed. */
static void settle(struct cache *c, struct cache_block *b)
{
    int t = b->tier - 1;
    if (t < 0)
        return;
    bool is_in = b->place.slot != 0;
    if (is_leaf(b) && !is_in)
        placement_insert(&c->policy[t], &c->part[t], &b->place);
    else if (!is_leaf(b) && is_in)
        placement_remove(&c->part[t], &b->place);
}

static struct cache_block *parent_of(struct cache *c, const struct cache_block *b)
{
    return b->parent != CACHE_NONE ? &c->block[b->parent] : NULL;
}

static void leave_tier(struct cache *c, struct cache_block *b)
{
    if (b->place.slot != 0)
        placement_remove(&c->part[b->tier - 1], &b->place);
    c->n_in[b->tier - 1]--;
    struct cache_block *parent = parent_of(c, b);
    if (parent != NULL) {
        parent->n_children--;
        parent->n_above -= b->tier == 1;
        settle(c, parent);
    }
    b->tier = 0;
}

static void enter_tier(struct cache *c, struct cache_block *b, int t)
{
    b->tier = (uint8_t)(1 + t);
    c->n_in[t]++;
    struct cache_block *parent = parent_of(c, b);
    if (parent != NULL) {
        parent->n_children++;
        parent->n_above += t == 0;
        settle(c, parent);
    }
    settle(c, b);
}

/* --- room ------------------------------------------------------------------------------------- */

static uint32_t number_of(const struct cache *c, const struct placement_item *item)
{
    /* the item, `place`, is the first member of its block */
    return (uint32_t)((const struct cache_block *)item - c->block);
}

static bool make_room(struct cache *c, int t, uint32_t time)
{
    while (c->n_in[t] >= c->o.max_blocks[t]) {
        struct placement_item *item = placement_victim(&c->part[t]);
        if (item == NULL)
            return false;
        struct cache_block *b = &c->block[number_of(c, item)];
        bool goes_down = t + 1 < c->o.n_tiers && !item->is_dropped;
        /* If the lower tier has no room, a block of tier 0 that has children in the lower tier
         * cannot leave at all. */
        if (goes_down && !make_room(c, t + 1, time)) {
            if (b->n_children > 0)
                return false;
            goes_down = false;
        }
        if (!goes_down && b->n_children > 0)
            return false;
        if (b->tier != t + 1)
            continue; /* b was evicted while room was made in the lower tier */
        if (!goes_down)
            placement_evicted(&c->policy[t], item, c->n_in[0] + c->n_in[1]);
        if (t == 0 && c->on_leave != NULL)
            c->on_leave(c->arg, item);
        leave_tier(c, b);
        if (goes_down) {
            c->n_down++;
            enter_tier(c, b, t + 1);
            continue;
        }
        c->n_evicted++;
        if (c->on_evict != NULL)
            c->on_evict(c->arg, number_of(c, item));
        b->place.used_at = 0;
        b->place.n_uses = 0;
        b->place.is_dropped = false;
    }
    return true;
}

/* --- operations ------------------------------------------------------------------------------- */

static void touch(struct cache *c, struct cache_block *b, const struct placement_use *use)
{
    struct placement_use u = *use;
    int t = b->tier > 0 ? b->tier - 1 : 0;
    u.at = ++c->tick;
    placement_touch(&c->policy[t], &c->part[t], &b->place, &u);
}

void cache_touch(struct cache *c, uint32_t block, const struct placement_use *use)
{
    CHECK(c->block[block].tier != 0);
    touch(c, &c->block[block], use);
}

/* Returns whether a block that is not in the cache may take the victim's room. */
static bool admits(const struct cache *c, const struct cache_block *b,
                   const struct placement_use *use)
{
    const struct placement_item *victim = placement_victim(&c->part[0]);
    return !c->o.refuses || c->n_in[0] < c->o.max_blocks[0] || victim == NULL ||
           placement_admits(&c->policy[0], victim, b->place.id, use->next);
}

bool cache_add(struct cache *c, uint32_t block, uint32_t parent,
               const struct placement_use *use)
{
    struct cache_block *b = &c->block[block];
    CHECK(b->tier == 0 && (parent == CACHE_NONE || c->block[parent].tier != 0));
    /* The pin keeps the parent from being evicted while room is made for its child. */
    if (parent != CACHE_NONE)
        cache_pin(c, parent);
    bool has_room = admits(c, b, use) && make_room(c, 0, use->time);
    if (has_room) {
        b->parent = parent;
        touch(c, b, use);
        b->n_pins++;
        enter_tier(c, b, 0);
        c->n_added++;
    }
    if (parent != CACHE_NONE)
        cache_unpin(c, parent);
    return has_room;
}

bool cache_raise(struct cache *c, uint32_t block, uint32_t time)
{
    struct cache_block *b = &c->block[block];
    CHECK(b->tier == 2 && b->n_pins > 0);
    if (!make_room(c, 0, time))
        return false;
    leave_tier(c, b);
    enter_tier(c, b, 0);
    c->n_up++;
    return true;
}

void cache_pin(struct cache *c, uint32_t block)
{
    c->block[block].n_pins++;
    settle(c, &c->block[block]);
}

void cache_unpin(struct cache *c, uint32_t block)
{
    CHECK(c->block[block].n_pins > 0);
    c->block[block].n_pins--;
    settle(c, &c->block[block]);
}

void cache_review(struct cache *c, uint32_t block)
{
    struct cache_block *b = &c->block[block];
    if (b->place.slot != 0)
        placement_review(&c->policy[b->tier - 1], &c->part[b->tier - 1], &b->place);
}

void cache_drop(struct cache *c, uint32_t block, uint32_t child)
{
    struct cache_block *b = &c->block[block];
    if (child != CACHE_NONE && c->block[child].tier != 0 &&
        c->block[child].parent == block) {
        b->n_children--;
        b->n_above -= c->block[child].tier == 1;
        c->block[child].parent = CACHE_NONE;
    }
    if (b->tier == 0)
        return;
    placement_drop(&c->policy[b->tier - 1], &c->part[b->tier - 1], &b->place, true);
    settle(c, b);
}

/* --- audit ------------------------------------------------------------------------------------ */

bool cache_audit(const struct cache *c)
{
    uint64_t n_in[CACHE_TIERS] = {0};
    uint32_t *children = xcalloc(c->o.n_blocks, sizeof *children);
    uint32_t *above = xcalloc(c->o.n_blocks, sizeof *above);
    bool good = true;
    for (uint32_t i = 0; i < c->o.n_blocks; i++) {
        const struct cache_block *b = &c->block[i];
        if (b->tier == 0)
            continue;
        n_in[b->tier - 1]++;
        if (b->parent != CACHE_NONE) {
            good = good && c->block[b->parent].tier != 0;
            children[b->parent]++;
            above[b->parent] += b->tier == 1;
        }
    }
    for (uint32_t i = 0; i < c->o.n_blocks; i++) {
        const struct cache_block *b = &c->block[i];
        good = good && b->n_children == children[i] && b->n_above == above[i];
        if (b->tier != 0)
            good = good && (b->place.slot != 0) == is_leaf(b) &&
                   placement_audit(&c->part[b->tier - 1], &b->place);
    }
    for (int t = 0; t < c->o.n_tiers; t++)
        good = good && n_in[t] == c->n_in[t] && n_in[t] <= c->o.max_blocks[t];
    free(children);
    free(above);
    return good;
}
