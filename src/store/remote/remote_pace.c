/* remote_pace.c - see remote_pace.h. */
#include "store/remote/remote_pace.h"

#include <math.h>

#include "base/rng.h"

/* Weight of the newest observation: the pace follows a change within a few fetches. */
#define LEARN_SHARE 0.25

static void learn(double *value, double seen)
{
    if (!(seen > 0))
        return;
    *value = *value > 0 ? (1 - LEARN_SHARE) * *value + LEARN_SHARE * seen : seen;
}

void remote_pace_learn(struct remote_pace *p, double latency_s, uint64_t n_bytes,
                       double transfer_s)
{
    learn(&p->latency_s, latency_s);
    if (transfer_s > 0)
        learn(&p->bytes_per_s, (double)n_bytes / transfer_s);
}

void remote_pace_refuse(struct remote_pace *p)
{
    if (p->n_refused < REMOTE_REFUSALS_MOST)
        p->n_refused++;
}

void remote_pace_tried(struct remote_pace *p)
{
    p->n_refused = 0;
}

double remote_pace_price_s(const struct remote_pace *p, uint64_t n_bytes)
{
    return p->bytes_per_s > 0 ? p->latency_s + (double)n_bytes / p->bytes_per_s : 0;
}

double remote_rest_s(double all_s, double half_s, double share)
{
    /* A quadratic curve through 0, half_s and all_s. */
    double square = 2 * all_s - 4 * half_s, line = 4 * half_s - all_s;
    double rest = all_s - line * share - square * share * share;
    return fmin(fmax(rest, 0), all_s);
}

double remote_replay_s(double replay_s, double stair_s, int n_behind, int n_stair)
{
    if (n_behind < 0)
        return replay_s;
    return n_stair > 0 ? stair_s * (n_stair - n_behind) / n_stair : 0;
}

/* Returns how long the remote may be silent. */
static double patience_s(const struct remote_view *v)
{
    double s = v->recompute_s > 0
                   ? fmax(REMOTE_SILENT_SHARE * v->recompute_s, REMOTE_SILENT_LEAST_S)
                   : v->most_s;
    return fmin(s, v->most_s);
}

/* Returns whether the rest takes longer, at the pace so far, than computing it. */
static bool crawls(const struct remote_view *v)
{
    double all = (double)v->done_bytes + (double)v->left_bytes;
    double again = v->recompute_s * (double)v->left_bytes / all;
    return v->elapsed_s >=
               fmax(REMOTE_SILENT_SHARE * v->recompute_s, REMOTE_SILENT_LEAST_S) &&
           v->elapsed_s / (double)v->done_bytes * (double)v->left_bytes > again;
}

/* Returns whether a fetch costs too much to be begun. Returns false if the cost is unknown, and
 * after many refusals, so that a fetch is tried. */
static bool is_dear(const struct remote_view *v, const struct remote_pace *p)
{
    double fetch_s = remote_pace_price_s(p, v->left_bytes);
    return fetch_s > 0 && p->n_refused < REMOTE_REFUSALS_MOST &&
           fetch_s + v->restore_s > REMOTE_WORTH_SHARE * v->recompute_s;
}

enum remote_choice remote_choose(const struct remote_view *v, const struct remote_pace *p,
                                 double *again_s)
{
    double patience = patience_s(v);
    *again_s = patience - v->silent_s;
    if (v->silent_s >= patience)
        return REMOTE_SILENT;
    if (v->recompute_s <= 0 || v->left_bytes == 0)
        return REMOTE_GO_ON;
    if (v->done_bytes == 0)
        return is_dear(v, p) ? REMOTE_TOO_DEAR : REMOTE_GO_ON;
    return crawls(v) ? REMOTE_CRAWLS : REMOTE_GO_ON;
}

/* --- the wait between attempts ---------------------------------------------------------------- */

double backoff_s(int n_failures, uint64_t seed)
{
    struct rng r = {rng_mix(seed) + (uint64_t)n_failures};
    double whole = BACKOFF_FIRST_S;
    for (int i = 1; i < n_failures && whole < BACKOFF_MOST_S; i++)
        whole *= 2;
    if (whole > BACKOFF_MOST_S)
        whole = BACKOFF_MOST_S;
    return whole * (0.5 + 0.5 * rng_unit(&r));
}
