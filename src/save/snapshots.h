/* snapshots.h - where contexts can resume: where the states of recurrent layers are saved as
 * snapshots, which of them go first when room is wanted, and which inputs and windows are kept.
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
 * Inputs are kept behind the last snapshot, and those of the last SNAPSHOT_INPUTS tokens: most
 * branches are there. Farther back a request goes on from a snapshot, and computes the rest.
 * (Measured on the agents' traces: bench/snapshots.py, docs/perf/2026-12-01c.md.)
 *
 * A *window* is the records of the layers with a sliding window in the chunks that tokens behind a
 * place still see. These layers need nothing else to resume there. So a context keeps windows only
 * at its end, where its last prompt began and ended, at branches, at pinned chunks, and on a grid
 * of eight windows, with gaps of at least the distance to the end. (Measured on the agents' traces
 * with windows of 1,024 tokens: bench/windows.py, docs/perf/2026-12-01b.md.)
 *
 * Pure: no clock, no allocation. */
#ifndef SAVE_SNAPSHOTS_H
#define SAVE_SNAPSHOTS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    SNAPSHOT_EVERY = 2048,
    /* Fewer tokens are replayed in less time than a snapshot is read. */
    SNAPSHOT_LEAST = 256,
    /* Most snapshots of one context that are looked at. */
    SNAPSHOT_MOST = 256,
    /* Tokens before a context's end of which it keeps the recurrent layers' inputs. */
    SNAPSHOT_INPUTS = 8192,
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

/* Returns the chunk of the first position that tokens from `pos` on see through a window. */
static inline int window_first_chunk(int64_t pos, int window)
{
    return pos + 1 > window ? (int)((pos + 1 - window) / 64) : 0;
}

/* Returns how many of n chunks a restore may use: the most behind which every window is whole.
 * whole [n]: the chunk has the records of all layers with a window. Chunks before `first` are in
 * the cache, and count as whole. n_tokens: tokens of all n chunks, of which the last may be
 * partial. */
int window_resume(const bool *whole, int n, int first, int64_t n_tokens, int window);

/* Chooses the chunks of a context that lose the records of their layers with a window. whole [n] as
 * above, all chunks are full. wanted [n]: requests are likely to resume behind the chunk. drop [n]
 * becomes true for a whole chunk that no kept window needs. */
void window_thin(const bool *whole, const bool *wanted, int n, int window, bool *drop);

#endif
