/* stall.c - see stall.h. */
#include "restore/stall.h"

#include <math.h>

/* Returns the time of one read: as the plan expects, or as reads of this restore took before the
 * present silence. */
static double expected_read_s(const struct stall_view *v)
{
    double pace_s = v->n_read > 0 ? (v->elapsed_s - v->silent_s) / v->n_read : 0;
    return fmax(v->read_s, pace_s);
}

/* Returns the silence that counts as a stall: a share of the recomputation time, but at least
 * least_s, and at least the time of STALL_READS reads. */
static double patience_s(const struct stall_view *v, double share, double least_s)
{
    double s = fmax(share * v->recompute_s, least_s);
    return fmax(s, STALL_READS * expected_read_s(v));
}

/* Returns whether the remaining reads take too long at the pace of the whole restore so far. */
static bool crawls(const struct stall_view *v)
{
    return v->n_read > 0 && v->elapsed_s >= STALL_RACE_SHARE * v->recompute_s &&
           v->elapsed_s / v->n_read * v->n_left > STALL_CRAWL * v->recompute_s;
}

enum stall_choice stall_choose(const struct stall_view *v, double *again_s)
{
    bool races = v->can_race && !v->is_beside;
    *again_s = INFINITY;
    if (!v->may_recompute || v->n_left == 0 || (races && v->is_raced))
        return STALL_WAIT;
    double patience = races ? patience_s(v, STALL_RACE_SHARE, STALL_RACE_LEAST_S)
                            : patience_s(v, STALL_LEAVE_SHARE, STALL_LEAVE_LEAST_S);
    if (races && !v->is_idle) {
        *again_s = 0; /* the lane is at work; its next item may make it idle */
        return STALL_WAIT;
    }
    if (v->silent_s >= patience)
        return races ? STALL_RACE : STALL_LEAVE;
    if (races && crawls(v))
        return STALL_RACE;
    *again_s = patience - v->silent_s;
    return STALL_WAIT;
}

const char *stall_end_name(enum stall_end e)
{
    static const char *const names[STALL_ENDS] = {"", "read", "recomputed", "left"};
    return names[e];
}
