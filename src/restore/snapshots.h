/* snapshots.h - where the states of recurrent layers are saved as snapshots, and which of them go
 * first when room is wanted.
 *
 * A restore takes the last snapshot at or before its place and replays the tokens behind it from
 * saved inputs (restore.h). A snapshot is worth its bytes where later requests resume:
 *
 *     the end of a turn        the next turn continues there; its place may be inside a chunk
 *     the end of a prompt      an answer is asked for again, or its thoughts are left out
 *     a branch                 contexts share their tokens up to here: a system prompt, an edited
 *                              turn
 *     each SNAPSHOT_EVERY      bounds the replay everywhere else; far before the prompt's end only
 *                              some of them, with gaps of a quarter of the distance to the end
 *
 * All places but a turn's end are ends of full chunks: only there can another context leave this
 * one. Places on the grid are absolute, so contexts that share tokens share these snapshots.
 *
 * Pure: no clock, no allocation. */
#ifndef RESTORE_SNAPSHOTS_H
#define RESTORE_SNAPSHOTS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    SNAPSHOT_EVERY = 2048,
    /* Fewer tokens are replayed in less time than a snapshot is read. */
    SNAPSHOT_LEAST = 256,
    /* Most snapshots of one context that are looked at. */
    SNAPSHOT_MOST = 256,
};

struct snapshot_view {
    int64_t done;   /* tokens whose state is there now */
    int64_t newest; /* place of the last snapshot at or before `done`; 0: none */
    int64_t prompt; /* tokens of the prompt */
    /* Another stored context has the same tokens up to `done`, and goes on differently. */
    bool is_branch;
};

/* Returns whether a snapshot is taken at `done`. */
bool snapshot_is_due(const struct snapshot_view *v);
/* Returns the next place behind `done` at which one is taken. A prefill ends a piece there. */
int64_t snapshot_next(const struct snapshot_view *v);

/* Chooses the snapshots of one context that are evicted first. at [n] are their places in ascending
 * order, end is the place up to which the context is stored. drop [n] becomes true for a snapshot
 * without which the gap between its neighbours is at most a quarter of the distance to the end,
 * or at most SNAPSHOT_LEAST: gaps grow with age, and a context of n tokens keeps O(log n). The last
 * one stays. */
void snapshot_thin(const int64_t *at, int n, int64_t end, bool *drop);

#endif
