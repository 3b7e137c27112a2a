/* placement_trial.c - see placement_trial.h. */
#include "store/placement_trial.h"
#include "base/minmax.h"

#include <math.h>
#include <string.h>

/* The weight of a request's gain halves with this many later requests. */
#define HALF_REQUESTS 1000
/* After `ours` has stopped paying, it pays again only if gain > spread + this share of all uses.
 * 0.001 is 0.1 percentage points of the uses. */
#define SHARE_AGAIN 0.001
/* Requests that are judged before the first decision. */
#define LEAST_REQUESTS 32

void placement_trial_init(struct placement_trial *t)
{
    memset(t, 0, sizeof *t);
    t->pays = true;
}

/* --- a miniature cache ------------------------------------------------------------------------ */

static void put(struct placement_mini *m, uint32_t at, uint16_t slot)
{
    m->heap[at] = slot;
    m->place[slot] = (uint16_t)(at + 1);
}

static uint64_t key_at(const struct placement_mini *m, uint32_t at)
{
    return m->key[m->heap[at]];
}

/* Moves a slot whose key has changed to its new position in the heap. */
static void settle(struct placement_mini *m, uint32_t at)
{
    uint16_t slot = m->heap[at];
    uint64_t key = m->key[slot];
    for (; at > 0 && key < key_at(m, (at - 1) / 2); at = (at - 1) / 2)
        put(m, at, m->heap[(at - 1) / 2]);
    for (uint32_t child = 2 * at + 1; child < m->n; child = 2 * at + 1) {
        if (child + 1 < m->n && key_at(m, child + 1) < key_at(m, child))
            child++;
        if (key_at(m, child) >= key)
            break;
        put(m, at, m->heap[child]);
        at = child;
    }
    put(m, at, slot);
}

static bool has(const struct placement_mini *m, uint32_t slot)
{
    return m->place[slot] != 0;
}

static void drop(struct placement_mini *m, uint32_t slot)
{
    if (!has(m, slot))
        return;
    uint32_t at = m->place[slot] - 1u;
    m->place[slot] = 0;
    uint16_t last = m->heap[--m->n];
    if (last == slot)
        return;
    put(m, at, last);
    settle(m, at);
}

/* Enters the slot, or moves it to its new key. Then drops the lowest keys until at most `room`
 * slots are left. */
static void touch(struct placement_mini *m, uint32_t slot, uint64_t key, double room)
{
    m->key[slot] = key;
    if (!has(m, slot))
        put(m, m->n++, (uint16_t)slot);
    settle(m, m->place[slot] - 1u);
    while (m->n > 0 && m->n > room)
        drop(m, m->heap[0]);
}

/* --- the comparison --------------------------------------------------------------------------- */

/* Decides anew whether `ours` pays, by its gain and the spread of the requests' gains. */
static void judge(struct placement_trial *t)
{
    double spread = sqrt(t->squares + t->lot_gain * t->lot_gain);
    if (t->n_judged < LEAST_REQUESTS)
        return;
    t->pays = t->gain > (t->pays ? 0 : SHARE_AGAIN * t->n_uses) + spread;
}

/* Begins a new request. The sums over former requests fade. */
static void next_lot(struct placement_trial *t, uint64_t lot)
{
    double fade = exp2(-1.0 / HALF_REQUESTS);
    t->squares = (t->squares + t->lot_gain * t->lot_gain) * fade;
    t->gain *= fade;
    t->n_uses *= fade;
    t->n_judged = (t->n_judged + (t->n_uses > 0)) * fade;
    t->lot = lot;
    t->n_lots++;
    t->n_in_lot = 0;
    t->lot_gain = 0;
    t->lru_ended = t->ours_ended = false;
}

void placement_trial_use(struct placement_trial *t, uint64_t lot)
{
    if (t->n_lots == 0 || lot != t->lot)
        next_lot(t, lot);
    t->n_in_lot++;
}

/* Returns whether the request hits the slot in a cache. *has_ended becomes true at the request's
 * first miss there. */
static bool hits(const struct placement_mini *m, uint32_t slot, bool *has_ended)
{
    *has_ended = *has_ended || !has(m, slot);
    return !*has_ended;
}

/* Returns the order of eviction of the present use: within a request, the tail goes first. */
static uint64_t order_of(const struct placement_trial *t)
{
    uint32_t from_head = MIN(t->n_in_lot, UINT16_MAX);
    return t->n_lots << 16 | (UINT16_MAX - from_head);
}

void placement_trial_sampled(struct placement_trial *t, uint32_t slot, bool was_known,
                             uint32_t until, double room)
{
    uint64_t order = order_of(t);
    if (!was_known) {
        placement_trial_forget(t, slot);
    } else if (room < HUGE_VAL) {
        double gain = (double)hits(&t->ours, slot, &t->ours_ended) -
                      (double)hits(&t->lru, slot, &t->lru_ended);
        t->gain += gain;
        t->lot_gain += gain;
    }
    t->n_uses += room < HUGE_VAL;
    touch(&t->lru, slot, order, room);
    touch(&t->ours, slot, (uint64_t)until << 32 | (order & UINT32_MAX), room);
    judge(t);
}

void placement_trial_forget(struct placement_trial *t, uint32_t slot)
{
    drop(&t->lru, slot);
    drop(&t->ours, slot);
}

bool placement_trial_pays(const struct placement_trial *t)
{
    return t->pays;
}
