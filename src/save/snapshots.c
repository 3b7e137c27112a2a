/* snapshots.c - see snapshots.h. */
#include "save/snapshots.h"

#include "base/minmax.h"
#include "store/store.h"

static int64_t round_down(int64_t n, int64_t to)
{
    return n / to * to;
}

/* Returns the end of the last full chunk before the prompt's last token. This token is always
 * computed. */
static int64_t end_of_prompt(const struct snapshot_view *v)
{
    return round_down(v->prompt - 1, STORE_CHUNK_TOKENS);
}

/* Returns the least gap before a place: it grows with the distance to the end. */
static int64_t least_gap(int64_t place, int64_t end)
{
    return MAX(SNAPSHOT_LEAST, (end - place) / 4);
}

bool snapshot_is_due(const struct snapshot_view *v)
{
    int64_t gap = v->done - v->newest;
    if (v->done % STORE_CHUNK_TOKENS != 0 || gap < SNAPSHOT_LEAST)
        return false;
    return v->is_branch || v->done == end_of_prompt(v) ||
           (v->done % SNAPSHOT_EVERY == 0 && gap >= least_gap(v->done, v->prompt));
}

int64_t snapshot_next(const struct snapshot_view *v)
{
    int64_t end = end_of_prompt(v);
    int64_t grid = round_down(v->done, SNAPSHOT_EVERY) + SNAPSHOT_EVERY;
    while (grid - v->newest < least_gap(grid, v->prompt))
        grid += SNAPSHOT_EVERY;
    bool has_end = end > v->done && end - v->newest >= SNAPSHOT_LEAST;
    return has_end && end < grid ? end : grid;
}

void snapshot_thin(const int64_t *at, int n, int64_t end, bool *drop)
{
    int64_t before = 0; /* the last place that stays */
    for (int i = 0; i < n; i++) {
        drop[i] = i + 1 < n && at[i + 1] - before <= least_gap(at[i + 1], end);
        if (!drop[i])
            before = at[i];
    }
}

/* --- windows ---------------------------------------------------------------------------------- */

int window_resume(const bool *whole, int n, int first, int64_t n_tokens, int window)
{
    int best = first < n ? first : n, missing = -1;
    for (int m = first + 1; m <= n; m++) {
        int64_t end = m == n ? n_tokens : (int64_t)m * STORE_CHUNK_TOKENS;
        if (!whole[m - 1])
            missing = m - 1;
        if (missing < window_first_chunk(end, window))
            best = m;
    }
    return best;
}

/* Keeps the window behind n chunks. */
static void keep_window(bool *drop, int n, int window)
{
    int64_t end = (int64_t)n * STORE_CHUNK_TOKENS;
    for (int c = window_first_chunk(end, window); c < n; c++)
        drop[c] = false;
}

/* Resume points are judged from the context's beginning on: the point behind `place` chunks, once
 * the next point, behind m chunks, is known. Unless it is wanted, it goes if the gap from the last
 * kept point (`before` chunks) to the next one is small for its age. */
void window_thin(const bool *whole, const bool *wanted, int n, int window, bool *drop)
{
    const int least = SNAPSHOT_EVERY / STORE_CHUNK_TOKENS;
    int grid = MAX(least, 8 * ((window - 1) / STORE_CHUNK_TOKENS + 1));
    int before = 0, place = 0,
        missing = -1; /* `missing`: the last chunk that is not whole */
    for (int c = 0; c < n; c++)
        drop[c] = whole[c];
    for (int m = 1; m <= n; m++) {
        if (!whole[m - 1])
            missing = m - 1;
        bool can_resume = missing <
                          window_first_chunk((int64_t)m * STORE_CHUNK_TOKENS, window);
        if (!can_resume || !(wanted[m - 1] || m % grid == 0))
            continue;
        if (place > 0 && (wanted[place - 1] || m - before > MAX(least, n - m))) {
            keep_window(drop, place, window);
            before = place;
        }
        place = m;
    }
    if (place > 0)
        keep_window(drop, place, window);
}
