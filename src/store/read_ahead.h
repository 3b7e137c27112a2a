/* read_ahead.h - which chunk of which waiting request is brought from the disk to memory next
 * (AttentionStore, section 3.3.1). The store's fetches and the simulated server ask this code.
 *
 * A waiting request has a *want*: its chunks from the beginning of its context on, and its turn.
 * Wants stand in a list, the earliest turn first.
 *
 *     turn 3   [memory][memory][memory][memory]            nothing to fetch
 *     turn 5   [memory][ held ][ disk ][ disk ][ disk ]    four chunks are needed: not worth it
 *     turn 9   [memory][ disk ][ disk ][ disk ][ disk ]    <-- the next fetch is its second chunk
 *     turn 12  [ disk ][ disk ]...
 *
 * The next fetch is the first chunk of the earliest want that is only on the disk. It is not made
 * - if fewer than `least` chunks of the want are only on the disk, before its first fetch;
 * - for chunks whose state the owner holds elsewhere, and after a chunk that is not stored;
 * - if memory is full of chunks that earlier requests need: then nothing is fetched at all;
 * - twice for one want, if the chunk was dropped as one that no request needs (the window did not
 *   know it): under such a policy fetching and dropping would alternate for ever;
 * - for a want with a failed fetch.
 * If memory was full, a chunk may have been dropped that a request needs. It is fetched again,
 * because the chunks that took its room may be needed later. Each such fetch drops a chunk of a
 * later turn only, so the fetches come to an end.
 *
 * Pure: no clock, no I/O, no allocation. The owner keeps the wants and says where chunks are. */
#ifndef STORE_READ_AHEAD_H
#define STORE_READ_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "store/placement.h"

/* Chunks that a waiting request needs. It lies inside the owner's own structure. */
struct read_ahead_want {
    /* Next want of the list: it has a later turn, or the same turn and was added later. */
    struct read_ahead_want *next;
    uint64_t turn; /* position in the queue: a smaller turn is served earlier */
    int n;         /* number of the request's chunks */
    int at;        /* chunks [0, at) were fetched or needed no fetch; they are skipped */
    /* has_begun: a fetch was made; has_failed: a fetch has failed, so no more are made */
    bool has_begun, has_failed;
};

struct read_ahead_queue {
    struct read_ahead_want *first, *last;
    int n;
    /* Wants of this turn or later that were not looked at since may lack chunks again, because
     * chunks that they need were dropped. PLACEMENT_NO_TURN: no such chunk was dropped. */
    uint64_t dropped_turn;
};

enum read_ahead_place {
    READ_AHEAD_NOWHERE, /* the chunk is not stored: the context ends before it */
    /* The chunk is in memory, or its state is held elsewhere: it needs no fetch. */
    READ_AHEAD_HERE,
    READ_AHEAD_DISK, /* the chunk is only on the disk */
};

/* The room that a chunk would need in memory. */
struct read_ahead_room {
    uint64_t n_bytes;    /* size of the chunk */
    uint64_t free_bytes; /* free without dropping other chunks */
    uint64_t most_bytes; /* size of the largest chunk that memory takes */
    /* Item that is dropped next; NULL: no item may be dropped. */
    const struct placement_item *victim;
};

/* The owner's knowledge of its chunks. */
struct read_ahead_view {
    void *arg;
    /* Returns where the want's chunk i is. */
    enum read_ahead_place (*place)(void *arg, const struct read_ahead_want *w, int i);
    /* Returns the room for the want's chunk i, which is on the disk. */
    struct read_ahead_room (*room)(void *arg, const struct read_ahead_want *w, int i);
    int least; /* fewest chunks of a want that are worth a fetch */
};

/* Adds a want to the list, by its turn. O(1) if no later turn is in the list. */
void read_ahead_add(struct read_ahead_queue *l, struct read_ahead_want *w);
/* Takes a want from the list. O(wants before it). */
void read_ahead_remove(struct read_ahead_queue *l, struct read_ahead_want *w);

enum read_ahead_next {
    READ_AHEAD_NONE,    /* there is nothing to fetch */
    READ_AHEAD_NO_ROOM, /* memory is full of chunks that are needed earlier */
    READ_AHEAD_FETCH,   /* fetch chunk *at of *w, then call read_ahead_begin */
};
/* Chooses the next fetch. A want whose next chunk is too large for memory fails. */
enum read_ahead_next read_ahead_choose(struct read_ahead_queue *l,
                                       const struct read_ahead_view *v,
                                       struct read_ahead_want **w, int *at);
/* Notes that the fetch of the want's chunk begins. */
void read_ahead_begin(struct read_ahead_want *w, int at);
/* Notes the end of the fetch that read_ahead_begin announced. is_good says whether the chunk is in
 * memory now; if not, the want fails. is_whole says whether nothing of chunk w->at is left to
 * fetch. */
void read_ahead_end(struct read_ahead_want *w, bool is_good, bool is_whole);
/* Call when the policy's victim is dropped from memory. */
void read_ahead_dropped(struct read_ahead_queue *l, const struct placement_item *victim);

#endif
