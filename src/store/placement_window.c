/* placement_window.c - see placement_window.h.
 *
 * Open addressing with linear probing.  After a removal, later ids move into the gap, so removed
 * places need no mark. */
#include "store/placement_window.h"

#include <stddef.h>

#include "base/check.h"
#include "base/rng.h"

void placement_window_init(struct placement_window *w, struct placement_upcoming *place,
                           uint32_t n_places, struct placement_wait *wait, uint32_t n_waits)
{
    CHECK(n_waits > 0 && n_waits < n_places && (n_places & (n_places - 1)) == 0);
    *w = (struct placement_window){
        .place = place, .wait = wait, .n_places = n_places, .n_waits = n_waits};
}

/* Takes a free wait and returns 1 + its index; 0: there is none. */
static uint32_t wait_take(struct placement_window *w)
{
    uint32_t i = w->free;
    if (i != 0)
        w->free = w->wait[i - 1].next;
    else if (w->n_fresh < w->n_waits)
        i = ++w->n_fresh;
    return i;
}

static uint32_t home_of(const struct placement_window *w, uint64_t id)
{
    return (uint32_t)rng_mix(id) & (w->n_places - 1);
}

/* Returns the place of an id, or the free place where it belongs. There is always a free place. */
static uint32_t place_of(const struct placement_window *w, uint64_t id)
{
    uint32_t at = home_of(w, id);
    while (w->place[at].id != 0 && w->place[at].id != id)
        at = (at + 1) & (w->n_places - 1);
    return at;
}

/* Moves later ids of the run into the gap if a search from their home, the place of their hash,
 * still finds them there. */
static void place_clear(struct placement_window *w, uint32_t gap)
{
    uint32_t mask = w->n_places - 1;
    for (uint32_t at = (gap + 1) & mask; w->place[at].id != 0; at = (at + 1) & mask) {
        uint32_t home = home_of(w, w->place[at].id);
        if (((at - home) & mask) >= ((at - gap) & mask)) {
            w->place[gap] = w->place[at];
            gap = at;
        }
    }
    w->place[gap] = (struct placement_upcoming){0};
}

bool placement_window_add(struct placement_window *w, uint64_t id, uint64_t turn)
{
    CHECK(id != 0 && turn != PLACEMENT_NO_TURN);
    uint32_t new = wait_take(w);
    if (new == 0) {
        w->n_refused++;
        return false;
    }
    struct placement_upcoming *u = &w->place[place_of(w, id)];
    uint32_t *link = &u->first;
    u->id = id;
    u->n++;
    w->n_used++;
    if (u->last != 0 && w->wait[u->last - 1].turn <= turn)
        link = &w->wait[u->last - 1].next;
    while (*link != 0 && w->wait[*link - 1].turn <= turn)
        link = &w->wait[*link - 1].next;
    if (*link == 0)
        u->last = new;
    w->wait[new - 1] = (struct placement_wait){.turn = turn, .next = *link};
    *link = new;
    return true;
}

bool placement_window_remove(struct placement_window *w, uint64_t id, uint64_t turn)
{
    uint32_t at = place_of(w, id);
    struct placement_upcoming *u = &w->place[at];
    if (u->id == 0)
        return false;
    uint32_t *link = &u->first, before = 0;
    while (*link != 0 && w->wait[*link - 1].turn != turn) {
        before = *link;
        link = &w->wait[*link - 1].next;
    }
    uint32_t old = *link;
    if (old == 0)
        return false;
    *link = w->wait[old - 1].next;
    if (u->last == old)
        u->last = before;
    w->wait[old - 1] = (struct placement_wait){.next = w->free};
    w->free = old;
    w->n_used--;
    if (--u->n == 0)
        place_clear(w, at);
    return true;
}

uint64_t placement_window_turn(const struct placement_window *w, uint64_t id)
{
    const struct placement_upcoming *u = &w->place[place_of(w, id)];
    return u->id != 0 ? w->wait[u->first - 1].turn : PLACEMENT_NO_TURN;
}

uint32_t placement_window_count(const struct placement_window *w, uint64_t id)
{
    return w->place[place_of(w, id)].n;
}
