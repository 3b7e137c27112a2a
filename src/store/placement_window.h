/* placement_window.h - which content the waiting requests need, and in which order they come.
 *
 * A request joins with a *turn*, its place in the queue: smaller is earlier. It names the ids of
 * the content that it needs. For each id the window then gives the first request that needs it,
 * and the number of requests that do.
 *
 * The window is a hash table of ids, each with the list of its turns:
 *
 *     id 17 --> turn 3 --> turn 9        two requests need it; the next use is turn 3's
 *     id 23 --> turn 4
 *
 * Memory is the owner's and bounded. A pair (request, id) that finds no room is unknown to the
 * window, and nothing else changes.
 *
 * Pure: no clock, no I/O, no allocation. Each operation takes O(1) on average if requests come
 * and go in the order of their turns; else O(requests that need the same id). */
#ifndef STORE_PLACEMENT_WINDOW_H
#define STORE_PLACEMENT_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#define PLACEMENT_NO_TURN UINT64_MAX

struct placement_wait { /* one request's need of an id */
    uint64_t turn;
    /* 1 + index of the id's next later wait, or of the next free one; 0: there is no next one */
    uint32_t next;
};

struct placement_upcoming { /* an id that at least one request needs */
    uint64_t id;            /* 0: this place is free */
    uint32_t first, last;   /* 1 + index of its earliest and latest wait */
    uint32_t n;             /* number of its waits */
};

struct placement_window {
    struct placement_upcoming *place; /* [n_places], a power of two */
    struct placement_wait *wait;      /* [n_waits], fewer than n_places */
    uint32_t n_places, n_waits;
    uint32_t n_used;  /* waits in use */
    uint32_t n_fresh; /* wait[0, n_fresh) have been used at some time */
    /* 1 + index of the first free wait among wait[0, n_fresh); 0: no wait is free there. */
    uint32_t free;
    uint64_t n_refused; /* pairs that found no room */
    /* Turns by which an id counts earlier if twice as many requests need it. The owner sets it. */
    uint64_t step;
};

/* Makes an empty window. The arrays must be zeroed. They belong to the owner, and live as long as
 * the window. */
void placement_window_init(struct placement_window *w, struct placement_upcoming *place,
                           uint32_t n_places, struct placement_wait *wait,
                           uint32_t n_waits);

/* Notes that a waiting request needs an id (not 0). Returns false if there is no room. */
bool placement_window_add(struct placement_window *w, uint64_t id, uint64_t turn);
/* Notes that the request waits no longer. Returns false if the pair was not known. */
bool placement_window_remove(struct placement_window *w, uint64_t id, uint64_t turn);

/* Returns the turn of the first request that needs an id; PLACEMENT_NO_TURN if none does. */
uint64_t placement_window_turn(const struct placement_window *w, uint64_t id);
/* Returns how many requests need the id. */
uint32_t placement_window_count(const struct placement_window *w, uint64_t id);

#endif
